"""The client that is odd all by itself: no gap of few clients shows it, yet it is plain to see."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SHARE = 0.25  # of the false alarms, for loners; the rest is for groups
FLOOR = 0.35  # least scale: that of log X^2 when only noise is at work
FREEDOM = 8  # Student's t of this has a heavier tail than honest clients' logarithms
MOST_CLIENTS = 1000  # among more a single client does no harm
DRAWS = 3999

Array = NDArray[np.float64]


def loner_p_value(values: Array) -> float:
    """The chance that the oddest of honest clients is as odd as the largest value.

    T = (L_(K) - q50) / max(q50 - q15, q80 - q50) of the logarithms L, compared with simulated
    samples of Student's t. Up to a fifth of the clients cannot move the scale.
    """
    if not 4 <= len(values) <= MOST_CLIENTS:
        return 1.0
    logs = np.log(np.maximum(values, np.finfo(float).tiny))
    null = _null(len(values))
    return float((1 + np.count_nonzero(null >= _heights(logs[None, :])[0])) / (1 + len(null)))


def _heights(logs: Array) -> Array:
    """(R,) T of R samples (R, K)."""
    low, middle = np.quantile(logs, [0.15, 0.5], axis=1)
    high = np.quantile(logs, 0.8, axis=1, method="lower")
    scale = np.maximum(np.maximum(middle - low, high - middle), FLOOR)
    result: Array = (logs.max(axis=1) - middle) / scale
    return result


@lru_cache(maxsize=64)
def _null(n: int) -> Array:
    """Simulated T; the same draws every time."""
    null = _heights(np.random.default_rng(n).standard_t(FREEDOM, size=(DRAWS, n)))
    null.setflags(write=False)
    return null
