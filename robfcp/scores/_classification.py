"""Scores of class probabilities: LAC, APS, RAPS, SAPS and ordinal APS."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._probabilities import Probabilities, accumulator
from robfcp._validation import as_float_array, check_integer
from robfcp.binning import Binning
from robfcp.errors import RobfcpError
from robfcp.scores._base import ClassificationScore, Scores, SetMembership, register_builtin

Ranks = NDArray[np.intp]

MAX_PENALTY = 1e6
ROUNDING = 2.0**-50  # by what a score can differ, for each term of a sum
SAMPLED_ROWS = 64
MAX_PARTIAL_SORT_FRACTION = 0.25  # the share of labels up to which it pays to pick them out


@register_builtin
@dataclass(frozen=True)
class LAC(ClassificationScore):
    """1 - p_y, taken as the sum of the other probabilities where p_y > 1/2, to keep its digits.

    With the true probabilities no other score has smaller sets on average.

    References
    ----------
    Sadinle, Lei and Wasserman (2019), "Least ambiguous set-valued classifiers with bounded error
    levels", Journal of the American Statistical Association 114.

    Examples
    --------
    >>> import robfcp
    >>> robfcp.LAC()([[0.75, 0.25], [0.5, 0.5]], [0, 1])
    array([0.25, 0.5 ])
    """

    name: ClassVar[str] = "lac"

    def label_scores(self, probabilities: Probabilities, uniforms: Scores) -> Scores:
        scores = np.maximum(1 - probabilities.astype(np.float64), 0)
        top = probabilities.argmax(axis=1)
        scores[np.arange(len(probabilities)), top] = self._score_labels(
            probabilities, top, uniforms
        )
        return scores

    def _score_labels(self, p: Probabilities, label: Ranks, u: Scores) -> Scores:
        # A sum of positive numbers keeps their digits, so it is taken in their own kind: in each
        # row that of the probabilities before the label, of the label and of those behind it.
        n_classes = p.shape[1]
        parts = np.stack([0 * label, label, label + 1], axis=1)
        cuts = np.minimum(np.arange(len(p))[:, None] * n_classes + parts, p.size - 1).ravel()
        sums = np.add.reduceat(p.reshape(-1), cuts, dtype=accumulator(p)).reshape(-1, 3)
        before, chosen, behind = sums.astype(np.float64).T
        others = np.where(label > 0, before, 0) + np.where(label < n_classes - 1, behind, 0)
        return np.where(chosen > 0.5, np.minimum(others, 1), 1 - chosen)


class _RankScore(ClassificationScore):
    """A label's score follows from the labels at least as likely and grows down the ranks.

    Labels far down need no rank to be known outside a set: at 1,000 classes of which few are likely
    sets take a tenth of the time.
    """

    @abstractmethod
    def _score_ranked(self, falling: Scores, first: Ranks, u: Scores) -> Scores:
        """(n, k) scores of each row's k likeliest labels, given from the likeliest down.

        `first` is each one's rank from 0, the same among equals: (n, k), or (1, k) where no row has
        equals; `u` is (n, 1).
        """

    def label_scores(self, probabilities: Probabilities, uniforms: Scores) -> Scores:
        order = np.argsort(-_sortable(probabilities), axis=1)
        falling = np.take_along_axis(probabilities, order, axis=1).astype(np.float64)
        return _undo_sort(self._score_ranked(falling, _ranks(falling), uniforms[:, None]), order)

    def _lower_bound(self, p: Probabilities, limits: Scores) -> float:
        if not p.size:
            return -1.0
        rows = np.unique(np.linspace(0, len(p) - 1, SAMPLED_ROWS).astype(np.intp))
        falling = -np.sort(-_sortable(p[rows]), axis=1).astype(np.float64)
        with np.errstate(all="ignore"):
            scores = self._score_ranked(
                falling, np.arange(p.shape[1])[None], np.ones((len(rows), 1))
            )
        outside = scores > _max_finite_threshold(limits[rows] if limits.ndim == 3 else limits)
        if not outside.any(axis=1).all():
            return -1.0
        last = np.take_along_axis(falling, outside.argmax(axis=1)[:, None], axis=1)
        return 0.9 * float(last.min())

    def _set_members(
        self, p: Probabilities, u: Scores, limits: Scores, floor: float, non_empty: bool
    ) -> SetMembership:
        n, n_classes = p.shape
        if type(self).label_scores is not _RankScore.label_scores or floor < 0:
            return super()._set_members(p, u, limits, floor, non_empty)
        picked = np.flatnonzero(p > p.dtype.type(floor))
        if picked.size > MAX_PARTIAL_SORT_FRACTION * p.size:
            return super()._set_members(p, u, limits, floor, non_empty)
        # The likely labels of each row from the likeliest down; behind them at least one zero.
        numbers = np.diff(np.searchsorted(picked, np.arange(n + 1) * n_classes))
        held = np.arange(numbers.max() + 1) < numbers[:, None]
        chosen = _sortable(p.take(picked))
        values = np.zeros(held.shape, dtype=chosen.dtype)
        values[held] = -chosen
        order = np.argsort(values, axis=1)
        falling = -np.take_along_axis(values, order, axis=1).astype(np.float64)
        scores = self._score_ranked(falling, _ranks(falling, held), u[:, None])
        row, label = np.divmod(picked, n_classes)
        own = limits[label] if limits.ndim == 2 else limits[row, 0] if limits.ndim == 3 else limits
        members = np.empty((n, n_classes, limits.shape[-1]), dtype=bool)
        members[:] = limits == np.inf
        members[row, label] = _undo_sort(scores, order)[held][:, None] <= own
        # A label that was not picked scores at least as one of probability zero, rounding aside.
        zero = scores[np.arange(n), numbers]
        beyond = zero - n_classes * ROUNDING * np.maximum(np.abs(zero), 1)
        left = ~(beyond > _max_finite_threshold(limits)[:, 0])
        if non_empty:
            left |= np.any(~members.any(axis=1), axis=1)
        if left.any():
            own = limits[left] if limits.ndim == 3 else limits
            members[left] = super()._set_members(p[left], u[left], own, floor, non_empty)
        return members


def _sortable(p: Probabilities) -> Probabilities:
    """Halves as singles: among negative zeros numpy sorts halves wrongly on some machines.

    Long doubles as doubles: ranks are those of the float64.
    """
    return p.astype({2: np.float32, 4: np.float32}.get(p.itemsize, np.float64), copy=False)


def _ranks(falling: Scores, held: SetMembership | None = None) -> Ranks:
    """(n, k) ranks from 0, the same among equals; (1, k) where no row has equals."""
    place = np.arange(falling.shape[1])[None]
    tied = falling[:, 1:] == falling[:, :-1]
    if held is not None:
        tied &= held[:, 1:]
    if not tied.any():
        return place
    place = np.repeat(place, len(falling), axis=0)
    place[:, 1:][tied] = 0
    return np.maximum.accumulate(place, axis=1)


def _undo_sort(values: Scores, order: Ranks) -> Scores:
    """Values in the order of the ranks, back in the order of the labels."""
    back = np.empty(values.shape)
    np.put_along_axis(back, order, values, axis=1)
    return back


def _max_finite_threshold(limits: Scores) -> Scores:
    """(1, 1) or (n, 1) the largest limit that is a number: infinite ones let in every label."""
    finite = np.where(np.isfinite(limits), limits, -np.inf)
    return finite.max(axis=(1, 2))[:, None] if limits.ndim == 3 else finite.max().reshape(1, 1)


class _CumulativeMassScore(_RankScore):
    """sum_j p_j [p_j > p_y] + u p_y plus a penalty on the label's rank."""

    def _score_labels(self, p: Probabilities, label: Ranks, u: Scores) -> Scores:
        chosen = p[np.arange(len(p)), label]
        above = p > chosen[:, None]
        mass = np.multiply(p, above).sum(axis=1, dtype=np.float64) + u * chosen
        return np.minimum(mass, 1) + self._penalties(1 + np.count_nonzero(above, axis=1))

    def _score_ranked(self, falling: Scores, first: Ranks, u: Scores) -> Scores:
        before = np.cumsum(falling, axis=1)
        before -= falling
        if first.shape == before.shape:
            before = np.take_along_axis(before, first, axis=1)
        before += u * falling
        return np.minimum(before, 1, out=before) + self._penalties(1 + first)

    def _penalties(self, rank: Ranks) -> Scores | float:
        return 0.0


