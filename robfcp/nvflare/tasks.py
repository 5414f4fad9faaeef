"""How NVFlare carries a round's questions: one task a client; `engines` does the rest.

The server knows a client by the name it authenticated, gives each task to the client it is for,
and takes its result from nobody else. The nonce ties a result to the question.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any

import msgspec
import numpy as np
from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from robfcp.engines import (
    Failed,
    Kind,
    Participant,
    Reply,
    model_digest,
    open_reply_record,
    request_record,
)
from robfcp.errors import RobfcpError

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
