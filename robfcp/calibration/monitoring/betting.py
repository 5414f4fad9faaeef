"""Bets against "at most a share a is missed": wealth whose mean never exceeds 1 while it is true.

One bet is 1 + lambda (miss - a), lambda = (q - a) / (a (1 - a)): the likelihood ratio of missing
with chance q. Wealth is the mean over several q, so nobody has to know how large a drop will be,
and over the sample s from which on one bets, so nobody has to know when it begins: s has the
weight 1 / (s (s + 1)), and what is kept for later samples is 1 / (t + 1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
SPREAD = 0.5 ** np.arange(1, 8)  # q = a + (1 - a) / 2, / 4, ..., / 128
N_BETS = len(SPREAD)


def log_factors(floor: float, missed: NDArray[np.bool_]) -> Vector:
    """(T, J) ln(q/a) for a miss and ln((1-q)/(1-a)) for a hit, a = 1 - floor."""
    a = 1 - floor
    q = a + floor * SPREAD
    miss, hit = np.log(q / a), np.log1p(-SPREAD)  # (1 - q) / (1 - a) = 1 - SPREAD
    return np.where(missed[:, None], miss, hit)


def log_started(before: Vector, n: int, factors: Vector) -> Vector:
    """(T, J) ln A_t of each bet after n samples, A_t = (A_{t-1} + 1 / (t (t + 1))) x factor_t."""
    step = n + np.arange(1, len(factors) + 1)
    return _accumulated(before, factors, -np.log(step) - np.log1p(step))


def log_changes(before: Vector, factors: Vector) -> Vector:
    """(T, J) ln R_t of each bet, R_t = (1 + R_{t-1}) x factor_t."""
    return _accumulated(before, factors, np.zeros(len(factors)))


def log_wealth(started: Vector, n: int) -> Vector:
    """(T,) ln W_t, W_t = the mean of the A_t + 1 / (t + 1), after n samples."""
    step = n + np.arange(1, len(started) + 1)
    return np.asarray(np.logaddexp(log_mean(started), -np.log1p(step)))


def log_mean(logs: Vector) -> Vector:
    """(T,) ln of the mean of the exponentials of each row."""
    top = logs.max(axis=-1)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(safe + np.log(np.exp(logs - safe[..., None]).mean(axis=-1)))


def _accumulated(before: Vector, factors: Vector, weights: Vector) -> Vector:
    """(T, J) ln X_t, X_t = (X_{t-1} + e^weight_t) x e^factor_t, from (J,) ln X_0 = `before`.

    With S_t the sum of the factors, X_t = e^{S_t} (X_0 + the sum over s <= t of e^{weight_s} /
    e^{S_{s-1}}).
    """
    sums = np.cumsum(factors, axis=0)
    earlier = np.concatenate([np.zeros((1, factors.shape[1])), sums[:-1]])
    inside = np.concatenate([before[None, :], weights[:, None] - earlier])
    return np.asarray(sums + np.logaddexp.accumulate(inside, axis=0)[1:])
