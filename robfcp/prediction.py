"""Prediction sets and intervals: a label is in when its score is at most the threshold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.arguments import Rng, a_few, refuse_missing
from robfcp.arguments import array as numbers
from robfcp.errors import RobfcpError
from robfcp.probabilities import ClassColumns, check_probabilities
from robfcp.scores import ClassificationScore, Score

Limits = Sequence[float] | NDArray[np.float64]
Classes = tuple[str, ...] | int | None


def predict_sets(
    score: Score,
    probabilities: ArrayLike,
    thresholds: Limits,
    rng: Rng = None,
    *,
    non_empty: bool = False,
) -> NDArray[np.bool_]:
    """(n, C, L) membership of every label at every threshold; one block of scores at a time.

    Thresholds are (L,), (C, L) where each label has its own, or (n, 1, L) where each sample has.
    With `non_empty` a set that would hold nothing holds the label with the least score.
    """
    array = check_probabilities(probabilities)
    sets = np.empty((*array.shape, np.shape(thresholds)[-1]), dtype=bool)
    for rows, members in iterate_sets(score, array, thresholds, rng, non_empty=non_empty):
        sets[rows] = members
    return sets


def iterate_sets(
    score: Score,
    probabilities: ArrayLike,
    thresholds: Limits,
    rng: Rng = None,
    *,
    non_empty: bool = False,
) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
    """The same sets as (rows, members) blocks, for more samples than memory holds."""
    if not isinstance(score, ClassificationScore):
        raise RobfcpError(f"{_name(score)}: is no classification score; use predict_interval")
    limits = np.asarray(thresholds, dtype=np.float64)
    return score.sets(probabilities, limits, rng, non_empty=non_empty)


def predict_intervals(
    score: Score, predictions: ArrayLike, thresholds: Sequence[float], *, non_empty: bool = False
) -> NDArray[np.float64]:
    """(n, 2, L) lower and upper ends at every threshold.

    With `non_empty` ends that cross (quantiles moved inwards) meet in their middle.
    """
    if isinstance(score, (ClassificationScore, type)) or not hasattr(score, "interval"):
        raise RobfcpError(f"{_name(score)}: is no regression score; use predict_set")
    ends = np.stack([score.interval(predictions, limit) for limit in thresholds], axis=2)
    if non_empty:
        crossed = ends[:, :1] > ends[:, 1:]
        ends = np.where(crossed, ends.mean(axis=1, keepdims=True), ends)
    return ends


def in_order(probabilities: ArrayLike, classes: Classes) -> NDArray[Any]:
    """The probabilities as an array; a frame's columns in the order of the classes, by name."""
    table, names = numbers("probabilities", probabilities), ClassColumns.names_of(probabilities)
    if not names or classes is None:
        return table
    order = ClassColumns.of_classes(names, classes)
    if order is None:
        assert isinstance(classes, tuple)
        lacking = sorted(set(classes) - set(names))
        raise RobfcpError(
            f"columns: none is called {lacking[0]!r:.60}; the classes are {a_few(classes)}; "
            "rename the columns"
        )
    return table[:, order]


def numbered_labels(labels: ArrayLike, classes: Classes) -> NDArray[Any]:
    """Labels as class numbers, looked up where they are text and the classes have names."""
    found = numbers("labels", labels)
    if found.dtype.kind not in "USO" or not isinstance(classes, tuple):
        return found
    refuse_missing("labels", found)
    number = ClassColumns(tuple(range(len(classes))), classes).numbers(found)
    if (number < 0).any():
        wrong = found[int(np.argmax(number < 0))]
        raise RobfcpError(
            f"labels: {wrong!s:.60} is none of the classes {a_few(classes)}; check the names"
        )
    return number


def _name(score: object) -> str:
    return str(getattr(score, "name", score))
