"""Tries a score on everything the library relies on; for scores of users' own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, asdict, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.binning import Binning
from robfcp.errors import MAX_NAME, RobfcpError
from robfcp.scores._base import ClassificationScore, Score

_ROWS, _CLASSES = 120, 5


def check_score(score: Score) -> tuple[str, ...]:
    """Try a score on everything that reports, thresholds and sets rely on.

    Parameters
    ----------
    score
        A score of your own: an instance of a `ClassificationScore`, or a regression score with
        `interval`.

    Returns
    -------
    tuple of str
        What was checked.

    Raises
    ------
    RobfcpError
        At the first thing that does not hold, with what to change.

    Examples
    --------
    >>> import robfcp
    >>> for held in robfcp.scores.check_score(robfcp.LAC()):
    ...     print(held)
    it is a frozen dataclass with a name
    its parameters can stand in a report
    its default grid holds its scores
    one finite score a sample, and the same again with the same rng
    a sample's score depends on that sample alone
    what it is given stays as it was
    scores of given labels are those of all labels
    float16 and float32 are taken
    rows that are no probabilities are refused
    """
    return tuple(_checked_properties(score))


def _require(holds: object, otherwise: str) -> None:
    if not holds:
        raise RobfcpError(otherwise)


def _checked_properties(score: Any) -> Iterator[str]:
    """Each promise once it was found to hold."""
    name: Any = getattr(score, "name", None)
    plain = "score: is no instance of a dataclass; put @dataclass(frozen=True) on it"
    _require(is_dataclass(type(score)), plain)
    named = isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()
    _require(named, 'score: has no name; add name = "margin", say')
    free = all(field.name != "name" for field in fields(score))
    _require(free, f"{name}: the name is a parameter; write name = ... without a type")
    try:
        score.name = name
    except FrozenInstanceError:
        yield "it is a frozen dataclass with a name"
    else:
        raise RobfcpError(f"{name}: can be changed; put @dataclass(frozen=True) on it")

    try:
        same = type(score)(**json.loads(json.dumps(asdict(score)))) == score
    except (TypeError, ValueError):
        same = False
    _require(same, f"{name}: parameters must be plain numbers, words or booleans")
    yield "its parameters can stand in a report"

    grid = score.default_binning()
    _require(isinstance(grid, Binning), f"{name}: default_grid must return a robfcp.Grid")
    predictions, targets = _sample_inputs(score)

    def scores(number: int | None = None) -> NDArray[np.float64]:
        values = score(predictions[:number].copy(), targets[:number], 0)
        return np.asarray(values, dtype=np.float64)

    values = scores()
    shape = f"{name}: gives shape {values.shape} for {len(targets)} samples; return (n,)"
    _require(values.shape == targets.shape, shape)
    low, high = float(grid.edges[0]), float(grid.edges[-1])
    _require(
        not (values.min() < low or values.max() > high),
        f"{name}: scores from {values.min():.4g} to {values.max():.4g} leave its default grid "
        f"[{low:g}, {high:g}]; return Binning.extended() or Binning.open_ended()",
    )
    yield "its default grid holds its scores"

    _require(np.isfinite(values).all(), f"{name}: some scores are NaN or infinite; bound them")
    again = values.tobytes() == scores().tobytes()
    _require(again, f"{name}: draws numbers of its own; take them from rng only")
    yield "one finite score a sample, and the same again with the same rng"

    alone = np.allclose(scores(7), values[:7], rtol=1e-12, atol=1e-12)
    _require(alone, f"{name}: a score depends on other samples; use its own row alone")
    yield "a sample's score depends on that sample alone"

    classes = isinstance(score, ClassificationScore)
    for call, *others in (
        [(score, targets), (score.score_all_labels,)] if classes else [(score, targets)]
    ):
        given = predictions.copy()
        call(given, *others, rng=0)
        _require(
            np.array_equal(given, predictions), f"{name}: changes the array it is given; copy it"
        )
    yield "what it is given stays as it was"
    yield from (_check_sets if classes else _check_intervals)(score, predictions, targets, values)


def _check_sets(score: Any, predictions: Any, targets: Any, values: Any) -> Iterator[str]:
    """What prediction sets rely on."""
    exact = np.asarray(score.label_scores(predictions, score._uniforms(len(predictions), 0)))
    _require(
        exact.shape == predictions.shape,
        f"{score.name}: of_all gives shape {exact.shape} for {predictions.shape} probabilities; "
        "return a score for every label",
    )
    same = np.allclose(exact[np.arange(len(exact)), targets], values, atol=1e-12)
    _require(same, f"{score.name}: of_all and the score of a given label differ")
    yield "scores of given labels are those of all labels"

    size = max(1.0, float(np.abs(exact).max()))
    for kind, tolerance in ((np.float32, 1e-4), (np.float16, 0.05)):
        table = np.asarray(score.score_all_labels(predictions.astype(kind), 0), dtype=np.float64)
        close = np.median(np.abs(table - exact)) <= tolerance * size
        _require(close, f"{score.name}: {np.dtype(kind)} gives other scores; use float64")
    yield "float16 and float32 are taken"

    for row in ([0.5, 0.9], [1.5, -0.5], [np.nan, 1.0]):
        for call, *others in ((score, [0]), (score.score_all_labels,)):
            try:
                call(np.array([row]), *others, rng=0)
            except RobfcpError:
                continue
            raise RobfcpError(f"{score.name}: takes {row}; write of_all alone, the base checks")
    yield "rows that are no probabilities are refused"


def _check_intervals(score: Any, predictions: Any, targets: Any, values: Any) -> Iterator[str]:
    """What prediction intervals rely on."""
    lacking = f"{score.name}: is no ClassificationScore and has no interval(predictions, threshold)"
    _require(callable(getattr(score, "interval", None)), lacking)
    for threshold in np.quantile(values, [0.2, 0.9]):
        ends = np.asarray(score.interval(predictions, float(threshold)))
        inside = (ends[:, 0] <= targets) & (targets <= ends[:, 1])
        clear = np.abs(values - threshold) > 1e-9
        fits = np.array_equal(inside[clear], (values <= threshold)[clear])
        _require(fits, f"{score.name}: interval is not where the score is at most threshold")
    yield "the interval holds the targets whose score is at most the threshold"


def _sample_inputs(score: Any) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Probabilities with ties and certainties among them, or predictions, and their targets."""
    rng = np.random.default_rng(0)
    if isinstance(score, ClassificationScore):
        p = rng.dirichlet(np.full(_CLASSES, 0.5), _ROWS)
        p[0], p[1], p[2] = np.eye(_CLASSES)[0], 1 / _CLASSES, [0.4, 0.4, 0.1, 0.1, 0.0]
        return p, rng.integers(0, _CLASSES, _ROWS)
    centre = rng.normal(size=_ROWS)
    targets = centre + rng.normal(size=_ROWS)
    try:
        score(centre, targets, 0)
    except RobfcpError:
        return np.stack([centre - 0.5, centre + 0.5], axis=1), targets
    return centre, targets
