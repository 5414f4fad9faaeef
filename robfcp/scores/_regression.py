"""Scores of regression: the absolute residual, and the distance outside predicted quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from robfcp._validation import Rng, as_float_array
from robfcp.binning import Binning
from robfcp.errors import RobfcpError
from robfcp.scores._base import Scores, register_builtin


class _RegressionScore:
    """max(low - y, y - high) for the ends of a prediction; both ends are one without quantiles."""

    name: ClassVar[str]
    _columns: ClassVar[tuple[int, ...]]  # of the predictions, beyond one row a sample

    def __call__(self, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None) -> Scores:
        """One score a sample.

        Parameters
        ----------
        predictions
            The model's outputs, finite numbers.
        targets
            (n,) true values.
        rng
            Not used.

        Returns
        -------
        (n,) array
            The scores; bigger is stranger.
        """
        given, y = self._interval_bounds(predictions), _finite("targets", targets, ())
        if len(y) != len(given):
            raise RobfcpError(
                f"targets: {len(y)} do not fit {len(given)} predictions; give as many"
            )
        with np.errstate(over="ignore"):
            return np.maximum(given[:, 0] - y, y - given[:, -1])

    def interval(self, predictions: ArrayLike, threshold: float) -> Scores:
        """(n, 2) ends of the intervals that hold what scores at most the threshold.

        Parameters
        ----------
        predictions
            As the score takes them.
        threshold
            How far the ends move outwards; inwards where it is negative.

        Returns
        -------
        (n, 2) array
            Lower and upper ends.
        """
        return self._interval_bounds(predictions) + np.array([-threshold, threshold])

    def default_binning(self) -> Binning:
        """Log-spaced on both sides of 0, open-ended: for targets of any scale."""
        return Binning.open_ended()

    def _interval_bounds(self, predictions: ArrayLike) -> Scores:
        """(n, 2) or, where both ends are one, (n, 1)."""
        given = _finite("predictions", predictions, self._columns)
        return given.reshape(len(given), -1)


def _finite(field: str, values: ArrayLike, columns: tuple[int, ...]) -> Scores:
    array = as_float_array(field, values)
    if not array.ndim or array.shape[1:] != columns:
        shape, many = (f"(n, {columns[0]})", columns[0]) if columns else ("(n,)", "one")
        raise RobfcpError(f"{field}: shape {array.shape} is not {shape}; give {many} a sample")
    broken = ~np.isfinite(array).reshape(len(array), -1).all(axis=1)
    if broken.any():
        row = int(np.argmax(broken))
        raise RobfcpError(f"{field}: row {row} is NaN or infinite; find the broken sample first")
    return array


@register_builtin
@dataclass(frozen=True)
class AbsoluteResidual(_RegressionScore):
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
    >>> robfcp.AbsoluteResidual().interval([1.0, 2.0], 0.5)
    array([[0.5, 1.5],
           [1.5, 2.5]])
    """

    name: ClassVar[str] = "absolute-residual"
    _columns: ClassVar[tuple[int, ...]] = ()


@register_builtin
@dataclass(frozen=True)
class CQR(_RegressionScore):
    """max(low(x) - y, y - high(x)) for predicted quantiles (n, 2); negative inside them.

    Intervals are as wide as the model's quantiles, moved outwards by the threshold, or inwards
    where it is negative; crossed ones are empty.

    References
    ----------
    Romano, Patterson and Candès (2019), "Conformalized quantile regression", NeurIPS.

    Examples
    --------
    >>> import robfcp
    >>> robfcp.CQR()([[0.0, 1.0], [2.0, 3.0]], [0.25, 3.5])
    array([-0.25,  0.5 ])
    >>> robfcp.CQR().interval([[0.0, 1.0], [2.0, 3.0]], 0.5)
    array([[-0.5,  1.5],
           [ 1.5,  3.5]])
    """

    name: ClassVar[str] = "cqr"
    _columns: ClassVar[tuple[int, ...]] = (2,)
