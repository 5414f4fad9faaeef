"""What private reports say about the counts at every edge, and how far noise can have moved them.

A client's count up to edge t is the sum of the bins up to t, or n_k less the sum of those above:
whichever has fewer noisy bins. Where n_k is hidden the sums on both sides are needed.
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
    """(K, H) estimates of c_k(t) with noise of a known law, and bounds on the noise of any S.

    A client whose noise at an edge is larger than its n_k is silent there: its count is taken as 0
    from below and as n_k from above, which needs no noise bound. So nobody can drown the others by
    claiming more noise than it has samples. The choice rests on n_k and the stated noise alone.
    """

    def __init__(self, federation: Federation) -> None:
        n_bins = federation.grid.n_bins
        left = federation.cumulative()
        below_edge = np.arange(1, n_bins + 1)
        self.known = federation.sizes_known
        self._laws = [None if p is None else p.noise for p in federation.privacy]
        if self.known:
            self.sizes = federation.sizes
            self._terms = np.minimum(below_edge, n_bins - below_edge)
            from_right = self.sizes[:, None] - (left[:, -1:] - left)
            self.below = np.where(2 * below_edge <= n_bins, left, from_right)
            spread = federation.variances[:, None] * self._terms
            self._silent = spread > self.sizes[:, None].astype(np.float64) ** 2
        else:
            self.sizes = left[:, -1].copy()
            self._terms = below_edge
            self.below = left
            self._silent = np.zeros(left.shape, dtype=bool)
        self._distinct = sorted({law for law in self._laws if law is not None})
        self._heard = np.zeros((len(self._distinct), n_bins), dtype=np.int64)
        for row, law in enumerate(self._distinct):
            self._heard[row] = (~self._silent[[own == law for own in self._laws]]).sum(axis=0)

    @property
    def lowest(self) -> Counts:
        """(K, H) the estimates, 0 where a client is silent."""
        return np.where(self._silent, 0, self.below)

    @property
    def highest(self) -> Counts:
        """(K, H) the estimates, n_k where a client is silent."""
        return np.where(self._silent, self.sizes[:, None], self.below)

    def require_sizes(self, what: str) -> None:
        """Refuse what cannot do without n_k."""
        if not self.known:
            raise RobfcpError(
                f"{what}: needs every n_k, but private reports under add-remove hide it; "
                "register the sizes or use substitution"
            )

    def allowance(self, chance: float) -> Counts:
        """(H,) at any one edge, the noise of any S's count exceeds this with at most the chance."""
        return np.array(
            [noise_bound(self._pooled(edge), chance) for edge in range(len(self._terms))],
            dtype=np.int64,
        )

    def sides(self, chance: float) -> tuple[Counts, Counts]:
        """(H,) the same for the sums up to each edge and the sums above it."""
        left = self.allowance(chance)
        return left, np.append(left[-2::-1], 0)

    def scaled_allowance(self, level: Fraction, chance: float) -> NDArray[Any]:
        """(H,) q times the noise of sum_S (c_k - level n_k), exceeded with at most this chance.

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
        """(H, K) whole numbers q (c_k - level (n_k + extra)), silent clients counted as 0."""
        p, q = level.numerator, level.denominator
        lowest = self.lowest.T
        largest = q * int(np.abs(lowest).sum(axis=1).max() + np.abs(self.sizes + extra).sum())
        margins = q * integers(lowest, 2 * largest) - p * (self.sizes + extra)
        return np.ascontiguousarray(margins)

    def client_bounds(self, chance: float) -> Counts:
        """(K, H) bounds on each client's own noise, 0 where it is silent or adds none."""
        bounds = np.zeros(self.below.shape, dtype=np.int64)
        for law in self._distinct:
            rows = np.array([own == law for own in self._laws])
            values, where = np.unique(self._terms, return_inverse=True)
            bound = np.array([noise_bound(((law, int(n)),), chance) for n in values])
            bounds[rows] = bound[where]
        return np.where(self._silent, 0, bounds)

    def own_terms(self, client: int, edge: int) -> tuple[Noise, int] | None:
        """Law and number of draws in one client's count; None where it is exact or silent."""
        law = self._laws[client]
        if law is None or self._silent[client, edge]:
            return None
        return law, int(self._terms[edge])

    def silent(self, edge: int) -> NDArray[np.bool_]:
        """(K,) who is silent at this edge."""
        return self._silent[:, edge]

    def _pooled(self, edge: int) -> Terms:
        """How many draws of which law the clients' counts at an edge hold together."""
        number = int(self._terms[edge]) * self._heard[:, edge]
        return tuple(
            (law, int(draws)) for law, draws in zip(self._distinct, number, strict=True) if draws
        )
