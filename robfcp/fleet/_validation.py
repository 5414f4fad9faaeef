"""The rules about a report's numbers, asked of many rows at a time.

They are the rules of `robfcp.reports.validate_report` for reports without noise. A row that breaks
one is read again by itself, for the words.
"""

from __future__ import annotations

import numpy as np

from robfcp._typing import BoolArray, IntArray
from robfcp._validation import MAX_SAMPLES
from robfcp.federation import Block, SparseCounts

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

    # A row has one of the two, so their sum is the total of the one.
    totals = block.counts.sums(block.counts.values) + block.strata.sums(block.strata.values)
    is_valid &= totals <= MAX_SAMPLES
    is_valid &= totals == block.sizes * counts_per_sample[block.header_index]

    has_all_labels = block.all_label_counts.lengths > 0
    if has_all_labels.any():
        is_valid &= ~has_all_labels | _are_all_labels(block, n_bins_of_row)
    return is_valid


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
