"""Tails: what a sum must reach so that chance alone rarely brings it there."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from robfcp.federation import Federation
from robfcp.guarantees import _worst_case
from robfcp.guarantees._conformal_rank import rank_correction
from robfcp.guarantees._worst_case import CountBounds, FloatArray, IntArray, TailTest, as_integers

_TOTALS = 4096  # how many benign totals N_S are looked at one by one
_SLOPE = 1024  # the slope of the slack is rounded to a multiple of 1/1024
_STEPS = 50  # of bisection


def marginal_tail_test(level: Fraction, n_clients: int, unit: int = 1) -> TailTest:
    """count_S >= level N_S + 1: what the swap lemma needs to cover on average."""
    p, q = level.numerator, level.denominator
    return TailTest(p, q, np.array([int(unit * rank_correction(level, n_clients) * q)]))


def min_count(totals: IntArray, probability: float, delta: float, low: IntArray) -> IntArray:
    """The least c in low..N + 1 with P(Bin(N, probability) >= c) <= delta, by bisection."""
    from scipy.special import betainc

    low, high = low.copy(), totals + 1
    while (open_ := low < high).any():
        middle = (low + high) // 2
        rare = betainc(np.maximum(middle, 1), totals - middle + 1, probability) <= delta
        rare &= middle > 0
        high = np.where(open_ & rare, middle, high)
        low = np.where(open_ & ~rare, middle + 1, low)
    return high


def critical_counts(totals: IntArray, level: Fraction, delta: float) -> IntArray:
    """c(N): the least c >= level N + 1 with P(Bin(N, level) >= c) <= delta; at most N + 1."""
    p, q = level.numerator, level.denominator
    totals = np.asarray(totals, dtype=np.int64)
    wide = as_integers(totals, q * (int(totals.max(initial=0)) + 1))
    low = (-((-p * wide) // q) + 1).astype(np.int64)
    return min_count(totals, float(level), delta, low)


def critical_loss_drops(totals: IntArray, level: Fraction, delta: float, unit: int) -> IntArray:
    """The least summed gain, in parts of 1/unit, that N losses of mean above 1 - level rarely have.

    N independent losses in [0, 1] of mean above a sum to at most R with a chance of at most
    exp(-N kl(R/N, a)) (Hoeffding 1963) and e P(Bin(N, a) <= ceil R) (Bentkus 2004): the larger R
    that either allows.
    """
    totals = np.asarray(totals, dtype=np.int64)
    miss, need = float(1 - level), np.log(1 / delta) / np.maximum(totals, 1)
    low, high = np.zeros(len(totals)), np.full(len(totals), miss)
    for _ in range(60):
        middle = (low + high) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            kl = np.where(middle > 0, middle * np.log(middle / miss), 0.0)
            kl += (1 - middle) * np.log((1 - middle) / (1 - miss))
        far = kl >= need
        low, high = np.where(far, middle, low), np.where(far, high, middle)
    allowed = np.where(-np.log1p(-miss) >= need, low * totals, -1.0)
    # the least count of gains is that of a binomial: N - R is least_count at delta / e
    whole = totals - min_count(totals, float(level), delta / np.e, np.zeros_like(totals))
    best = np.maximum(np.maximum(np.floor(allowed * unit) / unit, whole), -1.0)
    gains = np.ceil((totals - best) * unit - 1e-6).astype(np.int64)
    floor = np.array([-((-(unit * level) * int(n)) // 1) for n in totals], dtype=np.int64) + 1
    return np.minimum(np.maximum(gains, floor), unit * totals + 1)


def pac_tail_test(
    sizes: IntArray, m: int, level: Fraction, delta: float, unit: int = 1
) -> TailTest:
    """count_S >= c(N_S), which N_S samples covered less often rarely reach.

    Exact for equal sizes. For unequal ones N_S is known only within a range for each number j of
    removals, so the slack c(N) - level N is bounded by a_j + b N over that range and b n_k joins
    client k's side. Losses have `unit` counts a sample.
    """
    m = _worst_case.check_max_malicious(m, len(sizes))
    ordered, removed = np.sort(np.asarray(sizes, dtype=np.int64)), np.arange(m + 1)
    running = np.concatenate([[0], np.cumsum(ordered)])
    total = int(running[-1])
    most, least = total - running[removed], running[len(ordered) - removed]
    scale, rate = level.denominator * _SLOPE, level.numerator * _SLOPE
    step = -(-(total - int(least[-1]) + 1) // _TOTALS)
    known = bool((least == most).all())
    totals = most if known else np.arange(int(least[-1]), total + step, step)
    if unit == 1:
        critical = critical_counts(totals, level, delta)
    else:
        critical = critical_loss_drops(totals, level, delta, unit)
    if not known:  # the slope of the slack between the ends of the range, never negative
        slack = critical / unit - float(level) * totals
        slope = round(float((slack[-1] - slack[0]) / (totals[-1] - totals[0])) * _SLOPE)
        rate += max(0, slope) * level.denominator
    largest = 2 * scale * unit * (total + step + 1)
    needed = scale * as_integers(critical, largest) - rate * unit * as_integers(totals, largest)
    if not known:
        # c(N + i) <= c(N) + i: between the totals looked at the slack grows by < 1 a sample
        needed = needed + max(0, scale - rate) * unit * (step - 1)
        ranges = np.stack([least - totals[0], most - totals[0] + step], axis=1).ravel() // step
        needed = np.maximum.reduceat(np.append(needed, needed[-1:]), ranges)[::2]
    return TailTest(rate, scale, needed)


def noisy_size_tail_test(
    counts: CountBounds, m: int, level: Fraction, delta: float, noise: float
) -> TailTest:
    """The same where N_S is known up to noise too: the largest slack c(N) - level N it may need."""
    m = _worst_case.check_max_malicious(m, len(counts.sizes))
    p, q, total = level.numerator, level.denominator, int(counts.sizes.sum())
    certain, least = counts.smallest_totals(np.array([0, m]), noise / 4).astype(int).tolist()
    negative = int(_worst_case.sum_of_largest(-counts.sizes[None, :], m)[0])
    least = max(1, least)
    most = max(least, 2 * total - certain + negative)
    step = -(-(most - least + 1) // _TOTALS)
    totals = np.append(np.arange(least, most, step), most)
    # c(N + i) <= c(N) + i: between the totals looked at the slack grows by < 1 - level a sample
    critical = critical_counts(totals, level, delta).tolist()
    slack = max(q * c - p * n for c, n in zip(critical, totals.tolist(), strict=True))
    return TailTest(p, q, np.array([slack + (q - p) * (step - 1)]))


def pac_threshold(
    federation: Federation, level: Fraction, max_malicious: int, delta: float
) -> int | None:
    """The first edge that, with probability >= 1 - delta, covers at `level`; None = infinite.

    Requires count_S(t) >= c(N_S, delta) for every S that leaves out at most m clients. Where
    reports hold noise a fifth of delta is the noise's.
    """
    counts = _worst_case.count_bounds(federation)
    noise, sampling = counts.split(_worst_case.check_delta(delta), _worst_case.NOISE_DELTA_FRACTION)
    if counts.sizes_known:
        tail = pac_tail_test(counts.sizes, max_malicious, level, sampling, counts.unit)
    else:
        tail, noise = noisy_size_tail_test(counts, max_malicious, level, sampling, noise), noise / 2
    return counts.search(lambda edges: counts.accepted(edges, tail, max_malicious, noise))


def kl_lower(fraction: FloatArray, radius: float | FloatArray) -> FloatArray:
    """The least p <= share with kl(share, p) <= radius, from below, by bisection."""
    fraction = np.asarray(fraction, dtype=float)
    rest, low, high = 1 - fraction, np.zeros_like(fraction), fraction
    with np.errstate(divide="ignore", invalid="ignore"):
        own = sum(np.where(x > 0, x * np.log(x), 0.0) for x in (fraction, rest))
        for _ in range(_STEPS):
            middle = (low + high) / 2
            far = own - fraction * np.log(middle) - rest * np.log(1 - middle) > radius
            low, high = np.where(far, middle, low), np.where(far, high, middle)
    return np.asarray(np.where(fraction > 0, low, 0.0))


def kl_divergence(a: FloatArray, p: FloatArray) -> FloatArray:
    """a ln(a/p) + (1-a) ln((1-a)/(1-p)), 0 where a is 0 or 1 as it should be."""
    from scipy.special import rel_entr

    a, p = np.clip(a, 0, 1), np.clip(p, 1e-15, 1 - 1e-15)
    return np.maximum(rel_entr(a, p) + rel_entr(1 - a, 1 - p), 0.0)


def is_miss_rate_small(
    share: FloatArray, effective: FloatArray, alpha: float, delta: float
) -> NDArray[np.bool_]:
    """Whether a miss share u <= alpha has n_eff (alpha - u + u ln(u/alpha)) >= ln(1/delta).

    So small a share has a chance of at most delta where the true one is above alpha.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = alpha - share + np.where(share > 0, share * np.log(share / alpha), 0.0)
    return np.asarray((share <= alpha) & (effective * gain >= np.log(1 / delta)))
