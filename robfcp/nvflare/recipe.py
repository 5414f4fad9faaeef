"""Jobs: calibration alone, or as the last workflow of a job that trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nvflare.app_common.app_constant import AppConstants
from nvflare.client.config import ExchangeFormat
from nvflare.fuel.utils.constants import FrameworkType
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner
from nvflare.recipe.spec import Recipe

from robfcp.nvflare.client import CalibrationExecutor
from robfcp.nvflare.server import CalibrationController
from robfcp.nvflare.tasks import TASK


class CalibrationRecipe(Recipe):
    """A job that calibrates the sites' own models.

    min_clients: how many sites must be connected for the job to start; where fewer are left, the
        engine ends it. name: of the job.
    script, script_args: a file that calls `calibrate_client`; the job carries it, and with it the
        `helpers`, files that it imports. Without a script the job carries no code, and the sites
        answer with `CalibrationExecutor`.
    config: any of `robfcp.engines.DEFAULTS`, with underscores: malicious=2, deadline=120.
    """

    def __init__(
        self,
        *,
        min_clients: int,
        name: str = "calibration",
        script: str | None = None,
        script_args: str = "",
        helpers: Sequence[str] = (),
        **config: Any,
    ) -> None:
        job = FedJob(name=name, min_clients=min_clients)
        job.to_server(CalibrationController(config))
        if script is None:
            job.to_clients(CalibrationExecutor(), tasks=[TASK])
        else:
            runner = ScriptRunner(
                script=script,
                script_args=script_args,
                framework=FrameworkType.RAW,
                server_expected_format=ExchangeFormat.RAW,
            )
            job.to_clients(runner, tasks=[TASK])
        for helper in helpers:
            job.to_clients(helper)
        super().__init__(job)


def add_calibration(
    job: FedJob, persistor_id: str = AppConstants.DEFAULT_PERSISTOR_ID, **config: Any
) -> None:
    """Let calibration follow what a job has, with the model its training leaves in the persistor.

    The sites' script must handle the task `calibrate`, as `calibrate_client(outputs, train)` does.
    """
    job.to_server(CalibrationController(config, persistor_id))
