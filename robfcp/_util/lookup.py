"""Where values stand among rising edges, without a search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST_COMPARED = 3  # edges a value may have to be compared with
_SHIFT = 46  # leaves a float's exponent and six bits of its mantissa: buckets of about 1%
_LEAST = 2.0**-30  # below it one bucket
_BLOCK = 2**14  # values at a time, so that they stay in the cache
_BUCKETS = 4  # an edge, where they are of equal width
_MOST_EDGES = 2**17  # beyond them the table is larger than a search is slow

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Key = Callable[[Floats], Whole]


class Lookup:
    """#{edges < x} of many x, exactly: a table over buckets, then a few comparisons.

    Buckets are given by a key that never falls as x rises. Edges whose key is smaller than that of
    x are smaller, those with a larger key are not; only edges of the same bucket are compared.

    Parameters
    ----------
    inner
        The rising edges.
    key
        The bucket of each value, from 0.
    """

    def __init__(self, inner: Floats, key: Key) -> None:
        keys = key(inner)
        self._key = key
        self._inner = np.append(inner, np.inf)
        inside = np.bincount(keys)
        self.compared = int(inside.max())
        self._smaller = np.append(0, np.cumsum(inside))
        self._last = len(inside)

    def __call__(self, values: NDArray[Any]) -> NDArray[np.intp]:
        found = np.empty(values.shape, dtype=np.intp)
        flat, out = values.reshape(-1), found.reshape(-1)
        for here in _blocks(len(flat)):
            x = np.asarray(flat[here], dtype=np.float64)
            place = self._smaller[np.minimum(self._key(x), self._last)]
            for _ in range(self.compared):
                place += x > self._inner[place]
            out[here] = place
        return found


def _blocks(number: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, number, _BLOCK))


def lookup(edges: Floats) -> Lookup | None:
    """A lookup among the inner ones of these edges, for values between the outer ones.

    By buckets of equal width, or finer towards both ends; None where neither fits the edges.
    """
    low, high = float(edges[0]), float(edges[-1])
    if not 4 <= len(edges) <= _MOST_EDGES or not 1e-300 < high - low < np.inf:
        return None
    for key in (_equal(low, high, _BUCKETS * len(edges)), _towards_ends(low, high)):
        found = Lookup(edges[1:-1], key)
        if found.compared <= _MOST_COMPARED:
            return found
    return None


def _equal(low: float, high: float, number: int) -> Key:
    scale = number / (high - low)

    def key(values: Floats) -> Whole:
        return ((values - low) * scale).astype(np.int64)

    return key


def _towards_ends(low: float, high: float) -> Key:
    """Buckets of about 1% of the distance to the nearer end."""
    middle = low + (high - low) / 2
    first = _bits(np.array([_LEAST * (high - low)]))[0]
    top = 2 * int(_bits(np.array([high - low]))[0] - first)

    def key(values: Floats) -> Whole:
        upper = values > middle
        step = np.maximum(_bits(np.where(upper, high - values, values - low)) - first, 0)
        return np.where(upper, top - step, step)

    return key


def _bits(values: Floats) -> Whole:
    """Of numbers from 0 on: rising with them."""
    return values.view(np.int64) >> _SHIFT
