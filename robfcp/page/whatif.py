"""What the calibration would have been for other levels and other numbers of liars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from robfcp._exact import first_edge
from robfcp.band import Band, stand_out
from robfcp.calibration import Calibration, Settings
from robfcp.certificates import PRUNING_SHARE, coverage_band
from robfcp.defences import named_defence
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import tolerance, tolerance_at
from robfcp.modes import guaranteed
from robfcp.private_certificates import private_band
from robfcp.private_thresholds import private_index
from robfcp.pruning import prune
from robfcp.quantiles import conformal_rank, threshold_index

LEVELS = tuple(Fraction(step, 100) for step in range(50, 100)) + (Fraction(995, 1000),)
COARSE_LEVELS = tuple(Fraction(level, 100) for level in (50, 70, 80, 85, 90, 95, 98, 99))
MANY = 48
FEW = 12
INFINITE, NONE = -1, -1


@dataclass(frozen=True, eq=False)
class Table:
    """Outcomes by number of liars and level, (M, L): the threshold's edge (-1 = infinite), the
    tolerance (-1 = none) and the coverage proved."""

    liars: tuple[int, ...]
    levels: tuple[Fraction, ...]
    index: NDArray[np.int64]
    tolerance: NDArray[np.int64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WhatIf:
    """The tables of the modes on offer, and for each number of liars whom the defence leaves out
    and where the coverage of every shown edge lies."""

    tables: dict[str, Table]
    liars: tuple[int, ...]
    excluded: tuple[NDArray[np.intp], ...]
    band_lower: NDArray[np.float64]
    band_upper: NDArray[np.float64]


def what_if(calibration: Calibration, shown: NDArray[np.intp]) -> WhatIf:
    """Every setting the page offers, computed as `calibrate` would; `shown` are edges to plot."""
    federation, settings = calibration.federation, calibration.settings
    own = tuple(level.confidence_level for level in calibration.levels)
    coarse = tuple(sorted({*COARSE_LEVELS, *own}))
    levels = coarse if federation.private else tuple(sorted({*LEVELS, *own}))
    few = _numbers(federation.n_clients, calibration.n_malicious, FEW)
    many = _numbers(federation.n_clients, calibration.n_malicious, MANY)
    liars = few if federation.private else tuple(sorted({*many, *few}))
    below = np.ascontiguousarray(federation.cumulative().T)
    survived = _survived(federation, below)
    excluded = tuple(_excluded(calibration, liars))
    bands = [_band(calibration, m, below) for m in liars]
    tables = {
        "defence": _defended(calibration, levels, liars, excluded, bands, survived),
        "marginal": _marginal(federation, levels, liars, survived),
    }
    plain = settings.heterogeneity is None and settings.size_budget is None
    if settings.guarantee is not None and not (settings.guarantee == "marginal" and plain):
        stated = (calibration.n_malicious,) if settings.malicious == "estimate" else few
        tables["stated"] = _called(federation, settings, coarse, stated, survived)
    curves = [band(shown) for band in bands]
    return WhatIf(
        tables,
        liars,
        excluded,
        np.stack([low for low, _ in curves]),
        np.stack([high for _, high in curves]),
    )


def _numbers(n_clients: int, own: int, many: int) -> tuple[int, ...]:
    """0 .. (K-1)/2 and the stated number: all of them, or `many`, densest among the small ones."""
    most = (n_clients - 1) // 2
    if most <= many:
        return tuple(sorted({*range(most + 1), own}))
    spread = np.round(most * np.linspace(0, 1, many) ** 2).astype(int)
    return tuple(sorted({*spread.tolist(), *range(min(8, many)), own}))


def _survived(federation: Federation, below: NDArray[np.int64]) -> Callable[[Fraction, int], int]:
    """Tolerance at a level and an edge; -1 for none, K - 1 beyond the last edge."""

    @cache
    def at(level: Fraction, edge: int) -> int:
        if edge == INFINITE:
            return federation.n_clients - 1
        if federation.private:
            found = tolerance(federation, edge, level)
        else:
            found = tolerance_at(below[edge], federation.sizes, level)
        return NONE if found is None else found

    return at


def _excluded(calibration: Calibration, liars: tuple[int, ...]) -> Iterator[NDArray[np.intp]]:
    """Whom the defence leaves out when told each number; the recorded clients if it is unknown."""
    federation, settings = calibration.federation, calibration.settings
    most = (federation.n_clients - 1) // 2
    recorded = np.flatnonzero(~calibration.trusted_mask)
    try:
        rule = named_defence(settings.defence, settings.distance, settings.exclude)
    except RobfcpError:
        yield from (recorded for _ in liars)
        return
    standing = stand_out(federation, rule.false_alarm) if isinstance(rule, Band) else None
    for m in liars:
        if m == calibration.n_malicious:
            yield recorded
        elif standing is not None and isinstance(rule, Band):
            yield np.flatnonzero(~rule.judge(federation, standing, min(m, most)).trusted)
        else:
            yield np.flatnonzero(~rule(federation, min(m, most)).trusted)


Proved = Callable[[NDArray[np.intp]], tuple[NDArray[np.float64], NDArray[np.float64]]]


def _band(calibration: Calibration, m: int, below: NDArray[np.int64]) -> Proved:
    """The coverage proved at given edges against m liars, as `certify` computes it."""
    federation, sigma = calibration.federation, calibration.settings.heterogeneity
    delta = 1 - calibration.settings.certificate_confidence
    kept, remaining = federation, m
    if sigma is not None:
        mask, remaining, _ = prune(federation, m, sigma, PRUNING_SHARE * delta)
        delta *= 1 - PRUNING_SHARE
        kept, below = federation.subset(mask), below[:, mask]

    def at(edges: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if kept.private:
            return private_band(kept, edges, remaining, delta)
        return coverage_band(below[edges].T, kept.sizes, remaining, delta, federation.grid.n_bins)

    return at


def _defended(
    calibration: Calibration,
    levels: tuple[Fraction, ...],
    liars: tuple[int, ...],
    excluded: tuple[NDArray[np.intp], ...],
    bands: list[Proved],
    survived: Callable[[Fraction, int], int],
) -> Table:
    """FCP's threshold on the clients the defence trusts, with the certificate of any threshold."""
    federation = calibration.federation
    shape = (len(liars), len(levels))
    index = np.empty(shape, dtype=np.int64)
    lower, upper = np.ones(shape), np.ones(shape)
    for row, out in enumerate(excluded):
        mask = np.ones(federation.n_clients, dtype=bool)
        mask[out] = False
        pooled, samples = federation.pooled(mask), int(federation.sizes[mask].sum())
        for column, level in enumerate(levels):
            rank = conformal_rank(
                level, samples, int(mask.sum()), calibration.settings.exchangeability
            )
            if federation.private:
                found = private_index(
                    federation.subset(mask), level, calibration.settings.exchangeability
                )
            else:
                found = threshold_index(pooled, rank)
            index[row, column] = INFINITE if found is None else found
        finite = index[row] != INFINITE
        if finite.any():
            lower[row, finite], upper[row, finite] = bands[row](index[row, finite])
    return Table(liars, levels, index, _tolerances(index, levels, survived), lower, upper)


