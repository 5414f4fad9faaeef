"""Scores become counts on the grid."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._util.numbers import array
from robfcp.errors import RobfcpError
from robfcp.grid import Grid


def sketch(scores: ArrayLike, grid: Grid) -> NDArray[np.int64]:
    """The (H,) counts of the scores in the grid's bins."""
    values = array("scores", scores)
    if values.ndim != 1:
        raise RobfcpError(f"scores: shape {values.shape} is not (n,); pass one score a sample")
    return grid.counts(values)
