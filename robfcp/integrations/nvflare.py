"""Calibration rounds on NVIDIA FLARE. A thin adapter, no mathematics in it.

`run_client` makes a Client API script answer, `CalibrationController` asks, and
`CalibrationRecipe` builds the job; `CalibrationExecutor` answers where sites take no code.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from math import ceil
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from robfcp.errors import RobfcpError

try:
    import nvflare.client as flare
    from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
    from nvflare.apis.executor import Executor
    from nvflare.apis.fl_constant import FLContextKey, ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable, make_reply
    from nvflare.apis.signal import Signal
    from nvflare.app_common.abstract.fl_model import FLModel
    from nvflare.app_common.abstract.model import ModelLearnableKey
    from nvflare.app_common.app_constant import AppConstants
    from nvflare.app_common.utils.fl_model_utils import FLModelUtils
    from nvflare.app_common.workflows.model_controller import ModelController
    from nvflare.client.config import ExchangeFormat
    from nvflare.fuel.utils.constants import FrameworkType
    from nvflare.job_config.api import FedJob
    from nvflare.job_config.script_runner import ScriptRunner
    from nvflare.recipe.spec import Recipe
except ModuleNotFoundError as error:
    raise RobfcpError("nvflare: nvflare is not installed; pip install 'robfcp[nvflare]'") from error

from robfcp._files import make_folder, write_atomically
from robfcp.calibration import Calibration
from robfcp.integrations import _server
from robfcp.integrations._messages import RECORD, Participant
from robfcp.integrations.client import (
    FUNCTION_KEYS,
    Attack,
    ClientPolicy,
    ClientRequestHandler,
    Part,
    handle_message,
    read_client_policy,
)

__all__ = [
    "CalibrationController",
    "CalibrationExecutor",
    "CalibrationRecipe",
    "MonitorController",
    "add_calibration",
    "run_client",
]

Params = Mapping[str, Any]
ClientOutputs = Callable[[Part, Params | None], tuple[ArrayLike, ArrayLike]]
FreshSamples = Callable[[Params | None], tuple[ArrayLike, ArrayLike, ArrayLike]]

TASK = "calibrate"
CONFIG = Path("local", "robfcp.json")
CODES = {value for name, value in vars(ReturnCode).items() if name.isupper()}
MONITOR_DEFAULTS: Mapping[str, Any] = {
    "calibration": "",  # its absolute path
    "liars": 0,  # the most sites that may lie
    "round": "",  # a name
    "deadline": 60.0,
    "poll": 1.0,
    "step": 0,
    "level": 0,
    "floor": None,
    "delta": 0.05,
    "independent": False,
    "history": None,
}


def model_digest(params: Params | None) -> str | None:
    """The digest of a model's parameters, arrays or tensors; None where there are none."""
    if not params:
        return None
    arrays = {name: np.ascontiguousarray(value) for name, value in params.items()}
    return _server.model_digest(
        (f"{name}\0{array.dtype}\0{array.shape}", array.tobytes()) for name, array in arrays.items()
    )


def run_client(
    predict_fn: ClientOutputs,
    train: Callable[[FLModel], FLModel] | None = None,
    *,
    fresh_data_fn: FreshSamples | None = None,
    rng: int | None = None,
    attack: Attack | None = None,
    **rules: Any,
) -> None:
    """Answer calibration rounds until the job ends: the whole of a Client API script.

    predict_fn(part, params): the model's predictions and the true targets on this site's
        "calibration" or "test" data; params is the received model, None for the site's own.
    train(model): the answer to every other task; a script that only calibrates has none.
    fresh_data_fn(params): predictions, targets and names of the samples labelled so far,
        for the monitor.
    rng: a seed for randomised scores (joined with the site's name); fresh entropy without it.
    attack(scores): what is reported instead of the scores, for simulations.
    rules: what the site allows, as `ClientPolicy` has it; its own `local/robfcp.json` goes before.
    """
    flare.init()
    said, memory = ClientPolicy(**rules), {}  # type: ignore[var-annotated]
    seed = None if rng is None else [rng, *flare.get_site_name().encode()]

    def site(params: Params | None) -> ClientRequestHandler:
        own, model = said.with_config(read_client_policy(CONFIG)), model_digest(params)
        return ClientRequestHandler(
            own, predict_fn, fresh_data_fn, (params,), model, memory, seed=seed, attack=attack
        )

    while flare.is_running():
        received = flare.receive()
        if RECORD in received.meta:
            flare.send(_reply(received, site))
        elif train is not None:
            flare.send(train(received))
        else:
            raise RobfcpError("train: another task than calibration came; pass a function for it")


