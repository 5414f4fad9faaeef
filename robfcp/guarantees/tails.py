"""Thresholds that cover with stated confidence over the calibration data, whatever m clients do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees.engine import (
    NOISE_SHARE,
    Edges,
    ExactCounts,
    Shares,
    Whole,
    check_budget,
    check_delta,
    first_edge,
    integers,
    scaled_margins,
    sum_of_largest,
)
from robfcp.privacy import Terms, noise_bound

DEVIATIONS = 3  # of noise that a count may lie outside [0, n_k] where counts are pooled
LEVEL_SHARE = Fraction(1, 50)  # of 1 - level, for thresholds that cover on average
_ROUNDING = 1e-12
_STEPS = 50


CountBounds: TypeAlias = "ExactCounts | NoisyCounts"  # with the same methods


def bounds_of(federation: Federation) -> CountBounds:
    """The counts as guarantees see them: exact, or with the noise of private reports."""
    return NoisyCounts(federation) if federation.noisy else _exact_bounds(federation)


_exact_bounds = lru_cache(maxsize=2)(ExactCounts)  # everybody asks for those of one federation


def rising(values: Shares) -> Shares:
    """(H,) the closest vector that never falls (isotonic regression); itself where it rises."""
    if (np.diff(values) >= 0).all():
        return values
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(values).x, dtype=np.float64)


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
            draws = np.where(middle, n_bins, shorter)
            self._draws = federation.noise_draws * draws
            self._step = np.where(middle, 1, 2)
            spread = federation.variances[:, None] * draws * (self._step / 2) ** 2
            self._silent = spread > masses.astype(np.float64) ** 2
            below = above = np.sqrt(spread)
        else:
            self.sizes = left[:, -1].copy()
            self._halves = 2 * left
            self._draws = federation.noise_draws * up_to
            self._step = np.full(n_bins, 2)
            self._silent = np.zeros(left.shape, dtype=bool)
            below = np.sqrt(federation.variances[:, None] * up_to)
            above = np.sqrt(federation.variances[:, None] * (n_bins - up_to))
        self._least_told = -DEVIATIONS * below
        self._most_told = self.parts / 2 * self.sizes[:, None] + DEVIATIONS * above
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
        """By the pooled counts, made to rise; noise is as likely to move it down as up.

        Each client's count is held within [0, n_k] and a few standard deviations of its own noise,
        which honest ones hardly ever leave: what a liar adds is bounded by what it claims to hold.
        """
        total = max(1, int(self.sizes.sum()) * self.parts // 2)
        pooled = rising(np.clip(self._halves / 2, self._least_told, self._most_told).sum(axis=0))
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


_TOTALS = 4096  # how many benign totals N_S are looked at one by one
_SLOPE = 1024  # the slope of the slack is rounded to a multiple of 1/1024


def least_count(totals: Whole, probability: float, delta: float, low: Whole) -> Whole:
    """The least c in low..N + 1 with P(Bin(N, probability) >= c) <= delta, by bisection."""
    from scipy.special import betainc

    low, high = low.copy(), totals + 1
    while (open_ := low < high).any():
        middle = (low + high) // 2
        rare = betainc(np.maximum(middle, 1), totals - middle + 1, probability) <= delta
        rare &= middle > 0
        high = np.where(open_ & rare, middle, high)
        low = np.where(open_ & ~rare, middle + 1, low)
    return high


def critical_counts(totals: NDArray[np.int64], level: Fraction, delta: float) -> NDArray[np.int64]:
    """c(N): the least c >= level N + 1 with P(Bin(N, level) >= c) <= delta; at most N + 1."""
    p, q = level.numerator, level.denominator
    totals = np.asarray(totals, dtype=np.int64)
    wide = integers(totals, q * (int(totals.max(initial=0)) + 1))
    low = (-((-p * wide) // q) + 1).astype(np.int64)
    return least_count(totals, float(level), delta, low)


def critical_gains(
    totals: NDArray[np.int64], level: Fraction, delta: float, unit: int
) -> NDArray[np.int64]:
    """The least summed gain, in parts of 1/unit, that N losses of mean above 1 - level rarely have.

    N independent losses in [0, 1] of mean above a sum to at most R with a chance of at most
    exp(-N kl(R/N, a)) (Hoeffding 1963) and e P(Bin(N, a) <= ceil R) (Bentkus 2004): the larger R
    that either allows.
    """
    totals = np.asarray(totals, dtype=np.int64)
    miss = float(1 - level)
    allowed = np.floor(_kl_loss(totals, miss, delta) * unit) / unit
    # the least count of gains is that of a binomial: N - R is least_count at delta / e
    whole = totals - least_count(totals, float(level), delta / np.e, np.zeros_like(totals))
    best = np.maximum(np.maximum(allowed, whole), -1.0)
    gains = np.ceil((totals - best) * unit - 1e-6).astype(np.int64)
    floor = np.array([-((-(unit * level) * int(n)) // 1) for n in totals], dtype=np.int64) + 1
    return np.minimum(np.maximum(gains, floor), unit * totals + 1)


def _kl_loss(totals: NDArray[np.int64], miss: float, delta: float) -> NDArray[np.float64]:
    """The largest R <= N miss with N kl(R/N, miss) >= ln(1/delta); -1 where there is none."""
    need = np.log(1 / delta) / np.maximum(totals, 1)
    low, high = np.zeros(len(totals)), np.full(len(totals), miss)
    possible = -np.log1p(-miss) >= need
    for _ in range(60):
        middle = (low + high) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            kl = np.where(middle > 0, middle * np.log(middle / miss), 0.0)
            kl += (1 - middle) * np.log((1 - middle) / (1 - miss))
        far = kl >= need
        low, high = np.where(far, middle, low), np.where(far, high, middle)
    return np.where(possible, low * totals, -1.0)


class PacCondition:
    """Whether every S that could be benign counts at least c(N_S): exact for equal sizes.

    For unequal sizes N_S is known only within a range for each number j of removals, so the
    slack c(N) - level N is bounded by a_j + b N over that range and b n_k joins client k's side.
    """

    def __init__(
        self,
        sizes: NDArray[np.int64],
        m: int,
        level: Fraction,
        delta: float,
        largest: int = 0,  # sum of absolute counts, where noise may take it beyond the sizes
        unit: int = 1,  # counts a sample has
    ) -> None:
        m = check_budget(m, len(sizes))
        ordered = np.sort(np.asarray(sizes, dtype=np.int64))
        removed = np.arange(m + 1)
        running = np.concatenate([[0], np.cumsum(ordered)])
        total = int(running[-1])
        most = total - running[removed]
        least = running[len(ordered) - removed]
        p, self._scale = level.numerator * _SLOPE, level.denominator * _SLOPE
        step = -(-(total - int(least[-1]) + 1) // _TOTALS)
        known = bool((least == most).all())
        totals = most if known else np.arange(int(least[-1]), total + step, step)
        if unit == 1:
            critical = critical_counts(totals, level, delta)
        else:
            critical = critical_gains(totals, level, delta, unit)
        slope = 0 if known else _slope(totals, critical / unit, level)
        self._rate = p + slope * level.denominator
        room = max(unit * total, largest) + unit * (step + 1)
        self._sizes = unit * integers(sizes, 2 * self._scale * room)
        wide = self._sizes.dtype
        residual = self._scale * critical.astype(wide) - self._rate * unit * totals.astype(wide)
        if not known:
            # c(N + i) <= c(N) + i: between the totals looked at the slack grows by < 1 a sample
            residual = residual + max(0, self._scale - self._rate) * unit * (step - 1)
            ranges = np.stack([least - totals[0], most - totals[0] + step], axis=1).ravel() // step
            residual = np.maximum.reduceat(np.append(residual, residual[-1:]), ranges)[::2]
        self._needed = residual
        self._m = m

    def holds(
        self, counts: NDArray[np.int64], allowance: NDArray[np.int64] | int = 0, parts: int = 1
    ) -> NDArray[np.bool_]:
        """(E,) from (E, K) counts: for every j <= m, the sum without the j largest reaches a_j.

        `allowance` (E,) is what the sum must exceed it by, where the counts hold noise. Counts and
        allowance may be in parts of a count.
        """
        wide = self._sizes.dtype
        scaled = self._scale * counts.astype(wide) - parts * self._rate * self._sizes
        kept = np.cumsum(np.sort(scaled, axis=1), axis=1)[:, ::-1][:, : self._m + 1]
        room = self._scale * np.asarray(allowance).astype(wide).reshape(-1, 1)
        return np.asarray((kept >= parts * self._needed + room).all(axis=1))


def _slope(totals: NDArray[np.int64], critical: NDArray[np.float64], level: Fraction) -> int:
    """The slope of the slack between the ends of the range, in units of 1/1024; never negative."""
    slack = critical - float(level) * totals
    return max(0, round(float((slack[-1] - slack[0]) / (totals[-1] - totals[0])) * _SLOPE))


def pac_threshold(federation: Federation, level: Fraction, m: int, delta: float) -> int | None:
    """The first edge that, with probability >= 1 - delta, covers at `level`; None = infinite.

    Requires count_S(t) >= c(N_S, delta) for every S that leaves out at most m clients. Where
    reports hold noise a fifth of delta is the noise's.
    """
    bounds = bounds_of(federation)
    noise, sampling = bounds.split(check_delta(delta), NOISE_SHARE)
    if not bounds.sizes_known:
        return _with_hidden_sizes(bounds, level, m, sampling, noise)
    everywhere = np.arange(federation.grid.n_bins)
    largest = int(np.abs(bounds.least(everywhere)).sum(axis=1).max()) if bounds.falling else 0
    unit = federation.unit
    condition = PacCondition(bounds.sizes, m, level, sampling, largest, unit)

    def holds(edges: Edges) -> NDArray[np.bool_]:
        allowance = bounds.allowance(edges, noise)
        return condition.holds(bounds.least(edges), allowance, bounds.parts // unit)

    return bounds.search(holds)


def _with_hidden_sizes(
    bounds: CountBounds, level: Fraction, m: int, delta: float, noise: float
) -> int | None:
    """The same where N_S is known up to noise too: the largest slack c(N) - level N it may need."""
    m = check_budget(m, len(bounds.sizes))
    p, q = level.numerator, level.denominator
    sizes = bounds.sizes[None, :]
    least = max(1, int(bounds.smallest_total(m, noise / 4)))
    total = int(bounds.sizes.sum())
    doubt = total - int(bounds.smallest_total(0, noise / 4))
    most = max(least, total + int(sum_of_largest(-sizes, m)[0]) + doubt)
    step = -(-(most - least + 1) // _TOTALS)
    totals = np.append(np.arange(least, most, step), most)
    # c(N + i) <= c(N) + i: between the totals looked at the slack grows by < 1 - level a sample
    critical = critical_counts(totals, level, delta).tolist()
    slack = max(q * c - p * n for c, n in zip(critical, totals.tolist(), strict=True))
    slack += (q - p) * (step - 1)

    def holds(edges: Edges) -> NDArray[np.bool_]:
        margins = scaled_margins(bounds, edges, level)
        kept = margins.sum(axis=1) - sum_of_largest(margins, m)
        allowance = bounds.scaled_allowance(edges, level, noise / 2)
        return np.asarray((kept >= allowance + bounds.parts * slack).astype(bool))

    return bounds.search(holds)


def pac_liars_forcing_full_sets(
    sizes: NDArray[np.int64], level: Fraction, m: int, delta: float
) -> int | None:
    """The least number of liars that can push the pac threshold, told m, to the top edge.

    The liars are the largest clients with everything in the last bin, the others have everything
    in the first; None where no number below K does.
    """
    sizes = np.sort(np.asarray(sizes, dtype=np.int64))[::-1]
    condition = PacCondition(sizes, m, level, check_delta(delta))
    position = np.arange(len(sizes))
    found = first_edge(
        len(sizes) - 1,
        lambda extra: not condition.holds(np.where(position <= extra, 0, sizes)[None, :])[0],
    )
    return None if found is None else found + 1
