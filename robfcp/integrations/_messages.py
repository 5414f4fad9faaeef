"""The requests of a server, the answers of clients and their outcomes, on every framework.

A record carries a nonce and a body of strict JSON, or a code instead of the body.
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
RECORD = "robfcp"  # the name under which frameworks carry a record
FAILURES = {  # all that a client's exception tells the server
    1: "the request was not understood",
    2: "scoring failed at the client",
    3: "robfcp refused the client's data",
    4: "the client does not answer this for privacy",
    5: "the client reports on another binning or score",
    6: "the client's privacy budget does not allow another report",
}
ReplyStatus = Literal["ok", "invalid", "refused_by_client", "missing", "late", "not_contacted"]
T = TypeVar("T")


class ClientRefusal(RobfcpError):
    """The client does not answer; `code` is one of FAILURES and reveals nothing about its data."""

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        super().__init__(reason)


class Request(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """A request to one client."""

    client: str
    protocol: int = PROTOCOL


class SizeRequest(Request, tag="size"):
    """Asks for the number of calibration samples."""


class ReportRequest(Request, tag="report"):
    """Asks for a report in this context; a model is sent beside it if there is one."""

    round: str
    model: str | None
    binning: WireBinning
    score: WireScore


class EvaluateRequest(Request, tag="evaluate"):
    """Asks for the coverage of the client's test data, which is answered by `CoverageClaims`."""

    calibration: msgspec.Raw


class FeedbackRequest(Request, tag="feedback"):
    """Asks to store feedback, which is answered by the fingerprint of its calibration."""

    feedback: msgspec.Raw


class MonitorRequest(Request, tag="monitor"):
    """Asks to count fresh samples, which is answered by a report of e-values."""

    round: str
    step: int
    calibration: msgspec.Raw
    level: int = 0
    min_coverage: float | None = None
    delta: float = 0.05


class CoverageClaims(msgspec.Struct, forbid_unknown_fields=True):
    """The number of covered test samples and the total size of their sets, for every level."""

    n_samples: int
    n_covered: list[int]
    total_set_size: list[float]


def read_body(body: bytes, body_type: Any) -> Any:
    """Read a body of this type; the error says why it is not valid."""
    try:
        return msgspec.json.decode(body, type=body_type)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RobfcpError(
            f"not of this protocol ({decode_error_reason(error)}); update robfcp"
        ) from None


def read_request(body: bytes) -> Request:
    """Read a request of this protocol."""
    request_type = SizeRequest | ReportRequest | EvaluateRequest | FeedbackRequest | MonitorRequest
    try:
        request: Request = read_body(body, request_type)
    except RobfcpError as error:
        raise ClientRefusal(1, str(error)) from None
    if request.protocol != PROTOCOL:
        raise ClientRefusal(1, f"protocol {request.protocol} is not {PROTOCOL}; update robfcp")
    return request


def parse_reply(record: Mapping[str, Any], max_bytes: int) -> tuple[str, bytes | int]:
    """Return the nonce and the body (or failure code) of a reply, after checks of size and type."""
    nonce = record.get("nonce")
    body = record.get("body")
    code = record.get("code")
    if isinstance(body, bytes) and len(body) > max_bytes:
        raise RobfcpError(f"the reply has {len(body)} bytes but at most {max_bytes} are valid")
    if len(record) == 2 and isinstance(nonce, str) and len(nonce) <= MAX_NONCE:
        if isinstance(body, bytes):
            return nonce, body
        if isinstance(code, int) and code in FAILURES:
            return nonce, code
    raise RobfcpError("the reply is not of this protocol")


@dataclass(frozen=True)
class Participant:
    """A node under its registered name."""

    node_id: int
    client: str
    public_key: bytes = b""


@dataclass(frozen=True)
class ReplyOutcome(Generic[T]):
    """The answer of one node, or why there is none."""

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
