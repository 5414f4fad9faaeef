"""Thresholds that cover with stated confidence over the calibration data, whatever m clients do."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from robfcp._util.exact import first_edge, integers, sum_of_largest
from robfcp.federation import Federation
from robfcp.guarantees.binomials import least_count
from robfcp.guarantees.bounds import CountBounds, Edges, scaled_margins
from robfcp.guarantees.budgets import check_budget, check_delta
from robfcp.guarantees.noisy import bounds_of

NOISE_SHARE = 0.2  # of a certificate's chance of failure, where reports hold noise
_TOTALS = 4096  # how many benign totals N_S are looked at one by one
_SLOPE = 1024  # the slope of the slack is rounded to a multiple of 1/1024


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
