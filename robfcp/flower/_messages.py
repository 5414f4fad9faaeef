"""How Flower carries the requests and replies of a round: a nonce and one strict JSON body."""

from __future__ import annotations

from typing import Any

import msgspec
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from robfcp.engines import (
    Refused,
    model_digest,
    open_reply_record,
    open_request_record,
    reply_record,
    request_record,
)
from robfcp.errors import RobfcpError

RECORD = "robfcp"
ARRAYS = "arrays"


def request_content(nonce: str, body: msgspec.Struct, arrays: ArrayRecord | None) -> RecordDict:
    """A request as Flower carries it."""
    content = RecordDict({RECORD: ConfigRecord(request_record(nonce, body))})
    if arrays is not None:
        content[ARRAYS] = arrays
    return content


def reply_content(nonce: str, answer: bytes | int) -> RecordDict:
    """An answer, or a failure's code, as Flower carries it."""
    return RecordDict({RECORD: ConfigRecord(reply_record(nonce, answer))})


def open_request(content: RecordDict) -> tuple[str, bytes, ArrayRecord | None]:
    """Nonce, body and model of a request."""
    record, arrays = content.get(RECORD), content.get(ARRAYS)
    if not isinstance(record, ConfigRecord) or not isinstance(arrays, (ArrayRecord, type(None))):
        raise Refused(1, "the request is not of this protocol; update robfcp")
    return *open_request_record(record), arrays


def open_reply(content: Any, limit: int) -> tuple[str, bytes | int]:
    """Nonce and body (or failure code) of a reply, its size and shape checked before the rest."""
    if len(content) != 1:
        raise RobfcpError(f"the reply holds {len(content)} records instead of 1")
    record = content.get(RECORD)
    if not isinstance(record, ConfigRecord):
        raise RobfcpError("the reply is not of this protocol")
    return open_reply_record(record, limit)


def digest_of(arrays: ArrayRecord | None) -> str | None:
    """The model's digest; None where there is none."""
    if arrays is None:
        return None
    return model_digest(
        (f"{name}\0{array.dtype}\0{tuple(array.shape)}\0{array.stype}", array.data)
        for name, array in arrays.items()
    )
