"""What may be the matter with each site's report.

It reads counts, who is trusted and what is covered; why a defence decided so is all the same.
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
from robfcp.diagnosis._diagnosis import Diagnosis, describe, format_share, join_class_names
from robfcp.diagnosis._likelihood import (
    MIN_REFERENCE_SCORES,
    MIN_SAMPLES_OF_COARSE_CLASS,
    RARE_LOG_PENALTY,
    FaultHypothesis,
    LabelDistributionLikelihood,
    law_histograms,
    rank_fault_hypotheses,
)
from robfcp.errors import RobfcpError
from robfcp.scores import ClassificationScore

if TYPE_CHECKING:
    from robfcp.calibration import Calibration

MIN_CLIENT_SCORES = 10
ALL_EQUAL_FRACTION = 0.95
COMMON_FRACTION = 0.5  # of the peers' scores in one bin; equal scores there are nothing odd
MAX_CLASSES_NAMED = 3
CLEAR_LOG_RATIO = 3.0  # the next best explanation is less likely by e^3
CERTAIN_LOG_RATIO = 20.0  # a trusted site is looked at where "alike" is less likely by e^20
MAX_CELLS_DIAGNOSED = 10_000  # sites times classes, beyond which only coverage is looked at

# A trusted site is looked at where it covers so much less of its own cases than asked, which no
# site does by chance more often than this.
MIN_SHORTFALL = 0.07
MAX_P_VALUE = 1e-3


def diagnose(
    calibration: Calibration, clients: Sequence[str] | None = None
) -> Mapping[str, Diagnosis]:
    """What is the matter with each site that was left out, and with trusted ones that look odd.

    Parameters
    ----------
    calibration
        With its record.
    clients
        Whom to diagnose, whether they look odd or not.

    Returns
    -------
    Mapping
        A diagnosis for every flagged site, in the order of the federation; then one for every
        trusted site whose own coverage is far too low, whose report clearly shows a fault, or whom
        a remark of the default defence names. Beyond 10,000 sites times classes only the coverage
        of trusted sites is looked at.

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
    position = {client: k for k, client in enumerate(calibration.federation.clients)}
    for client in clients or ():
        if client not in position:
            raise RobfcpError(f"clients: {client!r:.60} sent no valid report in this round")

    examiner = _Examiner(calibration)
    if clients is not None:
        return {client: examiner.examine(position[client])[0] for client in clients}

    is_trusted = calibration.benign_mask
    flagged = np.flatnonzero(~is_trusted)
    trusted_to_examine = is_trusted
    if examiner.is_very_large:
        trusted_to_examine = is_trusted & examiner.is_suspicious

    diagnoses: dict[str, Diagnosis] = {}
    for k in [*flagged, *np.flatnonzero(trusted_to_examine)]:
        diagnosis, is_noteworthy = examiner.examine(int(k))
        if is_noteworthy or not diagnosis.trusted:
            diagnoses[diagnosis.client] = diagnosis
    return diagnoses


