"""The envelope: where the benign clients' pooled share at or below an edge must lie."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp._exact import check_budget, edges_first, integers, sum_of_largest


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


def smallest_benign_total(sizes: NDArray[np.int64], m: int) -> int:
    """N_min: the samples left when the m largest clients are removed."""
    return int(sizes.sum() - sum_of_largest(np.asarray(sizes)[None, :], m)[0])


def _least_share(
    counts: NDArray[np.int64], sizes: NDArray[np.int64], m: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Numerator and denominator (E,) of the least share over removals of at most m clients."""
    n_clients, total = len(sizes), int(sizes.sum())
    if (sizes == sizes[0]).all():
        kept = counts.sum(axis=1) - sum_of_largest(counts, m)
        return kept.astype(float), np.full(len(counts), float(sizes[0]) * (n_clients - m))
    wide = integers(sizes, int(sizes.max()) * total * 2)
    numerator: NDArray[Any] = counts.sum(axis=1).astype(wide.dtype)
    denominator: NDArray[Any] = np.full(len(counts), total, dtype=wide.dtype)
    active = np.arange(len(counts)) if m else np.arange(0)
    while active.size:
        numerator[active], denominator[active], moved = _remove(
            counts[active], wide, m, numerator[active], denominator[active]
        )
        active = active[moved]
    return numerator.astype(float), denominator.astype(float)


def _remove(
    counts: NDArray[np.int64],
    sizes: NDArray[Any],
    m: int,
    numerator: NDArray[Any],
    denominator: NDArray[Any],
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
    """One step of Dinkelbach: remove the <= m largest positive c_k - lambda n_k; has it moved?"""
    gain = counts * denominator[:, None] - numerator[:, None] * sizes
    chosen = np.argpartition(gain, -m, axis=1)[:, -m:]
    removed = np.take_along_axis(gain, chosen, axis=1) > 0
    taken = np.where(removed, np.take_along_axis(counts, chosen, axis=1), 0).sum(axis=1)
    weight = np.where(removed, sizes[chosen], 0).sum(axis=1)
    new_numerator = counts.sum(axis=1) - taken
    new_denominator = sizes.sum() - weight
    moved = new_numerator * denominator < numerator * new_denominator
    return (
        np.where(moved, new_numerator, numerator),
        np.where(moved, new_denominator, denominator),
        moved,
    )
