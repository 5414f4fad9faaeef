"""Confidence levels as fractions, and what a count must have beyond its share of the samples."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees.tails import bounds_of

Exchangeability = Literal["partial", "full", "published"]
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


class Charge(NamedTuple):
    """What a count must have beyond level N: so much for every client, and so much in all."""

    per_client: Fraction
    in_all: Fraction


def rank_charge(
    level: Fraction, n_clients: int, exchangeability: Exchangeability = "partial"
) -> Charge:
    """The charge of a rule: count_S >= level N_S + per_client |S| + in_all.

    "partial": 1 in all, by the swap lemma, whatever clients differ by; level for one client alone,
    who is exchangeable altogether. "full": level in all, where all clients share one distribution.
    "published": level for every client, as the literature has it.
    """
    if exchangeability not in get_args(Exchangeability):
        known = ", ".join(map(repr, get_args(Exchangeability)))
        raise RobfcpError(f"exchangeability: {exchangeability!r} is unknown; use {known}")
    none = Fraction(0)
    if exchangeability == "published":
        return Charge(level, none)
    if exchangeability == "full" or n_clients == 1:
        return Charge(none, level)
    return Charge(none, Fraction(1))


def conformal_rank(
    level: Fraction,
    n_samples: int,
    n_clients: int,
    exchangeability: Exchangeability = "partial",
    unit: int = 1,
) -> int:
    """ceil(level N) + 1 if exchangeable within clients, ceil(level (N + 1)) if altogether.

    The published rule is ceil(level (N + K)). `unit` is how many counts one sample has.
    """
    charge = rank_charge(level, n_clients, exchangeability)
    return ceil(unit * (level * n_samples + charge.per_client * n_clients + charge.in_all))


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
        self._unit = chosen.unit

    def index(self, level: Fraction) -> int | None:
        """The threshold's edge; None = infinite."""
        rank = conformal_rank(
            level, self._n_samples, self._n_clients, self._exchangeability, self._unit
        )
        return self._bounds.first_reaching(rank)


def fcp_index(
    federation: Federation,
    level: Fraction,
    trusted: NDArray[np.bool_] | None = None,
    exchangeability: Exchangeability = "partial",
) -> int | None:
    """The edge of FCP's threshold on the trusted clients at one level; None = infinite."""
    return FcpThreshold(federation, trusted, exchangeability).index(level)
