"""Calibration rounds on NVIDIA FLARE. A thin adapter, no mathematics in it.

`run_client` makes a Client API script answer, `CalibrationController` asks, and
`CalibrationRecipe` builds the job; `CalibrationExecutor` answers at clients that take no code.
"""

from __future__ import annotations

import logging
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
from robfcp.integrations._configuration import DEFAULTS, run_configured_round
from robfcp.integrations._keys import CONFIG_SYNONYMS, require_known_keys
from robfcp.integrations._messages import RECORD, Participant
from robfcp.integrations._requests import FailedReply, Transport, resolve_participants
from robfcp.integrations._requests import model_digest as digest_of_arrays
from robfcp.integrations._round import run_monitoring_round
from robfcp.integrations.client import (
    FUNCTION_KEYS,
    Attack,
    ClientPolicy,
    ClientRequestHandler,
    DataSplit,
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
ClientOutputs = Callable[[DataSplit, Params | None], tuple[ArrayLike, ArrayLike]]
FreshSamples = Callable[[Params | None], tuple[ArrayLike, ArrayLike, ArrayLike]]

TASK = "calibrate"
CONFIG = Path("local", "robfcp.json")
RETURN_CODES = {value for name, value in vars(ReturnCode).items() if name.isupper()}
ABORT_POLL_SECONDS = 0.2  # seconds between two checks whether a task was aborted
MONITOR_DEFAULTS: Mapping[str, Any] = {
    "calibration": "",  # its absolute path
    "max-malicious": 0,  # the largest number of malicious clients
    "round": "",  # a name
    "deadline": 60.0,
    "poll": 1.0,
    "step": 0,
    "level": 0,
    "min-coverage": None,
    "delta": 0.05,
    "independent": False,
    "history": None,
}

log = logging.getLogger(__name__)


def model_digest(params: Params | None) -> str | None:
    """Return the digest of a model's parameters, arrays or tensors; None if there are none."""
    if not params:
        return None
    described_arrays = []
    for name, value in params.items():
        array = np.ascontiguousarray(value)
        described_arrays.append((f"{name}\0{array.dtype}\0{array.shape}", array.tobytes()))
    return digest_of_arrays(described_arrays)


def run_client(
    predict_fn: ClientOutputs,
    train: Callable[[FLModel], FLModel] | None = None,
    *,
    fresh_data_fn: FreshSamples | None = None,
    rng: int | None = None,
    attack: Attack | None = None,
    **policy_fields: Any,
) -> None:
    """Answer calibration rounds until the job ends: all that a Client API script needs.

    Parameters
    ----------
    predict_fn : callable
        ``predict_fn(split, params)`` is the model's predictions and the true targets on this
        client's "calibration" or "test" data; params is the received model, None for the local one.
    train : callable, optional
        ``train(model)`` is the answer to every other task; None for a script that only calibrates.
    fresh_data_fn : callable, optional
        ``fresh_data_fn(params)`` is predictions, targets and names of the samples labeled so far,
        for the monitor.
    rng : int, optional
        A seed for randomized scores (combined with the client's name); random if None.
    attack : callable, optional
        ``attack(scores)`` is what is reported instead of the scores, for simulations.
    **policy_fields
        Fields of `ClientPolicy`; the client's `local/robfcp.json` takes precedence.
    """
    flare.init()
    policy = ClientPolicy(**policy_fields)
    cache: dict[str, Any] = {}
    seed = None if rng is None else [rng, *flare.get_site_name().encode()]

    def make_handler(params: Params | None) -> ClientRequestHandler:
        return ClientRequestHandler(
            policy.with_config(read_client_policy(CONFIG)),
            predict_fn,
            fresh_data_fn,
            (params,),
            model_digest(params),
            cache,
            seed=seed,
            attack=attack,
        )

    while flare.is_running():
        received = flare.receive()
        if RECORD in received.meta:
            flare.send(_reply(received, make_handler))
        elif train is not None:
            flare.send(train(received))
        else:
            raise RobfcpError("train: the task is not calibration; pass a function for it")


def _reply(
    received: FLModel, make_handler: Callable[[Params | None], ClientRequestHandler]
) -> FLModel:
    """Return the answer to a request, or a code, as NVFlare carries it."""
    record = received.meta.get(RECORD)
    params = received.params or None
    return FLModel(metrics=handle_message(record, partial(make_handler, params)))


class CalibrationExecutor(Executor):
    """Answers without any code in the job: the client's configuration names its functions.

    `robfcp.json` must hold `predict-fn` (and may hold `fresh-data-fn`) as `module:function`, of a
    module that is installed at the client or is in `local/custom`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._cache: dict[str, Any] = {}

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """Return the reply to one request; a client that hangs is freed when the task ends."""
        local_folder = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_site_config_dir())
        replies: list[Shareable] = []

        def answer() -> None:
            received = FLModelUtils.from_shareable(shareable)
            reply = _reply(received, partial(self._make_handler, local_folder))
            replies.append(FLModelUtils.to_shareable(reply))

        worker = threading.Thread(target=answer, daemon=True)
        worker.start()
        while worker.is_alive() and not abort_signal.triggered:
            worker.join(ABORT_POLL_SECONDS)
        if not replies:
            return make_reply(ReturnCode.TASK_ABORTED)
        return replies[0]

    def _make_handler(self, local_folder: Path, params: Params | None) -> ClientRequestHandler:
        """Return a handler with the functions that the client's configuration names."""
        config = read_client_policy(local_folder / CONFIG.name)
        custom_folder = str(local_folder / "custom")
        if custom_folder not in sys.path:
            sys.path.append(custom_folder)
        functions = {}
        for key in FUNCTION_KEYS:
            functions[key] = resolve_name(config[key]) if config.get(key) else None
        return ClientRequestHandler(
            ClientPolicy().with_config(config),
            functions["predict-fn"],
            functions["fresh-data-fn"],
            (params,),
            model_digest(params),
            self._cache,
        )


class NVFlareTransport(Transport):
    """NVFlare during a round: tasks for single clients, with the model's parameters."""

    def __init__(
        self, controller: ModelController, params: Params | None, deadline: float, poll: float
    ) -> None:
        super().__init__(
            f"nvflare {version('nvflare')}", "client by NVFlare's server", deadline, poll
        )
        self.model = model_digest(params)
        self.controller = controller
        self.params = dict(params or {})
        self.names: list[str] = []  # by the number of a participant
        self.results: dict[str, Shareable | FailedReply] = {}

    def present(self) -> list[Participant]:
        """Return the job's clients."""
        for client in self.controller.engine.get_clients():
            if client.name not in self.names:
                self.names.append(client.name)
        return resolve_participants((node_id, name, b"") for node_id, name in enumerate(self.names))

    def send(self, participant: Participant, record: dict[str, Any], ttl: float) -> str | None:
        """Schedule the task; return its number, which is its nonce."""
        nonce: str = record["nonce"]
        data = FLModelUtils.to_shareable(FLModel(params=self.params, meta={RECORD: record}))
        task = Task(
            name=TASK,
            data=data,
            timeout=ceil(ttl),  # never 0, which would wait forever
            result_received_cb=partial(self._received, nonce),
            task_done_cb=partial(self._done, nonce),
        )
        targets = [self.names[participant.node_id]]
        self.controller.broadcast(task, self.controller.fl_ctx, targets=targets, min_responses=1)
        return nonce

    def receive(self, identifier: str) -> Mapping[str, Any] | FailedReply | None:
        """Return the result of one task; None if there is none yet."""
        result = self.results.pop(identifier, None)
        if not isinstance(result, Shareable):
            return result
        code = result.get_return_code()
        if code != ReturnCode.OK:
            known_code = code if code in RETURN_CODES else "an unknown code"
            return FailedReply("invalid", f"the client failed (NVFlare reports {known_code})")
        model = FLModelUtils.from_shareable(result)
        if model.params is not None or not isinstance(model.metrics, dict):
            raise RobfcpError("the reply is not of this protocol")
        return model.metrics

    def _received(self, nonce: str, client_task: ClientTask, fl_ctx: Any) -> None:
        self.results[nonce] = client_task.result
        client_task.result = None

    def _done(self, nonce: str, task: Task, fl_ctx: Any) -> None:
        if task.completion_status == TaskCompletionStatus.CLIENT_DEAD:
            client_gone = FailedReply("missing", "NVFlare reports that the client is gone")
            self.results.setdefault(nonce, client_gone)


class _Workflow(ModelController):
    """A workflow that asks the job's clients; with a persistor, about the model trained earlier."""

    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, config: dict[str, Any] | None = None, persistor_id: str = "") -> None:
        super().__init__(persistor_id=persistor_id)
        self.config = {key.replace("_", "-"): value for key, value in (config or {}).items()}
        known_keys = [key for key in self.defaults if key != "output"]
        require_known_keys(self.config, known_keys, CONFIG_SYNONYMS)

    def add_to_fed_job(self, job: FedJob, ctx: Any) -> None:
        """Add this to a job without a copy of robfcp, which is installed at server and clients."""
        job.set_app_packages([*job.job.app_packages, "robfcp"])
        super().add_to_fed_job(job, ctx)

    def run(self) -> None:
        """Run one round; the results go to the job's folder or to one that the server names."""
        config = {**self.defaults, **self.config}
        transport = NVFlareTransport(
            self, self.trained_params(), float(config["deadline"]), float(config["poll"])
        )
        self.ask(transport, config, self._output_folder())

    def _output_folder(self) -> Path:
        """Return the job's folder, or a folder below the `output-dir` of the server."""
        local_folder = Path(self.engine.get_workspace().get_site_config_dir())
        output_folder = read_client_policy(local_folder / CONFIG.name).get("output-dir")
        if not output_folder:
            return Path(self.get_run_dir())
        return Path(make_folder(str(Path(output_folder) / self.fl_ctx.get_job_id())))

    def ask(self, transport: NVFlareTransport, config: dict[str, Any], folder: Path) -> None:
        """Run the requests of this workflow; results go to the folder."""
        raise NotImplementedError

    def trained_params(self) -> Params | None:
        """Return the trained parameters that the persistor holds; None without a persistor."""
        if self.persistor is None:
            return None
        inventory = self.persistor.get_model_inventory(self.fl_ctx) or {}
        for name, model in inventory.items():
            is_initial = bool((model.props or {}).get("source"))
            if not is_initial:
                return self.persistor.get(name, self.fl_ctx)[ModelLearnableKey.WEIGHTS]
        return self.load_model().params


