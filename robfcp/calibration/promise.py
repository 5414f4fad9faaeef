"""The coverage that fresh samples are held against, and where that number comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from robfcp._util.numbers import share
from robfcp.calibration.local_threshold import LocalThreshold
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import bounds_of, coverage_interval
from robfcp.reports import Report

if TYPE_CHECKING:
    from robfcp.calibration.calibration import Calibration
    from robfcp.calibration.levels import Level

LOCAL_DELTA = 0.05  # the chance that a site's own threshold covers less than its floor


@dataclass(frozen=True)
class Promise:
    """A floor for coverage, its source in words, and whether it speaks of this very calibration.

    A level that holds on average over calibration data does not: half of all calibrations lie
    below it, so a test against it would blame good ones.
    """

    floor: float
    source: str
    holds: bool


def promise_of(calibration: Calibration, level: int = 0, floor: float | None = None) -> Promise:
    """The stated floor, else the certificate's lower end, else 1 - alpha, and which it is."""
    chosen = level_of(calibration, level)
    if floor is not None:
        return Promise(share("floor", floor, "give 0.85, say"), "stated floor", True)
    certificate = chosen.certificate
    if certificate.lower > 0 and certificate.confidence is not None:
        source = f"certificate's lower end, {certificate.confidence:.4g} confidence"
        if certificate.estimated:
            source += f", if at most {certificate.m} lie (estimated)"
        return Promise(certificate.lower, source, True)
    words = "1 - alpha, which holds on average over calibration data"
    if certificate.lower <= 0:
        words = "1 - alpha, as nothing is certified"
    return Promise(float(chosen.confidence_level), words, False)


def firm_promise(
    calibration: Calibration,
    level: int = 0,
    floor: float | None = None,
    own: LocalThreshold | None = None,
) -> Promise:
    """A promise that this very calibration, or the site's own threshold, makes and that a miss can
    speak against."""
    threshold = level_of(calibration, level).threshold if own is None else own.threshold
    if not np.isfinite(threshold):
        raise RobfcpError("threshold: every set is full, so nothing can be missed; no need to look")
    promise = promise_of(calibration, level, floor) if own is None else local_promise(own, floor)
    if not promise.holds:
        raise RobfcpError(
            f"floor: the calibration promises {promise.source}; state a floor (--floor) that this "
            "very calibration must hold, below that level, or calibrate with guarantee='pac' "
            "(--guarantee pac)"
        )
    if promise.floor >= 1:
        raise RobfcpError("floor: a promise of 1 leaves nothing to miss; state a smaller floor")
    return promise


def own_floor(report: Report, threshold: float, confidence: float = 0.95) -> float:
    """What a site's own report proves of its coverage at a threshold, whoever chose that.

    The p with n kl(c/n, p) = ln(2 H/delta) below the share c/n: at all H edges at once. A threshold
    between two edges has the floor of the lower one.
    """
    report.disclosure.check_exact(report.client)
    grid, delta = report.grid, 1 - share("confidence", confidence, "give 0.95, say")
    edge = int(np.searchsorted(grid.upper, threshold, side="right")) - 1
    if edge < 0:
        return 0.0
    alone = bounds_of(Federation.from_reports([report]))
    low, _ = coverage_interval(alone, np.array([edge]), 0, delta, grid.n_bins)
    return float(low[0])


def local_promise(own: LocalThreshold, floor: float | None = None) -> Promise:
    """The stated floor, else what the site's own samples prove of its own threshold.

    That is never below X_(a) of the site's n scores, and P(F(X_(a)) < q) <= P(Beta(a, n+1-a) < q)
    whatever anybody does; q is the 0.05 quantile.
    """
    if floor is not None:
        return Promise(share("floor", floor, "give 0.85, say"), "stated floor", True)
    from scipy.special import betaincinv

    a = round(own.floor * (own.n + 1))
    proved = float(betaincinv(a, own.n + 1 - a, LOCAL_DELTA))
    words = f"what the site's own {own.n} samples prove of its own threshold, 0.95 confidence"
    return Promise(proved, words, True)


def level_of(calibration: Calibration, level: int) -> Level:
    """One of the calibration's levels, counted from 0."""
    if not 0 <= level < len(calibration.levels):
        raise RobfcpError(
            f"level: {level} is not 0 to {len(calibration.levels) - 1}; count the levels from 0"
        )
    return calibration.levels[level]
