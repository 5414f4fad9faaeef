"""Scores of regression: the absolute residual, and the distance outside predicted quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from robfcp._util.numbers import floats
from robfcp.errors import RobfcpError
from robfcp.grid import Grid
from robfcp.scores.base import Rng, Scores


@dataclass(frozen=True)
class AbsoluteResidual:
    """|y - f(x)| for a point prediction f(x)."""

    name: ClassVar[str] = "absolute-residual"

    def __call__(self, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None) -> Scores:
        """The (n,) absolute residuals."""
        centre, y = _pair(_finite("predictions", predictions, 1), targets)
        with np.errstate(over="ignore"):
            return np.abs(y - centre)

    def interval(self, predictions: ArrayLike, threshold: float) -> Scores:
        """(n, 2) intervals f(x) -/+ threshold."""
        centre = _finite("predictions", predictions, 1)
        return np.stack([centre - threshold, centre + threshold], axis=1)

    def default_grid(self) -> Grid:
        """Log-spaced, open-ended."""
        return Grid.open_ended()


@dataclass(frozen=True)
class CQR:
    """max(low(x) - y, y - high(x)) for predicted quantiles (n, 2); negative inside them."""

    name: ClassVar[str] = "cqr"

    def __call__(self, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None) -> Scores:
        """The (n,) signed distances outside the predicted quantiles."""
        ends, y = _pair(_finite("predictions", predictions, 2), targets)
        with np.errstate(over="ignore"):
            return np.maximum(ends[:, 0] - y, y - ends[:, 1])

    def interval(self, predictions: ArrayLike, threshold: float) -> Scores:
        """(n, 2) intervals [low - threshold, high + threshold]; crossed ones are empty."""
        return _finite("predictions", predictions, 2) + np.array([-threshold, threshold])

    def default_grid(self) -> Grid:
        """Log-spaced on both sides of 0, open-ended."""
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
    if not np.isfinite(array).all():
        raise RobfcpError(f"{field}: contain NaN or infinity; find the broken samples first")
    return array