class _Examiner:
    """Compares single reports with those of the other sites in use, pooled: its peers.

    Holds what all comparisons of one round share; `examine` does one of them. Only the constructor
    sets attributes.
    """

    def __init__(self, calibration: Calibration) -> None:
        self.reported = calibration.federation
        self.as_counts = self.reported.as_sample_counts()  # losses rounded to whole samples
        self.strata = self.as_counts.strata
        self.is_trusted = calibration.benign_mask
        self.wanted = float(calibration.levels[0].coverage)
        self.covered = calibration.client_coverage()[:, 0]

        n_clients = self.reported.n_clients
        n_strata = 1 if self.strata is None else self.strata.n_strata
        self.is_very_large = n_clients * n_strata > MAX_CELLS_DIAGNOSED
        self.is_suspicious = self._covers_too_little() | self._is_named_by_defense(calibration)

        # A single report can look coarsened by chance; most of a round cannot.
        is_coarsened = self.as_counts.is_coarsened
        self.is_coarsened = is_coarsened & (2 * is_coarsened.sum() > n_clients)

        # Causes have other names where numbers are predicted instead of classes.
        self.is_regression = not isinstance(self.reported.score, ClassificationScore | None)

        # The counts of all sites in use, pooled over classes or groups and by them.
        self.pooled = self.as_counts.pooled_counts(self.is_trusted)[None, :]
        self.pooled_by_stratum = self.pooled
        self.stratum_row: dict[int, int] = {}
        if self.strata is not None:
            pooled = self.strata.table.pooled_counts(self.is_trusted[self.strata.rows])
            self.pooled_by_stratum = pooled.reshape(-1, self.strata.n_bins)
            self.stratum_row = {int(k): row for row, k in enumerate(self.strata.rows)}

        self.copied_client: dict[str, str] = {}
        for group in find_duplicate_reports(self.as_counts):
            for client in group.clients:
                others = [other for other in group.clients if other != client]
                self.copied_client[client] = others[0]
        self.law_histograms = law_histograms()

    def _covers_too_little(self) -> BoolArray:
        """(K,) who covers less of its own cases than chance allows even the worst of K sites.

        A binomial test of coverage as wanted, with Bonferroni's correction, and a least shortfall.
        """
        from scipy.special import bdtr

        sizes = self.reported.sample_sizes
        p_values = bdtr(np.rint(self.covered * sizes), sizes, self.wanted)
        is_significant = p_values < MAX_P_VALUE / max(1, len(sizes))
        result: BoolArray = is_significant & (self.covered < self.wanted - MIN_SHORTFALL)
        return result

    def _is_named_by_defense(self, calibration: Calibration) -> BoolArray:
        """(K,) whom the default defence could not decide about, so that a remark names it."""
        record = calibration.require_record()
        if record.defense == Consensus.name and not self.is_very_large:
            consensus = cast(Consensus, rebuild_defense(Consensus.name, record.parameters))
            if consensus.exactly is None:  # with a stated number nobody is left undecided
                return consensus.find_outliers(self.as_counts).is_mentioned
        return np.zeros(self.reported.n_clients, dtype=bool)

    def examine(self, k: int) -> tuple[Diagnosis, bool]:
        """Diagnose the report in row k; also say whether a trusted site should hear of it."""
        client = self.reported.clients[k]
        blank = Diagnosis(
            client=client,
            trusted=bool(self.is_trusted[k]),
            cause="",
            finding="",
            advice="",
            covered=float(self.covered[k]),
            wanted=self.wanted,
            risk=self.reported.risk,
        )
        not_told = describe(blank, NOT_TOLD)
        if self.reported.privacy and self.reported.privacy[k] is not None:
            hidden = "its counts hold privacy noise, which hides the cause"
            return replace(not_told, finding=hidden), False

        # Coarsening puts a class of fewer than ten samples into a single cell, so that equal
        # scores there prove nothing.
        counts, peer_counts, class_names = self._counts_of(k)
        telling_counts = counts
        if self.is_coarsened[k]:
            telling_counts = counts[counts.sum(axis=1) >= MIN_SAMPLES_OF_COARSE_CLASS]
        where = _where_all_scores_lie(telling_counts, peer_counts)
        if where:
            return describe(not_told, self._called(SCORES_ALL_EQUAL), where=where), True

        if client in self.copied_client:
            return describe(not_told, COPY, other=self.copied_client[client]), True
        if peer_counts.sum() < MIN_REFERENCE_SCORES or counts.sum() < MIN_CLIENT_SCORES:
            return not_told, bool(self.is_suspicious[k])
        return self._most_likely_cause(k, not_told, counts, peer_counts, class_names)

    def _counts_of(self, k: int) -> tuple[IntArray, IntArray, tuple[str, ...]]:
        """(C, H) counts of a site and of its peers, and the names of the classes or groups.

        One row and no names where the site pooled them.
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
        if self.is_trusted[k]:
            peer_counts = peer_counts - counts  # a site is no peer of itself
        return counts, peer_counts, names

    def _most_likely_cause(
        self,
        k: int,
        not_told: Diagnosis,
        counts: IntArray,
        peer_counts: IntArray,
        names: tuple[str, ...],
    ) -> tuple[Diagnosis, bool]:
        """Compare the hypotheses; also say whether a trusted site should hear of the likeliest."""
        by_class = bool(names) and self.strata is not None and self.strata.by == "class"
        hypotheses = rank_fault_hypotheses(
            counts,
            peer_counts,
            self.as_counts.binning,
            self.law_histograms,
            by_class=by_class,
            is_coarsened=bool(self.is_coarsened[k]),
        )
        best = hypotheses[0]
        second = hypotheses[1]
        as_usual = next(one for one in hypotheses if one.cause == NOT_TOLD)

        is_sure = best.likelihood - second.likelihood > CLEAR_LOG_RATIO
        template = replace(not_told, sure=is_sure)
        if best.cause == NOT_TOLD:
            diagnosis = _diagnose_label_distribution(not_told, counts, peer_counts, names)
        else:
            diagnosis = self._describe_hypothesis(template, best, names)

        # Name the runner-up where it is nearly as likely and says something else.
        if not is_sure and NOT_TOLD not in (best.cause, second.cause):
            alternative = self._describe_hypothesis(template, second, names).summary
            if alternative != diagnosis.summary:
                diagnosis = replace(diagnosis, instead=alternative)

        # "Other cases" fits anything and is no evidence of a fault.
        log_ratio = best.likelihood - as_usual.likelihood
        shows_fault = best.cause != OTHER_CASES and log_ratio > CERTAIN_LOG_RATIO
        return diagnosis, bool(self.is_suspicious[k] or shows_fault)

    def _describe_hypothesis(
        self, template: Diagnosis, hypothesis: FaultHypothesis, names: tuple[str, ...]
    ) -> Diagnosis:
        """The hypothesis in words, with the names of its classes where these are told."""
        classes: tuple[str, ...] = ()
        if names:
            classes = tuple(names[c] for c in hypothesis.classes)
        where = ""
        if 0 < len(classes) <= MAX_CLASSES_NAMED:
            where = f" in {join_class_names(classes)}"

        size = "large" if template.covered < template.wanted else "small"
        mixed = f"its scores are far too {size}, as with wrong labels or another model"
        if names:
            mixed = "its labels do not fit its probabilities in most classes"
        cause = self._called(hypothesis.cause)
        return describe(template, cause, classes, where=where, mixed=mixed)

    def _called(self, cause: str) -> str:
        """The name under which a cause goes with the scores of this round."""
        if not self.is_regression:
            return cause
        return CAUSES[cause].regression_name or cause


def _diagnose_label_distribution(
    not_told: Diagnosis, counts: IntArray, peer_counts: IntArray, names: tuple[str, ...]
) -> Diagnosis:
    """Scores as elsewhere within the classes, but perhaps other shares of the classes."""
    if not names:
        return not_told
    sizes = counts.sum(axis=1)
    peer_sizes = peer_counts.sum(axis=1)
    labels = LabelDistributionLikelihood(sizes, peer_sizes)
    if labels.anything - RARE_LOG_PENALTY <= labels.as_peers:
        return not_told

    # Name the class whose share differs most.
    shares = sizes / sizes.sum()
    peer_shares = peer_sizes / max(1, int(peer_sizes.sum()))
    c = int(np.argmax(np.abs(shares - peer_shares)))
    here = format_share(float(shares[c]))
    there = format_share(float(peer_shares[c]))
    return describe(not_told, OTHER_MIX, (names[c],), here=here, there=there)


def _where_all_scores_lie(counts: IntArray, peer_counts: IntArray) -> str:
    """Where nearly all scores lie, if they lie in one bin and the peers' do not; else empty."""
    by_bin = counts.sum(axis=0)
    peers_by_bin = peer_counts.sum(axis=0)
    total = int(by_bin.sum())
    fullest = int(np.argmax(by_bin))
    peer_fraction = peers_by_bin[fullest] / max(1, int(peers_by_bin.sum()))
    if total < MIN_CLIENT_SCORES or by_bin[fullest] < ALL_EQUAL_FRACTION * total:
        return ""
    if peer_fraction > COMMON_FRACTION:
        return ""

    if fullest == 0:
        return "the smallest there is"
    if fullest == len(by_bin) - 1:
        return "the largest there is"
    return "all in one bin"
