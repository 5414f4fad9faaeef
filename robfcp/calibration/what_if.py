"""All that can be proved about a round, side by side, for several budgets of liars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from robfcp.calibration.by_class import Held, confidence_of_each, held_strata
from robfcp.certificate import Certificate
from robfcp.federation import Federation
from robfcp.guarantees import (
    Marginal,
    Pac,
    Promise,
    certify,
    check_budget,
    empty_from,
    liars_forcing_full_sets,
)


@dataclass(frozen=True)
class Budget:
    """What holds if at most m clients lie, at one level.

    `certificate` speaks of the threshold in use; `marginal`, `pac` and `alike` (pac with the sites
    declared alike; None if they are not) are the thresholds that would be guaranteed at the wanted
    level, infinity for full sets.
    """

    m: int
    certificate: Certificate
    marginal: float
    pac: float
    alike: float | None
    full_sets_from: int | None


@dataclass(frozen=True)
class Budgets:
    """One level: the threshold in use and a row for every budget.

    The certificates of all budgets are true at once; `empty_from` is the number of liars from which
    on nothing is proved, None where something always is.
    """

    level: Fraction
    threshold: float
    budgets: tuple[Budget, ...]
    empty_from: int | None


def what_if(
    federation: Federation,
    level: Fraction,
    index: int | None,
    budgets: Sequence[int],
    *,
    confidence: float = 0.95,
    alike: float | None = None,
    track: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> Budgets:
    """Every certificate at one level for each budget, of the threshold at this edge.

    `track` wraps the budgets while they are worked through, for a progress bar.
    """
    rows = tuple(
        _budget(federation, level, m, index, confidence=confidence, alike=alike)
        for m in track(budgets)
    )
    empty = empty_from(federation, index, confidence)
    return Budgets(level, federation.threshold_at(index), rows, empty)


@dataclass(frozen=True)
class StratumBudgets:
    """The same of one class or group, about the clients that hold it.

    `outcome` has rows for the numbers of liars below that of its holders: as many as hold it can
    make anything of it. None where there is no such row.
    """

    name: str
    holders: int
    samples: int
    outcome: Budgets | None


def what_if_by(
    federation: Federation,
    by: str,
    level: Fraction,
    edge_of: Callable[[tuple[str, ...], Federation], int | None],
    budgets: Sequence[int],
    *,
    confidence: float = 0.95,
    alike: float | None = None,
    clusters: Mapping[str, str] | None = None,
    track: Callable[[Sequence[Held]], Iterable[Held]] = iter,
) -> tuple[StratumBudgets, ...]:
    """Every certificate of every class or group, of the threshold at each one's own edge.

    `edge_of` is told the names that share a threshold (one, or those of a cluster) and the round of
    those who hold them. All hold at once with the stated confidence.
    """
    every = held_strata(federation, by, clusters)
    sure = confidence_of_each(confidence, len(every))
    found = []
    for held in track(every):
        own = held.federation()
        below = [m for m in budgets if m < own.n_clients]
        edge = edge_of(held.members, own)
        outcome = what_if(own, level, edge, below, confidence=sure, alike=alike) if below else None
        found.append(StratumBudgets(held.name, own.n_clients, int(own.sizes.sum()), outcome))
    return tuple(found)


def _budget(
    federation: Federation,
    level: Fraction,
    m: int,
    index: int | None,
    *,
    confidence: float,
    alike: float | None,
) -> Budget:
    m = check_budget(m, federation.n_clients)

    def threshold(promise: Promise) -> float:
        return federation.threshold_at(promise.threshold(federation, level, confidence)[0])

    return Budget(
        m=m,
        certificate=certify(federation, index, m, confidence),
        marginal=threshold(Marginal(m)),
        pac=threshold(Pac(m)),
        alike=None if alike is None else threshold(Pac(m, alike)),
        full_sets_from=liars_forcing_full_sets(federation.sizes, level, m) if m else None,
    )


def default_budgets(n_clients: int) -> tuple[int, ...]:
    """Nobody, one, two, and 5, 9, 20 and 40% of the clients."""
    shares = [n_clients * percent // 100 for percent in (5, 9, 20, 40)]
    return tuple(sorted({m for m in (0, 1, 2, *shares) if m < n_clients}))
