"""What every score has, the base of classification scores that users extend, scores by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from robfcp._probabilities import (
    ClassColumns,
    Probabilities,
    check_labels,
    check_probabilities,
    checked_blocks,
)
from robfcp._typing import BoolArray, FloatArray, IndexArray
from robfcp._validation import (
    Rng,
    as_array,
    as_floats_or_nan,
    as_generator,
    as_integers,
    set_fields,
)
from robfcp.binning import Binning
from robfcp.errors import RobfcpError

ScoreType = TypeVar("ScoreType", bound=type)

BUILTIN_SCORES: dict[str, type[Any]] = {}  # those a file can name


def register_builtin(kind: ScoreType) -> ScoreType:
    """Return the class of a score, which files can name from now on."""
    BUILTIN_SCORES[kind.name] = kind  # type: ignore[attr-defined]
    return kind


@runtime_checkable
class Score(Protocol):
    """What every score has. Parameters are the fields of a frozen dataclass.

    A protocol: any frozen dataclass with `name`, `__call__` and `default_binning` is a score. For
    prediction intervals it needs `interval(predictions, threshold)` too; for prediction sets
    extend `ClassificationScore`.

    Attributes
    ----------
    name : ClassVar[str]
        What reports call the score.

    Examples
    --------
    >>> import robfcp
    >>> isinstance(robfcp.LAC(), robfcp.Score)
    True
    >>> robfcp.LAC().name
    'lac'
    """

    name: ClassVar[str]

    def __call__(self, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None) -> FloatArray:
        """Return one score a sample, for its true target.

        Parameters
        ----------
        predictions : array_like
            The model's outputs, one row a sample.
        targets : array_like
            The true targets, one a sample.
        rng : int, Generator or None
            A seed or generator, for scores that draw random numbers.

        Returns
        -------
        (n,) array
            The scores; bigger is stranger.
        """
        ...

    def default_binning(self) -> Binning:
        """Return the binning that fits this score's range."""
        ...


