"""Counts as sparse rows: of reports as they came, and of a round's clients as one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array, csr_array

from robfcp._typing import BoolArray, IndexArray, IntArray
from robfcp.errors import RobfcpError

# Binnings of more bins are refused where their full (K, H) table would have more than `_MAX_CELLS`
# cells.
_MANY_BINS = 5_000
_MAX_CELLS = 2**24

_MAX_INT32 = 2**31 - 1


class Entries(NamedTuple):
    """The U counts of a table other than 0, row after row and bin after bin.

    Attributes
    ----------
    starts : (K + 1,) ndarray of int64
        Row k has the entries starts[k] to starts[k + 1] - 1.
    bins : (U,) ndarray of int64
        The bin of each entry, rising within a row.
    counts : (U,) ndarray of int64
        The count of each entry.
    """

    starts: IntArray
    bins: IntArray
    counts: IntArray


class CountTable(Protocol):
    """(K, H) counts of K clients in H bins: in memory, in files or on a cluster.

    Rows keep the order of the clients, whatever is asked. Whole numbers are returned as int64, so
    that sums of them do not overflow. Methods that return a table leave the counts where they are;
    `load`, `row`, `entries` and `dense` bring them into memory.
    """

    @property
    def n_rows(self) -> int:
        """K, the number of clients."""

    @property
    def n_bins(self) -> int:
        """H, the number of bins."""

    @property
    def is_nonempty(self) -> BoolArray:
        """(K,) which clients have a count other than 0."""

    def cumulative_count(self, bin_index: int) -> IntArray:
        """Return (K,) counts up to and with bin `bin_index`."""

    def merge_bins(self, bin_ends: IndexArray) -> IntArray:
        """Return (K, B) counts of merged bins.

        Parameters
        ----------
        bin_ends : (B,) ndarray of int
            The last bin of each merged one, rising; the last one is H - 1.
        """

    def pooled_counts(self, mask: BoolArray | None) -> IntArray:
        """Return (H,) counts of the clients of a (K,) mask together; of all if None."""

    def select(self, rows: IndexArray | slice) -> CountTable:
        """Return the table of some clients, in the given order; a slice has no step."""

    def bin_slice(self, first: int, n_bins: int) -> CountTable:
        """Return the table of `n_bins` bins from `first` on."""

    def row(self, index: int) -> IntArray:
        """Return (H,) counts of one client."""

    def load(self) -> SparseTable:
        """Return the table in memory."""

    def entries(self) -> Entries:
        """Return the counts other than 0; large for many clients."""

    def dense(self) -> IntArray:
        """Return the full (K, H) array; large for many clients."""


@dataclass(frozen=True, eq=False)
class SparseTable:
    """(K, H) counts in memory: the entries other than 0, in compressed sparse rows.

    Attributes
    ----------
    csr : (K, H) scipy.sparse.csr_array
        The counts. Bins rise within each row, no entry is 0. Indices are 32-bit wherever they fit,
        and counts wherever their sum does, so that no sum of them overflows: that takes half of the
        memory. All methods return counts as int64.
    """

    csr: csr_array

    @staticmethod
    def from_entries(
        starts: NDArray[Any], bins: NDArray[Any], counts: NDArray[Any], n_bins: int
    ) -> SparseTable:
        """Make a table of its entries, row after row.

        Parameters
        ----------
        starts : (K + 1,) ndarray of int
            Where each row begins among the entries, and where the last one ends.
        bins : (U,) ndarray of int
            The bin of each entry, rising within a row.
        counts : (U,) ndarray
            The count of each entry; those of 0 are left out. Whole numbers, or fractions of counts
            projected for comparison.
        n_bins : int
            H, the number of bins.
        """
        # scipy asks for indices of one type; the smaller one halves their memory.
        index_type = np.int32 if max(len(bins), n_bins) <= _MAX_INT32 else np.int64
        columns = bins.astype(index_type)
        row_starts = starts.astype(index_type)
        csr = csr_array(
            (_as_narrow_as_sums_fit(counts), columns, row_starts),
            shape=(len(starts) - 1, n_bins),
            copy=False,
        )

        # The arrays may be the caller's, and zeros are removed in place.
        if len(counts) > 0 and not counts.all():
            csr = csr.copy()
            csr.eliminate_zeros()
        return SparseTable(csr)

    @staticmethod
    def empty(n_bins: int) -> SparseTable:
        """Make a table of no clients."""
        return SparseTable(csr_array((0, n_bins), dtype=np.int64))

    @staticmethod
    def from_cells(
        rows: NDArray[Any], bins: NDArray[Any], counts: NDArray[Any], shape: tuple[int, int]
    ) -> SparseTable:
        """Make a table of entries in any order; those of the same row and bin are added up.

        Parameters
        ----------
        rows, bins, counts : (U,) ndarray of int
            The row, the bin and the count of each entry.
        shape : tuple of int
            (K, H), the number of clients and of bins.
        """
        csr = coo_array((_as_int64(counts), (rows, bins)), shape=shape).tocsr()
        return SparseTable.from_entries(csr.indptr, csr.indices, csr.data, shape[1])

    @staticmethod
    def from_dense(counts: ArrayLike) -> SparseTable:
        """Make a table of a full (K, H) array."""
        array = np.asarray(counts)
        rows, bins = np.nonzero(array)
        starts = np.searchsorted(rows, np.arange(len(array) + 1))
        return SparseTable.from_entries(starts, bins, array[rows, bins], array.shape[1])

    @property
    def n_rows(self) -> int:
        """K, the number of clients."""
        return int(self.csr.shape[0])

    @property
    def n_bins(self) -> int:
        """H, the number of bins."""
        return int(self.csr.shape[1])

    @property
    def is_nonempty(self) -> BoolArray:
        """(K,) which clients have a count other than 0."""
        return np.asarray(np.diff(self.csr.indptr) > 0)

    def cumulative_count(self, bin_index: int) -> IntArray:
        """Return (K,) counts up to and with bin `bin_index`."""
        # As a matrix product: sums of rows without a copy of the columns.
        is_counted = np.arange(self.n_bins) <= bin_index
        return _as_int64(self.csr @ is_counted.astype(self.csr.dtype))

    def merge_bins(self, bin_ends: IndexArray) -> IntArray:
        """Return (K, B) counts of merged bins; `bin_ends` are their last bins, rising to H - 1."""
        # Counts projected for comparison are fractions, whose sum depends on the order of adding.
        # They are added in numpy's order on the full table; for whole numbers no order matters.
        if self.csr.dtype.kind == "f":
            first_bins = np.concatenate([[0], bin_ends[:-1] + 1])
            return np.add.reduceat(self.dense(), first_bins, axis=1)

        # To merge bins is to renumber the columns: making the table full adds up equal ones. The
        # merged bin of bin h is the first whose last bin is not below h.
        merged_bins = np.searchsorted(bin_ends, np.arange(self.n_bins))
        columns = merged_bins.astype(self.csr.indices.dtype)[self.csr.indices]
        arrays = (self.csr.data, columns, self.csr.indptr)
        merged = csr_array(arrays, shape=(self.n_rows, len(bin_ends)))
        return _as_int64(merged.toarray())

    def pooled_counts(self, mask: BoolArray | None) -> IntArray:
        """Return (H,) counts of the clients of a (K,) mask together; of all if None."""
        is_pooled = np.ones(self.n_rows, dtype=bool)
        if mask is not None:
            is_pooled = np.asarray(mask, dtype=bool)
        # Sums fit in the type of the counts: `_as_narrow_as_sums_fit`.
        return _as_int64(is_pooled.astype(self.csr.dtype) @ self.csr)

    def select(self, rows: IndexArray | slice) -> SparseTable:
        """Return the table of some clients, in the given order; of a slice, a view.

        Parameters
        ----------
        rows : (n,) ndarray of int, or slice
            Rows of the table; a slice has no step.
        """
        if not isinstance(rows, slice):
            return SparseTable(self.csr[rows])
        first, stop, _ = rows.indices(self.n_rows)
        starts = self.csr.indptr[first : stop + 1]
        entries = slice(starts[0], starts[-1])
        arrays = (self.csr.data[entries], self.csr.indices[entries], starts - starts[0])
        return SparseTable(csr_array(arrays, shape=(stop - first, self.n_bins)))

    def bin_slice(self, first: int, n_bins: int) -> SparseTable:
        """Return the table of `n_bins` bins from `first` on."""
        return SparseTable(self.csr[:, first : first + n_bins])

    def row(self, index: int) -> IntArray:
        """Return (H,) counts of one client."""
        return self.select(slice(index, index + 1)).dense()[0]

    def load(self) -> SparseTable:
        """Return the table itself, which is in memory."""
        return self

    def entries(self) -> Entries:
        """Return the counts other than 0."""
        starts = self.csr.indptr.astype(np.int64)
        bins = self.csr.indices.astype(np.int64)
        return Entries(starts, bins, _as_int64(self.csr.data))

    def leading_counts(self, n_entries: int) -> IntArray:
        """Return (K, n_entries) counts of the first entries of each row; 0 where it has fewer."""
        starts = self.csr.indptr
        positions = starts[:-1, None] + np.arange(n_entries)
        is_in_row = positions < starts[1:, None]
        if not self.csr.nnz:
            return np.zeros(is_in_row.shape, dtype=np.int64)
        counts = self.csr.data.take(positions, mode="clip")
        return _as_int64(np.where(is_in_row, counts, 0))

    def dense(self) -> IntArray:
        """Return the full (K, H) array; large for many clients."""
        return _as_int64(self.csr.toarray())

    def with_columns(self, columns: NDArray[Any], n_bins: int) -> SparseTable:
        """Return the table with every entry in another bin of its row; equal ones are added up.

        Parameters
        ----------
        columns : (U,) ndarray of int
            The new bin of each entry, in the order of `entries`; below `n_bins`.
        n_bins : int
            The number of bins of the new table.
        """
        lengths = np.diff(self.csr.indptr)
        rows = np.repeat(np.arange(self.n_rows), lengths)
        return SparseTable.from_cells(rows, columns, self.csr.data, (self.n_rows, n_bins))

    def row_blocks(self, max_entries: int) -> list[slice]:
        """Return all rows in order, in slices that have at most so many entries together.

        A row with more is a slice of its own. A row costs about as much as sixteen entries, however
        few it has: that bounds the number of rows in a slice.

        Parameters
        ----------
        max_entries : int
            The number of entries of a slice, at most.
        """
        starts = self.csr.indptr
        max_rows = max(1, max_entries // 16)
        blocks = []
        first = 0
        while first < self.n_rows:
            fitting = np.searchsorted(starts, int(starts[first]) + max_entries, side="right") - 1
            stop = min(int(fitting), first + max_rows)
            stop = max(stop, first + 1)
            blocks.append(slice(first, stop))
            first = stop
        return blocks


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


def _as_narrow_as_sums_fit(counts: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers as int32 where even the sum of their magnitudes fits, else as int64.

    So sums over any of the entries fit in the type of the table.

    Fractions, of counts projected for comparison, stay as they are.
    """
    if counts.dtype.kind == "f":
        return counts
    is_negative = counts.dtype.kind == "i" and counts.min(initial=0) < 0
    magnitudes = np.abs(counts) if is_negative else counts
    fits = magnitudes.sum(dtype=np.int64) <= _MAX_INT32
    return counts.astype(np.int32 if fits else np.int64, copy=False)


def _as_int64(counts: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers as int64; fractions stay as they are."""
    if counts.dtype.kind == "f":
        return counts
    return counts.astype(np.int64, copy=False)


def check_table_size(n_clients: int, n_bins: int) -> None:
    """Refuse a fine binning of many clients, whose full table would be large.

    Parameters
    ----------
    n_clients : int
        K.
    n_bins : int
        H; a usual number of bins is allowed for any number of clients.
    """
    if n_bins > _MANY_BINS and n_clients * n_bins > _MAX_CELLS:
        raise RobfcpError(
            f"binning: {n_bins} bins are too many for {n_clients} sites; use one of at most "
            f"{_MANY_BINS} bins"
        )
