"""SAPS: the largest probability, then a fixed price for every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from robfcp.grid import Grid
from robfcp.scores.adaptive import check_penalty
from robfcp.scores.base import Scores, check_randomized
from robfcp.scores.likeliest import Ranks
from robfcp.scores.probabilities import Probabilities, check_rows
from robfcp.scores.ranking import RankedScore


@dataclass(frozen=True)
class SAPS(RankedScore):
    """u p_max for the likeliest label, p_max + (rank(y) - 2 + u) weight for the others.

    Only the largest probability and the order of the labels count, so that the noise of small
    probabilities does not make sets longer. Unbounded above 1.

    Parameters
    ----------
    weight
        What every rank adds.
    randomized
        Draw u, which needs `rng`. False takes u = 1: the same sets every time, but larger ones, and
        nearly every label where a model is almost always sure and right.

    References
    ----------
    Huang, Xi, Zhang, Yao, Qiu and Wei (2024), "Conformal prediction for deep classifier via label
    ranking", ICML.

    Examples
    --------
    >>> import robfcp
    >>> robfcp.SAPS(weight=0.25, randomized=False)([[0.5, 0.375, 0.125]] * 3, [0, 1, 2])
    array([0.5 , 0.75, 1.  ])
    """

    weight: float = 0.2
    randomized: bool = True
    name: ClassVar[str] = "saps"

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", check_penalty("saps: weight", self.weight))
        object.__setattr__(self, "randomized", check_randomized(self, self.randomized))

    def _of_ranked(self, falling: Scores, first: Ranks, u: Scores) -> Scores:
        return self._by_rank(falling[:, :1], first, u)

    def default_grid(self) -> Grid:
        """Fine on [0, 1] and open-ended beyond.

        Returns
        -------
        Grid
            `Grid.extended()`.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.SAPS().default_grid() == robfcp.Grid.extended()
        True
        """
        return Grid.extended()

    def _of_labels(
        self, p: Probabilities, label: NDArray[np.intp], u: Scores, first: int
    ) -> Scores:
        check_rows(p, first)
        chosen = p[np.arange(len(p)), label]
        rank = np.count_nonzero(p > chosen[:, None], axis=1)
        return self._by_rank(p.max(axis=1).astype(np.float64), rank, u)

    def _by_rank(self, top: Scores, rank: NDArray[np.intp], u: Scores) -> Scores:
        """The scores of labels of these ranks, counted from 0."""
        return np.where(rank == 0, u * top, top + (rank - 1 + u) * self.weight)
