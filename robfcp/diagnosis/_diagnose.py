"""The probable cause of each unusual report.

It depends on the counts, on which clients are benign and on what the calibration covers, not on
how the defense decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import BoolArray, FloatArray, IntArray
from robfcp.calibration import client_coverage
from robfcp.defense import Consensus, find_duplicate_reports, rebuild_defense
from robfcp.diagnosis._causes import (
    CAUSES,
    DIFFERENT_LABEL_DISTRIBUTION,
    DIFFERENT_POPULATION,
    DUPLICATE_REPORT,
    SCORES_ALL_EQUAL,
    UNEXPLAINED,
)
from robfcp.diagnosis._diagnosis import Diagnosis, describe, format_fraction, join_class_names
from robfcp.diagnosis._label_distribution import (
    ClassProfiles,
    ClassSizes,
    different_distribution_likelihood,
)
from robfcp.diagnosis._likelihood import (
    MIN_REFERENCE_SCORES,
    FaultHypothesis,
    LabelDistributionLikelihood,
    rank_distribution_histograms,
    rank_fault_hypotheses,
    rank_histogram,
)
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, StratifiedTable
from robfcp.scores import ClassificationScore

if TYPE_CHECKING:
    from robfcp.calibration import Calibration

AnyCounts = NDArray[Any]  # whole numbers, and halves where they are midpoints

MIN_CLIENT_SCORES = 10
ALL_EQUAL_FRACTION = 0.95
CERTAINLY_EQUAL_FRACTION = 0.75  # whatever coarsening leaves open
COMMON_FRACTION = 0.5  # of the peers' scores in one bin; equal scores there are not unusual
MAX_CLASSES_NAMED = 3
CLEAR_LOG_RATIO = 3.0  # the next best hypothesis is less likely by e^3
CERTAIN_LOG_RATIO = 20.0  # a benign client is suspicious if "alike" is less likely by e^20
MAX_CELLS_DIAGNOSED = 10_000  # clients times classes, beyond which only coverage is tested

# A benign client is suspicious if its coverage is below the target by at least the shortfall, and
# if chance makes the coverage of any benign client so small with at most this probability.
MIN_SHORTFALL = 0.07
MAX_P_VALUE = 1e-3


def diagnose(
    calibration: Calibration, clients: Sequence[str] | None = None
) -> Mapping[str, Diagnosis]:
    """Diagnose every client that was excluded, and the included clients that are suspicious.

    Parameters
    ----------
    calibration : Calibration
        A calibration with its record.
    clients : sequence of str, optional
        The clients to diagnose, whether suspicious or not.

    Returns
    -------
    mapping of str to Diagnosis
        A diagnosis for every flagged client, in the order of the federation; then one for every
        included client whose coverage is far too low, whose report clearly shows a fault, or that
        a note of the default defense names. Beyond 10,000 clients times classes only the coverage
        of included clients is tested.

    Examples
    --------
    >>> import robfcp
    >>> counts = [[60, 20, 10, 10]] * 5 + [[10, 10, 30, 50]]
    >>> calibration = robfcp.calibrate(
    ...     robfcp.Federation.from_counts(counts), coverage=0.8, defense="none"
    ... )
    >>> robfcp.diagnose(calibration)["client-5"].coverage_text
    'only 50% of its own cases are covered where 80% should be'
    """
    client_index = {client: k for k, client in enumerate(calibration.federation.clients)}
    for client in clients or ():
        if client not in client_index:
            raise RobfcpError(f"clients: {client!r:.60} sent no valid report in this round")

    examiner = _Examiner(calibration)
    if clients is not None:
        return {client: examiner.examine(client_index[client])[0] for client in clients}

    benign_mask = calibration.benign_mask
    flagged_indices = np.flatnonzero(~benign_mask)
    if examiner.is_very_large:
        benign_indices = np.flatnonzero(benign_mask & examiner.is_suspicious)
    else:
        benign_indices = np.flatnonzero(benign_mask)

    diagnoses: dict[str, Diagnosis] = {}
    for k in [*flagged_indices, *benign_indices]:
        diagnosis, is_noteworthy = examiner.examine(int(k))
        if is_noteworthy or not diagnosis.is_benign:
            diagnoses[diagnosis.client] = diagnosis
    return diagnoses


class _Examiner:
    """Compares single reports with those of the other included clients, pooled: the peers.

    It holds what all comparisons of a round have in common; `examine` does one of them. Only the
    constructor sets attributes.
    """

    def __init__(self, calibration: Calibration) -> None:
        self.federation = calibration.federation
        self.as_counts = self.federation.as_sample_counts()  # losses rounded to whole samples
        self.strata = self.as_counts.strata
        self.benign_mask = calibration.benign_mask
        self.target_coverage = float(calibration.levels[0].coverage)
        self.client_coverage = calibration.client_coverage()[:, 0]

        n_clients = self.federation.n_clients
        n_strata = 1 if self.strata is None else self.strata.n_strata
        class_totals = self.as_counts.class_totals
        if class_totals is not None:
            n_strata = max(n_strata, class_totals.n_strata)
        self.is_very_large = n_clients * n_strata > MAX_CELLS_DIAGNOSED
        is_named = self._is_named_by_defense(calibration)
        self.is_suspicious = self._covers_too_little(calibration) | is_named

        # Causes have other names where numbers are predicted instead of classes.
        self.is_regression = not isinstance(self.federation.score, ClassificationScore | None)

        # The counts of all included clients, pooled over classes or groups and by them.
        self.pooled = self._sum_of_included(_pooled_counts)[None, :]
        self.pooled_by_stratum = self.pooled
        self.stratum_row: dict[int, int] = {}
        if self.strata is not None:
            pooled = self._sum_of_included(_pooled_strata)
            self.pooled_by_stratum = pooled.reshape(-1, self.strata.n_bins)
            self.stratum_row = {int(k): row for row, k in enumerate(self.strata.rows)}

        # What class totals lead one to expect of the clients that state them.
        self.profiles = ClassProfiles.from_federation(
            self.as_counts, self.pooled[0], self.benign_mask, MAX_CELLS_DIAGNOSED
        )

        self.duplicated_client: dict[str, str] = {}
        for group in find_duplicate_reports(self.as_counts):
            for client in group.clients:
                peers = [peer for peer in group.clients if peer != client]
                self.duplicated_client[client] = peers[0]
        self.rank_histograms = rank_distribution_histograms()

    def _sum_of_included(self, read: Callable[[Federation, BoolArray], AnyCounts]) -> AnyCounts:
        """Return the counts of all included clients together, at midpoints.

        Parameters
        ----------
        read : callable
            Takes a federation and which of its clients are included; returns sums of their counts.
        """

        def read_block(block: Federation, is_included: BoolArray) -> AnyCounts:
            return block.at_midpoints(lambda bounded: read(bounded, is_included))

        return self.as_counts.reduce_blocks(read_block, self.benign_mask)

    def _covers_too_little(self, calibration: Calibration) -> BoolArray:
        """Return who covers less of its cases than chance allows even the worst of K clients, (K,).

        A binomial test of the target coverage, with Bonferroni's correction, and a least shortfall.
        Of a coarsened report the most is taken that its counts allow, so that nobody is suspicious
        because of what coarsening leaves open.
        """
        from scipy.special import bdtr

        def read_most(block: Federation) -> FloatArray:
            lowest = block.counts_in_lowest_bins()
            levels = calibration.levels[:1]
            return client_coverage(lowest, levels, by_stratum=calibration.by is not None)

        most_covered = self.client_coverage
        if self.federation.is_coarsened.any():
            most_covered = self.federation.map_blocks(read_most)[:, 0]

        sizes = self.federation.sample_sizes
        n_covered = np.rint(most_covered * sizes)
        p_values = bdtr(n_covered, sizes, self.target_coverage)
        is_significant = p_values < MAX_P_VALUE / max(1, len(sizes))
        is_far_below: BoolArray = most_covered < self.target_coverage - MIN_SHORTFALL
        return is_significant & is_far_below

    def _is_named_by_defense(self, calibration: Calibration) -> BoolArray:
        """Return the clients that a note of the default defense names as undecided, (K,)."""
        record = calibration.require_record()
        if record.defense == Consensus.name and not self.is_very_large:
            consensus = cast(Consensus, rebuild_defense(Consensus.name, record.parameters))
            if consensus.n_malicious is None:  # with an exact number every client is decided
                return consensus.find_outliers(self.as_counts).is_mentioned
        return np.zeros(self.federation.n_clients, dtype=bool)

    def examine(self, k: int) -> tuple[Diagnosis, bool]:
        """Return the diagnosis of the report in row k, and whether it makes a client suspicious."""
        client = self.federation.clients[k]
        blank = Diagnosis(
            client=client,
            is_benign=bool(self.benign_mask[k]),
            cause="",
            description="",
            recommendation="",
            coverage=float(self.client_coverage[k]),
            target_coverage=self.target_coverage,
            risk=self.federation.risk,
        )
        unexplained = describe(blank, UNEXPLAINED)
        if self.federation.privacy and self.federation.privacy[k] is not None:
            description = "its counts hold privacy noise, which hides the cause"
            return replace(unexplained, description=description), False

        # Coarsening puts a class of fewer samples than two cells into a single cell, so that equal
        # scores there prove nothing.
        reported = self._counts_of(k)
        counts = reported.counts
        peer_counts = reported.peer_counts
        informative_counts = counts
        lowest_counts = reported.lowest_counts
        min_cell_count = int(self.as_counts.min_cell_counts[k])
        if min_cell_count > 1:
            is_informative = counts.sum(axis=1) >= 2 * min_cell_count
            informative_counts = counts[is_informative]
            lowest_counts = lowest_counts[is_informative]
        location = _location_of_equal_scores(informative_counts, lowest_counts, peer_counts)
        if location:
            cause = self._cause_name(SCORES_ALL_EQUAL)
            return describe(unexplained, cause, location=location), True

        if client in self.duplicated_client:
            return describe(
                unexplained, DUPLICATE_REPORT, duplicate_of=self.duplicated_client[client]
            ), True
        if peer_counts.sum() < MIN_REFERENCE_SCORES or counts.sum() < MIN_CLIENT_SCORES:
            return unexplained, bool(self.is_suspicious[k])
        return self._most_likely_cause(k, unexplained, reported)

    def _counts_of(self, k: int) -> _ReportedCounts:
        """Return the counts of a client and of its peers.

        There is one row and no name if the client pooled its classes or groups.
        """
        as_sent = self.as_counts
        lowest = as_sent
        row = k
        if as_sent.min_cell_counts[k] > 1:
            as_sent = as_sent.select_rows(np.array([k]))
            lowest = as_sent.counts_in_lowest_bins()
            row = 0

        names: tuple[str, ...] = ()
        if self.strata is not None and k in self.stratum_row:
            n_bins = self.strata.n_bins
            stratum_row = self.stratum_row[k] if row == k else 0
            counts = _strata_of(as_sent).table.row(stratum_row).reshape(-1, n_bins)
            lowest_counts = _strata_of(lowest).table.row(stratum_row).reshape(-1, n_bins)
            peer_counts = self.pooled_by_stratum
            names = self.strata.labels
        else:
            counts = as_sent.table.row(row)[None, :]
            lowest_counts = lowest.table.row(row)[None, :]
            peer_counts = self.pooled

        # A client is no peer of itself. Its midpoints are halves, which are exact.
        if self.benign_mask[k]:
            is_exact = lowest is as_sent
            own_counts = counts if is_exact else (counts + lowest_counts) / 2
            peer_counts = peer_counts - own_counts

        class_sizes = None
        totals = self.as_counts.class_totals
        if not names and self.profiles is not None and totals is not None and k in totals.rows:
            class_sizes = ClassSizes.from_federation(self.as_counts.select_rows(np.array([k])))
        return _ReportedCounts(counts, lowest_counts, peer_counts, names, class_sizes)

    def _most_likely_cause(
        self, k: int, unexplained: Diagnosis, reported: _ReportedCounts
    ) -> tuple[Diagnosis, bool]:
        """Return the likeliest hypothesis, and whether it makes a client suspicious."""
        names = reported.names
        by_class = bool(names) and self.strata is not None and self.strata.by == "class"
        peer_counts = reported.peer_counts
        class_sizes = reported.class_sizes
        if class_sizes is not None and self.profiles is not None:
            expected = self.profiles.expected_peers(k, class_sizes, peer_counts[0])
            peer_counts = expected[None, :]
        hypotheses = rank_fault_hypotheses(
            reported.counts,
            peer_counts,
            self.as_counts.binning,
            self.rank_histograms,
            by_class=by_class,
            min_cell_count=int(self.as_counts.min_cell_counts[k]),
        )
        best = hypotheses[0]
        second = hypotheses[1]
        no_fault = next(hypothesis for hypothesis in hypotheses if hypothesis.cause == UNEXPLAINED)

        is_sure = best.likelihood - second.likelihood > CLEAR_LOG_RATIO
        template = replace(unexplained, is_clear=is_sure)
        if best.cause == UNEXPLAINED:
            diagnosis = self._diagnose_label_distribution(k, unexplained, reported)
        else:
            diagnosis = self._describe_hypothesis(template, best, reported)

        # Name the runner-up if it is nearly as likely and reads differently.
        if not is_sure and UNEXPLAINED not in (best.cause, second.cause):
            alternative = self._describe_hypothesis(template, second, reported).summary
            if alternative != diagnosis.summary:
                diagnosis = replace(diagnosis, alternative=alternative)

        # Andifferent label distribution may explain scores that no known mix leads one to expect.
        log_no_fault = no_fault.likelihood
        if best.cause != UNEXPLAINED and class_sizes is not None:
            log_other_mix = self._different_distribution_likelihood(k, class_sizes, reported)
            log_no_fault = max(log_no_fault, log_other_mix)
            if best.likelihood - log_other_mix < CERTAIN_LOG_RATIO:
                diagnosis = replace(
                    diagnosis, is_clear=False, alternative=DIFFERENT_LABEL_DISTRIBUTION
                )

        # "Other cases" fits anything and is no evidence of a fault.
        log_ratio = best.likelihood - log_no_fault
        shows_fault = best.cause != DIFFERENT_POPULATION and log_ratio > CERTAIN_LOG_RATIO
        return diagnosis, bool(self.is_suspicious[k] or shows_fault)

    def _diagnose_label_distribution(
        self, k: int, unexplained: Diagnosis, reported: _ReportedCounts
    ) -> Diagnosis:
        """Return the diagnosis of a client whose scores are as one expects of its labels."""
        if reported.names:
            sizes = reported.counts.sum(axis=1)
            peer_sizes = reported.peer_counts.sum(axis=1)
            return _diagnose_class_sizes(unexplained, sizes, peer_sizes, reported.names)
        class_sizes = reported.class_sizes
        if class_sizes is None or self.profiles is None:
            return unexplained

        # Rounded class totals: what is possible and least unusual.
        peer_sizes = self.profiles.peer_sizes(k)
        sizes = class_sizes.nearest_to(peer_sizes / max(1.0, float(peer_sizes.sum())))
        return _diagnose_class_sizes(unexplained, sizes, peer_sizes, class_sizes.names)

    def _different_distribution_likelihood(
        self, k: int, class_sizes: ClassSizes, reported: _ReportedCounts
    ) -> float:
        """Return the log-likelihood of a client's ranks if its mix of classes alone is another.

        It is minus infinity where its class totals are as the peers'.
        """
        assert self.profiles is not None
        peer_sizes = self.profiles.peer_sizes(k)
        peer_shares = peer_sizes / max(1.0, float(peer_sizes.sum()))
        sizes = class_sizes.nearest_to(peer_shares)
        if not LabelDistributionLikelihood(sizes, peer_sizes).is_unusual:
            return -np.inf
        ranks = rank_histogram(
            reported.counts,
            reported.peer_counts,
            min_cell_count=int(self.as_counts.min_cell_counts[k]),
        )
        lowest, highest = class_sizes.ratios_to(peer_shares)
        return different_distribution_likelihood(ranks[0], lowest, highest)

    def _describe_hypothesis(
        self, template: Diagnosis, hypothesis: FaultHypothesis, reported: _ReportedCounts
    ) -> Diagnosis:
        """Return the hypothesis in words, with the names of its classes if they are reported."""
        names = reported.names
        classes: tuple[str, ...] = ()
        if names:
            classes = tuple(names[c] for c in hypothesis.classes)
        location = ""
        if 0 < len(classes) <= MAX_CLASSES_NAMED:
            location = f" in {join_class_names(classes)}"

        if names:
            mismatch = "its labels do not fit its probabilities in most classes"
        else:
            size = "large" if template.coverage < template.target_coverage else "small"
            mismatch = f"its scores are far too {size}, as with wrong labels or another model"
        cause = self._cause_name(hypothesis.cause)
        return describe(
            template,
            cause,
            classes,
            location=location,
            mismatch=mismatch,
            hides_classes=reported.class_sizes is not None,
        )

    def _cause_name(self, cause: str) -> str:
        """Return the name of a cause for the scores of this round."""
        if not self.is_regression:
            return cause
        return CAUSES[cause].regression_name or cause


class _ReportedCounts(NamedTuple):
    """What a client and its peers reported.

    Attributes
    ----------
    counts : ndarray of int, shape (C, H)
        The client's counts by class or group and bin, as sent.
    lowest_counts : ndarray of int, shape (C, H)
        The same with every sample in the lowest bin that coarsening allows.
    peer_counts : ndarray of shape (C, H)
        The counts of its peers together, at midpoints.
    names : tuple of str
        The names of the classes or groups; none where the client reports one table of all.
    class_sizes : ClassSizes or None
        Its samples of each class where it reports one table of all classes, and class totals.
    """

    counts: IntArray
    lowest_counts: IntArray
    peer_counts: AnyCounts
    names: tuple[str, ...]
    class_sizes: ClassSizes | None


def _pooled_counts(federation: Federation, is_included: BoolArray) -> IntArray:
    """Return (H,) the counts of some clients together."""
    return federation.pooled_counts(is_included)


def _pooled_strata(federation: Federation, is_included: BoolArray) -> IntArray:
    """Return (C H,) the counts by class or group of some clients together."""
    strata = _strata_of(federation)
    return strata.table.pooled_counts(is_included[strata.rows])


def _strata_of(federation: Federation) -> StratifiedTable:
    """Return the counts by class or group of a round that has them."""
    assert federation.strata is not None
    return federation.strata


def _diagnose_class_sizes(
    unexplained: Diagnosis, sizes: AnyCounts, peer_sizes: AnyCounts, names: tuple[str, ...]
) -> Diagnosis:
    """Return the diagnosis of a client by its samples of each class, and its peers'."""
    labels = LabelDistributionLikelihood(sizes, peer_sizes)
    if not labels.is_unusual:
        return unexplained

    # Name the class whose fraction differs most.
    fractions = sizes / sizes.sum()
    peer_fractions = peer_sizes / max(1, int(peer_sizes.sum()))
    c = int(np.argmax(np.abs(fractions - peer_fractions)))
    return describe(
        unexplained,
        DIFFERENT_LABEL_DISTRIBUTION,
        (names[c],),
        fraction=format_fraction(float(fractions[c])),
        peer_fraction=format_fraction(float(peer_fractions[c])),
    )


