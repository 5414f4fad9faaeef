"""FCP's threshold, and what a count must have beyond its share of the samples."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp.federation import Federation
from robfcp.guarantees.tails import bounds_of


class Charge(NamedTuple):
    """What a count must have beyond level N: so much for every client, and so much in all."""

    per_client: Fraction
    in_all: Fraction


RankRule = Callable[[Fraction, int], Charge]


def rank_charge(level: Fraction, n_clients: int) -> Charge:
    """count_S >= level N_S + 1, by the swap lemma, whatever clients differ by.

    For one client alone, who is exchangeable altogether, level (N + 1).
    """
    return Charge(Fraction(0), level if n_clients == 1 else Fraction(1))


def conformal_rank(
    level: Fraction, n_samples: int, n_clients: int, rule: RankRule = rank_charge, unit: int = 1
) -> int:
    """ceil(level N) + 1, or ceil(level (N + 1)) of one client; `unit` counts make a sample."""
    charge = rule(level, n_clients)
    return ceil(unit * (level * n_samples + charge.per_client * n_clients + charge.in_all))


class FcpThreshold:
    """FCP's threshold on the trusted clients, at any level: the one place it is computed."""

    def __init__(
        self,
        federation: Federation,
        trusted: NDArray[np.bool_] | None = None,
        rule: RankRule = rank_charge,
    ) -> None:
        chosen = federation if trusted is None or trusted.all() else federation.subset(trusted)
        self._bounds = bounds_of(chosen)
        self._n_samples = max(1, int(self._bounds.sizes.sum()))
        self._n_clients, self._rule, self._unit = chosen.n_clients, rule, chosen.unit

    def index(self, level: Fraction) -> int | None:
        """The threshold's edge; None = infinite."""
        rank = conformal_rank(level, self._n_samples, self._n_clients, self._rule, self._unit)
        return self._bounds.first_reaching(rank)


def fcp_index(
    federation: Federation,
    level: Fraction,
    trusted: NDArray[np.bool_] | None = None,
    rule: RankRule = rank_charge,
) -> int | None:
    """The edge of FCP's threshold on the trusted clients at one level; None = infinite."""
    return FcpThreshold(federation, trusted, rule).index(level)
