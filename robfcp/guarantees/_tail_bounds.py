"""Tails: what a sum of counts must reach so that sampling alone rarely brings it there.

Totals N are samples. Counts are samples too, or, under a loss, parts of a drop 1 - l of a loss l,
of which a sample has `counts_per_sample`. Nothing is in half counts: `TailTest.accepts` converts.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import numpy as np

from robfcp._typing import BoolArray, FloatArray, IndexArray, IntArray
from robfcp.guarantees._checks import NOISE_DELTA_FRACTION, check_delta, check_max_malicious
from robfcp.guarantees._conformal_rank import rank_correction
from robfcp.guarantees._count_bounds import CountBounds
from robfcp.guarantees._sums import as_integers, sum_of_largest
from robfcp.guarantees._worst_case import TailTest, accepted_bins, first_lastingly_accepted

# Up to how many totals N_S of benign clients each is looked at; of more only every `step`-th.
_MAX_TOTALS = 4096

# The slope of the slack is rounded to a multiple of 1 / 1024, so that sums stay whole numbers.
# Any slope is valid, as the remaining slack is bounded exactly.
_SLOPE_DENOMINATOR = 1024

# Steps of bisection: beyond these a float does not change.
_N_KL_STEPS = 50
_N_LOSS_STEPS = 60

# What floating point may add to a whole number of counts of losses.
_ROUNDING = 1e-6

# Probabilities that are divided by are held away from 0 and 1.
_MIN_PROBABILITY = 1e-15


def marginal_tail_test(level: Fraction, n_clients: int, counts_per_sample: int = 1) -> TailTest:
    """Return the test count_S >= level N_S + 1, which covers on average.

    Docs/theory.md, section 2, formula (1), by the swap lemma.

    Parameters
    ----------
    level : Fraction
        The target coverage.
    n_clients : int
        K.
    counts_per_sample : int, default=1
        How many counts make a sample.

    Returns
    -------
    TailTest
        Requires sum over S of q c_k - p n_k >= q, all in counts: one number for all j.
    """
    p = level.numerator
    q = level.denominator
    min_excess = int(counts_per_sample * rank_correction(level, n_clients) * q)
    return TailTest(p, q, np.array([min_excess]))


def min_count(totals: IntArray, probability: float, delta: float, lowest: IntArray) -> IntArray:
    """Return the least counts c with P(Bin(N, probability) >= c) <= delta, by bisection.

    Parameters
    ----------
    totals : ndarray of shape (T,)
        N.
    probability : float
        Of the binomial distribution.
    delta : float
        The probability that is not exceeded.
    lowest : ndarray of shape (T,)
        The least counts that are considered, from 0 to N + 1. Not changed.

    Returns
    -------
    ndarray of shape (T,)
        N + 1, which is never counted, where no count is so rare.
    """
    from scipy.special import betainc

    low = lowest.copy()
    high = totals + 1
    is_open = low < high
    while is_open.any():
        midpoint = (low + high) // 2
        # P(Bin(N, p) >= c) is the regularized incomplete beta function I_p(c, N - c + 1).
        is_rare = betainc(np.maximum(midpoint, 1), totals - midpoint + 1, probability) <= delta
        # Every count reaches 0; the maximum above only avoids an undefined I_p.
        is_rare &= midpoint > 0
        high = np.where(is_open & is_rare, midpoint, high)
        low = np.where(is_open & ~is_rare, midpoint + 1, low)
        is_open = low < high
    return high


def critical_counts(totals: IntArray, level: Fraction, delta: float) -> IntArray:
    """Return c(N): the least c >= level N + 1 with P(Bin(N, level) >= c) <= delta, at most N + 1.

    Docs/theory.md, section 6.

    Parameters
    ----------
    totals : ndarray of shape (T,)
        N.
    level : Fraction
        The target coverage.
    delta : float
        The probability to fail.
    """
    p = level.numerator
    q = level.denominator
    totals = np.asarray(totals, dtype=np.int64)
    # ceil(level N) + 1, exactly.
    products = p * as_integers(totals, q * (int(totals.max(initial=0)) + 1))
    lowest = (-(-products // q) + 1).astype(np.int64)
    return min_count(totals, float(level), delta, lowest)


def critical_loss_drops(
    totals: IntArray, level: Fraction, delta: float, counts_per_sample: int
) -> IntArray:
    """Return the least summed drops that N losses of mean above 1 - level rarely have.

    The drop of a loss l in [0, 1] is 1 - l. N independent losses of mean above a = 1 - level sum to
    at most R with a probability of at most exp(-N kl(R / N, a)) (Hoeffding 1963), and of at most
    e P(Bin(N, a) <= ceil(R)) (Bentkus 2004). The larger R that either allows is taken
    (docs/theory.md, section 6, "Losses").

    Parameters
    ----------
    totals : ndarray of shape (T,)
        N, in samples.
    level : Fraction
        1 less the largest mean loss.
    delta : float
        The probability to fail.
    counts_per_sample : int
        Drops are counted in parts of 1 / counts_per_sample.

    Returns
    -------
    ndarray of shape (T,)
        In counts, from 1 to counts_per_sample N + 1, which no drops sum to.
    """
    totals = np.asarray(totals, dtype=np.int64)
    max_loss = float(1 - level)

    hoeffding_losses = _hoeffding_loss_sums(totals, max_loss, delta)
    # The least count of drops is that of a binomial: N - R is min_count at delta / e.
    lowest = np.zeros_like(totals)
    bentkus_losses = totals - min_count(totals, float(level), delta / np.e, lowest)
    # Sums of losses are multiples of a part, so R may be rounded down to one.
    rounded_down = np.floor(hoeffding_losses * counts_per_sample) / counts_per_sample
    max_losses = np.maximum(np.maximum(rounded_down, bentkus_losses), -1.0)

    scaled_drops = (totals - max_losses) * counts_per_sample
    drops = np.ceil(scaled_drops - _ROUNDING).astype(np.int64)
    # Never less than beyond the mean, nor more than one beyond all.
    mean_drops = [ceil(counts_per_sample * level * n) for n in totals.tolist()]
    lowest_drops = np.array(mean_drops, dtype=np.int64) + 1
    return np.minimum(np.maximum(drops, lowest_drops), counts_per_sample * totals + 1)


def _hoeffding_loss_sums(totals: IntArray, max_loss: float, delta: float) -> FloatArray:
    """Return (T,) the largest R with exp(-N kl(R / N, a)) <= delta; -1 if there is none.

    By bisection over R / N; R is in losses, each in [0, 1].

    Parameters
    ----------
    totals : ndarray of shape (T,)
        N, in samples.
    max_loss : float
        a, the largest mean loss.
    delta : float
        The probability to fail.
    """
    required_divergence = np.log(1 / delta) / np.maximum(totals, 1)
    low = np.zeros(len(totals))
    high = np.full(len(totals), max_loss)
    for _ in range(_N_LOSS_STEPS):
        midpoint = (low + high) / 2
        # kl(midpoint, a), which falls as the midpoint rises to a.
        divergence = _log_terms(midpoint, max_loss) + _log_terms(1 - midpoint, 1 - max_loss)
        is_rare = divergence >= required_divergence
        low = np.where(is_rare, midpoint, low)
        high = np.where(is_rare, high, midpoint)
    # kl(0, a) = -ln(1 - a): where that is too little, not even a sum of 0 is rare.
    return np.where(-np.log1p(-max_loss) >= required_divergence, low * totals, -1.0)


def pac_tail_test(
    sizes: IntArray, m: int, level: Fraction, delta: float, counts_per_sample: int = 1
) -> TailTest:
    """Return the test count_S >= c(N_S), which N_S samples covered less often rarely pass.

    Exact for equal sizes. For unequal ones N_S is known only within a range for each number j of
    removals. So the slack c(N) - level N is bounded by a_j + b N over that range, and b n_k is
    charged to client k (docs/theory.md, section 6, "Computation").

    Parameters
    ----------
    sizes : ndarray of shape (K,)
        n_k.
    m : int
        The largest number of malicious clients.
    level : Fraction
        The target coverage.
    delta : float
        The probability to fail.
    counts_per_sample : int, default=1
        How many counts make a sample; several for losses.

    Returns
    -------
    TailTest
        p / q is level + b, `min_excess` of shape (m + 1,) is a_j times q, in counts.
    """
    m = check_max_malicious(m, len(sizes))
    min_totals, max_totals = _ranges_of_totals(sizes, m)
    n_samples = int(np.asarray(sizes, dtype=np.int64).sum())
    smallest_total = int(min_totals[-1])
    step = -(-(n_samples - smallest_total + 1) // _MAX_TOTALS)
    is_exact = bool((min_totals == max_totals).all())
    totals = max_totals
    if not is_exact:
        totals = np.arange(smallest_total, n_samples + step, step)

    if counts_per_sample == 1:
        critical = critical_counts(totals, level, delta)
    else:
        critical = critical_loss_drops(totals, level, delta, counts_per_sample)

    # Numerators over one denominator, the slope b among them: level and b are multiples of 1 / q.
    q = level.denominator * _SLOPE_DENOMINATOR
    p = level.numerator * _SLOPE_DENOMINATOR
    if not is_exact:
        slack = critical / counts_per_sample - float(level) * totals  # in samples
        rise = slack[-1] - slack[0]
        slope = float(rise / (totals[-1] - totals[0]))
        p += max(0, round(slope * _SLOPE_DENOMINATOR)) * level.denominator

    largest = 2 * q * counts_per_sample * (n_samples + step + 1)
    critical_numerators = q * as_integers(critical, largest)
    # (T,) for each total q c(N) - p N, in counts; the largest in a range of totals is a_j q.
    min_excess = critical_numerators - p * counts_per_sample * as_integers(totals, largest)
    if not is_exact:
        # c(N + i) <= c(N) + i: between the totals looked at the slack grows by < 1 a sample.
        min_excess = min_excess + max(0, q - p) * counts_per_sample * (step - 1)
        # The range of each j, widened to totals that were looked at.
        first_rows = (min_totals - totals[0]) // step
        stop_rows = (max_totals - totals[0] + step) // step
        min_excess = _maxima_of_ranges(min_excess, first_rows, stop_rows)
    return TailTest(p, q, min_excess)


def _ranges_of_totals(sizes: IntArray, m: int) -> tuple[IntArray, IntArray]:
    """Return (m + 1,) the least and the largest N_S of all S that leave out j clients.

    Parameters
    ----------
    sizes : ndarray of shape (K,)
        n_k, in any order.
    m : int
        j is from 0 to m.
    """
    ordered = np.sort(np.asarray(sizes, dtype=np.int64))
    n_removed = np.arange(m + 1)
    n_samples_of_smallest = np.concatenate([[0], np.cumsum(ordered)])
    min_totals = n_samples_of_smallest[len(ordered) - n_removed]
    max_totals = int(n_samples_of_smallest[-1]) - n_samples_of_smallest[n_removed]
    return min_totals, max_totals


def _maxima_of_ranges(values: IntArray, first_rows: IntArray, stop_rows: IntArray) -> IntArray:
    """Return (m + 1,) the largest of values[first:stop] for each pair.

    Parameters
    ----------
    values : ndarray of shape (T,)
        Whole numbers.
    first_rows, stop_rows : ndarray of shape (m + 1,)
        first < stop <= T; ranges may overlap.
    """
    bounds = np.stack([first_rows, stop_rows], axis=1).ravel()
    # reduceat takes no bound beyond the last value, hence another one; every second result is
    # that of what lies between two ranges.
    return np.maximum.reduceat(np.append(values, values[-1:]), bounds)[::2]


def noisy_size_tail_test(
    bounds: CountBounds, m: int, level: Fraction, delta: float, noise_delta: float
) -> TailTest:
    """Return the same test where N_S is known only up to noise.

    It asks for the largest slack c(N) - level N of all totals N that the noise allows. Only for
    counts of samples: losses never have hidden sizes.

    Parameters
    ----------
    bounds : CountBounds
        For the noisy sizes.
    m : int
        The largest number of malicious clients.
    level : Fraction
        The target coverage.
    delta : float
        The probability to fail that is for sampling.
    noise_delta : float
        The probability to fail that is for noise. Half of it is for the sizes, a quarter for the
        least and for the largest total each; the other half is for the counts, which the caller
        allows for.
    """
    m = check_max_malicious(m, len(bounds.sizes))
    p = level.numerator
    q = level.denominator
    n_samples = int(bounds.sizes.sum())
    min_totals = bounds.min_n_samples(np.array([0, m]), noise_delta / 4).astype(int)
    # N is at least min_of_all, so the noise is at most n_samples - min_of_all; by symmetry N is at
    # most n_samples plus as much. Leaving out clients of negative noisy sizes adds to it.
    min_of_all = int(min_totals[0])
    negative_sizes = int(sum_of_largest(-bounds.sizes[None, :], m)[0])
    lowest = max(1, int(min_totals[1]))
    highest = max(lowest, 2 * n_samples - min_of_all + negative_sizes)
    step = -(-(highest - lowest + 1) // _MAX_TOTALS)
    totals = np.append(np.arange(lowest, highest, step), highest)

    # c(N + i) <= c(N) + i: between the totals looked at the slack grows by < 1 - level a sample.
    critical = critical_counts(totals, level, delta)
    slack = [q * c - p * n for c, n in zip(critical.tolist(), totals.tolist(), strict=True)]
    min_excess = max(slack) + (q - p) * (step - 1)
    return TailTest(p, q, np.array([min_excess]))


def pac_threshold(
    bounds: CountBounds, level: Fraction, max_malicious: int, delta: float
) -> int | None:
    """Return the first bin that covers at `level` with probability >= 1 - delta; None: infinite.

    There count_S(t) >= c(N_S, delta) for every S that leaves out at most m clients (docs/theory.md,
    section 6, formula (4)). Where reports hold noise a fifth of delta is for the noise.

    Parameters
    ----------
    bounds : CountBounds
        The counts.
    level : Fraction
        The target coverage.
    max_malicious : int
        m.
    delta : float
        The probability to fail.
    """
    noise_delta, sampling_delta = bounds.split_delta(check_delta(delta), NOISE_DELTA_FRACTION)
    if bounds.sizes_known:
        test = pac_tail_test(
            bounds.sizes, max_malicious, level, sampling_delta, bounds.counts_per_sample
        )
    else:
        test = noisy_size_tail_test(bounds, max_malicious, level, sampling_delta, noise_delta)
        noise_delta = noise_delta / 2  # the other half is that of the sizes

    def accepted(bins: IndexArray) -> BoolArray:
        return accepted_bins(bounds, bins, test, max_malicious, noise_delta)

    return first_lastingly_accepted(bounds, accepted)


def kl_lower(fraction: FloatArray, radius: float | FloatArray) -> FloatArray:
    """Return the least p <= fraction with kl(fraction, p) <= radius, from below, by bisection.

    Docs/theory.md, section 9: lo(a, x).

    Parameters
    ----------
    fraction : ndarray
        a, fractions in [0, 1], of any shape.
    radius : float or ndarray
        x, positive; broadcast against the fractions.

    Returns
    -------
    ndarray
        In the shape of `fraction`, rounded down, so never too large; 0 where a is 0.
    """
    fraction = np.asarray(fraction, dtype=float)
    complement = 1 - fraction
    low = np.zeros_like(fraction)
    high = fraction
    # kl(a, p) = a ln a + (1 - a) ln(1 - a) - a ln p - (1 - a) ln(1 - p)
    negative_entropy = _log_terms(fraction, 1.0) + _log_terms(complement, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        for _ in range(_N_KL_STEPS):
            midpoint = (low + high) / 2
            divergence = negative_entropy - fraction * np.log(midpoint)
            divergence = divergence - complement * np.log(1 - midpoint)
            is_too_far = divergence > radius
            low = np.where(is_too_far, midpoint, low)
            high = np.where(is_too_far, high, midpoint)
    return np.asarray(np.where(fraction > 0, low, 0.0))


def _log_terms(x: FloatArray, y: float) -> FloatArray:
    """Return x ln(x / y) of the shape of x, 0 where x is 0; y is positive."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(x > 0, x * np.log(x / y), 0.0)


