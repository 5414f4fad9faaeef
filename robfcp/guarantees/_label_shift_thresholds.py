"""Thresholds under label shift: at each bin clients are pruned, and those kept are tested.

Benign clients agree within classes, up to a declared sigma: given its label counts a client's
scores of class c come from F_kc with sup |F_kc - F_c| <= sigma. Label mixes may differ at will
(docs/theory.md, section 11).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from robfcp._typing import BoolArray, FloatArray, IndexArray, IntArray
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees._checks import (
    PRUNING_DELTA_FRACTION,
    check_delta,
    check_heterogeneity,
    check_max_malicious,
)
from robfcp.guarantees._client_pairs import ClientPairs, pruned_mask
from robfcp.guarantees._label_distributions import LabelDistributions
from robfcp.guarantees._sums import ClientGroups, min_coverage_over_removals, sum_of_largest
from robfcp.guarantees._tail_bounds import is_miss_rate_small, pac_tail_test
from robfcp.guarantees._worst_case import TailTest
from robfcp.reports import OTHER_STRATUM

# Clients that feedback compares pair by pair.
MAX_CLIENTS_COMPARED = 300

# Counts of clients, classes and tested bins, at most: 256 MiB.
MAX_CELLS = 2**25

# Bins that are tested, at most. They are fixed before the counts are seen, spread over all.
MAX_BINS_TESTED = 256


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """The counts by class of the clients that report them, at bins that are fixed beforehand.

    All counts are whole samples without noise.

    Attributes
    ----------
    cumulative : ndarray of shape (E, K, C)
        The counts up to each bin; at least, where some reports are coarse.
    class_sizes : ndarray of shape (K, C)
        n_kc, the samples of each client and class.
    edges : ndarray of shape (E,)
        The indices of the E tested bins, rising; the last one is the binning's.
    clients : tuple of str
        The K clients: not all of the federation's.
    names : tuple of str
        The C classes.
    cumulative_upper : ndarray of shape (E, K, C), optional
        What the counts are at most, where some reports are coarse. Only pruning needs it: tests of
        coverage need the least counts alone.
    """

    cumulative: IntArray
    class_sizes: IntArray
    edges: IndexArray
    clients: tuple[str, ...]
    names: tuple[str, ...]
    cumulative_upper: IntArray | None = None


def class_counts(federation: Federation) -> ClassCounts:
    """Return the counts by class of the clients that report all of their classes.

    Clients that merged classes with few samples are left out: what they merged is no class that
    clients share.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    """
    strata = federation.strata
    if strata is None or strata.by != "class":
        raise RobfcpError(
            "guarantee: LabelShiftGuarantee needs reports by class; recreate them with "
            "--stratify-by-class (stratify_by_class=True)"
        )
    if federation.has_noise:
        raise RobfcpError(
            "guarantee: LabelShiftGuarantee is not proved for private reports; use another one"
        )

    # The table has one row for each client with strata, and n_strata * n_bins cells in a row, those
    # of a stratum side by side. Merged are the cells between the tested bins of each stratum.
    n_bins = strata.n_bins
    n_strata = strata.n_strata
    bins = fixed_bins(n_bins, MAX_CELLS // (len(strata.rows) * n_strata))
    first_cells = np.arange(n_strata)[:, None] * n_bins
    merged_bin_ends = np.unique(first_cells + np.append(bins, n_bins - 1))

    counts = strata.table.merge_bins(merged_bin_ends)
    counts = counts.reshape(len(strata.rows), n_strata, -1)  # (K', C', E)
    is_class = np.array([name != OTHER_STRATUM for name in strata.labels])
    is_complete = counts[:, ~is_class].sum(axis=(1, 2)) == 0
    if not is_complete.any():
        raise RobfcpError(
            "guarantee: every client merged classes; recreate reports without --min-class-count "
            "(min_class_count=1)"
        )

    cumulative_upper = None
    if federation.is_coarsened.any():
        lowest_strata = federation.counts_in_lowest_bins().strata
        if lowest_strata is not None:
            lowest_counts = lowest_strata.table.merge_bins(merged_bin_ends).reshape(counts.shape)
            cumulative_upper = _cumulative_by_bin(lowest_counts[is_complete][:, is_class])

    counts_by_class = counts[is_complete][:, is_class]
    rows = strata.rows[is_complete].tolist()
    return ClassCounts(
        cumulative=_cumulative_by_bin(counts_by_class),
        class_sizes=counts_by_class.sum(axis=2),
        edges=bins,
        clients=tuple(federation.clients[row] for row in rows),
        names=tuple(name for name in strata.labels if name != OTHER_STRATUM),
        cumulative_upper=cumulative_upper,
    )


def _cumulative_by_bin(counts: IntArray) -> IntArray:
    """Return (E, K, C) the counts up to each bin, from (K, C, E) counts of each bin."""
    return np.ascontiguousarray(np.cumsum(counts, axis=2).transpose(2, 0, 1))


def fixed_bins(n_bins: int, max_bins: int = MAX_BINS_TESTED) -> IndexArray:
    """Return at most MAX_BINS_TESTED bins, evenly spread over all; the last one among them.

    Parameters
    ----------
    n_bins : int
        H.
    max_bins : int
        How many of them there is room for; at least 2 are returned all the same.
    """
    n_tested = max(2, min(MAX_BINS_TESTED, max_bins, n_bins))
    return np.unique(np.linspace(0, n_bins - 1, n_tested).round().astype(np.intp))


@dataclass(frozen=True)
class SequenceResult:
    """Where a fixed sequence of tests from the last bin down ended.

    Attributes
    ----------
    bin_index : int or None
        The last bin that was accepted, of the binning, not a row of `ClassCounts`; None if none
        was: the threshold is infinite.
    pruned_clients : tuple of str
        The clients that were dropped at that bin.
    is_contradicted : bool
        Whether more than m clients would have to be dropped at a bin on the way: label shift or m
        cannot be as declared, and nothing is certified.
    classes_with_too_few_clients : tuple of str
        The classes with at most as many holders as may be malicious; they explain why no bin was
        accepted.
    """

    bin_index: int | None = None
    pruned_clients: tuple[str, ...] = ()
    is_contradicted: bool = False
    classes_with_too_few_clients: tuple[str, ...] = ()


class BinEvidence(NamedTuple):
    """What is known at one bin of the K' clients that are kept there.

    Attributes
    ----------
    cumulative : ndarray of shape (K', C)
        The counts up to the bin, in samples, at least.
    sizes : ndarray of shape (K', C)
        n_kc.
    max_malicious : int
        m': how many of these clients may be malicious, m less the dropped ones.
    delta : float
        The probability with which a bin that covers too little may be accepted; without what is
        spent on dropping clients.
    held_out : int or None
        The client that the threshold is for, whose own report is held out, as an index of
        `ClassCounts.clients`, not of the rows here.
    """

    cumulative: IntArray
    sizes: IntArray
    max_malicious: int
    delta: float
    held_out: int | None


AcceptanceTest = Callable[[BinEvidence], bool]


def fixed_sequence_thresholds(
    counts: ClassCounts,
    max_malicious: int,
    delta: float,
    heterogeneity: float,
    accepts: AcceptanceTest,
    leave_out: Sequence[int | None] = (None,),
) -> list[SequenceResult]:
    """Find the lowest certified threshold by fixed-sequence testing from the last bin down.

    At every bin clients that contradict the others are dropped, and `accepts` decides whether the
    counts of those kept rule out insufficient coverage. A sequence ends at its first bin that is
    not accepted.

    Validity: the bins and their order are fixed before the counts are seen, so that the first bin
    in the sequence that covers too little is not random. The threshold covers too little only if a
    benign client is dropped there, or if that one bin is accepted. Neither a correction for several
    tests is needed, nor must acceptance be monotone in the bin (docs/theory.md, section 11, "Fixed
    edges").

    Parameters
    ----------
    counts : ClassCounts
        Cumulative counts by class.
    max_malicious : int
        m.
    delta : float
        The probability with which a threshold may cover too little. A fixed part of it is for
        dropping benign clients.
    heterogeneity : float
        The declared heterogeneity within classes.
    accepts : callable
        The test at one bin; it need not be monotone in the bin. It is called for falling bins.
    leave_out : sequence of int or None
        One sequence is run for each entry, without that client's own report; None uses every
        report. The entries are all None, or all indices of clients; at least one.

    Returns
    -------
    list of SequenceResult
        In the order of `leave_out`.
    """
    n_clients = len(counts.clients)
    pairs = ClientPairs(counts.class_sizes)
    heterogeneity = check_heterogeneity(heterogeneity)
    n_present = n_clients if leave_out[0] is None else n_clients - 1
    max_malicious = check_max_malicious(max_malicious, n_present)
    # Pruning and the test share delta.
    pruning_delta = PRUNING_DELTA_FRACTION * check_delta(delta)
    test_delta = (1 - PRUNING_DELTA_FRACTION) * delta

    # Replaced, never changed, so that all may start as the same object.
    results = [SequenceResult()] * len(leave_out)
    running = list(range(len(leave_out)))  # the sequences that accepted every bin so far
    for row in reversed(range(len(counts.edges))):
        if not running:
            break
        contradictions = pairs.contradictions(
            counts.cumulative[row],
            max_malicious,
            pruning_delta,
            heterogeneity,
            n_present,
            None if counts.cumulative_upper is None else counts.cumulative_upper[row],
        )

        still_running = []
        for sequence in running:
            held_out = leave_out[sequence]
            is_present = np.arange(n_clients) != held_out
            kept_mask = _kept_clients(contradictions, is_present, max_malicious)
            # More than m clients would be dropped: what was accepted above is given up too.
            if kept_mask is None:
                results[sequence] = SequenceResult(is_contradicted=True)
                continue

            evidence = BinEvidence(
                cumulative=counts.cumulative[row][kept_mask],
                sizes=counts.class_sizes[kept_mask],
                max_malicious=max_malicious - int(n_present - kept_mask.sum()),
                delta=test_delta,
                held_out=held_out,
            )
            if accepts(evidence):
                pruned = np.flatnonzero(is_present & ~kept_mask)
                pruned_clients = tuple(counts.clients[client] for client in pruned)
                results[sequence] = SequenceResult(int(counts.edges[row]), pruned_clients)
                still_running.append(sequence)
        running = still_running
    return results


def _kept_clients(
    contradictions: BoolArray | None, is_present: BoolArray, max_malicious: int
) -> BoolArray | None:
    """Return (K,) which of the clients present are kept; None where more than m would be dropped.

    Parameters
    ----------
    contradictions : ndarray of shape (K, K) or None
        Which clients contradict which; None where no client is dropped.
    is_present : ndarray of shape (K,)
        The clients that are compared.
    max_malicious : int
        m.
    """
    if contradictions is None:
        return is_present
    return pruned_mask(contradictions, is_present, max_malicious)


class _PACTest:
    """The PAC condition on the clients kept at a bin.

    The tail test of clients of the same sizes is made once: it is the same at most bins. It is
    remembered by sizes and m' alone, so all evidence must have the same delta: one object serves
    one call of `fixed_sequence_thresholds`.

    Parameters
    ----------
    level : Fraction
        The target coverage.
    """

    def __init__(self, level: Fraction) -> None:
        self.level = level
        self._tests: dict[tuple[bytes, int], TailTest] = {}

    def accepts(self, evidence: BinEvidence) -> bool:
        """Return whether every set of clients that may be benign passes the test at a bin."""
        sizes = evidence.sizes.sum(axis=1)
        key = (sizes.tobytes(), evidence.max_malicious)
        if key not in self._tests:
            self._tests[key] = pac_tail_test(
                sizes, evidence.max_malicious, self.level, evidence.delta
            )
        test = self._tests[key]
        counts = evidence.cumulative.sum(axis=1)
        (is_accepted,) = test.accepts(counts[None, :], sizes, evidence.max_malicious)
        return bool(is_accepted)


def pac_threshold_after_pruning(
    counts: ClassCounts, level: Fraction, m: int, delta: float, sigma: float = 0.0
) -> SequenceResult:
    """Return the threshold of rule PC: prune, then the PAC condition on those kept, bin by bin.

    With probability >= 1 - delta it covers `level` of the benign clients' pool, whatever m clients
    report (docs/theory.md, section 11, theorem PC).

    Parameters
    ----------
    counts : ClassCounts
        Cumulative counts by class.
    level : Fraction
        The target coverage.
    m : int
        The largest number of malicious clients.
    delta : float
        The probability to fail.
    sigma : float, default=0
        The declared heterogeneity within classes.
    """
    test = _PACTest(level)
    return fixed_sequence_thresholds(counts, m, delta, sigma, test.accepts)[0]


def accepts_distributions(
    evidence: BinEvidence, distributions: LabelDistributions, alpha: float
) -> BoolArray:
    """Return whether each label mix is accepted at one bin.

    It is where U1 or U2, upper bounds on the benign miss rate, is small enough for n_eff, the least
    N_c^min / pi_c. U1 pools classes inside a client before the m' worst clients are taken, U2 takes
    each class's own envelope (docs/theory.md, section 11, theorem T).

    Parameters
    ----------
    evidence : BinEvidence
        The counts of the clients that are kept.
    distributions : LabelDistributions
        R mixes, those around a base included.
    alpha : float
        The target miss rate; what heterogeneity takes of it is taken by the caller.

    Returns
    -------
    ndarray of shape (R,)
        Whether the mix is accepted.
    """
    sizes = evidence.sizes
    max_malicious = evidence.max_malicious
    misses = (sizes - evidence.cumulative).astype(np.float64)
    class_sizes = sizes.sum(axis=0).astype(np.float64)  # N_c
    largest_sizes = sum_of_largest(np.ascontiguousarray(sizes.T), max_malicious)
    min_class_sizes = class_sizes - largest_sizes  # N_c^min
    effective_sizes = distributions.min_effective_sizes(min_class_sizes)

    def is_small(miss_rates: FloatArray) -> BoolArray:
        return is_miss_rate_small(miss_rates, effective_sizes, alpha, evidence.delta)

    # (C,) u_c, and (K', C) what the removal of a client adds to it at most: with the excess
    # e_kc = misses - u_c n_kc it is -e_kc / N_c, or -e_kc / N_c^min once others are removed.
    miss_rates = misses.sum(axis=0) / np.maximum(class_sizes, 1)
    missing = -(misses - miss_rates * sizes)
    additions = np.maximum(
        missing / np.maximum(class_sizes, 1), missing / np.maximum(min_class_sizes, 1)
    )

    rates_if_all_benign = distributions.expectations(miss_rates)
    # (R, K'): the m' clients whose removal adds most to a mix are taken.
    client_additions = np.maximum(distributions.expectations(additions), 0).T.copy()
    bound_over_clients = rates_if_all_benign + sum_of_largest(client_additions, max_malicious)
    is_accepted = is_small(bound_over_clients)
    may_be_accepted = is_small(rates_if_all_benign)
    # U2 is at least the rate without removals, so it cannot accept what that rate does not. It is
    # slow, and hence computed only where it may decide.
    if (is_accepted == may_be_accepted).all():
        return is_accepted

    envelopes = _class_envelopes(sizes - evidence.cumulative, sizes, max_malicious, min_class_sizes)
    bound_by_class = distributions.expectations(envelopes)
    return is_accepted | (may_be_accepted & is_small(bound_by_class))


def _class_envelopes(
    misses: IntArray, sizes: IntArray, max_malicious: int, min_class_sizes: FloatArray
) -> FloatArray:
    """Return (C,) the largest miss rate of each class over removals of at most m' clients.

    1 for a class that the m' largest holders may hold alone.

    Parameters
    ----------
    misses, sizes : ndarray of shape (K', C)
        The counts above the bin, and n_kc, in whole samples.
    max_malicious : int
        m'.
    min_class_sizes : ndarray of shape (C,)
        The samples of each class without those of its m' largest holders.
    """
    envelopes = np.ones(sizes.shape[1])
    for c in np.flatnonzero(min_class_sizes > 0):
        is_holder = sizes[:, c] > 0
        # One holder must remain. The least coverage is 1 less the largest miss rate.
        max_removed = np.array([min(max_malicious, int(is_holder.sum()) - 1)])
        covered = (sizes - misses)[None, is_holder, c]
        groups = ClientGroups.from_clients(covered, sizes[is_holder, c])
        n_covered, n_samples = min_coverage_over_removals(groups, max_removed)
        n_missed = n_samples - n_covered
        envelopes[c] = (n_missed / n_samples).item()
    return envelopes


class _DistributionTest:
    """Whether all label mixes are accepted at a bin; it notes which classes too few clients hold.

    One object serves one call of `fixed_sequence_thresholds`, whose first bin it notes.

    Parameters
    ----------
    distributions : LabelDistributions
        The mixes.
    alpha : float
        The target miss rate, without what heterogeneity takes of it.
    """

    def __init__(self, distributions: LabelDistributions, alpha: float) -> None:
        self.distributions = distributions
        self.alpha = alpha
        # (C,) at the first bin that is tested: holders of each class less m'. None before any test.
        self.n_benign_holders: IndexArray | None = None

    def accepts(self, evidence: BinEvidence) -> bool:
        """Return whether every mix is accepted."""
        if self.n_benign_holders is None:
            self.n_benign_holders = (evidence.sizes > 0).sum(axis=0) - evidence.max_malicious
        return bool(accepts_distributions(evidence, self.distributions, self.alpha).all())


def label_distribution_threshold(
    counts: ClassCounts,
    distributions: LabelDistributions,
    alpha: float,
    m: int,
    delta: float,
    sigma: float = 0.0,
) -> SequenceResult:
    """Return the threshold of rule T: the lowest bin of which it and all bins above are accepted.

    A bin is accepted where `accepts_distributions` accepts every mix. With probability
    >= 1 - delta coverage is at least 1 - alpha for all mixes at once, and all between them,
    whatever m clients report (docs/theory.md, section 11, theorem T).

    Parameters
    ----------
    counts : ClassCounts
        Cumulative counts by class.
    distributions : LabelDistributions
        The mixes.
    alpha : float
        The target miss rate.
    m : int
        The largest number of malicious clients.
    delta : float
        The probability to fail.
    sigma : float, default=0
        The declared heterogeneity within classes. It enters twice: the expected miss rate of the
        benign clients may lie by so much below that of the common distributions, so that it is
        tested against alpha - sigma; and clients that are compared may differ by twice as much
        before they contradict each other.

    Returns
    -------
    SequenceResult
        Where no bin is accepted it names the classes of the mixes that at most m' clients hold.
    """
    remaining_alpha = alpha - check_heterogeneity(sigma)
    if remaining_alpha <= 0:
        return SequenceResult()

    test = _DistributionTest(distributions, remaining_alpha)
    results = fixed_sequence_thresholds(counts, m, delta, sigma, test.accepts)
    result = results[0]  # of the only sequence, which uses every report

    # At the first bin the test notes how many clients hold each class beyond the m' that may be
    # malicious. It notes nothing if clients contradicted each other before.
    if result.bin_index is not None or test.n_benign_holders is None:
        return result
    has_too_few = distributions.has_mass & (test.n_benign_holders <= 0)
    names = tuple(counts.names[c] for c in np.flatnonzero(has_too_few))
    return replace(result, classes_with_too_few_clients=names)


def label_homogeneity_p_value(sizes: IntArray) -> float:
    """Return the p-value of "all clients drew their labels from one mix".

    Pearson's test, a diagnostic; classes and clients without samples are left out.

    Parameters
    ----------
    sizes : ndarray of shape (K, C)
        n_kc, whole samples without noise.

    Returns
    -------
    float
        1 where there are no samples.
    """
    from scipy.stats import chi2_contingency

    has_samples = sizes.sum(axis=1) > 0
    is_held = sizes.sum(axis=0) > 0
    table = sizes[has_samples][:, is_held]
    if not table.size:
        return 1.0
    return float(chi2_contingency(table, correction=False).pvalue)
