"""The rules about a report's numbers, asked of many rows at a time.

They are the rules of `robfcp.reports.validate_report` for reports without noise. A row that breaks
one is read again by itself, for the words.
"""

from __future__ import annotations

import numpy as np

from robfcp._typing import BoolArray, IntArray
from robfcp._validation import MAX_SAMPLES
from robfcp.federation import Block, SparseCounts
from robfcp.reports import class_size_bounds

MAX_ENTRIES_PER_REPORT = 2**20  # sums of so many counts stay within 64 bits


def validate_block(block: Block, are_names: BoolArray) -> BoolArray:
    """Return (n,) which rows are valid reports.

    Parameters
    ----------
    block : Block
        Rows of a table. A row has counts or counts by stratum.
    are_names : (n,) ndarray of bool
        Whose names can be clients' names.
    """
    n_bins = np.array([header.binning.n_bins for header in block.headers], dtype=np.int64)
    n_strata = np.array([header.n_strata for header in block.headers], dtype=np.int64)
    counts_per_sample = np.array([header.counts_per_sample for header in block.headers])
    n_bins_of_row = n_bins[block.header_index]
    n_cells_of_row = (n_bins * n_strata)[block.header_index]

    is_valid = are_names & (block.sizes >= 1) & (block.sizes <= MAX_SAMPLES)
    is_valid &= _are_cells_and_counts(block.counts, n_bins_of_row, min_count=0)
    is_valid &= _are_cells_and_counts(block.strata, n_cells_of_row, min_count=1)

    min_cell_counts = np.array([header.min_cell_count for header in block.headers])
    min_counts = (min_cell_counts * counts_per_sample)[block.header_index]
    is_exact = (min_cell_counts == 1)[block.header_index]
    for rows in (block.counts, block.strata):
        is_valid &= is_exact | _hold_minimum(rows, n_bins_of_row, min_counts)

    # A row has one of the two, so their sum is the total of the one.
    totals = block.counts.sums(block.counts.values) + block.strata.sums(block.strata.values)
    is_valid &= totals <= MAX_SAMPLES
    is_valid &= totals == block.sizes * counts_per_sample[block.header_index]

    has_totals = np.array([header.class_names is not None for header in block.headers])
    has_totals = has_totals[block.header_index]
    if has_totals.any():
        min_cell_count = min_cell_counts[block.header_index]
        is_valid &= ~has_totals | _are_class_totals(block, min_cell_count)

    has_all_labels = block.all_label_counts.lengths > 0
    if has_all_labels.any():
        is_valid &= ~has_all_labels | _are_all_labels(block, n_bins_of_row)
        is_valid &= is_exact | _hold_minimum(block.all_label_counts, n_bins_of_row, min_counts)
    return is_valid


def _hold_minimum(rows: SparseCounts, n_bins_of_row: IntArray, min_counts: IntArray) -> BoolArray:
    """Return (n,) in which rows all cells hold what coarsening can make of them.

    In every stratum the first cell in use holds at least the minimum, unless it is the last bin;
    all others hold a multiple of it.

    Parameters
    ----------
    rows : SparseCounts
        n rows, the cells of each rising.
    n_bins_of_row : (n,) ndarray of int
        H, the bins of a stratum.
    min_counts : (n,) ndarray of int
        The minimum of each row's cells, in counts.
    """
    cells_used = rows.without_zeros()
    owners = cells_used.owners
    n_bins = n_bins_of_row[owners]
    min_count = min_counts[owners]
    stratum, bins = np.divmod(cells_used.bins, n_bins)
    is_first = np.diff(owners, prepend=-1) != 0
    is_first |= np.diff(stratum, prepend=-1) != 0
    fits_first = (cells_used.values >= min_count) | (bins == n_bins - 1)
    fits = np.where(is_first, fits_first, cells_used.values % min_count == 0)
    return cells_used.sums(~fits) == 0


def _are_class_totals(block: Block, min_cell_count: IntArray) -> BoolArray:
    """Return (n,) in which rows the class totals can be those of the stated number of samples.

    Parameters
    ----------
    block : Block
        The rows; those without totals are in no row that is asked for.
    min_cell_count : (n,) ndarray of int
        That of each row.
    """
    totals = block.class_totals
    divisor = min_cell_count[totals.owners]
    is_wrong = (totals.values < 0) | (totals.values > MAX_SAMPLES)
    is_wrong |= totals.values % divisor != 0

    values = np.clip(totals.values, 0, MAX_SAMPLES)
    lower, upper = (totals.sums(sizes) for sizes in class_size_bounds(values, divisor))
    are_of_samples = (totals.sums(values) > 0) & (lower <= block.sizes) & (block.sizes <= upper)
    return are_of_samples & (totals.sums(is_wrong) == 0)


def _are_all_labels(block: Block, n_bins_of_row: IntArray) -> BoolArray:
    """Return (n,) in which rows the scores of all labels are as many for each sample."""
    n_samples = np.maximum(block.sizes, 1)  # smaller ones are refused anyway
    n_labels = block.all_label_counts.sums(block.all_label_counts.values)
    are_as_many = (n_labels <= MAX_SAMPLES) & (n_labels >= n_samples) & (n_labels % n_samples == 0)
    return are_as_many & _are_cells_and_counts(block.all_label_counts, n_bins_of_row, min_count=0)


def _are_cells_and_counts(
    rows: SparseCounts, n_cells_of_row: IntArray, min_count: int
) -> BoolArray:
    """Return (n,) in which rows the cells rise within 0..n_cells - 1 and the values are counts."""
    is_wrong = (rows.values < min_count) | (rows.values > MAX_SAMPLES)

    # Each cell is above the one before; the first of a row is compared with 0 instead.
    lengths = rows.lengths
    is_used = lengths > 0
    firsts = rows.starts[:-1][is_used]
    lasts = rows.starts[1:][is_used] - 1
    is_outside = np.zeros(len(rows.bins), dtype=bool)
    np.less_equal(rows.bins[1:], rows.bins[:-1], out=is_outside[1:])
    is_outside[firsts] = rows.bins[firsts] < 0
    is_outside[lasts] |= rows.bins[lasts] >= n_cells_of_row[is_used]

    is_wrong |= is_outside
    is_valid = lengths <= MAX_ENTRIES_PER_REPORT
    if is_wrong.any():
        is_valid &= rows.sums(is_wrong) == 0
    return is_valid
