"""What every score has, and the base of classification scores that users extend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.grid import Grid
from robfcp.scores.probabilities import (
    Probabilities,
    check_labels,
    check_probabilities,
    check_rows,
    row_blocks,
)

Rng = int | np.random.Generator | None
Scores = NDArray[np.float64]


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
