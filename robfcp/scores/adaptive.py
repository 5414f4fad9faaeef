"""APS and RAPS: the probability mass of all labels at least as likely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._util.numbers import floats, whole
from robfcp.errors import RobfcpError
from robfcp.grid import Grid
from robfcp.scores.base import Scores, check_randomized
from robfcp.scores.likeliest import Ranks
from robfcp.scores.probabilities import Probabilities, check_rows
from robfcp.scores.ranking import RankedScore

MAX_PENALTY = 1e6


class _Adaptive(RankedScore):
    """sum_j p_j [p_j > p_y] + u p_y plus a penalty on the label's rank."""

    randomized: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "randomized", check_randomized(self, self.randomized))

    def _of_labels(
        self, p: Probabilities, label: NDArray[np.intp], u: Scores, first: int
    ) -> Scores:
        check_rows(p, first)
        chosen = p[np.arange(len(p)), label]
        above = p > chosen[:, None]
        mass = np.multiply(p, above).sum(axis=1, dtype=np.float64) + u * chosen
        return np.minimum(mass, 1) + self._penalties(1 + np.count_nonzero(above, axis=1))

    def _of_ranked(self, falling: Scores, first: Ranks, u: Scores) -> Scores:
        before = np.cumsum(falling, axis=1)
        before -= falling
        if first.shape == before.shape:
            before = np.take_along_axis(before, first, axis=1)
        before += u * falling
        return np.minimum(before, 1, out=before) + self._penalties(1 + first)

    def _penalties(self, rank: NDArray[np.intp]) -> Scores | float:
        return 0.0


def check_penalty(field: str, value: object) -> float:
    """A penalty as a number from 0 to the largest allowed."""
    penalty = floats(field, cast(ArrayLike, value))
    if penalty.ndim or not 0 <= penalty <= MAX_PENALTY:
        raise RobfcpError(f"{field} is {value!r}; give 0 to {MAX_PENALTY:g}")
    return float(penalty)


@dataclass(frozen=True)
class APS(_Adaptive):
    """sum_j p_j [p_j > p_y] + u p_y, with u ~ U(0, 1) per sample if randomised, else 1.

    Sets grow where the model is unsure, so that hard samples are covered as well as easy ones.

    Parameters
    ----------
    randomized
        Draw u, which needs `rng`. False takes u = 1: the same sets every time, but larger ones, and
        nearly every label where a model is almost always sure and right.

    References
    ----------
    Romano, Sesia and Candès (2020), "Classification with valid and adaptive coverage", NeurIPS.

    Examples
    --------
    >>> import robfcp
    >>> robfcp.APS(randomized=False)([[0.5, 0.25, 0.25], [0.5, 0.375, 0.125]], [0, 1])
    array([0.5  , 0.875])
    >>> robfcp.APS()([[0.5, 0.25, 0.25]], [0], rng=0).round(3)
    array([0.318])
    """

    randomized: bool = True
    name: ClassVar[str] = "aps"


@dataclass(frozen=True)
class RAPS(_Adaptive):
    """APS + penalty max(0, rank(y) - k_reg): long sets are discouraged. Unbounded above 1.

    Parameters
    ----------
    penalty
        What each rank beyond `k_reg` adds to the score.
    k_reg
        Ranks up to this one add nothing.
    randomized
        Draw u, which needs `rng`. False takes u = 1: the same sets every time, but larger ones, and
        nearly every label where a model is almost always sure and right.

    References
    ----------
    Angelopoulos, Bates, Malik and Jordan (2021), "Uncertainty sets for image classifiers using
    conformal prediction", ICLR.

    Examples
    --------
    >>> import robfcp
    >>> score = robfcp.RAPS(penalty=0.5, k_reg=1, randomized=False)
    >>> score([[0.5, 0.375, 0.125]], [1])
    array([1.375])
    """

    penalty: float = 0.01
    k_reg: int = 5
    randomized: bool = True
    name: ClassVar[str] = "raps"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "penalty", check_penalty("raps: penalty", self.penalty))
        object.__setattr__(self, "k_reg", whole("raps: k_reg", self.k_reg, "give 5, say"))

    def default_grid(self) -> Grid:
        """Fine on [0, 1] and open-ended beyond.

        Returns
        -------
        Grid
            `Grid.extended()`.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.RAPS().default_grid() == robfcp.Grid.extended()
        True
        """
        return Grid.extended()

    def _penalties(self, rank: NDArray[np.intp]) -> Scores | float:
        return self.penalty * np.maximum(0.0, rank - self.k_reg)
