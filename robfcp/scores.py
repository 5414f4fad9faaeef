"""Nonconformity scores: bigger is stranger. Vectorised, checked, random only through `rng`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._numbers import floats, generator, whole
from robfcp._probabilities import (
    Probabilities,
    accumulator,
    check_labels,
    check_probabilities,
    check_rows,
    row_blocks,
)
from robfcp.errors import RobfcpError
from robfcp.grid import Grid

Rng = int | np.random.Generator | None
Scores = NDArray[np.float64]
MAX_PENALTY = 1e6


@runtime_checkable
class Score(Protocol):
    """What every score has. Parameters are the fields of a frozen dataclass."""

    name: ClassVar[str]

    def __call__(self, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None) -> Scores:
        """One score a sample, for its true target."""
        ...

    def default_grid(self) -> Grid:
        """The grid that fits this score's range."""
        ...


class ClassificationScore(ABC):
    """Checks, blocks and randomness; a subclass supplies the formula on one block of rows."""

    name: ClassVar[str]

    def __call__(self, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None) -> Scores:
        """The (n,) scores of the given labels."""
        array = check_probabilities(predictions)
        label = check_labels(targets, *array.shape)
        u = self._uniforms(len(array), rng)
        scores = np.empty(len(array))
        for rows in row_blocks(array):
            scores[rows] = self._of_labels(array[rows], label[rows], u[rows], rows.start)
        return scores

    def all_labels(self, predictions: ArrayLike, rng: Rng = None) -> Scores:
        """The (n, C) scores of every label; a sample's u is the same for all its labels."""
        array = check_probabilities(predictions)
        scores = np.empty(array.shape)
        for rows, block in self.blocks(array, rng):
            scores[rows] = block
        return scores

    def blocks(self, predictions: ArrayLike, rng: Rng = None) -> Iterator[tuple[slice, Scores]]:
        """The scores of every label, a block of rows at a time, so that memory stays bounded."""
        array = check_probabilities(predictions)
        u = self._uniforms(len(array), rng)
        for rows in row_blocks(array):
            check_rows(array[rows], rows.start)
            yield rows, self._of_all(array[rows], u[rows])

    def default_grid(self) -> Grid:
        """The fine grid on [0, 1]."""
        return Grid.default()

    def _uniforms(self, n: int, rng: Rng) -> Scores:
        """u = 1 for every sample: no randomisation."""
        return np.broadcast_to(1.0, n)

    @abstractmethod
    def _of_labels(
        self, p: Probabilities, label: NDArray[np.intp], u: Scores, first: int
    ) -> Scores:
        """The scores of one label a row, of rows (from number `first` on) that are checked."""

    @abstractmethod
    def _of_all(self, p: Probabilities, u: Scores) -> Scores:
        """The scores of all labels of every row."""


@dataclass(frozen=True)
class LAC(ClassificationScore):
    """1 - p_y, taken as the sum of the other probabilities where p_y > 1/2, to keep its digits."""

    name: ClassVar[str] = "lac"

    def _of_labels(
        self, p: Probabilities, label: NDArray[np.intp], u: Scores, first: int
    ) -> Scores:
        chosen, others = _label_and_others(p, label)
        check_rows(p, first, chosen + others)
        return np.where(chosen > 0.5, np.minimum(others, 1), 1 - chosen)

    def _of_all(self, p: Probabilities, u: Scores) -> Scores:
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


class _Adaptive(ClassificationScore):
    """sum_j p_j [p_j > p_y] + u p_y plus a penalty on the label's rank."""

    randomized: bool

    def __post_init__(self) -> None:
        if not isinstance(self.randomized, (bool, np.bool_)):
            raise RobfcpError(f"{self.name}: randomized is {self.randomized!r}; use True or False")
        object.__setattr__(self, "randomized", bool(self.randomized))

    def _uniforms(self, n: int, rng: Rng) -> Scores:
        if not self.randomized:
            return super()._uniforms(n, rng)
        if rng is None:
            raise RobfcpError(
                f"{self.name}: a randomised score needs rng=; pass a seed or use randomized=False"
            )
        return generator(rng).random(n)

    def _of_labels(
        self, p: Probabilities, label: NDArray[np.intp], u: Scores, first: int
    ) -> Scores:
        check_rows(p, first)
        chosen = p[np.arange(len(p)), label]
        above = p > chosen[:, None]
        mass = np.multiply(p, above).sum(axis=1, dtype=np.float64) + u * chosen
        return np.minimum(mass, 1) + self._penalties(1 + np.count_nonzero(above, axis=1))

    def _of_all(self, p: Probabilities, u: Scores) -> Scores:
        order = np.argsort(-p, axis=1)
        falling = np.take_along_axis(p, order, axis=1).astype(np.float64)
        before = np.cumsum(falling, axis=1) - falling
        place = np.broadcast_to(np.arange(p.shape[1]), p.shape).copy()
        place[:, 1:][falling[:, 1:] == falling[:, :-1]] = 0
        first = np.maximum.accumulate(place, axis=1)  # equal probabilities share a rank
        mass = np.take_along_axis(before, first, axis=1) + u[:, None] * falling
        scores = np.empty(p.shape)
        ranked = np.minimum(mass, 1) + self._penalties(1 + first)
        np.put_along_axis(scores, order, ranked, axis=1)
        return scores

    def _penalties(self, rank: NDArray[np.intp]) -> Scores | float:
        return 0.0


