"""Scores by rank: those of all labels, and sets for which only the likeliest labels are ranked."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from robfcp.scores.base import ClassificationScore, Members, Scores
from robfcp.scores.cuts import by_label, from_cuts, highest, of_rows
from robfcp.scores.likeliest import Ranks, every_label, likeliest, put_back, ranks, sortable
from robfcp.scores.probabilities import Probabilities

SAMPLED_ROWS = 64
FEW = 0.25  # the share of labels up to which it pays to pick them out


class RankedScore(ClassificationScore):
    """A label's score follows from the labels at least as likely and grows down the ranks.

    A set is then all labels from some probability up, and those far below it need no rank.
    """

    @abstractmethod
    def _of_ranked(self, falling: Scores, first: Ranks, u: Scores) -> Scores:
        """(n, k) scores of each row's k likeliest labels, given from the likeliest down.

        `first` is each one's rank from 0, the same among equals: (n, k), or (1, k) where no row has
        equals; `u` is (n, 1).
        """

    def of_all(self, p: Probabilities, u: Scores) -> Scores:
        """The score at every label's rank; equal probabilities share theirs.

        Parameters
        ----------
        p
            (n, C) probabilities.
        u
            (n,) uniform numbers, or ones.

        Returns
        -------
        (n, C) array
            The score of every label.
        """
        order = np.argsort(-sortable(p), axis=1)
        falling = np.take_along_axis(p, order, axis=1).astype(np.float64)
        return put_back(self._of_ranked(falling, ranks(falling), u[:, None]), order)

    def _floor(self, p: Probabilities, limits: Scores) -> float:
        if not p.size:
            return -1.0
        rows = np.unique(np.linspace(0, len(p) - 1, SAMPLED_ROWS).astype(np.intp))
        falling = every_label(p[rows]).falling
        places = np.arange(p.shape[1])[None]
        with np.errstate(all="ignore"):
            scores = self._of_ranked(falling, places, np.ones((len(rows), 1)))
        outside = scores > highest(of_rows(limits, rows))
        if not outside.any(axis=1).all():
            return -1.0
        last = np.take_along_axis(falling, outside.argmax(axis=1)[:, None], axis=1)
        return 0.9 * float(last.min())

    def _members(
        self, p: Probabilities, u: Scores, limits: Scores, floor: float, non_empty: bool
    ) -> Members:
        if type(self).of_all is not RankedScore.of_all:
            return super()._members(p, u, limits, floor, non_empty)
        if p.itemsize > 8:  # ranks are those of the float64
            p = p.astype(np.float64)
        members, left = self._from_few(p, u, limits, floor, non_empty)
        if left.size and limits.ndim != 2:
            rows, likely = p[left], every_label(p[left])
            scores = self._of_ranked(likely.falling, likely.first, u[left, None])
            members[left], more = from_cuts(likely, scores, rows, of_rows(limits, left), non_empty)
            left = left[more]
        if left.size:
            own = of_rows(limits, left)
            members[left] = super()._members(p[left], u[left], own, floor, non_empty)
        return members

    def _from_few(
        self, p: Probabilities, u: Scores, limits: Scores, floor: float, non_empty: bool
    ) -> tuple[Members, NDArray[np.intp]]:
        """The sets from the ranks of few labels, and the rows for which these were too few."""
        likely = None
        if floor >= 0:
            likely = likeliest(p, floor, FEW, ordered=limits.ndim == 2)
        if likely is None:
            return np.empty((*p.shape, limits.shape[-1]), dtype=bool), np.arange(len(p))
        scores = self._of_ranked(likely.falling, likely.first, u[:, None])
        decide = by_label if limits.ndim == 2 else from_cuts
        members, left = decide(likely, scores, p, limits, non_empty)
        return members, np.flatnonzero(left)
