"""The server's half: workflows of a job that calibrate, alone or after training, and monitor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.workflows.model_controller import ModelController

from robfcp._util.files import write_atomically
from robfcp.calibration import Calibration
from robfcp.engines import (
    DEFAULTS,
    Engine,
    Participant,
    calibrate_as_configured,
    check_config,
    monitor_round,
    named_participants,
    sizes_as_configured,
)
from robfcp.errors import RobfcpError
from robfcp.nvflare.tasks import Tasks, digest_of


class _Asking(ModelController):
    """A workflow that asks the job's clients; with a persistor, about the model trained before."""

    def __init__(self, persistor_id: str = "") -> None:
        super().__init__(persistor_id=persistor_id)
        self._numbers: dict[str, int] = {}

    def network(self, deadline: float, poll: float) -> Engine:
        """NVFlare during a round."""
        params = self.trained() or {}

        def present() -> list[Participant]:
            for client in self.engine.get_clients():
                self._numbers.setdefault(client.name, len(self._numbers) + 1)
            return named_participants((k, name, b"") for name, k in self._numbers.items())

        return Engine(
            f"nvflare {version('nvflare')}",
            "client by NVFlare's server",
            present,
            lambda kind, limit: Tasks(
                self, kind, limit, params, {k: name for name, k in self._numbers.items()}
            ),
            digest_of(params),
            deadline,
            poll,
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

    def place(self, output: str, name: str) -> str:
        """Where to write: as configured, or with what NVFlare keeps of the job."""
        return output or str(Path(self.get_run_dir()) / name)


class CalibrationController(_Asking):
    """A workflow that collects reports, calibrates, and writes calibration and evidence.

    config: any of `robfcp.engines.DEFAULTS`, the words of Flower's run config. Without `output`
        both files go to the job's folder at the server, which whoever submitted it can download.
    persistor_id: of the model that the workflow before this one has trained; empty for the sites'
        own models.
    """

    def __init__(self, config: dict[str, Any] | None = None, persistor_id: str = "") -> None:
        super().__init__(persistor_id)
        self.config = check_words(config or {})

    def run(self) -> None:
        """One round."""
        config = {**DEFAULTS, **self.config}
        config["output"] = self.place(config["output"], "calibration.json")
        check_config(config)
        network = self.network(float(config["deadline"]), float(config["poll"]))
        sizes = sizes_as_configured(network, config)
        calibrate_as_configured(network, config, sizes, self.fl_ctx.get_job_id())


class MonitorController(_Asking):
    """A workflow that asks all sites for their e-reports about a calibration, and merges them.

    calibration: its absolute path at the server. malicious: the most sites that may lie. round,
    step: a name, and the number of the date, fixed beforehand. What follows is written as JSON to
    `output`, or to monitor.json in the job's folder.
    """

    def __init__(
        self,
        calibration: str,
        malicious: int,
        round: str,
        step: int = 0,
        floor: float | None = None,
        delta: float = 0.05,
        independent: bool = False,
        deadline: float = 60.0,
        poll: float = 1.0,
        persistor_id: str = "",
        output: str = "",
    ) -> None:
        super().__init__(persistor_id)
        self.calibration, self.malicious, self.round, self.step = (
            calibration,
            malicious,
            round,
            step,
        )
        self.floor, self.delta, self.independent = floor, delta, independent
        self.deadline, self.poll, self.output = deadline, poll, output

    def run(self) -> None:
        """One date."""
        merged = monitor_round(
            self.network(self.deadline, self.poll),
            Calibration.load(self.calibration),
            self.malicious,
            round=self.round,
            step=self.step,
            floor=self.floor,
            delta=self.delta,
            independent=self.independent,
        )
        found = {
            "alarm": merged.alarm,
            "drift": merged.drift,
            "line": merged.line,
            **asdict(merged),
        }
        write_atomically(self.place(self.output, "monitor.json"), msgspec.json.encode(found))
        self.info(merged.line)


def check_words(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same with hyphens for underscores, refused where a word is unknown."""
    found = {word.replace("_", "-"): value for word, value in config.items()}
    for word in found:
        if word not in DEFAULTS:
            raise RobfcpError(f"{word}: is unknown; use {', '.join(DEFAULTS)}")
    return found