class CalibrationController(_Workflow):
    """A workflow that collects reports, calibrates, and writes calibration and record.

    Parameters
    ----------
    config : dict, optional
        Any key of `robfcp.integrations.DEFAULTS`, the keys of Flower's run config, except `output`:
        both files go to the job's folder at the server, which the submitter can download, or
        below the `output-dir` that the server names in its `local/robfcp.json`.
    persistor_id : str
        The persistor of the model that the previous workflow has trained; empty for the models
        that clients have.
    """

    defaults = DEFAULTS

    def ask(self, transport: NVFlareTransport, config: dict[str, Any], folder: Path) -> None:
        """Ask for sizes and reports, calibrate, and send the feedback."""
        config["output"] = str(folder / "calibration.json")
        run_configured_round(transport, config, self.fl_ctx.get_job_id())


class MonitorController(_Workflow):
    """A workflow that asks all clients for e-value reports on a calibration, and merges them.

    Parameters
    ----------
    config : dict, optional
        Any key of `MONITOR_DEFAULTS`; `calibration` and `round` are required. The result is written
        to monitor.json in the job's folder, or the server's.
    """

    defaults = MONITOR_DEFAULTS

    def ask(self, transport: NVFlareTransport, config: dict[str, Any], folder: Path) -> None:
        """Merge the e-value reports of one inspection."""
        calibration = Calibration.load(str(config["calibration"]))
        merged = run_monitoring_round(
            transport,
            calibration,
            int(config["max-malicious"]),
            round=config["round"],
            step=config["step"],
            level=config["level"],
            min_coverage=config["min-coverage"],
            delta=config["delta"],
            independent=config["independent"],
            history=config["history"],
        )
        result = {
            "has_alarm": merged.has_alarm,
            "has_exchangeability_alarm": merged.has_exchangeability_alarm,
            "line": merged.line,
            **asdict(merged),
        }
        write_atomically(folder / "monitor.json", msgspec.json.encode(result))
        log.warning("%s", merged.line)


