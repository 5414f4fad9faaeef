"""Dropping clients that cannot be benign, if a bound on how benign clients differ is stated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp.federation import Federation
from robfcp.guarantees import engine
from robfcp.guarantees.engine import Mask, Shares, Whole, check_budget, check_delta
from robfcp.guarantees.tails import kl_lower

_CLIENTS = 4096  # whose median CDF places them
_EDGES = 128  # edges looked at; all are paid for in the union bound, so the choice is free
_STEPS = 1024  # of the least sigma


class Pruning(NamedTuple):
    """Who is kept (K,), the liars that may remain, who was dropped and the edge that showed it.

    `refuted` where no set of K - m clients agrees within sigma.
    """

    kept: Mask
    m: int
    dropped: dict[str, int]
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


def client_intervals(below: Whole, sizes: Whole, miss: float) -> tuple[Shares, Shares]:
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


def _depths(low: Shares, high: Shares) -> tuple[Whole, Whole]:
    """(E, 2 K) the ends of K intervals in their order, and how many hold the point after each."""
    order = np.argsort(np.concatenate([low, high], axis=1), axis=1, kind="stable")
    return order, np.cumsum(np.where(order < low.shape[1], 1, -1), axis=1)


def agreeing(low: Shares, high: Shares, quorum: int) -> Mask:
    """(E, K) whether each client's interval holds a point that >= quorum intervals share."""
    (order, depth), n_clients = _depths(low, high), low.shape[1]
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(2 * n_clients)[None, :], axis=1)
    shared = np.pad(np.cumsum(depth >= quorum, axis=1, dtype=np.int64), ((0, 0), (1, 0)))
    before = np.take_along_axis(shared, place, axis=1)
    return np.asarray(before[:, n_clients:] > before[:, :n_clients])


def prune(federation: Federation, m: int, sigma: float, beta: float) -> Pruning:
    """Drop clients that cannot be benign if all benign CDFs lie within sigma of a common one.

    With probability >= 1 - beta no benign client is dropped: then at most the remaining m lie.
    Nobody is dropped where the reports refute sigma and m themselves.
    """
    m, sigma = check_budget(m, federation.n_clients), engine.check_sigma(sigma)
    known = ClientIntervals(federation, beta)
    low, high = known.low - sigma, known.high + sigma
    kept, dropped = np.ones(federation.n_clients, dtype=bool), dict[str, int]()
    while True:
        agrees = agreeing(low[:, kept], high[:, kept], federation.n_clients - m)
        if not agrees.any(axis=1).all():
            return Pruning(np.ones_like(kept), m, {}, refuted=True)
        outside = np.flatnonzero(kept)[~agrees.all(axis=0)]
        if not outside.size:
            return Pruning(kept, m - len(dropped), dropped)
        places = known.edges[np.argmin(agrees[:, ~agrees.all(axis=0)], axis=0)]
        dropped |= {federation.ids[k]: int(e) for k, e in zip(outside, places, strict=True)}
        kept[outside] = False


class ClientIntervals:
    """(E, K) interval ends for every client's share, at the edges looked at.

    All hold at once with probability >= 1 - beta; taken once, they serve every m and sigma.
    """

    def __init__(self, federation: Federation, beta: float) -> None:
        self.edges = _informative_edges(federation)
        bounds = engine.counts_of(federation)
        bounds.require_sizes("alike")
        n_inner_edges = federation.grid.n_bins - 1
        miss = check_delta(beta) / (federation.n_clients * max(1, n_inner_edges))
        noise, sampling = bounds.split(miss, 0.5)
        lowest, highest = bounds.each(self.edges, noise / 2)
        if federation.unit > 1:  # losses: P(mean gain <= x) <= exp(-n kl(x, its expectation))
            low, high = (side / federation.masses for side in (lowest, highest))
            radius = np.log(2 / sampling) / bounds.sizes
            self.low, self.high = kl_lower(low, radius), 1 - kl_lower(1 - high, radius)
            return
        low, high = client_intervals(lowest.T, bounds.sizes, sampling)
        if highest is not lowest:
            _, high = client_intervals(highest.T, bounds.sizes, sampling)
        self.low, self.high = np.ascontiguousarray(low.T), np.ascontiguousarray(high.T)

    def unlike(self, sigma: float) -> int:
        """How many clients, at least, are not within sigma of a common CDF, w.p. >= 1 - beta.

        K less the greatest number whose widened intervals share a point at every edge.
        """
        _, depth = _depths(self.low - engine.check_sigma(sigma), self.high + sigma)
        n_clients = self.low.shape[1]
        return n_clients - int(depth.max(axis=1).min(initial=n_clients))


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
    m, beta = check_budget(m, federation.n_clients), check_delta(1 - confidence)
    federation = federation.comparable()
    edges, sizes, twice = _informative_edges(federation), federation.sizes, 2 * federation.n_clients
    shares = federation.map(
        lambda block: block.projected().cumulative(edges) / block.sizes[:, None]
    )
    distances = np.abs(shares - np.median(shares, axis=0)).max(axis=1)
    noise = federation.variances * federation.grid.n_bins / 4  # a bridge of H steps
    chance = np.sqrt(np.log(twice) * (0.5 + 2 * noise / sizes) / sizes)
    observed, by_chance = (float(np.sort(one)[-1 - m]) for one in (distances, chance))
    at_least = 0.0
    if federation.sizes_known:  # the least at which K - m clients agree at every edge
        known = ClientIntervals(federation, beta)
        least = engine.first_edge(_STEPS, lambda step: known.unlike(step / _STEPS) <= m)
        at_least = 1.0 if least is None else least / _STEPS
    suggested = max(at_least, observed - by_chance, 0.0)
    return HeterogeneityEstimate(at_least, observed, by_chance, suggested, confidence)
