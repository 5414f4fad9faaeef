"""Pruning that cannot expel the honest, and the PAC threshold after it, under label shift.

Honest clients agree within classes, up to a declared sigma: given its label counts a client's
scores of class c come from F_kc with sup |F_kc - F_c| <= sigma. Clients are compared in pairs, at
one edge, over the classes both hold, so that label mixes may differ at will.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import _worst_case
from robfcp.guarantees._tail_bounds import is_miss_rate_small, kl_divergence, pac_tail_test
from robfcp.guarantees._worst_case import (
    PRUNING_DELTA_FRACTION,
    BoolArray,
    FloatArray,
    IndexArray,
    IntArray,
    check_heterogeneity,
    check_max_malicious,
)
from robfcp.reports import OTHER_STRATUM

_KEPT = 2**24  # pairs of clients times classes whose sizes are worked out once
_BLOCK = 2**16  # of them, or pairs, worked on at a time: what a cache holds
_SLACK = 1 - 1e-9  # of a bound that only decides where logarithms are taken
MAX_CLIENTS_COMPARED = 300  # sites that letters compare pair by pair
MAX_CELLS = 2**25  # of sites, classes and edges looked at
MAX_BINS_TESTED = 256  # looked at, fixed before the counts are: spread over the grid's bins


# Rows of clients, and what their sizes say of all pairs they are in, (B, C, K):
# n_k n_l / (n_k + n_l), and n_k n_l / ((n_k + n_l)^2 (n_k + n_l - 1))
_Block = tuple[slice, FloatArray, FloatArray]


class ClientPairs:
    """All pairs of clients, compared at one edge after another over the classes both hold.

    Given each class's pooled count, an honest client's counts are independent hypergeometric
    variables, hence their sum X one of independent indicators, with mean mu and variance V. Of such
    sums the binomial one of the same mean and variance, n' = mu^2 / (mu - V) draws, has the largest
    generating function below 1: P(X <= x) <= exp(-e), e = n' kl(x/n', mu/n'), for x <= mu, and
    likewise above it with n - X; twice that for either side. Honest clients within sigma > 0 of a
    common distribution: Hoeffding's e = 2 (|D| - 2 sigma H)+^2 / H, D = X - mu,
    H = sum_c n_kc n_lc / (n_kc + n_lc).

    Parameters
    ----------
    sizes
        (K, C) samples of each client and class.
    """

    def __init__(self, sizes: ArrayLike) -> None:
        self.sizes = np.asarray(sizes, dtype=np.float64)
        self._held = (self.sizes > 0).astype(np.float64)
        self._shared = self.sizes @ self._held.T  # n, of the row's client
        kept = list(self._blocks()) if self.sizes.size * len(self.sizes) <= _KEPT else None
        self._seen: Callable[[], Iterable[_Block]] = (lambda: kept) if kept else self._blocks

    def _blocks(self) -> Iterator[_Block]:
        for rows in _slices(len(self.sizes), self.sizes.size):
            own, other = self.sizes[rows, :, None], self.sizes.T[None]
            total = own + other
            harmonic = own * other / np.maximum(total, 1)
            yield rows, harmonic, harmonic / np.maximum(total * (total - 1), 1)

    def _moments(self, below: FloatArray, variance: bool) -> tuple[FloatArray, FloatArray]:
        """(K, K) D_kl = sum_c n_kc n_lc / (n_kc + n_lc) (x_kc / n_kc - x_lc / n_lc) and, if wanted,
        V_kl = sum_c n_kc n_lc P (1 - P) / (n_kc + n_lc - 1), P the pooled share."""
        share, miss = below / np.maximum(self.sizes, 1), self.sizes - below
        d, v = np.zeros((2, len(below), len(below)))
        for rows, harmonic, spread in self._seen():
            d[rows] = np.matmul(share[rows, None, :], harmonic)[:, 0]
            if variance:  # (x_k + x_l) (y_k + y_l), of which half comes with the transpose
                v[rows] = np.matmul((below * miss)[rows, None, :], spread)[:, 0]
                v[rows] += np.matmul(below[rows, None, :], spread * miss.T[None])[:, 0]
        return d - d.T, v + v.T

    @cached_property
    def _weights(self) -> FloatArray:
        """(K, K) H_kl = sum_c n_kc n_lc / (n_kc + n_lc)."""
        return np.concatenate([harmonic.sum(axis=1) for _, harmonic, _ in self._seen()])

    def exponents(self, below: ArrayLike, sigma: float = 0.0, least: float = 0.0) -> FloatArray:
        """(K, K) e of each pair, the row's client first; 0 where two share no class.

        The p-value for "both are honest" is min(1, 2 exp(-e)). Below `least` e may be given as 0.
        """
        counts = np.asarray(below, dtype=np.float64)
        difference, variance = self._moments(counts, sigma <= 0)
        if sigma > 0:
            return self._hoeffding(np.abs(difference), sigma)
        own, found = counts @ self._held.T, np.zeros(difference.shape)
        for rows in _slices(len(counts), len(counts)):
            d, v = difference[rows], variance[rows]
            # kl <= chi-square, so that e <= D^2 / V: most pairs need no logarithm
            here = (d * d >= least * _SLACK * v) & (v > 0)
            low, x, d = d[here] < 0, own[rows][here], d[here]
            rest = self._shared[rows][here] - x  # the side where x lies
            mean = np.maximum(np.where(low, x - d, rest + d), 1e-12)
            draws = mean**2 / np.maximum(mean - v[here], 1e-12)
            found[rows][here] = draws * kl_divergence(np.where(low, x, rest) / draws, mean / draws)
        return found

    def _hoeffding(self, far: FloatArray, sigma: float) -> FloatArray:
        excess = np.maximum(far - 2 * sigma * self._weights, 0)
        return np.where(self._weights > 0, 2 * excess**2 / np.maximum(self._weights, 1e-12), 0.0)

    def exponent_lower_bound(self, below: IntArray, most: IntArray, sigma: float) -> FloatArray:
        """(K, K) what e is at least by Hoeffding where counts may be as many as `most`.

        D is between D - R' and D + R, R_kl = sum_c n_kc n_lc / (n_kc + n_lc) (most - x)_kc / n_kc.
        """
        more = (most - below) / np.maximum(self.sizes, 1)
        seen = self._seen()
        room = np.concatenate([np.matmul(more[k, None, :], by)[:, 0] for k, by, _ in seen])
        difference, _ = self._moments(below.astype(np.float64), False)
        return self._hoeffding(np.maximum(difference - room.T, -difference - room), sigma)

    def contradictions(
        self,
        below: ArrayLike,
        m: int,
        beta: float,
        sigma: float,
        n: int,
        most: IntArray | None = None,
    ) -> BoolArray | None:
        """(K, K) who speaks against whom at one edge; None where nobody of so many is dropped."""
        j = min_witnesses(n, m)
        if m == 0 or m + j > n - 1:
            return None
        # a pair speaks against a client where 2 exp(-e) (K - 1 - m) / j <= beta / K
        least = np.log(2 * n * (n - 1 - m) / (j * beta))
        doubtful = self.exponents(below, sigma, least) >= least
        if most is not None:
            counts = np.asarray(below, dtype=np.int64)
            loose = np.asarray((most > counts).any(axis=1))
            bounded = self.exponent_lower_bound(counts, most, sigma) >= least
            doubtful = np.where(loose[:, None] | loose, bounded, doubtful)
        np.fill_diagonal(doubtful, False)
        return doubtful if (doubtful.sum(axis=1) >= m + j).any() else None


def _slices(number: int, width: int) -> Iterator[slice]:
    """Rows of this width in blocks."""
    step = max(1, _BLOCK // max(1, width))
    return (slice(start, min(start + step, number)) for start in range(0, number, step))


def min_witnesses(n_clients: int, m: int) -> int:
    """j: how many honest witnesses beyond m must speak against a client; from K and m alone."""
    return max(1, (n_clients - 2 * m) // 4)


def pruned_mask(against: BoolArray, present: BoolArray, m: int) -> BoolArray | None:
    """(K,) who of those present is kept; None where more than m would have to be dropped.

    A client is dropped when m' + j of those present speak against it, m' the liars that may be
    left: then at least j of a fixed set of K - 1 - m honest clients do, which by Markov's
    inequality has a chance of at most beta / K, the same in every pass.
    """
    kept, left, j = present, m, min_witnesses(int(present.sum()), m)
    while True:
        odd = kept & (against[:, kept].sum(axis=1) >= left + j)
        dropped = int(odd.sum())
        if not dropped:
            return kept
        if dropped > left:
            return None
        kept, left = kept & ~odd, left - dropped


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """(E, K, C) counts at or below each edge looked at, (K, C) sizes, and the edges' numbers.

    `most` is what the counts may be at most, where some are in fives.
    """

    cumulative: IntArray
    class_sizes: IntArray
    edges: IndexArray
    clients: tuple[str, ...]
    names: tuple[str, ...]
    cumulative_upper: IntArray | None = None


def class_counts(federation: Federation) -> ClassCounts:
    """The counts by class of the clients that report them, at a list of edges fixed beforehand.

    Whoever merged thin classes is left out: what it merged is no class that clients share.
    """
    strata = federation.strata
    if strata is None or strata.by != "class":
        raise RobfcpError("label shift: needs reports by class; make them with labels")
    if federation.has_noise:
        raise RobfcpError("label shift: is not proved for private reports; leave it out")
    n_bins, n_strata = strata.n_bins, strata.n_strata
    edges = fixed_bins(n_bins, MAX_CELLS // (len(strata.rows) * n_strata))
    ends = np.unique(np.arange(n_strata)[:, None] * n_bins + np.append(edges, n_bins - 1))

    def up_to(table: IntArray) -> IntArray:
        below = np.cumsum(table.reshape(merged.shape)[whole][:, shown], axis=2)
        return np.ascontiguousarray(below.transpose(2, 0, 1))

    merged = strata.table.merge_bins(ends).reshape(len(strata.rows), n_strata, -1)
    shown = np.array([name != OTHER_STRATUM for name in strata.labels])
    whole = merged[:, ~shown].sum(axis=(1, 2)) == 0
    if not whole.any():
        raise RobfcpError("label shift: every site merged classes; make reports without --least")
    lowered = federation.lowest_counts().strata if federation.is_coarsened.any() else None
    return ClassCounts(
        up_to(merged),
        merged[whole][:, shown].sum(axis=2),
        edges,
        tuple(federation.clients[k] for k in strata.rows[whole]),
        tuple(name for name in strata.labels if name != OTHER_STRATUM),
        None if lowered is None else up_to(lowered.table.merge_bins(ends)),
    )


def fixed_bins(n_bins: int, room: int = MAX_BINS_TESTED) -> IndexArray:
    """At most MOST_EDGES edges, and no more than there is room for; the top edge among them."""
    most = max(2, min(MAX_BINS_TESTED, room, n_bins))
    return np.unique(np.linspace(0, n_bins - 1, most).round().astype(np.intp))


@dataclass(frozen=True)
class SequenceResult:
    """Where a walk from the top edge down ended: the last edge accepted, and who was dropped there.

    `is_contradicted` says that more than m clients would have to be dropped at an edge on the way:
    label shift or m cannot be as declared, and nothing is certified.
    """

    bin_index: int | None = None
    pruned_clients: tuple[str, ...] = ()
    is_contradicted: bool = False
    classes_with_too_few_clients: tuple[str, ...] = ()  # classes with too few honest holders


AcceptanceTest = Callable[[IntArray, IntArray, int, float, int | None], bool]


def fixed_sequence_thresholds(
    counts: ClassCounts,
    max_malicious: int,
    delta: float,
    heterogeneity: float,
    accepts: AcceptanceTest,
    leave_out: Sequence[int | None] = (None,),
) -> list[SequenceResult]:
    """From the top edge down while `accepts(below, sizes, left, delta, site)` of those kept.

    One walk for each site of `without`, from the reports of the others; None: of everybody. A fifth
    of delta is pruning's. Where acceptance at every fixed edge that covers too little has a chance
    of at most what is left, a threshold that covers too little has one of delta; edges are tested
    afresh, and acceptance need not be monotone. A contradiction makes the threshold infinite, which
    covers everything.
    """
    n_clients, pairs, heterogeneity = (
        len(counts.clients),
        ClientPairs(counts.class_sizes),
        check_heterogeneity(heterogeneity),
    )
    present = n_clients - (leave_out[0] is not None)
    max_malicious, beta = (
        check_max_malicious(max_malicious, present),
        PRUNING_DELTA_FRACTION * _worst_case.check_delta(delta),
    )
    found, going = [SequenceResult()] * len(leave_out), list(range(len(leave_out)))
    for place in range(len(counts.edges) - 1, -1, -1):
        below, most = (
            counts.cumulative[place],
            None if counts.cumulative_upper is None else counts.cumulative_upper[place],
        )
        against = (
            pairs.contradictions(below, max_malicious, beta, heterogeneity, present, most)
            if going
            else None
        )
        for walk in going.copy():
            site, others = leave_out[walk], np.arange(n_clients) != leave_out[walk]
            kept = others if against is None else pruned_mask(against, others, max_malicious)
            if kept is None:
                found[walk] = SequenceResult(is_contradicted=True)
                going.remove(walk)
                continue
            left, rest = (
                max_malicious - int(present - kept.sum()),
                (1 - PRUNING_DELTA_FRACTION) * delta,
            )
            if accepts(below[kept], counts.class_sizes[kept], left, rest, site):
                gone = np.flatnonzero(others & ~kept)
                found[walk] = SequenceResult(
                    int(counts.edges[place]), tuple(counts.clients[k] for k in gone)
                )
            else:
                going.remove(walk)
    return found


@lru_cache(maxsize=64)
def _tail(sizes: tuple[int, ...], m: int, level: Fraction, delta: float) -> _worst_case.TailTest:
    """The PAC tail of clients of these sizes: the same at most edges, and in most rounds."""
    return pac_tail_test(np.array(sizes, dtype=np.int64), m, level, delta)


def pac_threshold_after_pruning(
    counts: ClassCounts, level: Fraction, m: int, delta: float, sigma: float = 0.0
) -> SequenceResult:
    """The threshold of rule PC: prune, then the PAC condition on those kept, edge by edge.

    With probability >= 1 - delta it covers `level` of the honest clients' pool, whatever m of them
    report.
    """

    def accepts(below: IntArray, sizes: IntArray, left: int, rest: float, site: int | None) -> bool:
        totals = sizes.sum(axis=1)
        tail = _tail(tuple(totals.tolist()), left, level, rest)
        return bool(tail.accepts(below.sum(axis=1)[None, :], totals, left)[0])

    return fixed_sequence_thresholds(counts, m, delta, sigma, accepts)[0]


LabelDistribution = dict[str, float] | str | list[dict[str, float] | str]


class LabelDistributions(NamedTuple):
    """(R, C) stated label mixes; with a `base` also C more: that and `step` of each class alone.

    These are never spelled out: C x C numbers would be too many.
    """

    distributions: FloatArray
    base: FloatArray | None = None
    step: float = 1.0

    @staticmethod
    def around(base: FloatArray, step: float) -> LabelDistributions:
        """Base and so much of each class alone."""
        return LabelDistributions(np.zeros((0, len(base))), base, step)

    @property
    def has_mass(self) -> BoolArray:
        """(C,) which classes are in any of them."""
        some = np.any(self.distributions > 0, axis=0)
        return some if self.base is None else np.ones(len(some), dtype=bool)

    def expectations(self, values: FloatArray) -> FloatArray:
        """(..., R + C) of (..., C) numbers of the classes, in every mix."""
        found = values @ self.distributions.T
        if self.base is None:
            return found
        more = (values @ self.base)[..., None] + self.step * values
        return np.concatenate([found, more], axis=-1)

    def min_effective_sizes(self, sizes: FloatArray) -> FloatArray:
        """(R + C,) the least size over share in each of them."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.where(self.distributions > 0, sizes / self.distributions, np.inf).min(axis=1)
            if self.base is None:
                return found
            common = np.where(self.base > 0, sizes / self.base, np.inf).min()
        return np.concatenate([found, np.minimum(common, sizes / (self.base + self.step))])


