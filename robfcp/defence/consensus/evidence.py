"""How far each site is from what the others and its own labels lead one to expect."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.consensus.tables import Tables

SHARPEST = 100.0  # samples that the shares of all classes are worth for one of them, at most
_FINE, _FEW = 256, 64  # points a count in the table of few counts, and where it ends

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Expected:
    """A block of sites' counts and the (k, C, B) shares that their classes should have.

    With p_c the reference's shares of class c without the site itself, E_kb = sum_c n_kc p_cb and
    V_kb = sum_c n_kc p_cb (1 - p_cb) (1 + n_kc / (N_c + a)): the site's own noise and the error of
    the reference. What is not asked for is not computed.
    """

    counts: Array  # (k, B)
    labels: Array  # (k, C)
    shares: Array
    weight: Array  # (k, C) N_c + a

    @cached_property
    def means(self) -> Array:
        """(k, B) E, what the sites' labels lead one to expect."""
        return _over_classes(self.labels, self.shares)

    @cached_property
    def variances(self) -> Array:
        """(k, B) V, between the two."""
        return self._spread(self.shares)

    @cached_property
    def passed(self) -> Array:
        """(k, B - 1) the same of the counts up to each bin."""
        return self._spread(up_to(self.shares))

    def _spread(self, shares: Array) -> Array:
        sizes = self.labels * (1 + self.labels / self.weight)
        return _over_classes(sizes, shares * (1 - shares))


def _over_classes(weights: Array, values: Array) -> Array:
    """(k, B) sums over the classes of (k, C) weights times (k, C, B) values."""
    found: Array = np.matmul(weights[:, None, :], values)[:, 0]
    return found


def up_to(values: Array) -> Array:
    """(..., B - 1) sums up to each bin but the last; a product is several times faster."""
    n_bins = values.shape[-1]
    steps = np.triu(np.ones((n_bins, n_bins)))[:, :-1]
    found: Array = (values.reshape(-1, n_bins) @ steps).reshape(*values.shape[:-1], n_bins - 1)
    return found


def expected(tables: Tables, reference: Mask, block: slice, total: Array) -> Expected:
    """What a block of sites should look like, `total` being the reference's counts.

    Shares of all classes count for `a` samples of each: a class that nobody else holds is expected
    to differ from them as much as classes do.
    """
    own, worth, inside = tables.rows(block), samples_worth(total), reference[block]
    n_sites, n_classes, n_bins = own.shape
    labels = (own.reshape(-1, n_bins) @ np.ones(n_bins)).reshape(n_sites, n_classes)
    counts = _over_classes(np.ones((n_sites, n_classes)), own)
    prior = total.sum(axis=0) - counts * inside[:, None] + 0.5
    prior *= worth / (prior @ np.ones(n_bins))[:, None]
    weight = total.sum(axis=1) - labels * inside[:, None] + worth
    shares = np.multiply(own, -1.0 * inside[:, None, None], out=own)
    shares += total
    shares += prior[:, None, :]
    shares *= (1 / weight)[:, :, None]
    return Expected(counts, labels, shares, weight)


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
    larger = means + shift
    scale = larger / (variances + shift)
    roots = np.sqrt(np.maximum(counts + shift, 0)) - np.sqrt(larger)
    rate = means + noise
    few = _few_counts()[np.minimum(rate * _FINE, _FINE * _FEW).astype(np.intp)]
    squares = few * (variances + noise) / np.maximum(rate, 1e-12) * scale
    return 2 * roots * np.sqrt(scale), squares


@cache
def _few_counts() -> Array:
    """E 4 (sqrt(X + 3/8) - sqrt(m + 3/8))^2 for X Poisson(m), at the middles of small steps of m.

    The last is 1, for all larger m.
    """
    from scipy.special import gammaln

    rates = (np.arange(_FINE * _FEW) + 0.5) / _FINE
    found = np.zeros(len(rates) + 1)
    for hits in range(3 * _FEW):
        masses = np.exp(hits * np.log(rates) - rates - gammaln(hits + 1))
        found[:-1] += masses * 4 * (np.sqrt(hits + 0.375) - np.sqrt(rates + 0.375)) ** 2
    found[-1] = 1.0
    return found


def ratios(tables: Tables, reference: Mask) -> Array:
    """(K,) X^2 by bin over its mean under noise alone: 1 where a site differs by sampling only."""
    total = tables.total(reference)
    found = np.empty(tables.shape[0])
    for block in tables.blocks():
        found[block] = _by_bin(tables, expected(tables, reference, block, total), block)
    return found


def views(tables: Tables, reference: Mask) -> Array:
    """(3, K) the same, and that of the counts up to each bin (as Anderson and Darling's).

    The first sees any difference of shape; the second is moved by honest differences far less than
    by scores that all went one way. The third row is the share of a site's variance that is its
    own sampling noise: little where hardly anybody else holds its classes.
    """
    total = tables.total(reference)
    found = np.ones((3, tables.shape[0]))
    for block in tables.blocks():
        given = expected(tables, reference, block, total)
        found[0, block] = _by_bin(tables, given, block)
        added = 0.0 if tables.noise is None else up_to(tables.noise[block])
        far = up_to(given.counts - given.means) ** 2 / (given.passed + added + 0.375)
        if far.shape[1]:
            found[1, block] = far.mean(axis=1)
        size = tables.sizes[block]
        own = size - (given.counts**2).sum(axis=1) / size
        found[2, block] = own / np.maximum(given.variances.sum(axis=1), 1e-12)
    return found


def _by_bin(tables: Tables, given: Expected, block: slice) -> Array:
    noise = 0.0 if tables.noise is None else tables.noise[block]
    differences, squares = residuals(given.counts, given.means, given.variances, noise)
    found: Array = (differences**2).sum(axis=1) / np.maximum(squares.sum(axis=1), 1e-9)
    return found
