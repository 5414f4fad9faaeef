"""The likeliest labels of many rows, from the likeliest down."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robfcp.scores.probabilities import Probabilities

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
