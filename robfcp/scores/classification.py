"""LAC: one minus the probability of the label."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.arguments import floats, whole
from robfcp.errors import RobfcpError
from robfcp.grid import Grid
from robfcp.scores.base import ClassificationScore, Members, Scores, check_randomized
from robfcp.scores.inputs import Probabilities, accumulator, check_rows


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

    def _of_labels(
        self, p: Probabilities, label: NDArray[np.intp], u: Scores, first: int
    ) -> Scores:
        chosen, others = _label_and_others(p, label)
        check_rows(p, first, chosen + others)
        return np.where(chosen > 0.5, np.minimum(others, 1), 1 - chosen)

    def of_all(self, p: Probabilities, u: Scores) -> Scores:
        """1 - p, the likeliest label's as the sum of the others.

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
        scores = np.maximum(1 - p.astype(np.float64), 0)
        rows, top = np.arange(len(p)), p.argmax(axis=1)
        chosen, others = _label_and_others(p, top)
        scores[rows, top] = np.where(chosen > 0.5, np.minimum(others, 1), 1 - chosen)
        return scores


def _label_and_others(p: Probabilities, label: NDArray[np.intp]) -> tuple[Scores, Scores]:
    """Each row's probability of its label and the sum of the others, before and behind it.

    A sum of positive numbers keeps their digits, so it is taken in their own kind.
    """
    flat, n_classes = p.reshape(-1), p.shape[1]
    cuts = np.arange(len(p))[:, None] * n_classes + np.stack([0 * label, label, label + 1], axis=1)
    cuts = np.minimum(cuts, flat.size - 1).ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.reduceat(flat, cuts, dtype=accumulator(p)).reshape(-1, 3).astype(np.float64)
    before, chosen, behind = sums.T
    return chosen, np.where(label > 0, before, 0) + np.where(label < n_classes - 1, behind, 0)


Ranks = NDArray[np.intp]
Floats = NDArray[np.float64]
Marks = NDArray[np.bool_]

# What a score can differ by where a sum of probabilities rounds otherwise, for each of its terms.
ROUNDING = 2.0**-50


@dataclass(frozen=True)
class Likeliest:
    """The (n, k) largest probabilities of each row; a row with fewer than k ends in zeros.

    `first` are their ranks, `held` tells the labels from those zeros and `numbers` counts them.
    `picked` are their places in the table, if not all are there, and `order` where in `falling`
    they went, if that was asked.
    """

    falling: Floats
    first: Ranks
    held: Marks
    numbers: Ranks
    picked: Ranks | None = None
    order: Ranks | None = None

    def beyond(self, scores: Floats, n_classes: int) -> Floats:
        """(n,) what a label that is not there scores at least: as one of probability zero.

        It is less likely than all that are there, so that their mass lies above it and its rank is
        the next one at least; rounding aside, as sums of rounded numbers need not grow.
        """
        if self.picked is None:
            return np.full(len(scores), np.inf)
        zero = scores[np.arange(len(scores)), self.numbers]
        return zero - n_classes * ROUNDING * np.maximum(np.abs(zero), 1)


def every_label(p: Probabilities) -> Likeliest:
    """All labels of each row."""
    falling = -np.sort(-sortable(p), axis=1).astype(np.float64)
    every = np.broadcast_to(True, p.shape)
    return Likeliest(falling, ranks(falling), every, np.full(len(p), p.shape[1]))


def likeliest(p: Probabilities, floor: float, most: float, *, ordered: bool) -> Likeliest | None:
    """The labels likelier than a number not below 0; None where their share is more than `most`."""
    n, n_classes = p.shape
    picked = np.flatnonzero(p > p.dtype.type(floor))
    if picked.size > most * p.size:
        return None
    numbers = np.diff(np.searchsorted(picked, np.arange(n + 1) * n_classes))
    held = np.arange(numbers.max() + 1) < numbers[:, None]
    chosen, order = sortable(p.take(picked)), None
    values = np.zeros(held.shape, dtype=chosen.dtype)
    values[held] = -chosen
    if ordered:
        order = np.argsort(values, axis=1)
        values = np.take_along_axis(values, order, axis=1)
    else:
        values.sort(axis=1)
    falling = -values.astype(np.float64)
    return Likeliest(falling, ranks(falling, held), held, numbers, picked, order)


def sortable(p: Probabilities) -> Probabilities:
    """Halves as singles: among negative zeros numpy sorts halves wrongly on some machines."""
    return p.astype(np.float32) if p.dtype == np.float16 else p


def ranks(falling: Floats, held: Marks | None = None) -> Ranks:
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


def put_back(values: Floats, order: Ranks) -> Floats:
    """Values in the order of the ranks, back in the order of the labels."""
    found = np.empty(values.shape)
    np.put_along_axis(found, order, values, axis=1)
    return found


