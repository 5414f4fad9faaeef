"""Numbers of many reports, row after row, before they are a table on the round's binning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from robfcp._typing import IndexArray, IntArray
from robfcp.federation._tables import SparseTable

# lengths, bins, values: row after row, each of so many entries
RowParts = tuple[IntArray, NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class SparseCounts:
    """Rows of entries whose bins are on each report's own binning, right or not.

    Attributes
    ----------
    starts : (n + 1,) ndarray of int
        Row k has the entries starts[k] to starts[k + 1] - 1.
    bins : (U,) ndarray of int
        The bin of each entry.
    values : (U,) ndarray of int
        Its count.
    """

    starts: IntArray
    bins: NDArray[Any]
    values: NDArray[Any]

    @staticmethod
    def from_lengths(
        lengths: NDArray[Any], bins: NDArray[Any], values: NDArray[Any]
    ) -> SparseCounts:
        """Make rows of so many entries each."""
        starts = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, dtype=np.int64, out=starts[1:])
        return SparseCounts(starts, bins, values)

    @staticmethod
    def empty() -> SparseCounts:
        """Make no rows at all."""
        nothing = np.zeros(0, dtype=np.int64)
        return SparseCounts.from_lengths(nothing, nothing, nothing)

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.starts) - 1

    @property
    def lengths(self) -> IntArray:
        """(n,) how many entries each row has."""
        return np.diff(self.starts)

    @property
    def owners(self) -> IndexArray:
        """(U,) the row of every entry."""
        return np.repeat(np.arange(self.n_rows), self.lengths)

    def sums(self, numbers: NDArray[Any]) -> IntArray:
        """Return (n,) each row's sum of (U,) numbers, one an entry."""
        cumulative = np.zeros(len(numbers) + 1, dtype=np.int64)
        np.cumsum(numbers, out=cumulative[1:])
        return np.diff(cumulative[self.starts])

    def to_table(self, rows: IndexArray, n_bins: int) -> SparseTable:
        """Return the table of the chosen rows, all of them right and on binnings of `n_bins`."""
        # Rows that are not chosen may be on larger binnings.
        n_columns = max(n_bins, int(self.bins.max(initial=0)) + 1)
        table = SparseTable.from_entries(self.starts, self.bins, self.values, n_columns)
        is_everybody = np.array_equal(rows, np.arange(self.n_rows))
        if not is_everybody:
            table = table.select(rows)
        if n_columns > n_bins:
            table = table.bin_slice(0, n_bins)
        return table


def sum_duplicate_cells(
    rows: IndexArray, cells: IntArray, values: IntArray, n_rows: int
) -> RowParts:
    """Return rows whose entries came in any order, with equal cells of a row added up.

    Parameters
    ----------
    rows, cells, values : (U,) ndarray of int
        The row, the cell and the count of each entry.
    n_rows : int
        The number of rows.

    Returns
    -------
    lengths : (n_rows,) ndarray of int
        The number of different cells of each row.
    cells, values : ndarray of int
        These cells, rising within a row, and their counts.
    """
    shape = (n_rows, int(cells.max(initial=0)) + 1)
    csr = coo_array((values, (rows, cells)), shape=shape).tocsr()
    return np.diff(csr.indptr), csr.indices, csr.data


def narrowed(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers in the smallest unsigned type; as they are if one is negative."""
    if numbers.min(initial=0) < 0:
        return numbers
    largest = int(numbers.max(initial=0))
    if largest >= 2**32:
        return numbers.astype(np.int64, copy=False)
    return numbers.astype(np.min_scalar_type(largest), copy=False)


class GrowingColumns:
    """Whole numbers that come part by part, in arrays of the smallest type that holds them.

    The arrays grow in place: a list of parts and the array that joins them would need twice the
    memory.
    """

    def __init__(self, n_columns: int) -> None:
        self._arrays: list[NDArray[Any]] = [np.zeros(0, np.uint8) for _ in range(n_columns)]
        self._lengths = [0] * n_columns

    def extend(self, *parts: NDArray[Any]) -> None:
        """Append a part to each column."""
        for column, part in enumerate(parts):
            self._extend_column(column, narrowed(part))

    def _extend_column(self, column: int, part: NDArray[Any]) -> None:
        """Append numbers to one column."""
        wider_type = np.promote_types(self._arrays[column].dtype, part.dtype)
        array = self._arrays[column].astype(wider_type, copy=False)
        start = self._lengths[column]
        stop = start + len(part)
        if stop > len(array):
            array.resize(stop + stop // 8, refcheck=False)
        array[start:stop] = part
        self._arrays[column] = array
        self._lengths[column] = stop

    def whole(self) -> list[NDArray[Any]]:
        """Return all columns; nothing may be appended any more."""
        for array, length in zip(self._arrays, self._lengths, strict=True):
            array.resize(length, refcheck=False)
        return self._arrays
