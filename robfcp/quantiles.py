"""The exact finite-sample rank and the edge at which pooled counts reach it."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError

Exchangeability = Literal["partial", "full"]
# Exponents of more than two digits would take gigabytes as fractions.
_SHORT = re.compile(r"[\d./]{1,40}([eE][+-]?\d{1,2})?", re.ASCII)


def exact_level(level: float | str | Fraction | Decimal) -> Fraction:
    """The confidence level as a fraction; floats are read as decimals of at most 12 places.

    0.9 means 9/10 and 1 - 0.7 means 3/10, not the binary numbers next to them.
    """
    try:
        if isinstance(level, (Fraction, Decimal, str)):
            exact = Fraction(level) if _SHORT.fullmatch(str(level)) else None
        else:
            exact = Fraction(f"{float(str(level)):.12f}")  # as printed: float32's 0.9 is 9/10 too
    except (ValueError, ZeroDivisionError):
        exact = None
    if exact is None:
        raise RobfcpError(f"confidence_level: {level!r} is not a number; give 0.9, say")
    if not 0 < exact < 1:
        raise RobfcpError(f"confidence_level: {level} is not between 0 and 1; give 0.9, say")
    return exact


def conformal_rank(
    level: Fraction, n_samples: int, n_clients: int, exchangeability: Exchangeability = "partial"
) -> int:
    """ceil(level (N + K)) if exchangeable within clients, ceil(level (N + 1)) if altogether."""
    if exchangeability not in ("partial", "full"):
        raise RobfcpError(f"exchangeability: {exchangeability!r} is neither 'partial' nor 'full'")
    return ceil(level * (n_samples + (n_clients if exchangeability == "partial" else 1)))


def threshold_index(pooled: NDArray[np.int64], rank: int) -> int | None:
    """The first bin at whose upper edge the pooled count reaches the rank; None if none does."""
    cumulative = np.cumsum(pooled)
    if not cumulative.size or rank > cumulative[-1]:
        return None
    return int(np.searchsorted(cumulative, rank))
