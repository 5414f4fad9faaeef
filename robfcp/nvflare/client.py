"""The client's half: a Client API script of a few lines, or an executor where sites take no code.

What a site allows stands in `robfcp.json` in the `local` folder of its own workspace, which no
server writes to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import nvflare.client as flare
from numpy.typing import ArrayLike, NDArray
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from robfcp.engines import (
    CODE_WORDS,
    Part,
    Question,
    SiteRules,
    answer,
    guarded_reply,
    open_request_record,
    own_code,
    read_site,
)
from robfcp.errors import RobfcpError
from robfcp.nvflare.tasks import RECORD, digest_of

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
