"""One engine for what is proved: what is counted, a tail, a family of sets that may be honest.

An edge is accepted where for every set S of clients that may be the honest ones, S leaving out j of
them, sum_{k in S} (q c_k - p n_k) reaches what a tail needs, c_k being client k's count up to the
edge and n_k its size. The honest set is one of these, so what an accepted edge proves of every S it
proves of that one. All sums are of whole numbers, hence exact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import share, whole
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.privacy import noise_bound

Whole = NDArray[np.int64]
Edges = NDArray[np.intp]
Shares = NDArray[np.float64]
Mask = NDArray[np.bool_]

PRUNING_SHARE = 0.2  # of a certificate's chance of failure, where clients are pruned first
NOISE_SHARE = 0.2  # of a certificate's chance of failure, where reports hold noise
DEVIATIONS = 3  # of noise that a count may lie outside [0, n_k] where counts are pooled
LEVEL_SHARE = Fraction(1, 50)  # of 1 - level, for thresholds that cover on average
KEPT = 2**21  # counts that are kept of the edges asked for last
FEW_CLIENTS = 512  # up to here sorting them for all numbers of liars at once is fastest
_BLOCK = 2**17  # counts sorted at a time, so that they stay in the cache
_SAFE = 2**62


def check_budget(m: int, n_clients: int) -> int:
    """The number of liars guarded against, if it leaves at least one benign client."""
    if whole("liars", m, "give the most sites that may lie") >= n_clients:
        words = f"nothing can be guaranteed against {m} of {n_clients} sites"
        raise RobfcpError(f"liars: {words}; state a smaller bound or wait for more reports")
    return int(m)


def check_delta(delta: float) -> float:
    """A chance of failure strictly between 0 and 1."""
    return share("delta", delta, "give 0.05, say")


def check_sigma(sigma: float) -> float:
    """A stated bound on how far honest clients differ."""
    return share("alike", sigma, "give 0.02, say", zero=True, one=True)


def integers(values: NDArray[Any], largest: int) -> NDArray[Any]:
    """The values as int64, or as Python integers where results up to `largest` would overflow."""
    return np.asarray(values).astype(np.int64 if largest < _SAFE else object, copy=False)


def margins(counts: Whole, sizes: Whole, p: int, q: int) -> NDArray[Any]:
    """(E, K) whole numbers q c_k - p n_k from (E, K) counts."""
    largest = q * int(np.abs(counts).sum(axis=1).max(initial=0)) + p * int(np.abs(sizes).sum())
    return np.asarray(q * integers(counts, 2 * largest) - p * integers(sizes, 2 * largest))


def sum_of_largest(values: NDArray[Any], number: int) -> NDArray[Any]:
    """Each row's sum of its `number` largest entries, negative ones counted as 0."""
    place = values.shape[1] - number
    parted = np.partition(values, place, axis=1) if number > 0 and place else values
    return np.asarray(np.maximum(parted[:, place:], 0).sum(axis=1))


def least_sums(gains: NDArray[Any], m: int) -> NDArray[Any]:
    """(E, m + 1) the sum over all clients without those of the j largest gains, j = 0..m.

    It is the least over all sets that leave out j clients.
    """
    rest = gains.shape[1] - m
    parted = np.partition(gains, rest, axis=1) if 0 < m < gains.shape[1] else gains
    steps = np.zeros((len(gains), m + 1), dtype=gains.dtype)
    np.cumsum(np.sort(parted[:, rest:], axis=1), axis=1, out=steps[:, 1:])
    return np.asarray((parted[:, :rest].sum(axis=1)[:, None] + steps)[:, ::-1])


def first_edge(n_edges: int, holds: Callable[[int], bool]) -> int | None:
    """The first edge at which a condition that stays true once true holds; None if none."""
    if not n_edges or not holds(n_edges - 1):
        return None
    return bisect_left(range(n_edges - 1), True, key=holds)


