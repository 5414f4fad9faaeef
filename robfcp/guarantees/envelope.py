"""The envelope: where the benign clients' pooled share at or below an edge must lie."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp._util.exact import edges_first, integers, sum_of_largest
from robfcp.guarantees.budgets import check_budget

_BLOCK = 2**17  # counts worked on at a time, so that they stay in the cache


def envelope(
    below: NDArray[np.int64], sizes: NDArray[np.int64], m: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper end of the benign share at each edge if at most m clients lie.

    L, U = min, max over removals R, |R| <= m, of sum_{k not in R} c_k / sum_{k not in R} n_k.
    `below` is (K,) for one edge (the ends are then 0-d) or (K, E); the ends are exact ratios.
    """
    sizes = np.asarray(sizes, dtype=np.int64)
    m = check_budget(m, len(sizes))
    shape = np.shape(below)[1:]
    counts = edges_first(below)
    low, low_total = _least_share(counts, sizes, m)
    above, above_total = _least_share(sizes - counts, sizes, m)
    return (low / low_total).reshape(shape), ((above_total - above) / above_total).reshape(shape)


def _least_share(
    counts: NDArray[np.int64], sizes: NDArray[np.int64], m: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Numerator and denominator (E,) of the least share over removals of at most m clients."""
    n_clients, total = len(sizes), int(sizes.sum())
    if m == 0 or (sizes == sizes[0]).all():
        kept = counts.sum(axis=1) - sum_of_largest(counts, m)
        weight = total - m * int(sizes[0]) if m else total
        return kept.astype(float), np.full(len(counts), float(weight))
    wide = integers(sizes, int(sizes.max()) * total * 2)
    step = max(1, _BLOCK // n_clients)
    blocks = [
        _dinkelbach(counts[start : start + step].astype(wide.dtype, copy=False), wide, m)
        for start in range(0, len(counts), step)
    ]
    numerators, denominators = zip(*blocks, strict=True)
    return np.concatenate(numerators).astype(float), np.concatenate(denominators).astype(float)


def _dinkelbach(
    counts: NDArray[Any], sizes: NDArray[Any], m: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Remove the <= m largest positive c_k - lambda n_k, lambda the share left, until it rests."""
    numerator, denominator = counts.sum(axis=1), np.full(len(counts), sizes.sum())
    totals, active = numerator.copy(), np.arange(len(counts))
    while active.size:
        here = counts[active]
        gain = here * denominator[active, None]
        gain -= numerator[active, None] * sizes
        chosen = np.argpartition(gain, -m, axis=1)[:, -m:]
        removed = np.take_along_axis(gain, chosen, axis=1) > 0
        taken = np.take_along_axis(here, chosen, axis=1)
        left = totals[active] - (taken * removed).sum(axis=1)
        weight = sizes.sum() - (sizes[chosen] * removed).sum(axis=1)
        lower = (left * denominator[active] < numerator[active] * weight).astype(bool)
        active = active[lower]
        numerator[active], denominator[active] = left[lower], weight[lower]
    return numerator, denominator
