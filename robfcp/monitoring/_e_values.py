"""The bets of a monitor: pure functions of what was observed, each with its formula.

An e-process is the wealth of a player who bets against a claim and starts with 1. While the claim
is true its mean is at most 1 at any stopping time, so by Ville's inequality it ever reaches 1/delta
with a probability of at most delta (docs/alarms.md). All values are natural logarithms.

T is the number of fresh samples, J the number of bets, H the number of bins, B of p-value cells.
"""

from __future__ import annotations

import numpy as np

from robfcp._typing import BoolArray, FloatArray, IndexArray, IntArray

# Shares of the way from a to 1 at which bets put the probability of a miss: q = a + (1 - a) / 2,
# a + (1 - a) / 4, ..., / 128. Large ones win fast where coverage is lost, small ones where it falls
# a little.
BET_FRACTIONS = 0.5 ** np.arange(1, 8)
N_BETS = len(BET_FRACTIONS)
POWERS = np.array([0.7, 0.85])  # e p^(e-1): scores have risen; the same on 1 - p: fallen
N_CELLS = 10  # of the histogram that learns any other change
N_EXCHANGE_BETS = 2 * len(POWERS) + 1
_BLOCK = 256  # samples whose ranks among each other are compared at once, (256, 256) booleans
_PHILOX_DRAWS = 4  # draws of a step of the Philox generator


def log_bet_factors(min_coverage: float, is_missed: BoolArray) -> FloatArray:
    """Return ln of the factor by which each sample multiplies the wealth of each bet, (T, J).

    A bet that misses have the probability q > a = 1 - min_coverage wins ln(q/a) with a miss and
    ln((1-q)/(1-a)) with a hit. Each bet has a q of its own, see `BET_FRACTIONS`.

    Parameters
    ----------
    min_coverage : float
        The coverage that is bet against, strictly between 0 and 1.
    is_missed : ndarray of bool, shape (T,)
        Which samples are missed, in their order.
    """
    a = 1 - min_coverage
    q = a + min_coverage * BET_FRACTIONS
    miss = np.log(q / a)
    hit = np.log1p(-BET_FRACTIONS)  # (1 - q) / (1 - a) = 1 - BET_FRACTIONS
    return np.where(is_missed[:, None], miss, hit)


def log_mixture_wealth(previous_logs: FloatArray, n: int, factors: FloatArray) -> FloatArray:
    """Return ln A_t of each bet after each of T fresh samples, (T, J).

    A_t = (A_{t-1} + 1 / (t (t + 1))) x factor_t: a player with the share 1 / (t (t + 1)) of the
    wealth starts at every sample t.

    Parameters
    ----------
    previous_logs : ndarray of shape (J,)
        ln A_n; minus infinity before the first sample.
    n : int
        The number of earlier samples: the fresh ones have t = n + 1, ..., n + T.
    factors : ndarray of shape (T, J)
        ln of the factors, as `log_bet_factors` or `log_p_value_bets` gives them.
    """
    step = n + np.arange(1, len(factors) + 1)
    return _accumulate(previous_logs, factors, -np.log(step) - np.log1p(step))


def log_shiryaev_roberts(previous_logs: FloatArray, factors: FloatArray) -> FloatArray:
    """Return ln R_t of each bet, (T, J), R_t = (1 + R_{t-1}) x factor_t.

    Parameters
    ----------
    previous_logs : ndarray of shape (J,)
        ln R before the first of these samples; minus infinity before the first of all.
    factors : ndarray of shape (T, J)
        ln of the factors, as `log_bet_factors` gives them.
    """
    return _accumulate(previous_logs, factors, np.zeros(len(factors)))


def log_wealth(log_wealths: FloatArray, n: int) -> FloatArray:
    """Return ln W_t, (T,): the wealth of all bets, which is the e-value.

    W_t is the mean of the A_t over the bets, and 1 / (t + 1) that has not been bet after sample t.

    Parameters
    ----------
    log_wealths : ndarray of shape (T, J)
        ln A_t, as `log_mixture_wealth` gives it.
    n : int
        The number of samples before these.
    """
    step = n + np.arange(1, len(log_wealths) + 1)
    return np.asarray(np.logaddexp(log_mean(log_wealths), -np.log1p(step)))


def log_mean(logs: FloatArray) -> FloatArray:
    """Return ln of the mean of the exponentials of each row, (T,).

    Parameters
    ----------
    logs : ndarray of shape (T, J)
        Logarithms, minus infinity for 0. A row of nothing else has minus infinity.
    """
    # The largest is taken out of the sum, so that no exponential overflows.
    largest = logs.max(axis=-1)
    offset = np.where(np.isfinite(largest), largest, 0.0)
    means = np.exp(logs - offset[..., None]).mean(axis=-1)
    with np.errstate(divide="ignore"):
        return np.asarray(offset + np.log(means))