def _reply(received: FLModel, site: Callable[[Params | None], ClientRequestHandler]) -> FLModel:
    """The answer to a request, or a code, as NVFlare carries it."""
    record = received.meta.get(RECORD)
    return FLModel(metrics=handle_message(record, lambda: site(received.params or None)))


class CalibrationExecutor(Executor):
    """Answers without any code in the job: the site's configuration names its own.

    `robfcp.json` must hold `outputs` (and may hold `fresh`) as `module:function`, of a module that
    is installed at the site or lies in `local/custom`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._memory: dict[str, Any] = {}

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """The reply to one request; a site that hangs is freed when its time is up."""
        local = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_site_config_dir())

        def site(params: Params | None) -> ClientRequestHandler:
            config = read_client_policy(local / CONFIG.name)
            if str(local / "custom") not in sys.path:
                sys.path.append(str(local / "custom"))
            outputs, fresh = (
                resolve_name(config[w]) if config.get(w) else None for w in FUNCTION_KEYS
            )
            own, model = ClientPolicy().with_config(config), model_digest(params)
            return ClientRequestHandler(own, outputs, fresh, (params,), model, self._memory)

        def answer() -> None:
            received = FLModelUtils.from_shareable(shareable)
            found.append(FLModelUtils.to_shareable(_reply(received, site)))

        found: list[Shareable] = []
        worker = threading.Thread(target=answer, daemon=True)
        worker.start()
        while worker.is_alive() and not abort_signal.triggered:
            worker.join(0.2)
        return found[0] if found else make_reply(ReturnCode.TASK_ABORTED)


class NVFlareTransport(_server.Transport):
    """NVFlare during a round: tasks for single clients, with the model's parameters."""

    def __init__(
        self, controller: ModelController, params: Params | None, deadline: float, poll: float
    ) -> None:
        name, signatures = f"nvflare {version('nvflare')}", "client by NVFlare's server"
        super().__init__(name, signatures, deadline, poll)
        self.model = model_digest(params)
        self.controller, self.params = controller, dict(params or {})
        self.names: list[str] = []  # a participant's number is its place here
        self.found: dict[str, Shareable | _server.FailedReply] = {}

    def present(self) -> list[Participant]:
        """The job's clients."""
        there = [client.name for client in self.controller.engine.get_clients()]
        self.names += [name for name in there if name not in self.names]
        return _server.resolve_participants((k, name, b"") for k, name in enumerate(self.names))

    def send(self, participant: Participant, record: dict[str, Any], ttl: float) -> str | None:
        """Schedule the task; its nonce is its number."""
        nonce: str = record["nonce"]
        data = FLModelUtils.to_shareable(FLModel(params=self.params, meta={RECORD: record}))
        task = Task(
            name=TASK,
            data=data,
            timeout=ceil(ttl),  # never 0, which would wait for ever
            result_received_cb=partial(self._received, nonce),
            task_done_cb=partial(self._done, nonce),
        )
        site = [self.names[participant.node_id]]
        self.controller.broadcast(task, self.controller.fl_ctx, targets=site, min_responses=1)
        return nonce

    def receive(self, identifier: str) -> Mapping[str, Any] | _server.FailedReply | None:
        """What came of one task, if anything has."""
        found = self.found.pop(identifier, None)
        if not isinstance(found, Shareable):
            return found
        code = found.get_return_code()
        if code != ReturnCode.OK:
            known = code if code in CODES else "an unknown code"
            return _server.FailedReply("faulty", f"the client failed (NVFlare says {known})")
        model = FLModelUtils.from_shareable(found)
        if model.params is not None or not isinstance(model.metrics, dict):
            raise RobfcpError("the reply is not of this protocol")
        return model.metrics

    def _received(self, nonce: str, client_task: ClientTask, fl_ctx: Any) -> None:
        self.found[nonce] = client_task.result
        client_task.result = None

    def _done(self, nonce: str, task: Task, fl_ctx: Any) -> None:
        if task.completion_status == TaskCompletionStatus.CLIENT_DEAD:
            gone = _server.FailedReply("missing", "the client is gone, says NVFlare")
            self.found.setdefault(nonce, gone)


