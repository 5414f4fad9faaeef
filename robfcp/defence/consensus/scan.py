"""Which of the oddest sites stand out from the rest, for every number of them at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

DRAWS = 400
_EVERY = 400  # ranks that are looked at one by one; beyond them in steps of 3%
_LEVEL = 0.95

Array = NDArray[np.float64]
Ranks = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Null:
    """What the scan gives when all K oddities are standard normal."""

    ranks: Ranks
    middle: Array
    high: Array
    largest: Array

    def standard(self, heights: Array) -> Array:
        """(J,) heights comparable over the ranks: 0 is usual, 1 its 95% point."""
        found: Array = (heights - self.middle) / (self.high - self.middle)
        return found

    def chance(self, standard: float) -> float:
        """The chance of such a largest standard height."""
        above = len(self.largest) - np.searchsorted(self.largest, standard)
        return float((1 + above) / (1 + len(self.largest)))

    def widest_gap(self, place: int, rising: Array) -> int:
        """The number of oddest sites before the widest gap up to the next rank looked at."""
        first = int(self.ranks[place])
        last = int(self.ranks[place + 1]) if place + 1 < len(self.ranks) else first + 1
        falling = rising[::-1][first - 1 : last]
        return first + int(np.argmax(falling[:-1] - falling[1:]))


def heights(oddity: Array, ranks: Ranks, prior: float) -> Array:
    """(J,) R_j: how far the j-th oddest is from the K - j less odd, in their standard deviations.

    Location and scale of those are shrunk to 0 and 1 by `prior` sites. Small j is a test for
    outliers, j near K/2 one for a gap.
    """
    rising = np.sort(oddity)
    rest = len(rising) - ranks
    sums, squares = np.cumsum(rising)[rest - 1], np.cumsum(rising**2)[rest - 1]
    return _heights(rising[rest], sums, squares, rest, prior)


def _heights(value: Array, sums: Array, squares: Array, rest: Ranks, prior: float) -> Array:
    location = sums / (prior + rest)
    within = (
        np.maximum(squares - sums**2 / rest, 0) + prior * rest / (prior + rest) * (sums / rest) ** 2
    )
    found: Array = (value - location) / np.sqrt((prior + within) / (prior + rest))
    return found


@lru_cache(maxsize=64)
def null(n_sites: int, most: int, prior: float, least: float) -> Null:
    """The scan's law by simulation: order statistics of K normal numbers at a grid of ranks.

    All ranks up to 400; between later ones the order statistics are taken as linear, so that a
    million sites cost as much as a thousand.
    """
    from scipy.special import ndtri

    lot = np.random.default_rng(0)
    grid = _grid(n_sites)
    steps = np.diff(grid, prepend=0)
    passed = np.cumsum(lot.standard_gamma(steps, (DRAWS, len(grid))), axis=1)
    above = passed / (passed[:, -1:] + lot.standard_exponential((DRAWS, 1)))
    values = -ndtri(above)
    before = np.concatenate([values[:, :1], values[:, :-1]], axis=1)
    middle = np.where(steps > 1, (values + before) / 2, values)
    lower = [np.cumsum((steps * power)[:, ::-1], axis=1)[:, ::-1] for power in (middle, middle**2)]
    inside = np.flatnonzero(grid <= most)
    ranks = grid[inside]
    sums, squares = (below[:, inside + 1] for below in lower)
    found = _heights(values[:, inside], sums, squares, n_sites - ranks, prior)
    usual, high = np.median(found, axis=0), np.quantile(found, _LEVEL, axis=0)
    standard = np.where(found >= least, (found - usual) / (high - usual), -np.inf)
    return Null(ranks, usual, high, np.sort(standard.max(axis=1)))


def _grid(n_sites: int) -> Ranks:
    """Rising ranks from 1 to K."""
    ranks = np.arange(1, min(n_sites, _EVERY) + 1)
    if n_sites > _EVERY:
        number = int(np.ceil(np.log(n_sites / _EVERY) / np.log(1.03))) + 1
        further = np.round(np.geomspace(_EVERY, n_sites, number)).astype(np.int64)
        ranks = np.unique(np.concatenate([ranks, further]))
    return ranks.astype(np.int64)
