"""Which pairs of clients cannot both be honest, under label shift; and whom that leaves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_KEPT = 2**24  # pairs of clients times classes whose sizes are worked out once
_BLOCK = 2**16  # of them, or pairs, worked on at a time: what a cache holds
_SLACK = 1 - 1e-9  # of a bound that only decides where logarithms are taken

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


class _Block(NamedTuple):
    """What some clients' sizes say of all pairs they are in: (B, C, K) weights."""

    rows: slice
    harmonic: Floats  # n_k n_l / (n_k + n_l)
    spread: Floats  # n_k n_l / ((n_k + n_l)^2 (n_k + n_l - 1))


class Pairs:
    """All pairs of clients, compared at one edge after another over the classes both hold.

    Given each class's pooled count, an honest client's counts are independent hypergeometric
    variables, hence their sum X one of independent indicators, with mean mu and variance V. Of such
    sums the binomial one of the same mean and variance, n' = mu^2 / (mu - V) draws, has the largest
    generating function below 1: P(X <= x) <= exp(-e), e = n' kl(x/n', mu/n'), for x <= mu, and
    likewise above it with n - X; twice that for either side. Honest clients within sigma > 0 of a
    common distribution: Hoeffding's e = 2 (|D| - 2 sigma H)+^2 / H, D = X - mu,
    H = sum_c n_kc n_lc / (n_kc + n_lc).

    Parameters
    ----------
    sizes
        (K, C) samples of each client and class.
    """

    def __init__(self, sizes: ArrayLike) -> None:
        self.sizes = np.asarray(sizes, dtype=np.float64)
        self._held = (self.sizes > 0).astype(np.float64)
        self._shared = self.sizes @ self._held.T  # n, of the row's client
        self._kept: list[_Block] | None = None
        if self.sizes.size * len(self.sizes) <= _KEPT:
            self._kept = list(self._blocks())

    def _blocks(self) -> Iterator[_Block]:
        for rows in _slices(len(self.sizes), self.sizes.size):
            own, other = self.sizes[rows, :, None], self.sizes.T[None]
            product, total = own * other, own + other
            harmonic = product / np.maximum(total, 1)
            spread = harmonic / np.maximum(total * (total - 1), 1)
            yield _Block(rows, harmonic, spread)

    def _seen(self) -> Iterator[_Block]:
        return self._blocks() if self._kept is None else iter(self._kept)

    def _differences(self, below: Floats) -> Floats:
        """(K, K) D_kl = sum_c n_kc n_lc / (n_kc + n_lc) (x_kc / n_kc - x_lc / n_lc)."""
        share = below / np.maximum(self.sizes, 1)
        found = np.empty((len(share), len(share)))
        for block in self._seen():
            found[block.rows] = np.matmul(share[block.rows, None, :], block.harmonic)[:, 0]
        return np.asarray(found - found.T)

    def _variances(self, below: Floats) -> Floats:
        """(K, K) V_kl = sum_c n_kc n_lc P (1 - P) / (n_kc + n_lc - 1), P the pooled share."""
        miss = self.sizes - below
        found = np.empty((len(below), len(below)))
        for rows, _, spread in self._seen():
            # (x_k + x_l) (y_k + y_l), of which x_l y_l and y_k x_l come with the transpose
            within = np.matmul((below * miss)[rows, None, :], spread)
            across = np.matmul(below[rows, None, :], spread * miss.T[None])
            found[rows] = (within + across)[:, 0]
        return np.asarray(found + found.T)

    @cached_property
    def _weights(self) -> Floats:
        """(K, K) H_kl = sum_c n_kc n_lc / (n_kc + n_lc)."""
        return np.concatenate([block.harmonic.sum(axis=1) for block in self._seen()])

    def exponents(self, below: ArrayLike, sigma: float = 0.0) -> Floats:
        """(K, K) e of each pair, the row's client first; 0 where two share no class.

        The p-value for "both are honest" is min(1, 2 exp(-e)).
        """
        counts = np.asarray(below, dtype=np.float64)
        difference = self._differences(counts)
        if sigma > 0:
            return self._hoeffding(difference, sigma)
        own = counts @ self._held.T
        return _exact(own, difference, self._variances(counts), self._shared)

    def doubtful(self, below: ArrayLike, least: float, sigma: float = 0.0) -> Mask:
        """(K, K) whether e >= least: the two are hardly both honest."""
        if sigma > 0:
            return np.asarray(self.exponents(below, sigma) >= least)
        counts = np.asarray(below, dtype=np.float64)
        difference = self._differences(counts)
        variance, own = self._variances(counts), counts @ self._held.T
        found = np.empty(difference.shape, dtype=bool)
        for rows in _slices(len(counts), len(counts)):
            d, v, n = difference[rows], variance[rows], self._shared[rows]
            # kl <= chi-square, so that e <= D^2 / V: most pairs need no logarithm
            here = (d * d >= least * _SLACK * v) & (v > 0)
            here[here] = _exact(own[rows][here], d[here], v[here], n[here]) >= least
            found[rows] = here
        return found

    def _hoeffding(self, difference: Floats, sigma: float) -> Floats:
        weight = self._weights
        excess = np.maximum(np.abs(difference) - 2 * sigma * weight, 0)
        return np.asarray(np.where(weight > 0, 2 * excess**2 / np.maximum(weight, 1e-12), 0.0))

    def kept(self, below: ArrayLike, m: int, beta: float, sigma: float = 0.0) -> Mask | None:
        """(K,) who is kept at one edge; None where more than m would have to be dropped.

        With probability >= 1 - beta no honest client is dropped, whatever m others report: see
        `pruned`.
        """
        n_clients = len(self.sizes)
        j = witnesses(n_clients, m)
        if m == 0 or m + j > n_clients - 1:
            return np.ones(n_clients, dtype=bool)
        return pruned(self.doubtful(below, least_exponent(n_clients, m, beta), sigma), m, j)


