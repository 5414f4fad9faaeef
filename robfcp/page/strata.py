"""What the page shows of classes or groups: thresholds, who holds them, coverage at each site."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.calibration import Calibration
from robfcp.federation import Federation, Stratified

MOST_STRATA = 60
MOST_SITES = 60


def strata_data(calibration: Calibration) -> dict[str, Any] | None:
    """A row for each class or group, and for the worst sites their mix and own coverage.

    None where the reports keep no such counts.
    """
    federation = calibration.federation
    strata = federation.strata
    if strata is None:
        return None
    limits = _limits(calibration, strata)
    covered, sizes = _covered(federation, strata, limits)
    totals = sizes.sum(axis=0)
    order = np.argsort(-totals, kind="stable")[:MOST_STRATA]
    own = covered.sum(axis=1) / np.maximum(sizes.sum(axis=1), 1)
    sites = np.argsort(own, kind="stable")[:MOST_SITES]
    levels = {one.name: one for one in calibration.levels[0].strata}
    return {
        "by": strata.by,
        "n_strata": strata.n_strata,
        "n_sites": len(strata.rows),
        "pooled_only": [
            federation.ids[k] for k in np.setdiff1d(range(federation.n_clients), strata.rows)
        ],
        "own_thresholds": bool(levels),
        "rows": [
            {
                "name": strata.labels[c],
                "threshold": None if not np.isfinite(limits[c]) else float(limits[c]),
                "sites": int((sizes[:, c] > 0).sum()),
                "samples": int(totals[c]),
                "covered": _share(covered[:, c].sum(), totals[c]),
                "proved": _proved(levels.get(strata.labels[c])),
                "protection": getattr(levels.get(strata.labels[c]), "protection", ""),
            }
            for c in order
        ],
        "sites": [
            {
                "name": federation.ids[strata.rows[r]],
                "samples": int(sizes[r].sum()),
                "covered": round(float(own[r]), 5),
                "mix": [_share(sizes[r, c], sizes[r].sum()) for c in order],
                "by": [_share(covered[r, c], sizes[r, c]) for c in order],
            }
            for r in sites
        ],
    }


def strata_notes(calibration: Calibration) -> tuple[str, ...]:
    """How to read the sliders of a page with a threshold for each class."""
    if calibration.by is None:
        return ()
    return (
        f"There is a threshold for each {calibration.by}; the sliders and charts above the table "
        "speak of one threshold for all of them.",
    )


def _limits(calibration: Calibration, strata: Stratified) -> NDArray[np.float64]:
    """(C,) the threshold that each class or group is held to."""
    level = calibration.levels[0]
    own = {one.name: one.threshold for one in level.strata}
    return np.array([own.get(name, level.threshold) for name in strata.labels])


def _covered(
    federation: Federation, strata: Stratified, limits: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(R, C) counts at or below each class's threshold, and all counts; what noise left of them."""
    upper = federation.grid.upper
    edges = np.searchsorted(upper, limits).clip(max=len(upper) - 1)
    n_bins, n_strata = strata.n_bins, strata.n_strata
    first = np.arange(n_strata) * n_bins
    ends = np.unique(np.concatenate([first + edges, first + n_bins - 1]))
    merged = np.cumsum(strata.table.merged(ends), axis=1)
    reached = merged[:, np.searchsorted(ends, first + edges)]
    through = merged[:, np.searchsorted(ends, first + n_bins - 1)]
    before = np.concatenate([np.zeros((len(merged), 1), dtype=merged.dtype), through[:, :-1]], 1)
    sizes = np.maximum(through - before, 0)
    return np.clip(reached - before, 0, sizes), sizes


def _share(part: float, whole: float) -> float | None:
    return round(float(part) / float(whole), 5) if whole > 0 else None


def _proved(one: Any) -> list[float] | None:
    return None if one is None else [one.certificate.lower, one.certificate.upper]