def check_penalty(field: str, value: object) -> float:
    """A penalty as a number from 0 to the largest allowed."""
    penalty = as_float_array(field, cast(ArrayLike, value))
    if penalty.ndim or not 0 <= penalty <= MAX_PENALTY:
        raise RobfcpError(f"{field} is {value!r}; give 0 to {MAX_PENALTY:g}")
    return float(penalty)


@register_builtin
@dataclass(frozen=True)
class APS(_CumulativeMassScore):
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


@register_builtin
@dataclass(frozen=True)
class RAPS(_CumulativeMassScore):
    """APS + penalty max(0, rank(y) - k_reg): long sets are discouraged. Unbounded above 1.

    Parameters
    ----------
    penalty
        What each rank beyond `k_reg` adds to the score.
    k_reg
        Ranks up to this one add nothing.
    randomized
        As `APS` takes it.

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
        object.__setattr__(self, "k_reg", check_integer("raps: k_reg", self.k_reg, "give 5, say"))

    def default_binning(self) -> Binning:
        """Fine on [0, 1] and open-ended beyond."""
        return Binning.extended()

    def _penalties(self, rank: Ranks) -> Scores | float:
        return self.penalty * np.maximum(0.0, rank - self.k_reg)


@register_builtin
@dataclass(frozen=True)
class SAPS(_RankScore):
    """u p_max for the likeliest label, p_max + (rank(y) - 2 + u) weight for the others.

    Only the largest probability and the order of the labels count, so that the noise of small
    probabilities does not make sets longer. Unbounded above 1.

    Parameters
    ----------
    weight
        What every rank adds.
    randomized
        As `APS` takes it.

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
        super().__post_init__()

    def _score_ranked(self, falling: Scores, first: Ranks, u: Scores) -> Scores:
        top = falling[:, :1]
        return np.where(first == 0, u * top, top + (first - 1 + u) * self.weight)

    def default_binning(self) -> Binning:
        """Fine on [0, 1] and open-ended beyond."""
        return Binning.extended()