@dataclass(frozen=True)
class APS(_Adaptive):
    """sum_j p_j [p_j > p_y] + u p_y, with u ~ U(0, 1) per sample if randomised, else 1."""

    randomized: bool = True
    name: ClassVar[str] = "aps"


@dataclass(frozen=True)
class RAPS(_Adaptive):
    """APS + penalty max(0, rank(y) - k_reg): long sets are discouraged. Unbounded above 1."""

    penalty: float = 0.01
    k_reg: int = 5
    randomized: bool = True
    name: ClassVar[str] = "raps"

    def __post_init__(self) -> None:
        super().__post_init__()
        penalty = floats("raps: penalty", self.penalty)
        if penalty.ndim or not 0 <= penalty <= MAX_PENALTY:
            raise RobfcpError(f"raps: penalty is {self.penalty!r}; give 0 to {MAX_PENALTY:g}")
        object.__setattr__(self, "penalty", float(penalty))
        object.__setattr__(self, "k_reg", whole("raps: k_reg", self.k_reg, "give 5, say"))

    def default_grid(self) -> Grid:
        """Fine on [0, 1] and open-ended beyond."""
        return Grid.extended()

    def _penalties(self, rank: NDArray[np.intp]) -> Scores | float:
        return self.penalty * np.maximum(0.0, rank - self.k_reg)


@dataclass(frozen=True)
class AbsoluteResidual:
    """|y - f(x)| for a point prediction f(x)."""

    name: ClassVar[str] = "absolute-residual"

    def __call__(self, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None) -> Scores:
        """The (n,) absolute residuals."""
        centre, y = _pair(_finite("predictions", predictions, 1), targets)
        with np.errstate(over="ignore"):
            return np.abs(y - centre)

    def interval(self, predictions: ArrayLike, threshold: float) -> Scores:
        """(n, 2) intervals f(x) -/+ threshold."""
        centre = _finite("predictions", predictions, 1)
        return np.stack([centre - threshold, centre + threshold], axis=1)

    def default_grid(self) -> Grid:
        """Log-spaced, open-ended."""
        return Grid.open_ended()


@dataclass(frozen=True)
class CQR:
    """max(low(x) - y, y - high(x)) for predicted quantiles (n, 2); negative inside the band."""

    name: ClassVar[str] = "cqr"

    def __call__(self, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None) -> Scores:
        """The (n,) signed distances outside the predicted band."""
        band, y = _pair(_finite("predictions", predictions, 2), targets)
        with np.errstate(over="ignore"):
            return np.maximum(band[:, 0] - y, y - band[:, 1])

    def interval(self, predictions: ArrayLike, threshold: float) -> Scores:
        """(n, 2) intervals [low - threshold, high + threshold]; crossed ones are empty."""
        return _finite("predictions", predictions, 2) + np.array([-threshold, threshold])

    def default_grid(self) -> Grid:
        """Log-spaced on both sides of 0, open-ended."""
        return Grid.open_ended()


def _pair(predictions: Scores, targets: ArrayLike) -> tuple[Scores, Scores]:
    """Predictions with as many targets."""
    y = _finite("targets", targets, 1)
    if len(y) != len(predictions):
        raise RobfcpError(
            f"targets: {len(y)} do not fit {len(predictions)} predictions; give one per row"
        )
    return predictions, y


def _finite(field: str, values: ArrayLike, ndim: int) -> Scores:
    array = floats(field, values)
    shape = "(n,)" if ndim == 1 else "(n, 2)"
    if array.ndim != ndim or (ndim == 2 and array.shape[1] != 2):
        raise RobfcpError(f"{field}: shape {array.shape} is not {shape}; reshape them")
    if not np.isfinite(array).all():
        raise RobfcpError(f"{field}: contain NaN or infinity; find the broken samples first")
    return array


SCORES: Mapping[str, type[Any]] = {
    kind.name: kind for kind in (LAC, APS, RAPS, AbsoluteResidual, CQR)
}


def score_parameters(score: Score) -> dict[str, Any]:
    """A score's parameters, as they stand in a report."""
    return asdict(score)  # type: ignore[call-overload]


def named_score(name: str, parameters: Mapping[str, Any]) -> Score:
    """The score a report names, its parameters checked against the types of the defaults."""
    if name not in SCORES:
        raise RobfcpError(f"score: unknown score {name!r}; known are {', '.join(SCORES)}")
    defaults = {field.name: field.default for field in fields(SCORES[name])}
    for key, value in parameters.items():
        kind = type(defaults.get(key))
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise RobfcpError(f"score: {name} does not take {key}={value!r}; fix its parameters")
    score: Score = SCORES[name](**parameters)
    return score
