"""Each site's own threshold as the server knows it: its letter, clipped by its counts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from robfcp.calibration.calibration import Calibration
from robfcp.calibration.others import from_others
from robfcp.guarantees import own_interval


class AtSite(NamedTuple):
    """A site's threshold at the first level, and the share of its reported samples it covers."""

    threshold: float
    covered: float


def own_thresholds(calibration: Calibration, chosen: set[str]) -> dict[str, AtSite]:
    """What the chosen sites' letters come to; empty where letters hold no thresholds.

    The site clips by its scores, here their bins' upper edges stand for them: its own threshold is
    the same up to one bin.
    """
    federation = calibration.federation
    alpha = float(1 - calibration.levels[0].confidence_level)
    place = {client: k for k, client in enumerate(federation.ids)}
    found = {}
    for client, others in from_others(calibration, federation, chosen).items():
        counts = federation.table.rows(np.array([place[client]])).dense()[0]
        scores = np.repeat(federation.grid.upper, counts)
        own = own_interval(scores, alpha)
        limit = max(own.low, min(others.thresholds[0], own.high))
        found[client] = AtSite(limit, float((scores <= limit).mean()))
    return found
