"""How Flower carries the requests and replies of a round: a nonce and one strict JSON body."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from robfcp.engines import FAILURES
from robfcp.errors import RobfcpError

RECORD = "robfcp"
ARRAYS = "arrays"
SIZE, SKETCH, THRESHOLD = "query.size", "query.sketch", "query.threshold"


def request_content(nonce: str, body: msgspec.Struct, arrays: ArrayRecord | None) -> RecordDict:
    """A request as Flower carries it."""
    content = RecordDict(
        {RECORD: ConfigRecord({"nonce": nonce, "body": msgspec.json.encode(body)})}
    )
    if arrays is not None:
        content[ARRAYS] = arrays
    return content


def reply_content(nonce: str, body: bytes) -> RecordDict:
    """An answer as Flower carries it."""
    return RecordDict({RECORD: ConfigRecord({"nonce": nonce, "body": body})})


def failure_content(nonce: str, code: int) -> RecordDict:
    """A generic code instead of an answer; never a text, which might hold data."""
    return RecordDict({RECORD: ConfigRecord({"nonce": nonce, "code": code})})


def open_request(content: RecordDict) -> tuple[str, bytes, ArrayRecord | None]:
    """Nonce, body and model of a request."""
    record, arrays = content[RECORD], content.get(ARRAYS)
    if not isinstance(record, ConfigRecord) or not isinstance(arrays, (ArrayRecord, type(None))):
        raise RobfcpError("request: is not of this protocol; update robfcp")
    nonce, body = record["nonce"], record["body"]
    if not isinstance(nonce, str) or not isinstance(body, bytes):
        raise RobfcpError("request: is not of this protocol; update robfcp")
    return nonce, body, arrays


def open_reply(content: Any, limit: int) -> tuple[str, bytes | int]:
    """Nonce and body (or failure code) of a reply, its size and shape checked before the rest."""
    if len(content) != 1:
        raise RobfcpError(f"the reply holds {len(content)} records instead of 1")
    record = content.get(RECORD)
    if not isinstance(record, ConfigRecord) or len(record) != 2:
        raise RobfcpError("the reply is not of this protocol")
    nonce, body, code = (record.get(key) for key in ("nonce", "body", "code"))
    if isinstance(body, bytes) and len(body) > limit:
        raise RobfcpError(f"the reply has {len(body)} bytes but at most {limit} can be right")
    if isinstance(nonce, str) and len(nonce) <= 64:
        if isinstance(body, bytes):
            return nonce, body
        if isinstance(code, int) and code in FAILURES:
            return nonce, code
    raise RobfcpError("the reply is not of this protocol")


def model_digest(arrays: ArrayRecord | None) -> str | None:
    """SHA-256 over names, types, shapes and bytes: equal when the models are."""
    if arrays is None:
        return None
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name}\0{array.dtype}\0{tuple(array.shape)}\0{array.stype}\0".encode())
        digest.update(array.data)
    return digest.hexdigest()
