"""All that can be proved about a round, side by side, for several budgets of liars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from robfcp.calibration.by_class import Held, confidence_of_each, held_strata
from robfcp.federation import Federation
from robfcp.guarantees import (
    Certificate,
    certify,
    check_budget,
    empty_from,
    guaranteed,
    liars_forcing_full_sets,
    tolerance,
)


@dataclass(frozen=True)
class Budget:
    """What holds if at most m clients lie, at one confidence level.

    `certificate` speaks of the threshold in use; `marginal`, `pac` and `homogeneous` are the
    thresholds that would be guaranteed at the wanted level (infinity: full sets; None: not asked
    for).
    """

    m: int
    certificate: Certificate
    marginal: float
    pac: float
    homogeneous: float | None
    full_sets_from: int | None


@dataclass(frozen=True)
class Budgets:
    """One confidence level: the threshold in use, its tolerance and a row for every budget.

    The certificates of all budgets are true at once; `empty_from` is the number of liars from which
    on nothing is proved, None where something always is.
    """

    level: Fraction
    threshold: float
    tolerance: int | None
    budgets: tuple[Budget, ...]
    empty_from: int | None


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
    rows = tuple(
        _budget(federation, level, m, index, confidence=confidence, sigma=sigma)
        for m in track(budgets)
    )
    survives = tolerance(federation, index, level)
    empty = empty_from(federation, index, confidence, sigma=sigma)
    return Budgets(level, _edge(federation, index), survives, rows, empty)


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
    joint: bool = True,
    sigma: float | None = None,
    clusters: Mapping[str, str] | Sequence[str] | None = None,
    track: Callable[[Sequence[Held]], Iterable[Held]] = iter,
) -> tuple[StratumBudgets, ...]:
    """Every certificate of every class or group, of the threshold at each one's own edge.

    `edge_of` is told the names that share a threshold (one, or those of a cluster) and the round of
    those who hold them. With `joint` all hold at once with the stated confidence.
    """
    every = held_strata(federation, by, clusters)
    sure = confidence_of_each(confidence, len(every), joint)
    found = []
    for held in track(every):
        own = held.federation()
        below = [m for m in budgets if m < own.n_clients]
        edge = edge_of(held.members, own)
        outcome = what_if(own, level, edge, below, confidence=sure, sigma=sigma) if below else None
        found.append(StratumBudgets(held.name, own.n_clients, int(own.sizes.sum()), outcome))
    return tuple(found)


def _budget(
    federation: Federation,
    level: Fraction,
    m: int,
    index: int | None,
    *,
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
        marginal=threshold("marginal"),
        pac=threshold("pac"),
        homogeneous=None if sigma is None else threshold("pac-homogeneous"),
        full_sets_from=liars_forcing_full_sets(federation.sizes, level, m) if m else None,
    )


def default_budgets(n_clients: int) -> tuple[int, ...]:
    """Nobody, one, two, and 5, 9, 20 and 40% of the clients."""
    shares = [n_clients * percent // 100 for percent in (5, 9, 20, 40)]
    return tuple(sorted({m for m in (0, 1, 2, *shares) if m < n_clients}))


def _edge(federation: Federation, index: int | None) -> float:
    return federation.threshold_at(index)
