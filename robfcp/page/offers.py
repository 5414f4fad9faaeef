"""What the calibration would have been for other levels and other numbers of liars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from robfcp.calibration import Calibration, Settings
from robfcp.defence import Defence, LookingDefence, defence_again, threshold_of
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, comparable
from robfcp.guarantees import (
    PRUNING_SHARE,
    ClientIntervals,
    CountBounds,
    Exchangeability,
    bounds_of,
    coverage_interval,
    guaranteed,
    prune,
    tolerances,
)

LEVELS = tuple(Fraction(step, 100) for step in range(50, 100)) + (Fraction(995, 1000),)
COARSE_LEVELS = tuple(Fraction(level, 100) for level in (50, 70, 80, 85, 90, 95, 98, 99))
MANY = 48
FEW = 12
INFINITE = -1

Ends = tuple[NDArray[np.float64], NDArray[np.float64]]
Proved = Callable[[NDArray[np.intp]], Ends]
Intervals = Callable[[float], ClientIntervals]


@dataclass(frozen=True, eq=False)
class OfferTable:
    """Outcomes by number of liars and level, (M, L): the threshold's edge (-1 = infinite), the
    tolerance (-1 = none) and the coverage proved."""

    liars: tuple[int, ...]
    levels: tuple[Fraction, ...]
    index: NDArray[np.int64]
    tolerance: NDArray[np.int64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Offers:
    """The tables of the modes on offer, and for each number of liars whom the defence leaves out
    and where the coverage of every shown edge lies. `frozen` says why the defence could not be run
    again: the recorded clients are then left out at every number."""

    tables: dict[str, OfferTable]
    liars: tuple[int, ...]
    excluded: tuple[NDArray[np.intp], ...]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    frozen: str = ""


def what_if(calibration: Calibration, shown: NDArray[np.intp]) -> Offers:
    """Every setting the page offers, computed as `calibrate` would; `shown` are edges to plot."""
    federation, settings = calibration.federation, calibration.settings
    bounds = bounds_of(federation)
    own = tuple(level.confidence_level for level in calibration.levels)
    coarse = tuple(sorted({*COARSE_LEVELS, *own}))
    few = _numbers(federation.n_clients, calibration.n_malicious, FEW)
    many = _numbers(federation.n_clients, calibration.n_malicious, MANY)
    # where counts may fall every edge must be looked at, which takes longer
    levels = coarse if bounds.falling else tuple(sorted({*LEVELS, *own}))
    liars = few if bounds.falling else tuple(sorted({*many, *few}))
    rule, frozen = _rule(settings)
    excluded = _excluded(calibration, liars, rule)
    intervals = cache(partial(ClientIntervals, federation))
    proved = [_proved(calibration, m, bounds, intervals) for m in liars]
    tables = {
        "defence": _defended(
            calibration,
            bounds=bounds,
            levels=levels,
            liars=liars,
            excluded=excluded,
            proved=proved,
            rule=rule,
        ),
        "marginal": _marginal(
            bounds,
            federation.grid.n_bins,
            levels,
            liars,
            calibration.settings.exchangeability,
        ),
    }
    plain = settings.heterogeneity is None and settings.size_budget is None
    special = settings.label_shift is not None or settings.by is not None
    offered = settings.guarantee is not None and not special
    if offered and not (settings.guarantee == "marginal" and plain):
        stated = (calibration.n_malicious,) if settings.malicious == "estimate" else few
        tables["stated"] = _called(federation, bounds, settings, coarse, stated, intervals)
    if settings.heterogeneity is None:
        bounds.foresee(shown, liars)
    curves = [at(shown) for at in proved]
    return Offers(
        tables,
        liars,
        excluded,
        np.stack([low for low, _ in curves]),
        np.stack([high for _, high in curves]),
        frozen,
    )


def _numbers(n_clients: int, own: int, many: int) -> tuple[int, ...]:
    """0 .. (K-1)/2 and the stated number: all of them, or `many`, densest among the small ones."""
    most = (n_clients - 1) // 2
    if most <= many:
        return tuple(sorted({*range(most + 1), own}))
    spread = np.round(most * np.linspace(0, 1, many) ** 2).astype(int)
    return tuple(sorted({*spread.tolist(), *range(min(8, many)), own}))


def _rule(settings: Settings) -> tuple[Defence | None, str]:
    """The defence made again, or why it cannot be."""
    try:
        return defence_again(settings.defence, settings.parameters), ""
    except RobfcpError as error:
        return None, str(error)


def _excluded(
    calibration: Calibration, liars: tuple[int, ...], rule: Defence | None
) -> tuple[NDArray[np.intp], ...]:
    """Whom the defence leaves out when told each number; as recorded where it cannot be told."""
    evidence = calibration.evidence
    federation = comparable(evidence.federation)
    most = (federation.n_clients - 1) // 2
    recorded = np.flatnonzero(~evidence.trusted_mask)
    if rule is None:
        return (recorded,) * len(liars)
    finding = evidence.finding
    if finding is None and isinstance(rule, LookingDefence):
        finding = rule.look(federation)

    def left_out(m: int) -> NDArray[np.intp]:
        if m == calibration.n_malicious:
            return recorded
        if finding is not None and isinstance(rule, LookingDefence):
            return np.flatnonzero(~rule.judge(federation, finding, min(m, most)).trusted)
        return np.flatnonzero(~rule(federation, min(m, most)).trusted)

    return tuple(left_out(m) for m in liars)


def _proved(calibration: Calibration, m: int, bounds: CountBounds, intervals: Intervals) -> Proved:
    """The coverage proved at given edges against m liars, as `certify` computes it."""
    federation, sigma = calibration.federation, calibration.settings.heterogeneity
    delta = 1 - calibration.settings.certificate_confidence
    kept, remaining = bounds, m
    if sigma is not None:
        mask, remaining, _ = prune(federation, m, sigma, PRUNING_SHARE * delta, intervals)
        delta *= 1 - PRUNING_SHARE
        kept = bounds_of(federation.subset(mask))

    def at(edges: NDArray[np.intp]) -> Ends:
        places, where = np.unique(edges, return_inverse=True)
        low, high = coverage_interval(kept, places, remaining, delta, federation.grid.n_bins)
        return low[where], high[where]

    return at


def _defended(
    calibration: Calibration,
    bounds: CountBounds,
    levels: tuple[Fraction, ...],
    liars: tuple[int, ...],
    excluded: tuple[NDArray[np.intp], ...],
    proved: list[Proved],
    rule: Defence | None,
) -> OfferTable:
    """The defence's own threshold on the clients it trusts, with the certificate of any."""
    federation = calibration.federation
    shape = (len(liars), len(levels))
    index = np.empty(shape, dtype=np.int64)
    lower, upper = np.ones(shape), np.ones(shape)
    edges: dict[bytes, list[int]] = {}  # by whom is left out: often the same for many numbers
    for row, out in enumerate(excluded):
        mask = np.ones(federation.n_clients, dtype=bool)
        mask[out] = False
        if mask.tobytes() not in edges:
            own = threshold_of(rule, federation, mask, calibration.settings.exchangeability)
            found = [own.index(level) for level in levels]
            edges[mask.tobytes()] = [INFINITE if edge is None else edge for edge in found]
        index[row] = edges[mask.tobytes()]
    if calibration.settings.heterogeneity is None:
        for edge in np.unique(index[index != INFINITE]):  # only what some row asks for
            wanted = np.flatnonzero((index == edge).any(axis=1))
            bounds.foresee(np.array([edge]), [liars[row] for row in wanted])
    for row in range(len(liars)):
        finite = index[row] != INFINITE
        if finite.any():
            lower[row, finite], upper[row, finite] = proved[row](index[row, finite])
    return OfferTable(liars, levels, index, _tolerances(bounds, index, levels), lower, upper)


