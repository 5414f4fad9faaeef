"""The field's rules beside ours: from the reports of a round to thresholds, by site if need be.

Every rule is written from its paper's description; no code was taken. `BASELINES` names them
all, `baseline_thresholds` is their one door. Our defences have their own names there where they
need no telling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from robfcp._validation import check_integer, parse_level
from robfcp.calibration._calibrate import calibrate
from robfcp.defense._rob_fcp import characterization_vectors, mean_neighbor_distances
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
_TIE_TOLERANCE = 1e-3  # excess coverages this close count as equal
LEVELS = 16  # local orders tried at most
NODES = 64  # of the quadrature where the quantiles' distribution rises
CORESET = 64  # points that a site sends of a class
PRIOR = 19  # samples that the federation's risk curve counts for, the paper's n0
MARGIN = 3 * 1.4826  # times the median absolute deviation: three deviations of a normal
BUDGET = 0.5  # rho of zero-concentrated differential privacy, for the whole search

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BaselineInput:
    """What a rule is given: everybody's reports, each site's own scores, which stay there, the
    level wanted, and how many may lie, which only our promises use."""

    federation: Federation
    scores: Sequence[Array]
    level: Fraction
    liars: int

    @property
    def by_class(self) -> NDArray[np.int64]:
        """(K, C, H) counts at or below each edge."""
        strata = self.federation.strata
        assert strata is not None
        shape = (self.federation.n_clients, strata.n_strata, strata.n_bins)
        return strata.table.dense().reshape(shape).cumsum(axis=2)

    def reached(self, running: NDArray[np.generic], rank: NDArray[np.generic]) -> Array:
        """(...) the least edges at which (..., H) running counts reach the ranks; else infinite."""
        there = running >= np.asarray(rank)[..., None]
        upper = self.federation.binning.upper_edges
        return np.where(there[..., -1], upper[there.argmax(axis=-1)], np.inf)

    def ranks(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """ceil(level (n + 1)), exactly."""
        return np.array([-(-self.level * (int(n) + 1) // 1) for n in sizes], np.int64)

    def local(self) -> Array:
        """(K,) each site's own conformal threshold: its ceil(level (n_k + 1))-th score's edge."""
        return self.reached(
            self.federation.cumulative_counts(), self.ranks(self.federation.sample_sizes)
        )


Baseline = Callable[[BaselineInput], Thresholds]


def baseline_thresholds(
    name: str,
    federation: Federation,
    coverage: float,
    scores: Sequence[Array],
    liars: int = 0,
) -> Thresholds:
    """The named rule's thresholds: one for all, (C,) one a class, or (K, C) by site too."""
    if name not in BASELINES:
        raise RobfcpError(f"rival: {name!r} is unknown; use one of {', '.join(BASELINES)}")
    if federation.risk is not None or federation.has_noise:
        kind = "losses" if federation.risk is not None else "noise"
        raise RobfcpError(f"{name}: the reports hold {kind}; make exact reports of scores")
    if len(scores) != federation.n_clients:
        raise RobfcpError(
            f"{name}: scores of {len(scores)} sites but {federation.n_clients} reports; give each "
            "site's own, in order"
        )
    if check_integer("liars", liars, "give how many may lie") >= federation.n_clients:
        raise RobfcpError(f"liars: {liars} of {federation.n_clients} sites leave none honest")
    strata = federation.strata
    if name in BY_CLASS and (
        strata is None or strata.by != "class" or len(strata.rows) < federation.n_clients
    ):
        raise RobfcpError(f"{name}: not all reports keep counts by class; make them with labels")
    limits = BASELINES[name](BaselineInput(federation, scores, parse_level(coverage), liars))
    if isinstance(limits, np.ndarray) and limits.ndim == 2 and limits.shape[1] == 1:
        return np.repeat(limits, strata.n_strata if strata else 1, axis=1)
    return limits


def fedcp_qq(seen: BaselineInput) -> float:
    """FedCP-QQ: `fedcp_qq_index` as a threshold.

    Promised: coverage on average over all sites. Assumed: all samples are of one distribution.
    """
    return seen.federation.threshold_at(fedcp_qq_index(seen.federation, seen.level))


