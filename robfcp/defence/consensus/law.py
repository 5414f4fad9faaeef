"""How far off honest sites are: sampling noise times their own differences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.consensus.constants import Constants
from robfcp.defence.consensus.tables import Tables

TESTS = 1.6  # independent tests that the two views are worth
_DEVIATION = 1.25  # standard deviation of a median over that of a mean
_EXACT, _BLOCK = 4096, 512  # sites judged one by one, and how many of them at a time
_GRID_SIZES, _GRID_POINTS = 32, 256  # of the grid for more sites
_NEAREST, _FARTHEST, _STEPS = -20.0, 200.0, 2**14  # of the table of Student's tail

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Sampling:
    """u, what sampling alone makes of a view: chi-square over its degrees of freedom.

    A sum of unequal squares goes far out as its `largest` one alone does: of Anderson and
    Darling's, with parts 1 / (j (j + 1)), sqrt(3) times as often as half a square exceeds u.
    """

    freedom: float
    largest: float = 0.0

    def quantile(self, above: Array) -> Array:
        """What u exceeds with the given chances."""
        from scipy.special import gammainccinv

        bulk = gammainccinv(self.freedom / 2, above) / (self.freedom / 2)
        far = 2 * self.largest * gammainccinv(0.5, above / np.sqrt(3))
        found: Array = np.maximum(bulk, far)
        return found


UP_TO = Sampling(3.4, largest=0.5)  # of the counts up to each bin


def by_bin(tables: Tables) -> Sampling:
    """Of X^2 by bin over its mean, the bins being unequal."""
    return Sampling(max(1.0, 0.8 * (tables.shape[2] - 1)))


@dataclass(frozen=True)
class Law:
    """u (1 + phi n G), by which honest sites of n samples are off.

    u is sampling noise, log G = tail times Student: 0 for the usual site.
    """

    phi: float
    tail: float
    sampling: Sampling
    student: float

    def chance(self, ratio: Array, sizes: Array) -> Array:
        """(K,) P(u (1 + phi n G) >= ratio); of many sites between points of a grid.

        The grid has 32 sizes at most and 256 ratios, with straight lines between logarithms.
        """
        if len(ratio) <= _EXACT:
            return self._summed(ratio, sizes)
        every = np.unique(sizes)
        if len(every) > _GRID_SIZES:
            every = np.geomspace(every[0], every[-1], _GRID_SIZES)
        logs = np.log(np.maximum(ratio, 1e-3))
        points = np.linspace(logs.min(), logs.max() + 1e-3, _GRID_POINTS)
        known = np.log(
            self._summed(np.exp(np.tile(points, len(every))), np.repeat(every, _GRID_POINTS))
        )
        place = (logs - points[0]) / (points[1] - points[0])
        row = np.interp(np.log(sizes), np.log(every), np.arange(len(every)))
        above = np.minimum(row.astype(np.intp), max(len(every) - 2, 0))
        lower, upper = (
            _between(known, place + _GRID_POINTS * np.minimum(above + step, len(every) - 1))
            for step in (0, 1)
        )
        found: Array = np.exp(lower + (upper - lower) * (row - above))
        return found

    def _summed(self, ratio: Array, sizes: Array) -> Array:
        """The same exactly: summed over quantiles of u."""
        quantiles, weights = _nodes(self.sampling)
        tail, step = _student_tail(self.student), (_FARTHEST - _NEAREST) / _STEPS
        found = np.empty(len(ratio))
        spread = np.maximum(self.phi * sizes, 1e-12)
        for start in range(0, len(ratio), _BLOCK):
            some = slice(start, start + _BLOCK)
            excess = np.maximum(ratio[some] / quantiles[:, None] - 1, 1e-300)
            depth = np.log(excess / spread[some]) / self.tail
            found[some] = weights @ _between(tail, (depth - _NEAREST) / step)
        clipped: Array = np.clip(found, 1e-300, 1 - 1e-12)
        return clipped

    def ordinary(self, sizes: Array, chance: float = 0.05) -> Array:
        """(K,) the ratio that so large a share of honest sites of each size exceeds."""
        distinct, place = np.unique(sizes, return_inverse=True)
        low, high = np.full(len(distinct), 0.1), np.full(len(distinct), 1e9)
        for _ in range(40):
            middle = np.sqrt(low * high)
            rare = self.chance(middle, distinct) < chance
            low, high = np.where(rare, low, middle), np.where(rare, middle, high)
        return low[place]


def law_of(
    tables: Tables, ratio: Array, reference: Mask, constants: Constants, sampling: Sampling
) -> Law:
    """The law that the reference shows: a prediction from so many sites, no more.

    phi has its standard error added, and the tail is that of one more site than the reference's.
    """
    known = int(reference.sum())
    error = _DEVIATION * np.sqrt(2 / sampling.freedom / known) / float(np.median(tables.sizes))
    tail = constants.tail if tables.shape[1] > 1 else constants.mixed
    return Law(
        phi=heterogeneity(tables, ratio, reference, sampling) + float(error),
        tail=tail * float(np.sqrt(1 + _DEVIATION**2 / known)),
        sampling=sampling,
        student=constants.freedom,
    )


def heterogeneity(tables: Tables, ratio: Array, reference: Mask, sampling: Sampling) -> float:
    """phi: what the reference's X^2 exceed noise by, per sample."""
    excess = float(np.median(ratio[reference])) / _middle(sampling) - 1
    return max(excess, 0.0) / float(np.median(tables.sizes[reference]))


