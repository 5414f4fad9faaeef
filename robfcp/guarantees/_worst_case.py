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

from robfcp._validation import check_fraction, check_integer
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.privacy import noise_bound

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.intp]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

PRUNING_DELTA_FRACTION = 0.2  # of a certificate's chance of failure, where clients are pruned first
NOISE_DELTA_FRACTION = 0.2  # of a certificate's chance of failure, where reports hold noise
MAX_NOISE_DEVIATIONS = 3  # of noise that a count may lie outside [0, n_k] where counts are pooled
LEVEL_DELTA_FRACTION = Fraction(1, 50)  # of 1 - level, for thresholds that cover on average
MAX_CACHED_COUNTS = 2**21  # counts that are kept of the edges asked for last
_MAX_CLIENTS_SORTING = 512  # up to here sorting them for all numbers of liars at once is fastest
_BLOCK = 2**17  # counts sorted at a time, so that they stay in the cache
_SAFE = 2**62


def check_max_malicious(max_malicious: int, n_clients: int) -> int:
    """The number of liars guarded against, if it leaves at least one benign client."""
    if check_integer("liars", max_malicious, "give the most sites that may lie") >= n_clients:
        words = f"nothing can be guaranteed against {max_malicious} of {n_clients} sites"
        raise RobfcpError(f"liars: {words}; state a smaller bound or wait for more reports")
    return int(max_malicious)


def check_delta(delta: float) -> float:
    """A chance of failure strictly between 0 and 1."""
    return check_fraction("delta", delta, "give 0.05, say")


def check_heterogeneity(heterogeneity: float) -> float:
    """A stated bound on how far honest clients differ."""
    return check_fraction("alike", heterogeneity, "give 0.02, say", allow_zero=True, allow_one=True)


def as_integers(values: NDArray[Any], largest: int) -> NDArray[Any]:
    """The values as int64, or as Python integers where results up to `largest` would overflow."""
    return np.asarray(values).astype(np.int64 if largest < _SAFE else object, copy=False)


def excess_counts(counts: IntArray, sizes: IntArray, p: int, q: int) -> NDArray[Any]:
    """(E, K) whole numbers q c_k - p n_k from (E, K) counts."""
    largest = q * int(np.abs(counts).sum(axis=1).max(initial=0)) + p * int(np.abs(sizes).sum())
    return np.asarray(q * as_integers(counts, 2 * largest) - p * as_integers(sizes, 2 * largest))


def sum_of_largest(values: NDArray[Any], k: int) -> NDArray[Any]:
    """Each row's sum of its `number` largest entries, negative ones counted as 0."""
    place = values.shape[1] - k
    parted = np.partition(values, place, axis=1) if k > 0 and place else values
    return np.asarray(np.maximum(parted[:, place:], 0).sum(axis=1))


def min_sums_over_removals(excess_counts: NDArray[Any], max_malicious: int) -> NDArray[Any]:
    """(E, m + 1) the sum over all clients without those of the j largest gains, j = 0..m.

    It is the least over all sets that leave out j clients.
    """
    rest = excess_counts.shape[1] - max_malicious
    parted = (
        np.partition(excess_counts, rest, axis=1)
        if 0 < max_malicious < excess_counts.shape[1]
        else excess_counts
    )
    steps = np.zeros((len(excess_counts), max_malicious + 1), dtype=excess_counts.dtype)
    np.cumsum(np.sort(parted[:, rest:], axis=1), axis=1, out=steps[:, 1:])
    return np.asarray((parted[:, :rest].sum(axis=1)[:, None] + steps)[:, ::-1])


def first_accepted(n_bins: int, is_accepted: Callable[[int], bool]) -> int | None:
    """The first edge at which a condition that stays true once true holds; None if none."""
    if not n_bins or not is_accepted(n_bins - 1):
        return None
    return bisect_left(range(n_bins - 1), True, key=is_accepted)