def fedwq_cp(seen: BaselineInput) -> float:
    """FedWQ-CP (arXiv 2602.23296): q = sum_k n_k q_k / sum_k n_k, q_k the site's own quantile.

    A site sends two numbers, q_k and n_k; where n_k is too small for the level q_k is its largest
    score. Promised: the level in the limit of many samples at each site. Assumed: q_k stand close
    to each other (a mean of quantiles is not the quantile of the mixture), and all are honest.
    """
    federation = seen.federation
    ranks = np.minimum(seen.ranks(federation.sample_sizes), federation.sample_sizes)
    return float(
        np.average(
            seen.reached(federation.cumulative_counts(), ranks), weights=federation.sample_sizes
        )
    )


def gc_fcp(seen: BaselineInput) -> Array:
    """GC-FCP (arXiv 2603.14198): a threshold for each group from merged coresets.

    Taken as its description: groups that do not overlap, here the classes, which every report
    keeps (where groups overlap the paper fits a quantile regression on their indicators). A site
    sends CORESET order statistics of a group, each standing for n_kc / CORESET samples, so that it
    counts floor(N_kc(t) CORESET / n_kc) n_kc / CORESET <= N_kc(t) below t; the server adds these
    and takes the rank ceil(level (n_c + 1)). Promised: the level in each group, on average over
    the mixture of the sites. Assumed: every site is honest.
    """
    below = seen.by_class
    step = np.maximum(below[..., -1:] / CORESET, 1)
    kept = (np.floor(below / step + 1e-9) * step).sum(axis=0)
    return seen.reached(kept + 1e-6, seen.ranks(below[..., -1].sum(axis=0)))


def pfwcp(seen: BaselineInput) -> Array:
    """PFWCP (arXiv 2606.00717): weighted quantiles of every site for each site, then their mean.

    Taken as its description: site j weighs k's samples by the density ratio of j to k, here of the
    classes, w(y) = (n_jy / n_j) / (n_ky / n_k), since reports hold no covariates; q_jk is k's
    weighted quantile and q_j = sum_k e_jk q_jk / sum_k e_jk with the effective sizes e = (sum
    w)^2 / sum w^2. Promised: the level at each site in the limit. Assumed: sites differ by what
    the weights see, label mixes here; every site is honest.
    """
    below = seen.by_class
    sizes = below[..., -1]
    mixes = sizes / sizes.sum(axis=1, keepdims=True)
    total, weight = np.zeros(len(sizes)), np.zeros(len(sizes))
    for own, n in zip(below, sizes, strict=True):
        held = n > 0
        shares = own[held] / n[held, None]
        mix = mixes[:, held]
        mass = mix.sum(axis=1)
        place = seen.reached(mix @ shares + 1e-12, float(seen.level) * mass)
        squares = (mix**2 / n[held]).sum(axis=1)
        effective = np.where(mass > 0, mass**2 / np.maximum(squares, 1e-300), 0.0)
        total += effective * place
        weight += effective
    return (total / weight)[:, None]


def crc_shrinkage(seen: BaselineInput) -> Array:
    """Risk-curve shrinkage (arXiv 2606.20115): each site's curve drawn towards everybody's.

    Taken as its description: R'_k = (n_k R_k + n0 R) / (n_k + n0) with n0 = PRIOR, R the pooled
    curve, and the least threshold with (n R'_k + 1) / (n + 1) <= alpha, n = n_k + n0; the loss is
    a miss here. Promised: the level on average over the sites' mixture (claimed for the pooled
    rule; at a single site it is only measured). Assumed: every curve is honest.
    """
    below, sizes = seen.federation.cumulative_counts(), seen.federation.sample_sizes[:, None]
    return shrunken_curve(
        1 - below / sizes, sizes[:, 0], float(1 - seen.level), seen.federation.binning.upper_edges
    )


def shrunken_curve(
    curves: Array, sizes: NDArray[np.int64], alpha: float, values: Array, prior: int = PRIOR
) -> Array:
    """(K, 1) the least of (H,) values at which each site's shrunk and corrected curve is at most
    alpha; infinite where there is none. curves: (K, H) mean losses in 0..1, falling."""
    n, pooled = sizes[:, None], np.average(curves, axis=0, weights=sizes)
    risk = (n * curves + prior * pooled + 1) / (n + prior + 1)
    fine = risk <= alpha + 1e-12
    return np.where(fine[:, -1:], values[fine.argmax(axis=1)][:, None], np.inf)


