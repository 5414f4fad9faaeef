"""How far each site is from what the others and its own labels lead one to expect."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.consensus.constants import Constants
from robfcp.defence.consensus.tables import Tables

SHARPEST = 100.0  # samples that the shares of all classes are worth for one of them, at most
SHAPE = 11.0  # degrees of freedom of X^2 by bin where there are all 15 of them
SHIFT = 3.4  # those of the counts up to each bin
TESTS = 1.6  # independent tests that the two are worth
_EXACT, _GRID_SIZES, _GRID_POINTS = 8192, 64, 512
_DEVIATION = 1.25  # standard deviation of a median over that of a mean
_BLOCK = 512  # sites whose chances are summed at a time

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Expected:
    """A block of sites' (k, C, B) counts and the shares their classes should have.

    With p_c the reference's shares of class c without the site itself, E_kb = sum_c n_kc p_cb and
    V_kb = sum_c n_kc p_cb (1 - p_cb) (1 + n_kc / (N_c + a)): the site's own noise and the error of
    the reference. What is not asked for is not computed.
    """

    own: Array
    shares: Array
    weight: Array  # (k, C) N_c + a

    @cached_property
    def counts(self) -> Array:
        """(k, B) the sites' counts."""
        found: Array = self.own.sum(axis=1)
        return found

    @cached_property
    def means(self) -> Array:
        """(k, B) E, what the sites' labels lead one to expect."""
        found: Array = np.einsum("kc,kcb->kb", self._sizes, self.shares)
        return found

    @cached_property
    def variances(self) -> Array:
        """(k, B) V, between the two."""
        return self._spread(self.shares)

    @cached_property
    def passed(self) -> Array:
        """(k, B - 1) the same of the counts up to each bin."""
        return self._spread(np.cumsum(self.shares, axis=2)[:, :, :-1])

    @cached_property
    def _sizes(self) -> Array:
        found: Array = self.own.sum(axis=2)
        return found

    def _spread(self, shares: Array) -> Array:
        sizes = self._sizes * (1 + self._sizes / self.weight)
        found: Array = np.einsum("kc,kcb->kb", sizes, shares * (1 - shares))
        return found


def expected(tables: Tables, reference: Mask, block: slice, total: Array) -> Expected:
    """What a block of sites should look like, `total` being the reference's counts.

    Shares of all classes count for `a` samples of each: a class that nobody else holds is expected
    to differ from them as much as classes do.
    """
    own = tables.rows(block)
    worth = samples_worth(total)
    others = total - own * reference[block, None, None]
    everything = others.sum(axis=1)
    n_bins = everything.shape[1]
    prior = (everything + 0.5) / (everything.sum(axis=1, keepdims=True) + 0.5 * n_bins)
    weight = others.sum(axis=2) + worth
    return Expected(own, (others + worth * prior[:, None, :]) / weight[:, :, None], weight)


def samples_worth(total: Array) -> float:
    """Sampling variance over variance between classes: how alike the classes' scores are."""
    sizes = total.sum(axis=1)
    held, n_samples = sizes > 0, sizes.sum()
    if held.sum() < 2:
        return 1.0
    shares = total.sum(axis=0) / n_samples
    noise = (shares * (1 - shares)).sum()
    spread = ((total[held] - sizes[held, None] * shares) ** 2 / sizes[held, None]).sum()
    room = n_samples - (sizes**2).sum() / n_samples
    between = (spread - (held.sum() - 1) * noise) / max(room, 1e-9)
    return float(np.clip(noise / max(between, 1e-12), 1.0, SHARPEST))


def residuals(
    counts: Array, means: Array, variances: Array, noise: Array | float = 0.0
) -> tuple[Array, Array]:
    """(k, B) differences of root counts in units of noise, and the mean of each one's square.

    2 (sqrt(h + 3/8) - sqrt(E + 3/8)) sqrt((E + 3/8) / (V + 3/8)); the 3/8 also holds the variance
    of privacy noise.
    """
    shift = 0.375 + noise
    scale = np.sqrt((means + shift) / (variances + shift))
    roots = np.sqrt(np.maximum(counts + shift, 0)) - np.sqrt(means + shift)
    few = np.interp(means + noise, *_few_counts(), right=1.0)
    squares = few * (variances + noise) / np.maximum(means + noise, 1e-12) * scale**2
    return 2 * roots * scale, squares


@cache
def _few_counts() -> tuple[Array, Array]:
    """E 4 (sqrt(X + 3/8) - sqrt(m + 3/8))^2 for X Poisson(m), at many m."""
    from scipy.special import gammaln

    rates = np.concatenate([np.linspace(1e-9, 3, 61), np.geomspace(3.1, 60, 60)])
    x = np.arange(200)
    masses = np.exp(-rates[:, None] + x * np.log(rates[:, None]) - gammaln(x + 1))
    squares = 4 * (np.sqrt(x + 0.375) - np.sqrt(rates[:, None] + 0.375)) ** 2
    return rates, (masses * squares).sum(axis=1)


def ratios(tables: Tables, reference: Mask) -> Array:
    """(K,) X^2 by bin over its mean under noise alone: 1 where a site differs by sampling only."""
    total = tables.total(reference)
    found = np.empty(tables.shape[0])
    for block in tables.blocks():
        found[block] = _by_bin(tables, expected(tables, reference, block, total), block)
    return found