class _Workflow(ModelController):
    """A workflow that asks the job's clients; with a persistor, about the model trained before."""

    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, config: dict[str, Any] | None = None, persistor_id: str = "") -> None:
        super().__init__(persistor_id=persistor_id)
        self.config = {word.replace("_", "-"): value for word, value in (config or {}).items()}
        words = [word for word in self.defaults if word != "output"]
        for word in self.config:
            if word not in words:
                raise RobfcpError(f"{word}: is unknown; use {', '.join(words)}")

    def add_to_fed_job(self, job: FedJob, ctx: Any) -> None:
        """Join a job without a copy of robfcp, which is installed at server and sites."""
        job.set_app_packages([*job.job.app_packages, "robfcp"])
        super().add_to_fed_job(job, ctx)

    def run(self) -> None:
        """One round, its results in the job's folder or the server's, never a submitter's."""
        config = {**self.defaults, **self.config}
        local = Path(self.engine.get_workspace().get_site_config_dir())
        chosen = read_client_policy(local / CONFIG.name).get("output-folder")
        job = self.fl_ctx.get_job_id()
        place = Path(make_folder(str(Path(chosen) / job)) if chosen else self.get_run_dir())
        waiting = float(config["deadline"]), float(config["poll"])
        self.ask(NVFlareTransport(self, self.trained(), *waiting), config, place)

    def ask(self, engine: NVFlareTransport, config: dict[str, Any], place: Path) -> None:
        """What this workflow is for."""
        raise NotImplementedError

    def trained(self) -> Params | None:
        """The parameters that training left with the persistor; None without one."""
        if self.persistor is None:
            return None
        inventory = self.persistor.get_model_inventory(self.fl_ctx) or {}
        for name, model in inventory.items():
            if not (model.props or {}).get("source"):  # what training began with
                return self.persistor.get(name, self.fl_ctx)[ModelLearnableKey.WEIGHTS]
        return self.load_model().params


class CalibrationController(_Workflow):
    """A workflow that collects reports, calibrates, and writes calibration and record.

    config: any of `robfcp.integrations.DEFAULTS`, the words of Flower's run config, but `output`:
        both files go to the job's folder at the server, which whoever submitted it can download, or
        below the `output-folder` that the server names in its own `local/robfcp.json`.
    persistor_id: of the model that the workflow before this one has trained; empty for the sites'
        own models.
    """

    defaults = _server.DEFAULTS

    def ask(self, engine: NVFlareTransport, config: dict[str, Any], place: Path) -> None:
        """Sizes, reports, calibration, letters."""
        config["output"] = str(place / "calibration.json")
        _server.run_configured_round(engine, config, self.fl_ctx.get_job_id())


class MonitorController(_Workflow):
    """A workflow that asks all sites for their e-reports about a calibration, and merges them.

    config: any of `MONITOR_DEFAULTS`, `calibration` and `round` among them. What follows is
        written to monitor.json in the job's folder, or the server's.
    """

    defaults = MONITOR_DEFAULTS

    def ask(self, engine: NVFlareTransport, config: dict[str, Any], place: Path) -> None:
        """One date."""
        calibration = Calibration.load(str(config["calibration"]))
        merged = _server.run_monitoring_round(
            engine,
            calibration,
            int(config["liars"]),
            round=config["round"],
            step=config["step"],
            level=config["level"],
            min_coverage=config["floor"],
            delta=config["delta"],
            independent=config["independent"],
            history=config["history"],
        )
        found = {
            "alarm": merged.has_alarm,
            "drift": merged.has_exchangeability_alarm,
            "line": merged.line,
        }
        write_atomically(place / "monitor.json", msgspec.json.encode({**found, **asdict(merged)}))
        _server.log.warning("%s", merged.line)


class CalibrationRecipe(Recipe):
    """A job that calibrates the sites' own models.

    min_clients: how many sites must be connected for the job to start; where fewer are left, the
        engine ends it. name: of the job.
    script, script_args: a file that calls `run_client`; the job carries it, and with it the
        `helpers`, files that it imports. Without a script the job carries no code, and the sites
        answer with `CalibrationExecutor`.
    config: any of `robfcp.integrations.DEFAULTS`, with underscores: liars=2, deadline=120.
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
        answering: Any = CalibrationExecutor()
        if script is not None:
            raw = {"framework": FrameworkType.RAW, "server_expected_format": ExchangeFormat.RAW}
            answering = ScriptRunner(script=script, script_args=script_args, **raw)
        job.to_clients(answering, tasks=[TASK])
        for helper in helpers:
            job.to_clients(helper)
        super().__init__(job)


def add_calibration(
    job: FedJob, persistor_id: str = AppConstants.DEFAULT_PERSISTOR_ID, **config: Any
) -> None:
    """Let calibration follow what a job has, with the model its training leaves in the persistor.

    The sites' script must handle the task `calibrate`, as `run_client(predict_fn, train)` does.
    """
    job.to_server(CalibrationController(config, persistor_id))
