"""What guarantees ask of the counts, whether these are exact or hold privacy noise.

Four questions: the least and the greatest count at an edge, the allowance that noise needs at a
chance, and which edges to search. A guarantee is written once, against `CountBounds`; where counts
are exact the allowance is 0 and no chance is spent on it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cached_property
from math import log
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.federation import Federation

if TYPE_CHECKING:
    from robfcp.guarantees.tails import CountBounds

_SAFE = 2**62
NOISE_SHARE = 0.2  # of a certificate's chance of failure, where reports hold noise


def check_budget(m: int, n_clients: int) -> int:
    """The number of liars guarded against, if it leaves at least one benign client."""
    if isinstance(m, bool) or int(m) != m or m < 0:
        raise RobfcpError(f"liars: {m!r} is not a number of sites; give 0 or more")
    if m >= n_clients:
        raise RobfcpError(
            f"liars: nothing can be guaranteed against {m} of {n_clients} sites; "
            "state a smaller bound or wait for more reports"
        )
    return int(m)


def check_delta(delta: float) -> float:
    """A chance of failure strictly between 0 and 1."""
    if not 0 < delta < 1:
        raise RobfcpError(f"delta: {delta} is not between 0 and 1; give 0.05, say")
    return float(delta)


def check_sigma(sigma: float) -> float:
    """A stated bound on how far honest clients differ."""
    if not 0 <= sigma <= 1:
        raise RobfcpError(f"alike: {sigma} is not between 0 and 1; give 0.02, say")
    return float(sigma)


def integers(values: NDArray[Any], largest: int) -> NDArray[Any]:
    """The values as int64, or as Python integers where results up to `largest` would overflow."""
    return np.asarray(values).astype(np.int64 if largest < _SAFE else object)


def edges_first(below: NDArray[np.int64]) -> NDArray[np.int64]:
    """(E, K) contiguous counts from (K,) counts at one edge or (K, E) at several."""
    counts = np.asarray(below)
    return counts[None, :] if counts.ndim == 1 else np.ascontiguousarray(counts.T)


def sum_of_largest(values: NDArray[Any], number: int) -> NDArray[Any]:
    """Each row's sum of its `number` largest entries, negative ones counted as 0."""
    if number == 0:
        return np.zeros(values.shape[0], dtype=values.dtype)
    position = values.shape[1] - number
    largest = np.partition(values, position, axis=1)[:, position:] if position else values
    return np.asarray(np.maximum(largest, 0).sum(axis=1))


def first_edge(n_edges: int, holds: Callable[[int], bool]) -> int | None:
    """The first edge at which a condition that stays true once true holds; None if none."""
    if not n_edges or not holds(n_edges - 1):
        return None
    return bisect_left(range(n_edges - 1), True, key=holds)


_BLOCK = 2**17  # counts worked on at a time, so that they stay in the cache


