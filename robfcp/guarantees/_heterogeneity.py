"""Dropping clients that cannot be benign, if a bound on how benign clients differ is declared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from robfcp._typing import BoolArray, FloatArray, IndexArray, IntArray
from robfcp.federation import Federation
from robfcp.guarantees._checks import check_delta, check_heterogeneity, check_max_malicious
from robfcp.guarantees._count_bounds import CountBounds, count_bounds
from robfcp.guarantees._tail_bounds import kl_lower
from robfcp.guarantees._worst_case import first_accepted

# Bins at which clients are compared, at most. The union bound pays for all bins, so which ones are
# compared may depend on the reports.
MAX_BINS_COMPARED = 128

# Clients, at most, of whom the median CDF is taken that the bins are spread over.
MAX_CLIENTS_OF_MEDIAN = 4096

# The least heterogeneity that is not contradicted is found to a multiple of 1 / 1024.
N_HETEROGENEITY_STEPS = 1024

# The fraction of the probability that an interval misses which is for noise, where there is any.
NOISE_FRACTION_OF_INTERVAL = 0.5


class PruningResult(NamedTuple):
    """Which clients are kept.

    Attributes
    ----------
    kept_mask : ndarray of shape (K,)
        The clients that may be benign.
    max_malicious_left : int
        How many of them may be malicious: m less the number of dropped clients.
    pruned_at : dict of str to int
        By name of each dropped client the first bin at which it was incompatible.
    is_contradicted : bool
        Whether no set of K - m clients agrees as declared; then no client is dropped.
    """

    kept_mask: BoolArray
    max_malicious_left: int
    pruned_at: dict[str, int]
    is_contradicted: bool = False


@dataclass(frozen=True)
class HeterogeneityEstimate:
    """What the reports suggest for the heterogeneity: an estimate, never used by itself.

    Attributes
    ----------
    lower_bound : float
        A smaller heterogeneity contradicts the reports, at the stated confidence.
    observed : float
        The largest Kolmogorov distance of the K - m closest clients to the median CDF.
    expected_by_chance : float
        The distance that identical clients of these sizes would show.
    recommended : float
        The distance that is observed beyond chance, and at least the lower bound.
    confidence : float
        The confidence of the lower bound.
    label : str
        That it is no bound.
    """

    lower_bound: float
    observed: float
    expected_by_chance: float
    recommended: float
    confidence: float
    label: str = "estimate from all reports, malicious ones included; not a bound"


def client_cdf_intervals(
    cumulative: IntArray, sizes: IntArray, delta: float
) -> tuple[FloatArray, FloatArray]:
    """Return Clopper-Pearson intervals for the clients' CDFs.

    Parameters
    ----------
    cumulative : ndarray of shape (K, E)
        The counts up to each bin, from 0 to n_k: whole samples, not units nor parts of a loss, as
        they must be binomial.
    sizes : ndarray of shape (K,)
        n_k, exact and positive.
    delta : float
        The probability with which each interval misses, half of it on each side.

    Returns
    -------
    tuple of ndarray of shape (K, E)
        Lower and upper ends.
    """
    from scipy.special import betaincinv

    # Many clients have the same count of the same size: each pair is computed once. Counts are less
    # than the base, so a key states both.
    key_base = int(np.max(sizes)) + 1
    keys = cumulative + key_base * np.asarray(sizes)[:, None]
    distinct_keys, key_indices = np.unique(keys, return_inverse=True)
    size, count = np.divmod(distinct_keys, key_base)

    low = np.zeros(len(count))
    high = np.ones(len(count))
    count_above = size - count
    has_low = count > 0
    low[has_low] = betaincinv(count[has_low], count_above[has_low] + 1, delta / 2)
    has_high = count_above > 0
    high[has_high] = betaincinv(count[has_high] + 1, count_above[has_high], 1 - delta / 2)
    return low[key_indices], high[key_indices]


def _interval_depths(low: FloatArray, high: FloatArray) -> tuple[IndexArray, IntArray]:
    """Return how many intervals hold the points between their ends.

    Parameters
    ----------
    low, high : ndarray of shape (E, K)
        The ends of K intervals at each bin.

    Returns
    -------
    tuple of ndarray of shape (E, 2 K)
        The order of all ends, those of `low` numbered 0 to K - 1 and those of `high` K to 2 K - 1;
        how many intervals hold a point right after each end in that order.
    """
    # Stable, so that at a tie lower ends come first: intervals are closed.
    order = np.argsort(np.concatenate([low, high], axis=1), axis=1, kind="stable")
    is_lower_end = order < low.shape[1]
    return order, np.cumsum(np.where(is_lower_end, 1, -1), axis=1)


def compatible_clients(low: FloatArray, high: FloatArray, quorum: int) -> BoolArray:
    """Return (E, K) whether each client's interval holds a point that many intervals share.

    Parameters
    ----------
    low, high : ndarray of shape (E, K)
        The clients' closed intervals at each bin.
    quorum : int
        How many intervals must hold the point, the client's own among them.
    """
    # positions[e, i] is where end i stands in the order: the inverse of the permutation.
    n_clients = low.shape[1]
    order, depths = _interval_depths(low, high)
    positions = np.empty_like(order)
    np.put_along_axis(positions, order, np.arange(2 * n_clients)[None, :], axis=1)

    # How many such points there are before each end: an interval holds one if there are more of
    # them before its upper end than before its lower one.
    is_shared = depths >= quorum
    # (E, 2 K + 1): before each place in the order.
    n_shared_before = np.pad(np.cumsum(is_shared, axis=1, dtype=np.int64), ((0, 0), (1, 0)))
    n_before_ends = np.take_along_axis(n_shared_before, positions, axis=1)
    n_before_low = n_before_ends[:, :n_clients]
    n_before_high = n_before_ends[:, n_clients:]
    return np.asarray(n_before_high > n_before_low)


def prune_clients(
    federation: Federation, max_malicious: int, heterogeneity: float, beta: float
) -> PruningResult:
    """Drop clients that cannot be benign if all benign CDFs lie within sigma of a common one.

    Under a loss: all mean losses, at every lambda. With probability >= 1 - beta no benign client is
    dropped: then of those that remain at most m less the number of dropped ones are malicious. None
    is dropped where the reports contradict sigma and m themselves (docs/theory.md, section 7,
    theorem E).

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    max_malicious : int
        m.
    heterogeneity : float
        sigma.
    beta : float
        The probability with which a benign client is dropped.
    """
    n_clients = federation.n_clients
    max_malicious = check_max_malicious(max_malicious, n_clients)
    heterogeneity = check_heterogeneity(heterogeneity)
    intervals = ClientIntervals(federation, beta)
    low = intervals.low - heterogeneity
    high = intervals.high + heterogeneity

    kept_mask = np.ones(n_clients, dtype=bool)
    pruned_at: dict[str, int] = {}
    # The K - m benign clients share a point at every bin. Without a dropped client others may no
    # longer share a point with so many, hence several passes.
    while True:
        is_compatible = compatible_clients(
            low[:, kept_mask], high[:, kept_mask], n_clients - max_malicious
        )
        if not is_compatible.any(axis=1).all():
            all_clients = np.ones_like(kept_mask)
            return PruningResult(all_clients, max_malicious, {}, is_contradicted=True)
        is_dropped = ~is_compatible.all(axis=0)
        if not is_dropped.any():
            return PruningResult(kept_mask, max_malicious - len(pruned_at), pruned_at)

        dropped_clients = np.flatnonzero(kept_mask)[is_dropped]
        first_rows = np.argmin(is_compatible[:, is_dropped], axis=0)  # the first False of each
        for client, row in zip(dropped_clients, first_rows, strict=True):
            pruned_at[federation.clients[client]] = int(intervals.bins[row])
        kept_mask[dropped_clients] = False


class ClientIntervals:
    """Intervals for every client's CDF, or mean gains under a loss, at the bins compared.

    All of them hold at once with probability >= 1 - beta; taken once, they serve every m and sigma.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    beta : float
        The probability with which any interval misses.

    Attributes
    ----------
    bins : ndarray of shape (E,)
        The bins compared, rising; never the last one, where every CDF is 1.
    low, high : ndarray of shape (E, K)
        The ends of the intervals, fractions.
    """

    def __init__(self, federation: Federation, beta: float) -> None:
        self.bins = _informative_bins(federation)
        bounds = count_bounds(federation)
        bounds.require_sizes("heterogeneity")

        # Bonferroni: all intervals hold at once, also those of bins that are not looked at.
        n_inner_bins = federation.binning.n_bins - 1
        delta = check_delta(beta) / (federation.n_clients * max(1, n_inner_bins))
        noise_delta, sampling_delta = bounds.split_delta(delta, NOISE_FRACTION_OF_INTERVAL)
        # Each of the two bounds fails with its own probability.
        lowest, highest = bounds.per_client(self.bins, noise_delta / 2)
        if federation.counts_per_sample > 1:
            self.low, self.high = _loss_intervals(bounds, lowest, highest, sampling_delta)
        else:
            self.low, self.high = _cdf_intervals(bounds, lowest, highest, sampling_delta)

    def n_incompatible(self, heterogeneity: float) -> int:
        """Return how many clients, at least, are not within sigma of a common CDF.

        With probability >= 1 - beta: K less the largest number of clients whose widened intervals
        share a point at every bin (docs/theory.md, section 7, "How many are not as alike as
        declared").

        Parameters
        ----------
        heterogeneity : float
            sigma.
        """
        heterogeneity = check_heterogeneity(heterogeneity)
        # At most as many clients are compatible as share a point at the bin where fewest do.
        _, depths = _interval_depths(self.low - heterogeneity, self.high + heterogeneity)
        n_clients = self.low.shape[1]
        return n_clients - int(depths.max(axis=1).min(initial=n_clients))


def _cdf_intervals(
    bounds: CountBounds, lowest: IntArray, highest: IntArray, delta: float
) -> tuple[FloatArray, FloatArray]:
    """Return (E, K) intervals for the clients' CDFs.

    Parameters
    ----------
    bounds : CountBounds
        For the sample sizes, which must be known.
    lowest, highest : ndarray of shape (E, K)
        What the counts are at least and at most, in whole samples.
    delta : float
        The probability with which each interval misses.
    """
    # The lower end for the least counts and the upper end for the largest ones.
    low, high = client_cdf_intervals(lowest.T, bounds.sizes, delta)
    if not np.array_equal(lowest, highest):
        _, high = client_cdf_intervals(highest.T, bounds.sizes, delta)
    return np.ascontiguousarray(low.T), np.ascontiguousarray(high.T)


def _loss_intervals(
    bounds: CountBounds, lowest: IntArray, highest: IntArray, delta: float
) -> tuple[FloatArray, FloatArray]:
    """Return (E, K) intervals for the clients' mean gains, the gain of a loss l being 1 - l.

    Losses are in [0, 1] here, in multiples of the largest loss. P(mean gain >= x) <= exp(-n kl(x,
    its expectation)) for x above the expectation (docs/theory.md, section 9), and likewise below.

    Parameters
    ----------
    bounds : CountBounds
        For the sample sizes, which must be known.
    lowest, highest : ndarray of shape (E, K)
        What the counts are at least and at most, in parts of a loss (whole counts, not units).
    delta : float
        The probability with which each interval misses.
    """
    # Counts are divided by what they sum to; the radius is in samples, which are independent.
    total_counts = bounds.federation.total_counts
    radius = np.log(2 / delta) / bounds.sizes
    low = kl_lower(lowest / total_counts, radius)
    high = 1 - kl_lower(1 - highest / total_counts, radius)
    return low, high


def _informative_bins(federation: Federation) -> IndexArray:
    """Return the inner bins that are looked at: all, or some spread evenly over the median CDF."""
    n_inner_bins = federation.binning.n_bins - 1
    if n_inner_bins <= MAX_BINS_COMPARED:
        return np.arange(n_inner_bins)
    is_sampled = np.zeros(federation.n_clients, dtype=bool)
    is_sampled[:: max(1, federation.n_clients // MAX_CLIENTS_OF_MEDIAN)] = True
    sampled = federation.select(is_sampled)
    cdfs = sampled.cumulative_counts()[:, :-1] / sampled.total_counts[:, None]
    # Noise may make it fall, and the search below needs it sorted.
    median_cdf = np.maximum.accumulate(np.median(cdfs, axis=0))
    quantiles = np.arange(MAX_BINS_COMPARED) / MAX_BINS_COMPARED
    return np.unique(np.searchsorted(median_cdf, quantiles).clip(0, n_inner_bins - 1))


def estimate_heterogeneity(
    federation: Federation, max_malicious: int, confidence: float = 0.95
) -> HeterogeneityEstimate:
    """Estimate how far benign clients' score distributions lie apart.

    The heterogeneity is the largest Kolmogorov distance sup_t |F_k(t) - F(t)| of a benign client's
    CDF F_k from a common one F. The reports of malicious clients enter the estimate, so that it is
    no bound.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    max_malicious : int
        m: so many of the most distant clients are disregarded.
    confidence : float, default=0.95
        The confidence of the lower bound.
    """
    max_malicious = check_max_malicious(max_malicious, federation.n_clients)
    beta = check_delta(1 - confidence)
    sample_federation = federation.as_sample_counts()
    distances = _distances_to_median(sample_federation)
    chance_distances = _distances_by_chance(federation)

    # Without the m largest, the largest that remains.
    observed = float(np.sort(distances)[-1 - max_malicious])
    by_chance = float(np.sort(chance_distances)[-1 - max_malicious])

    # Intervals need the true sample sizes.
    lower_bound = 0.0
    if federation.has_noise and federation.sizes_known:
        # Losses as samples no longer state their noise, which intervals must allow for.
        lower_bound = _least_heterogeneity(federation, max_malicious, beta)
    elif federation.sizes_known:
        lower_bound = _least_heterogeneity(sample_federation, max_malicious, beta)
    recommended = max(lower_bound, observed - by_chance, 0.0)
    return HeterogeneityEstimate(lower_bound, observed, by_chance, recommended, confidence)


def _distances_to_median(federation: Federation) -> FloatArray:
    """Return (K,) the clients' Kolmogorov distances to the median CDF, on the bins compared.

    Parameters
    ----------
    federation : Federation
        The reports, with one count a sample.
    """
    bins = _informative_bins(federation)

    def cdfs_of_block(block: Federation) -> FloatArray:
        cumulative = block.projected_to_simplex().cumulative_counts(bins)
        return np.asarray(cumulative / block.sample_sizes[:, None])

    cdfs = federation.map_blocks(cdfs_of_block)
    return np.asarray(np.abs(cdfs - np.median(cdfs, axis=0)).max(axis=1))


def _distances_by_chance(federation: Federation) -> FloatArray:
    """Return (K,) the distances that sampling and noise alone produce.

    By the inequality of Dvoretzky, Kiefer and Wolfowitz P(sup |F_n - F| > x) <= 2 exp(-2 n x^2), so
    that x^2 = ln(2 K) / (2 n) bounds a client's distance with probability 1 - 1 / K. Noise of
    variance v, in samples squared, on each of H bins adds a random bridge, whose variance is at
    most H v / 4: that adds 2 ln(2 K) (H v / 4) / n^2 to x^2.

    Parameters
    ----------
    federation : Federation
        The reports as sent, which state their noise.
    """
    sizes = federation.sample_sizes
    log_term = np.log(2 * federation.n_clients)
    # Where a sample has several counts, the variances are in counts, not in samples.
    noise_variances = federation.noise_variances / federation.counts_per_sample**2
    bridge_variances = noise_variances * federation.binning.n_bins / 4
    return np.sqrt(log_term * (0.5 + 2 * bridge_variances / sizes) / sizes)


def _least_heterogeneity(federation: Federation, max_malicious: int, beta: float) -> float:
    """Return the least heterogeneity at which K - m clients agree at every bin.

    Parameters
    ----------
    federation : Federation
        The reports; their sample sizes must be known.
    max_malicious : int
        m.
    beta : float
        The probability with which it is more than that of the benign clients.

    Returns
    -------
    float
        A multiple of 1 / N_HETEROGENEITY_STEPS in [0, 1]; 1 if none below does.
    """
    intervals = ClientIntervals(federation, beta)

    def is_possible(step: int) -> bool:
        return intervals.n_incompatible(step / N_HETEROGENEITY_STEPS) <= max_malicious

    # Possible at one step means possible at all larger ones, as intervals only widen.
    first_step = first_accepted(N_HETEROGENEITY_STEPS, is_possible)
    return 1.0 if first_step is None else first_step / N_HETEROGENEITY_STEPS