def _exact(own: Floats, difference: Floats, variance: Floats, shared: Floats) -> Floats:
    """e = n' kl(x/n', mu/n') on the side where x lies, 0 where V is."""
    low = difference < 0
    x = np.where(low, own, shared - own)
    mean = np.maximum(np.where(low, own - difference, shared - own + difference), 1e-12)
    draws = mean**2 / np.maximum(mean - variance, 1e-12)
    found = draws * kl_divergence(x / draws, mean / draws)
    return np.asarray(np.where(variance > 0, found, 0.0))


def _slices(number: int, width: int) -> Iterator[slice]:
    """Rows of this width in blocks."""
    step = max(1, _BLOCK // max(1, width))
    return (slice(start, min(start + step, number)) for start in range(0, number, step))


def witnesses(n_clients: int, m: int) -> int:
    """j: how many honest witnesses beyond m must speak against a client; from K and m alone."""
    return max(1, (n_clients - 2 * m) // 4)


def least_exponent(n_clients: int, m: int, beta: float) -> float:
    """The e from which on a pair speaks against a client: 2 exp(-e) (K - 1 - m) / j = beta / K."""
    j = witnesses(n_clients, m)
    return float(np.log(2 * n_clients * (n_clients - 1 - m) / (j * beta)))


def pruned(doubtful: Mask, m: int, j: int) -> Mask | None:
    """(K,) who is kept; None where more than m would have to be dropped.

    A client is dropped when m' + j of those present speak against it, m' the liars that may be
    left: then at least j of a fixed set of K - 1 - m honest clients do, which by Markov's
    inequality has a chance of at most beta / K, the same in every pass.
    """
    kept, left = np.ones(len(doubtful), dtype=bool), m
    doubtful = doubtful.copy()
    np.fill_diagonal(doubtful, False)
    while True:
        odd = kept & (doubtful[:, kept].sum(axis=1) >= left + j)
        dropped = int(odd.sum())
        if not dropped:
            return kept
        if dropped > left:
            return None
        kept &= ~odd
        left -= dropped


def kl_divergence(a: Floats, p: Floats) -> Floats:
    """a ln(a/p) + (1-a) ln((1-a)/(1-p)), 0 where a is 0 or 1 as it should be."""
    a, p = np.clip(a, 0, 1), np.clip(p, 1e-15, 1 - 1e-15)
    with np.errstate(divide="ignore", invalid="ignore"):
        low = np.where(a > 0, a * np.log(a / p), 0.0)
        high = np.where(a < 1, (1 - a) * np.log((1 - a) / (1 - p)), 0.0)
    return np.maximum(low + high, 0.0)