def envelope(
    below: NDArray[np.int64], sizes: NDArray[np.int64], m: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper end of the benign share at each edge if at most m clients lie.

    L, U = min, max over removals R, |R| <= m, of sum_{k not in R} c_k / sum_{k not in R} n_k.
    `below` is (K,) for one edge (the ends are then 0-d) or (K, E); the ends are exact ratios.
    """
    sizes = np.asarray(sizes, dtype=np.int64)
    m = check_budget(m, len(sizes))
    shape = np.shape(below)[1:]
    counts = edges_first(below)
    low, low_total = _least_share(counts, sizes, m)
    above, above_total = _least_share(sizes - counts, sizes, m)
    return (low / low_total).reshape(shape), ((above_total - above) / above_total).reshape(shape)


def _least_share(
    counts: NDArray[np.int64], sizes: NDArray[np.int64], m: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Numerator and denominator (E,) of the least share over removals of at most m clients."""
    n_clients, total = len(sizes), int(sizes.sum())
    if m == 0 or (sizes == sizes[0]).all():
        kept = counts.sum(axis=1) - sum_of_largest(counts, m)
        weight = total - m * int(sizes[0]) if m else total
        return kept.astype(float), np.full(len(counts), float(weight))
    wide = integers(sizes, int(sizes.max()) * total * 2)
    step = max(1, _BLOCK // n_clients)
    blocks = [
        _dinkelbach(counts[start : start + step].astype(wide.dtype, copy=False), wide, m)
        for start in range(0, len(counts), step)
    ]
    numerators, denominators = zip(*blocks, strict=True)
    return np.concatenate(numerators).astype(float), np.concatenate(denominators).astype(float)


def _dinkelbach(
    counts: NDArray[Any], sizes: NDArray[Any], m: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Remove the <= m largest positive c_k - lambda n_k, lambda the share left, until it rests."""
    numerator, denominator = counts.sum(axis=1), np.full(len(counts), sizes.sum())
    totals, active = numerator.copy(), np.arange(len(counts))
    while active.size:
        here = counts[active]
        gain = here * denominator[active, None]
        gain -= numerator[active, None] * sizes
        chosen = np.argpartition(gain, -m, axis=1)[:, -m:]
        removed = np.take_along_axis(gain, chosen, axis=1) > 0
        taken = np.take_along_axis(here, chosen, axis=1)
        left = totals[active] - (taken * removed).sum(axis=1)
        weight = sizes.sum() - (sizes[chosen] * removed).sum(axis=1)
        lower = (left * denominator[active] < numerator[active] * weight).astype(bool)
        active = active[lower]
        numerator[active], denominator[active] = left[lower], weight[lower]
    return numerator, denominator


FEW_CLIENTS = 512  # up to here looking for clients alike does not pay


class EdgeEnvelope:
    """L, U = min, max over removals R, |R| <= m, of sum_{k not in R} c_k / sum_{k not in R} n_k.

    Clients with the same count and the same size are of one kind, and only kinds are sorted.
    """

    def __init__(self, counts: Whole, sizes: Whole) -> None:
        below, weights, self.number = kinds(counts, sizes)
        largest = int(weights.max()) * int((weights * self.number).sum()) * 2
        self.sizes = integers(weights, largest)
        self.below = integers(below, largest)
        self._lower = _LeastShare(self.below, self.sizes, self.number)
        self._above = _LeastShare(self.sizes - self.below, self.sizes, self.number)
        self._known: dict[int, tuple[float, float]] = {}

    def ends(self, m: int) -> tuple[float, float]:
        """L and U if at most m clients lie."""
        if m not in self._known:
            self.work_out((m,))
        return self._known[m]

    def work_out(self, budgets: Sequence[int]) -> None:
        """The ends for several numbers of liars, kept until they are asked for."""
        missing = np.array(sorted(set(budgets) - set(self._known)), dtype=np.int64)
        step = max(1, _BLOCK // len(self.number))
        for start in range(0, len(missing), step):
            some = missing[start : start + step]
            low, low_total = self._lower(some)
            above, above_total = self._above(some)
            lows, highs = low / low_total, (above_total - above) / above_total
            pairs = zip(lows.tolist(), highs.tolist(), strict=True)
            self._known.update(zip(some.tolist(), pairs, strict=True))

    def without_most(self) -> tuple[Shares, Shares]:
        """(K,) L and U as if the m with most counts below, or above, were those to remove.

        Never outside the envelope of m, and close to it where the ends are close to 0 and 1.
        """
        return self._lower.without_most(), 1 - self._above.without_most()


class _LeastShare:
    """The least share of one side. More liars never make it larger: they start where fewer end."""

    def __init__(self, counts: NDArray[Any], sizes: NDArray[Any], number: Whole) -> None:
        self._counts, self._sizes, self._number = counts, sizes, number
        self._total, self._weight = (counts * number).sum(), (sizes * number).sum()
        self._alone = bool((number == 1).all())
        self._alike = bool((sizes == sizes[0]).all())
        self._budgets = [0]
        self._found = [(self._total, self._weight)]

    def __call__(self, budgets: Whole) -> tuple[Shares, Shares]:
        """Numerator and denominator (M,) for rising numbers of liars.

        Remove the <= m largest positive c_k - lambda n_k, lambda the share left, until it rests.
        """
        if self._alike:
            return self._of_alike(budgets)
        if self._alone and len(self._number) > FEW_CLIENTS:
            return self._one_by_one(budgets)
        place = np.searchsorted(self._budgets, budgets, side="right") - 1
        start = [self._found[at] for at in place.tolist()]
        numerator = np.array([pair[0] for pair in start], dtype=self._sizes.dtype)
        denominator = np.array([pair[1] for pair in start], dtype=self._sizes.dtype)
        active = np.flatnonzero(budgets)
        while active.size:
            old, weight = numerator[active], denominator[active]
            left, rest = self._without(budgets[active], old, weight)
            lower = (left * weight < old * rest).astype(bool)
            active = active[lower]
            numerator[active], denominator[active] = left[lower], rest[lower]
        self._remember(budgets, numerator, denominator)
        return numerator.astype(float), denominator.astype(float)

    def _of_alike(self, budgets: Whole) -> tuple[Shares, Shares]:
        """The same of clients of one size: without those of the most counts."""
        order = np.argsort(-self._counts)
        counts, number = self._counts[order], self._number[order]
        ends = np.cumsum(number)
        sums = np.concatenate([[0], np.cumsum(counts * number)])
        last = np.searchsorted(ends, budgets, side="left")
        part = budgets - np.concatenate([[0], ends])[last]
        gone = sums[last] + part * counts[last]
        left, rest = self._total - gone, self._weight - budgets * self._sizes[0]
        return left.astype(float), np.asarray(rest).astype(float)

    def without_most(self) -> Shares:
        """(K,) the share without the m clients of most counts, for every m < K."""
        order = np.argsort(-self._counts, kind="stable")
        number = self._number[order]
        gone = np.cumsum(np.repeat(self._counts[order], number)[:-1])
        weight = np.cumsum(np.repeat(self._sizes[order], number)[:-1])
        left = np.concatenate([[self._total], self._total - gone])
        return np.asarray(left / np.concatenate([[self._weight], self._weight - weight]), float)

    def _one_by_one(self, budgets: Whole) -> tuple[Shares, Shares]:
        """The same of many clients: each number starts where the last one ended.

        The m largest gains are parted from the others, which takes a fifth of sorting.
        """
        found: list[tuple[Any, Any]] = []
        for most in budgets.tolist():
            place = int(np.searchsorted(self._budgets, most, side="right")) - 1
            old, weight = self._found[place]
            while most > 0:
                loss = self._sizes * old - self._counts * weight
                chosen = np.argpartition(loss, most - 1)[:most]
                chosen = chosen[loss[chosen] < 0]
                left = self._total - self._counts[chosen].sum()
                rest = self._weight - self._sizes[chosen].sum()
                if not left * weight < old * rest:
                    break
                old, weight = left, rest
            found.append((old, weight))
            self._remember(np.array([most]), np.array([old]), np.array([weight]))
        numerator, denominator = zip(*found, strict=True)
        return np.array(numerator, dtype=float), np.array(denominator, dtype=float)

    def _without(
        self, budgets: Whole, old: NDArray[Any], weight: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """What is left of counts and sizes without the m largest positive gains, row by row."""
        loss = self._sizes * old[:, None]
        loss -= self._counts * weight[:, None]
        order = np.argsort(loss, axis=1)
        taken: NDArray[Any] = loss[np.arange(len(loss))[:, None], order] < 0
        if self._alone:
            taken &= np.arange(loss.shape[1]) < budgets[:, None]
        else:
            number = self._number[order] * taken
            before = np.cumsum(number, axis=1) - number
            taken = np.minimum(np.maximum(budgets[:, None] - before, 0), number)
        left = self._total - (taken * self._counts[order]).sum(axis=1)
        return left, self._weight - (taken * self._sizes[order]).sum(axis=1)

    def _remember(self, budgets: Whole, numerator: NDArray[Any], denominator: NDArray[Any]) -> None:
        found = dict(zip(self._budgets, self._found, strict=True))
        pairs = zip(numerator.tolist(), denominator.tolist(), strict=True)
        found.update(zip(budgets.tolist(), pairs, strict=True))
        self._budgets = sorted(found)
        self._found = [found[m] for m in self._budgets]


def kinds(counts: Whole, sizes: Whole) -> tuple[Whole, Whole, Whole]:
    """Distinct pairs of a count and a size, and how many clients have each.

    Every client by itself where clients are few or hardly any are alike.
    """
    n_clients, width = len(sizes), int(sizes.max()) + 1
    pairs = (int(counts.max()) + 1) * width
    if n_clients >= FEW_CLIENTS and pairs <= 4 * n_clients:
        table = np.bincount(counts * width + sizes)
        keys = np.flatnonzero(table)
        if len(keys) <= n_clients // 2:
            return keys // width, keys % width, table[keys]
    return counts, sizes, np.ones(n_clients, dtype=np.int64)


Whole = NDArray[np.int64]
Edges = NDArray[np.intp]
Shares = NDArray[np.float64]
KEPT = 2**21  # counts that are kept of the edges asked for last


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


STEPS = 50  # of bisection


def coverage_interval(
    bounds: CountBounds, edges: Edges, m: int, delta: float, n_edges: int
) -> tuple[Shares, Shares]:
    """(E,) lower and upper benign coverage, at all n_edges edges at once with chance 1 - delta.

    The p with N_min kl(L_m, p) <= ln(2 H/delta) below L_m, likewise above U_m: never wider than
    L_m - e, U_m + e with e = sqrt(ln(2 H/delta) / (2 N_min)). Where reports hold noise, a fifth
    of delta is shared by the noise at all edges.
    """
    m = check_budget(m, len(bounds.sizes))
    noise, sampling = bounds.split(check_delta(delta), NOISE_SHARE)
    ends = 2 * n_edges + (0 if bounds.sizes_known else 0.5)  # a hidden total counts as half an end
    one_end = noise / ends
    total = bounds.smallest_total(m, one_end / 2)
    if total < 1:
        return np.zeros(len(edges)), np.ones(len(edges))
    low, high = bounds.benign_shares(edges, m, one_end)
    radius = float(np.log(2 * n_edges / sampling) / total)
    return kl_lower(low, radius), 1 - kl_lower(1 - high, radius)


def first_vacuous(bounds: CountBounds, edge: int, delta: float, n_edges: int) -> int | None:
    """A guess of the least number of liars that leaves nothing to say; None where there is none.

    From removals that are nearly the worst where shares are nearly 0 and 1.
    """
    found = bounds.nearly_worst(edge)
    if found is None:
        return None
    low, high, total = found
    _, sampling = bounds.split(delta, NOISE_SHARE)
    radius = np.log(2 * n_edges / sampling) / np.maximum(total, 1)
    empty = (total < 1) | (_reaches_zero(low, radius) & _reaches_zero(1 - high, radius))
    guess = int(empty.argmax()) if empty.any() else None
    if guess is not None:
        bounds.foresee(np.array([edge]), [m for m in (guess - 1, guess) if m >= 0])
    return guess


def _reaches_zero(share: Shares, radius: Shares) -> NDArray[np.bool_]:
    """Whether `kl_lower` is 0, as far as the last step of its bisection tells."""
    rest = np.maximum(1 - share, 1e-300)
    return np.asarray(share * (STEPS * log(2)) + rest * np.log(rest) <= radius)


def kl_lower(share: NDArray[np.float64], radius: float | Shares) -> NDArray[np.float64]:
    """The least p <= share with kl(share, p) <= radius, from below, by bisection."""
    share = np.asarray(share, dtype=float)
    if share.size == 1 and isinstance(
        radius, float
    ):  # what certificates of one threshold ask, often
        return np.full(share.shape, _kl_lower_one(float(share.reshape(())), radius))
    low, high = np.zeros_like(share), share.copy()
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = _xlog(share, share) + _xlog(1 - share, 1 - share)
        for _ in range(STEPS):
            middle = (low + high) / 2
            far = entropy - _xlog(share, middle) - _xlog(1 - share, 1 - middle) > radius
            low, high = np.where(far, middle, low), np.where(far, high, middle)
    return np.asarray(np.where(share > 0, low, 0.0))


def _kl_lower_one(share: float, radius: float) -> float:
    """The same of one number, without arrays."""
    if share <= 0:
        return 0.0
    low, high, rest = 0.0, share, 1 - share
    entropy = share * log(share) + (rest * log(rest) if rest > 0 else 0.0)
    for _ in range(STEPS):
        middle = (low + high) / 2
        if middle <= 0:
            break
        beyond = rest * log(1 - middle) if rest > 0 else 0.0
        if entropy - share * log(middle) - beyond > radius:
            low = middle
        else:
            high = middle
    return low


def _xlog(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.where(x > 0, x * np.log(y), 0.0))