class Tail(NamedTuple):
    """What sum_S (q c_k - p n_k) must reach: needed[j] where S leaves out j, or one for all."""

    p: int
    q: int
    needed: NDArray[Any]

    def reached(
        self, counts: Whole, sizes: Whole, m: int, room: NDArray[Any] | int = 0, parts: int = 1
    ) -> Mask:
        """(E,) whether it does for every S that leaves out at most m, whatever noise adds to it.

        Counts, sizes and `room`, (E,) for the noise, may be in `parts` of a count.
        """
        sums = least_sums(margins(counts, sizes, self.p, self.q), m)
        needed = parts * self.needed + np.asarray(room).reshape(-1, 1)
        return np.asarray((sums >= needed).astype(bool).all(axis=1))

    def forced_by(self, sizes: Whole, m: int) -> int | None:
        """The least number of liars that can push the threshold, told m, to the top edge.

        The liars are the largest clients and put everything into the last bin, the others
        everything into the first: fewer may do on other reports. None where no number below K does.
        """
        sizes = np.sort(np.asarray(sizes, dtype=np.int64))[::-1]
        place = np.arange(len(sizes))
        found = first_edge(
            len(sizes) - 1,
            lambda last: not self.reached(np.where(place <= last, 0, sizes)[None], sizes, m)[0],
        )
        return None if found is None else found + 1


