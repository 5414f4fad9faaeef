"""What a server asks its sites and what they answer: strict JSON, the same on every engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec

from robfcp.errors import RobfcpError
from robfcp.files import what_is_wrong
from robfcp.report import wire

Kind = Literal["size", "sketch", "threshold", "letter", "monitor"]

PROTOCOL = 1
MAX_NONCE = 64
FAILURES = {  # all that a client's exception tells the server
    1: "the request was not understood",
    2: "scoring failed at the client",
    3: "robfcp refused the client's data",
    4: "the client keeps this to itself for privacy",
    5: "the client takes another grid or score",
    6: "the client's privacy budget does not allow another report",
}


class Refused(Exception):
    """The site does not answer; `code` is one of FAILURES and says nothing about its data."""

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        super().__init__(reason)


class SizeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How many calibration samples are there?"""

    client: str
    protocol: int = PROTOCOL


class SizeReply(msgspec.Struct, forbid_unknown_fields=True):
    """This many."""

    n_samples: int


class SketchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The context a report must be made in; the model travels beside it where there is one."""

    client: str
    round: str
    model: str | None
    grid: wire.WireGrid
    score: wire.WireScore
    protocol: int = PROTOCOL


class ThresholdRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The thresholds, an infinite one as null; by class a list for each level."""

    client: str
    score: wire.WireScore
    thresholds: list[float | list[float | None] | None]
    protocol: int = PROTOCOL


class ThresholdReply(msgspec.Struct, forbid_unknown_fields=True):
    """For every threshold how many test samples were covered and the total size of their sets."""

    n_samples: int
    covered: list[int]
    total_size: list[float]


class LetterRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Keep this letter: the site's own verdict and the calibration."""

    client: str
    letter: msgspec.Raw
    protocol: int = PROTOCOL


class LetterReply(msgspec.Struct, forbid_unknown_fields=True):
    """The letter of this calibration is kept."""

    calibration: str


def request_record(nonce: str, body: msgspec.Struct) -> dict[str, Any]:
    """What an engine carries to a site."""
    return {"nonce": nonce, "body": msgspec.json.encode(body)}


def reply_record(nonce: str, answer: bytes | int) -> dict[str, Any]:
    """What it carries back: an answer, or a generic code; never a text, which might hold data."""
    return {"nonce": nonce, "code" if isinstance(answer, int) else "body": answer}


def open_request_record(record: Mapping[str, Any]) -> tuple[str, bytes]:
    """Nonce and body of a request."""
    nonce, body = record.get("nonce"), record.get("body")
    if not isinstance(nonce, str) or not isinstance(body, bytes):
        raise Refused(1, "the request is not of this protocol; update robfcp")
    return nonce, body


def open_reply_record(record: Mapping[str, Any], limit: int) -> tuple[str, bytes | int]:
    """Nonce and body (or failure code) of a reply, its size and shape checked before the rest."""
    nonce, body, code = (record.get(key) for key in ("nonce", "body", "code"))
    if isinstance(body, bytes) and len(body) > limit:
        raise RobfcpError(f"the reply has {len(body)} bytes but at most {limit} can be right")
    if len(record) == 2 and isinstance(nonce, str) and len(nonce) <= MAX_NONCE:
        if isinstance(body, bytes):
            return nonce, body
        if isinstance(code, int) and code in FAILURES:
            return nonce, code
    raise RobfcpError("the reply is not of this protocol")


def read_request(body: bytes, kind: type[Any]) -> Any:
    """A request of this protocol."""
    try:
        request = msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Refused(
            1, f"the request cannot be read ({what_is_wrong(error)}); update robfcp"
        ) from None
    if request.protocol != PROTOCOL:
        raise Refused(1, f"protocol {request.protocol} is not {PROTOCOL}; update robfcp")
    return request


def read_reply(body: bytes, kind: type[Any]) -> Any:
    """An answer of this protocol, or one line that says why it is none."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RobfcpError(
            f"not a valid reply ({what_is_wrong(error)}); update robfcp at the client"
        ) from None


Status = Literal["ok", "faulty", "rejected", "missing", "late", "not asked"]
T = TypeVar("T")


@dataclass(frozen=True)
class Participant:
    """A node under the name it was registered by."""

    node_id: int
    client: str
    public_key: bytes = b""


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What one node did: its answer, or why there is none."""

    participant: Participant
    status: Status
    reason: str = ""
    answer: T | None = None
    attempts: int = 1

    @property
    def line(self) -> str:
        """The reason as one line that names the client and what to do."""
        client = self.participant.client
        if self.reason.startswith(f"{client}: "):
            return self.reason
        return f"{client}: {self.reason}; check that node"


Outcomes = list[Outcome[Any]]
