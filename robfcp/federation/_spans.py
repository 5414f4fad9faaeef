"""Where the samples of coarsened reports may lie.

Coarsening (`robfcp.reports`) moves samples up until every cell, a bin of a stratum, holds at least
`StratifiedCounts.MIN_CELL_COUNT` of them. So a sample is not below the cell before its own; and of
a cell of twice that number or more, only that number and what exceeds a multiple of it may lie
below.

A coarsened report is recognized by its counts: in every stratum all cells but the first hold a
multiple of that number, and the first holds as many or is the last bin. Other reports may look so
by chance: their bounds are then wider, never wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from robfcp._typing import BoolArray, IndexArray, IntArray
from robfcp.federation._strata import StratifiedTable
from robfcp.federation._tables import CountTable, SparseTable
from robfcp.reports import StratifiedCounts


class CountSpans(NamedTuple):
    """S counts with the range of bins that each may lie in; one or two of them make up a cell.

    Attributes
    ----------
    row : (S,) ndarray of int
        The position of the client of each count.
    stratum : (S,) ndarray of int
        Its stratum; C, the number of strata, where the client reports none.
    low : (S,) ndarray of int
        The lowest bin that its samples may lie in.
    high : (S,) ndarray of int
        The highest one, which is the bin that was reported.
    counts : (S,) ndarray of int
        How many, in units of the table; never 0.
    """

    row: IndexArray
    stratum: IntArray
    low: IntArray
    high: IntArray
    counts: IntArray


def count_spans(
    table: CountTable,
    strata: StratifiedTable | None,
    n_bins: int,
    counts_per_sample: int,
    is_exact: BoolArray,
) -> tuple[CountSpans, BoolArray]:
    """Return where all counts may lie, and which clients' reports are coarsened.

    Parameters
    ----------
    table : CountTable
        (K, H) counts of all clients.
    strata : StratifiedTable or None
        The counts by stratum of the clients that report them, which stand in for their counts in
        `table`.
    n_bins : int
        H, the bins of a stratum.
    counts_per_sample : int
        How many counts one sample has.
    is_exact : (K,) ndarray of bool
        Whose counts hold no noise; the others are not coarsened.

    Returns
    -------
    spans : CountSpans
        Where a report is not coarsened, every count lies in the bin that was reported.
    is_coarsened : (K,) ndarray of bool
        Which reports are coarsened.
    """
    min_count = counts_per_sample * StratifiedCounts.MIN_CELL_COUNT
    is_coarsened = np.zeros(len(is_exact), dtype=bool)
    spans_of_tables = []
    for finest in _finest_counts(table, strata, len(is_exact)):
        cells = _cells(finest.table, n_bins)
        is_coarsened_row = _coarsened_rows(cells, n_bins, min_count) & is_exact[finest.rows]
        is_coarsened[finest.rows] = is_coarsened_row

        # From rows and strata of this table to positions of clients and strata of the round.
        spans = _spans(cells, is_coarsened_row, min_count)
        positions = finest.rows[spans.row]
        strata_indices = finest.first_stratum + spans.stratum
        spans_of_tables.append(spans._replace(row=positions, stratum=strata_indices))

    columns = zip(*spans_of_tables, strict=True)
    return CountSpans(*map(np.concatenate, columns)), is_coarsened


def detect_coarsened(
    table: CountTable,
    strata: StratifiedTable | None,
    n_bins: int,
    counts_per_sample: int,
    is_exact: BoolArray,
) -> BoolArray:
    """Return (K,) which clients' reports are coarsened.

    The parameters are those of `count_spans`, whose second result is the same. Most reports that
    are not coarsened show it by a few cells, so that only the others are gone through.
    """
    min_count = counts_per_sample * StratifiedCounts.MIN_CELL_COUNT
    is_coarsened = np.zeros(len(is_exact), dtype=bool)
    for finest in _finest_counts(table, strata, len(is_exact)):
        # In each stratum one cell alone need not hold a multiple of the least number. So 1 + 2 C
        # cells of a report show, for most reports, more misfits than the C that a coarsened one can
        # have.
        leading = finest.table.load().leading_counts(1 + 2 * finest.n_strata)
        n_misfits = np.count_nonzero(leading % min_count, axis=1)
        candidates = np.flatnonzero(n_misfits <= finest.n_strata)
        if len(candidates) > 0:
            cells = _cells(finest.table.select(candidates), n_bins)
            positions = finest.rows[candidates]
            is_coarsened[positions] = _coarsened_rows(cells, n_bins, min_count)
    return is_coarsened & is_exact


def lowest_tables(
    spans: CountSpans, n_clients: int, n_bins: int, strata: StratifiedTable | None
) -> tuple[SparseTable, StratifiedTable | None]:
    """Return the counts with all samples as low as they may lie.

    Parameters
    ----------
    spans : CountSpans
        Where the samples may lie, as `count_spans` returns them for these clients.
    n_clients : int
        K.
    n_bins : int
        H, the bins of a stratum.
    strata : StratifiedTable or None
        The counts by stratum as they were reported.

    Returns
    -------
    table : SparseTable
        (K, H) counts of all clients.
    strata : StratifiedTable or None
        The counts by stratum.
    """
    pooled = SparseTable.from_cells(spans.row, spans.low, spans.counts, (n_clients, n_bins))
    if strata is None:
        return pooled, None

    is_stratified = spans.stratum < strata.n_strata
    rows = np.searchsorted(strata.rows, spans.row[is_stratified])
    cells = (spans.stratum * n_bins + spans.low)[is_stratified]
    shape = (len(strata.rows), strata.n_strata * n_bins)
    by_stratum = SparseTable.from_cells(rows, cells, spans.counts[is_stratified], shape)
    return pooled, replace(strata, table=by_stratum)


class _FinestCounts(NamedTuple):
    """The counts of some clients in the finest strata that they report.

    Attributes
    ----------
    rows : (R,) ndarray of int
        The positions of these clients in the federation.
    table : CountTable
        (R, C H) counts by stratum; (R, H) of clients that report no strata.
    first_stratum : int
        The index of the table's first stratum; C where clients report none.
    n_strata : int
        How many strata the table has.
    """

    rows: IndexArray
    table: CountTable
    first_stratum: int
    n_strata: int


def _finest_counts(
    table: CountTable, strata: StratifiedTable | None, n_clients: int
) -> list[_FinestCounts]:
    """Return the counts of the clients that report no strata, then of those that do.

    Each client is in exactly one of the entries; without any of one kind there is one entry.

    Parameters
    ----------
    table : CountTable
        (K, H) counts of all clients.
    strata : StratifiedTable or None
        The counts by stratum of the clients that report them.
    n_clients : int
        K.
    """
    all_rows = np.arange(n_clients)
    if strata is None:
        return [_FinestCounts(all_rows, table, first_stratum=0, n_strata=1)]

    n_strata = strata.n_strata
    stratified = _FinestCounts(strata.rows, strata.table, first_stratum=0, n_strata=n_strata)
    if len(strata.rows) == len(all_rows):
        return [stratified]
    rows = np.setdiff1d(all_rows, strata.rows, assume_unique=True)
    unstratified = _FinestCounts(rows, table.select(rows), first_stratum=n_strata, n_strata=1)
    return [unstratified, stratified]


class _Cells(NamedTuple):
    """The cells in use of a table's reports, report after report and stratum after stratum.

    Attributes
    ----------
    lengths : (R,) ndarray of int
        How many cells each report has.
    rows : (U,) ndarray of int
        The report of each cell.
    strata : (U,) ndarray of int
        Its stratum.
    bins : (U,) ndarray of int
        Its bin.
    counts : (U,) ndarray of int
        What it holds.
    is_first : (U,) ndarray of bool
        Whether it is the first one of its report and stratum.
    """

    lengths: IntArray
    rows: IndexArray
    strata: IntArray
    bins: IntArray
    counts: IntArray
    is_first: BoolArray


def _cells(table: CountTable, n_bins: int) -> _Cells:
    """Return the cells in use of an (R, C H) table; H is `n_bins`."""
    starts, columns, counts = table.entries()
    lengths = np.diff(starts)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    strata, bins = np.divmod(columns, n_bins)

    # No row and no stratum is -1, so that the first cell of all is the first of its stratum.
    is_other_row = np.diff(rows, prepend=-1) != 0
    is_other_stratum = np.diff(strata, prepend=-1) != 0
    return _Cells(lengths, rows, strata, bins, counts, is_other_row | is_other_stratum)


def _coarsened_rows(cells: _Cells, n_bins: int, min_count: int) -> BoolArray:
    """Return (R,) which reports look coarsened to cells of at least `min_count` counts.

    A report without counts does not. Noise is for the caller to look at.
    """
    fits_first = (cells.counts >= min_count) | (cells.bins == n_bins - 1)
    fits = np.where(cells.is_first, fits_first, cells.counts % min_count == 0)
    n_misfits = np.bincount(cells.rows, ~fits, minlength=len(cells.lengths))
    return (n_misfits == 0) & (cells.lengths > 0)


def _spans(cells: _Cells, is_coarsened: BoolArray, min_count: int) -> CountSpans:
    """Return where the samples of some reports may lie.

    Parameters
    ----------
    cells : _Cells
        The cells in use of R reports.
    is_coarsened : (R,) ndarray of bool
        Which reports are coarsened.
    min_count : int
        The least count of a cell of these: `counts_per_sample` times the least number of samples.

    Returns
    -------
    CountSpans
        Its rows and strata are those of `cells`.
    """
    # Of a cell's samples the loose ones may have been moved up from below, though not from below
    # the cell before: all of them where they are few, else those that filled the cell.
    counts = cells.counts
    bin_before = np.roll(cells.bins, 1)  # of another stratum where a cell is the first of its own
    low = np.where(cells.is_first, 0, bin_before)
    moved = np.where(counts < 2 * min_count, counts, min_count + counts % min_count)
    loose = moved * is_coarsened[cells.rows]

    # First the samples that lie where they were reported, then the loose ones.
    span_counts = np.concatenate([counts - loose, loose])
    is_used = span_counts != 0
    return CountSpans(
        row=np.tile(cells.rows, 2)[is_used],
        stratum=np.tile(cells.strata, 2)[is_used],
        low=np.concatenate([cells.bins, low])[is_used],
        high=np.tile(cells.bins, 2)[is_used],
        counts=span_counts[is_used],
    )
