"""The engine: calibration rounds on NVIDIA FLARE. A thin adapter, no mathematics in it.

`calibrate_client` makes a Client API script answer, `CalibrationController` asks, and
`CalibrationRecipe` builds the job; `CalibrationExecutor` answers where sites take no code. May
import `engines` and the rooms before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import nvflare.client as flare
from numpy.typing import ArrayLike, NDArray
from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
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

from robfcp.engines import (
    CODE_WORDS,
    DEFAULTS,
    MONITOR_DEFAULTS,
    Engine,
    Failed,
    Kind,
    Part,
    Participant,
    Question,
    Reply,
    SiteRules,
    answer,
    calibrate_as_configured,
    check_config,
    guarded_reply,
    known_words,
    model_digest,
    monitor_as_configured,
    named_participants,
    open_reply_record,
    open_request_record,
    own_code,
    read_site,
    request_record,
    sizes_as_configured,
)
from robfcp.errors import RobfcpError
from robfcp.files import make_folder

TASK = "calibrate"
RECORD = "robfcp"
CODES = {value for name, value in vars(ReturnCode).items() if name.isupper()}


@dataclass(frozen=True)
class Tasks:
    """One kind of request, with the model's parameters, as tasks for single clients."""

    controller: Controller
    kind: Kind
    limit: int
    params: Mapping[str, Any]
    names: Mapping[int, str]  # as NVFlare knows the participants
    found: dict[str, Shareable | Failed] = field(default_factory=dict)

    def send(
        self, participant: Participant, nonce: str, body: msgspec.Struct, ttl: float
    ) -> str | None:
        """Schedule the task; its nonce is its number."""
        record = {"kind": self.kind, **request_record(nonce, body)}
        data = FLModel(params=dict(self.params), meta={RECORD: record})
        task = Task(
            name=TASK,
            data=FLModelUtils.to_shareable(data),
            timeout=ceil(ttl),  # never 0, which would wait for ever
            result_received_cb=partial(self._received, nonce),
            task_done_cb=partial(self._done, nonce),
        )
        self.controller.broadcast(
            task=task,
            fl_ctx=self.controller.fl_ctx,
            targets=[self.names[participant.node_id]],
            min_responses=1,
        )
        return nonce

    def receive(self, identifier: str) -> Reply | Failed | None:
        """What came of one task, if anything has."""
        found = self.found.pop(identifier, None)
        return opened(found, self.limit) if isinstance(found, Shareable) else found

    def _received(self, nonce: str, client_task: ClientTask, fl_ctx: Any) -> None:
        self.found[nonce] = client_task.result
        client_task.result = None

    def _done(self, nonce: str, task: Task, fl_ctx: Any) -> None:
        if task.completion_status == TaskCompletionStatus.CLIENT_DEAD:
            self.found.setdefault(nonce, Failed("missing", "the client is gone, says NVFlare"))


def opened(result: Shareable, limit: int) -> Reply | Failed:
    """Nonce and body of a reply, or what NVFlare says instead."""
    code = result.get_return_code()
    if code != ReturnCode.OK:
        known = code if code in CODES else "an unknown code"
        return Failed("faulty", f"the client failed (NVFlare says {known})")
    model = FLModelUtils.from_shareable(result)
    if model.params is not None or not isinstance(model.metrics, dict):
        raise RobfcpError("the reply is not of this protocol")
    return Reply(*open_reply_record(model.metrics, limit))


def digest_of(params: Mapping[str, Any] | None) -> str | None:
    """The digest of a model's parameters, arrays or tensors; None where there are none."""
    if not params:
        return None
    arrays = {name: np.ascontiguousarray(value) for name, value in params.items()}
    return model_digest(
        (f"{name}\0{array.dtype}\0{array.shape}", array.tobytes()) for name, array in arrays.items()
    )


Params = Mapping[str, Any]
SiteOutputs = Callable[[Part, Params | None], tuple[ArrayLike, ArrayLike]]
FreshSamples = Callable[[Params | None], tuple[ArrayLike, ArrayLike, ArrayLike]]
Attack = Callable[[NDArray[np.float64]], ArrayLike]
CONFIG = Path("local", "robfcp.json")


def calibrate_client(
    outputs: SiteOutputs,
    train: Callable[[FLModel], FLModel] | None = None,
    *,
    fresh: FreshSamples | None = None,
    rng: int | None = None,
    attack: Attack | None = None,
    site: SiteRules | None = None,
) -> None:
    """Answer calibration rounds until the job ends: the whole of a Client API script.

    outputs(part, params): the model's predictions and the true targets on this site's
        "calibration" or "test" data; params is the received model, None for the site's own.
    train(model): the answer to every other task; a script that only calibrates has none.
    fresh(params): predictions, targets and names of the samples labelled so far, for the monitor.
    rng: a seed for randomised scores (joined with the site's name); fresh entropy without it.
    attack(scores): what is sketched instead of the scores, for simulations.
    site: what the site allows; its own `local/robfcp.json` goes before.
    """
    flare.init()
    name, memory = flare.get_site_name(), {}  # type: ignore[var-annotated]

    def ask(body: bytes, params: Params | None) -> Question:
        return Question(
            body,
            outputs=lambda part: outputs(part, params),
            fresh=None if fresh is None else lambda: fresh(params),
            config=read_site(CONFIG),
            model=digest_of(params),
            memory=memory,
            seed=None if rng is None else [rng, *name.encode()],
            attack=attack,
        )

    while flare.is_running():
        received = flare.receive()
        if RECORD in received.meta:
            flare.send(_reply(received, site or SiteRules(), ask))
        elif train is not None:
            flare.send(train(received))
        else:
            raise RobfcpError("train: another task than calibration came; pass a function for it")


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
        found: list[Shareable] = []
        worker = threading.Thread(
            target=lambda: found.append(self._answer(shareable, fl_ctx)), daemon=True
        )
        worker.start()
        while worker.is_alive() and not abort_signal.triggered:
            worker.join(0.2)
        return found[0] if found else make_reply(ReturnCode.TASK_ABORTED)

    def _answer(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        local = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_site_config_dir())

        def ask(body: bytes, params: Params | None) -> Question:
            config = read_site(local / CONFIG.name)
            outputs, fresh = (own_code(config.get(word), local / "custom") for word in CODE_WORDS)
            return Question(
                body,
                None if outputs is None else lambda part: outputs(part, params),
                None if fresh is None else lambda: fresh(params),
                config,
                digest_of(params),
                self._memory,
            )

        received = FLModelUtils.from_shareable(shareable)
        return FLModelUtils.to_shareable(_reply(received, SiteRules(), ask))


def _reply(
    received: FLModel, site: SiteRules, ask: Callable[[bytes, Params | None], Question]
) -> FLModel:
    """The answer to a request, or a code, as NVFlare carries it."""

    def opened() -> tuple[str, Callable[[], bytes]]:
        record = received.meta.get(RECORD) or {}
        nonce, body = open_request_record(record)
        kind: Any = record.get("kind")
        return nonce, lambda: answer(kind, site, ask(body, received.params or None))

    return FLModel(metrics=guarded_reply(opened))


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


if find_spec("nvflare") is None:
    raise RobfcpError("nvflare: nvflare is not installed; pip install 'robfcp[nvflare]'")
