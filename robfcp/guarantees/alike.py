"""PAC thresholds for clients declared alike: enough clients' counts must be convincing."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.federation import Federation
from robfcp.guarantees.binomials import binomial_tail, least_count
from robfcp.guarantees.budgets import check_budget, check_delta, check_sigma, check_zero_one
from robfcp.guarantees.engine import CountBounds, Edges
from robfcp.guarantees.tails import bounds_of

Rule = Callable[[int], tuple[NDArray[Any], int]]  # least convincing counts, clients required


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


def homogeneous_threshold(
    federation: Federation, level: Fraction, m: int, delta: float, sigma: float = 0.0
) -> int | None:
    """The first edge that, with probability >= 1 - delta, covers at `level` if clients are alike.

    The first edge at which enough clients' counts are convincing; None = infinite. Noise costs
    nothing but its own spread: it is part of the tail that makes a count convincing.
    """
    check_zero_one(federation.unit, "pac-homogeneous")
    bounds = bounds_of(federation)
    bounds.require_sizes("pac-homogeneous")
    rule = _rule(bounds, level, m, delta, sigma)
    if rule is None:
        return None

    def holds(edges: Edges) -> NDArray[np.bool_]:
        counts = bounds.least(edges)
        found = []
        for row, edge in zip(counts, edges, strict=True):
            needed, required = rule(int(edge))
            found.append(int((row >= needed).sum()) >= required)
        return np.array(found)

    return bounds.search(holds)


def _rule(bounds: CountBounds, level: Fraction, m: int, delta: float, sigma: float) -> Rule | None:
    """At an edge each client's least convincing count, and how many clients must reach theirs.

    Convincing: P(Bin(n_k, level + 2 sigma) >= count) <= gamma. More than m + v clients are needed.
    None where level + 2 sigma is 1 or more, which no count can show.
    """
    n_clients = len(bounds.sizes)
    gamma, votes = homogeneous_votes(n_clients, m, check_delta(delta))
    probability = float(level) + 2 * check_sigma(sigma)
    if probability >= 1:
        return None
    convincing = bounds.convincing(probability, gamma)

    def at(edge: int) -> tuple[NDArray[Any], int]:
        needed, chances = convincing(edge)
        return needed, _required(chances, n_clients, m, delta, votes)

    return at


def _required(
    chances: NDArray[np.float64], n_clients: int, m: int, delta: float, votes: int
) -> int:
    """m + v + 1, v for the K - m clients that err most often, each with its own chance."""
    benign = n_clients - m
    attained = float(np.sort(chances)[-benign:].mean())
    return m + min(votes, allowed_errors(benign, attained, delta)) + 1


def homogeneous_liars_forcing_full_sets(
    sizes: NDArray[np.int64], level: Fraction, m: int, delta: float, sigma: float = 0.0
) -> int | None:
    """The least number of liars that can keep the clients declared alike from a threshold."""
    sizes = np.asarray(sizes)
    gamma, votes = homogeneous_votes(len(sizes), m, check_delta(delta))
    probability = float(level) + 2 * check_sigma(sigma)
    if probability >= 1:
        return 0
    needed = least_count(sizes, probability, gamma, np.zeros(len(sizes), dtype=np.int64))
    chances = binomial_tail(sizes, needed, probability)
    able = int((needed <= sizes).sum())
    return max(0, able - _required(chances, len(sizes), m, delta, votes) + 1)


def allowed_errors(benign: int, chance: float, delta: float) -> int:
    """The least v >= benign * chance with P(Bin(benign, chance) > v) <= delta."""
    low = np.array([int(np.ceil(benign * chance)) + 1])
    return int(least_count(np.array([benign]), chance, delta, np.minimum(low, benign + 1))[0]) - 1
