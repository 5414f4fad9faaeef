"""The bets of a monitor: pure functions of what was observed, each with its formula.

An e-process is the wealth of somebody who bets against a claim and starts with 1. While the claim
is true its mean is at most 1 at any stopping time, so by Ville's inequality it ever reaches 1/delta
with a probability of at most delta (docs/alarms.md). All of it is computed in natural logarithms.

T is the number of fresh samples, J the number of bets, H the number of bins, B of p-value cells.
"""

from __future__ import annotations

import numpy as np

from robfcp._typing import BoolArray, FloatArray, IndexArray, IntArray

BET_FRACTIONS = 0.5 ** np.arange(1, 8)  # q = a + (1 - a) / 2, / 4, ..., / 128
N_BETS = len(BET_FRACTIONS)
POWERS = np.array([0.7, 0.85])  # e p^(e-1): scores have risen; the same on 1 - p: fallen
N_CELLS = 10  # of the histogram that learns any other change
N_EXCHANGE_BETS = 2 * len(POWERS) + 1
_BLOCK = 256  # samples whose ranks among each other are compared at once, (256, 256) booleans
_PHILOX_DRAWS = 4  # draws of a step of the Philox generator


def log_bet_factors(min_coverage: float, is_missed: BoolArray) -> FloatArray:
    """(T, J) ln(q/a) for a miss and ln((1-q)/(1-a)) for a hit, a = 1 - min_coverage."""
    a = 1 - min_coverage
    q = a + min_coverage * BET_FRACTIONS
    miss = np.log(q / a)
    hit = np.log1p(-BET_FRACTIONS)  # (1 - q) / (1 - a) = 1 - BET_FRACTIONS
    return np.where(is_missed[:, None], miss, hit)


def log_mixture_wealth(before: FloatArray, n: int, factors: FloatArray) -> FloatArray:
    """(T, J) ln A_t of each bet after n samples, A_t = (A_{t-1} + 1 / (t (t + 1))) x factor_t."""
    step = n + np.arange(1, len(factors) + 1)
    return _accumulated(before, factors, -np.log(step) - np.log1p(step))


def log_shiryaev_roberts(before: FloatArray, factors: FloatArray) -> FloatArray:
    """(T, J) ln R_t of each bet, R_t = (1 + R_{t-1}) x factor_t."""
    return _accumulated(before, factors, np.zeros(len(factors)))


def log_wealth(started: FloatArray, n: int) -> FloatArray:
    """(T,) ln W_t, W_t = the mean of the A_t + 1 / (t + 1), after n samples."""
    step = n + np.arange(1, len(started) + 1)
    return np.asarray(np.logaddexp(log_mean(started), -np.log1p(step)))


def log_mean(logs: FloatArray) -> FloatArray:
    """(T,) ln of the mean of the exponentials of each row."""
    top = logs.max(axis=-1)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(safe + np.log(np.exp(logs - safe[..., None]).mean(axis=-1)))


def _accumulated(before: FloatArray, factors: FloatArray, weights: FloatArray) -> FloatArray:
    """(T, J) ln X_t, X_t = (X_{t-1} + e^weight_t) x e^factor_t, from (J,) ln X_0 = `before`.

    With S_t the sum of the factors, X_t = e^{S_t} (X_0 + the sum over s <= t of e^{weight_s} /
    e^{S_{s-1}}).
    """
    sums = np.cumsum(factors, axis=0)
    earlier = np.concatenate([np.zeros((1, factors.shape[1])), sums[:-1]])
    inside = np.concatenate([before[None, :], weights[:, None] - earlier])
    return np.asarray(sums + np.logaddexp.accumulate(inside, axis=0)[1:])


def philox_uniforms(seed: int, start: int, n: int) -> FloatArray:
    """(n,) draws number start, start + 1, ... of a stream: the same however it is cut up."""
    stream = np.random.Philox(key=seed)
    stream.advance(start // _PHILOX_DRAWS)
    n_skipped = start % _PHILOX_DRAWS
    raw = np.asarray(stream.random_raw(n_skipped + n))[n_skipped:]

    # 52 random bits, and half a unit more, so that no draw is 0 or 1.
    return np.asarray(((raw >> np.uint64(12)) + 0.5) * 2.0**-52)


def conformal_p_values(bag: IntArray, bins: IndexArray, u: FloatArray) -> FloatArray:
    """(T,) conformal p-values of fresh scores in their order; every one joins the bag.

    p_t = (the scores larger than score t + u_t x those equal to it, itself included) / (their
    number), of all scores up to and with score t.

    Parameters
    ----------
    bag : ndarray of shape (H,)
        How many earlier scores lie in each bin. It is changed: the fresh scores are added.
    bins : ndarray of shape (T,)
        The bins of the fresh scores.
    u : ndarray of shape (T,)
        Uniform draws that break the ties.
    """
    p = np.empty(len(bins))
    for start in range(0, len(bins), _BLOCK):
        block = bins[start : start + _BLOCK]
        draws = u[start : start + _BLOCK]

        # Larger and equal scores in the bag, and among those of the block that came earlier.
        is_earlier = np.tri(len(block), k=-1, dtype=bool)
        is_larger = block[None, :] > block[:, None]
        is_equal = block[None, :] == block[:, None]
        n_above = np.cumsum(bag[::-1])[::-1] - bag
        larger = n_above[block] + (is_earlier & is_larger).sum(axis=1)
        equal = bag[block] + (is_earlier & is_equal).sum(axis=1)

        total = int(bag.sum()) + np.arange(len(block)) + 1
        p[start : start + _BLOCK] = (larger + draws * (equal + 1)) / total
        np.add.at(bag, block, 1)
    return np.clip(p, 2.0**-60, 1 - 2.0**-53)  # logarithms of p and of 1 - p stay finite


def log_p_value_bets(p: FloatArray, cells: IntArray) -> FloatArray:
    """(T, J) ln of each bet's factor at every step, for p-values that are uniform or not.

    ln(e) + (e-1) ln p and the same on 1 - p; and ln(B (c + 1/2) / (t + B/2)), c of the t p-values
    so far being in this one's cell: a histogram that learns (Krichevsky and Trofimov 1981).

    Parameters
    ----------
    p : ndarray of shape (T,)
        Conformal p-values.
    cells : ndarray of shape (B,)
        How many earlier p-values lie in each cell. It is changed: these are added.
    """
    rising = np.log(POWERS) + np.multiply.outer(np.log(p), POWERS - 1)
    falling = np.log(POWERS) + np.multiply.outer(np.log1p(-p), POWERS - 1)

    # (T, B) how many p-values each cell held before each step.
    steps = np.arange(len(p))
    cell = np.minimum((p * N_CELLS).astype(np.intp), N_CELLS - 1)
    joins = np.zeros((len(p), N_CELLS), dtype=np.int64)
    joins[steps, cell] = 1
    counts_before = cells + np.cumsum(joins, axis=0) - joins

    count = counts_before[steps, cell]
    learnt = np.log(N_CELLS * (count + 0.5) / (counts_before.sum(axis=1) + N_CELLS / 2))
    cells += joins.sum(axis=0)
    return np.column_stack([rising, falling, learnt])
