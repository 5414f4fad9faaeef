"""Counts with privacy noise, and how far the noise can have moved them.

A client's count up to edge t is the sum of the bins up to t, n_k less the sum of those above, or
the mean of the two: the first two hold the noise of t and of H - t bins, the mean half the noise of
all H, which is the least in the middle of the grid. Hence everything is in half counts. Where n_k
is hidden the sums on both sides are needed.

Noisy counts may fall from one edge to the next, so a threshold is the edge after the last failure.
It lies below the one that the counts without noise would give only if the noise at one edge, fixed
by those counts, exceeds its bound: no union over the edges is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp._util.exact import integers, sum_of_largest
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, rising
from robfcp.guarantees.bounds import CountBounds, Edges, ExactCounts, Shares, Whole
from robfcp.privacy import Noise, Terms, least_noisy_count, noise_bound

LEVEL_SHARE = Fraction(1, 50)  # of 1 - level, for thresholds that cover on average
_ROUNDING = 1e-12
_STEPS = 50


def bounds_of(federation: Federation) -> CountBounds:
    """The counts as guarantees see them: exact, or with the noise of private reports."""
    if federation.noise.moves(federation.unit):
        return NoisyCounts(federation)
    found: CountBounds = federation.memo.setdefault("bounds", ExactCounts(federation))
    return found


class NoisyCounts:
    """Estimates of 2 c_k(t) with noise of a known law, and bounds on the noise of any S.

    A client whose noise at an edge is larger than its n_k is silent there: its count is taken as 0
    from below and as n_k from above, which needs no noise bound. So nobody can drown the others by
    claiming more noise than it has samples. The choice rests on n_k and the stated noise alone.
    """

    falling = True

    def __init__(self, federation: Federation) -> None:
        n_bins = federation.grid.n_bins
        left = federation.cumulative()
        up_to = np.arange(1, n_bins + 1)
        shorter = np.minimum(up_to, n_bins - up_to)
        self.sizes_known = federation.sizes_known
        self._laws = federation.noises
        self.parts = 2 * federation.unit
        if self.sizes_known:
            self.sizes = federation.sizes
            masses = federation.masses[:, None]
            right = masses - (left[:, -1:] - left)
            middle = 4 * shorter > n_bins
            one_side = 2 * np.where(2 * up_to <= n_bins, left, right)
            self._halves = np.where(middle, left + right, one_side)
            self._draws = federation.noise_draws * np.where(middle, n_bins, shorter)
            self._step = np.where(middle, 1, 2)
            spread = federation.variances[:, None] * self._draws * (self._step / 2) ** 2
            self._silent = spread > masses.astype(np.float64) ** 2
        else:
            self.sizes = left[:, -1].copy()
            self._halves = 2 * left
            self._draws = federation.noise_draws * up_to
            self._step = np.full(n_bins, 2)
            self._silent = np.zeros(left.shape, dtype=bool)
        self._distinct = sorted({law for law in self._laws if law is not None})
        self._heard = np.zeros((len(self._distinct), n_bins), dtype=np.int64)
        for row, law in enumerate(self._distinct):
            self._heard[row] = (~self._silent[[own == law for own in self._laws]]).sum(axis=0)

    def require_sizes(self, what: str) -> None:
        """Refuse what cannot do without n_k."""
        if not self.sizes_known:
            raise RobfcpError(
                f"{what}: needs every site's number of samples, which private reports under "
                "add-remove hide; register the sizes or use substitution"
            )

    def split(self, chance: float, share: float) -> tuple[float, float]:
        """The share for the noise, the rest for the samples."""
        return share * chance, chance - share * chance

    def level_share(self, level: Fraction) -> Fraction:
        """The chance that noise may fool a marginal threshold: (1 - level)/50."""
        return (1 - level) * LEVEL_SHARE

    def least(self, edges: Edges) -> Whole:
        """(E, K) the estimates in half counts, 0 where a client is silent."""
        return np.where(self._silent[:, edges], 0, self._halves[:, edges]).T

    def greatest(self, edges: Edges) -> Whole:
        """(E, K) the estimates in half counts, 2 n_k where a client is silent."""
        full = self.parts * self.sizes[:, None]
        return np.where(self._silent[:, edges], full, self._halves[:, edges]).T

    def allowance(self, edges: Edges, chance: float) -> Whole:
        """(E,) half counts that at any one edge the noise of any S exceeds with this chance."""
        bounds = [noise_bound(self._pooled(int(edge)), chance) for edge in edges]
        return self._step[edges] * np.array(bounds, dtype=np.int64)

    def scaled_allowance(self, edges: Edges, level: Fraction, chance: float) -> NDArray[Any]:
        """(E,) 2q times the noise of sum_S (c_k - level n_k), exceeded with at most this chance.

        Hidden sizes: c - level n is (1 - level) left - level right, and each side gets half.
        """
        p, q = level.numerator, level.denominator
        if self.sizes_known:
            bound = self.allowance(edges, chance)
            return integers(bound, q * int(bound.max(initial=0))) * q
        left, right = self._sides(edges, chance / 2)
        largest = q * int(max(left.max(initial=0), right.max(initial=0)))
        return (q - p) * integers(left, largest) + p * integers(right, largest)

    def client_counts(self, edges: Edges, chance: float) -> tuple[Whole, Whole]:
        """(E, K) whole counts of every client by itself, each end wrong with the chance."""
        own, full = self._client_bounds(edges, chance), self.sizes[None, :]
        lowest = np.clip(-((own - self.least(edges)) // 2), 0, full)
        highest = np.clip((self.greatest(edges) + own) // 2, 0, full)
        return lowest, highest

    def benign_shares(
        self, edges: Edges, m: int, chance: float, extra: int = 0
    ) -> tuple[Shares, Shares]:
        """(E,) the shares that are proved beyond the noise of every S, by bisection."""
        if self.sizes_known:
            left = right = self.allowance(edges, chance)
        else:
            left, right = self._sides(edges, chance / 2)
        weights = self.parts * (self.sizes + extra)
        above = self.parts * self.sizes - self.greatest(edges)
        low = _least_shares(self.least(edges), weights, m, left, right)
        return low, 1 - _least_shares(above, weights, m, right, left)

    def foresee(self, edges: Edges, budgets: Sequence[int]) -> None:
        """Nothing is saved by it."""

    def nearly_worst(self, edge: int) -> tuple[Shares, Shares, Whole] | None:
        """Unknown: noise is allowed for by bisection."""
        return None

    def smallest_total(self, m: int, chance: float) -> float:
        """N without its m largest clients, less what noise may add to hidden sizes."""
        total = float(self.sizes.sum() - sum_of_largest(self.sizes[None, :], m)[0])
        if self.sizes_known:
            return total
        return total - float(self.allowance(np.array([len(self._draws) - 1]), chance)[0]) / 2

    def convincing(self, probability: float, gamma: float) -> Callable[[int], tuple[Any, Any]]:
        """Half counts; a silent client convinces of nothing."""

        def at(edge: int) -> tuple[Whole, Shares]:
            never = 2 * int(self.sizes.max()) + 1
            pairs = [
                (never, 0.0)
                if self._silent[k, edge]
                else least_noisy_count(int(size), probability, gamma, self._own_noise(k, edge))
                for k, size in enumerate(self.sizes)
            ]
            return np.array([count for count, _ in pairs]), np.array([c for _, c in pairs])

        return at

    def search(self, holds: Callable[[Edges], NDArray[np.bool_]]) -> int | None:
        """The edge after the last failure."""
        everywhere = holds(np.arange(len(self._draws)))
        if not everywhere[-1]:
            return None
        failures = np.flatnonzero(~everywhere)
        return int(failures[-1]) + 1 if failures.size else 0

    def edges_from(self, index: int) -> Edges:
        """This edge and all above it."""
        return np.arange(index, len(self._draws))

    def first_reaching(self, rank: int) -> int | None:
        """By the pooled counts, made to rise; noise is as likely to move it down as up."""
        total = max(1, int(self.sizes.sum()) * self.parts // 2)
        pooled = rising(self._halves.sum(axis=0) / 2)
        reached = np.flatnonzero(pooled >= rank - _ROUNDING * total)
        return int(reached[0]) if rank <= total and reached.size else None

    def _sides(self, edges: Edges, chance: float) -> tuple[Whole, Whole]:
        """(E,) bounds on the noise of the sums up to each edge and of the sums above it."""
        above = len(self._draws) - 2 - edges
        right = np.where(above < 0, 0, self.allowance(np.maximum(above, 0), chance))
        return self.allowance(edges, chance), right

    def _client_bounds(self, edges: Edges, chance: float) -> Whole:
        """(E, K) bounds on each client's own noise in half counts, 0 where it has none."""
        bounds = np.zeros((len(edges), len(self.sizes)), dtype=np.int64)
        draws, where = np.unique(self._draws[edges], return_inverse=True)
        for law in self._distinct:
            bound = np.array([noise_bound(((law, int(n)),), chance) for n in draws])
            rows = np.array([own == law for own in self._laws])
            bounds[:, rows] = (self._step[edges] * bound[where])[:, None]
        return np.where(self._silent[:, edges].T, 0, bounds)

    def _own_noise(self, client: int, edge: int) -> tuple[Noise, int, int] | None:
        """Law, number of draws and half counts a unit of one client's noise; None without any."""
        law = self._laws[client]
        return None if law is None else (law, int(self._draws[edge]), int(self._step[edge]))

    def _pooled(self, edge: int) -> Terms:
        """How many draws of which law the clients' counts at an edge hold together."""
        number = int(self._draws[edge]) * self._heard[:, edge]
        return tuple(
            (law, int(draws)) for law, draws in zip(self._distinct, number, strict=True) if draws
        )


def _least_shares(counts: Whole, sizes: Whole, m: int, left: Whole, right: Whole) -> Shares:
    """(E,) x with sum_S (c_k - x n_k) >= (1 - x) left + x right, S without at most m clients.

    The largest x by bisection, 0 where there is none; every x found is proved by itself.
    """

    def proved(x: Shares) -> NDArray[np.bool_]:
        gains = counts - x[:, None] * sizes
        kept = gains.sum(axis=1) - sum_of_largest(gains, m)
        return np.asarray(kept >= (1 - x) * left + x * right)

    low, high = np.zeros(len(counts)), np.ones(len(counts))
    low[proved(high)] = 1.0
    possible = proved(np.zeros(len(counts)))
    for _ in range(_STEPS):
        middle = (low + high) / 2
        here = proved(middle)
        low, high = np.where(here, middle, low), np.where(here, high, middle)
    return np.where(possible, low, 0.0)
