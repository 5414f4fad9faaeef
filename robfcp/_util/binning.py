"""Which bin each value is in, and how many are in each: the fastest exact way for their number.

Bins are (edges[h], edges[h+1]], the first closed below. Few values are searched for. More are
looked up in a table of fine cells: one that holds no edge lies in one bin, one that holds a single
edge takes a comparison, and only the others a search. Of very many values the cells are counted,
and values themselves looked at only where their cell holds an edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp._util.lookup import Floats, lookup

MANY = 1500  # values from which on they are looked up, not searched for
VERY_MANY = 2**14  # from which on cells are counted
_BLOCK = 15 * 2**10  # values at a time: arrays stay in the cache and below what malloc maps
_MOST_EDGES = 2**14
_LEAST = 2.0**-12  # of the range: below it cells are of equal width
_BITS = 42  # leaves a float's exponent and ten bits of its mantissa

Indices = NDArray[np.intp]
Find = Callable[[NDArray[Any]], Indices]


class Binning:
    """The bins between rising edges.

    Parameters
    ----------
    edges
        (H + 1,) the outer ones may be infinite.
    """

    def __init__(self, edges: Floats) -> None:
        self._edges, self._inner = edges, edges[1:-1]
        self._searched = np.append(np.nextafter(edges[0], -np.inf), edges[1:])
        self._n_bins = len(edges) - 1

    def index(self, values: NDArray[Any]) -> Indices:
        """Each value's bin, of values that lie between the outer edges."""
        if values.size < MANY or values.dtype.itemsize > 8 or self._cells is None:
            return np.asarray(self._inner.searchsorted(values), dtype=np.intp)
        return self._cells(values.reshape(-1)).reshape(values.shape)

    def counts(self, values: NDArray[Any]) -> NDArray[np.int64] | None:
        """(H,) how many of a vector of values are in each bin; None where one is in none."""
        if values.size < MANY:
            # Below the first edge searched for or above the last is what lies in no bin.
            found = np.bincount(self._searched.searchsorted(values), None, self._n_bins + 2)
            return None if found[0] or found[-1] else found[1:-1]
        if not self._edges[0] <= values.min() or not values.max() <= self._edges[-1]:
            return None
        cells = self._cells
        if cells is not None and values.size >= VERY_MANY:
            return cells.counts(values)
        if cells is not None or values.size < self._n_bins:
            return np.bincount(self.index(values), None, self._n_bins)
        below = np.searchsorted(np.sort(values), self._inner, side="right")
        return np.diff(below, prepend=0, append=values.size)

    @cached_property
    def _cells(self) -> Cells | None:
        low, high = float(self._edges[0]), float(self._edges[-1])
        few = 4 <= len(self._edges) <= _MOST_EDGES
        if not few or not 1e-290 < high - low < np.inf:
            return None
        return Cells(self._edges)


class Cells:
    """Cells with the edges in them: 1024 for every doubling of the distance from the low end.

    A cell is the leading bits of x - low + range / 4096, which never fall as x rises: edges of
    lower cells are smaller than x, those of higher cells are not.
    """

    def __init__(self, edges: Floats) -> None:
        self._low, span = edges[0], edges[-1] - edges[0]
        self._shift = span * _LEAST
        self._first = np.int64(0)
        self._first = self._of(edges[:1])[0]
        self._number = int(self._of(edges[-1:])[0]) + 2
        self._inner = edges[1:-1]
        self._guarded = np.append(self._inner, np.inf)
        self._of_edges = self._of(self._inner)
        inside = np.bincount(self._of_edges, minlength=self._number)
        self._smaller = np.append(0, np.cumsum(inside)[:-1])
        self._mixed, self._crowded = inside > 0, inside > 1
        dense = lookup(edges) if self._crowded.any() else None
        self._dense: Find = self._inner.searchsorted if dense is None else dense

    def __call__(self, values: NDArray[Any]) -> Indices:
        """#{edges < x} of each."""
        found = np.empty(len(values), dtype=np.intp)
        for here in _blocks(len(values)):
            x = np.asarray(values[here], dtype=np.float64)
            cell = self._of(x)
            place = self._smaller.take(cell)
            place += x > self._guarded.take(place)
            crowded = np.flatnonzero(self._crowded.take(cell))
            if len(crowded):
                few = len(crowded) < MANY
                place[crowded] = (self._inner.searchsorted if few else self._dense)(x[crowded])
            found[here] = place
        return found

    def counts(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """How many values lie between the edges."""
        whole = np.zeros(self._number, dtype=np.int64)
        near = []
        for here in _blocks(len(values)):
            x = np.asarray(values[here], dtype=np.float64)
            cell = self._of(x)
            whole += np.bincount(cell, None, self._number)
            near.append(x[np.flatnonzero(self._mixed.take(cell))])
        found = np.bincount(self(np.concatenate(near)), None, len(self._inner) + 1)
        whole[self._of_edges] = 0  # what lies near an edge was counted by itself
        below = np.cumsum(whole)
        found += np.diff(below[self._of_edges], prepend=0, append=below[-1])
        return found

    def _of(self, x: Floats) -> Indices:
        """The cell of each."""
        moved = x + self._shift if self._low == 0 else x - self._low + self._shift
        bits = moved.view(np.int64)
        bits >>= _BITS
        bits -= self._first
        return bits


def _blocks(number: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, number, _BLOCK))
