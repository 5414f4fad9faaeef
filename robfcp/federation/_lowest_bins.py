"""The counts of coarsened reports with samples where else they may lie: lower, or spread."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from robfcp._typing import FloatArray, IndexArray, IntArray
from robfcp.federation._strata import StratifiedTable
from robfcp.federation._tables import CountTable, SparseTable
from robfcp.reports import split_coarsened_cells


def lowest_tables(
    table: CountTable, strata: StratifiedTable | None, n_bins: int, min_counts: IntArray
) -> tuple[SparseTable, StratifiedTable | None]:
    """Return the counts with all samples as low as they may lie.

    Parameters
    ----------
    table : CountTable
        (K, H) counts of all clients, in memory.
    strata : StratifiedTable or None
        The counts by stratum of the clients that report them, which stand in for their counts in
        `table`.
    n_bins : int
        H, the bins of a stratum.
    min_counts : (K,) ndarray of int
        The minimum of each client's cells in units of the table: the stated minimum cell count
        times the counts of a sample. 0 where a report is exact or holds noise, whose counts stay.

    Returns
    -------
    table : SparseTable
        (K, H) counts of all clients.
    strata : StratifiedTable or None
        The counts by stratum.
    """
    reported = _ReportedCells.of(table, strata, n_bins, min_counts)
    lowest_strata = None
    if strata is not None and reported.by_stratum is not None:
        shape = (len(strata.rows), strata.table.n_bins)
        lowest = SparseTable.from_cells(*reported.by_stratum.at_lowest(), shape)
        lowest_strata = replace(strata, table=lowest)

    tables = [cells.at_lowest() for cells in reported.of_clients]
    rows, bins, counts = (np.concatenate(columns) for columns in zip(*tables, strict=True))
    return SparseTable.from_cells(rows, bins, counts, (len(min_counts), n_bins)), lowest_strata


def spread_counts(
    table: CountTable,
    strata: StratifiedTable | None,
    n_bins: int,
    min_counts: IntArray,
    bin_ends: IndexArray,
) -> FloatArray:
    """Return (K, B) counts of merged bins, samples spread evenly over those they may lie in.

    Parameters
    ----------
    table, strata, n_bins, min_counts
        As `lowest_tables` takes them.
    bin_ends : (B,) ndarray of int
        The last bin of each merged one, rising; the last one is H - 1.
    """
    counts = table.merge_bins(bin_ends).astype(np.float64)
    for cells in _ReportedCells.of(table, strata, n_bins, min_counts).of_clients:
        counts += cells.moves_when_spread(bin_ends, counts.shape)
    return np.maximum(counts, 0)  # sums of fractions may miss 0 by rounding


class _CoarsenedCells(NamedTuple):
    """The cells in use of some reports, with the samples that may lie lower.

    Attributes
    ----------
    rows : (U,) ndarray of int
        The row of each cell.
    cells : (U,) ndarray of int
        Cell c H + h.
    counts : (U,) ndarray of int
        What it holds.
    loose : (U,) ndarray of int
        How many of these may lie lower.
    lowest_cells : (U,) ndarray of int
        The lowest cell of the same stratum that they may lie in.
    """

    rows: IndexArray
    cells: IntArray
    counts: IntArray
    loose: IntArray
    lowest_cells: IntArray

    def of_clients(self, positions: IndexArray, n_bins: int) -> _CoarsenedCells:
        """Return the same with the positions of clients for rows, and bins for cells."""
        return self._replace(
            rows=positions[self.rows],
            cells=self.cells % n_bins,
            lowest_cells=self.lowest_cells % n_bins,
        )

    def at_lowest(self) -> tuple[IndexArray, IntArray, IntArray]:
        """Return rows, cells and counts with every sample as low as it may lie, in any order."""
        return (
            np.tile(self.rows, 2),
            np.concatenate([self.cells, self.lowest_cells]),
            np.concatenate([self.counts - self.loose, self.loose]),
        )

    def moves_when_spread(self, bin_ends: IndexArray, shape: tuple[int, ...]) -> FloatArray:
        """Return (K, B) what spreading the loose samples adds to the counts of merged bins.

        Parameters
        ----------
        bin_ends : (B,) ndarray of int
            The last bin of each merged one.
        shape : tuple of int
            (K, B).
        """
        first = np.searchsorted(bin_ends, self.lowest_cells)
        last = np.searchsorted(bin_ends, self.cells)
        density = self.loose / (last - first + 1)

        # A span's density is added where the span starts and subtracted behind its end, so that
        # the running sum over the bins is the density of all spans that cover a bin.
        n_clients, n_merged = shape
        row_starts = self.rows * (n_merged + 1)
        size = n_clients * (n_merged + 1)
        changes = np.bincount(row_starts + first, density, size)
        changes -= np.bincount(row_starts + last + 1, density, size)
        spread = np.cumsum(changes.reshape(n_clients, n_merged + 1), axis=1)[:, :-1]

        moved = np.bincount(self.rows * n_merged + last, self.loose, n_clients * n_merged)
        return np.asarray(spread - moved.reshape(n_clients, n_merged))


def _coarsened_cells(table: CountTable, n_bins: int, min_counts: IntArray) -> _CoarsenedCells:
    """Return the cells of an (R, C H) table, with the samples that may lie lower.

    Parameters
    ----------
    table : CountTable
        Counts of R reports.
    n_bins : int
        H.
    min_counts : (R,) ndarray of int
        The minimum of each report's cells in counts; 0 where it is not coarsened.
    """
    starts, cells, counts = table.entries()
    rows = np.repeat(np.arange(len(min_counts)), np.diff(starts))

    # Every stratum of every row was coarsened by itself.
    n_strata = table.n_bins // n_bins
    stratum, bins = np.divmod(cells, n_bins)
    loose = split_coarsened_cells(rows * n_strata + stratum, bins, counts, min_counts[rows])
    return _CoarsenedCells(rows, cells, counts, loose.counts, cells - bins + loose.lowest_bins)


class _ReportedCells(NamedTuple):
    """The cells of all clients, in the finest strata that each of them reports.

    Attributes
    ----------
    by_stratum : _CoarsenedCells or None
        Of the clients that report by stratum: rows and cells of their table.
    of_clients : list of _CoarsenedCells
        Of all clients, each in one entry: positions of clients, and bins.
    """

    by_stratum: _CoarsenedCells | None
    of_clients: list[_CoarsenedCells]

    @staticmethod
    def of(
        table: CountTable, strata: StratifiedTable | None, n_bins: int, min_counts: IntArray
    ) -> _ReportedCells:
        """Collect the cells of the clients that report by stratum, and of all others.

        Parameters
        ----------
        table, strata, n_bins, min_counts
            As `lowest_tables` takes them.
        """
        pooled_rows = np.arange(len(min_counts))
        by_stratum = None
        of_clients = []
        if strata is not None:
            pooled_rows = np.setdiff1d(pooled_rows, strata.rows, assume_unique=True)
            by_stratum = _coarsened_cells(strata.table, n_bins, min_counts[strata.rows])
            of_clients.append(by_stratum.of_clients(strata.rows, n_bins))
        pooled = _coarsened_cells(table.select(pooled_rows), n_bins, min_counts[pooled_rows])
        of_clients.append(pooled.of_clients(pooled_rows, n_bins))
        return _ReportedCells(by_stratum, of_clients)
