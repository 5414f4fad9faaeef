"""The counts of many reports, row after row, before they are a table on the round's binning."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from robfcp._typing import BoolArray, IndexArray, IntArray
from robfcp.federation._tables import SparseTable

_MAX_RECENT = 2**14  # values that wait to be put in an array of a small type
_MAX_POOLED_ENTRIES = 2**18  # summed over strata at a time: what it takes stays small
_DIGEST_BYTES = 16  # of a row: finding two rows of the same digest takes 2**64 tries


@dataclass(frozen=True, eq=False)
class SparseCounts:
    """n rows of U entries in all, whose bins are on each report's own binning, valid or not.

    Whether bins rise within a row, and are inside the binning, is for the makers of the rows to
    check. The arrays are shared with other objects; nobody changes them.

    Attributes
    ----------
    starts : (n + 1,) ndarray of int
        Row k has the entries starts[k] to starts[k + 1] - 1; the first start is 0, the last U.
    bins : (U,) ndarray of int
        The bin of each entry, or its cell c H + h in counts by stratum; of any integer type.
    values : (U,) ndarray of int
        The count of each entry; of any integer type.
    """

    starts: IntArray
    bins: NDArray[Any]
    values: NDArray[Any]

    @staticmethod
    def from_lengths(
        lengths: NDArray[Any], bins: NDArray[Any], values: NDArray[Any]
    ) -> SparseCounts:
        """Make rows of so many entries each.

        Parameters
        ----------
        lengths : (n,) ndarray of int
            How many entries each row has; U in all.
        bins, values : (U,) ndarray of int
            The entries, row after row.
        """
        starts = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, dtype=np.int64, out=starts[1:])
        return SparseCounts(starts, bins, values)

    @staticmethod
    def empty() -> SparseCounts:
        """Return counts of no rows."""
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

    def select_range(self, rows: slice) -> SparseCounts:
        """Return the rows of a slice that has a start and a stop; bins and values are views."""
        starts = self.starts[rows.start : rows.stop + 1]
        entries = slice(starts[0], starts[-1])
        return SparseCounts(starts - starts[0], self.bins[entries], self.values[entries])

    def select(self, rows: IndexArray) -> SparseCounts:
        """Return the rows at (r,) positions, in the order of these; a copy."""
        lengths = self.lengths[rows]

        # Entry j of a selected row is entry starts[row] + j of all.
        first_of_row = np.repeat(self.starts[:-1][rows], lengths)
        first_of_selected_row = np.repeat(np.cumsum(lengths) - lengths, lengths)
        within_row = np.arange(lengths.sum()) - first_of_selected_row
        entries = first_of_row + within_row
        return SparseCounts.from_lengths(lengths, self.bins[entries], self.values[entries])

    def without_zeros(self) -> SparseCounts:
        """Return the rows without counts of 0."""
        is_used = self.values != 0
        if is_used.all():
            return self
        lengths = self.sums(is_used)  # true counts as 1
        return SparseCounts.from_lengths(lengths, self.bins[is_used], self.values[is_used])

    def sums(self, values: NDArray[Any]) -> IntArray:
        """Return (n,) each row's sum of (U,) values, one for each entry; 0 of an empty row."""
        cumulative = np.zeros(len(values) + 1, dtype=np.int64)
        np.cumsum(values, out=cumulative[1:])
        return np.diff(cumulative[self.starts])

    def to_table(self, rows: IndexArray, n_bins: int) -> SparseTable:
        """Return the table of some rows, in their order.

        Parameters
        ----------
        rows : (r,) ndarray of int
            Rows of valid reports, whose bins rise and are below `n_bins`.
        n_bins : int
            The columns of the table: H, or C H of counts by stratum.
        """
        # Rows that are not selected may be on larger binnings.
        n_columns = max(n_bins, int(self.bins.max(initial=0)) + 1)
        table = SparseTable.from_entries(self.starts, self.bins, self.values, n_columns)
        are_all_rows = np.array_equal(rows, np.arange(self.n_rows))
        if not are_all_rows:
            table = table.select(rows)
        if n_columns > n_bins:
            table = table.bin_slice(0, n_bins)
        return table


