"""Coarsening: at least five samples in every cell, at the price of slightly larger scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from robfcp._typing import IntArray
from robfcp.reports._strata import StratifiedCounts, single_stratum

TOP_BIN_ROUNDING = 10  # bins: the highest cell of a stratum is moved up to a multiple of so many


def coarsen(strata: StratifiedCounts, counts_per_sample: int = 1) -> StratifiedCounts:
    """Move counts up until every cell holds at least five samples.

    Let A be the number of samples of a stratum above an edge. Its coarsened number is
    5 ceil(A / 5). Each cell is moved up to the middle between its own highest and the next score,
    the highest cell to a multiple of ten bins; strata of fewer than five samples go to the last
    bin.

    Scores only rise: no count up to an edge exceeds the true one, so no threshold falls and every
    lower bound on coverage stays true, whatever the scores are. Nor does a sample lie below the
    cell before its own; of a cell of ten or more, which keeps its bin, only five samples and what
    exceeds a multiple of five may lie below it. Upper bounds are therefore possible too.

    Parameters
    ----------
    strata : StratifiedCounts
        Counts as they were, without noise.
    counts_per_sample : int
        How many counts one sample has; 1 but for losses.

    Returns
    -------
    StratifiedCounts
        The same samples, in cells of at least five but for the last bin's.
    """
    n_bins = strata.n_bins
    min_count = strata.MIN_CELL_COUNT * counts_per_sample
    stratum_sizes = strata.stratum_sizes
    counts_before_stratum = np.cumsum(stratum_sizes) - stratum_sizes

    # Cumulative counts within each stratum, and the same where those above are multiples of five.
    stratum, bins = np.divmod(strata.cells, n_bins)
    sizes = stratum_sizes[stratum]
    is_last_of_stratum = np.append(stratum[1:] != stratum[:-1], True)
    cumulative = np.cumsum(strata.counts) - counts_before_stratum[stratum]
    coarsened = sizes + (cumulative - sizes) // min_count * min_count
    coarsened = np.where((coarsened < min_count) & ~is_last_of_stratum, 0, coarsened)
    counts = np.diff(coarsened + counts_before_stratum[stratum], prepend=0)

    # The bin that each cell is moved up to; a cell of many samples stays in its bin.
    rounded_up = (bins // TOP_BIN_ROUNDING + 1) * TOP_BIN_ROUNDING
    top_end = np.minimum(np.where(sizes < min_count, n_bins, rounded_up), n_bins)
    midpoint = (bins + np.append(bins[1:], 0) - 1) // 2
    target = np.where(coarsened == cumulative, midpoint, bins)
    target = np.where(is_last_of_stratum, top_end - 1, target)
    target = np.where(counts >= 2 * min_count, bins, target)

    is_used = counts > 0
    cells = (stratum * n_bins + target)[is_used]
    return replace(strata, cells=cells, counts=counts[is_used])


def coarsen_counts(counts: IntArray, counts_per_sample: int = 1) -> IntArray:
    """Move the (H,) counts of a client without strata up: see `coarsen`."""
    return coarsen(single_stratum(counts), counts_per_sample).pooled_counts


def n_small_cells(strata: StratifiedCounts, counts_per_sample: int = 1) -> int:
    """Count the cells, but for those of the last bin, that hold fewer than five samples."""
    min_count = strata.MIN_CELL_COUNT * counts_per_sample
    is_below_last_bin = strata.cells % strata.n_bins < strata.n_bins - 1
    is_small = strata.counts < min_count
    return int((is_below_last_bin & is_small).sum())
