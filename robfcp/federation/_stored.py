"""Counts that stay where they are, in files or on a cluster: questions are passes over blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import vstack

from robfcp._typing import BoolArray, IndexArray, IntArray
from robfcp.federation._tables import CountTable, Entries, SparseTable

if TYPE_CHECKING:
    from robfcp.federation._blocks import CountBlock

T = TypeVar("T")


# Finds the rows of a block that have counts of a table, and these counts; None where it has none.
View = Callable[["CountBlock"], tuple[IndexArray, CountTable] | None]


@dataclass(frozen=True, eq=False)
class StoredCountTable:
    """Counts that stay where they are: a question about them is a pass over blocks.

    Attributes
    ----------
    source : object
        Its `iter_blocks(work)` yields what `work` makes of every block, wherever it runs.
    view : callable
        Finds the rows of a block that have counts of this table, and these counts.
    n_rows : int
        K, the rows of the table.
    n_bins : int
        H, its bins.
    rows : (K,) ndarray of int or None
        The places of its clients among all, rising; None where it has all of them.
    """

    source: Any
    view: View
    n_rows: int
    n_bins: int
    rows: IndexArray | None = None

    def select_block_rows(self, block: CountBlock) -> tuple[IndexArray, IndexArray, CountTable]:
        """Return what a block holds of the table.

        Returns
        -------
        places : (n,) ndarray of int
            Places in the table.
        rows : (n,) ndarray of int
            Rows of the block.
        counts : CountTable
            Their (n, H) counts.
        """
        found = self.view(block)
        if found is None:
            nobody = np.zeros(0, dtype=np.intp)
            return nobody, nobody, SparseTable.empty(self.n_bins)
        rows, counts = found
        positions = block.positions[rows]
        if self.rows is None:
            return positions, rows, counts

        places = np.searchsorted(self.rows, positions)
        candidates = np.flatnonzero(places < len(self.rows))
        is_own = self.rows[places[candidates]] == positions[candidates]
        own = candidates[is_own]
        return places[own], rows[own], counts.select(own)

    def iter_blocks(
        self, work: Callable[..., T], *columns: NDArray[Any]
    ) -> Iterator[tuple[IndexArray, T]]:
        """Yield the places of every block's rows, and what `work` makes of its counts.

        Parameters
        ----------
        work : callable
            Takes a block's counts and its part of every column.
        *columns : ndarray
            Arrays with a row for each row of the table.
        """

        def work_on_block(block: CountBlock) -> tuple[IndexArray, T]:
            places, _, counts = self.select_block_rows(block)
            return places, work(counts, *(column[places] for column in columns))

        return self.source.iter_blocks(work_on_block)

    def map_blocks(self, work: Callable[..., NDArray[Any]]) -> NDArray[Any]:
        """Return (K, ...) what `work` makes of every block's counts, a row for each of theirs."""
        return scatter(self.iter_blocks(work), self.n_rows)

    def dense(self) -> IntArray:
        """Return the full (K, H) array; large."""
        return self.load().dense()

    def entries(self) -> Entries:
        """Return the counts other than 0; large."""
        return self.load().entries()

    def row(self, k: int) -> IntArray:
        """Return (H,) counts of client k."""
        return self.select(slice(k, k + 1)).dense()[0]

    def select(self, chosen: IndexArray | slice) -> CountTable:
        """Return the table of the chosen clients, in the given order.

        They stay where they are as long as their places rise.
        """
        if isinstance(chosen, slice):
            chosen = np.arange(chosen.start, min(chosen.stop, self.n_rows))
        is_rising = bool((chosen[1:] > chosen[:-1]).all())
        if is_rising:
            return self._select_rising(chosen)
        rising, order = np.unique(chosen, return_inverse=True)
        return self._select_rising(rising).load().select(order)

    def _select_rising(self, chosen: IndexArray) -> StoredCountTable:
        """Return the clients at rising places, where they are."""
        rows = chosen if self.rows is None else self.rows[chosen]
        return replace(self, rows=rows, n_rows=len(chosen))

    def load(self) -> SparseTable:
        """Return the table in memory."""
        places = [np.zeros(0, dtype=np.intp)]
        parts = [SparseTable.empty(self.n_bins).csr]
        for block_places, entries in self.iter_blocks(_entries_of):
            places.append(block_places)
            parts.append(SparseTable.from_entries(*entries, self.n_bins).csr)

        # Blocks hold the clients in the order of their files.
        order = np.argsort(np.concatenate(places))
        return SparseTable(vstack(parts, format="csr")[order])

    @property
    def is_nonempty(self) -> BoolArray:
        """(K,) which clients have a count other than 0."""
        return self.map_blocks(lambda counts: counts.is_nonempty)

    def bin_slice(self, first: int, n_bins: int) -> StoredCountTable:
        """Return the table of `n_bins` bins from `first` on."""
        view = self.view

        def sliced_view(block: CountBlock) -> tuple[IndexArray, CountTable] | None:
            found = view(block)
            if found is None:
                return None
            rows, counts = found
            return rows, counts.bin_slice(first, n_bins)

        return replace(self, view=sliced_view, n_bins=n_bins)

    def cumulative_count(self, index: int) -> IntArray:
        """Return (K,) counts up to and with bin `index`."""
        return self.map_blocks(lambda counts: counts.cumulative_count(index))

    def merge_bins(self, ends: IndexArray) -> IntArray:
        """Return (K, B) counts of merged bins; `ends` are their last bins, the last one H - 1."""
        return self.map_blocks(lambda counts: counts.merge_bins(ends))

    def pooled_counts(self, mask: BoolArray | None) -> IntArray:
        """Return (H,) counts of the clients of a (K,) mask together; of all if None."""
        chosen = np.ones(self.n_rows, dtype=bool)
        if mask is not None:
            chosen = np.asarray(mask)
        total = np.zeros(self.n_bins, dtype=np.int64)
        for _, part in self.iter_blocks(_pooled_counts_of, chosen):
            total += part
        return total


def _entries_of(counts: CountTable) -> Entries:
    """Return the entries of a block's counts."""
    return counts.entries()


def _pooled_counts_of(counts: CountTable, mask: BoolArray) -> IntArray:
    """Return the counts of the chosen clients of a block together."""
    return counts.pooled_counts(mask)


def scatter(parts: Iterable[tuple[IndexArray | slice, NDArray[Any]]], n_rows: int) -> NDArray[Any]:
    """Return (n_rows, ...) the rows of the parts, each at its places."""
    result = None
    for places, part in parts:
        is_everything = len(part) == n_rows and isinstance(places, slice)
        if is_everything:
            return part
        if result is None:
            result = np.zeros((n_rows, *part.shape[1:]), part.dtype)
        result[places] = part
    if result is None:
        return np.zeros(0, dtype=np.int64)
    return result