Rows = NDArray[np.intp]


def from_cuts(
    likely: Likeliest, scores: Floats, p: Probabilities, limits: Floats, non_empty: bool
) -> tuple[Marks, Marks]:
    """(n, C, L) the sets at limits (L,) or (n, 1, L), and which rows are not decided by it.

    Undecided are rows where a label that is not among the likeliest could be in, and those where
    rounding lets a likelier label score more than a less likely one.
    """
    members = np.empty((*p.shape, limits.shape[-1]), dtype=bool)
    beyond = likely.beyond(scores, p.shape[1])
    left = ~(beyond > highest(limits)[:, 0])
    rows = np.arange(len(p))
    for level in range(limits.shape[-1]):
        limit = np.broadcast_to(limits[..., level], (len(p), 1))
        inside = scores <= limit
        inside &= likely.held
        number = np.count_nonzero(inside, axis=1)
        left |= (inside.argmin(axis=1) != number) & (number < inside.shape[1])
        cut = likely.falling[rows, np.maximum(number - 1, 0)].astype(p.dtype)
        cut[number == 0] = np.inf
        cut[limit[:, 0] == np.inf] = -1
        np.greater_equal(p, cut[:, None], out=members[:, :, level])
        if non_empty:
            empty = np.flatnonzero(cut == np.inf)
            left[empty] |= ~_likeliest_is_least(likely, scores, beyond, empty)
            members[empty, p[empty].argmax(axis=1), level] = True
    return members, left


def by_label(
    likely: Likeliest, scores: Floats, p: Probabilities, limits: Floats, non_empty: bool
) -> tuple[Marks, Marks]:
    """The same at limits (C, L), every label's own."""
    assert likely.picked is not None
    assert likely.order is not None
    beyond = likely.beyond(scores, p.shape[1])
    left = ~(beyond > highest(limits)[:, 0])
    members = np.empty((*p.shape, limits.shape[-1]), dtype=bool)
    members[:] = limits == np.inf
    row, label = np.divmod(likely.picked, p.shape[1])
    own = put_back(scores, likely.order)[likely.held]
    members[row, label] = own[:, None] <= limits[label]
    if non_empty:
        row, level = np.nonzero(~members.any(axis=1))
        left[row] |= ~_likeliest_is_least(likely, scores, beyond, row)
        members[row, p[row].argmax(axis=1), level] = True
    return members, left


def highest(limits: Floats) -> Floats:
    """(1, 1) or (n, 1) the largest limit that is a number: infinite ones let in every label."""
    finite = np.where(np.isfinite(limits), limits, -np.inf)
    return finite.max(axis=(1, 2))[:, None] if limits.ndim == 3 else finite.max().reshape(1, 1)


def of_rows(limits: Floats, rows: Rows) -> Floats:
    """The limits of some rows."""
    return limits[rows] if limits.ndim == 3 else limits


def _likeliest_is_least(
    likely: Likeliest, scores: Floats, beyond: Floats, rows: Rows
) -> NDArray[np.bool_]:
    """Whether, in some rows, nothing but the likeliest labels has the least score."""
    first = np.broadcast_to(likely.first, scores.shape)[rows]
    others = np.where((first > 0) & likely.held[rows], scores[rows], np.inf).min(axis=1)
    return np.asarray(np.minimum(others, beyond[rows]) > scores[rows, 0])


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
    >>> robfcp.OrdinalAPS(randomized=False).all_labels([[0.125, 0.5, 0.25, 0.125]])
    array([[0.875, 0.5  , 0.75 , 1.   ]])
    """

    randomized: bool = True
    name: ClassVar[str] = "ordinal-aps"

    def __post_init__(self) -> None:
        object.__setattr__(self, "randomized", check_randomized(self, self.randomized))

    def of_all(self, p: Probabilities, u: Scores) -> Scores:
        """The mass of the range before each class joins, and u of its own.

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
        n, n_classes = p.shape
        rows = np.arange(n)
        walled = np.full((n, n_classes + 2), -1.0)  # nothing lies beyond either end
        walled[:, 1:-1] = p
        low = p.argmax(axis=1)
        high = low + 2  # the next classes on both sides, in the columns of `walled`
        scores = np.empty(p.shape)
        mass = walled[rows, low + 1]
        scores[rows, low] = u * mass
        for _ in range(n_classes - 1):
            down = walled[rows, low] >= walled[rows, high]
            joined = np.where(down, low, high)
            own = walled[rows, joined]
            scores[rows, joined - 1] = mass + u * own
            mass = mass + own
            low, high = low - down, high + ~down
        return np.minimum(scores, 1)
