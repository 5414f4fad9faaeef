"""Clients that are odd all by themselves or with few others: too few for a gap to show them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SHARE = 0.25  # of the false alarms, for the few; half of it for the oddest alone
FEW = 5  # a fifth of the clients cannot move the scale
FLOOR = 0.35  # least scale: that of log X^2 when only noise is at work
FREEDOM = 8  # Student's t of this has a heavier tail than honest clients' logarithms
MOST_CLIENTS = 1000  # among more a single client does no harm
DRAWS = 3999

Array = NDArray[np.float64]


def few_p_values(values: Array) -> Array:
    """(m,) the chance that the i-th oddest of honest clients is as odd, for i = 1..m, m = K / 5.

    T_i = (L_(K-i+1) - q50) / max(q50 - q15, q80 - q50) of the logarithms L, compared with
    simulated samples of Student's t. A fifth of the clients cannot move the scale.
    """
    if not 4 <= len(values) <= MOST_CLIENTS:
        return np.ones(1)
    logs = np.log(np.maximum(values, np.finfo(float).tiny))
    null = _null(len(values))
    result: Array = (1 + (null >= _heights(logs[None, :])).sum(axis=0)) / (1 + len(null))
    return result


def few_outstanding(values: Array, coherent: NDArray[np.bool_], level: float) -> tuple[int, float]:
    """How many of the oddest stand out at `level`, and their p-value; 0 where nobody does.

    The oddest alone has half of the level, the groups of 2..m share the rest; groups must be
    coherent. Of those that stand out, the one with the widest gap below it.
    """
    p_values = few_p_values(values)
    m = len(p_values)
    weights = np.full(m, 1.0 if m == 1 else 2.0 * (m - 1))
    weights[0] = 1.0 if m == 1 else 2.0
    corrected = np.minimum(weights * p_values, 1)
    allowed = corrected <= level
    allowed[1:] &= coherent[1:m]
    if not allowed.any():
        return 0, float(corrected.min())
    logs = np.log(np.maximum(np.sort(values)[::-1], np.finfo(float).tiny))
    size = int(np.argmax(np.where(allowed, logs[:m] - logs[1 : m + 1], -np.inf))) + 1
    return size, float(corrected[size - 1])


def _heights(logs: Array) -> Array:
    """(R, m) T_1..T_m of R samples (R, K)."""
    ranked = np.sort(logs, axis=1)[:, ::-1]
    low, middle = np.quantile(logs, [0.15, 0.5], axis=1)
    high = np.quantile(logs, 0.8, axis=1, method="lower")
    scale = np.maximum(np.maximum(middle - low, high - middle), FLOOR)
    few = max(1, logs.shape[1] // FEW)
    result: Array = (ranked[:, :few] - middle[:, None]) / scale[:, None]
    return result


@lru_cache(maxsize=64)
def _null(n: int) -> Array:
    """Simulated T; the same draws every time."""
    null = _heights(np.random.default_rng(n).standard_t(FREEDOM, size=(DRAWS, n)))
    null.setflags(write=False)
    return null