def _accumulate(previous_logs: FloatArray, factors: FloatArray, weights: FloatArray) -> FloatArray:
    """Return ln X_t, (T, J), X_t = (X_{t-1} + e^weight_t) x e^factor_t.

    ln X_0 = `previous_logs`, (J,). With S_t the sum of the factors, X_t = e^{S_t} (X_0 + the sum
    over s <= t of e^{weight_s} / e^{S_{s-1}}).

    Parameters
    ----------
    previous_logs : ndarray of shape (J,)
        ln X_0, minus infinity for 0.
    factors : ndarray of shape (T, J)
        ln of the factors.
    weights : ndarray of shape (T,)
        ln of what is added before each factor.
    """
    sums = np.cumsum(factors, axis=0)
    previous_sums = np.concatenate([np.zeros((1, factors.shape[1])), sums[:-1]])
    terms = np.concatenate([previous_logs[None, :], weights[:, None] - previous_sums])
    log_term_sums = np.logaddexp.accumulate(terms, axis=0)[1:]
    return np.asarray(sums + log_term_sums)


def philox_uniforms(seed: int, start: int, n: int) -> FloatArray:
    """Return the draws start, start + 1, ... of a stream, (n,): the same however it is divided.

    Parameters
    ----------
    seed : int
        Of the stream, from 0.
    start : int
        The first draw, counted from 0.
    n : int
        The number of draws. They lie strictly between 0 and 1.
    """
    # The generator advances by whole steps; the rest of a step is drawn and skipped.
    stream = np.random.Philox(key=seed)
    stream.advance(start // _PHILOX_DRAWS)
    n_skipped = start % _PHILOX_DRAWS
    raw_draws = np.asarray(stream.random_raw(n_skipped + n))[n_skipped:]

    # 52 random bits, and half a unit more, so that no draw is 0 or 1.
    random_bits = raw_draws >> np.uint64(12)
    return np.asarray((random_bits + 0.5) * 2.0**-52)


def conformal_p_values(
    score_counts: IntArray, bins: IndexArray, uniforms: FloatArray
) -> FloatArray:
    """Return conformal p-values of fresh scores in their order, (T,); each score is then counted.

    p_t = (the scores larger than score t + u_t x those equal to it, itself included) / (the number
    of scores), of all scores up to and with score t. Scores are equal if they are in one bin.

    Parameters
    ----------
    score_counts : ndarray of shape (H,)
        The number of earlier scores in each bin. It is changed: the fresh scores are added.
    bins : ndarray of shape (T,)
        The bins of the fresh scores.
    uniforms : ndarray of shape (T,)
        Uniform draws that break the ties.

    Returns
    -------
    ndarray of shape (T,)
        Strictly between 0 and 1, uniform while fresh scores are like the earlier ones.
    """
    p_values = np.empty(len(bins))
    for start in range(0, len(bins), _BLOCK):
        block = bins[start : start + _BLOCK]
        draws = uniforms[start : start + _BLOCK]

        # Larger and equal scores among those counted, and among earlier ones of the block.
        is_earlier = np.tri(len(block), k=-1, dtype=bool)
        is_larger = block[None, :] > block[:, None]
        is_equal = block[None, :] == block[:, None]
        n_above = np.cumsum(score_counts[::-1])[::-1] - score_counts  # (H,) in higher bins
        n_larger = n_above[block] + (is_earlier & is_larger).sum(axis=1)
        n_equal = score_counts[block] + (is_earlier & is_equal).sum(axis=1)

        n_scores = int(score_counts.sum()) + np.arange(len(block)) + 1
        p_values[start : start + _BLOCK] = (n_larger + draws * (n_equal + 1)) / n_scores
        np.add.at(score_counts, block, 1)  # unlike +=, counts every score of a bin
    return np.clip(p_values, 2.0**-60, 1 - 2.0**-53)  # logarithms of p and of 1 - p stay finite


def log_p_value_bets(p_values: FloatArray, cell_counts: IntArray) -> FloatArray:
    """Return ln of the factor of each bet against uniform p-values at every step, (T, J).

    ln(e) + (e-1) ln p and the same on 1 - p; and ln(B (c + 1/2) / (t + B/2)), where c of the t
    previous p-values are in the cell of this one: a histogram that learns (Krichevsky and Trofimov
    1981).

    Parameters
    ----------
    p_values : ndarray of shape (T,)
        Conformal p-values, strictly between 0 and 1.
    cell_counts : ndarray of shape (B,)
        The number of earlier p-values in each cell. It is changed: these are added.

    Returns
    -------
    ndarray of shape (T, J)
        J is `N_EXCHANGE_BETS`: the bets on each of `POWERS` that scores have risen, those that they
        have fallen, and the histogram. State files store wealths in this order.
    """
    rising = np.log(POWERS) + np.multiply.outer(np.log(p_values), POWERS - 1)
    falling = np.log(POWERS) + np.multiply.outer(np.log1p(-p_values), POWERS - 1)

    # (T, B) the counts of the cells before each step.
    steps = np.arange(len(p_values))
    cell_index = np.minimum((p_values * N_CELLS).astype(np.intp), N_CELLS - 1)
    is_added = np.zeros((len(p_values), N_CELLS), dtype=np.int64)
    is_added[steps, cell_index] = 1
    previous_counts = cell_counts + np.cumsum(is_added, axis=0) - is_added

    count = previous_counts[steps, cell_index]
    n_previous = previous_counts.sum(axis=1)
    learned = np.log(N_CELLS * (count + 0.5) / (n_previous + N_CELLS / 2))
    cell_counts += is_added.sum(axis=0)
    return np.column_stack([rising, falling, learned])
