"""What could be proved about a round for each number of liars, and what promises would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from robfcp.calibration.by_class import Held, held_strata
from robfcp.calibration.calibration import Calibration
from robfcp.certificate import Certificate
from robfcp.guarantees import FcpThreshold, Marginal, Pac, certify, curve


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
    alike: float | None = None


@dataclass(frozen=True)
class Budgets:
    """One level, of all sites or of those that hold the class or group of this name.

    The threshold in use and a row for every budget: of a class, those below the number of its
    holders, since as many as hold it can make anything of it. The certificates of all budgets are
    true at once; `empty_from` is the number of liars from which on nothing is proved, None where
    something always is.
    """

    name: str
    threshold: float
    holders: int
    budgets: tuple[Budget, ...]
    empty_from: int | None


def what_if(
    calibration: Calibration,
    level: Fraction,
    budgets: Sequence[int],
    *,
    confidence: float = 0.95,
    alike: float | None = None,
) -> tuple[Budgets, ...]:
    """Every certificate at one level for each budget, all true at once; one a class or group.

    Of the calibration's own thresholds; at other levels than its own, of FCP's of those it trusts.
    """
    federation, by = calibration.federation, calibration.by
    stored = next((one for one in calibration.levels if one.coverage == level), None)
    every: tuple[Held, ...] = (Held("", (), lambda: federation),)
    if by is not None:
        every = held_strata(calibration.record, by)
    sure = 1 - (1 - confidence) / len(every)

    found = []
    for held in every:
        own = held.federation()
        if stored is None:
            mask = calibration.trusted_mask
            trusted = mask if own.rows is None else mask[own.rows]
            edge = FcpThreshold(own, trusted).index(level) if trusted.any() else None
        else:
            part = next((one for one in stored.parts if one.name in held.members), stored)
            finite = np.isfinite(part.threshold)
            edge = int(own.grid.edge_at(part.threshold)) if finite else None
        rows = []
        for m in (m for m in budgets if m < own.n_clients):
            promised = [Marginal(m), Pac(m), *([] if alike is None else [Pac(m, alike)])]
            costs = [own.threshold_at(one.threshold(own, level, sure)[0]) for one in promised]
            rows.append(Budget(m, certify(own, edge, m, sure), *costs))
        limit, empty = own.threshold_at(edge), curve.empty_from(own, edge, sure)
        found.append(Budgets(held.name, limit, own.n_clients, tuple(rows), empty))
    return tuple(found)
