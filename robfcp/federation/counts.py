"""The clients' counts as one table: dense, or only the bins in use where that is smaller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError

DENSE_BYTES = 2**26  # tables up to this size are kept dense: they are handled faster
FINE_BINS = 5_000
MAX_FINE_CELLS = 2**24
_ENTRIES = 2**22  # entries handled at a time
_FEWER = 2**18  # likewise, where many arrays of them are needed and sums are whole numbers

Whole = NDArray[np.int64]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]
Kind = type[np.int64] | np.dtype[np.integer[Any]]


# starts, bins, values: row k holds values[starts[k]:starts[k + 1]] in those bins
Entries = tuple[Whole, NDArray[Any], NDArray[Any]]


class Counts(Protocol):
    """A (K, H) table of counts."""

    def dense(self) -> Whole: ...
    def entries(self) -> Entries: ...
    def row(self, k: int) -> Whole: ...
    def rows(self, chosen: Indices) -> Counts: ...
    def below(self, index: int) -> Whole: ...
    def merged(self, ends: Indices, kind: Kind = np.int64) -> NDArray[Any]: ...
    def pooled(self, mask: Mask | None) -> Whole: ...
    def weighted(self, weights: NDArray[np.float64]) -> NDArray[np.float64]: ...


@dataclass(frozen=True, eq=False)
class DenseCounts:
    """All (K, H) counts."""

    array: NDArray[Any]

    def dense(self) -> Whole:
        """The table itself."""
        return self.array

    def entries(self) -> Entries:
        """The counts above 0, row by row."""
        rows, bins = np.nonzero(self.array)
        starts = np.searchsorted(rows, np.arange(len(self.array) + 1))
        return starts, bins, self.array[rows, bins]

    def row(self, k: int) -> Whole:
        """(H,) counts of one client."""
        return self.array[k]

    def rows(self, chosen: Indices) -> DenseCounts:
        """The chosen clients in the given order."""
        return DenseCounts(self.array[chosen])

    def below(self, index: int) -> Whole:
        """(K,) counts up to and with bin `index`."""
        return self.array[:, : index + 1].sum(axis=1)

    def merged(self, ends: Indices, kind: Kind = np.int64) -> NDArray[Any]:
        """(K, B) counts of merged bins that end with the given ones, in numbers that hold them."""
        starts = np.concatenate([[0], ends[:-1] + 1])
        found = np.add.reduceat(self.array, starts, axis=1)
        return found if kind is np.int64 else found.astype(kind)

    def pooled(self, mask: Mask | None) -> Whole:
        """(H,) counts of the chosen clients together."""
        return (self.array if mask is None else self.array[mask]).sum(axis=0)

    def weighted(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """(H,) sums of the counts times the clients' weights."""
        used = np.flatnonzero(weights)
        return np.asarray(weights[used] @ self.array[used])


