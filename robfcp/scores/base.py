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
    """What every score has. Parameters are the fields of a frozen dataclass.

    A protocol: any frozen dataclass with `name`, `__call__` and `default_grid` is a score. For
    prediction intervals it needs `interval(predictions, threshold)` too; for prediction sets
    extend `ClassificationScore`.

    Attributes
    ----------
    name
        What reports call the score.

    Examples
    --------
    >>> import robfcp
    >>> isinstance(robfcp.LAC(), robfcp.Score)
    True
    >>> robfcp.LAC().name
    'lac'
    """

    name: ClassVar[str]

    def __call__(self, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None) -> Scores:
        """One score a sample, for its true target.

        Parameters
        ----------
        predictions
            The model's outputs, one row a sample.
        targets
            The true targets, one a sample.
        rng
            A seed or generator, for scores that draw random numbers.

        Returns
        -------
        (n,) array
            The scores; bigger is stranger.
        """
        ...

    def default_grid(self) -> Grid:
        """The grid that fits this score's range."""
        ...


class ClassificationScore(ABC):
    """Checks, blocks and randomness; a subclass supplies the formula on one block of rows.

    Extend it for a score of your own: a frozen dataclass with a `name` and two methods,
    `_of_labels` for the given label of every row and `_of_all` for all labels.

    Attributes
    ----------
    name
        What reports call the score.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> import robfcp
    >>> @dataclass(frozen=True)
    ... class Margin(robfcp.ClassificationScore):
    ...     name = "margin"
    ...     def _of_labels(self, p, label, u, first):
    ...         return self._of_all(p, u)[np.arange(len(p)), label]
    ...     def _of_all(self, p, u):
    ...         return (1 + p.max(axis=1, keepdims=True) - p) / 2
    >>> Margin()([[0.5, 0.25, 0.25]], [1])
    array([0.625])
    """

    name: ClassVar[str]

    def __call__(self, predictions: ArrayLike, targets: ArrayLike, rng: Rng = None) -> Scores:
        """The (n,) scores of the given labels.

        Parameters
        ----------
        predictions
            (n, C) class probabilities.
        targets
            (n,) class numbers from 0.
        rng
            A seed or generator, for randomised scores.

        Returns
        -------
        (n,) array
            One score a sample.

        Raises
        ------
        RobfcpError
            Where a row is no probability vector, or labels do not fit.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.LAC()([[0.75, 0.25], [0.5, 0.5]], [0, 1])
        array([0.25, 0.5 ])
        """
        array = check_probabilities(predictions)
        label = check_labels(targets, *array.shape)
        u = self._uniforms(len(array), rng)
        scores = np.empty(len(array))
        for rows in row_blocks(array):
            scores[rows] = self._of_labels(array[rows], label[rows], u[rows], rows.start)
        return scores

    def all_labels(self, predictions: ArrayLike, rng: Rng = None) -> Scores:
        """The (n, C) scores of every label; a sample's u is the same for all its labels.

        Parameters
        ----------
        predictions
            (n, C) class probabilities.
        rng
            A seed or generator, for randomised scores.

        Returns
        -------
        (n, C) array
            The score each label would have.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.LAC().all_labels([[0.75, 0.25], [0.5, 0.5]])
        array([[0.25, 0.75],
               [0.5 , 0.5 ]])
        """
        array = check_probabilities(predictions)
        scores = np.empty(array.shape)
        for rows, block in self.blocks(array, rng):
            scores[rows] = block
        return scores

    def blocks(self, predictions: ArrayLike, rng: Rng = None) -> Iterator[tuple[slice, Scores]]:
        """The scores of every label, a block of rows at a time, so that memory stays bounded.

        Parameters
        ----------
        predictions
            (n, C) class probabilities, a memory map for instance.
        rng
            A seed or generator, for randomised scores.

        Yields
        ------
        tuple
            A slice of rows and their (rows, C) scores.

        Examples
        --------
        >>> import robfcp
        >>> for rows, scores in robfcp.LAC().blocks([[0.75, 0.25], [0.5, 0.5]]):
        ...     print(rows, scores.shape)
        slice(0, 2, None) (2, 2)
        """
        array = check_probabilities(predictions)
        u = self._uniforms(len(array), rng)
        for rows in row_blocks(array):
            check_rows(array[rows], rows.start)
            yield rows, self._of_all(array[rows], u[rows])

    def default_grid(self) -> Grid:
        """The fine grid on [0, 1].

        Returns
        -------
        Grid
            The same grid for every site, so that reports fit together.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.LAC().default_grid() == robfcp.Grid.default()
        True
        """
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