def views(tables: Tables, reference: Mask) -> Array:
    """(2, K) the same, and that of the counts up to each bin (as Anderson and Darling's).

    The first sees any difference of shape; the second is moved by honest differences far less than
    by scores that all went one way.
    """
    total = tables.total(reference)
    found = np.empty((2, tables.shape[0]))
    for block in tables.blocks():
        given = expected(tables, reference, block, total)
        found[0, block] = _by_bin(tables, given, block)
        added = 0.0 if tables.noise is None else np.cumsum(tables.noise[block], axis=1)[:, :-1]
        lead = np.cumsum(given.counts - given.means, axis=1)[:, :-1]
        far = lead**2 / (given.passed + added + 0.375)
        found[1, block] = far.mean(axis=1) if far.shape[1] else 1.0
    return found


def _by_bin(tables: Tables, given: Expected, block: slice) -> Array:
    noise = 0.0 if tables.noise is None else tables.noise[block]
    differences, squares = residuals(given.counts, given.means, given.variances, noise)
    found: Array = (differences**2).sum(axis=1) / np.maximum(squares.sum(axis=1), 1e-9)
    return found


def heterogeneity(ratio: Array, sizes: Array, reference: Mask, freedom: float = SHAPE) -> float:
    """phi: what the reference's X^2 exceed noise by, per sample."""
    middle = (1 - 2 / (9 * freedom)) ** 3  # the median of chi-square over its mean
    excess = float(np.median(ratio[reference])) / middle - 1
    return max(excess, 0.0) / float(np.median(sizes[reference]))


def degrees(tables: Tables) -> float:
    """Of the scaled chi-square that X^2 by bin over its mean follows under noise."""
    return max(1.0, 0.8 * (tables.shape[2] - 1))


@dataclass(frozen=True)
class Law:
    """How far honest sites are off: u (1 + phi n G), noise times their own differences.

    u is chi-square over its degrees, log G = tail times Student: 0 for the usual site.
    """

    phi: float
    tail: float
    freedom: float
    student: float

    def chance(self, ratio: Array, sizes: Array) -> Array:
        """(K,) P(u (1 + phi n G) >= ratio); of many sites between points of a grid.

        The grid has 64 sizes at most, of which a site takes the next larger one.
        """
        if len(ratio) <= _EXACT:
            return self._summed(ratio, sizes)
        every = np.unique(sizes)
        if len(every) > _GRID_SIZES:
            every = np.geomspace(every[0], every[-1], _GRID_SIZES)
        place = np.minimum(np.searchsorted(every, sizes * (1 - 1e-12)), len(every) - 1)
        low, high = max(float(ratio.min()), 1e-3), max(float(ratio.max()), 2e-3)
        points = np.geomspace(low, high, _GRID_POINTS)
        logs = np.log(np.maximum(ratio, low))
        found = np.empty(len(ratio))
        for number, size in enumerate(every):
            mine = place == number
            known = np.log(self._summed(points, np.full(_GRID_POINTS, size)))
            found[mine] = np.exp(np.interp(logs[mine], np.log(points), known))
        return found

    def _summed(self, ratio: Array, sizes: Array) -> Array:
        """The same exactly: summed over quantiles of u."""
        from scipy.special import stdtr

        found = np.empty(len(ratio))
        spread = np.maximum(self.phi * sizes, 1e-12)
        for start in range(0, len(ratio), _BLOCK):
            some = slice(start, start + _BLOCK)
            excess = ratio[some] / self._noise[:, None] - 1
            depth = np.log(np.maximum(excess, 1e-300) / spread[some]) / self.tail
            beyond = np.where(excess <= 0, 1.0, stdtr(self.student, -depth))
            found[some] = _nodes()[1] @ beyond
        clipped: Array = np.clip(found, 1e-300, 1 - 1e-12)
        return clipped

    @cached_property
    def _noise(self) -> Array:
        """The quantiles of u."""
        from scipy.special import gammainccinv

        quantiles = gammainccinv(self.freedom / 2, _nodes()[0]) / (self.freedom / 2)
        return np.asarray(quantiles, dtype=np.float64)

    def ordinary(self, sizes: Array, chance: float = 0.05) -> Array:
        """(K,) the ratio that so large a share of honest sites of each size exceeds."""
        distinct, place = np.unique(sizes, return_inverse=True)
        low, high = np.full(len(distinct), 0.1), np.full(len(distinct), 1e9)
        for _ in range(40):
            middle = np.sqrt(low * high)
            rare = self.chance(middle, distinct) < chance
            low, high = np.where(rare, low, middle), np.where(rare, middle, high)
        return low[place]


def joint_chance(chances: Array) -> Array:
    """(K,) of the smaller of two chances (2, K), which are not independent."""
    found: Array = -np.expm1(TESTS * np.log1p(-chances.min(axis=0)))
    return np.clip(found, 1e-300, 1 - 1e-12)


def law_of(
    tables: Tables, ratio: Array, reference: Mask, constants: Constants, freedom: float
) -> Law:
    """The law that the reference shows: a prediction from so many sites, no more.

    phi has its standard error added, and the tail is that of one more site than the reference's.
    """
    known = int(reference.sum())
    error = _DEVIATION * np.sqrt(2 / freedom / known) / float(np.median(tables.sizes))
    tail = constants.tail if tables.shape[1] > 1 else constants.mixed
    return Law(
        phi=heterogeneity(ratio, tables.sizes, reference, freedom) + float(error),
        tail=tail * float(np.sqrt(1 + _DEVIATION**2 / known)),
        freedom=freedom,
        student=constants.freedom,
    )


@cache
def _nodes() -> tuple[Array, Array]:
    """Upper tail probabilities and their weights: even in the bulk, by half decades beyond 10%."""
    cuts = 10.0 ** -np.arange(1.0, 12.0, 0.5)
    above = np.concatenate([np.arange(0.5, 20) / 20 * 0.9 + 0.1, np.sqrt(cuts[1:] * cuts[:-1])])
    weights = np.concatenate([np.full(20, 0.045), -np.diff(cuts)])
    return above, weights / weights.sum()
