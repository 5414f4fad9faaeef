"""Guaranteed thresholds from private reports: the conditions of `guarantees` and `pac` with room
for the noise, which fails with a chance that is paid from the level or the confidence.

Noisy counts may fall from one edge to the next, so a threshold is the edge after the last failure.
It lies below the one that the counts without noise would give only if the noise at one edge, fixed
by those counts, exceeds its bound: no union over the edges is needed.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp._exact import check_budget, sum_of_largest
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.noisy_binomials import least_noisy_count
from robfcp.pac import (
    PacCondition,
    allowed_errors,
    check_delta,
    critical_counts,
    homogeneous_votes,
)
from robfcp.private_counts import PrivateCounts
from robfcp.projection import rising
from robfcp.quantiles import Exchangeability, conformal_rank

NOISE_SHARE = 0.2  # of a certificate's chance of failure
LEVEL_SHARE = Fraction(1, 50)  # of 1 - level, for thresholds that cover on average

_ROUNDING = 1e-12
_TOTALS = 4096  # how many totals N_S are looked at where sizes are hidden


def noise_beta(level: Fraction) -> Fraction:
    """The chance that noise may fool a marginal threshold: (1 - level)/50."""
    return (1 - level) * LEVEL_SHARE


def edge_after_last_failure(holds: NDArray[np.bool_]) -> int | None:
    """The first edge from which on the condition holds everywhere; None if not at the top."""
    if not len(holds) or not holds[-1]:
        return None
    failures = np.flatnonzero(~holds)
    return int(failures[-1]) + 1 if failures.size else 0


def private_marginal(
    federation: Federation, level: Fraction, m: int | None = None, size_budget: int | None = None
) -> int | None:
    """The edge from which on every plausible S counts (level + beta)(N_S + |S|) beyond its noise.

    Covers at `level` on average over samples and noise: at level + beta without the noise, whose
    bound fails with chance beta.
    """
    counts, beta = PrivateCounts(federation), noise_beta(level)
    margins = counts.scaled_margins(level + beta)
    allowance = counts.scaled_allowance(level + beta, float(beta))
    holds = np.zeros(len(margins), dtype=bool)
    if m is not None:
        removed = sum_of_largest(margins, check_budget(m, federation.n_clients))
        holds |= (margins.sum(axis=1) - removed - allowance >= 0).astype(bool)
    if size_budget is not None:
        counts.require_sizes("size_budget")
        holds |= _budget_holds(margins, counts.sizes, size_budget, allowance)
    return edge_after_last_failure(holds)


def _budget_holds(
    margins: NDArray[Any], sizes: NDArray[np.int64], budget: int, allowance: NDArray[Any]
) -> NDArray[np.bool_]:
    """(H,) the knapsack condition of `size_budget_holds` with room for noise, by its dual.

    max sum_R g <= lambda W + sum (g_k - lambda n_k)+ for every lambda >= 0, here g_j / n_j of the
    client that breaks the budget, in floats with room for their rounding.
    """
    if budget < 0:
        raise RobfcpError(f"size_budget: {budget} is negative; give a number of samples")
    if budget >= int(sizes.sum()):
        return np.zeros(len(margins), dtype=bool)
    gains = np.where(sizes <= budget, np.maximum(margins, 0), 0).astype(float)
    order = np.argsort(-gains / sizes, axis=1, kind="stable")
    filled = np.cumsum(sizes[order], axis=1)
    breaking = np.take_along_axis(order, np.argmax(filled > budget, axis=1)[:, None], axis=1)
    rate = np.take_along_axis(gains, breaking, axis=1) / sizes[breaking]
    removed = rate[:, 0] * budget + np.maximum(gains - rate * sizes, 0).sum(axis=1)
    total = margins.sum(axis=1).astype(float) - allowance.astype(float)
    return np.asarray(total - removed >= 1e-9 * (np.abs(total) + removed))


def private_index(
    federation: Federation, level: Fraction, exchangeability: Exchangeability = "partial"
) -> int | None:
    """The first edge at which the pooled counts, made to rise, reach FCP's rank; None = infinite.

    Without a guarantee: noise is as likely to move it down as up.
    """
    counts = PrivateCounts(federation)
    n_samples = max(1, int(counts.sizes.sum()))
    rank = conformal_rank(level, n_samples, federation.n_clients, exchangeability)
    pooled = rising(counts.halves.sum(axis=0) / 2)
    reached = np.flatnonzero(pooled >= rank - _ROUNDING * n_samples)
    return int(reached[0]) if rank <= n_samples and reached.size else None


def private_tolerance(federation: Federation, index: int, level: Fraction) -> int | None:
    """The largest m for which the private marginal condition holds at this edge and all above."""
    counts, beta = PrivateCounts(federation), noise_beta(level)
    margins = counts.scaled_margins(level + beta)[index:]
    allowance = counts.scaled_allowance(level + beta, float(beta))[index:]
    total = margins.sum(axis=1) - allowance
    if (total < 0).any():
        return None
    gains = np.cumsum(-np.sort(-np.maximum(margins, 0), axis=1), axis=1)
    survived = (gains <= total[:, None]).sum(axis=1)
    return min(int(survived.min()), federation.n_clients - 1)


def private_pac(federation: Federation, level: Fraction, m: int, delta: float) -> int | None:
    """The edge from which on every plausible S counts c(N_S) beyond its noise.

    Covers at `level` with probability >= 1 - delta over samples and noise: a fifth of delta is the
    noise's.
    """
    counts = PrivateCounts(federation)
    noise_delta = NOISE_SHARE * check_delta(delta)
    if not counts.known:
        return _pac_of_hidden_sizes(counts, level, m, delta - noise_delta, noise_delta)
    lowest = counts.lowest
    condition = PacCondition(
        counts.sizes, m, level, delta - noise_delta, int(np.abs(lowest).sum(axis=0).max())
    )
    return edge_after_last_failure(condition.holds(lowest, counts.allowance(noise_delta), 2))


def _pac_of_hidden_sizes(
    counts: PrivateCounts, level: Fraction, m: int, delta: float, noise_delta: float
) -> int | None:
    """The same where N_S is known up to noise too: the largest slack c(N) - level N it may need."""
    m = check_budget(m, len(counts.sizes))
    p, q = level.numerator, level.denominator
    bound = int(counts.sides(noise_delta / 4)[0][-1]) // 2
    total, sizes = int(counts.sizes.sum()), counts.sizes[None, :]
    least = max(1, total - int(sum_of_largest(sizes, m)[0]) - bound)
    most = max(least, total + int(sum_of_largest(-sizes, m)[0]) + bound)
    step = -(-(most - least + 1) // _TOTALS)
    totals = np.append(np.arange(least, most, step), most)
    # c(N + i) <= c(N) + i: between the totals looked at the slack grows by < 1 - level a sample
    critical = critical_counts(totals, level, delta).tolist()
    slack = max(q * c - p * n for c, n in zip(critical, totals.tolist(), strict=True))
    slack += (q - p) * (step - 1)
    margins = counts.scaled_margins(level, extra=0)
    kept = margins.sum(axis=1) - sum_of_largest(margins, m)
    allowance = counts.scaled_allowance(level, noise_delta / 2)
    return edge_after_last_failure((kept >= allowance + 2 * slack).astype(bool))


def private_homogeneous(
    federation: Federation, level: Fraction, m: int, delta: float, sigma: float = 0.0
) -> int | None:
    """The edge from which on more than m + v clients' noisy counts would be rarer than gamma.

    As `homogeneous_threshold`, with P(Bin(n_k, level + 2 sigma) + noise >= c_k) in place of the
    binomial tail: the noise costs nothing but its own spread.
    """
    n_clients = federation.n_clients
    counts = PrivateCounts(federation)
    counts.require_sizes("pac-homogeneous")
    gamma, votes = homogeneous_votes(n_clients, m, check_delta(delta))
    if not 0 <= sigma <= 1:
        raise RobfcpError(f"heterogeneity: {sigma} is not between 0 and 1; give 0.02, say")
    probability = float(level) + 2 * sigma
    if probability >= 1:
        return None
    holds = np.zeros(federation.grid.n_bins, dtype=bool)
    for edge in range(len(holds)):
        silent = counts.silent(edge)
        pairs = [
            (0, 0.0)
            if silent[k]
            else least_noisy_count(int(size), probability, gamma, counts.own_noise(k, edge))
            for k, size in enumerate(counts.sizes)
        ]
        needed, chances = np.array([n for n, _ in pairs]), np.array([c for _, c in pairs])
        attained = float(np.sort(chances)[m:].mean())
        required = m + min(votes, allowed_errors(n_clients - m, attained, delta)) + 1
        voting = ~silent & (counts.halves[:, edge] >= needed)
        holds[edge] = int(voting.sum()) >= required
    return edge_after_last_failure(holds)