def parse_label_distributions(mix: LabelDistribution, names: tuple[str, ...]) -> LabelDistributions:
    """The label mixes: by name, "uniform", "any" (every class by itself), or a list of them."""
    if mix == "uniform":
        return LabelDistributions(np.full((1, len(names)), 1 / len(names)))
    if mix == "any":
        return LabelDistributions.around(np.zeros(len(names)), 1.0)
    if isinstance(mix, list) and mix:
        found = [parse_label_distributions(one, names) for one in mix]
        base = next((one.base for one in found if one.base is not None), None)
        return LabelDistributions(np.concatenate([one.distributions for one in found]), base)
    if not isinstance(mix, dict):
        raise RobfcpError(f"mix: {mix!r:.60} is unknown; use 'uniform', 'any' or {{class: share}}")
    unknown = sorted(set(mix) - set(names))
    if unknown:
        raise RobfcpError(f"mix: {unknown[0]!r:.60} is none of the classes; check the names")
    shares = np.array([[mix.get(name, 0.0) for name in names]])
    if not (shares >= 0).all() or not np.isclose(shares.sum(), 1, atol=1e-6):
        raise RobfcpError("mix: shares are not negative and add up to 1; check them")
    return LabelDistributions(shares / shares.sum())


def accepts_distributions(
    below: IntArray,
    sizes: IntArray,
    left: int,
    mixes: LabelDistributions,
    alpha: float,
    delta: float,
) -> BoolArray:
    """(R,) whether each mix is accepted at one edge, from the (K, C) counts of those kept.

    It is where U1 or U2 is small enough for n_eff = min_c Nmin_c / pi_c: U1 pools classes inside a
    client before the m' worst are taken, U2 takes each class's own envelope.
    """
    miss = (sizes - below).astype(np.float64)
    total = sizes.sum(axis=0).astype(np.float64)
    least = total - _worst_case.sum_of_largest(np.ascontiguousarray(sizes.T), left)
    share = miss.sum(axis=0) / np.maximum(total, 1)
    excess = -(miss - share * sizes)
    worst = np.maximum(excess / np.maximum(total, 1), excess / np.maximum(least, 1))
    plain, effective = mixes.expectations(share), mixes.min_effective_sizes(least)
    together = plain + _worst_case.sum_of_largest(
        np.maximum(mixes.expectations(worst), 0).T.copy(), left
    )
    found = is_miss_rate_small(together, effective, alpha, delta)
    hoped = is_miss_rate_small(plain, effective, alpha, delta)  # if nobody lied
    if (found == hoped).all():
        return found
    apart = mixes.expectations(_class_envelopes(sizes - below, sizes, left, least))
    return found | (hoped & is_miss_rate_small(apart, effective, alpha, delta))


