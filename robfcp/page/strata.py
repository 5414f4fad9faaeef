"""What the page shows of classes or groups: thresholds, who holds them, coverage at each site."""

from __future__ import annotations

from typing import Any

import numpy as np

from robfcp.calibration import (
    Calibration,
    covered_by_stratum,
    own_thresholds,
    stratum_limits,
)

MOST_STRATA = 60
MOST_SITES = 60
WITH_OWN = 20  # sites shown, whose letters are worked out


def strata_data(calibration: Calibration) -> dict[str, Any] | None:
    """A row for each class or group, and for the worst sites their mix and own coverage.

    None where the reports keep no such counts.
    """
    federation = calibration.federation
    strata = federation.strata
    if strata is None:
        return None
    limits = stratum_limits(strata, calibration.levels[0])
    covered, sizes = covered_by_stratum(strata, federation.grid, calibration.levels[0])
    totals = sizes.sum(axis=0)
    order = np.argsort(-totals, kind="stable")[:MOST_STRATA]
    own = covered.sum(axis=1) / np.maximum(sizes.sum(axis=1), 1)
    sites = np.argsort(own, kind="stable")[:MOST_SITES]
    levels = {one.name: one for one in calibration.levels[0].strata}
    worst = [federation.ids[strata.rows[r]] for r in sites[:WITH_OWN]]
    letters = own_thresholds(calibration, set(worst))
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
                "own": _own(letters.get(federation.ids[strata.rows[r]])),
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


def _own(letter: Any) -> list[float | None] | None:
    """The threshold that the site's letter comes to, and the share of its samples it covers."""
    if letter is None:
        return None
    return [letter.threshold if np.isfinite(letter.threshold) else None, round(letter.covered, 5)]


def _share(part: float, whole: float) -> float | None:
    return round(float(part) / float(whole), 5) if whole > 0 else None


def _proved(one: Any) -> list[float] | None:
    return None if one is None else [one.certificate.lower, one.certificate.upper]
