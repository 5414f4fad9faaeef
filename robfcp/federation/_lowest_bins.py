"""The counts of coarsened reports with every sample in the lowest bin that it may be of."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from robfcp._typing import IndexArray, IntArray
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
    n_clients = len(min_counts)
    all_rows = np.arange(n_clients)
    if strata is None:
        lowest = _lowest_entries(table, n_bins, min_counts)
        return SparseTable.from_cells(*lowest, (n_clients, n_bins)), None

    # Clients with counts by stratum were coarsened stratum by stratum.
    stratified = _lowest_entries(strata.table, n_bins, min_counts[strata.rows])
    by_stratum = SparseTable.from_cells(*stratified, (len(strata.rows), strata.table.n_bins))
    pooled_rows = np.setdiff1d(all_rows, strata.rows, assume_unique=True)
    pooled = _lowest_entries(table.select(pooled_rows), n_bins, min_counts[pooled_rows])

    rows = np.concatenate([strata.rows[stratified.rows], pooled_rows[pooled.rows]])
    bins = np.concatenate([stratified.cells % n_bins, pooled.cells])
    counts = np.concatenate([stratified.counts, pooled.counts])
    lowest_table = SparseTable.from_cells(rows, bins, counts, (n_clients, n_bins))
    return lowest_table, replace(strata, table=by_stratum)


class _Entries(NamedTuple):
    """Counts of a table in any order, maybe several of a cell.

    Attributes
    ----------
    rows : (U,) ndarray of int
        The row of each count.
    cells : (U,) ndarray of int
        Its cell c H + h.
    counts : (U,) ndarray of int
        How many.
    """

    rows: IndexArray
    cells: IntArray
    counts: IntArray


def _lowest_entries(table: CountTable, n_bins: int, min_counts: IntArray) -> _Entries:
    """Return the entries of an (R, C H) table, with all samples as low as they may lie.

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
    return _Entries(
        rows=np.tile(rows, 2),
        cells=np.concatenate([cells, cells - bins + loose.lowest_bins]),
        counts=np.concatenate([counts - loose.counts, loose.counts]),
    )
