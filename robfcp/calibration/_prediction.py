"""Prediction: the sets and intervals that calibrated thresholds give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._probabilities import reorder_columns
from robfcp._typing import FloatArray
from robfcp._validation import Rng, as_array
from robfcp.calibration._levels import CoverageLevel
from robfcp.errors import RobfcpError
from robfcp.reports import StratumKind, StratumNames
from robfcp.scores import ClassificationScore, Risk, Score

T = TypeVar("T")
D = TypeVar("D", np.bool_, np.float64)


@dataclass(frozen=True, eq=False, repr=False)
class Predictor:
    """Thresholds, the score that they are compared with, and the classes of the columns.

    Methods that predict return arrays whose last axis has one entry for each level. Where a single
    coverage was asked for, there is no such axis.

    Attributes
    ----------
    levels : tuple of CoverageLevel
        Threshold and certificate for every coverage asked for: L of them, at least one. All have
        the same strata in the same order.
    has_multiple_levels : bool
        Whether they were asked for as a list, of one or more; results then have an axis of levels.
    by : {"class", "group"} or None
        Whether every class or group has a threshold of its own.
    score : Score or None
        The score that the reports name, if they do; sets and intervals are made with it.
    risk : Risk or None
        The loss that is controlled in place of coverage, if so.
    classes : tuple of str, int or None
        The classes that the reports name, or their number; None where they do not.
    """

    levels: tuple[CoverageLevel, ...]
    has_multiple_levels: bool
    by: StratumKind | None
    score: Score | None
    risk: Risk | None
    classes: StratumNames | None

    @property
    def threshold(self) -> float | tuple[float, ...] | FloatArray:
        """A label is in the set when its score is at most this; infinite takes every label.

        By class or group an array: (C,), or (L, C) for several levels.
        """
        if self.by is None:
            return self._single(self._level_thresholds)
        if self.has_multiple_levels:
            return self._stratum_thresholds
        return self._stratum_thresholds[0]

    @property
    def strata(self) -> tuple[str, ...]:
        """The names of the classes or groups that have thresholds of their own; empty without."""
        return tuple(stratum.name for stratum in self.levels[0].strata)

    def predict_set(
        self,
        probabilities: ArrayLike,
        rng: Rng = None,
        *,
        score: Score | None = None,
        groups: ArrayLike | None = None,
        non_empty: bool = False,
    ) -> NDArray[np.bool_]:
        """Return whether each label is in each sample's prediction set.

        Parameters
        ----------
        probabilities : array_like of shape (n, C)
            Class probabilities; the columns of a frame are found by the classes' names.
        rng : int or Generator, optional
            A seed or generator, for randomized scores.
        score : Score, optional
            The score, where the reports did not name it.
        groups : array_like of shape (n,), optional
            Each sample's group, where thresholds are by group.
        non_empty : bool
            Put the label with the least score into sets that would be empty. Coverage can only
            rise, by at most the share of empty sets: the certificate's lower bound holds, its
            upper one no longer.

        Returns
        -------
        ndarray of bool, shape (n, C) or (n, C, L)
            L is the number of levels.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[50, 30, 20]] * 20, score=robfcp.LAC())
        >>> calibration = robfcp.calibrate(federation, coverage=0.75, defense="none")
        >>> calibration.predict_set([[0.6, 0.4], [0.1, 0.9]])
        array([[ True,  True],
               [False,  True]])
        >>> calibration.predict_set([[0.3, 0.3, 0.2, 0.2]])
        array([[False, False, False, False]])
        >>> calibration.predict_set([[0.3, 0.3, 0.2, 0.2]], non_empty=True)
        array([[ True, False, False, False]])
        """
        table = reorder_columns(probabilities, self.classes)
        thresholds = self._thresholds_for(groups, table.shape[:1])
        scorer = self.classification_score(score)
        sets = scorer.prediction_sets(table, thresholds, rng, non_empty=non_empty)
        return self._without_level_axis(sets)

    def iter_prediction_sets(
        self,
        probabilities: ArrayLike,
        rng: Rng = None,
        *,
        score: Score | None = None,
        non_empty: bool = False,
    ) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
        """Yield the prediction sets block by block, for more samples than memory holds.

        Parameters
        ----------
        probabilities : array_like of shape (n, C)
            Class probabilities, a memory map for instance.
        rng : int or Generator, optional
            A seed or generator, for randomized scores.
        score : Score, optional
            The score, where the reports did not name it.
        non_empty : bool
            Leave no set empty, as in `predict_set`.

        Yields
        ------
        tuple
            A slice of rows and their sets, as `predict_set` gives them.
        """
        table = reorder_columns(probabilities, self.classes)
        if self.by == "group":
            raise RobfcpError(
                "iter_prediction_sets: thresholds are by group; use predict_set(groups=...)"
            )
        scorer = self.classification_score(score)
        thresholds = self._thresholds_for(None, ())
        for rows, sets in scorer.iter_prediction_sets(table, thresholds, rng, non_empty=non_empty):
            yield rows, self._without_level_axis(sets)

    def predict_interval(
        self,
        predictions: ArrayLike,
        *,
        score: Score | None = None,
        groups: ArrayLike | None = None,
        non_empty: bool = False,
    ) -> NDArray[np.float64]:
        """Return the lower and upper end of each sample's prediction interval.

        Parameters
        ----------
        predictions : array_like of shape (n,) or (n, 2)
            Point predictions, or predicted quantiles for `CQR`.
        score : Score, optional
            The score, where the reports did not name it.
        groups : array_like of shape (n,), optional
            Each sample's group, where the thresholds are by group.
        non_empty : bool
            Where the ends cross (quantiles moved inwards), take their midpoint for both.

        Returns
        -------
        ndarray of float, shape (n, 2) or (n, 2, L)
            L is the number of levels.

        Examples
        --------
        >>> import robfcp
        >>> binning = robfcp.Binning.open_ended([0.0, 0.5, 1.0, 2.0])
        >>> reports = [
        ...     robfcp.Report.from_scores(name, [0.1, 0.4, 0.4, 0.9, 1.5], binning) for name in "ab"
        ... ]
        >>> calibration = robfcp.calibrate(reports, coverage=0.5, defense="none")
        >>> calibration.predict_interval([3.0, 7.0], score=robfcp.AbsoluteResidual())
        array([[2.5, 3.5],
               [6.5, 7.5]])
        """
        scorer = self.resolve_score(score)
        values = as_array("predictions", predictions)
        if self.by == "class":
            raise RobfcpError("predict_interval: an interval has no classes; calibrate without by=")
        if isinstance(scorer, (ClassificationScore, type)) or not hasattr(scorer, "interval"):
            name = getattr(scorer, "name", scorer)
            raise RobfcpError(f"{name}: is no regression score; use predict_set")

        # (n or 1, L): samples that share a threshold are computed together. By group thresholds
        # come as (n, 1, L), else as (L,); by class was refused above.
        n_levels = len(self.levels)
        thresholds = self._thresholds_for(groups, values.shape[:1]).reshape(-1, n_levels)
        intervals = np.empty((len(values), 2, n_levels))
        for level_index, level_thresholds in enumerate(thresholds.T):
            for threshold in np.unique(level_thresholds):
                rows = np.broadcast_to(level_thresholds == threshold, len(values))
                intervals[rows, :, level_index] = scorer.interval(values[rows], threshold)

        if non_empty:
            is_crossed = intervals[:, :1] > intervals[:, 1:]
            midpoints = intervals.mean(axis=1, keepdims=True)
            intervals = np.where(is_crossed, midpoints, intervals)
        return self._without_level_axis(intervals)

    def predict_multilabel(self, probabilities: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each label is taken: 1 - p at most the threshold.

        Parameters
        ----------
        probabilities : array_like of shape (n, C)
            A probability for each label, each in [0, 1].

        Returns
        -------
        ndarray of bool, shape (n, C) or (n, C, L)
            L is the number of levels.
        """
        if self.risk is None:
            raise RobfcpError("predict_multilabel: the reports held no losses; use predict_set")
        sets = self.risk.multilabel_sets(probabilities, self._level_thresholds)
        return self._without_level_axis(sets)

    def resolve_score(self, score: Score | None = None) -> Score:
        """Return the score given, or the one that the reports name.

        Parameters
        ----------
        score : Score, optional
            The score, where the reports did not name it.

        Returns
        -------
        Score
            What sets and intervals are made with.
        """
        if score is not None:
            return score
        if self.score is None:
            raise RobfcpError("score: the reports did not name their score; pass score=")
        return self.score

    def classification_score(self, score: Score | None = None) -> ClassificationScore:
        """Return the score as `resolve_score` does; refuse one that is not for classes.

        Parameters
        ----------
        score : Score, optional
            As `resolve_score` takes it.
        """
        scorer = self.resolve_score(score)
        if not isinstance(scorer, ClassificationScore):
            name = getattr(scorer, "name", scorer)
            raise RobfcpError(f"{name}: is no classification score; use predict_interval")
        return scorer

    @property
    def _level_thresholds(self) -> tuple[float, ...]:
        """The threshold of each level; by class or group the largest of them."""
        return tuple(level.threshold for level in self.levels)

    @property
    def _stratum_thresholds(self) -> FloatArray:
        """(L, C) the threshold of each class or group, in the order of `strata`."""
        rows = []
        for level in self.levels:
            rows.append([stratum.threshold for stratum in level.strata])
        return np.array(rows)

    def _thresholds_for(self, groups: ArrayLike | None, shape: tuple[int, ...]) -> FloatArray:
        """Return the thresholds as scores take them.

        Parameters
        ----------
        groups : array_like of shape (n,) or None
            Each sample's group; needed by group and refused otherwise.
        shape : tuple of int
            (n,), the shape that groups must have; not used where there are none.

        Returns
        -------
        ndarray of float
            (L,) a threshold for each level, (C, L) by class, or (n, 1, L) by each sample's group.
        """
        if self.by is None:
            if groups is not None:
                raise RobfcpError("groups: the thresholds are not by group; leave them out")
            return np.array(self._level_thresholds)
        if self.by == "class":
            return self._stratum_thresholds.T
        if groups is None:
            raise RobfcpError("groups: the thresholds are by group; pass each sample's group")

        # Names are compared as text: the group 3 is "3", and 3.0 is another one.
        group_names = as_array("groups", groups).astype(str)
        if group_names.shape != shape:
            raise RobfcpError(f"groups: need one a sample {shape}, not shape {group_names.shape}")
        column_of_group = {name: column for column, name in enumerate(self.strata)}
        unknown = sorted(set(group_names.tolist()) - set(column_of_group))
        if unknown:
            raise RobfcpError(f"groups: {unknown[0]!r:.60} had no report; it has no threshold")
        # Each sample's row of L thresholds, with an axis for its labels, which share it.
        columns = [column_of_group[name] for name in group_names.tolist()]
        return self._stratum_thresholds.T[columns][:, None, :]

    def _single(self, values: tuple[T, ...]) -> T | tuple[T, ...]:
        """Return the only value where one coverage was asked for, else all of them.

        Parameters
        ----------
        values : tuple
            A value for each level.
        """
        return values if self.has_multiple_levels else values[0]

    def _without_level_axis(self, predictions: NDArray[D]) -> NDArray[D]:
        """Return (n, C, L) predictions; (n, C) where one coverage was asked for.

        Parameters
        ----------
        predictions : ndarray of shape (n, C, L)
            Sets over C labels, or intervals with C = 2 ends.
        """
        return predictions if self.has_multiple_levels else predictions[:, :, 0]
