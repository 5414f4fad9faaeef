"""All that can be proved about a round, side by side, for several budgets of liars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from robfcp.federation import Federation
from robfcp.guarantees import (
    Certificate,
    bounds_of,
    certify,
    check_budget,
    guaranteed,
    liars_forcing_full_sets,
    tolerance,
)

_CHANCE = 0.002  # that noise exceeds its bound, for levels read off the data


@dataclass(frozen=True)
class Budget:
    """What holds if at most m clients lie, at one confidence level.

    `certificate` speaks of the threshold in use; `survived` is the level that threshold is still
    guaranteed on average; `marginal`, `pac` and `homogeneous` are the thresholds that would be
    guaranteed at the wanted level (infinity: full sets; None: not asked for).
    """

    m: int
    certificate: Certificate
    survived: float
    marginal: float
    pac: float
    homogeneous: float | None
    full_sets_from: int | None


@dataclass(frozen=True)
class Budgets:
    """One confidence level: the threshold in use, its tolerance and a row for every budget.

    `curve` holds the level guaranteed on average against 0, 1, 2, ... liars.
    """

    level: Fraction
    threshold: float
    tolerance: int | None
    budgets: tuple[Budget, ...]
    curve: tuple[float, ...]


def what_if(
    federation: Federation,
    level: Fraction,
    index: int | None,
    budgets: Sequence[int],
    *,
    confidence: float = 0.95,
    sigma: float | None = None,
    track: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> Budgets:
    """Every certificate at one level for each budget, of the threshold at this edge.

    `track` wraps the budgets while they are worked through, for a progress bar.
    """
    curve = survived_levels(federation, index, max(budgets))
    rows = tuple(
        _budget(federation, level, m, index, survived=curve[m], confidence=confidence, sigma=sigma)
        for m in track(budgets)
    )
    survives = tolerance(federation, index, level)
    return Budgets(level, _edge(federation, index), survives, rows, curve)


def _budget(
    federation: Federation,
    level: Fraction,
    m: int,
    index: int | None,
    *,
    survived: float,
    confidence: float,
    sigma: float | None,
) -> Budget:
    m = check_budget(m, federation.n_clients)

    def threshold(kind: str) -> float:
        found, _ = guaranteed(
            federation,
            kind,  # type: ignore[arg-type]
            level,
            m,
            confidence=confidence,
            sigma=sigma,
        )
        return _edge(federation, found)

    return Budget(
        m=m,
        certificate=certify(federation, index, m, confidence, sigma=sigma),
        survived=survived,
        marginal=threshold("marginal"),
        pac=threshold("pac"),
        homogeneous=None if sigma is None else threshold("pac-homogeneous"),
        full_sets_from=liars_forcing_full_sets(federation.sizes, level, m) if m else None,
    )


def survived_levels(federation: Federation, index: int | None, most: int) -> tuple[float, ...]:
    """The tolerance curve: the highest level guaranteed on average against 0..most liars.

    min over removals R, |R| <= m, of count_S / (N_S + |S|): the envelope with n_k + 1 for n_k.
    """
    if index is None:
        return (1.0,) * (most + 1)
    bounds = bounds_of(federation)
    edges = bounds.edges_from(index)
    chance, _ = bounds.split(_CHANCE, 1.0)
    lows = (bounds.benign_shares(edges, m, chance, extra=1)[0] for m in range(most + 1))
    return tuple(max(0.0, float(low.min()) - chance) for low in lows)


def default_budgets(n_clients: int) -> tuple[int, ...]:
    """Nobody, one, two, and 5, 9, 20 and 40% of the clients."""
    shares = [n_clients * percent // 100 for percent in (5, 9, 20, 40)]
    return tuple(sorted({m for m in (0, 1, 2, *shares) if m < n_clients}))


def _edge(federation: Federation, index: int | None) -> float:
    return federation.threshold_at(index)