class CalibrationRecipe(Recipe):
    """A job that calibrates the clients' own models.

    Parameters
    ----------
    min_clients : int
        How many clients must be connected for the job to start; if fewer are left, the framework
        ends it.
    name : str
        The job's name.
    script, script_args : str
        A file that calls `run_client`; the job carries it. Without a script the job carries no
        code, and the clients answer with `CalibrationExecutor`.
    helpers : sequence of str
        Files that the script imports; the job carries them too.
    **config
        Any key of `robfcp.integrations.DEFAULTS`, with underscores: max_malicious=2, deadline=120.
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
            executor: Any = CalibrationExecutor()
        else:
            executor = ScriptRunner(
                script=script,
                script_args=script_args,
                framework=FrameworkType.RAW,
                server_expected_format=ExchangeFormat.RAW,
            )
        job.to_clients(executor, tasks=[TASK])
        for helper in helpers:
            job.to_clients(helper)
        super().__init__(job)


def add_calibration(
    job: FedJob, persistor_id: str = AppConstants.DEFAULT_PERSISTOR_ID, **config: Any
) -> None:
    """Add calibration after what a job has, of the model that training leaves in the persistor.

    The clients' script must handle the task `calibrate`, as `run_client(predict_fn, train)` does.

    Parameters
    ----------
    job : FedJob
        Any job that trains.
    persistor_id : str
        The persistor that stores the trained model.
    **config
        Any key of `robfcp.integrations.DEFAULTS`, with underscores.
    """
    job.to_server(CalibrationController(config, persistor_id))