def _row_slices(starts: IntArray) -> Iterator[slice]:
    """Yield all rows in order, in slices of few entries together; one row at least in each.

    Parameters
    ----------
    starts : (n + 1,) ndarray of int
        Where each row begins among the entries, and where the last one ends.
    """
    n_rows = len(starts) - 1
    first = 0
    while first < n_rows:
        fitting = np.searchsorted(starts, starts[first] + _MAX_POOLED_ENTRIES, side="right") - 1
        stop = max(int(fitting), first + 1)
        yield slice(first, stop)
        first = stop


def pool_strata(counts: SparseCounts, strata: SparseCounts, n_bins: int) -> SparseCounts:
    """Return every row's counts: those in `counts`, or where that row is empty sums over strata.

    Parameters
    ----------
    counts, strata : SparseCounts
        The same n rows. Cell c H + h of `strata` is bin h of stratum c.
    n_bins : int
        H, the bins of a stratum.

    Returns
    -------
    SparseCounts
        n rows; `counts` itself where there are no counts by stratum at all.
    """
    if not len(strata.bins):
        return counts
    pooled = GrowingRows()
    for rows in _row_slices(counts.starts + strata.starts):  # the entries of both together
        some_counts = counts.select_range(rows)
        some_strata = strata.select_range(rows)
        strata_rows = some_strata.owners
        is_pooled = (some_counts.lengths == 0)[strata_rows]  # of the entries by stratum
        strata_bins = some_strata.bins[is_pooled].astype(np.int64) % n_bins

        entry_rows = np.concatenate([some_counts.owners, strata_rows[is_pooled]])
        entry_bins = np.concatenate([some_counts.bins.astype(np.int64), strata_bins])
        values = np.concatenate([some_counts.values, some_strata.values[is_pooled]])
        n_rows = rows.stop - rows.start
        lengths, bins, sums = _sum_duplicate_cells(
            entry_rows, entry_bins, values.astype(np.int64), n_rows
        )
        pooled.extend(SparseCounts.from_lengths(lengths, bins, sums))
    return pooled.whole()


def _sum_duplicate_cells(
    rows: IndexArray, cells: IntArray, values: IntArray, n_rows: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Return rows whose entries came in any order, with equal cells of a row added up.

    Parameters
    ----------
    rows, cells, values : (U,) ndarray of int
        The row, the cell and the count of each entry.
    n_rows : int
        n, the number of rows.

    Returns
    -------
    lengths : (n,) ndarray of int
        The number of different cells of each row.
    cells, values : (V,) ndarray of int64
        These cells, rising within a row, and their counts. A sum of 0, as noise may make it, stays.
    """
    shape = (n_rows, int(cells.max(initial=0)) + 1)
    csr = coo_array((values, (rows, cells)), shape=shape).tocsr()
    return np.diff(csr.indptr), csr.indices.astype(np.int64), csr.data


def narrowed(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers in the smallest unsigned type; as they are if one is negative.

    Beyond 32 bits it is int64: numpy has no integer type for the sum of int64 and uint64.
    """
    if numbers.min(initial=0) < 0:
        return numbers
    largest = int(numbers.max(initial=0))
    if largest >= 2**32:
        return numbers.astype(np.int64, copy=False)
    return numbers.astype(np.min_scalar_type(largest), copy=False)


def hash_rows(tables: Sequence[SparseCounts]) -> NDArray[np.uint64]:
    """Return (n, 2) digests of what the tables hold in each row; only equal rows have equal ones.

    Parameters
    ----------
    tables : sequence of SparseCounts
        Of the same n rows, without counts of 0, in an order that is the same in all calls.

    Returns
    -------
    (n, 2) ndarray of uint64
        Each row is one digest of 16 bytes.
    """
    contents = []
    for index, table in enumerate(tables):
        # The code of an entry tells its table and its bin, so that rows of tables can be joined.
        codes = len(tables) * table.bins.astype(np.int64) + index
        entries = np.column_stack([codes, table.values.astype(np.int64)])
        data = entries.astype("<i8").tobytes()
        byte_starts = (16 * table.starts).tolist()  # an entry is two integers of eight bytes
        contents.append([data[first:stop] for first, stop in pairwise(byte_starts)])

    digests = [
        sha256(b"".join(row)).digest()[:_DIGEST_BYTES] for row in zip(*contents, strict=True)
    ]
    return np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, 2)


