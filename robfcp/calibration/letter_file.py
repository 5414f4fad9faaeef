"""How a letter is written down; its calibration stands in it exactly as in its own file."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from robfcp.calibration.others import FromOthers
from robfcp.errors import RobfcpError

KIND = "letter"
SCHEMA = 1
REMEDY = "pass a file that robfcp calibrate --letters wrote"
Verdict = Literal["trusted", "flagged", "faulty", "missing"]


class OthersBody(msgspec.Struct, forbid_unknown_fields=True):
    """What the other sites' reports say of this one; None is an infinite threshold."""

    thresholds: list[float | None]
    label_counts: list[int]
    m: int
    label_shift: float
    stated: bool


class LetterBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Everything the digest covers; the calibration exactly as its own file has it."""

    client: str
    verdict: Verdict
    calibration: msgspec.Raw
    reason: str = ""
    maliciousness: float | None = None
    covered: list[float] = []
    diagnosis: str = ""
    advice: str = ""
    others: OthersBody | None = None


def others_body(others: FromOthers) -> OthersBody:
    """What is written of it."""
    return OthersBody(
        [limit if np.isfinite(limit) else None for limit in others.thresholds],
        list(others.label_counts),
        others.m,
        others.label_shift,
        others.stated,
    )


def others_of(body: OthersBody, n_levels: int, source: str) -> FromOthers:
    """What was written, refused where it cannot be."""
    limits = tuple(np.inf if limit is None else limit for limit in body.thresholds)
    odd = body.m < 0 or not 0 <= body.label_shift <= 1 or min(body.label_counts, default=0) < 0
    if odd or len(limits) != n_levels:
        raise RobfcpError(f"{source}: what it says of the other sites cannot be; {REMEDY}")
    return FromOthers(limits, tuple(body.label_counts), body.m, body.label_shift, body.stated)
