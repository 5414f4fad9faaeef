"""How good prediction intervals are: coverage and width."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from robfcp._util.numbers import floats
from robfcp.errors import RobfcpError
from robfcp.metrics.given import ends_of


def interval_coverage(intervals: ArrayLike, targets: ArrayLike) -> float:
    """Share of targets inside their (n, 2) interval.

    Parameters
    ----------
    intervals
        (n, 2) ends, as `Calibration.predict_interval` gives them.
    targets
        (n,) true values.

    Returns
    -------
    float
        Between 0 and 1; the ends belong to their interval.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.interval_coverage([[0.0, 1.0], [2.0, 3.0]], [0.5, 4.0])
    0.5
    """
    ends, y = ends_of(intervals), floats("targets", targets)
    if y.shape != (len(ends),) or np.isnan(y).any():
        raise RobfcpError("targets: need one number an interval, none of them NaN")
    return float(((ends[:, 0] <= y) & (y <= ends[:, 1])).mean())


def interval_width(intervals: ArrayLike) -> float:
    """Mean width of (n, 2) intervals; crossed ends count as empty.

    Parameters
    ----------
    intervals
        (n, 2) ends, as `Calibration.predict_interval` gives them.

    Returns
    -------
    float
        Infinite where an interval is.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.interval_width([[0.0, 1.0], [3.0, 2.0]])
    0.5
    """
    ends = ends_of(intervals)
    return float(np.maximum(ends[:, 1] - ends[:, 0], 0).mean())