def _class_envelopes(miss: IntArray, sizes: IntArray, left: int, least: FloatArray) -> FloatArray:
    """(C,) the largest miss share of each class over removals of at most m' clients."""
    found = np.ones(sizes.shape[1])
    for c in np.flatnonzero(least > 0):
        held = sizes[:, c] > 0
        few = np.array([min(left, int(held.sum()) - 1)])
        hits, total = _worst_case.min_coverage_over_removals(
            (sizes - miss)[None, held, c], sizes[held, c], few
        )
        found[c] = float((total - hits)[0, 0] / total[0, 0])
    return found


def label_distribution_threshold(
    counts: ClassCounts,
    mixes: LabelDistributions,
    alpha: float,
    m: int,
    delta: float,
    sigma: float = 0.0,
) -> SequenceResult:
    """The first edge, from the top down, above which every mix is accepted; rule T.

    With probability >= 1 - delta theta_pi >= 1 - alpha for all mixes at once (and all between
    them), whatever m clients report: sigma is paid from alpha.
    """
    room = alpha - check_heterogeneity(sigma)
    if room <= 0:
        return SequenceResult()
    holders: list[IndexArray] = []  # of each class at the top edge, and the liars left there

    def accepts(below: IntArray, sizes: IntArray, left: int, rest: float, site: int | None) -> bool:
        holders.append((sizes > 0).sum(axis=0) - left)
        return bool(accepts_distributions(below, sizes, left, mixes, room, rest).all())

    walk = fixed_sequence_thresholds(counts, m, delta, sigma, accepts)[0]
    if walk.bin_index is None and holders:
        few = np.flatnonzero(mixes.has_mass & (holders[0] <= 0))
        return replace(walk, classes_with_too_few_clients=tuple(counts.names[c] for c in few))
    return walk


def label_homogeneity_p_value(sizes: IntArray) -> float:
    """p-value of the (K, C) label counts if all clients drew labels from one mix: a diagnostic.

    Pearson's test; classes and clients without samples are left out.
    """
    from scipy.stats import chi2_contingency

    kept = sizes[sizes.sum(axis=1) > 0][:, sizes.sum(axis=0) > 0]
    return float(chi2_contingency(kept, correction=False).pvalue) if kept.size else 1.0
