"""Dropping clients that cannot be benign, if a bound on how benign clients differ is stated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp.federation import Federation
from robfcp.guarantees.engine import check_budget, check_delta, check_sigma, counts_of
from robfcp.guarantees.tails import kl_lower

_CLIENTS = 4096  # whose median CDF places them
PRUNING_SHARE = 0.2  # of a certificate's chance of failure, where clients are pruned first
_EDGES = 128  # edges looked at; all are paid for in the union bound, so the choice is free

Shares = NDArray[np.float64]


@dataclass(frozen=True)
class Exclusion:
    """One dropped client, the edge that gave it away and its interval there."""

    client: str
    edge: int
    low: float
    high: float


class Pruning(NamedTuple):
    """Who is kept (K,), the liars that may remain, who was dropped and why.

    `refuted` where no set of K - m clients agrees within sigma.
    """

    kept: NDArray[np.bool_]
    m: int
    exclusions: tuple[Exclusion, ...]
    refuted: bool = False


@dataclass(frozen=True)
class HeterogeneityEstimate:
    """What the reports suggest for sigma; an estimate, liars included, never used by itself.

    `at_least`: a smaller sigma contradicts the reports at the stated confidence. `observed`: the
    K - m closest clients' largest Kolmogorov distance to the median CDF. `by_chance`: what
    identical clients of these sizes would show. `suggested`: observed beyond chance.
    """

    at_least: float
    observed: float
    by_chance: float
    suggested: float
    confidence: float
    label: str = "estimate from the reports, liars included; not a bound"


def client_intervals(
    below: NDArray[np.int64], sizes: NDArray[np.int64], miss: float
) -> tuple[Shares, Shares]:
    """(K, E) Clopper-Pearson ends for each client's share, each interval missed w.p. <= miss."""
    from scipy.special import betaincinv

    unit = int(np.max(sizes)) + 1
    keys, where = np.unique(below + unit * np.asarray(sizes)[:, None], return_inverse=True)
    size, count = np.divmod(keys, unit)
    low, high = np.zeros(len(count)), np.ones(len(count))
    some, less = count > 0, count < size
    low[some] = betaincinv(count[some], size[some] - count[some] + 1, miss / 2)
    high[less] = betaincinv(count[less] + 1, size[less] - count[less], 1 - miss / 2)
    return low[where], high[where]


def agreeing(low: Shares, high: Shares, quorum: int) -> NDArray[np.bool_]:
    """(E, K) whether each client's interval holds a point that >= quorum intervals share."""
    n_edges, n_clients = low.shape
    order = np.argsort(np.concatenate([low, high], axis=1), axis=1, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(2 * n_clients)[None, :], axis=1)
    depth = np.cumsum(np.where(order < n_clients, 1, -1), axis=1)
    shared = np.concatenate(
        [np.zeros((n_edges, 1), dtype=np.int64), np.cumsum(depth >= quorum, axis=1)], axis=1
    )
    start, end = place[:, :n_clients], place[:, n_clients:]
    inside = np.take_along_axis(shared, end, axis=1) - np.take_along_axis(shared, start, axis=1)
    return inside > 0


def prune(
    federation: Federation,
    m: int,
    sigma: float,
    beta: float,
    intervals: ClientIntervals | None = None,
) -> Pruning:
    """Drop clients that cannot be benign if all benign CDFs lie within sigma of a common one.

    With probability >= 1 - beta no benign client is dropped: then at most the remaining m lie.
    Nobody is dropped where the reports refute sigma and m themselves. `intervals` are those of
    this beta, where somebody keeps them for several m and sigma.
    """
    m, sigma = check_budget(m, federation.n_clients), check_sigma(sigma)
    known = ClientIntervals(federation, beta) if intervals is None else intervals
    low, high, edges = known.low - sigma, known.high + sigma, known.edges
    kept = np.ones(federation.n_clients, dtype=bool)
    exclusions: list[Exclusion] = []
    quorum = federation.n_clients - m
    while True:
        agrees = agreeing(low[:, kept], high[:, kept], quorum)
        if not agrees.any(axis=1).all():
            everyone = np.ones(federation.n_clients, dtype=bool)
            return Pruning(everyone, m, (), refuted=True)
        outside = np.flatnonzero(kept)[~agrees.all(axis=0)]
        if not outside.size:
            return Pruning(kept, m - len(exclusions), tuple(exclusions))
        position = np.argmin(agrees[:, ~agrees.all(axis=0)], axis=0)
        exclusions += [
            Exclusion(federation.ids[k], int(edges[e]), float(low[e, k]), float(high[e, k]))
            for k, e in zip(outside, position, strict=True)
        ]
        kept[outside] = False


