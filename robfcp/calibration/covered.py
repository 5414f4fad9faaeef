"""What a calibration covers of the scores that sites reported: by site, by class, at each level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from robfcp.calibration.calibration import Calibration
from robfcp.calibration.levels import Level
from robfcp.diagnosis import Diagnosis
from robfcp.diagnosis import diagnose as diagnosed
from robfcp.federation import Federation, Stratified
from robfcp.grid import Grid


def covered_at_sites(calibration: Calibration) -> NDArray[np.float64]:
    """(K, L) the share of each site's own reported scores that the calibration covers.

    By class each score is held against its own class's threshold; a site that did not report by
    class, and what a site merged, against the largest.
    """
    federation = calibration.evidence.federation
    found = site_coverage(federation, [level.threshold for level in calibration.levels])
    strata = federation.strata
    if calibration.by is None or strata is None:
        return found
    for place, level in enumerate(calibration.levels):
        covered, sizes = covered_by_stratum(strata, federation.grid, level)
        found[strata.rows, place] = covered.sum(axis=1) / np.maximum(sizes.sum(axis=1), 1)
    return found


def stratum_limits(strata: Stratified, level: Level) -> NDArray[np.float64]:
    """(C,) the threshold that each class or group is held to; the common one without its own."""
    own = {one.name: one.threshold for one in level.strata}
    return np.array([own.get(name, level.threshold) for name in strata.labels])


def covered_by_stratum(
    strata: Stratified, grid: Grid, level: Level
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(R, C) counts at or below each class's threshold, and all counts; what noise left of them."""
    edges = grid.edge_at(stratum_limits(strata, level))
    first = np.arange(strata.n_strata) * strata.n_bins
    ends = np.unique(np.concatenate([first + edges, first + strata.n_bins - 1]))
    merged = np.cumsum(strata.table.merged(ends), axis=1)
    reached = merged[:, np.searchsorted(ends, first + edges)]
    through = merged[:, np.searchsorted(ends, first + strata.n_bins - 1)]
    before = np.concatenate([np.zeros((len(merged), 1), dtype=merged.dtype), through[:, :-1]], 1)
    sizes = np.maximum(through - before, 0)
    return np.clip(reached - before, 0, sizes), sizes


def site_coverage(federation: Federation, thresholds: Sequence[float]) -> NDArray[np.float64]:
    """(K, L) the share of each site's own reported scores at or below each threshold."""
    edges = federation.grid.edge_at(thresholds)
    below = np.stack([federation.below(int(edge)) for edge in edges], axis=1)
    covered = np.clip(below / federation.masses[:, None], 0, 1)
    return np.where(np.isinf(np.asarray(thresholds)), 1.0, covered)


def diagnose(
    calibration: Calibration, clients: Sequence[str] | None = None
) -> Mapping[str, Diagnosis]:
    """What is the matter with each site that was left out, and with trusted ones that look odd.

    Parameters
    ----------
    calibration
        With its evidence.
    clients
        Whom to diagnose, whether they look odd or not.

    Returns
    -------
    Mapping
        A diagnosis for every flagged site, in the order of the federation; then one for every
        trusted site whose own coverage is far too low or whose report clearly shows a fault. Beyond
        10,000 sites times classes only the coverage of trusted sites is looked at.

    Examples
    --------
    >>> import robfcp
    >>> counts = [[60, 20, 10, 10]] * 5 + [[10, 10, 30, 50]]
    >>> calibration = robfcp.calibrate(
    ...     robfcp.Federation.from_counts(counts), 0.8, defence="none"
    ... )
    >>> robfcp.diagnose(calibration)["client-5"].fact
    'only 50% of its own cases are covered where 80% should be'
    """
    covered = covered_at_sites(calibration)[:, 0]
    wanted = float(calibration.levels[0].coverage)
    trusted = calibration.trusted_mask
    return diagnosed(calibration.federation, trusted, covered, wanted, clients)
