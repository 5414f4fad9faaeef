"""Scores of regression: the absolute residual, and the distance outside predicted quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from robfcp._typing import FloatArray
from robfcp._validation import Rng, as_float_array
from robfcp.binning import Binning
from robfcp.errors import RobfcpError
from robfcp.scores._base import register_builtin


class _RegressionScore:
    """max(low - y, y - high) for the bounds of a prediction; without quantiles both are equal."""

    name: ClassVar[str]
    _columns: ClassVar[tuple[int, ...]]  # of the predictions, beyond one row a sample

    def __call__(self, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None) -> FloatArray:
        """Return one score a sample.

        Parameters
        ----------
        predictions : array_like
            The model's outputs, finite numbers.
        targets : array_like, shape (n,)
            True values.
        rng : int, Generator or None
            Not used.

        Returns
        -------
        (n,) array
            The scores; bigger is stranger.
        """
        bounds = self._interval_bounds(predictions)
        truth = _finite("targets", targets, ())
        if len(truth) != len(bounds):
            raise RobfcpError(
                f"targets: {len(truth)} do not fit {len(bounds)} predictions; give as many"
            )
        with np.errstate(over="ignore"):
            return np.maximum(bounds[:, 0] - truth, truth - bounds[:, -1])

    def interval(self, predictions: ArrayLike, threshold: float) -> FloatArray:
        """Return (n, 2) bounds of the intervals that hold what scores at most the threshold.

        Parameters
        ----------
        predictions : array_like
            As the score takes them.
        threshold : float
            How far the bounds move outwards; inwards where it is negative.

        Returns
        -------
        (n, 2) array
            Lower and upper bounds.
        """
        return self._interval_bounds(predictions) + np.array([-threshold, threshold])

    def default_binning(self) -> Binning:
        """Return a binning log-spaced on both sides of 0, open-ended: for targets of any scale."""
        return Binning.open_ended()

    def _interval_bounds(self, predictions: ArrayLike) -> FloatArray:
        """Return (n, 2) or, where both bounds are equal, (n, 1)."""
        bounds = _finite("predictions", predictions, self._columns)
        return bounds.reshape(len(bounds), -1)


def _finite(field: str, values: ArrayLike, columns: tuple[int, ...]) -> FloatArray:
    """Return finite numbers, (n,) or (n, columns); refuse anything else."""
    array = as_float_array(field, values)
    if not array.ndim or array.shape[1:] != columns:
        shape = f"(n, {columns[0]})" if columns else "(n,)"
        n_values = columns[0] if columns else "one"
        raise RobfcpError(f"{field}: shape {array.shape} is not {shape}; give {n_values} a sample")

    is_finite = np.isfinite(array).reshape(len(array), -1).all(axis=1)
    if not is_finite.all():
        row = int(np.argmin(is_finite))
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