def _marginal(
    federation: Federation,
    levels: tuple[Fraction, ...],
    liars: tuple[int, ...],
    survived: Callable[[Fraction, int], int],
) -> Table:
    """The first edge whose tolerance reaches m: the threshold guaranteed against m."""
    if federation.private:
        stated = Settings(malicious=0, guarantee="marginal")
        return _called(federation, stated, levels, liars, survived)
    index = np.empty((len(liars), len(levels)), dtype=np.int64)
    for column, level in enumerate(levels):
        for row, m in enumerate(liars):

            def holds(edge: int, level: Fraction = level, m: int = m) -> bool:
                return survived(level, edge) >= m

            found = first_edge(federation.grid.n_bins, holds)
            index[row, column] = INFINITE if found is None else found
    lower = np.broadcast_to(np.array([float(level) for level in levels]), index.shape)
    return Table(
        liars, levels, index, _tolerances(index, levels, survived), lower, np.ones(index.shape)
    )


def _called(
    federation: Federation,
    settings: Settings,
    levels: tuple[Fraction, ...],
    liars: tuple[int, ...],
    survived: Callable[[Fraction, int], int],
) -> Table:
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
            )
            index[row, column] = INFINITE if found is None else found
            lower[row, column], upper[row, column] = certificate.lower, certificate.upper
    return Table(liars, levels, index, _tolerances(index, levels, survived), lower, upper)


def _tolerances(
    index: NDArray[np.int64],
    levels: tuple[Fraction, ...],
    survived: Callable[[Fraction, int], int],
) -> NDArray[np.int64]:
    return np.array(
        [[survived(level, int(i)) for level, i in zip(levels, row, strict=True)] for row in index]
    )
