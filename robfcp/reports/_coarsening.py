"""Coarsening: cells of at least so many samples, so that no count is that of a single sample."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from robfcp._typing import IntArray
from robfcp.reports._strata import StratifiedCounts, single_stratum

DEFAULT_MIN_CELL_COUNT = 5  # samples of each cell of a report, at least; 1 means exact counts
MAX_MIN_CELL_COUNT = 1000
TOP_BIN_ROUNDING = 10  # bins: the highest cell of a stratum is moved up to a multiple of so many


class Cells(NamedTuple):
    """Cells of several strata, each with its count.

    Attributes
    ----------
    cells : (U,) ndarray of int
        Cell c H + h is bin h of stratum c; they rise.
    counts : (U,) ndarray of int
        What they hold, all positive.
    """

    cells: IntArray
    counts: IntArray


def coarsen_cells(exact: Cells, n_strata: int, n_bins: int, min_count: int) -> Cells:
    """Move counts up until every cell holds at least `min_count` of them.

    Let A be the count of a stratum above an edge, and m = `min_count`. Its coarsened count is
    m ceil(A / m). Each cell is moved up to the middle between its own highest and the next score,
    the highest cell to a multiple of ten bins; a stratum of fewer than m goes to the last bin.

    Scores only rise: no count up to an edge exceeds the true one, so no threshold falls and every
    lower bound on coverage stays true, whatever the scores are. Nor does a score lie below the
    cell before its own; of a cell of 2 m or more, which keeps its bin, only m and what exceeds a
    multiple of m may lie below it. Upper bounds are therefore possible too.

    Parameters
    ----------
    exact : Cells
        Counts as they were, without noise.
    n_strata, n_bins : int
        C and H. Clients may stand for the strata, to coarsen the reports of many at once.
    min_count : int
        m, at least 2.

    Returns
    -------
    Cells
        The same samples, in cells of at least m but for the last bin's.
    """
    stratum, bins = np.divmod(exact.cells, n_bins)
    stratum_sizes = np.bincount(stratum, exact.counts, n_strata).astype(np.int64)
    counts_before_stratum = np.cumsum(stratum_sizes) - stratum_sizes

    # Cumulative counts within each stratum, and the same where those above are multiples of m.
    sizes = stratum_sizes[stratum]
    is_last_of_stratum = np.append(stratum[1:] != stratum[:-1], True)
    cumulative = np.cumsum(exact.counts) - counts_before_stratum[stratum]
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
    return Cells((stratum * n_bins + target)[is_used], counts[is_used])


def coarsen(strata: StratifiedCounts, min_count: int) -> StratifiedCounts:
    """Move the counts of a client up until every cell holds at least `min_count` of them.

    Each stratum is coarsened by itself: see `coarsen_cells`.

    Parameters
    ----------
    strata : StratifiedCounts
        Counts as they were, without noise.
    min_count : int
        The minimum; 1 leaves the counts as they are.
    """
    if min_count == 1:
        return strata
    exact = Cells(strata.cells, strata.counts)
    cells, counts = coarsen_cells(exact, strata.n_strata, strata.n_bins, min_count)
    return replace(strata, cells=cells, counts=counts)


def coarsen_counts(counts: IntArray, min_count: int) -> IntArray:
    """Move the (H,) counts of a client without strata up: see `coarsen`."""
    if min_count == 1:
        return counts
    return coarsen(single_stratum(counts), min_count).pooled_counts


class LooseCounts(NamedTuple):
    """The samples of coarsened cells that may have been moved up from lower bins.

    Attributes
    ----------
    counts : (U,) ndarray of int
        How many of each cell's samples may lie lower; the others are where they were reported.
    lowest_bins : (U,) ndarray of int
        The lowest bin that they may lie in.
    """

    counts: IntArray
    lowest_bins: IntArray


def split_coarsened_cells(
    stratum: IntArray, bins: IntArray, counts: IntArray, min_count: IntArray
) -> LooseCounts:
    """Return how many samples of each cell may lie lower, and how low.

    No sample lies below the cell before its own. Of a cell of fewer than twice the minimum all may
    lie lower; of a larger one only those that filled it, the minimum and what exceeds a multiple
    of it.

    Parameters
    ----------
    stratum : (U,) ndarray of int
        The stratum of each cell; those of one stratum stand together. Each one was coarsened by
        itself.
    bins : (U,) ndarray of int
        The bin of each cell, rising within a stratum.
    counts : (U,) ndarray of int
        What the cells hold.
    min_count : (U,) ndarray of int
        The minimum of the cells of each report, in counts; 0 where it is not coarsened, and no
        sample may lie lower.
    """
    is_first_of_stratum = np.ones(len(stratum), dtype=bool)
    is_first_of_stratum[1:] = stratum[1:] != stratum[:-1]
    bin_before = np.roll(bins, 1)  # of another stratum where a cell is the first of its own
    lowest_bins = np.where(is_first_of_stratum, 0, bin_before)

    # Without a minimum no count is loose, whatever the divisor.
    divisor = np.maximum(min_count, 1)
    moved = np.where(counts < 2 * min_count, counts, min_count + counts % divisor)
    return LooseCounts(np.where(min_count > 0, moved, 0), lowest_bins)


def counts_in_lowest_bins(strata: StratifiedCounts, min_count: int) -> IntArray:
    """Return (H,) the counts of a client with every sample in the lowest bin it may be of.

    Parameters
    ----------
    strata : StratifiedCounts
        Coarsened counts.
    min_count : int
        Their minimum, in counts.
    """
    stratum, bins = np.divmod(strata.cells, strata.n_bins)
    minima = np.full(len(bins), min_count)
    loose = split_coarsened_cells(stratum, bins, strata.counts, minima)

    # Weighted counts are floats, which hold these whole numbers exactly.
    lowest = np.bincount(bins, strata.counts - loose.counts, strata.n_bins)
    lowest += np.bincount(loose.lowest_bins, loose.counts, strata.n_bins)
    return lowest.astype(np.int64)


def find_cell_below_minimum(
    cells: Iterable[int], counts: Iterable[int], n_bins: int, min_count: int
) -> tuple[int, int] | None:
    """Return the first cell that coarsening cannot have made, with its count; None without any.

    In every stratum the first cell holds at least `min_count`, unless it is the last bin, and all
    others hold a multiple of it.

    Parameters
    ----------
    cells, counts : iterable of int
        The cells in use, rising, and what they hold; all positive.
    n_bins : int
        H, the bins of a stratum.
    min_count : int
        The stated minimum, in counts.
    """
    last_stratum = -1
    for cell, count in zip(cells, counts, strict=True):
        stratum, bin_index = divmod(cell, n_bins)
        if stratum != last_stratum:
            is_possible = count >= min_count or bin_index == n_bins - 1
        else:
            is_possible = count % min_count == 0
        if not is_possible:
            return cell, count
        last_stratum = stratum
    return None