def prism_fcp(seen: BaselineInput) -> float:
    """PRISM-FCP's filter (arXiv 2602.18396, 2605.11684), as far as it concerns calibration.

    Taken as its description: as in Rob-FCP a site's oddness is its mean distance to the nearer
    half of the others in histograms of 100 bins; those above median + 3 deviations (by the median
    absolute deviation) are filtered, without a number being told; then FCP. Its partial sharing of
    models is about training. Promised: the level while the filter leaves just the honest in.
    Assumed: honest sites look alike, liars are few and stand apart.
    """
    vectors = characterization_vectors(seen.federation)
    odd = mean_neighbor_distances(vectors, "l2", 1, max(1, len(vectors) // 2))
    middle = np.median(odd)
    trusted = odd <= middle + MARGIN * np.median(np.abs(odd - middle)) + 1e-12
    return seen.federation.threshold_at(fcp_bin_index(seen.federation, seen.level, trusted))


def majority_sets(seen: BaselineInput) -> float:
    """Majority sets (RPS, arXiv 2410.09878) over sites: a label is in if most sites' sets hold it.

    Sets {y: s <= t_k} are nested, so that the majority's is at the middle one of the t_k, each
    site's own conformal threshold. Promised: 1 - 2 alpha on average (a set misses where at least
    half of the sites' do), and that fewer than half of the sites cannot move the threshold beyond
    the honest ones' range. Assumed: one distribution; its smoothed scores are about training.
    """
    local = np.sort(seen.local())
    return float(local[len(local) - len(local) // 2 - 1])


def p_coqs(seen: BaselineInput) -> float:
    """P-COQS (arXiv 2507.12497): the quantile by a binary search over noised counts.

    A step asks for the pooled count at or below an edge with N(0, steps / (2 BUDGET)) added, which
    costs BUDGET / steps of zCDP; the draws are seeded by the counts. Promised: BUDGET-zCDP of the
    samples, the level less what the noise takes. Assumed: a server trusted with exact counts, and
    that everybody is honest.
    """
    pooled = seen.federation.pooled_counts()
    running = pooled.cumsum()
    rng = np.random.default_rng(pooled)
    rank, low, high = int(seen.ranks(running[-1:])[0]), 0, len(running) - 1
    steps = len(running).bit_length()
    deviation = sqrt(steps / (2 * BUDGET))
    while low < high:
        middle = (low + high) // 2
        enough = running[middle] + rng.normal(0, deviation) >= rank
        low, high = (low, middle) if enough else (middle + 1, high)
    return seen.federation.threshold_at(low)


def local_only(seen: BaselineInput) -> Array:
    """Each site alone: its own threshold, which covers the level with 97.5% confidence.

    Promised: the level at this site whatever the others do. Assumed: nothing of the others.
    """
    alpha = float(1 - seen.level)
    return np.array([[local_threshold_range(scores, alpha).high] for scores in seen.scores])


def local_clipped(seen: BaselineInput) -> Array:
    """Ours, at each site: what its letter comes to, from the others' reports and its own scores.

    Promised: in the letter; while at most `liars` lie and honest sites differ by their label mixes
    only, the level here on average but for the clip from above; a floor whatever anybody does.
    """
    alpha = float(1 - seen.level)
    counts = class_counts(seen.federation)
    upper = np.append(seen.federation.binning.upper_edges, np.inf)  # -1: nothing is proved
    edges = upper[client_thresholds(counts, alpha, seen.liars)]
    own = [local_threshold_range(scores, alpha) for scores in seen.scores]
    clipped = [max(o.low, min(e, o.high)) for o, e in zip(own, edges.tolist(), strict=True)]
    return np.array(clipped)[:, None]


def marginal_guarantee(seen: BaselineInput) -> float:
    """Ours, proved: the level on average over the honest sites whatever at most `liars` do."""
    found = calibrate(
        seen.federation, float(seen.level), defense="none", guarantee=MarginalGuarantee(seen.liars)
    )
    return found.levels[0].threshold


def class_conditional(seen: BaselineInput) -> Array:
    """Ours, by class: the default defence, then a threshold for each class."""
    found = calibrate(seen.federation, float(seen.level), by="class")
    return np.array([part.threshold for part in found.levels[0].strata])


BASELINES: dict[str, Baseline] = {
    "fedcp-qq": fedcp_qq,
    "fedwq-cp": fedwq_cp,
    "gc-fcp": gc_fcp,
    "pfwcp": pfwcp,
    "crc-shrinkage": crc_shrinkage,
    "prism-fcp": prism_fcp,
    "majority": majority_sets,
    "p-coqs": p_coqs,
    "own data": local_only,
    "letter": local_clipped,
    "guaranteed": marginal_guarantee,
    "by class": class_conditional,
}
BY_CLASS = ("gc-fcp", "pfwcp", "letter", "by class")  # need counts by class of everybody


def fedcp_qq_index(federation: Federation, level: Fraction) -> int | None:
    """The bin of the threshold; None (every label) where no pair of orders reaches the level.

    Site k sends its l_k-th smallest score, the server takes the j-th smallest of what it gets. The
    orders are those of `quantile_orders`. Nobody is left out, and nothing is said about liars.

    References
    ----------
    Humbert, Le Bars, Bellet and Arlot (2023), "One-shot federated conformal prediction", ICML.
    """
    whole = federation.projected_to_simplex()
    orders = quantile_orders(tuple(int(n) for n in federation.sample_sizes), level)
    if orders is None:
        return None
    local, place = orders
    reached = whole.cumulative_counts() >= np.array(local)[:, None]
    return int(np.sort(reached.argmax(axis=1))[place - 1])


@lru_cache(maxsize=256)
def quantile_orders(sizes: tuple[int, ...], level: Fraction) -> tuple[tuple[int, ...], int] | None:
    """(l_1..l_K) and j whose expected coverage exceeds the level least.

    For samples of one continuous distribution the coverage of site k's l-th smallest of n_k scores
    is Beta(l, n_k - l + 1), and that of the j-th smallest of K such is known. Equal sizes share one
    l; unequal ones take l_k = ceil(tau (n_k + 1)) for one tau. Of the pairs whose excess is within
    ALIKE of the least, the one with j nearest to (K + 1)/2: the middle is what liars move least, so
    this is the kindest reading of the rule.
    """
    n, target = np.array(sizes), float(level)
    size, pairs = int(np.median(n)), []
    deviation = np.sqrt(target * (1 - target) / (size + 2))
    every = np.arange(1, size + 1) / (size + 1)
    near = every[np.abs(every - target) <= max(deviation, 2 / (size + 1))]
    chosen = near if len(near) else every  # beyond a deviation of the target j nears 1 or K
    for tau in chosen[np.unique(np.linspace(0, len(chosen) - 1, LEVELS).round().astype(int))]:
        local = np.clip(np.ceil(tau * (n + 1) - 1e-9).astype(np.int64), 1, n)
        coverage = order_statistic_coverage(local, n)
        place = int(np.searchsorted(coverage, target - 1e-12)) + 1
        if place <= len(n):
            pairs.append((coverage[place - 1] - target, place, local))
    if not pairs:
        return None
    least = min(pair[0] for pair in pairs)
    middle = (len(n) + 1) / 2
    close = [pair for pair in pairs if pair[0] <= least + _TIE_TOLERANCE]
    _, place, local = min(close, key=lambda pair: (abs(pair[1] - middle), pair[0]))
    return tuple(local.tolist()), place


def order_statistic_coverage(local: NDArray[np.int64], sizes: NDArray[np.int64]) -> Array:
    """(K,) E of the j-th smallest of independent Beta(l_k, n_k - l_k + 1), j = 1..K, rising.

    E V_(j) = integral of P(fewer than j of the V_k are at or below u) du, by Gauss and Legendre.
    """
    from scipy.special import betainc

    mean = local / (sizes + 1)
    reach = 6 * np.sqrt(np.max(mean * (1 - mean) / (sizes + 2)))
    cuts = np.unique(np.clip([0, mean.min() - reach, mean.max() + reach, 1], 0, 1))
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    width = np.diff(cuts)
    u = (cuts[:-1, None] + width[:, None] * (nodes + 1) / 2).ravel()
    du = (width[:, None] * weights / 2).ravel()
    below: Array = np.zeros((len(local) + 1, len(u)))  # P(i of the V so far are <= u)
    below[0] = 1
    kinds, number = np.unique(np.stack([local, sizes]), axis=1, return_counts=True)
    for (order, size), times in zip(kinds.T, number, strict=True):
        chance = betainc(order, size - order + 1, u)
        for _ in range(times):
            below[1:] = below[1:] * (1 - chance) + below[:-1] * chance
            below[0] *= 1 - chance
    fewer: Array = np.cumsum(below, axis=0)[:-1] @ du
    return fewer
