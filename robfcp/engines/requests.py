"""What a server asks its sites and what they answer: strict JSON, the same on every engine."""

from __future__ import annotations

from typing import Any

import msgspec

from robfcp.errors import RobfcpError
from robfcp.reports import WireGrid, WireScore

PROTOCOL = 1
FAILURES = {  # all that a client's exception tells the server
    1: "the request was not understood",
    2: "scoring failed at the client",
    3: "robfcp refused the client's data",
    4: "the client keeps this to itself for privacy",
    5: "the client takes another grid or score",
    6: "the client's privacy budget does not allow another report",
}


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
    grid: WireGrid
    score: WireScore
    protocol: int = PROTOCOL


class ThresholdRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The thresholds, an infinite one as null; by class a list for each level."""

    client: str
    score: WireScore
    thresholds: list[float | list[float | None] | None]
    protocol: int = PROTOCOL


class ThresholdReply(msgspec.Struct, forbid_unknown_fields=True):
    """For every threshold how many test samples were covered and the total size of their sets."""

    n_samples: int
    covered: list[int]
    total_size: list[float]


def read_request(body: bytes, kind: type[Any]) -> Any:
    """A request of this protocol."""
    request = msgspec.json.decode(body, type=kind)
    if request.protocol != PROTOCOL:
        raise RobfcpError(f"protocol: {request.protocol} is not {PROTOCOL}; update robfcp")
    return request


def read_reply(body: bytes, kind: type[Any]) -> Any:
    """An answer of this protocol, or one line that says why it is none."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RobfcpError(f"not a valid reply ({error}); update robfcp at the client") from None
