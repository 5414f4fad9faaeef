"""What is proved about a threshold for every number of liars at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from robfcp._util.exact import first_edge
from robfcp.federation import Federation
from robfcp.guarantees.bounds import CountBounds
from robfcp.guarantees.budgets import check_budget, check_delta
from robfcp.guarantees.coverage import coverage_interval, first_vacuous
from robfcp.guarantees.noisy import bounds_of
from robfcp.guarantees.pruning import PRUNING_SHARE, ClientIntervals, prune

ALL_UP_TO = 24  # numbers of liars shown one by one
FEW = 16  # and among more clients
MANY_CLIENTS = 20_000
FEWER = 8


@dataclass(frozen=True)
class CurvePoint:
    """Coverage lies in [lower, upper] unless more than m clients lie."""

    m: int
    lower: float
    upper: float

    @property
    def vacuous(self) -> bool:
        """Whether nothing is said: every coverage is allowed."""
        return self.lower <= 0 and self.upper >= 1


def coverage_curve(
    federation: Federation,
    index: int | None,
    budgets: Sequence[int],
    confidence: float = 0.95,
    *,
    sigma: float | None = None,
) -> tuple[CurvePoint, ...]:
    """The interval of the threshold at this edge for each number of liars.

    One event of probability `confidence` makes all of them true: the interval for m holds the one
    for the true number j <= m, so that m may be read off the reports. (For m below j nothing is
    claimed; there a stated sigma may be refuted, and the interval wider than for more liars.)
    """
    if index is None:
        return tuple(CurvePoint(m, 1.0, 1.0) for m in budgets)
    at = _interval(federation, index, confidence, sigma)
    if sigma is None:
        foresee(federation, index, budgets)
    return tuple(at(m) for m in budgets)


def foresee(federation: Federation, index: int | None, budgets: Sequence[int]) -> None:
    """Work out together what certificates and curves will be asked for at this edge.

    With it the last number of liars, which tells whether something is always proved.
    """
    if index is not None:
        most = federation.n_clients - 1
        numbers = [m for m in (*budgets, most) if 0 <= m <= most]
        bounds_of(federation).foresee(np.array([index]), numbers)


def empty_from(
    federation: Federation,
    index: int | None,
    confidence: float = 0.95,
    *,
    sigma: float | None = None,
) -> int | None:
    """The least number of liars for which nothing is proved about this threshold; None if none."""
    if index is None:
        return None
    at = _interval(federation, index, confidence, sigma)
    if not at(federation.n_clients - 1).vacuous:
        return None
    guess = None
    if sigma is None:
        delta = check_delta(1 - confidence)
        guess = first_vacuous(bounds_of(federation), index, delta, federation.grid.n_bins)
    if guess is None or not at(guess).vacuous:
        return first_edge(federation.n_clients, lambda m: at(m).vacuous)
    if not guess or not at(guess - 1).vacuous:
        return guess
    return first_edge(guess, lambda m: at(m).vacuous)


def curve_budgets(n_clients: int, also: int = 0) -> tuple[int, ...]:
    """Numbers of liars to show: all below half of few clients, else some, densest at the start."""
    most = max(0, (n_clients - 1) // 2)
    if most <= ALL_UP_TO:
        chosen = set(range(most + 1))
    else:
        number = FEW if n_clients <= MANY_CLIENTS else FEWER
        chosen = set(np.round(most * np.linspace(0, 1, number) ** 2).astype(int).tolist())
        chosen |= {0, 1, 2}
    return tuple(sorted({*chosen, min(also, n_clients - 1)}))


def _interval(
    federation: Federation, index: int, confidence: float, sigma: float | None
) -> Callable[[int], CurvePoint]:
    """The interval at one edge as a function of m."""
    delta = check_delta(1 - confidence)
    edges, n_edges = np.array([index]), federation.grid.n_bins
    bounds = bounds_of(federation)
    beta = PRUNING_SHARE * delta
    intervals = None if sigma is None else ClientIntervals(federation, beta)

    def at(m: int) -> CurvePoint:
        m = check_budget(m, federation.n_clients)
        kept: CountBounds = bounds
        remaining, left = m, delta
        if sigma is not None and intervals is not None:
            pruning = prune(federation, m, sigma, beta, lambda _: intervals)
            kept, remaining = bounds_of(federation.subset(pruning.kept)), pruning.m
            left = delta - beta
        lower, upper = coverage_interval(kept, edges, remaining, left, n_edges)
        return CurvePoint(m, float(lower[0]), float(upper[0]))

    return at