def _marginal(
    bounds: CountBounds,
    n_bins: int,
    levels: tuple[Fraction, ...],
    liars: tuple[int, ...],
    exchangeability: Exchangeability,
) -> OfferTable:
    """The first edge whose tolerance reaches m: the threshold guaranteed against m.

    Tolerance rises with the edge, so that all m are found by one bisection a level.
    """
    wanted = np.array(liars)
    index = np.empty((len(liars), len(levels)), dtype=np.int64)
    for column, level in enumerate(levels):
        low, high = np.zeros(len(liars), dtype=np.intp), np.full(len(liars), n_bins)
        while (low < high).any():
            middle = (low + high) // 2
            edges = np.minimum(middle, n_bins - 1)
            enough = tolerances(bounds, edges, level, exchangeability) >= wanted
            enough |= middle == n_bins
            low, high = np.where(enough, low, middle + 1), np.where(enough, middle, high)
            low = np.minimum(low, high)
        index[:, column] = np.where(high == n_bins, INFINITE, high)
    lower = np.broadcast_to(np.array([float(level) for level in levels]), index.shape)
    found = _tolerances(bounds, index, levels)
    return OfferTable(liars, levels, index, found, lower, np.ones(index.shape))


def _called(
    federation: Federation,
    bounds: CountBounds,
    settings: Settings,
    levels: tuple[Fraction, ...],
    liars: tuple[int, ...],
    intervals: Intervals,
) -> OfferTable:
    """A guarantee at a few settings, each computed as `calibrate` does."""
    kind = settings.guarantee
    assert kind is not None
    index = np.empty((len(liars), len(levels)), dtype=np.int64)
    lower, upper = np.empty(index.shape), np.empty(index.shape)
    for row, m in enumerate(liars):
        for column, level in enumerate(levels):
            found, certificate = guaranteed(
                federation,
                kind,
                level,
                None if settings.malicious == "estimate" else m,
                confidence=settings.certificate_confidence,
                sigma=settings.heterogeneity,
                size_budget=settings.size_budget,
                exchangeability=settings.exchangeability,
                intervals=intervals,
            )
            index[row, column] = INFINITE if found is None else found
            lower[row, column], upper[row, column] = certificate.lower, certificate.upper
    return OfferTable(liars, levels, index, _tolerances(bounds, index, levels), lower, upper)


def _tolerances(
    bounds: CountBounds, index: NDArray[np.int64], levels: tuple[Fraction, ...]
) -> NDArray[np.int64]:
    """(M, L) tolerance of every threshold; -1 for none, K - 1 for an infinite one."""
    found = np.full(index.shape, len(bounds.sizes) - 1)
    for column, level in enumerate(levels):
        finite = index[:, column] != INFINITE
        if finite.any():
            found[finite, column] = tolerances(bounds, index[finite, column], level)
    return found
