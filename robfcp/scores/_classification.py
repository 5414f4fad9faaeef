"""Scores of class probabilities: LAC, APS, RAPS, SAPS and ordinal APS."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike

from robfcp._probabilities import Probabilities, accumulator
from robfcp._typing import BoolArray, FloatArray, IndexArray
from robfcp._validation import as_float_array, check_integer, set_fields
from robfcp.binning import Binning
from robfcp.errors import RobfcpError
from robfcp.scores._base import ClassificationScore, register_builtin

MAX_PENALTY = 1e6
ROUNDING = 2.0**-50  # by what a score can differ, for each term of a sum
N_SAMPLED_ROWS = 64  # from which the probability of labels outside every set is guessed
LOWER_BOUND_MARGIN = 0.9  # of the guess: rows that were not sampled may need lower ones
MAX_PARTIAL_SORT_FRACTION = 0.25  # of labels, up to which it pays to sort them alone


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

    def label_scores(self, probabilities: Probabilities, uniforms: FloatArray) -> FloatArray:
        scores = np.maximum(1 - probabilities.astype(np.float64), 0)
        rows = np.arange(len(probabilities))
        top_labels = probabilities.argmax(axis=1)
        scores[rows, top_labels] = self._score_labels(probabilities, top_labels, uniforms)
        return scores

    def _score_labels(
        self, probabilities: Probabilities, labels: IndexArray, uniforms: FloatArray
    ) -> FloatArray:
        # A sum of positive numbers keeps their digits, so it is taken in their own precision. Three
        # sums a row: of the probabilities before the label, of the label, and of those behind it.
        n_samples, n_classes = probabilities.shape
        row_starts = np.arange(n_samples)[:, None] * n_classes
        columns = np.stack([0 * labels, labels, labels + 1], axis=1)
        cuts = np.minimum(row_starts + columns, probabilities.size - 1).ravel()
        sums = np.add.reduceat(
            probabilities.reshape(-1), cuts, dtype=accumulator(probabilities)
        ).reshape(-1, 3)
        mass_before, label_probabilities, behind = sums.astype(np.float64).T

        # An empty range has no sum: reduceat gives its first number instead.
        mass_before = np.where(labels > 0, mass_before, 0)
        behind = np.where(labels < n_classes - 1, behind, 0)
        complement = np.minimum(mass_before + behind, 1)
        return np.where(label_probabilities > 0.5, complement, 1 - label_probabilities)


class _RankScore(ClassificationScore):
    """A label's score follows from the labels at least as likely and grows down the ranks.

    Labels far down need no rank to be known outside a set: at 1,000 classes of which few are likely
    sets take a tenth of the time.
    """

    @abstractmethod
    def _score_ranked(
        self, sorted_probabilities: FloatArray, ranks: IndexArray, uniforms: FloatArray
    ) -> FloatArray:
        """Return (n, k) scores of each row's k likeliest labels.

        Parameters
        ----------
        sorted_probabilities : ndarray of float, shape (n, k)
            The probabilities of these labels, from the likeliest down.
        ranks : ndarray of int, shape (n, k)
            The rank of each from 0, the same among equals; (1, k) where no row has equals.
        uniforms : ndarray of float, shape (n, 1)
            A uniform number for each row.
        """

    def label_scores(self, probabilities: Probabilities, uniforms: FloatArray) -> FloatArray:
        order = np.argsort(-_sortable(probabilities), axis=1)
        in_order = np.take_along_axis(probabilities, order, axis=1).astype(np.float64)
        scores = self._score_ranked(in_order, _ranks(in_order), uniforms[:, None])
        return _undo_sort(scores, order)

    def _lower_bound(self, probabilities: Probabilities, thresholds: FloatArray) -> float:
        """Return a guess, from sampled rows, up to which probability no label is in a set.

        In each of them it is that of the likeliest label outside every set with finite thresholds,
        with u = 1; where some row has none, -1.
        """
        if not probabilities.size:
            return -1.0
        n_samples, n_classes = probabilities.shape
        sampled = np.unique(np.linspace(0, n_samples - 1, N_SAMPLED_ROWS).astype(np.intp))
        in_order = -np.sort(-_sortable(probabilities[sampled]), axis=1).astype(np.float64)
        ranks = np.arange(n_classes)[None]
        with np.errstate(all="ignore"):
            scores = self._score_ranked(in_order, ranks, np.ones((len(sampled), 1)))

        sampled_thresholds = thresholds[sampled] if thresholds.ndim == 3 else thresholds
        is_outside = scores > _max_finite_threshold(sampled_thresholds)
        if not is_outside.any(axis=1).all():
            return -1.0
        first_outside = is_outside.argmax(axis=1)[:, None]
        largest_outside = np.take_along_axis(in_order, first_outside, axis=1)
        return LOWER_BOUND_MARGIN * float(largest_outside.min())

    def _set_members(
        self,
        probabilities: Probabilities,
        uniforms: FloatArray,
        thresholds: FloatArray,
        lower_bound: float,
        non_empty: bool,
    ) -> BoolArray:
        """Return (n, C, L) whether each label scores at most the thresholds.

        Only labels more likely than the lower bound are sorted, where they are few; rows in which
        others may be in a set are done again with all labels.
        """
        has_own_formula = type(self).label_scores is not _RankScore.label_scores
        if has_own_formula or lower_bound < 0:
            return super()._set_members(probabilities, uniforms, thresholds, lower_bound, non_empty)
        likely_cells = np.flatnonzero(probabilities > probabilities.dtype.type(lower_bound))
        if likely_cells.size > MAX_PARTIAL_SORT_FRACTION * probabilities.size:
            return super()._set_members(probabilities, uniforms, thresholds, lower_bound, non_empty)

        n_samples, n_classes = probabilities.shape
        likely = _LikelyLabels(probabilities, likely_cells)
        sorted_scores = self._score_ranked(
            likely.sorted_probabilities, likely.ranks, uniforms[:, None]
        )

        # Infinite thresholds let in every label, finite ones only likely labels.
        membership = np.empty((n_samples, n_classes, thresholds.shape[-1]), dtype=bool)
        membership[:] = thresholds == np.inf
        likely_scores = likely.scores_of_cells(sorted_scores)[:, None]
        is_member = likely_scores <= likely.thresholds_of_cells(thresholds)
        membership[likely.rows, likely.labels] = is_member

        # Where an unlikely label may be in a set after all, compute the scores of all labels. Such
        # a label scores at least as one of probability zero, rounding aside.
        zero_scores = sorted_scores[np.arange(n_samples), likely.n_of_row]
        rounding = n_classes * ROUNDING * np.maximum(np.abs(zero_scores), 1)
        is_certain = zero_scores - rounding > _max_finite_threshold(thresholds)[:, 0]
        needs_all_labels = ~is_certain
        if non_empty:
            needs_all_labels |= np.any(~membership.any(axis=1), axis=1)
        if needs_all_labels.any():
            row_thresholds = thresholds[needs_all_labels] if thresholds.ndim == 3 else thresholds
            membership[needs_all_labels] = super()._set_members(
                probabilities[needs_all_labels],
                uniforms[needs_all_labels],
                row_thresholds,
                lower_bound,
                non_empty,
            )
        return membership


class _LikelyLabels:
    """The likely labels of some rows, from the likeliest down, filled up with zeros.

    Attributes
    ----------
    rows, labels : (N,) ndarray of int
        Where each of the N likely labels is.
    n_of_row : (n,) ndarray of int
        How many likely labels each row has.
    sorted_probabilities : (n, k) ndarray of float
        Those of each row in order; behind them at least one zero.
    ranks : (n, k) or (1, k) ndarray of int
        Their ranks from 0, the same among equals.
    """

    def __init__(self, probabilities: Probabilities, likely_cells: IndexArray) -> None:
        n_samples, n_classes = probabilities.shape
        self.rows, self.labels = np.divmod(likely_cells, n_classes)
        row_starts = np.arange(n_samples + 1) * n_classes
        self.n_of_row = np.diff(np.searchsorted(likely_cells, row_starts))
        columns = np.arange(self.n_of_row.max() + 1)
        self._is_likely = columns < self.n_of_row[:, None]

        likely_probabilities = _sortable(probabilities.take(likely_cells))
        negated = np.zeros(self._is_likely.shape, dtype=likely_probabilities.dtype)
        negated[self._is_likely] = -likely_probabilities
        self._order = np.argsort(negated, axis=1)
        in_order = -np.take_along_axis(negated, self._order, axis=1).astype(np.float64)
        self.sorted_probabilities: FloatArray = in_order
        self.ranks = _ranks(in_order, self._is_likely)

    def scores_of_cells(self, sorted_scores: FloatArray) -> FloatArray:
        """Return (N,) the score of each likely label, from the scores in the order of ranks."""
        return _undo_sort(sorted_scores, self._order)[self._is_likely]

    def thresholds_of_cells(self, thresholds: FloatArray) -> FloatArray:
        """Return (N, L) the thresholds of each likely label, (L,) where all have the same."""
        if thresholds.ndim == 3:
            return thresholds[self.rows, 0]
        if thresholds.ndim == 2:
            return thresholds[self.labels]
        return thresholds


def _sortable(probabilities: Probabilities) -> Probabilities:
    """Return halves as singles: among negative zeros numpy sorts halves wrongly on some machines.

    Long doubles become doubles: ranks are those of the float64.
    """
    kind = np.float32 if probabilities.itemsize <= 4 else np.float64
    return probabilities.astype(kind, copy=False)


def _ranks(sorted_probabilities: FloatArray, is_likely: BoolArray | None = None) -> IndexArray:
    """Return (n, k) ranks from 0, the same among equals; (1, k) where no row has equals."""
    n_samples, n_columns = sorted_probabilities.shape
    positions = np.arange(n_columns)[None]
    is_tied = sorted_probabilities[:, 1:] == sorted_probabilities[:, :-1]
    if is_likely is not None:
        is_tied &= is_likely[:, 1:]
    if not is_tied.any():
        return positions
    ranks = np.repeat(positions, n_samples, axis=0)
    ranks[:, 1:][is_tied] = 0
    return np.maximum.accumulate(ranks, axis=1)


def _undo_sort(values: FloatArray, order: IndexArray) -> FloatArray:
    """Return values that are in the order of ranks in the order of labels."""
    unsorted = np.empty(values.shape)
    np.put_along_axis(unsorted, order, values, axis=1)
    return unsorted


def _max_finite_threshold(thresholds: FloatArray) -> FloatArray:
    """Return (1, 1) or (n, 1) the largest finite threshold: infinite ones let in every label."""
    finite = np.where(np.isfinite(thresholds), thresholds, -np.inf)
    if thresholds.ndim == 3:
        return finite.max(axis=(1, 2))[:, None]
    return finite.max().reshape(1, 1)


class _CumulativeMassScore(_RankScore):
    """sum_j p_j [p_j > p_y] + u p_y plus a penalty on the label's rank."""

    def _score_labels(
        self, probabilities: Probabilities, labels: IndexArray, uniforms: FloatArray
    ) -> FloatArray:
        label_probabilities = probabilities[np.arange(len(probabilities)), labels]
        is_above = probabilities > label_probabilities[:, None]
        mass_above = np.multiply(probabilities, is_above).sum(axis=1, dtype=np.float64)
        mass = mass_above + uniforms * label_probabilities
        ranks = 1 + np.count_nonzero(is_above, axis=1)
        return np.minimum(mass, 1) + self._penalties(ranks)

    def _score_ranked(
        self, sorted_probabilities: FloatArray, ranks: IndexArray, uniforms: FloatArray
    ) -> FloatArray:
        mass = np.cumsum(sorted_probabilities, axis=1)
        mass -= sorted_probabilities
        if ranks.shape == mass.shape:
            mass = np.take_along_axis(mass, ranks, axis=1)  # of equals that above the first
        mass += uniforms * sorted_probabilities
        return np.minimum(mass, 1, out=mass) + self._penalties(1 + ranks)

    def _penalties(self, ranks: IndexArray) -> FloatArray | float:
        """Return what each rank from 1 adds to the score."""
        return 0.0


