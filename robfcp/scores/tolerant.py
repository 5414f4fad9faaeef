"""Scores of data that must not show by failing: what a score refuses becomes NaN, row by row."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.arguments import array
from robfcp.errors import RobfcpError
from robfcp.scores.base import ClassificationScore, Rng, Score, Scores


def scores_or_nan(
    score: Score, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None
) -> Scores:
    """(n,) scores, NaN where the score refuses a sample; no sample changes another's score.

    A private report may not fail because of one sample: that it failed would tell of it.
    """
    rows, truth = array("predictions", predictions), array("targets", targets)
    if rows.ndim == 0 or truth.ndim != 1 or len(rows) != len(truth):
        raise RobfcpError("targets: need one a prediction; pass arrays of the same length")
    if rows.dtype.kind in "iuO":
        rows = _floats(rows)
    if isinstance(score, ClassificationScore):
        truth = _labels(truth)
    refused = _refused(score, rows, truth)
    filler = 1 / rows.shape[1] if rows.ndim > 1 and isinstance(score, ClassificationScore) else 0
    whole = rows.astype(np.result_type(rows.dtype, np.float16), copy=True)
    whole[refused], truth = filler, np.where(refused, 0, truth)
    # All rows at once: which random numbers a sample gets depends on its place alone.
    values = _attempt(score, whole, truth, np.random.default_rng(rng))
    return np.where(refused | (values is None), np.nan, 0.0 if values is None else values)


def _refused(
    score: Score, rows: NDArray[np.generic], truth: NDArray[np.generic]
) -> NDArray[np.bool_]:
    """(n,) whether the score refuses a row by itself, found by halving what it refuses."""
    found = np.zeros(len(truth), dtype=bool)
    trial = np.random.default_rng(0)
    parts = [slice(0, len(truth))] if len(truth) else []
    while parts:
        part = parts.pop()
        if _attempt(score, rows[part], truth[part], trial) is not None:
            continue
        if part.stop - part.start == 1:
            found[part] = True
            continue
        middle = (part.start + part.stop) // 2
        parts += [slice(part.start, middle), slice(middle, part.stop)]
    return found


def _attempt(
    score: Score, rows: NDArray[np.generic], truth: NDArray[np.generic], rng: np.random.Generator
) -> Scores | None:
    """The scores of some rows, None where they cannot be had."""
    try:
        with np.errstate(all="ignore"):
            values = np.asarray(score(rows, truth, rng), dtype=np.float64)
    except Exception:  # whatever one sample does
        return None
    return values if values.shape == truth.shape else None


def _labels(truth: NDArray[np.generic]) -> NDArray[np.int64]:
    """Class numbers, -1 where there is none: one missing label makes a whole column float."""
    if truth.dtype.kind in "iu":
        return truth.astype(np.int64)
    numbers = _floats(truth)
    whole = np.isfinite(numbers) & (np.abs(numbers) < 2**53) & (numbers == np.round(numbers))
    return np.where(whole, numbers, -1).astype(np.int64)


def _floats(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """The values as numbers, NaN where they are none."""
    try:
        return values.astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        found = np.full(values.shape, np.nan)
        for place, value in np.ndenumerate(values):
            try:
                found[place] = float(value)
            except (ValueError, TypeError, OverflowError):
                continue
        return found
