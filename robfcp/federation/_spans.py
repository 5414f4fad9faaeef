"""Where the samples of coarsened reports may lie."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from robfcp._typing import BoolArray, IndexArray, IntArray
from robfcp.federation._tables import CountTable
from robfcp.reports import StratifiedCounts


class CountSpans(NamedTuple):
    """Counts with the range of bins that they may lie in.

    Attributes
    ----------
    row : (S,) ndarray of int
        The client of each count.
    stratum : (S,) ndarray of int
        Its stratum.
    low : (S,) ndarray of int
        The lowest bin that its samples may lie in.
    high : (S,) ndarray of int
        The highest one, which is the bin that was reported.
    counts : (S,) ndarray of int
        How many samples; never 0.
    """

    row: IndexArray
    stratum: IntArray
    low: IntArray
    high: IntArray
    counts: IntArray


def count_spans(
    table: CountTable, n_bins: int, counts_per_sample: int, exact: BoolArray | None = None
) -> tuple[CountSpans, BoolArray]:
    """Return where all counts of a table may lie, and which of its rows are coarsened.

    Coarsening (`StratifiedCounts.coarsened`) moves samples up until every cell holds at least
    `MIN_CELL_COUNT` of them. So a sample is not below the cell before its own; and of a cell of
    many, at most that number lies below it.

    A coarsened row is recognized by its counts: in every stratum all cells but the first hold a
    multiple of that number, and the first holds as many or is the last bin. Other rows may look so
    by chance: their bounds are then wider, never wrong.

    Parameters
    ----------
    table : CountTable
        (K, C H) counts; column c H + h is stratum c, bin h.
    n_bins : int
        H, the bins of a stratum.
    counts_per_sample : int
        How many counts one sample has.
    exact : (K,) ndarray of bool, optional
        Rows without noise; the others are not coarsened. All if None.

    Returns
    -------
    spans : CountSpans
        In rows that are not coarsened every count lies in the bin that was reported.
    is_coarsened : (K,) ndarray of bool
        Which rows are coarsened.
    """
    starts, cells, counts = table.entries()
    n_rows = len(starts) - 1
    rows = np.repeat(np.arange(n_rows), np.diff(starts))
    strata, high = np.divmod(cells, n_bins)
    min_count = counts_per_sample * StratifiedCounts.MIN_CELL_COUNT

    # Which rows look coarsened.
    is_other_row = np.diff(rows, prepend=-1) != 0
    is_other_stratum = np.diff(strata, prepend=-1) != 0
    is_first = is_other_row | is_other_stratum
    fits_first = (counts >= min_count) | (high == n_bins - 1)
    fits = np.where(is_first, fits_first, counts % min_count == 0)
    n_misfits = np.bincount(rows, ~fits, minlength=n_rows)
    is_coarsened = (n_misfits == 0) & (np.diff(starts) > 0)
    if exact is not None:
        is_coarsened = is_coarsened & exact

    # Of a cell's samples the loose ones may have been moved up from below: all of them where they
    # are few, else those that filled the cell.
    cell_before = np.roll(high, 1)
    low = np.where(is_first, 0, cell_before)
    moved = np.where(counts < 2 * min_count, counts, min_count + counts % min_count)
    loose = moved * is_coarsened[rows]
    spans = CountSpans(
        row=np.tile(rows, 2),
        stratum=np.tile(strata, 2),
        low=np.concatenate([high, low]),
        high=np.tile(high, 2),
        counts=np.concatenate([counts - loose, loose]),
    )
    is_used = spans.counts != 0
    return CountSpans(*(column[is_used] for column in spans)), is_coarsened


def detect_coarsened(
    table: CountTable, n_strata: int, n_bins: int, counts_per_sample: int
) -> BoolArray:
    """Return (K,) which rows of a (K, C H) table are coarsened.

    The parameters are those of `count_spans`. Most rows that are not coarsened show it by a few
    entries, so that only the others are gone through.
    """
    # In each stratum one cell alone need not hold a multiple. So 1 + 2 C entries of a row show, for
    # most rows, more misfits than the C that a coarsened one can have.
    min_count = counts_per_sample * StratifiedCounts.MIN_CELL_COUNT
    some = table.load().leading_counts(1 + 2 * n_strata)
    is_coarsened = np.count_nonzero(some % min_count, axis=1) <= n_strata

    if is_coarsened.any():
        candidates = table.select(np.flatnonzero(is_coarsened))
        _, is_coarsened[is_coarsened] = count_spans(candidates, n_bins, counts_per_sample)
    return is_coarsened
