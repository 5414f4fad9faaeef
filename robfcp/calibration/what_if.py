"""What could be proved about a round, and what other settings would give, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp.calibration.by_class import Held, held_strata
from robfcp.calibration.calibration import Calibration
from robfcp.certificate import Certificate
from robfcp.defence import Consensus, Defence, NoDefence, defence_again, threshold_of
from robfcp.errors import RobfcpError
from robfcp.guarantees import FcpThreshold, Marginal, Pac, certify, curve, engine, promises


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


LEVELS = tuple(Fraction(step, 100) for step in range(50, 100)) + (Fraction(995, 1000),)
COARSE_LEVELS = tuple(Fraction(level, 100) for level in (50, 70, 80, 85, 90, 95, 98, 99))
MANY = 48
FEW = 12
INFINITE = -1


@dataclass(frozen=True, eq=False)
class Outcomes:
    """By number of liars and level, (M, L): the threshold's edge (-1 = infinite) and the coverage
    proved."""

    liars: tuple[int, ...]
    levels: tuple[Fraction, ...]
    index: NDArray[np.int64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class OtherSettings:
    """Outcomes of the defence, of a marginal promise and of the one that was made; for each number
    of liars whom the defence leaves out and where the coverage of every shown edge lies.

    `frozen` says why the defence could not be run again: the recorded clients are then left out at
    every number.
    """

    tables: dict[str, Outcomes]
    excluded: tuple[NDArray[np.intp], ...]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    frozen: str


def other_settings(calibration: Calibration, shown: NDArray[np.intp]) -> OtherSettings:
    """What other levels and numbers of liars would give, computed as `calibrate` would.

    `shown` are edges whose coverage is wanted too.
    """
    federation, record = calibration.federation, calibration.record
    counts = engine.counts_of(federation)
    own = {level.coverage for level in calibration.levels}
    coarse = tuple(sorted({*COARSE_LEVELS, *own}))
    few, many = (_numbers(federation.n_clients, calibration.liars, most) for most in (FEW, MANY))
    # where counts may fall every edge must be looked at, which takes longer
    levels = coarse if counts.falling else tuple(sorted({*LEVELS, *own}))
    liars = few if counts.falling else tuple(sorted({*many, *few}))
    try:
        rule, frozen = defence_again(record.defence, record.parameters), ""
    except RobfcpError as error:
        rule, frozen = None, str(error)
    excluded = _excluded(calibration, liars, rule)
    rows: dict[bytes, list[int]] = {}  # by whom is left out: often the same for many numbers
    for out in excluded:
        if out.tobytes() not in rows:
            kept = ~np.isin(np.arange(federation.n_clients), out)
            found = map(threshold_of(rule, federation, kept).index, levels)
            rows[out.tobytes()] = [INFINITE if edge is None else edge for edge in found]
    index = np.array([rows[out.tobytes()] for out in excluded], dtype=np.int64)
    places = np.union1d(index[index != INFINITE], shown)
    ends = curve.coverage_interval(counts, places, liars, 1 - calibration.confidence)
    at, drawn = np.searchsorted(places, index), np.searchsorted(places, shown)
    lower, upper = (
        np.where(index == INFINITE, 1.0, np.take_along_axis(end, at, axis=1)) for end in ends
    )
    tables = {
        "defence": Outcomes(liars, levels, index, lower, upper),
        "marginal": _marginal(counts, levels, liars),
    }
    promise = record.promise
    plain = isinstance(promise, Marginal) and promise.samples is None
    if promise is not None and not plain and calibration.by is None:
        stated = few if isinstance(promise, Pac) else (calibration.liars,)
        promised = [
            msgspec.structs.replace(promise, **({} if promise.liars is None else {"liars": m}))
            for m in stated
        ]
        sure = calibration.confidence
        told = [[one.threshold(federation, level, sure) for level in coarse] for one in promised]
        edges = [[INFINITE if edge is None else edge for edge, _ in row] for row in told]
        sides = [[(proved.lower, proved.upper) for _, proved in row] for row in told]
        tables["stated"] = Outcomes(
            stated, coarse, np.array(edges), *np.moveaxis(np.array(sides), 2, 0)
        )
    return OtherSettings(tables, excluded, ends[0][:, drawn], ends[1][:, drawn], frozen)


def _numbers(n_clients: int, own: int, many: int) -> tuple[int, ...]:
    """0 .. (K-1)/2 and the stated number: all of them, or `many`, densest among the small ones."""
    most = (n_clients - 1) // 2
    if most <= many:
        return tuple(sorted({*range(most + 1), own}))
    spread = np.round(most * np.linspace(0, 1, many) ** 2).astype(int)
    return tuple(sorted({*spread.tolist(), *range(min(8, many)), own}))


def _excluded(
    calibration: Calibration, liars: tuple[int, ...], rule: Defence | None
) -> tuple[NDArray[np.intp], ...]:
    """Whom the defence leaves out when told each number; as recorded where it cannot be told."""
    federation = calibration.federation.comparable()
    most = (federation.n_clients - 1) // 2
    recorded = np.flatnonzero(~calibration.trusted_mask)
    if rule is None or isinstance(rule, NoDefence):
        return (recorded,) * len(liars)
    finding = rule.look(federation) if isinstance(rule, Consensus) else None

    def left_out(m: int) -> NDArray[np.intp]:
        told = min(m, most)
        if m == calibration.liars and not calibration.promised:
            return recorded
        if isinstance(rule, Consensus) and finding is not None:
            number = {"at_most": told} if rule.exactly is None else {"exactly": told}
            trusted = replace(rule, **number).judge(federation, finding).trusted
        else:
            trusted = replace(cast(Any, rule), liars=told)(federation).trusted
        return np.flatnonzero(~trusted)

    return tuple(left_out(m) for m in liars)


def _marginal(
    counts: engine.ExactCounts, levels: tuple[Fraction, ...], liars: tuple[int, ...]
) -> Outcomes:
    """The threshold guaranteed against each m: the first edge that holds against so many."""
    index = np.empty((len(liars), len(levels)), dtype=np.int64)
    for column, level in enumerate(levels):
        asked = promises.marginal_tail(counts, level)
        low, high = np.zeros(len(liars), dtype=np.intp), np.full(len(liars), counts.n_edges)
        while (open_ := low < high).any():
            middle = (low + high) // 2
            edges = np.minimum(middle, counts.n_edges - 1)
            holds = counts.most_liars(edges, *asked) >= np.array(liars)
            high = np.where(open_ & holds, middle, high)
            low = np.where(open_ & ~holds, middle + 1, low)
        index[:, column] = np.where(high == counts.n_edges, INFINITE, high)
    lower = np.broadcast_to(np.array([float(level) for level in levels]), index.shape)
    return Outcomes(liars, levels, index, lower, np.ones(index.shape))
