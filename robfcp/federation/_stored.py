"""Counts that stay where they are, in files or on a cluster: methods are passes over blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import vstack

from robfcp._typing import BoolArray, IndexArray, IntArray
from robfcp.federation._tables import CountTable, Entries, SparseTable

if TYPE_CHECKING:
    from robfcp.federation._strata import CountBlock

T = TypeVar("T")

# Finds the rows of a block that have counts of a table, and these counts; None where it has none.
# It may be sent to another process.
View = Callable[["CountBlock"], tuple[IndexArray, CountTable] | None]


class StoredBlocks(Protocol):
    """The counts of a round where they are stored, some clients at a time."""

    def iter_blocks(self, work: Callable[[CountBlock], T], /) -> Iterator[T]:
        """Yield the result of `work` for every block.

        The function runs where the block is, perhaps in another process. Every client is in exactly
        one block; the blocks come in any order, which is the same at every pass.
        """


@dataclass(frozen=True, eq=False)
class StoredCountTable:
    """Counts that stay where they are: every method that reads counts is a pass over all blocks.

    It has the methods of `CountTable`, and a few to go through the blocks.

    Attributes
    ----------
    source : StoredBlocks
        Where the counts are.
    view : callable
        Finds the rows of a block that have counts of this table, and these counts.
    n_rows : int
        K, the rows of the table; for counts by stratum those of the clients that report them.
    n_bins : int
        H, its columns; for counts by stratum the C H cells.
    rows : (K,) ndarray of int or None
        The positions of its clients in the round, rising; None where it has all of them.
    """

    source: StoredBlocks
    view: View
    n_rows: int
    n_bins: int
    rows: IndexArray | None = None

    def select_block_rows(self, block: CountBlock) -> tuple[IndexArray, IndexArray, CountTable]:
        """Return the rows and counts of a block that belong to the table.

        Parameters
        ----------
        block : CountBlock
            The counts of some clients of the round, whose positions rise.

        Returns
        -------
        table_rows : (n,) ndarray of int
            Rows of the table, rising.
        block_rows : (n,) ndarray of int
            The same clients' rows of the block.
        counts : CountTable
            Their (n, H) counts.
        """
        view = self.view(block)
        if view is None:
            no_rows = np.zeros(0, dtype=np.intp)
            return no_rows, no_rows, SparseTable.empty(self.n_bins)
        block_rows, counts = view
        positions = block.positions[block_rows]
        if self.rows is None:
            return positions, block_rows, counts

        # A position that the table has is found at its own row; any other one is not.
        table_rows = np.searchsorted(self.rows, positions)
        candidates = np.flatnonzero(table_rows < len(self.rows))
        is_in_table = self.rows[table_rows[candidates]] == positions[candidates]
        selected = candidates[is_in_table]
        return table_rows[selected], block_rows[selected], counts.select(selected)

    def iter_blocks(
        self, work: Callable[..., T], *columns: NDArray[Any]
    ) -> Iterator[tuple[IndexArray, T]]:
        """Yield the table's rows of every block, and the result of `work` for their counts.

        Blocks come in any order; each row of the table is in exactly one.

        Parameters
        ----------
        work : callable
            Takes a block's counts, an (n, H) `CountTable`, and the n rows of every column that
            belong to them.
        *columns : (K, ...) ndarray
            Arrays with a row for each row of the table.
        """

        def work_on_block(block: CountBlock) -> tuple[IndexArray, T]:
            rows, _, counts = self.select_block_rows(block)
            return rows, work(counts, *(column[rows] for column in columns))

        return self.source.iter_blocks(work_on_block)

    def map_blocks(self, work: Callable[..., NDArray[Any]]) -> NDArray[Any]:
        """Return (K, ...) results of `work`, which returns a row for each row of its table."""
        return scatter(self.iter_blocks(work), self.n_rows)

    def dense(self) -> IntArray:
        """Return the full (K, H) array; large."""
        return self.load().dense()

    def entries(self) -> Entries:
        """Return the counts other than 0; large."""
        return self.load().entries()

    def row(self, index: int) -> IntArray:
        """Return (H,) counts of one client."""
        return self.select(slice(index, index + 1)).dense()[0]

    def select(self, rows: IndexArray | slice) -> CountTable:
        """Return the table of some clients, in the given order.

        They stay where they are as long as their rows rise; else they are loaded.

        Parameters
        ----------
        rows : (n,) ndarray of int, or slice
            Rows of the table; a slice has a start and a stop, which may be beyond the last row.
        """
        if isinstance(rows, slice):
            rows = np.arange(rows.start, min(rows.stop, self.n_rows))
        is_rising = bool((rows[1:] > rows[:-1]).all())
        if is_rising:
            return self._select_rising(rows)
        # `order` is the row of each requested one among the rising ones, which are all different.
        rising, order = np.unique(rows, return_inverse=True)
        return self._select_rising(rising).load().select(order)

    def _select_rising(self, rows: IndexArray) -> StoredCountTable:
        """Return the table of the clients at (n,) rising rows; the counts stay stored."""
        positions = rows if self.rows is None else self.rows[rows]
        return replace(self, rows=positions, n_rows=len(rows))

    def load(self) -> SparseTable:
        """Return the table in memory."""
        rows = [np.zeros(0, dtype=np.intp)]
        matrices = [SparseTable.empty(self.n_bins).csr]
        for block_rows, entries in self.iter_blocks(_entries_of):
            rows.append(block_rows)
            matrices.append(SparseTable.from_entries(*entries, self.n_bins).csr)

        # Blocks hold the clients in the order of their files, not in that of the table.
        order = np.argsort(np.concatenate(rows))
        return SparseTable(vstack(matrices, format="csr")[order])

    @property
    def is_nonempty(self) -> BoolArray:
        """(K,) which clients have a count other than 0."""
        return self.map_blocks(lambda counts: counts.is_nonempty)

    def bin_slice(self, first: int, n_bins: int) -> StoredCountTable:
        """Return the table of `n_bins` bins from `first` on; the counts stay stored."""
        # A view returns the rows of a block that are in this table with their counts; None where
        # the block has none. It is applied whenever blocks are read.
        view_of_all_bins = self.view

        def sliced_view(block: CountBlock) -> tuple[IndexArray, CountTable] | None:
            view = view_of_all_bins(block)
            if view is None:
                return None
            block_rows, counts = view
            return block_rows, counts.bin_slice(first, n_bins)

        return replace(self, view=sliced_view, n_bins=n_bins)

    def cumulative_count(self, bin_index: int) -> IntArray:
        """Return (K,) counts up to and with bin `bin_index`."""
        return self.map_blocks(lambda counts: counts.cumulative_count(bin_index))

    def merge_bins(self, bin_ends: IndexArray) -> IntArray:
        """Return (K, B) counts of merged bins; `bin_ends` are their last bins."""
        return self.map_blocks(lambda counts: counts.merge_bins(bin_ends))

    def pooled_counts(self, mask: BoolArray | None) -> IntArray:
        """Return (H,) counts of the clients of a (K,) mask together; of all if None."""
        is_pooled = np.ones(self.n_rows, dtype=bool)
        if mask is not None:
            is_pooled = np.asarray(mask, dtype=bool)
        # `iter_blocks` passes each block the part of the mask that is of its rows.
        total = np.zeros(self.n_bins, dtype=np.int64)
        for _, block_total in self.iter_blocks(_pooled_counts_of, is_pooled):
            total += block_total
        return total


def _entries_of(counts: CountTable) -> Entries:
    """Return the entries of a block's counts."""
    return counts.entries()


def _pooled_counts_of(counts: CountTable, mask: BoolArray) -> IntArray:
    """Return (H,) counts of the clients of an (n,) mask together."""
    return counts.pooled_counts(mask)


def scatter(blocks: Iterable[tuple[IndexArray | slice, NDArray[Any]]], n_rows: int) -> NDArray[Any]:
    """Return (n_rows, ...) the values of all blocks, each at its rows.

    Parameters
    ----------
    blocks : iterable of (rows, values)
        The positions of a block's n rows, and their (n, ...) values: of one type and shape but for
        n in all blocks. Every position comes once.
    n_rows : int
        The number of positions; without any block the result is (0,).
    """
    result = None
    for rows, values in blocks:
        if result is None:
            result = np.zeros((n_rows, *values.shape[1:]), values.dtype)
        result[rows] = values
    if result is None:
        return np.zeros(0, dtype=np.int64)
    return result