class GrowingColumn:
    """Whole numbers that come some at a time, in an array of the smallest type that holds them.

    The array grows in place: a list of parts and the array that joins them would need twice the
    memory. Numbers that come one by one wait in an `array` of C integers until there are many. They
    must fit in 64 bits with a sign.
    """

    def __init__(self) -> None:
        self._recent = array("q")
        self._array: NDArray[Any] = np.zeros(0, np.uint8)
        self._length = 0

    def append(self, number: int) -> None:
        """Append one number."""
        self._recent.append(number)
        if len(self._recent) >= _MAX_RECENT:
            self._settle()

    def extend(self, numbers: Sequence[int] | NDArray[Any]) -> None:
        """Append (n,) whole numbers."""
        if not isinstance(numbers, np.ndarray):
            self._recent.extend(numbers)
        elif len(numbers) < _MAX_RECENT:
            self._recent.frombytes(numbers.astype(np.int64).tobytes())
        else:
            self._settle()
            self._join(numbers)
        if len(self._recent) >= _MAX_RECENT:
            self._settle()

    def _settle(self) -> None:
        """Move the numbers that wait to the array."""
        recent = np.array(self._recent, dtype=np.int64)
        self._recent = array("q")
        self._join(recent)

    def _join(self, numbers: NDArray[Any]) -> None:
        """Append numbers to the array; none may wait that came before them."""
        numbers = narrowed(numbers)
        wider_type = np.promote_types(self._array.dtype, numbers.dtype)
        joined = self._array.astype(wider_type, copy=False)
        start = self._length
        stop = start + len(numbers)
        if stop > len(joined):
            # An eighth is left free, so that few appended numbers seldom need a larger array.
            # `whole` hands the array out only at the end, so nobody else refers to it.
            joined.resize(stop + stop // 8, refcheck=False)
        joined[start:stop] = numbers
        self._array = joined
        self._length = stop

    def whole(self) -> NDArray[Any]:
        """Return all numbers in the smallest type; nothing may be appended any more."""
        self._settle()
        self._array.resize(self._length, refcheck=False)
        return self._array


class GrowingRows:
    """Rows of cells with counts that come one by one, or many at a time, in little memory."""

    def __init__(self) -> None:
        self._lengths = GrowingColumn()
        self._cells = GrowingColumn()
        self._counts = GrowingColumn()

    def append(
        self, cells: Sequence[int] | NDArray[Any], counts: Sequence[int] | NDArray[Any]
    ) -> None:
        """Append a row of (u,) rising cells with the count of each."""
        self._lengths.append(len(cells))
        self._cells.extend(cells)
        self._counts.extend(counts)

    def append_empty(self) -> None:
        """Append a row without counts."""
        self._lengths.append(0)

    def extend(self, rows: SparseCounts) -> None:
        """Append (n,) rows."""
        self._lengths.extend(rows.lengths)
        self._cells.extend(rows.bins)
        self._counts.extend(rows.values)

    def whole(self) -> SparseCounts:
        """Return all rows; nothing may be appended any more."""
        return SparseCounts.from_lengths(
            self._lengths.whole(), self._cells.whole(), self._counts.whole()
        )


class RunsOfPositions:
    """Where each row stood among all that arrived: positions that rise one by one almost always.

    Only the first row of each run of consecutive positions is kept, with its position.
    """

    def __init__(self) -> None:
        self._n_rows = 0
        self._next = -1  # the position that would go on with the last run
        self._first_rows: list[int] = []
        self._first_positions: list[int] = []

    def append(self, position: int) -> None:
        """Append the position of the next row."""
        if position != self._next:
            self._first_rows.append(self._n_rows)
            self._first_positions.append(position)
        self._n_rows += 1
        self._next = position + 1

    def extend(self, first: int, is_row: BoolArray) -> None:
        """Append the positions of some of N consecutive arrivals.

        Parameters
        ----------
        first : int
            The position of the first arrival.
        is_row : (N,) ndarray of bool
            Which of the arrivals are rows.
        """
        positions = first + np.flatnonzero(is_row)
        if not len(positions):
            return
        begins_run = np.ones(len(positions), dtype=bool)
        begins_run[1:] = np.diff(positions) != 1
        begins_run[0] = positions[0] != self._next
        self._first_rows.extend((self._n_rows + np.flatnonzero(begins_run)).tolist())
        self._first_positions.extend(positions[begins_run].tolist())
        self._n_rows += len(positions)
        self._next = int(positions[-1]) + 1

    def position_of(self, row: int) -> int:
        """Return the position of a row, both counted from 0."""
        run = bisect_right(self._first_rows, row) - 1
        return self._first_positions[run] + row - self._first_rows[run]
