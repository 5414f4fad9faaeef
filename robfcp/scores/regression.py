"""Scores of regression: the absolute residual, and the distance outside predicted quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from robfcp.arguments import floats
from robfcp.errors import RobfcpError
from robfcp.grid import Grid
from robfcp.scores.base import Rng, Scores


@dataclass(frozen=True)
class AbsoluteResidual:
    """|y - f(x)| for a point prediction f(x).

    All intervals have the same width, twice the threshold.

    References
    ----------
    Lei, G'Sell, Rinaldo, Tibshirani and Wasserman (2018), "Distribution-free predictive inference
    for regression", Journal of the American Statistical Association 113.

    Examples
    --------
    >>> import robfcp
    >>> robfcp.AbsoluteResidual()([1.0, 2.0], [1.5, 0.0])
    array([0.5, 2. ])
    """

    name: ClassVar[str] = "absolute-residual"

    def __call__(self, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None) -> Scores:
        """The (n,) absolute residuals.

        Parameters
        ----------
        predictions
            (n,) point predictions.
        targets
            (n,) true values.
        rng
            Not used.

        Returns
        -------
        (n,) array
            One score a sample, 0 or more.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.AbsoluteResidual()([1.0, 2.0], [1.5, 0.0])
        array([0.5, 2. ])
        """
        centre, y = _pair(_finite("predictions", predictions, 1), targets)
        with np.errstate(over="ignore"):
            return np.abs(y - centre)

    def interval(self, predictions: ArrayLike, threshold: float) -> Scores:
        """(n, 2) intervals f(x) -/+ threshold.

        Parameters
        ----------
        predictions
            (n,) point predictions.
        threshold
            How far the ends are from the prediction.

        Returns
        -------
        (n, 2) array
            Lower and upper ends.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.AbsoluteResidual().interval([1.0, 2.0], 0.5)
        array([[0.5, 1.5],
               [1.5, 2.5]])
        """
        centre = _finite("predictions", predictions, 1)
        return np.stack([centre - threshold, centre + threshold], axis=1)

    def default_grid(self) -> Grid:
        """Log-spaced, open-ended.

        Returns
        -------
        Grid
            `Grid.open_ended()`, for targets of any scale.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.AbsoluteResidual().default_grid() == robfcp.Grid.open_ended()
        True
        """
        return Grid.open_ended()


@dataclass(frozen=True)
class CQR:
    """max(low(x) - y, y - high(x)) for predicted quantiles (n, 2); negative inside them.

    Intervals are as wide as the model's quantiles, moved outwards by the threshold, or inwards
    where it is negative.

    References
    ----------
    Romano, Patterson and Candès (2019), "Conformalized quantile regression", NeurIPS.

    Examples
    --------
    >>> import robfcp
    >>> robfcp.CQR()([[0.0, 1.0], [2.0, 3.0]], [0.25, 3.5])
    array([-0.25,  0.5 ])
    """

    name: ClassVar[str] = "cqr"

    def __call__(self, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None) -> Scores:
        """The (n,) signed distances outside the predicted quantiles.

        Parameters
        ----------
        predictions
            (n, 2) predicted lower and upper quantiles.
        targets
            (n,) true values.
        rng
            Not used.

        Returns
        -------
        (n,) array
            One score a sample.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.CQR()([[0.0, 1.0], [2.0, 3.0]], [0.25, 3.5])
        array([-0.25,  0.5 ])
        """
        ends, y = _pair(_finite("predictions", predictions, 2), targets)
        with np.errstate(over="ignore"):
            return np.maximum(ends[:, 0] - y, y - ends[:, 1])

    def interval(self, predictions: ArrayLike, threshold: float) -> Scores:
        """(n, 2) intervals [low - threshold, high + threshold]; crossed ones are empty.

        Parameters
        ----------
        predictions
            (n, 2) predicted lower and upper quantiles.
        threshold
            How far the ends move outwards; inwards where it is negative.

        Returns
        -------
        (n, 2) array
            Lower and upper ends.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.CQR().interval([[0.0, 1.0], [2.0, 3.0]], 0.5)
        array([[-0.5,  1.5],
               [ 1.5,  3.5]])
        """
        return _finite("predictions", predictions, 2) + np.array([-threshold, threshold])

    def default_grid(self) -> Grid:
        """Log-spaced on both sides of 0, open-ended.

        Returns
        -------
        Grid
            `Grid.open_ended()`, for targets of any scale.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.CQR().default_grid() == robfcp.Grid.open_ended()
        True
        """
        return Grid.open_ended()


def _pair(predictions: Scores, targets: ArrayLike) -> tuple[Scores, Scores]:
    """Predictions with as many targets."""
    y = _finite("targets", targets, 1)
    if len(y) != len(predictions):
        raise RobfcpError(
            f"targets: {len(y)} do not fit {len(predictions)} predictions; give one per row"
        )
    return predictions, y


def _finite(field: str, values: ArrayLike, ndim: int) -> Scores:
    array = floats(field, values)
    shape = "(n,)" if ndim == 1 else "(n, 2)"
    if array.ndim != ndim or (ndim == 2 and array.shape[1] != 2):
        raise RobfcpError(f"{field}: shape {array.shape} is not {shape}; reshape them")
    broken = ~np.isfinite(array).reshape(len(array), -1).all(axis=1)
    if broken.any():
        row = int(np.argmax(broken))
        raise RobfcpError(f"{field}: row {row} is NaN or infinite; find the broken sample first")
    return array
