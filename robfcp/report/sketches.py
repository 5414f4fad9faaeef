"""Scores become counts on the grid."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.arguments import array
from robfcp.errors import RobfcpError
from robfcp.grid import Grid


def sketch(scores: ArrayLike, grid: Grid) -> NDArray[np.int64]:
    """The (H,) counts of the scores in the grid's bins."""
    values = scores if type(scores) is np.ndarray else array("scores", scores)
    if values.ndim != 1:
        raise RobfcpError(f"scores: shape {values.shape} is not (n,); pass one score a sample")
    return grid.counts(values)


def clamped(scores: ArrayLike, grid: Grid) -> NDArray[np.float64]:
    """The scores of a private report, whatever they are, so that none shows by a refusal.

    Scores outside the grid count in its end bins, NaN in the top one. A threshold in the top bin is
    therefore infinite: `Federation.threshold_at`.
    """
    values = array("scores", scores)
    if values.ndim != 1 or values.dtype.kind not in "fiu":
        raise RobfcpError("scores: need a vector of real numbers; pass one score a sample")
    values = values.astype(np.float64)
    top = np.where(np.isnan(values), np.inf, values)
    return np.asarray(np.clip(top, grid.edges[0], grid.edges[-1]))