class ClassificationScore(ABC):
    """Checks, blocks and randomness; a subclass supplies the formula on one block of rows.

    Extend it for a score of your own: a frozen dataclass with a `name` and `label_scores`, the
    formula for all labels of some rows. With a field `randomized` that is True, `label_scores` gets
    a uniform number for every row; otherwise ones. `check_score` tries a score on everything the
    library relies on.

    Attributes
    ----------
    name : ClassVar[str]
        What reports call the score.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> import robfcp
    >>> @dataclass(frozen=True)
    ... class Margin(robfcp.ClassificationScore):
    ...     name = "margin"
    ...     def label_scores(self, probabilities, uniforms):
    ...         return (1 + probabilities.max(axis=1, keepdims=True) - probabilities) / 2
    >>> Margin()([[0.5, 0.25, 0.25]], [1])
    array([0.625])
    """

    name: ClassVar[str]

    def __post_init__(self) -> None:
        if not hasattr(self, "randomized"):
            return
        if not isinstance(self.randomized, (bool, np.bool_)):
            raise RobfcpError(f"{self.name}: randomized must be True or False; fix it")
        set_fields(self, randomized=bool(self.randomized))

    def __call__(self, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None) -> FloatArray:
        """Return the (n,) scores of the given labels.

        Parameters
        ----------
        predictions : array_like, shape (n, C)
            Class probabilities.
        targets : array_like, shape (n,)
            Class numbers from 0; names of the columns where `predictions` is a frame.
        rng : int, Generator or None
            A seed or generator, for randomized scores.

        Returns
        -------
        (n,) array
            One score a sample.

        Raises
        ------
        RobfcpError
            Where a row is no probability vector, or labels do not fit.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.LAC()([[0.75, 0.25], [0.5, 0.5]], [0, 1])
        array([0.25, 0.5 ])
        >>> import pandas as pd
        >>> robfcp.LAC()(pd.DataFrame({"flu": [0.75], "cold": [0.25]}), ["cold"])
        array([0.75])
        """
        table = check_probabilities(predictions)
        labels = check_labels(targets, table.shape, names=ClassColumns.names_of(predictions))
        uniforms = self._uniforms(len(table), rng)
        scores = np.empty(len(table))
        for rows, probabilities in checked_blocks(table):
            scores[rows] = self._score_labels(probabilities, labels[rows], uniforms[rows])
        return scores

    def score_all_labels(self, predictions: ArrayLike, rng: Rng = None) -> FloatArray:
        """Return the (n, C) scores of every label; a sample's u is the same for all its labels.

        Parameters
        ----------
        predictions : array_like, shape (n, C)
            Class probabilities.
        rng : int, Generator or None
            A seed or generator, for randomized scores.

        Returns
        -------
        (n, C) array
            The score each label would have.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.LAC().score_all_labels([[0.75, 0.25], [0.5, 0.5]])
        array([[0.25, 0.75],
               [0.5 , 0.5 ]])
        """
        table = check_probabilities(predictions)
        uniforms = self._uniforms(len(table), rng)
        scores = np.empty(table.shape)
        for rows, probabilities in checked_blocks(table):
            scores[rows] = self.label_scores(probabilities, uniforms[rows])
        return scores

    def prediction_sets(
        self,
        predictions: ArrayLike,
        thresholds: ArrayLike,
        rng: Rng = None,
        *,
        non_empty: bool = False,
    ) -> BoolArray:
        """Return which labels score at most the thresholds.

        Parameters
        ----------
        predictions : array_like, shape (n, C)
            Class probabilities.
        thresholds : array_like
            (L,), (C, L) where each label has its own, or (n, 1, L) where each row has.
        rng : int, Generator or None
            A seed or generator, for randomized scores.
        non_empty : bool
            Put the label with the least score into sets that would be empty.

        Returns
        -------
        (n, C, L) array of bool
            Whether each label is in each row's set, at every threshold.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.LAC().prediction_sets([[0.75, 0.25]], [0.5])[:, :, 0]
        array([[ True, False]])
        """
        table = check_probabilities(predictions)
        membership = np.empty((*table.shape, np.shape(thresholds)[-1]), dtype=bool)
        blocks = self.iter_prediction_sets(table, thresholds, rng, non_empty=non_empty)
        for rows, membership_of_rows in blocks:
            membership[rows] = membership_of_rows
        return membership

    def iter_prediction_sets(
        self,
        predictions: ArrayLike,
        thresholds: ArrayLike,
        rng: Rng = None,
        *,
        non_empty: bool = False,
    ) -> Iterator[tuple[slice, BoolArray]]:
        """Yield the same as (rows, membership) blocks, for more rows than memory holds.

        Parameters
        ----------
        predictions, thresholds, rng, non_empty
            As `prediction_sets` takes them; a memory map, for instance.
        """
        table = check_probabilities(predictions)
        thresholds = np.asarray(thresholds, dtype=np.float64)
        uniforms = self._uniforms(len(table), rng)
        lower_bound = self._lower_bound(table, thresholds)
        for rows, probabilities in checked_blocks(table):
            thresholds_of_rows = thresholds[rows] if thresholds.ndim == 3 else thresholds
            membership = self._set_members(
                probabilities, uniforms[rows], thresholds_of_rows, lower_bound, non_empty
            )
            yield rows, membership

    def default_binning(self) -> Binning:
        """Return the fine binning on [0, 1].

        Returns
        -------
        Binning
            The same for every client, so that reports fit together.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.LAC().default_binning() == robfcp.Binning.default()
        True
        """
        return Binning.default()

    @abstractmethod
    def label_scores(self, probabilities: Probabilities, uniforms: FloatArray) -> FloatArray:
        """Return (n, C) scores of all labels of some rows: the formula.

        Parameters
        ----------
        probabilities : ndarray of float, shape (n, C)
            Probabilities, float16 to float64; none negative, every row sums to 1.
        uniforms : ndarray of float, shape (n,)
            Uniform numbers where the score is randomized, else ones.

        Returns
        -------
        (n, C) array
            The score of every label; a row's must not depend on other rows.
        """

    def _lower_bound(self, probabilities: Probabilities, thresholds: FloatArray) -> float:
        """Return a guess, from unchecked rows, up to which probability no label is in a set."""
        return -1.0

    def _set_members(
        self,
        probabilities: Probabilities,
        uniforms: FloatArray,
        thresholds: FloatArray,
        lower_bound: float,
        non_empty: bool,
    ) -> BoolArray:
        """Return (n, C, L) whether each label scores at most the thresholds.

        Parameters
        ----------
        probabilities : ndarray of float, shape (n, C)
            Of some rows.
        uniforms : ndarray of float, shape (n,)
            Their uniform numbers.
        thresholds : ndarray of float
            (L,), (C, L) or (n, 1, L), as `prediction_sets` takes them.
        lower_bound : float
            The guess of `_lower_bound`, from all rows.
        non_empty : bool
            Whether to put the label with the least score into sets that would be empty.
        """
        scores = self.label_scores(probabilities, uniforms)
        membership = scores[:, :, None] <= thresholds
        if non_empty:
            empty_rows, empty_levels = np.nonzero(~membership.any(axis=1))
            best_labels = scores[empty_rows].argmin(axis=1)
            membership[empty_rows, best_labels, empty_levels] = True
        return membership

    def _uniforms(self, n_samples: int, rng: Rng) -> FloatArray:
        """Return (n,) the uniform number of every sample; 1 without randomization."""
        if not getattr(self, "randomized", False):
            return np.broadcast_to(1.0, n_samples)
        if rng is None:
            raise RobfcpError(
                f"{self.name}: a randomized score needs rng=; pass a seed or use randomized=False"
            )
        return as_generator(rng).random(n_samples)

    def _score_labels(
        self, probabilities: Probabilities, labels: IndexArray, uniforms: FloatArray
    ) -> FloatArray:
        """Return (n,) the scores of one label a row."""
        rows = np.arange(len(probabilities))
        return self.label_scores(probabilities, uniforms)[rows, labels]


