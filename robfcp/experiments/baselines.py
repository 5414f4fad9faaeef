"""Methods of other papers, to compare with: from the reports of a round to thresholds.

Every method is written from its paper's description; no code was taken. `BASELINES` names them
all, `baseline_thresholds` runs them. Methods of this package stand there too where a defense alone
does not say what is done. In the formulas client k has n_k samples, N_k(t) of them with a score of
at most t, and alpha is 1 - level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._typing import FloatArray, IntArray
from robfcp._validation import check_integer, parse_level
from robfcp.calibration import calibrate
from robfcp.defense import characterization_vectors, mean_neighbor_distances
from robfcp.errors import RobfcpError
from robfcp.experiments.scenarios import Thresholds
from robfcp.federation import Federation
from robfcp.guarantees import (
    MarginalGuarantee,
    class_counts,
    client_thresholds,
    fcp_bin_index,
    local_threshold_range,
)

FEDCP_QQ = "fedcp-qq"

# FedCP-QQ: excess coverages this close count as equal; at most so many local orders are tried; and
# nodes of the quadrature where the distribution of the quantiles rises.
TIE_TOLERANCE = 1e-3
MAX_ORDERS_TRIED = 16
N_QUADRATURE_NODES = 64

CORESET_SIZE = 64  # GC-FCP: order statistics that a client reports of a class
PRIOR_SIZE = 19  # risk-curve shrinkage: samples that the pooled curve counts for, the paper's n0
FILTER_MARGIN = 3 * 1.4826  # PRISM-FCP: median absolute deviations; three deviations of a normal
ZCDP_BUDGET = 0.5  # P-COQS: rho of zero-concentrated differential privacy, for the whole search


@dataclass(frozen=True, eq=False)
class BaselineInput:
    """What a baseline is given to find a threshold.

    Attributes
    ----------
    federation : Federation
        The reports of all clients.
    scores : sequence of array
        The scores of each client, which a real server would not see.
    level : Fraction
        The target coverage.
    max_malicious : int
        At most so many clients are malicious; only this package's guarantees use it.
    """

    federation: Federation
    scores: Sequence[FloatArray]
    level: Fraction
    max_malicious: int

    @property
    def class_cumulative_counts(self) -> IntArray:
        """The (K, C, H) counts at or below the upper edge of each bin."""
        strata = self.federation.strata
        assert strata is not None
        shape = (self.federation.n_clients, strata.n_strata, strata.n_bins)
        return strata.table.dense().reshape(shape).cumsum(axis=2)

    def edges_reaching(self, cumulative: NDArray[np.generic], ranks: ArrayLike) -> FloatArray:
        """Return the least upper edges at which cumulative counts reach ranks.

        Parameters
        ----------
        cumulative : (..., H) array
            Counts at or below the upper edge of each bin.
        ranks : (...) array
            What they are to reach; where they do not, the edge is infinite.
        """
        is_reached = cumulative >= np.asarray(ranks)[..., None]
        upper_edges = self.federation.binning.upper_edges
        return np.where(is_reached[..., -1], upper_edges[is_reached.argmax(axis=-1)], np.inf)

    def ranks(self, sizes: IntArray) -> IntArray:
        """Return the conformal ranks ceil(level (n + 1)) of sample sizes, exactly."""
        return np.array([ceil(self.level * (int(n) + 1)) for n in sizes], np.int64)

    def local_thresholds(self) -> FloatArray:
        """Return each client's conformal threshold: the edge of its ceil(level (n_k + 1))-th score.

        Infinite where a client has fewer scores.
        """
        ranks = self.ranks(self.federation.sample_sizes)
        return self.edges_reaching(self.federation.cumulative_counts(), ranks)


Baseline = Callable[[BaselineInput], Thresholds]


def baseline_thresholds(
    name: str,
    federation: Federation,
    coverage: float,
    scores: Sequence[FloatArray],
    n_malicious: int = 0,
) -> Thresholds:
    """Return the thresholds of a baseline: one for all, (C,) one a class, or (K, C) by client too.

    Parameters
    ----------
    name : str
        A key of `BASELINES`.
    federation : Federation
        The reports of all clients, without noise.
    coverage : float
        The target coverage.
    scores : sequence of array
        The scores of each client.
    n_malicious : int
        The number of malicious clients that this package's guarantees are for.
    """
    if name not in BASELINES:
        raise RobfcpError(f"baseline: {name!r} is unknown; use one of {', '.join(BASELINES)}")
    if federation.risk is not None:
        raise RobfcpError(f"{name}: the reports hold losses; make exact reports of scores")
    if federation.has_noise:
        raise RobfcpError(f"{name}: the reports hold noise; make exact reports of scores")
    if len(scores) != federation.n_clients:
        raise RobfcpError(
            f"{name}: scores of {len(scores)} clients but {federation.n_clients} reports; give "
            "those of each client, in order"
        )
    check_integer("n_malicious", n_malicious, "give how many may be malicious")
    if n_malicious >= federation.n_clients:
        raise RobfcpError(
            f"n_malicious: {n_malicious} of {federation.n_clients} clients leave none benign"
        )

    strata = federation.strata
    all_report_classes = (
        strata is not None and strata.by == "class" and len(strata.rows) == federation.n_clients
    )
    if name in BY_CLASS and not all_report_classes:
        raise RobfcpError(
            f"{name}: not all reports hold counts by class; recreate them with "
            "stratify_by_class=True"
        )

    baseline = BASELINES[name]
    thresholds = baseline(BaselineInput(federation, scores, parse_level(coverage), n_malicious))
    if isinstance(thresholds, np.ndarray) and thresholds.ndim == 2 and thresholds.shape[1] == 1:
        n_classes = strata.n_strata if strata else 1
        return np.repeat(thresholds, n_classes, axis=1)
    return thresholds


def fedcp_qq(inputs: BaselineInput) -> float:
    """Return FedCP-QQ's threshold, that of `fedcp_qq_index`.

    Guarantees marginal coverage over all clients. Assumes that all samples are of one distribution.
    """
    return inputs.federation.threshold_at(fedcp_qq_index(inputs.federation, inputs.level))


def fedwq_cp(inputs: BaselineInput) -> float:
    """Return FedWQ-CP's threshold (arXiv 2602.23296): q = sum_k n_k q_k / sum_k n_k.

    q_k is client k's own quantile, its largest score where n_k is too small for the level; a client
    sends only q_k and n_k. Guarantees the level in the limit of many samples at each client.
    Assumes that the q_k are close to each other (a mean of quantiles is not the quantile of the
    mixture) and that all clients are benign.
    """
    federation = inputs.federation
    sizes = federation.sample_sizes
    ranks = np.minimum(inputs.ranks(sizes), sizes)
    local_quantiles = inputs.edges_reaching(federation.cumulative_counts(), ranks)
    return float(np.average(local_quantiles, weights=sizes))


def gc_fcp(inputs: BaselineInput) -> FloatArray:
    """Return GC-FCP's (C,) thresholds (arXiv 2603.14198), from merged coresets of each group.

    The groups are the classes, which do not overlap (where they do, the paper fits a quantile
    regression on their indicators). With c = `CORESET_SIZE`, a client sends c order statistics of a
    group, each standing for n_kg / c samples, so that it counts
    floor(N_kg(t) c / n_kg) n_kg / c <= N_kg(t) below t. The server adds these counts and takes the
    rank ceil(level (n_g + 1)). Guarantees the level in each group, on average over the mixture of
    the clients. Assumes that all clients are benign.
    """
    cumulative = inputs.class_cumulative_counts
    group_sizes = cumulative[..., -1]
    samples_per_point = np.maximum(group_sizes[..., None] / CORESET_SIZE, 1)
    n_points = np.floor(cumulative / samples_per_point + 1e-9)
    merged = (n_points * samples_per_point).sum(axis=0)
    return inputs.edges_reaching(merged + 1e-6, inputs.ranks(group_sizes.sum(axis=0)))


def pfwcp(inputs: BaselineInput) -> FloatArray:
    """Return PFWCP's (K, 1) thresholds (arXiv 2606.00717), means of weighted quantiles.

    For client j the samples of client k are weighted by the ratio of their densities; reports hold
    no covariates, so it is the ratio of classes, w(y) = (n_jy / n_j) / (n_ky / n_k). q_jk is k's
    weighted quantile, and q_j = sum_k e_jk q_jk / sum_k e_jk with the effective sample sizes
    e_jk = (sum w)^2 / sum w^2. Guarantees the level at each client in the limit. Assumes that
    clients differ only in what the weights see, the label distributions, and are all benign.
    """
    cumulative = inputs.class_cumulative_counts
    class_sizes = cumulative[..., -1]
    label_distributions = class_sizes / class_sizes.sum(axis=1, keepdims=True)
    weighted_sum = np.zeros(len(class_sizes))
    sum_of_weights = np.zeros(len(class_sizes))
    for client_cumulative, client_sizes in zip(cumulative, class_sizes, strict=True):
        occurs = client_sizes > 0
        class_cdfs = client_cumulative[occurs] / client_sizes[occurs, None]

        # (K,) or (K, H): what this client's samples say of each client j.
        target_distributions = label_distributions[:, occurs]
        mass = target_distributions.sum(axis=1)
        weighted_cdf = target_distributions @ class_cdfs + 1e-12
        quantiles = inputs.edges_reaching(weighted_cdf, float(inputs.level) * mass)
        squares = (target_distributions**2 / client_sizes[occurs]).sum(axis=1)
        effective_sizes = np.where(mass > 0, mass**2 / np.maximum(squares, 1e-300), 0.0)

        weighted_sum += effective_sizes * quantiles
        sum_of_weights += effective_sizes
    return (weighted_sum / sum_of_weights)[:, None]


def crc_shrinkage(inputs: BaselineInput) -> FloatArray:
    """Return the (K, 1) thresholds of risk-curve shrinkage (arXiv 2606.20115).

    They are those of `shrunken_curve` for the loss that is 1 where a set misses the label.
    Guarantees the level on average over the mixture of the clients (claimed for the pooled
    threshold; of a single client it is only measured). Assumes that all clients are benign.
    """
    federation = inputs.federation
    sizes = federation.sample_sizes
    miss_rates = 1 - federation.cumulative_counts() / sizes[:, None]
    alpha = float(1 - inputs.level)
    return shrunken_curve(miss_rates, sizes, alpha, federation.binning.upper_edges)


def shrunken_curve(
    curves: FloatArray, sizes: IntArray, alpha: float, values: FloatArray, prior: int = PRIOR_SIZE
) -> FloatArray:
    """Return the (K, 1) least values at which each client's shrunken risk is at most alpha.

    R'_k = (n_k R_k + n0 R) / (n_k + n0) shrinks client k's curve towards the pooled curve R, and
    (n R'_k + 1) / (n + 1) with n = n_k + n0 corrects for the sample to come. Infinite where there
    is no such value. Source: arXiv 2606.20115.

    Parameters
    ----------
    curves : (K, H) array of float
        Mean losses R_k in 0..1, falling.
    sizes : (K,) array of int
        The sample sizes n_k.
    alpha : float
        The level of the risk.
    values : (H,) array of float
        The values at which the curves are known.
    prior : int
        The samples n0 that the pooled curve counts for.
    """
    n = sizes[:, None]
    pooled = np.average(curves, axis=0, weights=sizes)
    risk = (n * curves + prior * pooled + 1) / (n + prior + 1)
    is_controlled = risk <= alpha + 1e-12
    least_values = values[is_controlled.argmax(axis=1)][:, None]
    return np.where(is_controlled[:, -1:], least_values, np.inf)


def prism_fcp(inputs: BaselineInput) -> float:
    """Return the threshold after PRISM-FCP's filter (arXiv 2602.18396, 2605.11684).

    As in Rob-FCP, a client's maliciousness is its mean distance to the nearer half of the others in
    histograms of 100 bins. Clients above the median + 3 deviations (by the median absolute
    deviation) are excluded, without their number being given; then FCP. The partial sharing of
    models is about training and left out. Guarantees the level while the filter excludes exactly
    the malicious clients. Assumes that benign clients are similar, malicious ones few and far off.
    """
    vectors = characterization_vectors(inputs.federation)
    n_nearest = max(1, len(vectors) // 2)
    maliciousness = mean_neighbor_distances(vectors, "l2", 1, n_nearest)
    median = np.median(maliciousness)
    median_deviation = np.median(np.abs(maliciousness - median))
    benign_mask = maliciousness <= median + FILTER_MARGIN * median_deviation + 1e-12
    bin_index = fcp_bin_index(inputs.federation, inputs.level, benign_mask)
    return inputs.federation.threshold_at(bin_index)


def majority_sets(inputs: BaselineInput) -> float:
    """Return the threshold of majority sets over clients (RPS, arXiv 2410.09878).

    A label is in the set if it is in the sets of most clients. Sets {y: s <= t_k} are nested, so
    that the majority's is at the median of the t_k, each client's own conformal threshold.
    Guarantees 1 - 2 alpha on average (a set misses where at least half of the clients' sets do),
    and that fewer than half of the clients cannot move the threshold beyond the benign ones' range.
    Assumes one distribution; the paper's smoothed scores are about training and left out.
    """
    thresholds = np.sort(inputs.local_thresholds())
    n_clients = len(thresholds)
    return float(thresholds[n_clients - n_clients // 2 - 1])


def p_coqs(inputs: BaselineInput) -> float:
    """Return P-COQS's threshold (arXiv 2507.12497): a binary search over noisy counts.

    A step asks for the pooled count at or below an edge with N(0, steps / (2 rho)) added, which
    costs rho / steps of zCDP; rho is `ZCDP_BUDGET`. The draws are seeded by the counts. Guarantees
    rho-zCDP of the samples, and the level less what the noise takes. Assumes a server that is
    trusted with exact counts, and that all clients are benign.
    """
    counts = inputs.federation.pooled_counts()
    cumulative = counts.cumsum()
    rng = np.random.default_rng(counts)
    rank = int(inputs.ranks(cumulative[-1:])[0])
    n_steps = len(cumulative).bit_length()
    deviation = sqrt(n_steps / (2 * ZCDP_BUDGET))

    low = 0
    high = len(cumulative) - 1
    while low < high:
        midpoint = (low + high) // 2
        is_reached = cumulative[midpoint] + rng.normal(0, deviation) >= rank
        if is_reached:
            high = midpoint
        else:
            low = midpoint + 1
    return inputs.federation.threshold_at(low)


def local_only(inputs: BaselineInput) -> FloatArray:
    """Return the (K, 1) thresholds of each client alone.

    Guarantees the level at this client, with 97.5% confidence, whatever the others do. Assumes
    nothing of the others.
    """
    alpha = float(1 - inputs.level)
    thresholds = [local_threshold_range(scores, alpha).upper for scores in inputs.scores]
    return np.array(thresholds)[:, None]


def local_clipped(inputs: BaselineInput) -> FloatArray:
    """Return this package's (K, 1) thresholds for each client, as its feedback gives them.

    They are made from the peers' reports and clipped to what the client's own scores allow.
    Guarantees, while at most `max_malicious` clients are malicious and benign ones differ by their
    label distributions only, the level at this client on average, but for the clipping from above;
    and a lower bound whatever the others do.
    """
    alpha = float(1 - inputs.level)
    counts = class_counts(inputs.federation)
    bins = client_thresholds(counts, alpha, inputs.max_malicious)
    upper_edges = np.append(inputs.federation.binning.upper_edges, np.inf)
    peer_thresholds = upper_edges[bins]  # bin -1, where nothing is guaranteed: infinite

    clipped = []
    for scores, peer_threshold in zip(inputs.scores, peer_thresholds.tolist(), strict=True):
        local_range = local_threshold_range(scores, alpha)
        clipped.append(max(local_range.lower, min(peer_threshold, local_range.upper)))
    return np.array(clipped)[:, None]


def marginal_guarantee(inputs: BaselineInput) -> float:
    """Return this package's threshold with a marginal guarantee.

    Guarantees the level on average over the benign clients whatever at most `max_malicious` clients
    report.
    """
    calibration = calibrate(
        inputs.federation,
        coverage=float(inputs.level),
        defense="none",
        guarantee=MarginalGuarantee(inputs.max_malicious),
    )
    return calibration.levels[0].threshold


def class_conditional(inputs: BaselineInput) -> FloatArray:
    """Return this package's (C,) thresholds: the default defense, then a threshold a class."""
    calibration = calibrate(inputs.federation, coverage=float(inputs.level), by="class")
    return np.array([stratum.threshold for stratum in calibration.levels[0].strata])


BASELINES: dict[str, Baseline] = {
    FEDCP_QQ: fedcp_qq,
    "fedwq-cp": fedwq_cp,
    "gc-fcp": gc_fcp,
    "pfwcp": pfwcp,
    "crc-shrinkage": crc_shrinkage,
    "prism-fcp": prism_fcp,
    "majority-sets": majority_sets,
    "p-coqs": p_coqs,
    "local-only": local_only,
    "local-clipped": local_clipped,
    "marginal-guarantee": marginal_guarantee,
    "class-conditional": class_conditional,
}

# These need counts by class of all clients.
BY_CLASS = ("gc-fcp", "pfwcp", "local-clipped", "class-conditional")

# These are of this package and work on its reports. In experiments all others get exact counts, as
# their papers have them.
ON_REPORTS = ("local-clipped", "marginal-guarantee", "class-conditional")


def fedcp_qq_index(federation: Federation, level: Fraction) -> int | None:
    """Return the bin of FedCP-QQ's threshold; None (every label) where no orders reach the level.

    Client k sends its l_k-th smallest score, the server takes the j-th smallest of these; the
    orders are those of `quantile_orders`. No client is excluded, and nothing is said of malicious
    ones.

    Parameters
    ----------
    federation : Federation
        The reports of all clients.
    level : Fraction
        The target coverage.

    References
    ----------
    Humbert, Le Bars, Bellet and Arlot (2023), "One-shot federated conformal prediction", ICML.
    """
    projected = federation.projected_to_simplex()
    orders = quantile_orders(tuple(int(n) for n in federation.sample_sizes), level)
    if orders is None:
        return None
    client_orders, server_order = orders
    is_reached = projected.cumulative_counts() >= np.array(client_orders)[:, None]
    client_bins = np.sort(is_reached.argmax(axis=1))
    return int(client_bins[server_order - 1])


@dataclass(frozen=True, eq=False)
class _OrderPair:
    """Orders l_1..l_K and j, and by how much their expected coverage exceeds the level."""

    excess: float
    server_order: int
    client_orders: IntArray


@lru_cache(maxsize=256)
def quantile_orders(sizes: tuple[int, ...], level: Fraction) -> tuple[tuple[int, ...], int] | None:
    """Return l_1..l_K and j of FedCP-QQ whose expected coverage exceeds the level least.

    For samples of one continuous distribution the coverage of client k's l-th smallest of n_k
    scores is Beta(l, n_k - l + 1), and `order_statistic_coverage` gives that of the j-th smallest
    of K such. Equal sizes share one l; unequal ones take l_k = ceil(tau (n_k + 1)) for one tau. Of
    the pairs whose excess is within `TIE_TOLERANCE` of the least, the one with j nearest to
    (K + 1)/2 is taken: malicious clients move the median least, so this reading favors FedCP-QQ.
    None where no pair reaches the level.

    Parameters
    ----------
    sizes : tuple of int
        The sample sizes n_k.
    level : Fraction
        The target coverage.
    """
    n = np.array(sizes)
    target = float(level)
    pairs = []
    for tau in _order_fractions(int(np.median(n)), target):
        client_orders = np.clip(np.ceil(tau * (n + 1) - 1e-9).astype(np.int64), 1, n)
        coverage = order_statistic_coverage(client_orders, n)
        j = int(np.searchsorted(coverage, target - 1e-12)) + 1
        if j <= len(n):
            pairs.append(_OrderPair(coverage[j - 1] - target, j, client_orders))
    if not pairs:
        return None

    least_excess = min(pair.excess for pair in pairs)
    tied_pairs = [pair for pair in pairs if pair.excess <= least_excess + TIE_TOLERANCE]
    median_order = (len(n) + 1) / 2
    best = min(tied_pairs, key=lambda pair: (abs(pair.server_order - median_order), pair.excess))
    return tuple(best.client_orders.tolist()), best.server_order


def _order_fractions(size: int, target: float) -> FloatArray:
    """Return the fractions tau that are tried as client orders of a sample of some size.

    They lie within a deviation of the target, since j nears 1 or K beyond; evenly spaced where
    there are more than `MAX_ORDERS_TRIED`.
    """
    fractions = np.arange(1, size + 1) / (size + 1)
    deviation = np.sqrt(target * (1 - target) / (size + 2))
    is_near = np.abs(fractions - target) <= max(deviation, 2 / (size + 1))
    if is_near.any():
        fractions = fractions[is_near]
    positions = np.linspace(0, len(fractions) - 1, MAX_ORDERS_TRIED).round().astype(int)
    return fractions[np.unique(positions)]


def order_statistic_coverage(orders: IntArray, sizes: IntArray) -> FloatArray:
    """Return the (K,) expectations of the order statistics V_(1) <= ... <= V_(K), rising.

    V_k ~ Beta(l_k, n_k - l_k + 1) are independent, and
    E V_(j) = integral over u of P(fewer than j of the V_k are at or below u), by Gauss-Legendre
    quadrature.

    Parameters
    ----------
    orders : (K,) array of int
        The orders l_k.
    sizes : (K,) array of int
        The sample sizes n_k.
    """
    from scipy.special import betainc

    u, du = _quadrature(orders / (sizes + 1), sizes)

    # Row i holds P(i of the V_k so far are at or below u); each V_k moves mass a row down.
    count_probabilities: FloatArray = np.zeros((len(orders) + 1, len(u)))
    count_probabilities[0] = 1
    distinct, multiplicities = np.unique(np.stack([orders, sizes]), axis=1, return_counts=True)
    for (order, size), multiplicity in zip(distinct.T, multiplicities, strict=True):
        cdf = betainc(order, size - order + 1, u)
        for _ in range(multiplicity):
            moved = count_probabilities[:-1] * cdf
            count_probabilities[1:] = count_probabilities[1:] * (1 - cdf) + moved
            count_probabilities[0] *= 1 - cdf
    expectations: FloatArray = np.cumsum(count_probabilities, axis=0)[:-1] @ du
    return expectations


def _quadrature(means: FloatArray, sizes: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return nodes in [0, 1] and their weights, densest where the Beta distributions rise.

    That is within six deviations of their means.
    """
    radius = 6 * np.sqrt(np.max(means * (1 - means) / (sizes + 2)))
    cuts = np.unique(np.clip([0, means.min() - radius, means.max() + radius, 1], 0, 1))
    widths = np.diff(cuts)
    nodes, weights = np.polynomial.legendre.leggauss(N_QUADRATURE_NODES)
    u = cuts[:-1, None] + widths[:, None] * (nodes + 1) / 2
    du = widths[:, None] * weights / 2
    return u.ravel(), du.ravel()