class ClientIntervals:
    """(E, K) interval ends for every client's share, at the edges looked at.

    All hold at once with probability >= 1 - beta; taken once, they serve every m and sigma. Edges
    that were fixed before the reports are paid for alone.
    """

    def __init__(
        self, federation: Federation, beta: float, edges: NDArray[np.intp] | None = None
    ) -> None:
        self.ids = federation.ids
        self.beta = check_delta(beta)
        self.edges = _informative_edges(federation) if edges is None else edges
        bounds = counts_of(federation)
        bounds.require_sizes("alike")
        looked_at = federation.grid.n_bins - 1 if edges is None else len(edges)
        miss = self.beta / (federation.n_clients * max(1, looked_at))
        noise, sampling = bounds.split(miss, 0.5)
        lowest, highest = bounds.each(self.edges, noise / 2)
        if federation.unit > 1:  # losses: P(mean gain <= x) <= exp(-n kl(x, its expectation))
            share, radius = lowest / federation.masses, np.log(2 / sampling) / bounds.sizes
            self.low, self.high = kl_lower(share, radius), 1 - kl_lower(1 - share, radius)
            return
        low, high = client_intervals(lowest.T, bounds.sizes, sampling)
        if highest is not lowest:
            _, high = client_intervals(highest.T, bounds.sizes, sampling)
        self.low, self.high = np.ascontiguousarray(low.T), np.ascontiguousarray(high.T)


def _informative_edges(federation: Federation) -> NDArray[np.intp]:
    """At most 128 edges below the top, evenly spread over the median CDF of some 4096 clients."""
    n_inner = federation.grid.n_bins - 1
    if n_inner <= _EDGES:
        return np.arange(n_inner)
    some = np.zeros(federation.n_clients, dtype=bool)
    some[:: max(1, federation.n_clients // _CLIENTS)] = True
    chosen = federation.subset(some)
    shares = chosen.cumulative()[:, :-1] / chosen.sizes[:, None]
    centre = np.maximum.accumulate(np.median(shares, axis=0))
    return np.unique(np.searchsorted(centre, np.arange(_EDGES) / _EDGES).clip(0, n_inner - 1))


def estimate_heterogeneity(
    federation: Federation, m: int, confidence: float = 0.95
) -> HeterogeneityEstimate:
    """What sigma the reports themselves suggest if at most m clients lie; an estimate."""
    m = check_budget(m, federation.n_clients)
    beta = check_delta(1 - confidence)
    federation = federation.comparable()
    edges = _informative_edges(federation)
    shares = federation.map(
        lambda block: block.projected().cumulative(edges) / block.sizes[:, None]
    )
    distances = np.abs(shares - np.median(shares, axis=0)).max(axis=1)
    benign = federation.n_clients - m
    observed = float(np.sort(distances)[benign - 1])
    chance = np.sqrt(np.log(2 * federation.n_clients) / (2 * federation.sizes))
    chance = np.hypot(chance, _noise_by_chance(federation))
    by_chance = float(np.sort(chance)[benign - 1])
    at_least = _least_unrefuted(federation, m, beta) if federation.sizes_known else 0.0
    suggested = max(at_least, observed - by_chance, 0.0)
    return HeterogeneityEstimate(at_least, observed, by_chance, suggested, confidence)


def _noise_by_chance(federation: Federation) -> Shares:
    """(K,) what the noise does to a client's cumulative shares: a bridge of H steps."""
    steps = federation.variances * federation.grid.n_bins / 4
    result: Shares = np.sqrt(2 * np.log(2 * federation.n_clients) * steps) / federation.sizes
    return result


def least_liars(federation: Federation, sigma: float, confidence: float = 0.95) -> int:
    """How many clients, at least, are not as alike as stated, with this confidence.

    K less the greatest number of clients whose intervals, widened by sigma, share a point at every
    edge: the honest ones all do, with probability >= `confidence`.
    """
    intervals = ClientIntervals(federation, 1 - confidence)
    low, high = intervals.low - check_sigma(sigma), intervals.high + sigma
    ends = np.concatenate([low, high], axis=1)
    order = np.argsort(ends, axis=1, kind="stable")
    depth = np.cumsum(np.where(order < federation.n_clients, 1, -1), axis=1)
    return federation.n_clients - int(depth.max(axis=1).min(initial=federation.n_clients))


def _least_unrefuted(federation: Federation, m: int, beta: float) -> float:
    """The least sigma (to 1/1024) at which K - m clients agree at every edge."""
    intervals = ClientIntervals(federation, beta)
    low, high = intervals.low, intervals.high
    quorum = federation.n_clients - m
    floor, ceiling = 0, 1024
    while floor < ceiling:
        middle = (floor + ceiling) // 2
        agrees = agreeing(low - middle / 1024, high + middle / 1024, quorum)
        floor, ceiling = (floor, middle) if agrees.any(axis=1).all() else (middle + 1, ceiling)
    return floor / 1024