class TailTest(NamedTuple):
    """What sum_S (q c_k - p n_k) must reach: needed[j] where S leaves out j, or one for all."""

    p: int
    q: int
    min_excess: NDArray[Any]

    def accepts(
        self,
        counts: IntArray,
        sizes: IntArray,
        m: int,
        room: NDArray[Any] | int = 0,
        parts: int = 1,
    ) -> BoolArray:
        """(E,) whether it does for every S that leaves out at most m, whatever noise adds to it.

        Counts, sizes and `room`, (E,) for the noise, may be in `parts` of a count.
        """
        sums = min_sums_over_removals(excess_counts(counts, sizes, self.p, self.q), m)
        needed = parts * self.min_excess + np.asarray(room).reshape(-1, 1)
        return np.asarray((sums >= needed).astype(bool).all(axis=1))

    def breakdown_point(self, sizes: IntArray, m: int) -> int | None:
        """The least number of liars that can push the threshold, told m, to the top edge.

        The liars are the largest clients and put everything into the last bin, the others
        everything into the first: fewer may do on other reports. None where no number below K does.
        """
        sizes = np.sort(np.asarray(sizes, dtype=np.int64))[::-1]
        place = np.arange(len(sizes))
        found = first_accepted(
            len(sizes) - 1,
            lambda last: not self.accepts(np.where(place <= last, 0, sizes)[None], sizes, m)[0],
        )
        return None if found is None else found + 1