class ExactCounts:
    """Counts as they were sent: whole, rising from edge to edge, nothing to allow for."""

    falling = False  # whether noise may make a count less than the one at the edge below
    sizes_known = True
    halves = 1  # in which counts are given: two make one where noise is averaged

    def __init__(self, federation: Federation) -> None:
        self.federation, self.sizes = federation, federation.sizes
        self.n_edges, self.unit = federation.grid.n_bins, federation.unit
        self._rows: dict[int, Whole] = {}
        self.proved: dict[Any, Any] = {}  # what was asked of an edge, and will be again

    @property
    def weights(self) -> Whole:
        """(K,) what the counts of each client add up to."""
        parts = self.halves * self.unit
        return self.sizes if parts == 1 else parts * self.sizes

    def require_sizes(self, what: str) -> None:
        """Refuse what cannot do without n_k."""
        if not self.sizes_known:
            words = "needs every site's number of samples, which reports under add-remove hide"
            raise RobfcpError(f"{what}: {words}; register the sizes or use substitution")

    def split(self, chance: float, share: float) -> tuple[float, float]:
        """A chance to fail in two: a share for noise, where there is any, and the rest."""
        return (share * chance, chance - share * chance) if self.falling else (0.0, chance)

    def level_share(self, level: Fraction) -> Fraction:
        """The chance with which noise may fool a threshold that covers on average, (1-level)/50."""
        return (1 - level) * LEVEL_SHARE if self.falling else Fraction(0)

    def noise(self, edges: Edges, chance: float) -> tuple[Whole, Whole]:
        """(E,) what the noise of any S adds to its counts up to an edge, and above it, at most."""
        return np.zeros(len(edges), dtype=np.int64), np.zeros(len(edges), dtype=np.int64)

    def room(self, edges: Edges, tail: Tail, chance: float) -> NDArray[Any]:
        """(E,) what the noise of any S adds to sum_S (q c_k - p n_k), beyond it with the chance."""
        left, right = self.noise(edges, chance)
        largest = 2 * tail.q * int(max(left.max(initial=0), right.max(initial=0)))
        less = (tail.q - tail.p) * integers(left, largest)
        return np.asarray(less + tail.p * integers(right, largest))

    def least(self, edges: Edges) -> Whole:
        """(E, K) counts up to each edge, or what they are at least."""
        wanted = edges.tolist()
        missing = sorted(set(wanted) - set(self._rows))
        if missing and (len(self._rows) + len(missing)) * len(self.sizes) > KEPT:
            self._rows, missing = {}, sorted(set(wanted))
        if missing:
            self._rows.update(zip(missing, self._read(np.array(missing)), strict=True))
        rows = [self._rows[edge] for edge in wanted]
        return rows[0][None] if len(rows) == 1 else np.stack(rows)

    def greatest(self, edges: Edges) -> Whole:
        """(E, K) counts up to each edge, or what they are at most: more where they are in fives."""
        counts, known = self.least(edges), self.federation.in_fives
        if not known.any():
            return counts
        different, where = np.unique(edges, return_inverse=True)
        ends = np.unique(np.append(different, self.n_edges - 1))
        left = self.federation.subset(known).map(lambda one: one.lowered().cumulative(ends)).T
        masses, counts = self.federation.masses[known], counts.copy()
        told = self._estimates(left[: len(different)], left[-1], masses, different)
        counts[:, known] = told[where]
        return counts

    def _estimates(self, left: Whole, sent: Whole, masses: Whole, edges: Edges) -> Whole:
        """What the counts up to each edge tell of some clients' samples."""
        return left

    def _read(self, edges: Edges) -> Whole:
        """(E, K) counts up to rising edges."""
        if len(edges) == 1:
            return self.federation.map(lambda block: block.below(int(edges[0])))[None, :]
        return np.ascontiguousarray(self.federation.map(lambda block: block.cumulative(edges)).T)

    def each(self, edges: Edges, chance: float) -> tuple[Whole, Whole]:
        """(E, K) whole counts of every client by itself, either end wrong with the chance."""
        least, greatest = self._sides(edges)
        return least.astype(np.int64), greatest.astype(np.int64)

    def accepted(self, edges: Edges, tail: Tail, m: int, chance: float) -> Mask:
        """(E,) where the tail is reached whoever the at most m liars are."""
        room = self.room(edges, tail, chance)
        return tail.reached(self.least(edges), self.weights, m, room, self.halves)

    def search(self, accepted: Callable[[Edges], Mask]) -> int | None:
        """The edge after the last one that is not accepted; None where that is the top.

        What holds at an edge holds above it where counts rise; else it is looked for from the top.
        """
        if not self.falling:
            return first_edge(self.n_edges, lambda edge: bool(accepted(np.array([edge]))[0]))
        step = max(1, KEPT // max(1, len(self.sizes)))
        for stop in range(self.n_edges, 0, -step):
            edges = np.arange(max(0, stop - step), stop)
            refused = edges[~accepted(edges)]
            if refused.size:
                last = int(refused[-1]) + 1
                return last if last < self.n_edges else None
        return 0

    @cached_property
    def _largest(self) -> Whole:
        """(2, S + 1) how many clients are the largest, and their samples, size after size."""
        sizes, number = np.unique(np.maximum(self.sizes, 0), return_counts=True)
        steps = np.stack([number, sizes.astype(np.int64) * number])[:, ::-1]
        return np.concatenate([np.zeros((2, 1), np.int64), np.cumsum(steps, axis=1)], axis=1)

    def smallest_totals(self, budgets: Whole, chance: float) -> Shares:
        """(M,) what the samples of any S that leaves out at most m are at least."""
        number, samples = self._largest
        place = np.maximum(np.searchsorted(number, budgets), 1)
        each = (samples[place] - samples[place - 1]) // (number[place] - number[place - 1])
        gone = samples[place - 1] + (budgets - number[place - 1]) * each
        return (int(self.sizes.sum()) - gone).astype(float)

    def shares(self, edges: Edges, budgets: Whole, chance: float) -> tuple[Shares, Shares]:
        """(M, E) least and largest share up to each edge over all S, as far as noise lets it tell.

        L, U = min, max over removals R, |R| <= m, of sum_{k not in R} c_k / sum_{k not in R} n_k:
        exact ratios, noise added to either side of them.
        """
        left, right = self.noise(edges, chance)
        least, most = self._sides(edges)
        weights = self.weights
        lost, more = np.stack([left, right], axis=1), np.stack([right - left, left - right], axis=1)
        found = np.empty((2, len(budgets), len(edges)))
        for place, own in enumerate(least):
            exact, charges = np.array_equal(own, most[place]), (lost[place], more[place])
            sides = own[None] if exact else np.stack([own, weights - most[place]])
            share, total = least_shares(sides, weights, budgets, *charges, both=exact)
            found[:, :, place] = share[0] / total[0], (total[1] - share[1]) / total[1]
        low, high = np.clip(found, 0, 1)
        return low, high

    def _sides(self, edges: Edges) -> tuple[NDArray[Any], NDArray[Any]]:
        """(E, K) counts up to each edge at least and at most, in the smallest numbers.

        They are at most more where reports are in fives.
        """
        rising, where = np.unique(edges, return_inverse=True)
        if not self.federation.stored:
            return self.least(edges), self.greatest(edges)
        largest = self.unit * int(self.sizes.max())
        exact = largest < 2**32 and not self.federation.private
        kind = np.min_scalar_type(largest) if exact else np.int64

        def both(block: Federation) -> NDArray[Any]:
            found = np.repeat(block.cumulative(rising)[:, None], 2, axis=1)
            if (known := block.in_fives).any():
                found[known, 1] = block.subset(known).lowered().cumulative(rising)
            return found.astype(kind)

        least, greatest = self.federation.map(both).transpose(1, 2, 0)
        return least[where], greatest[where]

    def pooled(self, trusted: Mask | None) -> NDArray[Any]:
        """(H,) what the counts of the trusted clients come to up to each edge; it rises."""
        if trusted is None:
            return np.cumsum(self.federation.fold(lambda block: block.pooled()))
        return np.cumsum(self.federation.fold(lambda block, mask: block.pooled(mask), trusted))


class NoisyCounts(ExactCounts):
    """Estimates of 2 c_k(t) with noise of a known law, and bounds on the noise of any S.

    A client whose noise at an edge is larger than its n_k is silent there: its count is taken as 0
    from below and as n_k from above, which needs no noise bound. So nobody can drown the others by
    claiming more noise than it has samples. The choice rests on n_k and the stated noise alone.
    """

    falling, halves = True, 2

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.sizes_known, laws = federation.sizes_known, federation.noises
        self._masses, self._variances = federation.masses, federation.variances
        n_bins, up_to = self.n_edges, np.arange(1, self.n_edges + 1)
        bins, self._step = up_to, np.full(n_bins, 2)
        self._middle = np.zeros(n_bins, dtype=bool)
        if self.sizes_known:  # from below, from above, or the mean of both: what has least noise
            shorter = np.minimum(up_to, n_bins - up_to)
            self._middle = 4 * shorter > n_bins
            bins, self._step = np.where(self._middle, n_bins, shorter), 2 - self._middle
        else:
            self.sizes = federation.map(lambda block: block.below(n_bins - 1))
        self._bins, self._draws = bins, federation.noise_draws * bins
        self._distinct = sorted({law for law in laws if law is not None})
        self._owners = [np.array([own == law for own in laws]) for law in self._distinct]

    def least(self, edges: Edges) -> Whole:
        """(E, K) the estimates in half counts, 0 where a client is silent."""
        return np.where(self._silent(edges), 0, super().least(edges))

    def greatest(self, edges: Edges) -> Whole:
        """(E, K) the estimates in half counts, 2 n_k where a client is silent."""
        return np.where(self._silent(edges), self.weights, super().greatest(edges))

    def _read(self, edges: Edges) -> Whole:
        ends = np.unique(np.append(edges, self.n_edges - 1))
        left = self.federation.map(lambda block: block.cumulative(ends)).T
        return self._estimates(left[: len(edges)], left[-1], self._masses, edges)

    def _estimates(self, left: Whole, sent: Whole, masses: Whole, edges: Edges) -> Whole:
        """Twice the counts up to each edge, from the side or the sides with the least noise."""
        if not self.sizes_known:
            return 2 * left
        right, below = masses - (sent - left), (2 * (edges + 1) <= self.n_edges)[:, None]
        return np.where(self._middle[edges, None], left + right, 2 * np.where(below, left, right))

    def _silent(self, edges: Edges) -> Mask:
        """(E, K) whose noise is larger than its sample."""
        if not self.sizes_known:
            return np.zeros((len(edges), len(self.sizes)), dtype=bool)
        spread = self._variances * (self._bins * (self._step / 2) ** 2)[edges, None]
        return np.asarray(spread > self._masses.astype(np.float64) ** 2)

    def _sides(self, edges: Edges) -> tuple[Whole, Whole]:
        return self.least(edges), self.greatest(edges)

    def noise(self, edges: Edges, chance: float) -> tuple[Whole, Whole]:
        """Hidden sizes hold the noise of both sides, and each has half of the chance."""
        if self.sizes_known:
            both = self._left(edges, chance)
            return both, both
        above = self.n_edges - 2 - edges
        right = np.where(above < 0, 0, self._left(np.maximum(above, 0), chance / 2))
        return self._left(edges, chance / 2), right

    def _left(self, edges: Edges, chance: float) -> Whole:
        """(E,) half counts that at any one edge the noise of any S exceeds with this chance."""
        heard = ~self._silent(edges)
        number = [heard[:, rows].sum(axis=1) * self._draws[edges] for rows in self._owners]
        bounds = [
            noise_bound(tuple(zip(self._distinct, map(int, terms), strict=True)), chance)
            for terms in zip(*number, strict=True)
        ]
        return np.asarray(self._step[edges] * np.array(bounds, dtype=np.int64))

    def each(self, edges: Edges, chance: float) -> tuple[Whole, Whole]:
        """(E, K) every client's count less, and more, a bound on its own noise."""
        own = np.zeros((len(edges), len(self.sizes)), dtype=np.int64)
        draws, where = np.unique(self._draws[edges], return_inverse=True)
        for law, rows in zip(self._distinct, self._owners, strict=True):
            bound = np.array([noise_bound(((law, int(n)),), chance) for n in draws])
            own[:, rows] = (self._step[edges] * bound[where])[:, None]
        lowest = np.clip(-((own - self.least(edges)) // 2), 0, self.sizes)
        return lowest, np.clip((self.greatest(edges) + own) // 2, 0, self.sizes)

    def pooled(self, trusted: Mask | None) -> NDArray[Any]:
        """(H,) by the estimates, made to rise; noise is as likely to move it down as up.

        Each client's count is held within [0, n_k] and a few standard deviations of its own noise,
        which honest ones hardly ever leave: what a liar adds is bounded by what it claims to hold.
        """
        edges, below = np.arange(self.n_edges), self._bins * (self._step / 2) ** 2
        above = below if self.sizes_known else self.n_edges - self._bins

        def told(block: Federation, masses: Whole, most: Whole, each: Shares, used: Mask) -> Whole:
            left = block.cumulative()
            twice = self._estimates(left.T, left[:, -1], masses, edges)
            under, over = (
                np.ceil(2 * DEVIATIONS * np.sqrt(each * bins[:, None])).astype(np.int64)
                for bins in (below, above)
            )
            return np.asarray(np.clip(twice, -under, most + over)[:, used].sum(axis=1))

        used = np.ones(len(self.sizes), dtype=bool) if trusted is None else trusted
        columns = self._masses, self.weights, self._variances, used
        return rising(self.federation.fold(told, *columns) / 2)

    def smallest_totals(self, budgets: Whole, chance: float) -> Shares:
        """(M,) the same, less what noise may add to hidden sizes."""
        total = super().smallest_totals(budgets, chance)
        top = np.array([self.n_edges - 1])
        return total if self.sizes_known else total - self._left(top, chance)[0] / 2


@lru_cache(maxsize=2)  # everybody asks for those of one federation
def counts_of(federation: Federation) -> ExactCounts:
    """The counts as guarantees see them: exact, or with the noise of private reports."""
    return NoisyCounts(federation) if federation.noisy else ExactCounts(federation)


def rising(values: Shares) -> Shares:
    """(H,) the closest vector that never falls (isotonic regression); itself where it rises."""
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(values).x, dtype=np.float64)


def least_shares(
    counts: Whole,
    sizes: Whole,
    budgets: Whole,
    lost: Whole | int = 0,
    more: Whole | int = 0,
    *,
    both: bool = False,
) -> tuple[Shares, Shares]:
    """(R, M) numerator and denominator of the least (sum_S c_k - lost) / (sum_S n_k + more).

    Over all S that leave out at most m clients, of (R, K) counts and rising m; of one row and of
    what it leaves of the sizes, with `both`. Dinkelbach: remove
    the <= m largest positive c_k - x n_k, x the share that is left, until it rests: exact.
    """
    counts, sizes, number = _kinds(counts, sizes)
    counts = np.concatenate([counts, sizes - counts]) if both else counts
    together = len(number) <= FEW_CLIENTS or bool((number > 1).any())
    most = 2 * int(max(np.abs(counts * number).sum(axis=1).max(), (sizes * number).sum()))
    largest = most * int(max(np.abs(counts).max(), np.abs(sizes).max()))
    counts, sizes = integers(counts, largest), integers(sizes, largest)
    shape = len(counts), len(budgets)
    totals, weights = (counts * number).sum(axis=1) - lost, (sizes * number).sum() + more
    totals, weights = (np.broadcast_to(one, shape[:1]) for one in (totals, weights))
    top, bottom = (np.repeat(one[:, None], shape[1], axis=1) for one in (totals, weights))
    rows, columns = (one.ravel() for one in np.indices(shape))
    step = max(1, _BLOCK // len(number)) if together else 1
    for start in range(0, rows.size, step):
        r, m = rows[start : start + step], columns[start : start + step]
        if not together and m[0]:  # more liars never make it larger: they start where fewer end
            top[r, m], bottom[r, m] = top[r, m - 1], bottom[r, m - 1]
        while r.size:
            old, weight, few = top[r, m], bottom[r, m], budgets[m]
            here = counts[r]
            loss = sizes * old[:, None]
            loss -= here * weight[:, None]
            line = np.arange(r.size)[:, None]
            if together:
                order = np.argsort(loss, axis=1)
                each = number[order] * (loss[line, order] < 0)
                before = np.cumsum(each, axis=1) - each
                taken = np.minimum(np.maximum(few[:, None] - before, 0), each)
            else:
                order = np.argpartition(loss, max(0, few[0] - 1), axis=1)[:, : few[0]]
                taken = loss[line, order] < 0
            left = totals[r] - (taken * here[line, order]).sum(axis=1)
            rest = weights[r] - (taken * sizes[order]).sum(axis=1)
            lower = (left * weight < old * rest).astype(bool)
            r, m = r[lower], m[lower]
            top[r, m], bottom[r, m] = left[lower], rest[lower]
    return top.astype(float), bottom.astype(float)


def _kinds(counts: NDArray[Any], sizes: NDArray[Any]) -> tuple[Whole, Whole, Whole]:
    """Distinct columns of counts and a size, and how many clients have each.

    Every client by itself where clients are few or hardly any are alike.
    """
    columns, n_clients = (*counts, sizes), len(sizes)
    shape = tuple(int(one.max()) + 1 for one in columns)
    if n_clients >= FEW_CLIENTS and counts.min() >= 0 and prod(shape) < _SAFE:
        keys, number, start = np.zeros(0, np.int64), np.zeros(0, np.int64), 0
        while start < n_clients and 2 * len(keys) <= n_clients:
            part = slice(start, start := start + max(_BLOCK, len(keys)))
            own = np.ravel_multi_index(tuple(one[part].astype(np.int64) for one in columns), shape)
            times = np.concatenate([number, np.ones(len(own))])
            keys, where = np.unique(np.concatenate([keys, own]), return_inverse=True)
            number = np.bincount(where, times).astype(np.int64)
        if 2 * len(keys) <= n_clients:
            *found, alike = np.unravel_index(keys, shape)
            return np.stack(found), alike, number
    return counts.astype(np.int64), sizes.astype(np.int64), np.ones(n_clients, dtype=np.int64)
