"""A rule to compare with: FedCP-QQ, where sites send one quantile and the server takes one."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from robfcp.federation import Federation

FEDCP_QQ = "fedcp-qq"
ALIKE = 1e-3  # excess coverages this close count as equal
LEVELS = 16  # local orders tried at most
NODES = 64  # of the quadrature where the quantiles' distribution rises

Array = NDArray[np.float64]


def fedcp_qq_index(federation: Federation, level: Fraction) -> int | None:
    """The bin of the threshold; None (every label) where no pair of orders reaches the level.

    Site k sends its l_k-th smallest score, the server takes the j-th smallest of what it gets. The
    orders are those of `chosen_orders`. Nobody is left out, and nothing is said about liars.

    References
    ----------
    Humbert, Le Bars, Bellet and Arlot (2023), "One-shot federated conformal prediction", ICML.
    """
    whole = federation.projected()
    orders = chosen_orders(tuple(int(n) for n in federation.sizes), level)
    if orders is None:
        return None
    local, place = orders
    reached = whole.cumulative() >= np.array(local)[:, None]
    return int(np.sort(reached.argmax(axis=1))[place - 1])


@lru_cache(maxsize=256)
def chosen_orders(sizes: tuple[int, ...], level: Fraction) -> tuple[tuple[int, ...], int] | None:
    """(l_1..l_K) and j whose expected coverage exceeds the level least.

    For samples of one continuous distribution the coverage of site k's l-th smallest of n_k scores
    is Beta(l, n_k - l + 1), and that of the j-th smallest of K such is known. Equal sizes share one
    l; unequal ones take l_k = ceil(tau (n_k + 1)) for one tau. Of the pairs whose excess is within
    ALIKE of the least, the one with j nearest to (K + 1)/2: the middle is what liars move least, so
    this is the kindest reading of the rule.
    """
    n, target = np.array(sizes), float(level)
    size, pairs = int(np.median(n)), []
    deviation = np.sqrt(target * (1 - target) / (size + 2))
    every = np.arange(1, size + 1) / (size + 1)
    near = every[np.abs(every - target) <= max(deviation, 2 / (size + 1))]
    chosen = near if len(near) else every  # beyond a deviation of the target j nears 1 or K
    for tau in chosen[np.unique(np.linspace(0, len(chosen) - 1, LEVELS).round().astype(int))]:
        local = np.clip(np.ceil(tau * (n + 1) - 1e-9).astype(np.int64), 1, n)
        coverage = expected_coverages(local, n)
        place = int(np.searchsorted(coverage, target - 1e-12)) + 1
        if place <= len(n):
            pairs.append((coverage[place - 1] - target, place, local))
    if not pairs:
        return None
    least = min(pair[0] for pair in pairs)
    middle = (len(n) + 1) / 2
    close = [pair for pair in pairs if pair[0] <= least + ALIKE]
    _, place, local = min(close, key=lambda pair: (abs(pair[1] - middle), pair[0]))
    return tuple(local.tolist()), place


def expected_coverages(local: NDArray[np.int64], sizes: NDArray[np.int64]) -> Array:
    """(K,) E of the j-th smallest of independent Beta(l_k, n_k - l_k + 1), j = 1..K, rising.

    E V_(j) = integral of P(fewer than j of the V_k are at or below u) du, by Gauss and Legendre.
    """
    from scipy.special import betainc

    mean = local / (sizes + 1)
    reach = 6 * np.sqrt(np.max(mean * (1 - mean) / (sizes + 2)))
    cuts = np.unique(np.clip([0, mean.min() - reach, mean.max() + reach, 1], 0, 1))
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    width = np.diff(cuts)
    u = (cuts[:-1, None] + width[:, None] * (nodes + 1) / 2).ravel()
    du = (width[:, None] * weights / 2).ravel()
    below: Array = np.zeros((len(local) + 1, len(u)))  # P(i of the V so far are <= u)
    below[0] = 1
    kinds, number = np.unique(np.stack([local, sizes]), axis=1, return_counts=True)
    for (order, size), times in zip(kinds.T, number, strict=True):
        chance = betainc(order, size - order + 1, u)
        for _ in range(times):
            below[1:] = below[1:] * (1 - chance) + below[:-1] * chance
            below[0] *= 1 - chance
    fewer: Array = np.cumsum(below, axis=0)[:-1] @ du
    return fewer