@register_builtin
@dataclass(frozen=True)
class OrdinalAPS(ClassificationScore):
    """The mass of the range that has grown from the likeliest class until it holds the label.

    The range grows by the likelier of its two neighbours, the lower one where they are equal, so
    that every set is a range without gaps: stages 2 to 3, never 1 and 3. Classes are in the order
    of the columns.

    Parameters
    ----------
    randomized
        Count only u of the label's own probability, which needs `rng`; False takes u = 1.

    References
    ----------
    Lu, Angelopoulos and Pomerantz (2022), "Improving trustworthiness of AI disease severity rating
    in medical imaging with ordinal conformal prediction sets", MICCAI.

    Examples
    --------
    >>> import robfcp
    >>> robfcp.OrdinalAPS(randomized=False).score_all_labels([[0.125, 0.5, 0.25, 0.125]])
    array([[0.875, 0.5  , 0.75 , 1.   ]])
    """

    randomized: bool = True
    name: ClassVar[str] = "ordinal-aps"

    def label_scores(self, probabilities: Probabilities, uniforms: Scores) -> Scores:
        n, n_classes = probabilities.shape
        rows = np.arange(n)
        walled = np.full((n, n_classes + 2), -1.0)  # nothing lies beyond either end
        walled[:, 1:-1] = probabilities
        low = probabilities.argmax(axis=1)
        high = low + 2  # the next classes on both sides, in the columns of `walled`
        scores = np.empty(probabilities.shape)
        mass = walled[rows, low + 1]
        scores[rows, low] = uniforms * mass
        for _ in range(n_classes - 1):
            down = walled[rows, low] >= walled[rows, high]
            joined = np.where(down, low, high)
            own = walled[rows, joined]
            scores[rows, joined - 1] = mass + uniforms * own
            mass = mass + own
            low, high = low - down, high + ~down
        return np.minimum(scores, 1)