@dataclass(frozen=True, eq=False)
class SparseCounts:
    """The counts other than 0 alone, in the smallest whole numbers; each row has an entry."""

    starts: Whole
    bins: NDArray[Any]
    values: NDArray[Any]
    n_bins: int

    @property
    def n_rows(self) -> int:
        """K."""
        return len(self.starts) - 1

    def dense(self) -> Whole:
        """(K, H) counts; large."""
        table = np.zeros((self.n_rows, self.n_bins), dtype=np.int64)
        table[np.repeat(np.arange(self.n_rows), np.diff(self.starts)), self.bins] = self.values
        return table

    def entries(self) -> Entries:
        """The counts above 0, row by row."""
        return self.starts, self.bins, self.values

    def row(self, k: int) -> Whole:
        """(H,) counts of one client."""
        counts = np.zeros(self.n_bins, dtype=np.int64)
        here = slice(self.starts[k], self.starts[k + 1])
        counts[self.bins[here]] = self.values[here]
        return counts

    def rows(self, chosen: Indices) -> SparseCounts:
        """The chosen clients in the given order."""
        lengths = np.diff(self.starts)[chosen]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        bins = np.empty(starts[-1], dtype=self.bins.dtype)
        values = np.empty(starts[-1], dtype=self.values.dtype)
        for rows, here in row_parts(starts, _FEWER):
            shift = self.starts[chosen[rows]] - starts[rows]
            source = np.repeat(shift, lengths[rows]) + np.arange(here.start, here.stop)
            bins[here], values[here] = self.bins[source], self.values[source]
        return SparseCounts(starts, bins, values, self.n_bins)

    def below(self, index: int) -> Whole:
        """(K,) counts up to and with bin `index`."""
        result = np.empty(self.n_rows, dtype=np.int64)
        for rows, here in row_parts(self.starts, _FEWER):
            kept = (self.bins[here] <= index).view(np.uint8) * self.values[here]
            offsets = self.starts[rows] - here.start
            result[rows] = np.add.reduceat(kept, offsets, dtype=self._sums)
        return result

    @cached_property
    def _sums(self) -> np.dtype[Any]:
        """The smallest whole numbers that hold every row's sum: adding these up is faster."""
        if self.values.dtype.kind != "u":
            return np.dtype(np.int64)
        longest = int(np.diff(self.starts).max(initial=0))
        return np.min_scalar_type(longest * int(self.values.max(initial=0)))

    def merged(self, ends: Indices, kind: Kind = np.int64) -> NDArray[Any]:
        """(K, B) counts of merged bins that end with the given ones, in numbers that hold them."""
        place = np.searchsorted(ends, np.arange(self.n_bins))
        result = np.empty((self.n_rows, len(ends)), dtype=kind)
        for rows, here in row_parts(self.starts, _FEWER):
            cells = np.repeat(
                np.arange(rows.stop - rows.start) * len(ends), np.diff(self.starts)[rows]
            )
            cells += place[self.bins[here]]
            size = (rows.stop - rows.start) * len(ends)
            counts = np.bincount(cells, weights=self.values[here], minlength=size)
            result[rows] = counts.reshape(-1, len(ends))
        return result

    def pooled(self, mask: Mask | None) -> Whole:
        """(H,) counts of the chosen clients together."""
        result, lengths = np.zeros(self.n_bins), np.diff(self.starts)
        for rows, here in row_parts(self.starts, _FEWER):
            values = self.values[here]
            if mask is not None:
                chosen = np.asarray(mask[rows], dtype=bool).view(np.uint8)
                values = values * np.repeat(chosen, lengths[rows])
            result += np.bincount(self.bins[here], weights=values, minlength=self.n_bins)
        return result.astype(np.int64)

    def weighted(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """(H,) sums of the counts times the clients' weights."""
        result = np.zeros(self.n_bins)
        for rows, here in row_parts(self.starts):
            each = np.repeat(weights[rows], np.diff(self.starts)[rows]) * self.values[here]
            result += np.bincount(self.bins[here], weights=each, minlength=self.n_bins)
        return result


def row_parts(starts: Whole, most: int | None = None) -> Iterator[tuple[slice, slice]]:
    """Slices of rows with the slices of their entries, a bounded number at a time."""
    first, number = 0, min(_ENTRIES, most or _ENTRIES)
    while first < len(starts) - 1:
        last = int(np.searchsorted(starts, starts[first] + number, side="right")) - 1
        last = max(last, first + 1)
        yield slice(first, last), slice(int(starts[first]), int(starts[last]))
        first = last


def table(starts: Whole, bins: NDArray[Any], values: NDArray[Any], n_bins: int) -> Counts:
    """The entries as a table, dense unless that is large and sparse is smaller."""
    sparse = SparseCounts(starts, narrowed(bins, n_bins), narrowed(values), n_bins)
    dense_bytes = 8 * sparse.n_rows * n_bins
    sparse_bytes = sparse.starts.nbytes + sparse.bins.nbytes + sparse.values.nbytes
    if dense_bytes > DENSE_BYTES and sparse_bytes < dense_bytes:
        return sparse
    return DenseCounts(sparse.dense())


def narrowed(numbers: NDArray[Any], largest: int | None = None) -> NDArray[Any]:
    """The numbers in the smallest unsigned type, negative ones (of private reports) as they are."""
    if largest is None and numbers.min(initial=0) < 0:
        return numbers
    top = int(numbers.max(initial=0)) if largest is None else largest
    return numbers.astype(np.min_scalar_type(top), copy=False)


def check_extent(n_clients: int, n_bins: int) -> None:
    """Refuse more cells than a file of its size should cost; usual grids are for any number."""
    if n_bins > FINE_BINS and n_clients * n_bins > MAX_FINE_CELLS:
        raise RobfcpError(
            f"grid: {n_bins} bins are too many for {n_clients} sites; use one of at most "
            f"{FINE_BINS} bins"
        )
