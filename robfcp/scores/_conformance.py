"""Tries a score on everything the library relies on; for scores of users' own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, asdict, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import FloatArray
from robfcp.binning import Binning
from robfcp.errors import MAX_NAME, RobfcpError
from robfcp.scores._base import ClassificationScore, Score

_N_ROWS = 120
_N_CLASSES = 5


def check_score(score: Score) -> tuple[str, ...]:
    """Try a score on everything that reports, thresholds and sets rely on.

    Parameters
    ----------
    score : Score
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
    its default binning holds its scores
    one finite score a sample, and the same again with the same rng
    a sample's score depends on that sample alone
    what it is given stays as it was
    scores of given labels are those of all labels
    float16 and float32 are taken
    rows that are no probabilities are refused
    """
    return tuple(_checked_properties(score))


def _require(condition: object, message: str) -> None:
    """Refuse a score with a message where a condition does not hold."""
    if not condition:
        raise RobfcpError(message)


def _checked_properties(score: Any) -> Iterator[str]:
    """Yield each property once it was checked."""
    _check_declaration(score)
    yield "it is a frozen dataclass with a name"

    _check_parameters(score)
    yield "its parameters can stand in a report"

    trial = _Trial(score)
    trial.check_range()
    yield "its default binning holds its scores"

    trial.check_repeatable()
    yield "one finite score a sample, and the same again with the same rng"

    trial.check_independent()
    yield "a sample's score depends on that sample alone"

    trial.check_inputs_unchanged()
    yield "what it is given stays as it was"

    if trial.is_classification:
        yield from _check_sets(trial)
    else:
        trial.check_intervals()
        yield "the interval holds the targets whose score is at most the threshold"


def _check_declaration(score: Any) -> None:
    """Refuse what is no frozen dataclass with a name."""
    name: Any = getattr(score, "name", None)
    message = "score: is no instance of a dataclass; put @dataclass(frozen=True) on it"
    _require(is_dataclass(type(score)), message)
    is_name = isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()
    _require(is_name, 'score: has no name; add name = "margin", say')
    is_parameter = any(field.name == "name" for field in fields(score))
    _require(not is_parameter, f"{name}: the name is a parameter; write name = ... without a type")
    try:
        score.name = name
    except FrozenInstanceError:
        return
    raise RobfcpError(f"{name}: can be changed; put @dataclass(frozen=True) on it")


def _check_parameters(score: Any) -> None:
    """Refuse parameters that do not come back from JSON."""
    try:
        restored = type(score)(**json.loads(json.dumps(asdict(score))))
        is_same = restored == score
    except (TypeError, ValueError):
        is_same = False
    _require(is_same, f"{score.name}: parameters must be plain numbers, words or booleans")


class _Trial:
    """A score, samples to try it on, and their scores."""

    def __init__(self, score: Any) -> None:
        self.score = score
        self.is_classification = isinstance(score, ClassificationScore)
        self.binning = score.default_binning()
        message = f"{score.name}: default_grid must return a robfcp.Grid"
        _require(isinstance(self.binning, Binning), message)

        self.predictions, self.targets = _sample_inputs(score)
        self.scores = self.score_first()
        message = (
            f"{score.name}: gives shape {self.scores.shape} for {len(self.targets)} samples; "
            "return (n,)"
        )
        _require(self.scores.shape == self.targets.shape, message)

    def score_first(self, n_samples: int | None = None) -> FloatArray:
        """Return the scores of the first samples, of all if None."""
        predictions = self.predictions[:n_samples].copy()
        scores = self.score(predictions, self.targets[:n_samples], 0)
        return np.asarray(scores, dtype=np.float64)

    def check_range(self) -> None:
        """Refuse scores outside the default binning."""
        low = float(self.binning.edges[0])
        high = float(self.binning.edges[-1])
        smallest = self.scores.min()
        largest = self.scores.max()
        _require(
            not (smallest < low or largest > high),
            f"{self.score.name}: scores from {smallest:.4g} to {largest:.4g} leave its default "
            f"binning [{low:g}, {high:g}]; return Binning.extended() or Binning.open_ended()",
        )

    def check_repeatable(self) -> None:
        """Refuse scores that are not finite, or differ with the same rng."""
        name = self.score.name
        is_finite = np.isfinite(self.scores).all()
        _require(is_finite, f"{name}: some scores are NaN or infinite; bound them")
        is_same = self.scores.tobytes() == self.score_first().tobytes()
        _require(is_same, f"{name}: draws numbers of its own; take them from rng only")

    def check_independent(self) -> None:
        """Refuse scores that depend on other samples."""
        n_samples = 7
        scores = self.score_first(n_samples)
        is_same = np.allclose(scores, self.scores[:n_samples], rtol=1e-12, atol=1e-12)
        message = f"{self.score.name}: a score depends on other samples; use its own row alone"
        _require(is_same, message)

    def check_inputs_unchanged(self) -> None:
        """Refuse a score that writes into what it is given."""
        message = f"{self.score.name}: changes the array it is given; copy it"
        predictions = self.predictions.copy()
        self.score(predictions, self.targets, rng=0)
        _require(np.array_equal(predictions, self.predictions), message)
        if self.is_classification:
            self.score.score_all_labels(predictions, rng=0)
            _require(np.array_equal(predictions, self.predictions), message)

    def check_intervals(self) -> None:
        """Refuse intervals that are not where the score is at most the threshold."""
        name = self.score.name
        message = f"{name}: is no ClassificationScore and has no interval(predictions, threshold)"
        _require(callable(getattr(self.score, "interval", None)), message)
        for threshold in np.quantile(self.scores, [0.2, 0.9]):
            bounds = np.asarray(self.score.interval(self.predictions, float(threshold)))
            is_inside = (bounds[:, 0] <= self.targets) & (self.targets <= bounds[:, 1])
            is_clear = np.abs(self.scores - threshold) > 1e-9
            is_covered = self.scores <= threshold
            is_same = np.array_equal(is_inside[is_clear], is_covered[is_clear])
            message = f"{name}: interval is not where the score is at most threshold"
            _require(is_same, message)


def _check_sets(trial: _Trial) -> Iterator[str]:
    """Yield each property that prediction sets rely on, once it was checked."""
    score = trial.score
    predictions = trial.predictions
    uniforms = score._uniforms(len(predictions), 0)
    exact = np.asarray(score.label_scores(predictions, uniforms))
    _require(
        exact.shape == predictions.shape,
        f"{score.name}: of_all gives shape {exact.shape} for {predictions.shape} probabilities; "
        "return a score for every label",
    )
    scores_of_targets = exact[np.arange(len(exact)), trial.targets]
    is_same = np.allclose(scores_of_targets, trial.scores, atol=1e-12)
    _require(is_same, f"{score.name}: of_all and the score of a given label differ")
    yield "scores of given labels are those of all labels"

    magnitude = max(1.0, float(np.abs(exact).max()))
    for kind, tolerance in ((np.float32, 1e-4), (np.float16, 0.05)):
        table = np.asarray(score.score_all_labels(predictions.astype(kind), 0), dtype=np.float64)
        is_close = np.median(np.abs(table - exact)) <= tolerance * magnitude
        _require(is_close, f"{score.name}: {np.dtype(kind)} gives other scores; use float64")
    yield "float16 and float32 are taken"

    for row in ([0.5, 0.9], [1.5, -0.5], [np.nan, 1.0]):
        message = f"{score.name}: takes {row}; write of_all alone, the base checks"
        _require(_refuses(score, np.array([row]), [0]), message)
        _require(_refuses(score.score_all_labels, np.array([row])), message)
    yield "rows that are no probabilities are refused"


def _refuses(function: Any, *arguments: Any) -> bool:
    """Return whether a function of a score refuses its arguments."""
    try:
        function(*arguments, rng=0)
    except RobfcpError:
        return True
    return False


def _sample_inputs(score: Any) -> tuple[FloatArray, NDArray[Any]]:
    """Return predictions and their targets.

    Probabilities with ties and certainties among them, for regression numbers, or pairs of
    quantiles where the score refuses numbers.
    """
    rng = np.random.default_rng(0)
    if isinstance(score, ClassificationScore):
        probabilities = rng.dirichlet(np.full(_N_CLASSES, 0.5), _N_ROWS)
        probabilities[0] = np.eye(_N_CLASSES)[0]
        probabilities[1] = 1 / _N_CLASSES
        probabilities[2] = [0.4, 0.4, 0.1, 0.1, 0.0]
        return probabilities, rng.integers(0, _N_CLASSES, _N_ROWS)

    centers = rng.normal(size=_N_ROWS)
    targets = centers + rng.normal(size=_N_ROWS)
    try:
        score(centers, targets, 0)
    except RobfcpError:
        quantiles = np.stack([centers - 0.5, centers + 0.5], axis=1)
        return quantiles, targets
    return centers, targets