def get_score(name: str, /, **parameters: Any) -> Score:
    """Return the score that a report names.

    Parameters
    ----------
    name : str
        One of those built in.
    **parameters : Any
        Its parameters, of the types of their defaults.

    Raises
    ------
    RobfcpError
        Where the score or a parameter is unknown, or a parameter is of another type.
    """
    if name not in BUILTIN_SCORES:
        raise RobfcpError(f"score: unknown score {name!r}; known are {', '.join(BUILTIN_SCORES)}")
    score_class = BUILTIN_SCORES[name]
    defaults = {field.name: field.default for field in fields(score_class)}
    for parameter, value in parameters.items():
        expected_type = type(defaults.get(parameter))
        is_integer_for_float = expected_type is float and type(value) is int
        if type(value) is not expected_type and not is_integer_for_float:
            raise RobfcpError(
                f"score: {name} does not take {parameter}={value!r}; fix its parameters"
            )
    score: Score = score_class(**parameters)
    return score


def scores_with_nan(
    score: Score, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None
) -> FloatArray:
    """Return (n,) scores, NaN where the score refuses a sample.

    No sample changes another's score. A private report may not fail because of one sample: that it
    failed would tell of it.

    Parameters
    ----------
    score : Score
        The score to compute.
    predictions, targets : array_like
        n samples, as the score takes them; single ones may be broken.
    rng : int or Generator, optional
        As the score takes it.
    """
    inputs = as_array("predictions", predictions)
    truth = as_array("targets", targets)
    if inputs.ndim == 0 or truth.ndim != 1 or len(inputs) != len(truth):
        raise RobfcpError("targets: need one a prediction; pass arrays of the same length")
    is_classification = isinstance(score, ClassificationScore)
    if inputs.dtype.kind in "iuO":
        inputs = as_floats_or_nan(inputs)
    if is_classification and truth.dtype.kind not in "iu":
        # One missing label makes a whole column float.
        truth = as_integers(as_floats_or_nan(truth))

    # Put a valid sample in the place of each refused one.
    is_refused = _refused_samples(score, inputs, truth)
    inputs = inputs.astype(np.result_type(inputs.dtype, np.float16), copy=True)
    is_matrix_of_probabilities = is_classification and inputs.ndim > 1
    inputs[is_refused] = 1 / inputs.shape[1] if is_matrix_of_probabilities else 0
    truth = np.where(is_refused, 0, truth)

    # All rows at once: which random numbers a sample gets depends on its position alone.
    scores = _try_score(score, inputs, truth, np.random.default_rng(rng))
    if scores is None:
        return np.full(len(inputs), np.nan)
    return np.where(is_refused, np.nan, scores)


def _refused_samples(score: Score, inputs: Any, truth: Any) -> BoolArray:
    """Return (n,) whether the score refuses each sample.

    Whatever rows are refused are halved until a single row is refused.
    """
    n_samples = len(truth)
    is_refused = np.zeros(n_samples, dtype=bool)
    generator = np.random.default_rng(0)
    untried = [slice(0, n_samples)] if n_samples else []
    while untried:
        rows = untried.pop()
        if _try_score(score, inputs[rows], truth[rows], generator) is not None:
            continue
        midpoint = (rows.start + rows.stop) // 2
        if midpoint == rows.start:
            is_refused[rows] = True
        else:
            untried.append(slice(rows.start, midpoint))
            untried.append(slice(midpoint, rows.stop))
    return is_refused


def _try_score(
    score: Score, inputs: Any, truth: Any, rng: np.random.Generator
) -> FloatArray | None:
    """Return the scores of some rows, None where they cannot be computed."""
    try:
        with np.errstate(all="ignore"):
            scores = np.asarray(score(inputs, truth, rng), dtype=np.float64)
    except Exception:  # whatever a sample does
        return None
    return scores if scores.shape == truth.shape else None
