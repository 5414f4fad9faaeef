"""Dropping clients that cannot be benign, if a bound on how benign clients differ is stated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp.federation import Federation
from robfcp.guarantees import _worst_case
from robfcp.guarantees._tail_bounds import kl_lower
from robfcp.guarantees._worst_case import (
    BoolArray,
    FloatArray,
    IntArray,
    check_delta,
    check_max_malicious,
)

_CLIENTS = 4096  # whose median CDF places them
_EDGES = 128  # edges looked at; all are paid for in the union bound, so the choice is free
_STEPS = 1024  # of the least sigma


class PruningResult(NamedTuple):
    """Who is kept (K,), the liars that may remain, who was dropped and the edge that showed it.

    `is_contradicted` where no set of K - m clients agrees within sigma.
    """

    kept_mask: BoolArray
    max_malicious_left: int
    pruned_at: dict[str, int]
    is_contradicted: bool = False


@dataclass(frozen=True)
class HeterogeneityEstimate:
    """What the reports suggest for sigma; an estimate, liars included, never used by itself.

    `at_least`: a smaller sigma contradicts the reports at the stated confidence. `observed`: the
    K - m closest clients' largest Kolmogorov distance to the median CDF. `by_chance`: what
    identical clients of these sizes would show. `suggested`: observed beyond chance.
    """

    lower_bound: float
    observed: float
    expected_by_chance: float
    recommended: float
    confidence: float
    label: str = "estimate from the reports, liars included; not a bound"


def client_cdf_intervals(
    below: IntArray, sizes: IntArray, miss: float
) -> tuple[FloatArray, FloatArray]:
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


def _depths(low: FloatArray, high: FloatArray) -> tuple[IntArray, IntArray]:
    """(E, 2 K) the ends of K intervals in their order, and how many hold the point after each."""
    order = np.argsort(np.concatenate([low, high], axis=1), axis=1, kind="stable")
    return order, np.cumsum(np.where(order < low.shape[1], 1, -1), axis=1)


def compatible_clients(low: FloatArray, high: FloatArray, quorum: int) -> BoolArray:
    """(E, K) whether each client's interval holds a point that >= quorum intervals share."""
    (order, depth), n_clients = _depths(low, high), low.shape[1]
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(2 * n_clients)[None, :], axis=1)
    shared = np.pad(np.cumsum(depth >= quorum, axis=1, dtype=np.int64), ((0, 0), (1, 0)))
    before = np.take_along_axis(shared, place, axis=1)
    return np.asarray(before[:, n_clients:] > before[:, :n_clients])


def prune_clients(
    federation: Federation, max_malicious: int, heterogeneity: float, beta: float
) -> PruningResult:
    """Drop clients that cannot be benign if all benign CDFs lie within sigma of a common one.

    With probability >= 1 - beta no benign client is dropped: then at most the remaining m lie.
    Nobody is dropped where the reports refute sigma and m themselves.
    """
    max_malicious, heterogeneity = (
        check_max_malicious(max_malicious, federation.n_clients),
        _worst_case.check_heterogeneity(heterogeneity),
    )
    known = ClientIntervals(federation, beta)
    low, high = known.low - heterogeneity, known.high + heterogeneity
    kept, dropped = np.ones(federation.n_clients, dtype=bool), dict[str, int]()
    while True:
        agrees = compatible_clients(
            low[:, kept], high[:, kept], federation.n_clients - max_malicious
        )
        if not agrees.any(axis=1).all():
            return PruningResult(np.ones_like(kept), max_malicious, {}, is_contradicted=True)
        outside = np.flatnonzero(kept)[~agrees.all(axis=0)]
        if not outside.size:
            return PruningResult(kept, max_malicious - len(dropped), dropped)
        places = known.edges[np.argmin(agrees[:, ~agrees.all(axis=0)], axis=0)]
        dropped |= {federation.clients[k]: int(e) for k, e in zip(outside, places, strict=True)}
        kept[outside] = False


