"""Prediction sets and intervals: a label is in when its score is at most the threshold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.errors import RobfcpError
from robfcp.scores import ClassificationScore, Rng, Score, check_probabilities

Limits = Sequence[float] | NDArray[np.float64]


def predict_sets(
    score: Score, probabilities: ArrayLike, thresholds: Limits, rng: Rng = None
) -> NDArray[np.bool_]:
    """(n, C, L) membership of every label at every threshold; one block of scores at a time.

    Thresholds are (L,), (C, L) where each label has its own, or (n, 1, L) where each sample has.
    """
    array = check_probabilities(probabilities)
    sets = np.empty((*array.shape, np.shape(thresholds)[-1]), dtype=bool)
    for rows, members in iterate_sets(score, array, thresholds, rng):
        sets[rows] = members
    return sets


def iterate_sets(
    score: Score, probabilities: ArrayLike, thresholds: Limits, rng: Rng = None
) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
    """The same sets as (rows, members) blocks, for more samples than memory holds."""
    if not isinstance(score, ClassificationScore):
        raise RobfcpError(f"{_name(score)}: is no classification score; use predict_interval")
    limits = np.asarray(thresholds, dtype=np.float64)
    for rows, scores in score.blocks(probabilities, rng):
        yield rows, scores[:, :, None] <= (limits[rows] if limits.ndim == 3 else limits)


def predict_intervals(
    score: Score, predictions: ArrayLike, thresholds: Sequence[float]
) -> NDArray[np.float64]:
    """(n, 2, L) lower and upper ends at every threshold."""
    if isinstance(score, (ClassificationScore, type)) or not hasattr(score, "interval"):
        raise RobfcpError(f"{_name(score)}: is no regression score; use predict_set")
    return np.stack([score.interval(predictions, limit) for limit in thresholds], axis=2)


def _name(score: object) -> str:
    return str(getattr(score, "name", score))
