"""Scores become counts on the grid."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._numbers import array
from robfcp.errors import RobfcpError
from robfcp.grid import Grid


def sketch(scores: ArrayLike, grid: Grid) -> NDArray[np.int64]:
    """The (H,) counts of the scores in the grid's bins."""
    values = array("scores", scores)
    if values.ndim != 1:
        raise RobfcpError(f"scores: shape {values.shape} is not (n,); pass one score a sample")
    return grid.counts(values)


def sketch_batches(batches: Iterable[ArrayLike], grid: Grid) -> NDArray[np.int64]:
    """The counts of a stream of score batches, never holding more than one."""
    counts = np.zeros(grid.n_bins, dtype=np.int64)
    for scores in batches:
        counts += sketch(scores, grid)
    return counts
