"""The server's half: workflows of a job that calibrate, alone or after training, and monitor."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.workflows.model_controller import ModelController
from nvflare.job_config.api import FedJob

from robfcp._util.files import make_folder
from robfcp.engines import (
    DEFAULTS,
    MONITOR_DEFAULTS,
    Engine,
    Kind,
    Participant,
    calibrate_as_configured,
    check_config,
    known_words,
    monitor_as_configured,
    named_participants,
    read_site,
    sizes_as_configured,
)
from robfcp.nvflare.client import CONFIG
from robfcp.nvflare.tasks import Tasks, digest_of


class _Asking(ModelController):
    """A workflow that asks the job's clients; with a persistor, about the model trained before."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    result: ClassVar[str] = ""

    def __init__(self, config: dict[str, Any] | None = None, persistor_id: str = "") -> None:
        super().__init__(persistor_id=persistor_id)
        words = {word: value for word, value in self.defaults.items() if word != "output"}
        self.config = known_words(config or {}, words)
        self._numbers: dict[str, int] = {}

    def add_to_fed_job(self, job: FedJob, ctx: Any) -> None:
        """Join a job without a copy of robfcp, which is installed at server and sites."""
        job.set_app_packages([*job.job.app_packages, "robfcp"])
        super().add_to_fed_job(job, ctx)

    def run(self) -> None:
        """One round."""
        config = {**self.defaults, **self.config, "output": str(self.place() / self.result)}
        self.ask(self.network(float(config["deadline"]), float(config["poll"])), config)

    def place(self) -> Path:
        """Where results go: the job's folder, or the server's choice; never the submitter's."""
        local = Path(self.engine.get_workspace().get_site_config_dir())
        chosen = read_site(local / CONFIG.name).get("output-folder")
        if not chosen:
            return Path(self.get_run_dir())
        return make_folder(str(Path(chosen) / self.fl_ctx.get_job_id()))

    def ask(self, network: Engine, config: dict[str, Any]) -> None:
        """What this workflow is for."""
        raise NotImplementedError

    def network(self, deadline: float, poll: float) -> Engine:
        """NVFlare during a round."""
        params = self.trained() or {}

        def present() -> list[Participant]:
            for client in self.engine.get_clients():
                self._numbers.setdefault(client.name, len(self._numbers) + 1)
            return named_participants((k, name, b"") for name, k in self._numbers.items())

        def carrier(kind: Kind, limit: int) -> Tasks:
            return Tasks(self, kind, limit, params, {k: n for n, k in self._numbers.items()})

        name, signatures = f"nvflare {version('nvflare')}", "client by NVFlare's server"
        return Engine(
            name,
            signatures=signatures,
            present=present,
            carrier=carrier,
            model=digest_of(params),
            deadline=deadline,
            poll=poll,
        )

    def trained(self) -> Mapping[str, Any] | None:
        """The parameters that training left with the persistor; None without one."""
        if self.persistor is None:
            return None
        inventory = self.persistor.get_model_inventory(self.fl_ctx) or {}
        for name, model in inventory.items():
            if not (model.props or {}).get("source"):  # what training began with
                return self.persistor.get(name, self.fl_ctx)[ModelLearnableKey.WEIGHTS]
        return self.load_model().params


class CalibrationController(_Asking):
    """A workflow that collects reports, calibrates, and writes calibration and evidence.

    config: any of `robfcp.engines.DEFAULTS`, the words of Flower's run config, but `output`: both
        files go to the job's folder at the server, which whoever submitted it can download, or
        below the `output-folder` that the server names in its own `local/robfcp.json`.
    persistor_id: of the model that the workflow before this one has trained; empty for the sites'
        own models.
    """

    defaults, result = DEFAULTS, "calibration.json"

    def ask(self, network: Engine, config: dict[str, Any]) -> None:
        """Sizes, reports, calibration, letters."""
        check_config(config)
        sizes = sizes_as_configured(network, config)
        calibrate_as_configured(network, config, sizes, self.fl_ctx.get_job_id())


class MonitorController(_Asking):
    """A workflow that asks all sites for their e-reports about a calibration, and merges them.

    config: any of `robfcp.engines.MONITOR_DEFAULTS` but `output`, `calibration` and `round` among
        them. What follows is written to monitor.json in the job's folder, or the server's.
    """

    defaults, result = MONITOR_DEFAULTS, "monitor.json"

    def ask(self, network: Engine, config: dict[str, Any]) -> None:
        """One date."""
        monitor_as_configured(network, config)
