"""Where a sorted sample falls into an ordinary part and a group that stands out above it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

FLOOR = 0.4  # least scale: that of log X^2 on some 16 bins when only noise is at work
LOWEST = 3.0  # values below median / LOWEST count as that, so that nobody widens the scale at will
SAMPLING = 8.0  # variance of an oddity by sampling noise, over the oddity: 4 times its mean weight
LEEWAY = 0.7  # how much a group may spread beyond noise
DIVERSITY = 2.0  # how much more than the others a group may differ within
CLEAR = 1.5  # a gap beyond which its diversity no longer matters
PLAIN = 40.0  # a statistic beyond which 1 and 4 take the place of LEEWAY and DIVERSITY
NULL_CLIENTS = 10  # the null of 10 clients serves larger federations too
MANY = 1000
DRAWS = 1999
_LEAST_LOG = -300.0  # clients that do not differ at all have the logarithm of next to nothing
_DECILES = np.log(9)  # q90 - q10 of an exponential variable of scale 1
_NORMAL_DECILES = 2.563  # and of a standard normal one

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Gap:
    """The most conspicuous group: its size, gap, statistic and the chance of one like it.

    `coherent` says for the upper groups of 1, 2, ... whether they could be one.
    """

    size: int
    gap: float
    statistic: float
    p_value: float
    coherent: NDArray[np.bool_]


def most_conspicuous(values: Array, points: Array, sizes: Array) -> Gap:
    """The upper minority whose gap from the rest is widest for its size.

    With L the sorted logarithms, a group of i has S_i = i (L_(K-i+1) - L_(K-i)) / s_i, where
    s_i = (q90 - q10) / log 9 of the K - i others. If the logarithms have an exponential upper tail,
    heavier than that of honest clients, i (L_(K-i+1) - L_(K-i)) is exponential with its scale for
    every i (Renyi); the p-value of max_i S_i is taken under this null by simulation, with at most
    NULL_CLIENTS clients: among more the coherence below keeps honest groups small. Among more than
    MANY no group of honest clients is small, and the p-value is that of all their gaps.

    Those who lie alike are alike, while honest clients fade out; else liars who huddle at one end
    of the honest range would have the rest thrown out. So a group is passed over when it spreads
    (q90 - q10 of L) by more than LEEWAY beyond what noise explains, or when its points (of noise
    variance 1 / size) differ DIVERSITY times as much as the others' and its gap is below CLEAR.
    """
    n = len(values)
    if n < 3:
        return Gap(0, 0.0, 0.0, 1.0, np.ones(1, dtype=bool))
    order = np.argsort(values, kind="stable")
    logs = _logarithms(values[order], float(np.median(values)))
    statistics, gaps = (rows[0] for rows in _statistics(logs[None, :]))
    spread, diversity = _excess_spread(logs), _diversity(points[order], sizes[order])
    coherent = (spread <= LEEWAY) & ((diversity <= DIVERSITY) | (gaps >= CLEAR))
    coherent |= (statistics >= PLAIN) & (spread <= 1) & (diversity <= 4)
    considered = np.where(coherent, statistics, 0.0)
    best = int(np.argmax(considered))
    statistic = float(considered[best])
    return Gap(best + 1, float(gaps[best]), statistic, _p_value(n, statistic), coherent)


def tail_p_values(values: Array, ordinary: NDArray[np.bool_]) -> Array:
    """(K,) chance of a value as large among the ordinary ones.

    Their ranks up to the 90% quantile; beyond it the exponential tail of the logarithms,
    0.1 exp(-(L - q90) / s).
    """
    reference = np.sort(values[ordinary])
    ranks = np.searchsorted(reference, values, side="left")
    shares = np.minimum((1 + len(reference) - ranks) / (1 + len(reference)), 1)
    middle = float(np.median(reference))
    low, high = np.quantile(_logarithms(reference, middle), [0.1, 0.9])
    scale = max((high - low) / _DECILES, FLOOR)
    beyond = _logarithms(values, middle) - high
    return np.where(beyond > 0, np.minimum(shares, 0.1 * np.exp(-beyond / scale)), shares)


def _logarithms(values: Array, middle: float) -> Array:
    result: Array = np.log(np.maximum(values, max(middle / LOWEST, np.finfo(float).tiny)))
    return result


def _statistics(logs: Array) -> tuple[Array, Array]:
    """(R, m) S_i and gaps for i = 1..m, m the largest minority, of R sorted samples (R, K)."""
    n = logs.shape[1]
    above = _minorities(n)
    gaps = logs[:, n - above] - logs[:, n - above - 1]
    last = n - above - 1
    spread = _order(logs, 0.9 * last) - _order(logs, 0.1 * last)
    return above * gaps / np.maximum(spread / _DECILES, FLOOR), gaps


def _excess_spread(logs: Array) -> Array:
    """(m,) q90 - q10 of each upper group, beyond the sampling noise of values that large."""
    n = len(logs)
    above = _minorities(n)
    first = n - above
    low, middle, high = (_order(logs[None, :], first + q * (above - 1))[0] for q in (0.1, 0.5, 0.9))
    noise = _NORMAL_DECILES * np.sqrt(SAMPLING * np.exp(-np.maximum(middle, _LEAST_LOG)))
    result: Array = np.sqrt(np.maximum((high - low) ** 2 - noise**2, 0))
    return result


def _diversity(points: Array, sizes: Array) -> Array:
    """(m,) weighted variance within each upper group over that within the others."""
    n = len(points)
    above = _minorities(n)
    weights = np.cumsum(sizes)
    linear = np.cumsum(sizes[:, None] * points, axis=0)
    squares = np.cumsum(sizes * np.einsum("kb,kb->k", points, points))

    def variance(weight: Array, total: Array, square: Array, number: NDArray[np.intp]) -> Array:
        within = square - np.einsum("kb,kb->k", total, total) / weight
        result: Array = np.maximum(within, 0) / np.maximum(number - 1, 1)
        return result

    cut = n - above - 1
    lower = variance(weights[cut], linear[cut], squares[cut], cut + 1)
    upper = variance(
        weights[-1] - weights[cut], linear[-1] - linear[cut], squares[-1] - squares[cut], above
    )
    result: Array = upper / np.maximum(lower, 1e-12)
    return result


def _minorities(n: int) -> NDArray[np.intp]:
    return np.arange(1, (n - 1) // 2 + 1)


def _order(logs: Array, position: Array) -> Array:
    """The order statistics at fractional positions, interpolated."""
    whole = np.floor(position).astype(np.intp)
    part = position - whole
    above = np.minimum(whole + 1, logs.shape[1] - 1)
    result: Array = (1 - part) * logs[:, whole] + part * logs[:, above]
    return result


def _p_value(n: int, statistic: float) -> float:
    """P(max_i S_i >= statistic) under the null.

    Among many s_i is its own limit f_i, that of an exponential sample without its upper share
    i / n, and the S_i are independent: 1 - prod_i (1 - exp(-statistic f_i)).
    """
    if n <= MANY:
        null = _null(min(n, NULL_CLIENTS))
        return float((1 + np.count_nonzero(null >= statistic)) / (1 + len(null)))
    share = 1 - _minorities(n) / n
    spread = np.log1p(-0.1 * share) - np.log1p(-0.9 * share)
    rates = np.maximum(spread / _DECILES, FLOOR)
    with np.errstate(divide="ignore"):  # a statistic of 0
        return float(-np.expm1(np.log1p(-np.exp(-statistic * rates)).sum()))


@lru_cache(maxsize=NULL_CLIENTS)
def _null(n: int) -> Array:
    """Simulated max_i S_i of n exponential logarithms; the same draws every time."""
    logs = np.sort(np.random.default_rng(n).exponential(size=(DRAWS, n)), axis=1)
    lowest = np.median(logs, axis=1, keepdims=True) - np.log(LOWEST)
    null: Array = _statistics(np.maximum(logs, lowest))[0].max(axis=1)
    null.setflags(write=False)
    return null
