"""Bets against "at most a share a is missed": wealth whose mean never exceeds 1 while it is true.

One bet is 1 + lambda (miss - a), lambda = (q - a) / (a (1 - a)): the likelihood ratio of missing
with chance q. Wealth is the mean over several q, so nobody has to know how large a drop will be.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
SPREAD = 0.5 ** np.arange(1, 8)  # q = a + (1 - a) / 2, / 4, ..., / 128
N_BETS = len(SPREAD)


def log_factors(floor: float) -> tuple[Vector, Vector]:
    """(J,) ln(q/a) for a miss and ln((1-q)/(1-a)) for a hit, a = 1 - floor."""
    a = 1 - floor
    q = a + floor * SPREAD
    return np.log(q / a), np.log1p(-SPREAD)  # (1 - q) / (1 - a) = 1 - SPREAD


def log_wealth(floor: float, misses: NDArray[np.int64], n: NDArray[np.int64]) -> Vector:
    """(T,) ln of the mean over q of (q/a)^misses ((1-q)/(1-a))^(n-misses)."""
    miss, hit = log_factors(floor)
    logs = np.multiply.outer(misses, miss) + np.multiply.outer(n - misses, hit)
    return log_mean(logs)


def log_changes(floor: float, before: Vector, missed: NDArray[np.bool_]) -> Vector:
    """(T, J) ln R_t of each bet, R_t = (1 + R_{t-1}) x factor_t, from (J,) ln R_0 = `before`.

    With S_t the sum of the log factors, R_t = e^{S_t} (R_0 + sum over s <= t of e^{-S_{s-1}}).
    """
    miss, hit = log_factors(floor)
    sums = np.cumsum(np.where(missed[:, None], miss, hit), axis=0)
    started = np.concatenate([np.zeros((1, N_BETS)), sums[:-1]])
    inside = np.concatenate([before[None, :], -started])
    return np.asarray(sums + np.logaddexp.accumulate(inside, axis=0)[1:])


def log_mean(logs: Vector) -> Vector:
    """(T,) ln of the mean of the exponentials of each row."""
    top = logs.max(axis=-1)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(safe + np.log(np.exp(logs - safe[..., None]).mean(axis=-1)))
