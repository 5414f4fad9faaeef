"""FCP's threshold: the exact finite-sample rank and the edge at which pooled counts reach it."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees.noisy import bounds_of

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


class FcpThreshold:
    """FCP's threshold on the trusted clients, at any level: the one place it is computed."""

    def __init__(
        self,
        federation: Federation,
        trusted: NDArray[np.bool_] | None = None,
        exchangeability: Exchangeability = "partial",
    ) -> None:
        chosen = federation if trusted is None or trusted.all() else federation.subset(trusted)
        self._bounds = bounds_of(chosen)
        self._n_samples = max(1, int(self._bounds.sizes.sum()))
        self._n_clients = chosen.n_clients
        self._exchangeability = exchangeability

    def index(self, level: Fraction) -> int | None:
        """The threshold's edge; None = infinite."""
        rank = conformal_rank(level, self._n_samples, self._n_clients, self._exchangeability)
        return self._bounds.first_reaching(rank)


def fcp_index(
    federation: Federation,
    level: Fraction,
    trusted: NDArray[np.bool_] | None = None,
    exchangeability: Exchangeability = "partial",
) -> int | None:
    """The edge of FCP's threshold on the trusted clients at one level; None = infinite."""
    return FcpThreshold(federation, trusted, exchangeability).index(level)