def check_penalty(field: str, value: object) -> float:
    """Return a penalty as a number from 0 to the largest allowed; refuse anything else."""
    penalty = as_float_array(field, cast(ArrayLike, value))
    if penalty.ndim or not 0 <= penalty <= MAX_PENALTY:
        raise RobfcpError(f"{field} is {value!r}; give 0 to {MAX_PENALTY:g}")
    return float(penalty)


@register_builtin
@dataclass(frozen=True)
class APS(_CumulativeMassScore):
    """sum_j p_j [p_j > p_y] + u p_y, with u ~ U(0, 1) per sample if randomized, else 1.

    Sets grow where the model is unsure, so that hard samples are covered as well as easy ones.

    Parameters
    ----------
    randomized : bool
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
    penalty : float
        What each rank beyond `k_reg` adds to the score.
    k_reg : int
        Ranks up to this one add nothing.
    randomized : bool
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
        set_fields(
            self,
            penalty=check_penalty("raps: penalty", self.penalty),
            k_reg=check_integer("raps: k_reg", self.k_reg, "give 5, say"),
        )

    def default_binning(self) -> Binning:
        """Return a binning that is fine on [0, 1] and open-ended beyond."""
        return Binning.extended()

    def _penalties(self, ranks: IndexArray) -> FloatArray | float:
        return self.penalty * np.maximum(0.0, ranks - self.k_reg)


@register_builtin
@dataclass(frozen=True)
class SAPS(_RankScore):
    """u p_max for the likeliest label, p_max + (rank(y) - 2 + u) weight for the others.

    Only the largest probability and the order of the labels count, so that the noise of small
    probabilities does not make sets longer. Unbounded above 1.

    Parameters
    ----------
    weight : float
        What every rank adds.
    randomized : bool
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
        set_fields(self, weight=check_penalty("saps: weight", self.weight))
        super().__post_init__()

    def _score_ranked(
        self, sorted_probabilities: FloatArray, ranks: IndexArray, uniforms: FloatArray
    ) -> FloatArray:
        top = sorted_probabilities[:, :1]
        scores_of_others = top + (ranks - 1 + uniforms) * self.weight
        return np.where(ranks == 0, uniforms * top, scores_of_others)

    def default_binning(self) -> Binning:
        """Return a binning that is fine on [0, 1] and open-ended beyond."""
        return Binning.extended()