class CountBounds:
    """Counts as they were sent: whole, rising from edge to edge, nothing to allow for."""

    falling = False  # whether noise may make a count less than the one at the edge below
    sizes_known = True
    halves = 1  # in which counts are given: two make one where noise is averaged

    def __init__(self, federation: Federation) -> None:
        self.federation, self.sizes = federation, federation.sample_sizes
        self.n_edges, self.unit = federation.binning.n_bins, federation.counts_per_sample
        self._rows: dict[int, IntArray] = {}
        self.proved: dict[Any, Any] = {}  # what was asked of an edge, and will be again

    @property
    def weights(self) -> IntArray:
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
        return (1 - level) * LEVEL_DELTA_FRACTION if self.falling else Fraction(0)

    def noise(self, edges: IndexArray, chance: float) -> tuple[IntArray, IntArray]:
        """(E,) what the noise of any S adds to its counts up to an edge, and above it, at most."""
        return np.zeros(len(edges), dtype=np.int64), np.zeros(len(edges), dtype=np.int64)

    def noise_allowance(self, edges: IndexArray, tail: TailTest, chance: float) -> NDArray[Any]:
        """(E,) what the noise of any S adds to sum_S (q c_k - p n_k), beyond it with the chance."""
        left, right = self.noise(edges, chance)
        largest = 2 * tail.q * int(max(left.max(initial=0), right.max(initial=0)))
        less = (tail.q - tail.p) * as_integers(left, largest)
        return np.asarray(less + tail.p * as_integers(right, largest))

    def lower(self, edges: IndexArray) -> IntArray:
        """(E, K) counts up to each edge, or what they are at least."""
        wanted = edges.tolist()
        missing = sorted(set(wanted) - set(self._rows))
        if missing and (len(self._rows) + len(missing)) * len(self.sizes) > MAX_CACHED_COUNTS:
            self._rows, missing = {}, sorted(set(wanted))
        if missing:
            self._rows.update(zip(missing, self._read(np.array(missing)), strict=True))
        rows = [self._rows[edge] for edge in wanted]
        return rows[0][None] if len(rows) == 1 else np.stack(rows)

    def upper(self, edges: IndexArray) -> IntArray:
        """(E, K) counts up to each edge, or what they are at most: more where they are in fives."""
        counts, known = self.lower(edges), self.federation.is_coarsened
        if not known.any():
            return counts
        different, where = np.unique(edges, return_inverse=True)
        ends = np.unique(np.append(different, self.n_edges - 1))
        left = (
            self.federation.select(known)
            .map_blocks(lambda one: one.lowest_counts().cumulative_counts(ends))
            .T
        )
        masses, counts = self.federation.total_counts[known], counts.copy()
        told = self._estimates(left[: len(different)], left[-1], masses, different)
        counts[:, known] = told[where]
        return counts

    def _estimates(
        self, left: IntArray, sent: IntArray, masses: IntArray, edges: IndexArray
    ) -> IntArray:
        """What the counts up to each edge tell of some clients' samples."""
        return left

    def _read(self, edges: IndexArray) -> IntArray:
        """(E, K) counts up to rising edges."""
        if len(edges) == 1:
            return self.federation.map_blocks(lambda block: block.cumulative_count(int(edges[0])))[
                None, :
            ]
        return np.ascontiguousarray(
            self.federation.map_blocks(lambda block: block.cumulative_counts(edges)).T
        )

    def per_client(self, edges: IndexArray, chance: float) -> tuple[IntArray, IntArray]:
        """(E, K) whole counts of every client by itself, either end wrong with the chance."""
        least, greatest = self._sides(edges)
        return least.astype(np.int64), greatest.astype(np.int64)

    def accepted(self, edges: IndexArray, tail: TailTest, m: int, chance: float) -> BoolArray:
        """(E,) where the tail is reached whoever the at most m liars are."""
        room = self.noise_allowance(edges, tail, chance)
        return tail.accepts(self.lower(edges), self.weights, m, room, self.halves)

    def search(self, accepted: Callable[[IndexArray], BoolArray]) -> int | None:
        """The edge after the last one that is not accepted; None where that is the top.

        What holds at an edge holds above it where counts rise; else it is looked for from the top.
        """
        if not self.falling:
            return first_accepted(self.n_edges, lambda edge: bool(accepted(np.array([edge]))[0]))
        step = max(1, MAX_CACHED_COUNTS // max(1, len(self.sizes)))
        for stop in range(self.n_edges, 0, -step):
            edges = np.arange(max(0, stop - step), stop)
            refused = edges[~accepted(edges)]
            if refused.size:
                last = int(refused[-1]) + 1
                return last if last < self.n_edges else None
        return 0

    @cached_property
    def _largest(self) -> IntArray:
        """(2, S + 1) how many clients are the largest, and their samples, size after size."""
        sizes, number = np.unique(np.maximum(self.sizes, 0), return_counts=True)
        steps = np.stack([number, sizes.astype(np.int64) * number])[:, ::-1]
        return np.concatenate([np.zeros((2, 1), np.int64), np.cumsum(steps, axis=1)], axis=1)

    def smallest_totals(self, budgets: IntArray, chance: float) -> FloatArray:
        """(M,) what the samples of any S that leaves out at most m are at least."""
        number, samples = self._largest
        place = np.maximum(np.searchsorted(number, budgets), 1)
        each = (samples[place] - samples[place - 1]) // (number[place] - number[place - 1])
        gone = samples[place - 1] + (budgets - number[place - 1]) * each
        return (int(self.sizes.sum()) - gone).astype(float)

    def min_coverage(
        self, edges: IndexArray, budgets: IntArray, chance: float
    ) -> tuple[FloatArray, FloatArray]:
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
            share, total = min_coverage_over_removals(sides, weights, budgets, *charges, both=exact)
            found[:, :, place] = share[0] / total[0], (total[1] - share[1]) / total[1]
        low, high = np.clip(found, 0, 1)
        return low, high

    def _sides(self, edges: IndexArray) -> tuple[NDArray[Any], NDArray[Any]]:
        """(E, K) counts up to each edge at least and at most, in the smallest numbers.

        They are at most more where reports are in fives.
        """
        rising, where = np.unique(edges, return_inverse=True)
        if not self.federation.is_out_of_core:
            return self.lower(edges), self.upper(edges)
        largest = self.unit * int(self.sizes.max())
        exact = largest < 2**32 and not self.federation.has_private_reports
        kind = np.min_scalar_type(largest) if exact else np.int64

        def both(block: Federation) -> NDArray[Any]:
            found = np.repeat(block.cumulative_counts(rising)[:, None], 2, axis=1)
            if (known := block.is_coarsened).any():
                found[known, 1] = block.select(known).lowest_counts().cumulative_counts(rising)
            return found.astype(kind)

        least, greatest = self.federation.map_blocks(both).transpose(1, 2, 0)
        return least[where], greatest[where]

    def pooled_counts(self, trusted: BoolArray | None) -> NDArray[Any]:
        """(H,) what the counts of the trusted clients come to up to each edge; it rises."""
        if trusted is None:
            return np.cumsum(self.federation.reduce_blocks(lambda block: block.pooled_counts()))
        return np.cumsum(
            self.federation.reduce_blocks(lambda block, mask: block.pooled_counts(mask), trusted)
        )


class NoisyCounts(CountBounds):
    """Estimates of 2 c_k(t) with noise of a known law, and bounds on the noise of any S.

    A client whose noise at an edge is larger than its n_k is silent there: its count is taken as 0
    from below and as n_k from above, which needs no noise bound. So nobody can drown the others by
    claiming more noise than it has samples. The choice rests on n_k and the stated noise alone.
    """

    falling, halves = True, 2

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.sizes_known, laws = federation.sizes_known, federation.noise_models
        self._masses, self._variances = federation.total_counts, federation.noise_variances
        n_bins, up_to = self.n_edges, np.arange(1, self.n_edges + 1)
        bins, self._step = up_to, np.full(n_bins, 2)
        self._middle = np.zeros(n_bins, dtype=bool)
        if self.sizes_known:  # from below, from above, or the mean of both: what has least noise
            shorter = np.minimum(up_to, n_bins - up_to)
            self._middle = 4 * shorter > n_bins
            bins, self._step = np.where(self._middle, n_bins, shorter), 2 - self._middle
        else:
            self.sizes = federation.map_blocks(lambda block: block.cumulative_count(n_bins - 1))
        self._bins, self._draws = bins, federation.noise_draws * bins
        self._distinct = sorted({law for law in laws if law is not None})
        self._owners = [np.array([own == law for own in laws]) for law in self._distinct]

    def lower(self, edges: IndexArray) -> IntArray:
        """(E, K) the estimates in half counts, 0 where a client is silent."""
        return np.where(self._silent(edges), 0, super().lower(edges))

    def upper(self, edges: IndexArray) -> IntArray:
        """(E, K) the estimates in half counts, 2 n_k where a client is silent."""
        return np.where(self._silent(edges), self.weights, super().upper(edges))

    def _read(self, edges: IndexArray) -> IntArray:
        ends = np.unique(np.append(edges, self.n_edges - 1))
        left = self.federation.map_blocks(lambda block: block.cumulative_counts(ends)).T
        return self._estimates(left[: len(edges)], left[-1], self._masses, edges)

    def _estimates(
        self, left: IntArray, sent: IntArray, masses: IntArray, edges: IndexArray
    ) -> IntArray:
        """Twice the counts up to each edge, from the side or the sides with the least noise."""
        if not self.sizes_known:
            return 2 * left
        right, below = masses - (sent - left), (2 * (edges + 1) <= self.n_edges)[:, None]
        return np.where(self._middle[edges, None], left + right, 2 * np.where(below, left, right))

    def _silent(self, edges: IndexArray) -> BoolArray:
        """(E, K) whose noise is larger than its sample."""
        if not self.sizes_known:
            return np.zeros((len(edges), len(self.sizes)), dtype=bool)
        spread = self._variances * (self._bins * (self._step / 2) ** 2)[edges, None]
        return np.asarray(spread > self._masses.astype(np.float64) ** 2)

    def _sides(self, edges: IndexArray) -> tuple[IntArray, IntArray]:
        return self.lower(edges), self.upper(edges)

    def noise(self, edges: IndexArray, chance: float) -> tuple[IntArray, IntArray]:
        """Hidden sizes hold the noise of both sides, and each has half of the chance."""
        if self.sizes_known:
            both = self._left(edges, chance)
            return both, both
        above = self.n_edges - 2 - edges
        right = np.where(above < 0, 0, self._left(np.maximum(above, 0), chance / 2))
        return self._left(edges, chance / 2), right

    def _left(self, edges: IndexArray, chance: float) -> IntArray:
        """(E,) half counts that at any one edge the noise of any S exceeds with this chance."""
        heard = ~self._silent(edges)
        number = [heard[:, rows].sum(axis=1) * self._draws[edges] for rows in self._owners]
        bounds = [
            noise_bound(tuple(zip(self._distinct, map(int, terms), strict=True)), chance)
            for terms in zip(*number, strict=True)
        ]
        return np.asarray(self._step[edges] * np.array(bounds, dtype=np.int64))

    def per_client(self, edges: IndexArray, chance: float) -> tuple[IntArray, IntArray]:
        """(E, K) every client's count less, and more, a bound on its own noise."""
        own = np.zeros((len(edges), len(self.sizes)), dtype=np.int64)
        draws, where = np.unique(self._draws[edges], return_inverse=True)
        for law, rows in zip(self._distinct, self._owners, strict=True):
            bound = np.array([noise_bound(((law, int(n)),), chance) for n in draws])
            own[:, rows] = (self._step[edges] * bound[where])[:, None]
        lowest = np.clip(-((own - self.lower(edges)) // 2), 0, self.sizes)
        return lowest, np.clip((self.upper(edges) + own) // 2, 0, self.sizes)

    def pooled_counts(self, trusted: BoolArray | None) -> NDArray[Any]:
        """(H,) by the estimates, made to rise; noise is as likely to move it down as up.

        Each client's count is held within [0, n_k] and a few standard deviations of its own noise,
        which honest ones hardly ever leave: what a liar adds is bounded by what it claims to hold.
        """
        edges, below = np.arange(self.n_edges), self._bins * (self._step / 2) ** 2
        above = below if self.sizes_known else self.n_edges - self._bins

        def told(
            block: Federation, masses: IntArray, most: IntArray, each: FloatArray, used: BoolArray
        ) -> IntArray:
            left = block.cumulative_counts()
            twice = self._estimates(left.T, left[:, -1], masses, edges)
            under, over = (
                np.ceil(2 * MAX_NOISE_DEVIATIONS * np.sqrt(each * bins[:, None])).astype(np.int64)
                for bins in (below, above)
            )
            return np.asarray(np.clip(twice, -under, most + over)[:, used].sum(axis=1))

        used = np.ones(len(self.sizes), dtype=bool) if trusted is None else trusted
        columns = self._masses, self.weights, self._variances, used
        return running_maximum(self.federation.reduce_blocks(told, *columns) / 2)

    def smallest_totals(self, budgets: IntArray, chance: float) -> FloatArray:
        """(M,) the same, less what noise may add to hidden sizes."""
        total = super().smallest_totals(budgets, chance)
        top = np.array([self.n_edges - 1])
        return total if self.sizes_known else total - self._left(top, chance)[0] / 2


@lru_cache(maxsize=2)  # everybody asks for those of one federation
def count_bounds(federation: Federation) -> CountBounds:
    """The counts as guarantees see them: exact, or with the noise of private reports."""
    return NoisyCounts(federation) if federation.has_noise else CountBounds(federation)


def running_maximum(values: FloatArray) -> FloatArray:
    """(H,) the closest vector that never falls (isotonic regression); itself where it rises."""
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(values).x, dtype=np.float64)


def min_coverage_over_removals(
    counts: IntArray,
    sizes: IntArray,
    budgets: IntArray,
    lost: IntArray | int = 0,
    more: IntArray | int = 0,
    *,
    both: bool = False,
) -> tuple[FloatArray, FloatArray]:
    """(R, M) numerator and denominator of the least (sum_S c_k - lost) / (sum_S n_k + more).

    Over all S that leave out at most m clients, of (R, K) counts and rising m; of one row and of
    what it leaves of the sizes, with `both`. Dinkelbach: remove
    the <= m largest positive c_k - x n_k, x the share that is left, until it rests: exact.
    """
    counts, sizes, number = _group_equal_clients(counts, sizes)
    counts = np.concatenate([counts, sizes - counts]) if both else counts
    together = len(number) <= _MAX_CLIENTS_SORTING or bool((number > 1).any())
    most = 2 * int(max(np.abs(counts * number).sum(axis=1).max(), (sizes * number).sum()))
    largest = most * int(max(np.abs(counts).max(), np.abs(sizes).max()))
    counts, sizes = as_integers(counts, largest), as_integers(sizes, largest)
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


def _group_equal_clients(
    counts: NDArray[Any], sizes: NDArray[Any]
) -> tuple[IntArray, IntArray, IntArray]:
    """Distinct columns of counts and a size, and how many clients have each.

    Every client by itself where clients are few or hardly any are alike.
    """
    columns, n_clients = (*counts, sizes), len(sizes)
    shape = tuple(int(one.max()) + 1 for one in columns)
    if n_clients >= _MAX_CLIENTS_SORTING and counts.min() >= 0 and prod(shape) < _SAFE:
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
