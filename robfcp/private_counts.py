"""What private reports say about the counts at every edge, and how far noise can have moved them.

A client's count up to edge t is the sum of the bins up to t, n_k less the sum of those above, or
the mean of the two: the first two hold the noise of t and of H - t bins, the mean half the noise of
all H, which is the least in the middle of the grid. Hence everything is in half counts. Where n_k
is hidden the sums on both sides are needed.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp._exact import integers
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.noise import Noise, Terms, noise_bound

Counts = NDArray[np.int64]


class PrivateCounts:
    """Estimates of 2 c_k(t) with noise of a known law, and bounds on the noise of any S.

    A client whose noise at an edge is larger than its n_k is silent there: its count is taken as 0
    from below and as n_k from above, which needs no noise bound. So nobody can drown the others by
    claiming more noise than it has samples. The choice rests on n_k and the stated noise alone.
    """

    def __init__(self, federation: Federation) -> None:
        n_bins = federation.grid.n_bins
        left = federation.cumulative()
        up_to = np.arange(1, n_bins + 1)
        shorter = np.minimum(up_to, n_bins - up_to)
        self.known = federation.sizes_known
        self._laws = [None if p is None else p.noise for p in federation.privacy]
        if self.known:
            self.sizes = federation.sizes
            right = self.sizes[:, None] - (left[:, -1:] - left)
            middle = 4 * shorter > n_bins
            one_side = 2 * np.where(2 * up_to <= n_bins, left, right)
            self.halves = np.where(middle, left + right, one_side)
            self._draws = np.where(middle, n_bins, shorter)
            self._step = np.where(middle, 1, 2)
            spread = federation.variances[:, None] * self._draws * (self._step / 2) ** 2
            self._silent = spread > self.sizes[:, None].astype(np.float64) ** 2
        else:
            self.sizes = left[:, -1].copy()
            self.halves = 2 * left
            self._draws = up_to
            self._step = np.full(n_bins, 2)
            self._silent = np.zeros(left.shape, dtype=bool)
        self._distinct = sorted({law for law in self._laws if law is not None})
        self._heard = np.zeros((len(self._distinct), n_bins), dtype=np.int64)
        for row, law in enumerate(self._distinct):
            self._heard[row] = (~self._silent[[own == law for own in self._laws]]).sum(axis=0)

    @property
    def lowest(self) -> Counts:
        """(K, H) the estimates in half counts, 0 where a client is silent."""
        return np.where(self._silent, 0, self.halves)

    @property
    def highest(self) -> Counts:
        """(K, H) the estimates in half counts, 2 n_k where a client is silent."""
        return np.where(self._silent, 2 * self.sizes[:, None], self.halves)

    def require_sizes(self, what: str) -> None:
        """Refuse what cannot do without n_k."""
        if not self.known:
            raise RobfcpError(
                f"{what}: needs every n_k, but private reports under add-remove hide it; "
                "register the sizes or use substitution"
            )

    def allowance(self, chance: float) -> Counts:
        """(H,) half counts that at any one edge the noise of any S exceeds with this chance."""
        bounds = [noise_bound(self._pooled(edge), chance) for edge in range(len(self._draws))]
        return self._step * np.array(bounds, dtype=np.int64)

    def sides(self, chance: float) -> tuple[Counts, Counts]:
        """(H,) the same for the sums up to each edge and the sums above it."""
        left = self.allowance(chance)
        return left, np.append(left[-2::-1], 0)

    def scaled_allowance(self, level: Fraction, chance: float) -> NDArray[Any]:
        """(H,) 2q times the noise of sum_S (c_k - level n_k), exceeded with at most this chance.

        Hidden sizes: c - level n is (1 - level) left - level right, and each side gets half.
        """
        p, q = level.numerator, level.denominator
        if self.known:
            bound = self.allowance(chance)
            return integers(bound, q * int(bound.max())) * q
        left, right = self.sides(chance / 2)
        largest = q * int(left.max())
        return (q - p) * integers(left, largest) + p * integers(right, largest)

    def scaled_margins(self, level: Fraction, extra: int = 1) -> NDArray[Any]:
        """(H, K) whole numbers 2q (c_k - level (n_k + extra)), silent clients counted as 0."""
        p, q = level.numerator, level.denominator
        lowest = self.lowest.T
        largest = q * int(np.abs(lowest).sum(axis=1).max() + 2 * np.abs(self.sizes + extra).sum())
        margins = q * integers(lowest, 2 * largest) - 2 * p * (self.sizes + extra)
        return np.ascontiguousarray(margins)

    def client_bounds(self, chance: float) -> Counts:
        """(K, H) bounds on each client's own noise in half counts, 0 where it has none."""
        bounds = np.zeros(self.halves.shape, dtype=np.int64)
        for law in self._distinct:
            rows = np.array([own == law for own in self._laws])
            values, where = np.unique(self._draws, return_inverse=True)
            bound = np.array([noise_bound(((law, int(n)),), chance) for n in values])
            bounds[rows] = self._step * bound[where]
        return np.where(self._silent, 0, bounds)

    def own_noise(self, client: int, edge: int) -> tuple[Noise, int, int] | None:
        """Law, number of draws and half counts a unit of one client's noise; None without any."""
        law = self._laws[client]
        if law is None or self._silent[client, edge]:
            return None
        return law, int(self._draws[edge]), int(self._step[edge])

    def silent(self, edge: int) -> NDArray[np.bool_]:
        """(K,) who is silent at this edge."""
        return self._silent[:, edge]

    def _pooled(self, edge: int) -> Terms:
        """How many draws of which law the clients' counts at an edge hold together."""
        number = int(self._draws[edge]) * self._heard[:, edge]
        return tuple(
            (law, int(draws)) for law, draws in zip(self._distinct, number, strict=True) if draws
        )
