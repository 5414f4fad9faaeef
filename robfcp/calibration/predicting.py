"""What a calibration says and predicts, without the reports behind it: all that a site needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._util.numbers import array
from robfcp.calibration.stating import Stating
from robfcp.errors import RobfcpError
from robfcp.prediction import in_order, iterate_sets, predict_intervals, predict_sets
from robfcp.reports import Names
from robfcp.scores import Risk, Rng, Score, check_multilabel


class Predicting(Stating):
    """Thresholds with what is proved of them, and the sets and intervals they make."""

    score: Score | None
    risk: Risk | None
    classes: Names | None

    def predict_set(
        self,
        probabilities: ArrayLike,
        rng: Rng = None,
        *,
        score: Score | None = None,
        groups: ArrayLike | None = None,
        non_empty: bool = False,
    ) -> NDArray[np.bool_]:
        """(n, C) whether each label is in each sample's set; (n, C, L) for several levels.

        Parameters
        ----------
        probabilities
            (n, C) class probabilities; the columns of a frame are found by the classes' names.
        rng
            A seed or generator, for randomised scores.
        score
            The score, where the reports did not name it.
        groups
            (n,) each sample's group, where thresholds are by group.
        non_empty
            Put the label with the least score into sets that would be empty. Coverage can only
            rise, by at most the share of empty sets: the certificate's lower bound holds, its
            upper one no longer.

        Returns
        -------
        (n, C) or (n, C, L) array of bool
            L is the number of confidence levels.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[50, 30, 20]] * 20, score=robfcp.LAC())
        >>> calibration = robfcp.calibrate(federation, confidence_level=0.75, defence="none")
        >>> calibration.predict_set([[0.6, 0.4], [0.1, 0.9]])
        array([[ True,  True],
               [False,  True]])
        >>> calibration.predict_set([[0.3, 0.3, 0.2, 0.2]])
        array([[False, False, False, False]])
        >>> calibration.predict_set([[0.3, 0.3, 0.2, 0.2]], non_empty=True)
        array([[ True, False, False, False]])
        """
        rows = in_order(probabilities, self.classes)
        self.check_classes(rows)
        limits = self._limits(groups, rows.shape[:1])
        sets = predict_sets(self.score_of(score), rows, limits, rng, non_empty=non_empty)
        return sets if self.several else sets[:, :, 0]

    def iterate_sets(
        self,
        probabilities: ArrayLike,
        rng: Rng = None,
        *,
        score: Score | None = None,
        non_empty: bool = False,
    ) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
        """The sets as (rows, members) blocks, for more samples than memory holds.

        Parameters
        ----------
        probabilities
            (n, C) class probabilities, a memory map for instance.
        rng
            A seed or generator, for randomised scores.
        score
            The score, where the reports did not name it.
        non_empty
            Leave no set empty, as in `predict_set`.

        Yields
        ------
        tuple
            A slice of rows and their sets, as `predict_set` gives them.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[50, 30, 20]] * 20, score=robfcp.LAC())
        >>> calibration = robfcp.calibrate(federation, confidence_level=0.75, defence="none")
        >>> for rows, sets in calibration.iterate_sets([[0.6, 0.4], [0.1, 0.9]]):
        ...     print(rows, sets.sum(axis=1))
        slice(0, 2, None) [2 1]
        """
        table = in_order(probabilities, self.classes)
        self.check_classes(table)
        if self.by == "group":
            raise RobfcpError("iterate_sets: thresholds are by group; use predict_set(groups=...)")
        limits = self._limits(None, ())
        rule = self.score_of(score)
        for rows, sets in iterate_sets(rule, table, limits, rng, non_empty=non_empty):
            yield rows, sets if self.several else sets[:, :, 0]

    def predict_interval(
        self,
        predictions: ArrayLike,
        *,
        score: Score | None = None,
        groups: ArrayLike | None = None,
        non_empty: bool = False,
    ) -> NDArray[np.float64]:
        """(n, 2) lower and upper ends; (n, 2, L) for several levels.

        Parameters
        ----------
        predictions
            (n,) point predictions, or (n, 2) predicted quantiles for `CQR`.
        score
            The score, where the reports did not name it.
        groups
            (n,) each sample's group, where the thresholds are by group.
        non_empty
            Where the ends cross (quantiles moved inwards), take their middle for both.

        Returns
        -------
        (n, 2) or (n, 2, L) array
            L is the number of confidence levels.

        Examples
        --------
        >>> import robfcp
        >>> grid = robfcp.Grid.open_ended([0.0, 0.5, 1.0, 2.0])
        >>> reports = [
        ...     robfcp.Report.from_scores(name, [0.1, 0.4, 0.4, 0.9, 1.5], grid) for name in "ab"
        ... ]
        >>> calibration = robfcp.calibrate(reports, confidence_level=0.5, defence="none")
        >>> calibration.predict_interval([3.0, 7.0], score=robfcp.AbsoluteResidual())
        array([[2.5, 3.5],
               [6.5, 7.5]])
        """
        rule, values = self.score_of(score), array("predictions", predictions)
        if self.by == "class":
            raise RobfcpError("predict_interval: an interval has no classes; calibrate without by=")
        limits = self._limits(groups, values.shape[:1])
        if self.by is None:
            ends = predict_intervals(rule, values, self._thresholds, non_empty=non_empty)
            return ends if self.several else ends[:, :, 0]
        ends = np.empty((len(values), 2, len(self.levels)))
        for own in np.unique(limits[:, 0], axis=0):
            same = (limits[:, 0] == own).all(axis=1)
            limit = tuple(own.tolist())
            ends[same] = predict_intervals(rule, values[same], limit, non_empty=non_empty)
        return ends if self.several else ends[:, :, 0]

    def predict_multilabel(self, probabilities: ArrayLike) -> NDArray[np.bool_]:
        """(n, C) whether each label is taken: 1 - p at most lambda; (n, C, L) for several levels.

        Parameters
        ----------
        probabilities
            (n, C) one probability a label, each in [0, 1].

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> p, y = np.random.default_rng(0).random((2, 50, 3))
        >>> reports = [robfcp.Report.from_multilabel(n, p, y < p) for n in "abc"]
        >>> lambdas = robfcp.calibrate(reports, risk=0.1, defence="none")
        >>> lambdas.predict_multilabel([[0.9, 0.1, 0.5]]).shape
        (1, 3)
        """
        if self.risk is None:
            raise RobfcpError("predict_multilabel: the reports held no losses; use predict_set")
        p, _ = check_multilabel(probabilities, np.zeros(np.shape(probabilities), dtype=int))
        sets = (1 - p)[:, :, None] <= np.asarray(self._thresholds)
        return sets if self.several else sets[:, :, 0]

    def check_classes(self, probabilities: ArrayLike) -> None:
        """Refuse another number of classes than the calibration was made for.

        Parameters
        ----------
        probabilities
            (n, C) class probabilities.

        Examples
        --------
        >>> import robfcp
        >>> report = robfcp.Report.from_scores("a", [0.1, 0.2], labels=[0, 1], classes=2)
        >>> calibration = robfcp.calibrate([report], confidence_level=0.5, defence="none")
        >>> calibration.check_classes([[0.2, 0.8]])
        """
        if self.classes is None:
            return
        wanted = self.classes if isinstance(self.classes, int) else len(self.classes)
        shape = np.shape(probabilities)
        if len(shape) == 2 and shape[1] != wanted:
            raise RobfcpError(
                f"probabilities: {shape[1]} columns, but the calibration is for {wanted} classes; "
                "use the model and the column order it was made with"
            )

    def score_of(self, score: Score | None = None) -> Score:
        """The score given, or the one the reports name.

        Parameters
        ----------
        score
            The score, where the reports did not name it.

        Returns
        -------
        Score
            What sets and intervals are made with.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[9, 1]] * 3, score=robfcp.LAC())
        >>> robfcp.calibrate(federation, defence="none").score_of()
        LAC()
        """
        chosen = self.score if score is None else score
        if chosen is None:
            raise RobfcpError("score: the reports did not name their score; pass score=")
        return chosen

    def _limits(self, groups: ArrayLike | None, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """(L,) one threshold a level, (C, L) by class, or (n, 1, L) by each sample's group."""
        if self.by is None:
            if groups is not None:
                raise RobfcpError("groups: the thresholds are not by group; leave them out")
            return np.array(self._thresholds)
        table = np.array([[one.threshold for one in level.strata] for level in self.levels]).T
        if self.by == "class":
            return table
        if groups is None:
            raise RobfcpError("groups: the thresholds are by group; pass each sample's group")
        names = array("groups", groups).astype(str)
        if names.shape != shape:
            raise RobfcpError(f"groups: need one a sample {shape}, not shape {names.shape}")
        place = {name: k for k, name in enumerate(self.strata)}
        unknown = sorted(set(names.tolist()) - set(place))
        if unknown:
            raise RobfcpError(f"groups: {unknown[0]!r:.60} had no report; it has no threshold")
        return table[[place[name] for name in names.tolist()]][:, None, :]

    @property
    def _thresholds(self) -> tuple[float, ...]:
        return tuple(level.threshold for level in self.levels)
