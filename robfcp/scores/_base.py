"""What every score has, the base of classification scores that users extend, scores by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._probabilities import (
    ClassColumns,
    Probabilities,
    check_labels,
    check_probabilities,
    checked_blocks,
)
from robfcp._validation import Rng, as_array, as_floats_or_nan, as_generator, as_integers
from robfcp.binning import Binning
from robfcp.errors import RobfcpError

Scores = NDArray[np.float64]
SetMembership = NDArray[np.bool_]
ScoreType = TypeVar("ScoreType", bound=type)

BUILTIN_SCORES: dict[str, type[Any]] = {}  # those a file can name


def register_builtin(kind: ScoreType) -> ScoreType:
    """The score itself, which files can name from now on."""
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
    name
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

    def __call__(self, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None) -> Scores:
        """One score a sample, for its true target.

        Parameters
        ----------
        predictions
            The model's outputs, one row a sample.
        targets
            The true targets, one a sample.
        rng
            A seed or generator, for scores that draw random numbers.

        Returns
        -------
        (n,) array
            The scores; bigger is stranger.
        """
        ...

    def default_binning(self) -> Binning:
        """The grid that fits this score's range."""
        ...


class ClassificationScore(ABC):
    """Checks, blocks and randomness; a subclass supplies the formula on one block of rows.

    Extend it for a score of your own: a frozen dataclass with a `name` and `label_scores`, the
    formula for all labels of some rows. With a field `randomized` that is True, `label_scores` gets
    a uniform number for every row; otherwise ones. `check_score` tries a score on everything the
    library relies on.

    Attributes
    ----------
    name
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
        if hasattr(self, "randomized"):
            if not isinstance(self.randomized, (bool, np.bool_)):
                raise RobfcpError(f"{self.name}: randomized must be True or False; fix it")
            object.__setattr__(self, "randomized", bool(self.randomized))

    def __call__(self, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None) -> Scores:
        """The (n,) scores of the given labels.

        Parameters
        ----------
        predictions
            (n, C) class probabilities.
        targets
            (n,) class numbers from 0; names of the columns where `predictions` is a frame.
        rng
            A seed or generator, for randomised scores.

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
        label = check_labels(targets, table.shape, names=ClassColumns.names_of(predictions))
        u = self._uniforms(len(table), rng)
        scores = np.empty(len(table))
        for rows, p in checked_blocks(table):
            scores[rows] = self._score_labels(p, label[rows], u[rows])
        return scores

    def score_all_labels(self, predictions: ArrayLike, rng: Rng = None) -> Scores:
        """The (n, C) scores of every label; a sample's u is the same for all its labels.

        Parameters
        ----------
        predictions
            (n, C) class probabilities.
        rng
            A seed or generator, for randomised scores.

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
        u, scores = self._uniforms(len(table), rng), np.empty(table.shape)
        for rows, p in checked_blocks(table):
            scores[rows] = self.label_scores(p, u[rows])
        return scores

    def prediction_sets(
        self,
        predictions: ArrayLike,
        thresholds: ArrayLike,
        rng: Rng = None,
        *,
        non_empty: bool = False,
    ) -> SetMembership:
        """Which labels score at most the limits.

        Parameters
        ----------
        predictions
            (n, C) class probabilities.
        thresholds
            (L,), (C, L) where each label has its own, or (n, 1, L) where each row has.
        rng
            A seed or generator, for randomised scores.
        non_empty
            Put the label with the least score into sets that would be empty.

        Returns
        -------
        (n, C, L) array of bool
            Whether each label is in each row's set, at every limit.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.LAC().prediction_sets([[0.75, 0.25]], [0.5])[:, :, 0]
        array([[ True, False]])
        """
        table = check_probabilities(predictions)
        members = np.empty((*table.shape, np.shape(thresholds)[-1]), dtype=bool)
        for rows, own in self.iter_prediction_sets(table, thresholds, rng, non_empty=non_empty):
            members[rows] = own
        return members

    def iter_prediction_sets(
        self,
        predictions: ArrayLike,
        thresholds: ArrayLike,
        rng: Rng = None,
        *,
        non_empty: bool = False,
    ) -> Iterator[tuple[slice, SetMembership]]:
        """The same as (rows, members) blocks, for more rows than memory holds.

        Parameters
        ----------
        predictions, thresholds, rng, non_empty
            As `prediction_sets` takes them; a memory map, for instance.
        """
        table, thresholds = (
            check_probabilities(predictions),
            np.asarray(thresholds, dtype=np.float64),
        )
        u, floor = self._uniforms(len(table), rng), self._lower_bound(table, thresholds)
        for rows, p in checked_blocks(table):
            own = thresholds[rows] if thresholds.ndim == 3 else thresholds
            yield rows, self._set_members(p, u[rows], own, floor, non_empty)

    def default_binning(self) -> Binning:
        """The fine grid on [0, 1].

        Returns
        -------
        Binning
            The same grid for every site, so that reports fit together.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.LAC().default_binning() == robfcp.Binning.default()
        True
        """
        return Binning.default()

    @abstractmethod
    def label_scores(self, probabilities: Probabilities, uniforms: Scores) -> Scores:
        """The formula: (n, C) scores of all labels of some rows.

        Parameters
        ----------
        probabilities
            (n, C) probabilities, float16 to float64; none negative, every row sums to 1.
        uniforms
            (n,) uniform numbers where the score is randomised, else ones.

        Returns
        -------
        (n, C) array
            The score of every label; a row's must not depend on other rows.
        """

    def _lower_bound(self, p: Probabilities, limits: Scores) -> float:
        """A guess, from unchecked rows, of the probability up to which no label is in a set."""
        return -1.0

    def _set_members(
        self, p: Probabilities, u: Scores, limits: Scores, floor: float, non_empty: bool
    ) -> SetMembership:
        """(n, C, L) whether each label scores at most the limits."""
        scores = self.label_scores(p, u)
        members = scores[:, :, None] <= limits
        if non_empty:
            row, level = np.nonzero(~members.any(axis=1))
            members[row, scores[row].argmin(axis=1), level] = True
        return members

    def _uniforms(self, n: int, rng: Rng) -> Scores:
        """u of every sample; 1 without randomisation."""
        if not getattr(self, "randomized", False):
            return np.broadcast_to(1.0, n)
        if rng is None:
            raise RobfcpError(
                f"{self.name}: a randomised score needs rng=; pass a seed or use randomized=False"
            )
        return as_generator(rng).random(n)

    def _score_labels(self, p: Probabilities, label: NDArray[np.intp], u: Scores) -> Scores:
        """The scores of one label a row."""
        return self.label_scores(p, u)[np.arange(len(p)), label]


def get_score(name: str, /, **parameters: Any) -> Score:
    """The score a report names, its parameters checked against the types of the defaults."""
    if name not in BUILTIN_SCORES:
        raise RobfcpError(f"score: unknown score {name!r}; known are {', '.join(BUILTIN_SCORES)}")
    defaults = {field.name: field.default for field in fields(BUILTIN_SCORES[name])}
    for key, value in parameters.items():
        kind = type(defaults.get(key))
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise RobfcpError(f"score: {name} does not take {key}={value!r}; fix its parameters")
    score: Score = BUILTIN_SCORES[name](**parameters)
    return score


def scores_with_nan(
    score: Score, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None
) -> Scores:
    """(n,) scores, NaN where the score refuses a sample; no sample changes another's score.

    A private report may not fail because of one sample: that it failed would tell of it.
    """
    rows, truth = as_array("predictions", predictions), as_array("targets", targets)
    if rows.ndim == 0 or truth.ndim != 1 or len(rows) != len(truth):
        raise RobfcpError("targets: need one a prediction; pass arrays of the same length")
    classes = isinstance(score, ClassificationScore)
    if rows.dtype.kind in "iuO":
        rows = as_floats_or_nan(rows)
    if classes and truth.dtype.kind not in "iu":  # one missing label makes a whole column float
        truth = as_integers(as_floats_or_nan(truth))

    def attempt(part: slice, rng: np.random.Generator) -> Scores | None:
        """The scores of some rows, None where they cannot be had."""
        try:
            with np.errstate(all="ignore"):
                values = np.asarray(score(rows[part], truth[part], rng), dtype=np.float64)
        except Exception:  # whatever one sample does
            return None
        return values if values.shape == truth[part].shape else None

    refused, trial = np.zeros(len(truth), dtype=bool), np.random.default_rng(0)
    parts = [slice(0, len(truth))] if len(truth) else []
    while parts:  # what is refused is halved until it is one row
        part = parts.pop()
        if attempt(part, trial) is not None:
            continue
        middle = (part.start + part.stop) // 2
        if middle == part.start:
            refused[part] = True
        else:
            parts += [slice(part.start, middle), slice(middle, part.stop)]
    rows = rows.astype(np.result_type(rows.dtype, np.float16), copy=True)
    rows[refused] = 1 / rows.shape[1] if rows.ndim > 1 and classes else 0
    truth = np.where(refused, 0, truth)
    # All rows at once: which random numbers a sample gets depends on its place alone.
    values = attempt(slice(None), np.random.default_rng(rng))
    return np.where(refused, np.nan, values) if values is not None else np.full(len(rows), np.nan)