@register_builtin
@dataclass(frozen=True)
class OrdinalAPS(ClassificationScore):
    """The mass of the range that has grown from the likeliest class until it holds the label.

    The range grows by the likelier of its two neighbors, the lower one where they are equal, so
    that every set is a range without gaps: stages 2 to 3, never 1 and 3. Classes are in the order
    of the columns.

    Parameters
    ----------
    randomized : bool
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

    def label_scores(self, probabilities: Probabilities, uniforms: FloatArray) -> FloatArray:
        n_samples, n_classes = probabilities.shape
        rows = np.arange(n_samples)

        # Column 1 + y holds class y; beyond either end -1 stands, which no range grows into.
        walled = np.full((n_samples, n_classes + 2), -1.0)
        walled[:, 1:-1] = probabilities

        # The range of each row ends between columns `low` and `high`, which come next.
        likeliest = probabilities.argmax(axis=1)
        low = likeliest
        high = likeliest + 2
        scores = np.empty(probabilities.shape)
        mass = walled[rows, likeliest + 1]
        scores[rows, likeliest] = uniforms * mass
        for _ in range(n_classes - 1):
            grows_down = walled[rows, low] >= walled[rows, high]
            joining = np.where(grows_down, low, high)
            joining_mass = walled[rows, joining]
            scores[rows, joining - 1] = mass + uniforms * joining_mass
            mass = mass + joining_mass
            low = low - grows_down
            high = high + ~grows_down
        return np.minimum(scores, 1)
