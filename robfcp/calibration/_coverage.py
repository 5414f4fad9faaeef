"""Which share of the reported scores a threshold covers: of each client, and of each stratum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import FloatArray, IntArray
from robfcp.calibration._levels import CoverageLevel
from robfcp.errors import RobfcpError

if TYPE_CHECKING:
    from robfcp.federation import Federation


class StratumCoverage(NamedTuple):
    """How many reported scores of each stratum are covered.

    Attributes
    ----------
    thresholds : ndarray of float, shape (C,)
        The threshold of each class or group, in the order of `StratifiedTable.labels`; strata
        without one of their own have the largest.
    covered : ndarray, shape (R, C)
        How many scores of each stratum are covered, at each of the R clients that keep strata:
        those of `StratifiedTable.rows`. Of coarsened reports they are estimates, and may be half
        counts.
    sizes : ndarray of int, shape (R, C)
        How many scores there are; `covered` is from 0 to this.
    """

    thresholds: FloatArray
    covered: NDArray[Any]
    sizes: IntArray


def client_coverage(
    federation: Federation, levels: Sequence[CoverageLevel], *, by_stratum: bool
) -> FloatArray:
    """Return (K, L) the share of each client's reported scores that each level covers.

    Of coarsened reports they are estimates, from the midpoints of the counts.

    Parameters
    ----------
    federation : Federation
        The reports of K clients.
    levels : sequence of CoverageLevel
        The L levels.
    by_stratum : bool
        Whether each score is compared with the threshold of its own class or group. Clients that
        keep no strata are compared with the largest threshold.

    Returns
    -------
    ndarray of float, shape (K, L)
        From 0 to 1.
    """
    thresholds = [level.threshold for level in levels]

    # An infinite threshold reads the last bin, and covers everything whatever noise says.
    bin_indices = federation.binning.bin_index_of_threshold(thresholds).tolist()

    def read(bounded: Federation) -> IntArray:
        return np.stack([bounded.cumulative_count(index) for index in bin_indices], axis=1)

    cumulative = federation.map_blocks(lambda block: block.at_midpoints(read))

    # (K, L): noise can take a share out of [0, 1].
    fractions = np.clip(cumulative / federation.total_counts[:, None], 0, 1)
    fractions = np.where(np.isinf(thresholds), 1.0, fractions)

    strata = federation.strata
    if by_stratum and strata is not None:
        for column, level in enumerate(levels):
            _, covered, sizes = stratum_coverage(federation, level)
            n_samples = np.maximum(sizes.sum(axis=1), 1)
            fractions[strata.rows, column] = covered.sum(axis=1) / n_samples
    return fractions


def stratum_coverage(federation: Federation, level: CoverageLevel) -> StratumCoverage:
    """Return how many scores of each class or group are covered, client by client.

    Parameters
    ----------
    federation : Federation
        Reports that keep classes or groups.
    level : CoverageLevel
        The level whose thresholds are applied.

    Raises
    ------
    RobfcpError
        Where the reports keep none.
    """
    strata = federation.strata
    if strata is None:
        raise RobfcpError(
            "calibration: its reports hold no counts by class or group; recreate them with "
            "--stratify-by-class "
            "or --group (stratify_by_class=True, groups=)"
        )

    threshold_of_stratum = {stratum.name: stratum.threshold for stratum in level.strata}
    thresholds = np.array(
        [threshold_of_stratum.get(name, level.threshold) for name in strata.labels]
    )

    # The cells of stratum c are c * n_bins to (c + 1) * n_bins - 1. Cumulative counts are read at
    # the last cell of each stratum and at the cell of its threshold.
    first_cells = np.arange(strata.n_strata) * strata.n_bins
    last_cells = first_cells + strata.n_bins - 1
    threshold_cells = first_cells + federation.binning.bin_index_of_threshold(thresholds)
    cells = np.unique(np.concatenate([threshold_cells, last_cells]))

    def read_block(block: Federation) -> IntArray:
        return block.at_midpoints(lambda bounded: _merged_strata(bounded, cells))

    cumulative = np.cumsum(federation.map_blocks(read_block)[strata.rows], axis=1)
    # (R, C) counts of all strata before each one, up to its threshold, and up to its end.
    through_stratum = cumulative[:, np.searchsorted(cells, last_cells)]
    before_stratum = np.pad(through_stratum[:, :-1], ((0, 0), (1, 0)))
    through_threshold = cumulative[:, np.searchsorted(cells, threshold_cells)]

    # Noise can make counts negative, or larger than their total.
    sizes = np.maximum(through_stratum - before_stratum, 0)
    covered = np.clip(through_threshold - before_stratum, 0, sizes)
    return StratumCoverage(thresholds, covered, sizes)


def _merged_strata(federation: Federation, cells: IntArray) -> IntArray:
    """Return (K, E) counts by stratum merged up to some cells; 0 of clients without strata."""
    counts = np.zeros((federation.n_clients, len(cells)), dtype=np.int64)
    strata = federation.strata
    if strata is not None and len(strata.rows) > 0:
        counts[strata.rows] = strata.table.merge_bins(cells)
    return counts
