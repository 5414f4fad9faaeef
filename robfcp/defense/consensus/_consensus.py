"""The default defense: an outlier test against plausible reference sets.

1. The reports are counted on a few bins, by class where reports keep classes (`_basis`).
2. Every client is compared with what its labels lead one to expect of its scores, given a reference
   set without the client itself, and the difference becomes a p-value (`_outlier_test`).
3. A client is excluded only if no plausible benign population looks like it, and only if every
   plausible reference set says so (`_references`).
4. The threshold is FCP's on the clients that are kept, raised by a clipped vote (`_clipped_vote`).

The constants of all steps are in `_tuning`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import BoolArray, FloatArray, IndexArray
from robfcp._validation import abbreviate, set_fields
from robfcp.defense._base import (
    Assessment,
    Defense,
    Note,
    ThresholdRule,
    check_benign_majority,
    check_client_number,
    exclude_most_malicious,
    select_benign_set,
)
from robfcp.defense._duplicates import (
    DuplicateGroup,
    duplicate_notes,
    find_duplicate_reports,
)
from robfcp.defense.consensus._basis import ComparisonBasis, sample_clients
from robfcp.defense.consensus._clipped_vote import ClippedVoteThreshold
from robfcp.defense.consensus._references import (
    CandidateReference,
    OutlierVerdict,
    find_plausible_references,
    unique_masks,
)
from robfcp.defense.consensus._tuning import DEFAULT_TUNING, Tuning
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import RankRule, rank_correction

Evidence = NDArray[Any]  # a structured array, one row a client; see `evidence_dtype`


@dataclass(frozen=True, eq=False)
class OutlierAnalysis:
    """What is found about every client, before it is asked how many may be excluded.

    Attributes
    ----------
    maliciousness : ndarray of float, shape (K,)
        Minus the logarithm, to base 10, of the p-value under the best reference, from 0 to 300; 0
        for all where there are too few clients.
    is_excluded : ndarray of bool, shape (K,)
        Clients that every plausible reference excludes; fewer than half.
    alternative_exclusions : list of ndarray of bool, shape (K,)
        What single references exclude, or call outliers, where that differs from `is_excluded`.
        No mask comes twice.
    suspected_larger : ndarray of bool, shape (K,)
        Clients suspected of larger scores than they should have.
    is_mentioned : ndarray of bool, shape (K,)
        Clients that the notes name because they are kept in doubt.
    reasons : mapping of str to str
        Why each client of `is_excluded` is excluded, by its name; of no other client.
    notes : tuple of Note
        What else must be said.
    overdispersion : float or None
        phi, how much benign clients differ beyond sampling, per sample; None where there are too
        few clients.
    duplicates : tuple of DuplicateGroup
        Clients with equal reports. In all masks the clients of a group have the same entry.
    """

    maliciousness: FloatArray
    is_excluded: BoolArray
    alternative_exclusions: list[BoolArray]
    suspected_larger: BoolArray
    is_mentioned: BoolArray
    reasons: Mapping[str, str]
    notes: tuple[Note, ...]
    overdispersion: float | None
    duplicates: tuple[DuplicateGroup, ...]


@dataclass(frozen=True, eq=False)
class ConsensusAssessment(Assessment):
    """The verdict of the default defense, with what its threshold needs to know.

    Attributes
    ----------
    analysis : OutlierAnalysis
        What was found about every client.
    alternatives_vote : bool
        Whether the sets of voters under other plausible references may raise the threshold. They
        do unless the number of clients to exclude was given.
    tuning : Tuning
        The constants of the defense.
    """

    analysis: OutlierAnalysis = field(kw_only=True)
    alternatives_vote: bool = field(kw_only=True)
    tuning: Tuning = field(kw_only=True)

    @staticmethod
    def from_assessment(
        assessment: Assessment,
        analysis: OutlierAnalysis,
        tuning: Tuning,
        *,
        alternatives_vote: bool,
    ) -> ConsensusAssessment:
        """Return a verdict together with what its threshold needs to know.

        Parameters
        ----------
        assessment : Assessment
            The verdict.
        analysis : OutlierAnalysis
            What it was decided from.
        tuning : Tuning
            The constants of the defense.
        alternatives_vote : bool
            Whether other plausible references may raise the threshold.
        """
        return ConsensusAssessment(
            maliciousness=assessment.maliciousness,
            benign_mask=assessment.benign_mask,
            reasons=assessment.reasons,
            notes=assessment.notes,
            n_malicious=assessment.n_malicious,
            n_malicious_given=assessment.n_malicious_given,
            analysis=analysis,
            alternatives_vote=alternatives_vote,
            tuning=tuning,
        )

    def threshold_rule(
        self, federation: Federation, rank: RankRule = rank_correction
    ) -> ThresholdRule:
        """Return the clipped vote; FCP's rule where counts hold noise or parts of samples.

        Parameters
        ----------
        federation : Federation
            The round that was assessed, with the counts as they were sent: those of losses count
            parts of samples, where `Consensus.assess` gets samples.
        rank : RankRule
            By which FCP's threshold is computed, below which the vote never goes.
        """
        overdispersion = self.analysis.overdispersion
        counts_are_samples = not federation.has_noise and federation.counts_per_sample == 1
        if overdispersion is None or not counts_are_samples:
            return super().threshold_rule(federation, rank)

        voter_sets = [self.benign_mask]
        if self.alternatives_vote:
            voter_sets += [~excluded for excluded in self.analysis.alternative_exclusions]
        return ClippedVoteThreshold(
            federation=federation,
            voter_sets=voter_sets,
            duplicates=self.analysis.duplicates,
            suspected_larger=self.analysis.suspected_larger,
            overdispersion=overdispersion,
            rank=rank,
            tuning=self.tuning,
        )


@dataclass(frozen=True)
class Consensus(Defense):
    """Exclude the clients whose scores no plausible benign population has; the others vote.

    Parameters
    ----------
    n_malicious : int, optional
        Exclude so many clients, those with the highest maliciousness scores.
    max_malicious : int, optional
        Exclude at most so many of the outliers; all of them if None.
    random_state : int
        Of the random choice of the clients among which references are sought, where there are
        many. `calibrate` draws a seed that nobody can predict, and records it.
    tuning : Tuning
        The constants of the rule.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> counts = np.random.default_rng(0).multinomial(200, [0.05] * 20, size=20)
    >>> counts[3] = [200] + [0] * 19
    >>> federation = robfcp.Federation.from_counts(counts)
    >>> robfcp.calibrate(federation, defense=robfcp.Consensus(max_malicious=1)).flagged_clients
    ('client-03',)
    """

    n_malicious: int | None = None
    max_malicious: int | None = None
    random_state: int = 0
    tuning: Tuning = DEFAULT_TUNING
    name: ClassVar[str] = "consensus"

    def __post_init__(self) -> None:
        if self.n_malicious is not None and self.max_malicious is not None:
            raise RobfcpError(
                "n_malicious, max_malicious: give one of them; n_malicious excludes exactly so many"
            )
        set_fields(
            self,
            n_malicious=check_client_number("n_malicious", self.n_malicious),
            max_malicious=check_client_number("max_malicious", self.max_malicious),
            random_state=check_client_number("random_state", self.random_state),
        )

    def assess(self, federation: Federation) -> ConsensusAssessment:
        """Return the verdict on every client.

        Parameters
        ----------
        federation : Federation
            The reports of one round, one count a sample.
        """
        return self.decide(federation, self.find_outliers(federation))

    def with_random_seed(self, federation: Federation) -> Consensus:
        """Return the same rule with a seed that nobody can predict, where one is used.

        Parameters
        ----------
        federation : Federation
            The reports of one round.
        """
        # A seed of 0 means that none was chosen, so a drawn one is at least 1.
        is_sampled = federation.n_clients > self.tuning.max_sampled_clients
        if self.random_state or not is_sampled:
            return self
        return replace(self, random_state=secrets.randbits(48) + 1)

    def find_outliers(self, federation: Federation) -> OutlierAnalysis:
        """Return what is found about every client, whatever number is to be excluded.

        Parameters
        ----------
        federation : Federation
            The reports of one round.

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> counts = np.random.default_rng(0).multinomial(200, [0.05] * 20, size=20)
        >>> counts[3] = [200] + [0] * 19
        >>> analysis = robfcp.Consensus().find_outliers(robfcp.Federation.from_counts(counts))
        >>> np.flatnonzero(analysis.is_excluded)
        array([3])
        """
        return analyze_outliers(federation, self.random_state, self.tuning)

    def decide(self, federation: Federation, analysis: OutlierAnalysis) -> ConsensusAssessment:
        """Return the verdict from what was found, so that several numbers can share the work.

        Parameters
        ----------
        federation : Federation
            The reports of one round.
        analysis : OutlierAnalysis
            What `find_outliers` returned for them.
        """
        if self.n_malicious is not None:
            assessment = self._exclude_exactly(federation, analysis, self.n_malicious)
        else:
            assessment = self._exclude_outliers(federation, analysis)
        return ConsensusAssessment.from_assessment(
            assessment, analysis, self.tuning, alternatives_vote=self.n_malicious is None
        )

    def _exclude_exactly(
        self, federation: Federation, analysis: OutlierAnalysis, n_malicious: int
    ) -> Assessment:
        """Exclude so many clients, outliers or not; the number answers who is kept in doubt.

        So the notes on doubts are left out, and only those on duplicates stay. An excluded client
        that is an outlier keeps the analysis' more telling reason.

        Parameters
        ----------
        federation : Federation
            The reports of one round.
        analysis : OutlierAnalysis
            Of these reports.
        n_malicious : int
            How many clients to exclude; refused unless fewer than half.
        """
        assessment = exclude_most_malicious(
            federation,
            n_malicious,
            analysis.maliciousness,
            "the majority",
            duplicate_notes(analysis.duplicates),
        )
        reasons = {
            client: analysis.reasons.get(client, reason)
            for client, reason in assessment.reasons.items()
        }
        return replace(assessment, reasons=reasons)

    def _exclude_outliers(self, federation: Federation, analysis: OutlierAnalysis) -> Assessment:
        """Exclude the outliers, or the clearest of them where they are more than `max_malicious`.

        Parameters
        ----------
        federation : Federation
            The reports of one round.
        analysis : OutlierAnalysis
            Of these reports. Outliers are here the clients of `is_excluded`.
        """
        n_outliers = int(analysis.is_excluded.sum())
        n_malicious = n_outliers
        if self.max_malicious is not None:
            n_malicious = self.max_malicious
        n_benign = check_benign_majority(federation, n_malicious, "max_malicious")

        benign_mask = ~analysis.is_excluded
        reasons = analysis.reasons
        if n_malicious < n_outliers:
            # Minus infinity keeps all others: they are fewer than the benign set.
            outlier_scores = np.where(analysis.is_excluded, analysis.maliciousness, -np.inf)
            benign_mask = select_benign_set(federation, outlier_scores, n_benign)
            excluded = federation.names_of(~benign_mask)
            reasons = {client: reasons[client] for client in excluded}
        return Assessment(
            maliciousness=analysis.maliciousness,
            benign_mask=benign_mask,
            reasons=reasons,
            notes=analysis.notes,
            n_malicious=n_malicious,
            n_malicious_given=self.max_malicious is not None,
        )


def analyze_outliers(
    federation: Federation, seed: int = 0, tuning: Tuning = DEFAULT_TUNING
) -> OutlierAnalysis:
    """Find the clients that no plausible reference keeps.

    Parameters
    ----------
    federation : Federation
        The reports of one round, one count a sample.
    seed : int
        Of the random choice of the clients among which references are sought.
    tuning : Tuning
        The constants of the rule.
    """
    # Of clients with equal reports the first stands for all of them.
    duplicates = find_duplicate_reports(federation)
    representative = _representative_rows(federation.n_clients, duplicates)
    distinct_rows = np.unique(representative)
    n_distinct = len(distinct_rows)

    # The plausible references, sought among a few clients where there are many.
    sampled_rows = distinct_rows[sample_clients(n_distinct, tuning.max_sampled_clients, seed)]
    sampled = federation
    if len(sampled_rows) < federation.n_clients:
        sampled = federation.select_rows(sampled_rows)
    basis = ComparisonBasis.from_federation(federation, sampled, tuning)
    references: list[CandidateReference] = []
    overdispersion = None
    if n_distinct >= tuning.min_clients:
        references = find_plausible_references(basis.client_views(sampled), n_distinct)
        overdispersion = min(references[0].overdispersion, tuning.max_overdispersion)

    # Of a group of duplicates only the first may be a member of a reference: the others get its
    # evidence, as they would be compared with their own copy.
    evidence = collect_evidence(federation, basis, references, sampled_rows)[representative]
    is_excluded = _unanimous_exclusions(evidence)

    # Doubts: some references exclude the client, or it is an outlier that none excludes. The slice
    # of the best reference's column is empty, and nobody an outlier, where there is no reference.
    is_excluded_by_some = np.asarray(evidence["is_excluded"].any(axis=1))
    is_outlier_of_best = np.asarray(evidence["is_outlier"][:, :1].any(axis=1))
    is_disputed = is_excluded_by_some & ~is_excluded
    is_other_population = is_outlier_of_best & ~is_excluded_by_some

    notes = duplicate_notes(duplicates)
    if n_distinct < tuning.min_clients:
        notes += (Note("fewer than four sites are too few to tell a liar from an unusual site"),)
    notes += _notes_on_doubts(federation, is_disputed, is_other_population)

    return OutlierAnalysis(
        maliciousness=evidence["maliciousness"],
        is_excluded=is_excluded,
        alternative_exclusions=_alternative_exclusions(evidence, is_excluded),
        suspected_larger=evidence["suspected_larger"],
        is_mentioned=is_disputed | is_other_population,
        reasons=_exclusion_reasons(federation, basis, evidence, is_excluded),
        notes=notes,
        overdispersion=overdispersion,
        duplicates=duplicates,
    )


def _representative_rows(n_clients: int, duplicates: Sequence[DuplicateGroup]) -> IndexArray:
    """Return (K,) the row that stands for each client: the first of its group, else its own.

    Parameters
    ----------
    n_clients : int
        K.
    duplicates : sequence of DuplicateGroup
        Groups of clients with equal reports, which share no client.
    """
    representative = np.arange(n_clients)
    for group in duplicates:
        representative[group.rows] = group.rows[0]
    return representative


def _unanimous_exclusions(evidence: Evidence) -> BoolArray:
    """Return (K,) the clients that every plausible reference excludes; nobody if there is none.

    Never half of all clients or more: duplicates of a benign report could make it look like a
    majority. Then nobody is excluded at all.

    Parameters
    ----------
    evidence : structured ndarray, shape (K,)
        With the fields of `evidence_dtype`, of all clients.
    """
    n_clients, n_references = evidence["is_excluded"].shape
    if n_references == 0:
        return np.zeros(n_clients, dtype=bool)
    is_excluded = np.asarray(evidence["is_excluded"].all(axis=1))
    if 2 * is_excluded.sum() >= n_clients:
        return np.zeros(n_clients, dtype=bool)
    return is_excluded


def evidence_dtype(n_references: int) -> np.dtype[Any]:
    """Return what is kept of every client: few bytes, as there may be millions of clients.

    Parameters
    ----------
    n_references : int
        How many plausible references there are; the best one is the first.

    Fields
    ------
    is_excluded, is_outlier : bool, (n_references,)
        The verdict under every plausible reference.
    maliciousness : float32
        Minus log10 of the p-value; this and what follows under the best reference, 0 without any.
    suspected_larger : bool
        Whether the client is suspected of larger scores than it should have.
    max_deviation_bin : uint8
        The merged bin at whose end the two CDFs are farthest apart. Fewer than 256 quantile orders
        make fewer than 256 inner edges.
    observed_percent, expected_percent : uint8
        The two CDFs there, from 0 to 100.
    """
    return np.dtype(
        [
            ("is_excluded", np.bool_, (n_references,)),
            ("is_outlier", np.bool_, (n_references,)),
            ("maliciousness", np.float32),
            ("suspected_larger", np.bool_),
            ("max_deviation_bin", np.uint8),
            ("observed_percent", np.uint8),
            ("expected_percent", np.uint8),
        ]
    )


def collect_evidence(
    federation: Federation,
    basis: ComparisonBasis,
    references: Sequence[CandidateReference],
    sampled_rows: IndexArray,
) -> Evidence:
    """Judge every client by every plausible reference.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    basis : ComparisonBasis
        The bins and classes on which clients are compared.
    references : sequence of CandidateReference
        The plausible references, the best first; may be empty.
    sampled_rows : ndarray of int, shape (k,)
        The positions of the clients among which the references were sought, in the order of
        `CandidateReference.members`.

    Returns
    -------
    structured ndarray, shape (K,)
        With the fields of `evidence_dtype`.
    """
    is_member = np.zeros((federation.n_clients, len(references)), dtype=bool)
    for index, reference in enumerate(references):
        is_member[sampled_rows, index] = reference.members

    def judge_block(block: Federation, is_member: BoolArray) -> Evidence:
        """Return the evidence on the clients of a block, given their rows of `is_member`."""
        evidence = np.zeros(block.n_clients, evidence_dtype(len(references)))
        for rows in basis.iter_row_blocks(block.n_clients):
            clients = basis.client_views(block.select_rows(rows))
            verdicts = []
            for index, reference in enumerate(references):
                verdicts.append(reference.judge(clients, is_member[rows, index]))

            # The rows are consecutive, so their slice is a view that can be written through.
            _record_verdicts(evidence[rows[0] : rows[-1] + 1], verdicts)
        return evidence

    return federation.map_blocks(judge_block, is_member)


def _record_verdicts(evidence: Evidence, verdicts: Sequence[OutlierVerdict]) -> None:
    """Write what every reference says of some clients into their rows of the evidence.

    Parameters
    ----------
    evidence : structured ndarray, shape (k,)
        With the fields of `evidence_dtype`; written in place.
    verdicts : sequence of OutlierVerdict
        On these clients, under every plausible reference, the best first.
    """
    for index, verdict in enumerate(verdicts):
        evidence["is_excluded"][:, index] = verdict.is_excluded
        evidence["is_outlier"][:, index] = verdict.is_outlier
    if not verdicts:
        return

    best = verdicts[0]
    comparison = best.comparison
    evidence["maliciousness"] = -np.log10(best.p_value)
    evidence["suspected_larger"] = best.suspected_larger
    evidence["max_deviation_bin"] = comparison.max_deviation_bin
    evidence["observed_percent"] = np.rint(100 * comparison.observed_cdf)
    evidence["expected_percent"] = np.rint(100 * comparison.expected_cdf)


def _notes_on_doubts(
    federation: Federation, is_disputed: BoolArray, is_other_population: BoolArray
) -> tuple[Note, ...]:
    """Return what must be said of clients that are kept although something speaks against them.

    Parameters
    ----------
    federation : Federation
        For the clients' names.
    is_disputed : ndarray of bool, shape (K,)
        The clients that some plausible reference excludes and the verdict does not.
    is_other_population : ndarray of bool, shape (K,)
        The clients that are outliers under the best reference and that none excludes.
    """
    doubts = (
        (is_disputed, "out in one explanation of the reports, kept in another as good"),
        (is_other_population, "standing out, as another population would"),
    )
    notes = []
    for mask, doubt in doubts:
        if mask.any():
            clients = federation.names_of(mask)
            text = (
                f"{doubt}: {abbreviate(clients)}. No client was excluded for it, and the safer "
                "threshold was kept; ask these clients what differs, set n_malicious "
                "(--n-malicious, Consensus(n_malicious=m)), or provide trusted data "
                "(--trusted-data, trusted_report=)"
            )
            notes.append(Note(text, clients))
    return tuple(notes)


def _alternative_exclusions(evidence: Evidence, is_excluded: BoolArray) -> list[BoolArray]:
    """Return the sets of clients that single references exclude or call outliers.

    Parameters
    ----------
    evidence : structured ndarray, shape (K,)
        With the fields of `evidence_dtype`.
    is_excluded : ndarray of bool, shape (K,)
        The clients that the verdict excludes: a set that equals it is no alternative.

    Returns
    -------
    list of ndarray of bool, shape (K,)
        Distinct sets, in the order of the references.
    """
    masks = []
    n_references = evidence["is_excluded"].shape[1]
    for index in range(n_references):
        masks.append(evidence["is_excluded"][:, index])
        masks.append(evidence["is_outlier"][:, index])
    return unique_masks(mask for mask in masks if (mask != is_excluded).any())


def _exclusion_reasons(
    federation: Federation, basis: ComparisonBasis, evidence: Evidence, is_excluded: BoolArray
) -> dict[str, str]:
    """Return why each excluded client is excluded, by its name.

    Many clients of a large round share a reason, which is then written once.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    basis : ComparisonBasis
        The bins and classes on which clients were compared.
    evidence : structured ndarray, shape (K,)
        With the fields of `evidence_dtype`.
    is_excluded : ndarray of bool, shape (K,)
        The clients that need a reason.
    """
    upper_edges = federation.binning.upper_edges[basis.bin_ends]  # (B,), in the unit of the score
    expectation = "{}% is usual"
    if basis.n_classes:
        expectation = "its labels lead one to expect {}%"

    fields = ["maliciousness", "max_deviation_bin", "observed_percent", "expected_percent"]
    distinct, reason_index = np.unique(evidence[fields][is_excluded], return_inverse=True)
    reasons = [_exclusion_reason(row, upper_edges, expectation) for row in distinct]
    clients = federation.names_of(is_excluded)
    return {client: reasons[index] for client, index in zip(clients, reason_index, strict=True)}


def _exclusion_reason(row: Any, upper_edges: FloatArray, expectation: str) -> str:
    """Return the sentence about one client: its scores beside those that are expected of it.

    Parameters
    ----------
    row : numpy.void
        The client's evidence, with the fields of `evidence_dtype` that `_exclusion_reasons` picks.
    upper_edges : ndarray of shape (B,)
        The upper edge of each merged bin, in the unit of the score.
    expectation : str
        The phrase about the expected share, with a gap for its percentage.
    """
    p_value = 10.0 ** -float(row["maliciousness"])
    rarity = "fewer than 1 in a million"
    if p_value > 1e-6:
        rarity = f"1 in {1 / p_value:,.0f}"

    score = upper_edges[row["max_deviation_bin"]]
    observed = f"{row['observed_percent']}% of its scores are at most {score:.3g}"
    expected = expectation.format(row["expected_percent"])
    return f"{observed} where {expected}: as far off as {rarity} honest sites of its size would be"


def estimate_n_malicious(federation: Federation) -> int:
    """Estimate the number of malicious clients.

    Those that `Consensus` excludes, and of every group of duplicates that it keeps all but one; at
    most a minority. The estimate is no upper bound: malicious clients may look benign.

    Parameters
    ----------
    federation : Federation
        The reports of one round.

    Returns
    -------
    int
        0 in at least 95% of the rounds without malicious clients.

    Examples
    --------
    >>> import numpy as np
    >>> import robfcp
    >>> counts = np.random.default_rng(0).multinomial(200, [0.05] * 20, size=20)
    >>> counts[3] = [200] + [0] * 19
    >>> robfcp.defense.estimate_n_malicious(robfcp.Federation.from_counts(counts))
    1
    """
    analysis = analyze_outliers(federation)
    n_malicious = int(analysis.is_excluded.sum())

    # Clients with equal reports are excluded or kept together, so the first stands for its group.
    for duplicates in analysis.duplicates:
        is_kept = not analysis.is_excluded[duplicates.rows[0]]
        if is_kept:
            n_malicious += len(duplicates.rows) - 1

    largest_minority = (federation.n_clients - 1) // 2
    return min(n_malicious, largest_minority)
