"""Whole-number arithmetic for comparisons that must not be decided by rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SAFE = 2**62


def integers(values: NDArray[Any], largest: int) -> NDArray[Any]:
    """The values as int64, or as Python integers where results up to `largest` would overflow."""
    return np.asarray(values).astype(np.int64 if largest < _SAFE else object)


def edges_first(below: NDArray[np.int64]) -> NDArray[np.int64]:
    """(E, K) contiguous counts from (K,) counts at one edge or (K, E) at several."""
    counts = np.asarray(below)
    return counts[None, :] if counts.ndim == 1 else np.ascontiguousarray(counts.T)


def sum_of_largest(values: NDArray[Any], number: int) -> NDArray[Any]:
    """Each row's sum of its `number` largest entries, negative ones counted as 0."""
    if number == 0:
        return np.zeros(values.shape[0], dtype=values.dtype)
    position = values.shape[1] - number
    largest = np.partition(values, position, axis=1)[:, position:] if position else values
    return np.asarray(np.maximum(largest, 0).sum(axis=1))


def first_edge(n_edges: int, holds: Callable[[int], bool]) -> int | None:
    """The first edge at which a condition that stays true once true holds; None if none."""
    if not n_edges or not holds(n_edges - 1):
        return None
    low, high = 0, n_edges - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
