"""What a server asks its sites, what they answer, and what became of it: the same on every engine.

A record carries a nonce and a body of strict JSON, or a code in the body's place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec

from robfcp._files import decode_error_reason
from robfcp.errors import RobfcpError
from robfcp.reports import WireBinning, WireScore

PROTOCOL = 1
MAX_NONCE = 64
RECORD = "robfcp"  # the name under which engines carry a record
FAILURES = {  # all that a client's exception tells the server
    1: "the request was not understood",
    2: "scoring failed at the client",
    3: "robfcp refused the client's data",
    4: "the client keeps this to itself for privacy",
    5: "the client takes another grid or score",
    6: "the client's privacy budget does not allow another report",
}
ReplyStatus = Literal["ok", "faulty", "rejected", "missing", "late", "not asked"]
T = TypeVar("T")


class ClientRefusal(RobfcpError):
    """The site does not answer; `code` is one of FAILURES and says nothing about its data."""

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        super().__init__(reason)


class Request(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """A question to the site that the server calls `client`."""

    client: str
    protocol: int = PROTOCOL


class SizeRequest(Request, tag="size"):
    """How many calibration samples are there? Answered by their number."""


class ReportRequest(Request, tag="report"):
    """The context a report must be made in; the model travels beside it where there is one."""

    round: str
    model: str | None
    grid: WireBinning
    score: WireScore


class EvaluateRequest(Request, tag="check"):
    """How do your test data fare with this calibration? Answered by claims."""

    calibration: msgspec.Raw


class FeedbackRequest(Request, tag="letter"):
    """Keep this letter. Answered by the identity of the calibration it is about."""

    letter: msgspec.Raw


class MonitorRequest(Request, tag="monitor"):
    """Count your fresh samples against this calibration. Answered by an e-report."""

    round: str
    step: int
    calibration: msgspec.Raw
    level: int = 0
    floor: float | None = None
    delta: float = 0.05


class CoverageClaims(msgspec.Struct, forbid_unknown_fields=True):
    """For every level how many test samples were covered and the total size of their sets."""

    n_samples: int
    covered: list[int]
    total_size: list[float]


def read_body(body: bytes, kind: Any) -> Any:
    """A body of this kind, or one line that says why it is none."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RobfcpError(
            f"not of this protocol ({decode_error_reason(error)}); update robfcp"
        ) from None


def read_request(body: bytes) -> Request:
    """A request of this protocol."""
    kinds = SizeRequest | ReportRequest | EvaluateRequest | FeedbackRequest | MonitorRequest
    try:
        request: Request = read_body(body, kinds)
    except RobfcpError as error:
        raise ClientRefusal(1, str(error)) from None
    if request.protocol != PROTOCOL:
        raise ClientRefusal(1, f"protocol {request.protocol} is not {PROTOCOL}; update robfcp")
    return request


def parse_reply(record: Mapping[str, Any], limit: int) -> tuple[str, bytes | int]:
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


@dataclass(frozen=True)
class Participant:
    """A node under the name it was registered by."""

    node_id: int
    client: str
    public_key: bytes = b""


@dataclass(frozen=True)
class ReplyOutcome(Generic[T]):
    """What one node did: its answer, or why there is none."""

    participant: Participant
    status: ReplyStatus
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
