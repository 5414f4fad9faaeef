"""What guarantees ask of the counts, whether these are exact or hold privacy noise.

Four questions: the least and the greatest count at an edge, the allowance that noise needs at a
chance, and which edges to search. A guarantee is written once, against `CountBounds`; where counts
are exact the allowance is 0 and no chance is spent on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from robfcp._util.exact import first_edge, integers
from robfcp.federation import Federation
from robfcp.guarantees.binomials import binomial_tail, least_count
from robfcp.guarantees.edge_envelope import EdgeEnvelope
from robfcp.guarantees.envelope import envelope

Whole = NDArray[np.int64]
Edges = NDArray[np.intp]
Shares = NDArray[np.float64]
KEPT = 2**21  # counts that are kept of the edges asked for last


class CountBounds(Protocol):
    """Counts of K clients at edges, in `parts` of a sample, and how far noise may have moved them.

    `sizes` are the n_k; where these are hidden they are noisy too and `sizes_known` is False.
    `falling` says that counts may fall from one edge to the next.
    """

    parts: int
    sizes: Whole
    sizes_known: bool
    falling: bool

    def require_sizes(self, what: str) -> None:
        """Refuse what cannot do without n_k."""
        ...

    def split(self, chance: float, share: float) -> tuple[float, float]:
        """A chance of failure, divided into the noise's part and the samples' part."""
        ...

    def level_share(self, level: Fraction) -> Fraction:
        """What noise takes off the miss rate of a threshold that covers on average."""
        ...

    def least(self, edges: Edges) -> Whole:
        """(E, K) counts from below."""
        ...

    def greatest(self, edges: Edges) -> Whole:
        """(E, K) counts from above."""
        ...

    def allowance(self, edges: Edges, chance: float) -> Whole:
        """(E,) what the noise of any S exceeds with this chance, at any one edge."""
        ...

    def scaled_allowance(self, edges: Edges, level: Fraction, chance: float) -> NDArray[Any]:
        """(E,) the same for sum_S (c_k - level n_k), times parts and the level's denominator."""
        ...

    def client_counts(self, edges: Edges, chance: float) -> tuple[Whole, Whole]:
        """(E, K) least and greatest count of every client by itself, each wrong with the chance."""
        ...

    def benign_shares(
        self, edges: Edges, m: int, chance: float, extra: int = 0
    ) -> tuple[Shares, Shares]:
        """(E,) least and greatest share over S without m clients, of n_k + extra each.

        At any one edge noise makes either end wrong with at most the chance.
        """
        ...

    def foresee(self, edges: Edges, budgets: Sequence[int]) -> None:
        """Be told of which numbers of liars `benign_shares` is asked next, at these edges."""
        ...

    def nearly_worst(self, edge: int) -> tuple[Shares, Shares, Whole] | None:
        """(K,) shares inside the envelopes of m = 0, 1, ... and the samples left; None if unknown.

        Close to the envelopes where these are close to 0 and 1.
        """
        ...

    def smallest_total(self, m: int, chance: float) -> float:
        """The samples left when the m largest clients are removed."""
        ...

    def convincing(self, probability: float, gamma: float) -> Callable[[int], tuple[Any, Any]]:
        """For an edge the (K,) least counts c with P(Bin(n_k, probability) >= c) <= gamma.

        Beside them these chances; noise counts as part of the tail.
        """
        ...

    def search(self, holds: Callable[[Edges], NDArray[np.bool_]]) -> int | None:
        """The first edge from which on a condition holds; None where it fails at the top."""
        ...

    def edges_from(self, index: int) -> Edges:
        """The edges at which a condition must hold for a threshold at `index`."""
        ...

    def first_reaching(self, rank: int) -> int | None:
        """The first edge at which the pooled count reaches the rank; None if none does."""
        ...


class _Edge:
    """One edge: the (K,) counts up to it and their envelope."""

    def __init__(self, counts: Whole, masses: Callable[[int], Whole]) -> None:
        self.counts = counts
        self._masses = masses
        self._envelopes: dict[int, EdgeEnvelope] = {}

    def envelope(self, extra: int) -> EdgeEnvelope:
        """Of n_k + extra samples each."""
        if extra not in self._envelopes:
            self._envelopes[extra] = EdgeEnvelope(self.counts, self._masses(extra))
        return self._envelopes[extra]