def kl_divergence(a: FloatArray, p: FloatArray) -> FloatArray:
    """Return kl(a, p) = a ln(a / p) + (1 - a) ln((1 - a) / (1 - p)); 0 ln 0 is 0.

    Parameters
    ----------
    a, p : ndarray
        Fractions of one shape; what rounding brought outside of [0, 1] is clipped. p is held away
        from 0 and 1, so that the result is finite.
    """
    from scipy.special import rel_entr

    a = np.clip(a, 0, 1)
    p = np.clip(p, _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
    return np.maximum(rel_entr(a, p) + rel_entr(1 - a, 1 - p), 0.0)


def is_miss_rate_small(
    miss_rate: FloatArray, effective_size: FloatArray, alpha: float, delta: float
) -> BoolArray:
    """Return whether so small a miss rate has a probability <= delta if the true one is > alpha.

    That is n_eff (alpha - u + u ln(u / alpha)) >= ln(1 / delta) and u <= alpha (docs/theory.md,
    section 11, theorem T).

    Parameters
    ----------
    miss_rate : ndarray
        u, an upper bound on the miss rate among the benign clients' samples.
    effective_size : ndarray
        n_eff.
    alpha : float
        The target miss rate.
    delta : float
        The probability to fail.
    """
    exponent = alpha - miss_rate + _log_terms(miss_rate, alpha)
    is_rare = effective_size * exponent >= np.log(1 / delta)
    return np.asarray((miss_rate <= alpha) & is_rare)
