"""Default reports in experiments: the exact counts of many clients, coarsened at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from robfcp._typing import IndexArray, IntArray
from robfcp.errors import RobfcpError
from robfcp.federation import CountTable, Federation, SparseTable, StratifiedTable
from robfcp.reports import (
    DEFAULT_MIN_CELL_COUNT,
    Cells,
    coarsen_cells,
    round_class_totals,
)


def as_default_reports(
    federation: Federation, min_cell_count: int = DEFAULT_MIN_CELL_COUNT
) -> Federation:
    """Return the round that the same clients make with default reports.

    Parameters
    ----------
    federation : Federation
        Exact reports of K clients, all of them by class or none.
    min_cell_count : int
        The minimum cell count of the reports; 1 leaves them as they are.

    Returns
    -------
    Federation
        What `Report.from_predictions` makes of the same samples: coarsened counts of all classes
        together, and class totals where there were counts by class.
    """
    if min_cell_count == 1:
        return federation
    n_bins = federation.binning.n_bins
    rows, bins, counts = _coarsened_entries(federation.table, 1, n_bins, min_cell_count)
    shape = (federation.n_clients, n_bins)

    class_totals = None
    strata = federation.strata
    if strata is not None and strata.by == "class":
        totals = round_class_totals(strata.stratum_sizes, min_cell_count)
        has_totals = totals.any(axis=1)  # a report without any leaves them out
        class_totals = StratifiedTable(
            "class",
            strata.names,
            SparseTable.from_dense(totals[has_totals]),
            strata.rows[has_totals],
            n_bins=1,
        )
    return replace(
        federation,
        table=SparseTable.from_cells(rows, bins, counts, shape),
        strata=None,
        class_totals=class_totals,
        min_cell_counts=np.full(federation.n_clients, min_cell_count),
    )


def as_reports_by_class(
    federation: Federation, min_cell_count: int = DEFAULT_MIN_CELL_COUNT
) -> Federation:
    """Return the round that the same clients make with coarsened counts by class.

    Parameters
    ----------
    federation : Federation
        Exact reports of K clients, all of them by class.
    min_cell_count : int
        The minimum cell count of the reports; 1 leaves them as they are.

    Returns
    -------
    Federation
        What `Report.from_predictions` makes of the same samples with `stratify_by_class=True`:
        each class is coarsened by itself, and the counts of all are the sums of the classes.
    """
    if min_cell_count == 1:
        return federation
    strata = federation.strata
    if strata is None or len(strata.rows) < federation.n_clients:
        raise RobfcpError(
            "by class: not all reports hold counts by class; recreate them with "
            "stratify_by_class=True"
        )
    rows, cells, counts = _coarsened_entries(
        strata.table, strata.n_strata, strata.n_bins, min_cell_count
    )
    shape = (len(strata.rows), strata.n_strata * strata.n_bins)
    stratified_table = SparseTable.from_cells(rows, cells, counts, shape)
    pooled_shape = (federation.n_clients, strata.n_bins)
    pooled_table = SparseTable.from_cells(rows, cells % strata.n_bins, counts, pooled_shape)
    return replace(
        federation,
        table=pooled_table,
        strata=replace(strata, table=stratified_table),
        min_cell_counts=np.full(federation.n_clients, min_cell_count),
    )


def _coarsened_entries(
    table: CountTable, n_strata: int, n_bins: int, min_cell_count: int
) -> tuple[IndexArray, IndexArray, IntArray]:
    """Return row, cell and count of each entry of a (R, C H) table after coarsening."""
    starts, cells, counts = table.entries()
    rows = np.repeat(np.arange(table.n_rows), np.diff(starts))
    row_width = n_strata * n_bins
    exact = Cells(rows * row_width + cells, counts)
    coarse = coarsen_cells(exact, table.n_rows * n_strata, n_bins, min_cell_count)
    coarse_rows, coarse_cells = np.divmod(coarse.cells, row_width)
    return coarse_rows, coarse_cells, coarse.counts