class ClientIntervals:
    """(E, K) interval ends for every client's share, at the edges looked at.

    All hold at once with probability >= 1 - beta; taken once, they serve every m and sigma.
    """

    def __init__(self, federation: Federation, beta: float) -> None:
        self.edges = _informative_bins(federation)
        bounds = _worst_case.count_bounds(federation)
        bounds.require_sizes("alike")
        n_inner_edges = federation.binning.n_bins - 1
        miss = check_delta(beta) / (federation.n_clients * max(1, n_inner_edges))
        noise, sampling = bounds.split(miss, 0.5)
        lowest, highest = bounds.per_client(self.edges, noise / 2)
        if (
            federation.counts_per_sample > 1
        ):  # losses: P(mean gain <= x) <= exp(-n kl(x, its expectation))
            low, high = (side / federation.total_counts for side in (lowest, highest))
            radius = np.log(2 / sampling) / bounds.sizes
            self.low, self.high = kl_lower(low, radius), 1 - kl_lower(1 - high, radius)
            return
        low, high = client_cdf_intervals(lowest.T, bounds.sizes, sampling)
        if highest is not lowest:
            _, high = client_cdf_intervals(highest.T, bounds.sizes, sampling)
        self.low, self.high = np.ascontiguousarray(low.T), np.ascontiguousarray(high.T)

    def n_incompatible(self, heterogeneity: float) -> int:
        """How many clients, at least, are not within sigma of a common CDF, w.p. >= 1 - beta.

        K less the greatest number whose widened intervals share a point at every edge.
        """
        _, depth = _depths(
            self.low - _worst_case.check_heterogeneity(heterogeneity), self.high + heterogeneity
        )
        n_clients = self.low.shape[1]
        return n_clients - int(depth.max(axis=1).min(initial=n_clients))


def _informative_bins(federation: Federation) -> NDArray[np.intp]:
    """At most 128 edges below the top, evenly spread over the median CDF of some 4096 clients."""
    n_inner = federation.binning.n_bins - 1
    if n_inner <= _EDGES:
        return np.arange(n_inner)
    some = np.zeros(federation.n_clients, dtype=bool)
    some[:: max(1, federation.n_clients // _CLIENTS)] = True
    chosen = federation.select(some)
    shares = chosen.cumulative_counts()[:, :-1] / chosen.sample_sizes[:, None]
    centre = np.maximum.accumulate(np.median(shares, axis=0))
    return np.unique(np.searchsorted(centre, np.arange(_EDGES) / _EDGES).clip(0, n_inner - 1))


def estimate_heterogeneity(
    federation: Federation, max_malicious: int, confidence: float = 0.95
) -> HeterogeneityEstimate:
    """What sigma the reports themselves suggest if at most m clients lie; an estimate."""
    max_malicious, beta = (
        check_max_malicious(max_malicious, federation.n_clients),
        check_delta(1 - confidence),
    )
    federation = federation.as_sample_counts()
    edges, sizes, twice = (
        _informative_bins(federation),
        federation.sample_sizes,
        2 * federation.n_clients,
    )
    shares = federation.map_blocks(
        lambda block: (
            block.projected_to_simplex().cumulative_counts(edges) / block.sample_sizes[:, None]
        )
    )
    distances = np.abs(shares - np.median(shares, axis=0)).max(axis=1)
    noise = federation.noise_variances * federation.binning.n_bins / 4  # a bridge of H steps
    chance = np.sqrt(np.log(twice) * (0.5 + 2 * noise / sizes) / sizes)
    observed, by_chance = (float(np.sort(one)[-1 - max_malicious]) for one in (distances, chance))
    at_least = 0.0
    if federation.sizes_known:  # the least at which K - m clients agree at every edge
        known = ClientIntervals(federation, beta)
        least = _worst_case.first_accepted(
            _STEPS, lambda step: known.n_incompatible(step / _STEPS) <= max_malicious
        )
        at_least = 1.0 if least is None else least / _STEPS
    suggested = max(at_least, observed - by_chance, 0.0)
    return HeterogeneityEstimate(at_least, observed, by_chance, suggested, confidence)
