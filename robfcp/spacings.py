"""Where a sorted sample falls into an ordinary part and a group that stands out above it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

FLOOR = 0.4  # least scale: the spread of log X^2 on about 15 bins when only noise is at work
LOWEST = 3.0  # values below median / LOWEST count as that, so that nobody widens the scale at will
DRAWS = 1999
_NULL_CELLS = 2**24

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Split:
    """The most conspicuous group: its size, its statistic and the chance of one like it."""

    size: int
    statistic: float
    p_value: float


def most_conspicuous(values: Array) -> Split:
    """The upper group of fewer than half whose gap is widest for its size.

    With L the sorted logarithms, a group of i has S_i = i (L_(K-i+1) - L_(K-i)) / s_i, where
    s_i = (q90 - q10) / log 9 of the K - i others. If log values have an exponential upper tail,
    which is heavier than those of honest clients, i (L_(K-i+1) - L_(K-i)) is exponential with that
    scale for every i (Renyi); the p-value of max_i S_i is taken under this null by simulation.
    """
    n = len(values)
    if n < 3:
        return Split(0, 0.0, 1.0)
    lowest = max(float(np.median(values)) / LOWEST, np.finfo(float).tiny)
    statistics = _statistics(np.sort(np.log(np.maximum(values, lowest)))[None, :])[0]
    best = int(np.argmax(statistics))
    statistic = float(statistics[best])
    null = _null(n)
    p_value = (1 + np.count_nonzero(null >= statistic)) / (1 + len(null))
    return Split(best + 1, statistic, float(p_value))


def tail_p_values(values: Array, ordinary: NDArray[np.bool_]) -> Array:
    """(K,) chance of a value as large among the ordinary ones.

    Their ranks up to the 90% quantile; beyond it the exponential tail of the logarithms,
    0.1 exp(-(L - q90) / s).
    """
    reference = np.sort(values[ordinary])
    ranks = np.searchsorted(reference, values, side="left")
    shares = (1 + len(reference) - ranks) / (1 + len(reference))
    lowest = max(float(np.median(reference)) / LOWEST, np.finfo(float).tiny)
    logs = np.log(np.maximum(reference, lowest))
    low, high = np.quantile(logs, [0.1, 0.9])
    scale = max((high - low) / np.log(9), FLOOR)
    beyond = np.log(np.maximum(values, lowest)) - high
    return np.where(beyond > 0, 0.1 * np.exp(-np.maximum(beyond, 0) / scale), np.minimum(shares, 1))


def _statistics(logs: Array) -> Array:
    """(R, m) S_i for i = 1..m, m the largest minority, of R sorted samples (R, K)."""
    n = logs.shape[1]
    above = np.arange(1, (n - 1) // 2 + 1)
    gaps = logs[:, n - above] - logs[:, n - above - 1]
    spread = _order(logs, 0.9 * (n - above - 1)) - _order(logs, 0.1 * (n - above - 1))
    result: Array = above * gaps / np.maximum(spread / np.log(9), FLOOR)
    return result


def _order(logs: Array, position: Array) -> Array:
    """The order statistics at fractional positions, interpolated."""
    whole = np.floor(position).astype(np.intp)
    part = position - whole
    above = np.minimum(whole + 1, logs.shape[1] - 1)
    result: Array = (1 - part) * logs[:, whole] + part * logs[:, above]
    return result


@lru_cache(maxsize=256)
def _null(n: int) -> Array:
    """Simulated max_i S_i of n exponential logarithms; the same draws every time."""
    rng = np.random.default_rng(n)
    draws = min(DRAWS, max(399, _NULL_CELLS // n))
    block = max(1, _NULL_CELLS // (8 * n))
    parts = []
    for start in range(0, draws, block):
        logs = rng.exponential(size=(min(block, draws - start), n))
        logs.sort(axis=1)
        logs = np.maximum(logs, np.log(np.median(np.exp(logs), axis=1) / LOWEST)[:, None])
        parts.append(_statistics(logs).max(axis=1))
    null = np.concatenate(parts)
    null.setflags(write=False)
    return null
