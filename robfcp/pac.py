"""Thresholds that cover with stated confidence over the calibration data, whatever m clients do."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp._exact import check_budget, edges_first, first_edge, integers
from robfcp.errors import RobfcpError
from robfcp.federation import Federation

_TOTALS = 4096  # how many benign totals N_S are looked at one by one
_SLOPE = 1024  # the slope of the slack is rounded to a multiple of 1/1024


def critical_counts(totals: NDArray[np.int64], level: Fraction, delta: float) -> NDArray[np.int64]:
    """c(N): the least c >= level N + 1 with P(Bin(N, level) >= c) <= delta; at most N + 1."""
    p, q = level.numerator, level.denominator
    totals = np.asarray(totals, dtype=np.int64)
    wide = integers(totals, q * (int(totals.max(initial=0)) + 1))
    low = (-((-p * wide) // q) + 1).astype(np.int64)
    return _least_count(totals, float(level), delta, low)


def _least_count(
    totals: NDArray[np.int64], probability: float, delta: float, low: NDArray[np.int64]
) -> NDArray[np.int64]:
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
        critical = critical_counts(totals, level, delta)
        slope = 0 if known else _slope(totals, critical, level)
        self._rate = p + slope * level.denominator
        self._sizes = integers(sizes, 2 * self._scale * (max(total, largest) + step + 1))
        wide = self._sizes.dtype
        residual = self._scale * critical.astype(wide) - self._rate * totals.astype(wide)
        if not known:
            # c(N + i) <= c(N) + i: between the totals looked at the slack grows by < 1 a sample
            residual = residual + max(0, self._scale - self._rate) * (step - 1)
            ranges = np.stack([least - totals[0], most - totals[0] + step], axis=1).ravel() // step
            residual = np.maximum.reduceat(np.append(residual, residual[-1:]), ranges)[::2]
        self._needed = residual
        self._m = m

    def holds(
        self, below: NDArray[np.int64], allowance: NDArray[np.int64] | None = None, parts: int = 1
    ) -> NDArray[np.bool_]:
        """At each edge: for every j <= m, the sum without the j largest reaches a_j.

        `allowance` (E,) is what the sum must exceed it by, where the counts hold noise. Counts and
        allowance may be in parts of a count.
        """
        counts = edges_first(below).astype(self._sizes.dtype)
        scaled = self._scale * counts - parts * self._rate * self._sizes
        kept = np.cumsum(np.sort(scaled, axis=1), axis=1)[:, ::-1][:, : self._m + 1]
        needed = self._needed
        if allowance is not None:
            needed = parts * needed + self._scale * allowance.astype(self._sizes.dtype)[:, None]
        reached = kept >= needed
        return np.asarray(reached.all(axis=1)).reshape(np.shape(below)[1:])


def _slope(totals: NDArray[np.int64], critical: NDArray[np.int64], level: Fraction) -> int:
    """The slope of the slack between the ends of the range, in units of 1/1024; never negative."""
    slack = critical - float(level) * totals
    return max(0, round(float((slack[-1] - slack[0]) / (totals[-1] - totals[0])) * _SLOPE))


def pac_threshold(federation: Federation, level: Fraction, m: int, delta: float) -> int | None:
    """The first edge that, with probability >= 1 - delta, covers at `level`; None = infinite.

    Requires count_S(t) >= c(N_S, delta) for every S that leaves out at most m clients.
    """
    if federation.private:
        from robfcp.private_thresholds import private_pac

        return private_pac(federation, level, m, delta)
    condition = PacCondition(federation.sizes, m, level, check_delta(delta))
    return first_edge(
        federation.grid.n_bins, lambda edge: bool(condition.holds(federation.below(edge)))
    )


def homogeneous_votes(n_clients: int, m: int, delta: float) -> tuple[float, int]:
    """gamma and v: how rare one client's excess must be, and how many benign ones may still err.

    For each v the largest gamma with P(Bin(K - m, gamma) > v) <= delta; of these the one whose
    threshold lies lowest while m liars vote against it, z(1 - gamma) + z((m + v + 1/2)/(K - m)).
    """
    from scipy.special import betaincinv, ndtri

    benign = n_clients - check_budget(m, n_clients)
    votes = np.arange(max(1, benign - m))
    gamma = betaincinv(votes + 1, benign - votes, delta)
    if benign <= m:
        return float(gamma[0]), 0
    cost = -ndtri(gamma) + ndtri((m + votes + 0.5) / benign)
    best = int(np.argmin(cost))
    return float(gamma[best]), int(votes[best])


def homogeneous_rule(
    sizes: NDArray[np.int64], level: Fraction, m: int, delta: float, sigma: float = 0.0
) -> tuple[NDArray[np.int64], int] | None:
    """Each client's least convincing count, and how many clients must reach theirs.

    Convincing: P(Bin(n_k, level + 2 sigma) >= count) <= gamma. More than m + v clients are needed.
    None where level + 2 sigma is 1 or more, which no count can show.
    """
    n_clients = len(sizes)
    gamma, votes = homogeneous_votes(n_clients, m, check_delta(delta))
    if not 0 <= sigma <= 1:
        raise RobfcpError(f"heterogeneity: {sigma} is not between 0 and 1; give 0.02, say")
    probability = float(level) + 2 * sigma
    if probability >= 1:
        return None
    needed = _least_count(sizes, probability, gamma, np.zeros(n_clients, dtype=np.int64))
    attained = _mean_of_attained(sizes, needed, probability, n_clients - m)
    return needed, m + min(votes, allowed_errors(n_clients - m, attained, delta)) + 1


def homogeneous_threshold(
    federation: Federation, level: Fraction, m: int, delta: float, sigma: float = 0.0
) -> int | None:
    """The first edge that, with probability >= 1 - delta, covers at `level` if clients are alike.

    The first edge at which enough clients' counts are convincing; None = infinite.
    """
    if federation.private:
        from robfcp.private_thresholds import private_homogeneous

        return private_homogeneous(federation, level, m, delta, sigma)
    rule = homogeneous_rule(federation.sizes, level, m, delta, sigma)
    if rule is None:
        return None
    needed, required = rule
    return first_edge(
        federation.grid.n_bins,
        lambda edge: int((federation.below(edge) >= needed).sum()) >= required,
    )


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
        lambda extra: not condition.holds(np.where(position <= extra, 0, sizes)),
    )
    return None if found is None else found + 1


def homogeneous_liars_forcing_full_sets(
    sizes: NDArray[np.int64], level: Fraction, m: int, delta: float, sigma: float = 0.0
) -> int | None:
    """The least number of liars that can keep the clients declared alike from a threshold."""
    rule = homogeneous_rule(sizes, level, m, delta, sigma)
    if rule is None:
        return 0
    needed, required = rule
    able = int((needed <= np.asarray(sizes)).sum())
    return max(0, able - required + 1)


def _mean_of_attained(
    sizes: NDArray[np.int64], needed: NDArray[np.int64], probability: float, benign: int
) -> float:
    """Mean of the K - m largest P(Bin(n_k, probability) >= needed_k), each at most gamma."""
    from scipy.special import betainc

    possible = needed <= sizes
    chances: NDArray[Any] = np.zeros(len(sizes))
    chances[possible] = betainc(
        needed[possible], sizes[possible] - needed[possible] + 1, probability
    )
    return float(np.sort(chances)[-benign:].mean())


def allowed_errors(benign: int, chance: float, delta: float) -> int:
    """The least v >= benign * chance with P(Bin(benign, chance) > v) <= delta."""
    low = np.array([int(np.ceil(benign * chance)) + 1])
    return int(_least_count(np.array([benign]), chance, delta, np.minimum(low, benign + 1))[0]) - 1


def check_delta(delta: float) -> float:
    """A chance of failure strictly between 0 and 1."""
    if not 0 < delta < 1:
        raise RobfcpError(f"delta: {delta} is not between 0 and 1; give 0.05, say")
    return float(delta)
