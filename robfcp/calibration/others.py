"""What the other sites' reports prove for one site's own label mix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robfcp.calibration.calibration import Calibration
from robfcp.federation import Federation
from robfcp.guarantees import MOST_COMPARED, class_counts, site_thresholds


@dataclass(frozen=True)
class FromOthers:
    """What the other sites' reports say of one site.

    Parameters
    ----------
    thresholds
        One a level, for whatever mix the site's next patient makes; infinite where nothing is
        proved.
    label_counts
        The site's own labels by class, as it reported them.
    m
        How many of the others may lie.
    label_shift
        How much honest sites may differ within a class.
    stated
        Whether m was stated beforehand; an estimate proves nothing.
    """

    thresholds: tuple[float, ...]
    label_counts: tuple[int, ...]
    m: int
    label_shift: float
    stated: bool


def from_others(
    calibration: Calibration, federation: Federation, chosen: set[str] | None = None
) -> dict[str, FromOthers]:
    """What the others' reports say of each site (or the chosen ones); empty without classes."""
    strata = federation.exact_strata
    if strata is None or strata.by != "class":
        return {}
    if federation.risk is not None or not 2 <= len(strata.rows) <= MOST_COMPARED:
        return {}
    counts = class_counts(federation)
    wanted = [k for k, name in enumerate(counts.ids) if chosen is None or name in chosen]
    m, sigma = calibration.liars, calibration.alike_within_classes
    if not wanted or m > len(counts.ids) - 1:
        return {}
    upper = np.append(federation.grid.upper, np.inf)  # edge -1: nothing is proved
    edges = [
        site_thresholds(counts, float(1 - level.coverage), m, sigma, wanted)
        for level in calibration.levels
    ]
    return {
        counts.ids[k]: FromOthers(
            tuple(float(upper[found[k]]) for found in edges),
            tuple(counts.sizes[k].tolist()),
            m,
            sigma,
            calibration.liars_stated,
        )
        for k in wanted
    }
