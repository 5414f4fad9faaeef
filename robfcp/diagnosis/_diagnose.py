"""The probable cause of each unusual report.

It depends on the counts, on which clients are benign and on what the calibration covers, not on
how the defense decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from robfcp._typing import BoolArray, IntArray
from robfcp.defense import Consensus, find_duplicate_reports, rebuild_defense
from robfcp.diagnosis._causes import (
    CAUSES,
    COPY,
    NOT_TOLD,
    OTHER_CASES,
    OTHER_MIX,
    SCORES_ALL_EQUAL,
)
from robfcp.diagnosis._diagnosis import Diagnosis, describe, format_fraction, join_class_names
from robfcp.diagnosis._likelihood import (
    MIN_REFERENCE_SCORES,
    MIN_SAMPLES_OF_COARSE_CLASS,
    RARE_LOG_PENALTY,
    FaultHypothesis,
    LabelDistributionLikelihood,
    rank_distribution_histograms,
    rank_fault_hypotheses,
)
from robfcp.errors import RobfcpError
from robfcp.scores import ClassificationScore

if TYPE_CHECKING:
    from robfcp.calibration import Calibration

MIN_CLIENT_SCORES = 10
ALL_EQUAL_FRACTION = 0.95
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
    ...     robfcp.Federation.from_counts(counts), 0.8, defense="none"
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
        if is_noteworthy or not diagnosis.trusted:
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
        self.is_very_large = n_clients * n_strata > MAX_CELLS_DIAGNOSED
        self.is_suspicious = self._covers_too_little() | self._is_named_by_defense(calibration)

        # A single report can look coarsened by chance; most of a round cannot.
        is_coarsened = self.as_counts.is_coarsened
        self.is_coarsened = is_coarsened & (2 * is_coarsened.sum() > n_clients)

        # Causes have other names where numbers are predicted instead of classes.
        self.is_regression = not isinstance(self.federation.score, ClassificationScore | None)

        # The counts of all included clients, pooled over classes or groups and by them.
        self.pooled = self.as_counts.pooled_counts(self.benign_mask)[None, :]
        self.pooled_by_stratum = self.pooled
        self.stratum_row: dict[int, int] = {}
        if self.strata is not None:
            pooled = self.strata.table.pooled_counts(self.benign_mask[self.strata.rows])
            self.pooled_by_stratum = pooled.reshape(-1, self.strata.n_bins)
            self.stratum_row = {int(k): row for row, k in enumerate(self.strata.rows)}

        self.duplicated_client: dict[str, str] = {}
        for group in find_duplicate_reports(self.as_counts):
            for client in group.clients:
                peers = [peer for peer in group.clients if peer != client]
                self.duplicated_client[client] = peers[0]
        self.rank_histograms = rank_distribution_histograms()

    def _covers_too_little(self) -> BoolArray:
        """Return who covers less of its cases than chance allows even the worst of K clients, (K,).

        A binomial test of the target coverage, with Bonferroni's correction, and a least shortfall.
        """
        from scipy.special import bdtr

        sizes = self.federation.sample_sizes
        n_covered = np.rint(self.client_coverage * sizes)
        p_values = bdtr(n_covered, sizes, self.target_coverage)
        is_significant = p_values < MAX_P_VALUE / max(1, len(sizes))
        is_far_below: BoolArray = self.client_coverage < self.target_coverage - MIN_SHORTFALL
        return is_significant & is_far_below

    def _is_named_by_defense(self, calibration: Calibration) -> BoolArray:
        """Return the clients that a note of the default defense names as undecided, (K,)."""
        record = calibration.require_record()
        if record.defense == Consensus.name and not self.is_very_large:
            consensus = cast(Consensus, rebuild_defense(Consensus.name, record.parameters))
            if consensus.exactly is None:  # with an exact number every client is decided
                return consensus.find_outliers(self.as_counts).is_mentioned
        return np.zeros(self.federation.n_clients, dtype=bool)

    def examine(self, k: int) -> tuple[Diagnosis, bool]:
        """Return the diagnosis of the report in row k, and whether it makes a client suspicious."""
        client = self.federation.clients[k]
        blank = Diagnosis(
            client=client,
            trusted=bool(self.benign_mask[k]),
            cause="",
            finding="",
            advice="",
            covered=float(self.client_coverage[k]),
            wanted=self.target_coverage,
            risk=self.federation.risk,
        )
        unexplained = describe(blank, NOT_TOLD)
        if self.federation.privacy and self.federation.privacy[k] is not None:
            finding = "its counts hold privacy noise, which hides the cause"
            return replace(unexplained, finding=finding), False

        # Coarsening puts a class of fewer than ten samples into a single cell, so that equal
        # scores there prove nothing.
        counts, peer_counts, class_names = self._counts_of(k)
        informative_counts = counts
        if self.is_coarsened[k]:
            informative_counts = counts[counts.sum(axis=1) >= MIN_SAMPLES_OF_COARSE_CLASS]
        location = _location_of_equal_scores(informative_counts, peer_counts)
        if location:
            cause = self._cause_name(SCORES_ALL_EQUAL)
            return describe(unexplained, cause, location=location), True

        if client in self.duplicated_client:
            return describe(unexplained, COPY, other=self.duplicated_client[client]), True
        if peer_counts.sum() < MIN_REFERENCE_SCORES or counts.sum() < MIN_CLIENT_SCORES:
            return unexplained, bool(self.is_suspicious[k])
        return self._most_likely_cause(k, unexplained, counts, peer_counts, class_names)

    def _counts_of(self, k: int) -> tuple[IntArray, IntArray, tuple[str, ...]]:
        """Return the counts of a client and of its peers, (C, H) each, and the stratum names.

        There is one row and no name if the client pooled its classes or groups.
        """
        names: tuple[str, ...] = ()
        if self.strata is not None and k in self.stratum_row:
            row = self.strata.table.row(self.stratum_row[k])
            counts = row.reshape(-1, self.strata.n_bins)
            peer_counts = self.pooled_by_stratum
            names = self.strata.labels
        else:
            counts = self.as_counts.table.row(k)[None, :]
            peer_counts = self.pooled
        if self.benign_mask[k]:
            peer_counts = peer_counts - counts  # a client is no peer of itself
        return counts, peer_counts, names

    def _most_likely_cause(
        self,
        k: int,
        unexplained: Diagnosis,
        counts: IntArray,
        peer_counts: IntArray,
        names: tuple[str, ...],
    ) -> tuple[Diagnosis, bool]:
        """Return the likeliest hypothesis, and whether it makes a client suspicious."""
        by_class = bool(names) and self.strata is not None and self.strata.by == "class"
        hypotheses = rank_fault_hypotheses(
            counts,
            peer_counts,
            self.as_counts.binning,
            self.rank_histograms,
            by_class=by_class,
            is_coarsened=bool(self.is_coarsened[k]),
        )
        best = hypotheses[0]
        second = hypotheses[1]
        no_fault = next(hypothesis for hypothesis in hypotheses if hypothesis.cause == NOT_TOLD)

        is_sure = best.likelihood - second.likelihood > CLEAR_LOG_RATIO
        template = replace(unexplained, sure=is_sure)
        if best.cause == NOT_TOLD:
            diagnosis = _diagnose_label_distribution(unexplained, counts, peer_counts, names)
        else:
            diagnosis = self._describe_hypothesis(template, best, names)

        # Name the runner-up if it is nearly as likely and reads differently.
        if not is_sure and NOT_TOLD not in (best.cause, second.cause):
            alternative = self._describe_hypothesis(template, second, names).summary
            if alternative != diagnosis.summary:
                diagnosis = replace(diagnosis, instead=alternative)

        # "Other cases" fits anything and is no evidence of a fault.
        log_ratio = best.likelihood - no_fault.likelihood
        shows_fault = best.cause != OTHER_CASES and log_ratio > CERTAIN_LOG_RATIO
        return diagnosis, bool(self.is_suspicious[k] or shows_fault)

    def _describe_hypothesis(
        self, template: Diagnosis, hypothesis: FaultHypothesis, names: tuple[str, ...]
    ) -> Diagnosis:
        """Return the hypothesis in words, with the names of its classes if they are reported."""
        classes: tuple[str, ...] = ()
        if names:
            classes = tuple(names[c] for c in hypothesis.classes)
        location = ""
        if 0 < len(classes) <= MAX_CLASSES_NAMED:
            location = f" in {join_class_names(classes)}"

        if names:
            mismatch = "its labels do not fit its probabilities in most classes"
        else:
            size = "large" if template.covered < template.wanted else "small"
            mismatch = f"its scores are far too {size}, as with wrong labels or another model"
        cause = self._cause_name(hypothesis.cause)
        return describe(template, cause, classes, location=location, mismatch=mismatch)

    def _cause_name(self, cause: str) -> str:
        """Return the name of a cause for the scores of this round."""
        if not self.is_regression:
            return cause
        return CAUSES[cause].regression_name or cause


def _diagnose_label_distribution(
    unexplained: Diagnosis, counts: IntArray, peer_counts: IntArray, names: tuple[str, ...]
) -> Diagnosis:
    """Return the diagnosis of a client whose scores are as its peers' in every class."""
    if not names:
        return unexplained
    sizes = counts.sum(axis=1)
    peer_sizes = peer_counts.sum(axis=1)
    labels = LabelDistributionLikelihood(sizes, peer_sizes)
    if labels.anything - RARE_LOG_PENALTY <= labels.as_peers:
        return unexplained

    # Name the class whose fraction differs most.
    fractions = sizes / sizes.sum()
    peer_fractions = peer_sizes / max(1, int(peer_sizes.sum()))
    c = int(np.argmax(np.abs(fractions - peer_fractions)))
    return describe(
        unexplained,
        OTHER_MIX,
        (names[c],),
        fraction=format_fraction(float(fractions[c])),
        peer_fraction=format_fraction(float(peer_fractions[c])),
    )


def _location_of_equal_scores(counts: IntArray, peer_counts: IntArray) -> str:
    """Return which bin holds nearly all scores, in words; empty if none does or peers' do too."""
    by_bin = counts.sum(axis=0)
    peers_by_bin = peer_counts.sum(axis=0)
    n_scores = int(by_bin.sum())
    fullest_bin = int(np.argmax(by_bin))
    if n_scores < MIN_CLIENT_SCORES or by_bin[fullest_bin] < ALL_EQUAL_FRACTION * n_scores:
        return ""
    peer_fraction = peers_by_bin[fullest_bin] / max(1, int(peers_by_bin.sum()))
    if peer_fraction > COMMON_FRACTION:
        return ""

    if fullest_bin == 0:
        return "the smallest there is"
    if fullest_bin == len(by_bin) - 1:
        return "the largest there is"
    return "all in one bin"