def _location_of_equal_scores(
    counts: IntArray, lowest_counts: IntArray, peer_counts: AnyCounts
) -> str:
    """Return which bin holds nearly all scores, in words; empty if none does or peers' do too.

    Of a coarsened report most scores must lie in that bin for certain, and not below.

    Parameters
    ----------
    counts, lowest_counts : ndarray of int, shape (C, H)
        The client's counts as sent, and as low as coarsening allows.
    peer_counts : ndarray of shape (C', H)
        Those of its peers.
    """
    by_bin = counts.sum(axis=0)
    lowest_by_bin = lowest_counts.sum(axis=0)
    peers_by_bin = peer_counts.sum(axis=0)
    n_scores = int(by_bin.sum())
    fullest_bin = int(np.argmax(by_bin))
    if n_scores < MIN_CLIENT_SCORES or by_bin[fullest_bin] < ALL_EQUAL_FRACTION * n_scores:
        return ""
    if lowest_by_bin[fullest_bin] < CERTAINLY_EQUAL_FRACTION * n_scores:
        return ""
    peer_fraction = peers_by_bin[fullest_bin] / max(1, int(peers_by_bin.sum()))
    if peer_fraction > COMMON_FRACTION:
        return ""

    if fullest_bin == 0:
        return "the smallest there is"
    if fullest_bin == len(by_bin) - 1:
        return "the largest there is"
    return "all in one bin"
