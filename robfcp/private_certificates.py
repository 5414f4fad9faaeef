"""What private reports prove about coverage at a threshold, however it was found."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robfcp._exact import check_budget, sum_of_largest
from robfcp.certificates import kl_lower
from robfcp.federation import Federation
from robfcp.pac import check_delta
from robfcp.private_counts import PrivateCounts
from robfcp.private_thresholds import NOISE_SHARE

_STEPS = 50
_CHANCE = 0.002  # that noise exceeds its bound, for levels read off the data

Vector = NDArray[np.float64]


def private_band(
    federation: Federation, edges: NDArray[np.intp], m: int, delta: float
) -> tuple[Vector, Vector]:
    """(E,) lower and upper benign coverage, at all edges at once with probability >= 1 - delta.

    The least (greatest) share that any S can have beyond the noise of its counts, then the
    binomial bound of `coverage_band`. A fifth of delta is shared by the noise at all edges.
    """
    m = check_budget(m, federation.n_clients)
    counts = PrivateCounts(federation)
    noise_delta = NOISE_SHARE * check_delta(delta)
    n_edges = federation.grid.n_bins
    total = float(counts.sizes.sum() - sum_of_largest(counts.sizes[None, :], m)[0])
    if counts.known:
        left = right = counts.allowance(noise_delta / (2 * n_edges))
    else:
        left, right = counts.sides(noise_delta / (4 * n_edges + 1))
        total -= float(left[-1]) / 2
    if total < 1:
        return np.zeros(len(edges)), np.ones(len(edges))
    below, above = counts.lowest[:, edges], 2 * counts.sizes[:, None] - counts.highest[:, edges]
    low = least_shares(below.T, 2 * counts.sizes, m, left[edges], right[edges])
    high = least_shares(above.T, 2 * counts.sizes, m, right[edges], left[edges])
    radius = float(np.log(2 * n_edges / (delta - noise_delta)) / total)
    return kl_lower(low, radius), 1 - kl_lower(high, radius)


def private_survived(federation: Federation, index: int, most: int) -> tuple[float, ...]:
    """The highest level that is guaranteed on average against 0..most liars at this edge.

    min over S of (count_S - noise)/(N_S + |S|), the least at this edge and all above, less the
    chance that the noise is larger.
    """
    counts = PrivateCounts(federation)
    left, right = (counts.allowance(_CHANCE),) * 2 if counts.known else counts.sides(_CHANCE / 2)
    below = counts.lowest[:, index:].T
    return tuple(
        max(
            0.0,
            float(least_shares(below, 2 * (counts.sizes + 1), m, left[index:], right[index:]).min())
            - _CHANCE,
        )
        for m in range(most + 1)
    )


def least_shares(
    counts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    m: int,
    left: NDArray[np.int64],
    right: NDArray[np.int64],
) -> Vector:
    """(E,) x with sum_S (c_k - x n_k) >= (1 - x) left + x right, S without at most m clients.

    The largest x by bisection, 0 where there is none; every x found is proved by itself.
    """

    def proved(x: Vector) -> NDArray[np.bool_]:
        gains = counts - x[:, None] * sizes
        kept = gains.sum(axis=1) - sum_of_largest(gains, m)
        return np.asarray(kept >= (1 - x) * left + x * right)

    low, high = np.zeros(len(counts)), np.ones(len(counts))
    low[proved(high)] = 1.0
    possible = proved(np.zeros(len(counts)))
    for _ in range(_STEPS):
        middle = (low + high) / 2
        here = proved(middle)
        low, high = np.where(here, middle, low), np.where(here, high, middle)
    return np.where(possible, low, 0.0)