@lru_cache(maxsize=64)
def _middle(sampling: Sampling) -> float:
    """The median of u."""
    return float(sampling.quantile(np.array(0.5)))


def usual_spread(
    ratio: Array, share: float, tail: float, sampling: Sampling, student: float
) -> Array:
    """(K,) the phi n with which such a ratio is the quantile at `share`; 0 where noise suffices."""
    points, spreads = _usual_spreads(share, tail, sampling, student)
    found: Array = np.interp(np.log(np.maximum(ratio, 1e-3)), points, spreads)
    return found


@lru_cache(maxsize=64)
def _usual_spreads(
    share: float, tail: float, sampling: Sampling, student: float
) -> tuple[Array, Array]:
    """The same at many logarithms of ratios."""
    points = np.linspace(np.log(0.1), np.log(1e4), 256)
    law, ratio = Law(1.0, tail, sampling, student), np.exp(points)
    low, high = np.zeros(len(points)), np.full(len(points), 1e5)
    for _ in range(60):
        middle = (low + high) / 2
        enough = law.chance(ratio, middle) >= 1 - share
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return points, low


def joint_chance(chances: Array) -> Array:
    """(K,) of the smaller of two chances (2, K), which are not independent."""
    found: Array = -np.expm1(TESTS * np.log1p(-chances.min(axis=0)))
    return np.clip(found, 1e-300, 1 - 1e-12)


def _between(table: Array, place: Array) -> Array:
    """The table's values at broken places, straight lines between its own."""
    place = np.clip(place, 0, len(table) - 1)
    left = np.minimum(place.astype(np.intp), len(table) - 2)
    near = table[left]
    found: Array = near + (table[left + 1] - near) * (place - left)
    return found


@cache
def _student_tail(freedom: float) -> Array:
    """P(T > t) for Student's T at even steps of t."""
    from scipy.special import stdtr

    return np.asarray(stdtr(freedom, -np.linspace(_NEAREST, _FARTHEST, _STEPS + 1)), np.float64)


@lru_cache(maxsize=64)
def _nodes(sampling: Sampling) -> tuple[Array, Array]:
    """Quantiles of u and their weights: even in the bulk, by half decades beyond its last tenth."""
    cuts = 10.0 ** -np.arange(1.0, 12.0, 0.5)
    above = np.concatenate([np.arange(0.5, 20) / 20 * 0.9 + 0.1, np.sqrt(cuts[1:] * cuts[:-1])])
    weights = np.concatenate([np.full(20, 0.045), -np.diff(cuts)])
    return sampling.quantile(above), weights / weights.sum()