class ExactCounts:
    """Counts as they are: whole samples, rising, nothing to allow for."""

    sizes_known = True
    falling = False

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self.sizes = federation.sizes
        self.parts = federation.unit
        self._edges: dict[int, _Edge] = {}
        self._room = max(1, KEPT // max(1, len(self.sizes)))

    def require_sizes(self, what: str) -> None:
        """All sizes are known."""

    def split(self, chance: float, share: float) -> tuple[float, float]:
        """Everything for the samples."""
        return 0.0, chance

    def level_share(self, level: Fraction) -> Fraction:
        """Nothing."""
        return Fraction(0)

    def least(self, edges: Edges) -> Whole:
        """(E, K) the counts."""
        if not 0 < len(edges) <= self._room:
            return np.ascontiguousarray(self._federation.cumulative(edges).T)
        found = self._at(edges)
        return found[0].counts[None, :] if len(found) == 1 else np.stack([e.counts for e in found])

    greatest = least

    def allowance(self, edges: Edges, chance: float) -> Whole:
        """(E,) zeros."""
        return np.zeros(len(edges), dtype=np.int64)

    def scaled_allowance(self, edges: Edges, level: Fraction, chance: float) -> NDArray[Any]:
        """(E,) zeros."""
        return np.zeros(len(edges), dtype=np.int64)

    def client_counts(self, edges: Edges, chance: float) -> tuple[Whole, Whole]:
        """(E, K) the counts twice."""
        counts = self.least(edges)
        return counts, counts

    def benign_shares(
        self, edges: Edges, m: int, chance: float, extra: int = 0
    ) -> tuple[Shares, Shares]:
        """(E,) the envelope, exact ratios."""
        if not 0 < len(edges) <= self._room:
            return envelope(self.least(edges).T, self.parts * (self.sizes + extra), m)
        ends = np.array([edge.envelope(extra).ends(m) for edge in self._at(edges)])
        return ends[:, 0], ends[:, 1]

    def foresee(self, edges: Edges, budgets: Sequence[int]) -> None:
        """All numbers at once, where so many edges are kept."""
        if len(edges) <= self._room:
            for edge in self._at(edges):
                edge.envelope(0).work_out(budgets)

    def nearly_worst(self, edge: int) -> tuple[Shares, Shares, Whole] | None:
        """Without the clients of most counts below, or above."""
        (found,) = self._at(np.array([edge]))
        low, high = found.envelope(0).without_most()
        return low, high, self._totals[:-1]

    def smallest_total(self, m: int, chance: float) -> float:
        """N without its m largest clients."""
        return float(self._totals[m])

    def convincing(self, probability: float, gamma: float) -> Callable[[int], tuple[Any, Any]]:
        """The same counts at every edge."""
        none = np.zeros(len(self.sizes), dtype=np.int64)
        needed = least_count(self.sizes, probability, gamma, none)
        chances = binomial_tail(self.sizes, needed, probability)
        return lambda edge: (needed, chances)

    def search(self, holds: Callable[[Edges], NDArray[np.bool_]]) -> int | None:
        """By bisection: what holds at an edge holds above it."""
        return first_edge(
            self._federation.grid.n_bins, lambda edge: bool(holds(np.array([edge]))[0])
        )

    def edges_from(self, index: int) -> Edges:
        """The edge itself."""
        return np.array([index])

    def first_reaching(self, rank: int) -> int | None:
        """By the cumulative pooled counts."""
        if rank > self._pooled[-1]:
            return None
        return int(np.searchsorted(self._pooled, rank))

    def _at(self, edges: Edges) -> list[_Edge]:
        """What is known of these edges; those asked for last are kept, as they are asked again."""
        wanted = edges.tolist()
        missing = sorted({edge for edge in wanted if edge not in self._edges})
        if len(self._edges) + len(missing) > self._room:
            self._edges = {edge: self._edges[edge] for edge in wanted if edge in self._edges}
        if len(missing) == 1:
            counts = self._federation.below(missing[0])[None, :]
        elif missing:
            counts = np.ascontiguousarray(self._federation.cumulative(np.array(missing)).T)
        if missing:
            counts.flags.writeable = False
        for row, edge in enumerate(missing):
            self._edges[edge] = _Edge(counts[row], self._weights)
        return [self._edges[edge] for edge in wanted]

    def _weights(self, extra: int) -> Whole:
        """(K,) each site's parts with so many samples more; a method, which can be pickled."""
        return self.parts * (self.sizes + extra)

    @cached_property
    def _totals(self) -> Whole:
        """(K + 1,) the samples left without the m largest clients, for every m."""
        gone = np.zeros(len(self.sizes) + 1, dtype=np.int64)
        alike = self.sizes.min() == self.sizes.max()
        np.cumsum(self.sizes if alike else np.sort(self.sizes)[::-1], out=gone[1:])
        return np.asarray(gone[-1] - gone)

    @cached_property
    def _pooled(self) -> Whole:
        """(H,) pooled counts up to every edge."""
        return np.cumsum(self._federation.pooled())


def scaled_margins(
    bounds: CountBounds, edges: Edges, level: Fraction, extra: int = 0
) -> NDArray[Any]:
    """(E, K) whole numbers parts q (c_k - level (n_k + extra)), q the level's denominator."""
    p, q = level.numerator, level.denominator
    counts = bounds.least(edges)
    weights = bounds.parts * (bounds.sizes + extra)
    largest = q * int(np.abs(counts).sum(axis=1).max(initial=0) + np.abs(weights).sum())
    return np.asarray(q * integers(counts, 2 * largest) - p * integers(weights, 2 * largest))
