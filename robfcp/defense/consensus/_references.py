"""Plausible reference sets: which clients may serve as the standard that all are compared with.

Which clients serve as the reference decides who looks like an outlier, and colluding clients can
form a tight cluster of their own. So several reference sets are tried, and a client is excluded
only if every plausible one excludes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from robfcp._typing import BoolArray, FloatArray
from robfcp.defense.consensus._basis import ClientHistograms, ClientViews, common_classes
from robfcp.defense.consensus._comparison import (
    Comparison,
    Comparisons,
    ReferenceCounts,
    compare_views,
    compare_with_members,
)
from robfcp.defense.consensus._null import (
    PValues,
    ViewNulls,
    benjamini_hochberg_cutoff,
    scaled_chi2_quantile,
)
from robfcp.defense.consensus._tuning import Tuning

MAX_REFITS = 10  # a set that has not settled by then keeps changing a few clients
MAX_CONCENTRATION_STEPS = 8
MAX_MINORITY_STARTS = 2  # starts from the outliers of references that describe a minority


class OutlierVerdict(NamedTuple):
    """What one reference says of some clients; (k,) each.

    Attributes
    ----------
    p_value : ndarray of float
        Given the labels.
    is_excluded : ndarray of bool
        Clients that no benign population looks like.
    is_outlier : ndarray of bool
        Clients that differ significantly, at the false discovery rate.
    suspected_larger : ndarray of bool
        Clients whose scores are larger than expected, at the level of a single test.
    """

    p_value: FloatArray
    is_excluded: BoolArray
    is_outlier: BoolArray
    suspected_larger: BoolArray


@dataclass(frozen=True, eq=False)
class SampledRound:
    """The clients among which references are sought, and what all references share.

    Attributes
    ----------
    clients : ClientViews
        The sampled clients.
    common_classes : ndarray of bool, shape (C,)
        The classes that most of them hold.
    n_clients : int
        Number of clients of the whole round, duplicates counted once.
    """

    clients: ClientViews
    common_classes: BoolArray
    n_clients: int

    @staticmethod
    def from_clients(clients: ClientViews, n_clients: int) -> SampledRound:
        """Collect what all references of a round share."""
        return SampledRound(clients, common_classes(clients.given_labels), n_clients)


class CandidateReference:
    """Some of the sampled clients as the reference set, and how every client compares with it.

    Attributes
    ----------
    members : ndarray of bool, shape (k,)
        The reference set.
    mean_misfit : float
        Mean statistic by bin, at least 1, of the set that this one was first refined from.
    p_cutoff : float
        The p-value up to which clients are outliers.
    outlier_fraction : float
        The fraction of the sampled clients that are. At a half or more the reference describes a
        minority.
    verdict : OutlierVerdict
        On the sampled clients.
    """

    def __init__(
        self, sampled: SampledRound, members: BoolArray, mean_misfit: float | None = None
    ) -> None:
        self.sampled = sampled
        self.members = members
        self.tuning: Tuning = sampled.clients.given_labels.basis.tuning
        self._reference = ReferenceCounts.from_members(sampled.clients, members)

        comparisons = self.compare(sampled.clients, members)
        if mean_misfit is None:
            mean_misfit = max(float(comparisons.given_labels.chi2_ratio[members].mean()), 1.0)
        self.mean_misfit = mean_misfit

        histograms = sampled.clients.given_labels
        self._nulls = ViewNulls.fit(comparisons, histograms.sample_sizes, members, histograms.basis)
        p_values = self.p_values(sampled.clients, comparisons)
        self.p_cutoff = benjamini_hochberg_cutoff(
            p_values.given_labels, sampled.n_clients, self.tuning.fdr_level
        )
        self.outlier_fraction = float((p_values.given_labels <= self.p_cutoff).mean())
        self.verdict = self.judge(sampled.clients, comparisons, p_values)

    @property
    def overdispersion(self) -> float:
        """How much benign clients differ beyond sampling, from the pooled histograms."""
        return self._nulls.pooled.null_by_bin.overdispersion

    def compare(self, clients: ClientViews, is_member: BoolArray) -> Comparisons:
        """Compare some clients with the reference, given their labels and without them.

        Parameters
        ----------
        clients : ClientViews
            k clients, sampled or not.
        is_member : ndarray of bool, shape (k,)
            Which of them belong to the reference.
        """
        return compare_views(clients, self._reference, is_member)

    def p_values(self, clients: ClientViews, comparisons: Comparisons) -> PValues:
        """Return the p-values of some clients in both views.

        Parameters
        ----------
        clients : ClientViews
            k clients, sampled or not.
        comparisons : Comparisons
            What `compare` returned for them.
        """
        return self._nulls.p_values(comparisons, clients.given_labels.sample_sizes)

    def judge(
        self, clients: ClientViews, comparisons: Comparisons, p_values: PValues
    ) -> OutlierVerdict:
        """Decide which clients to exclude, given this reference.

        A significant difference is not enough: benign clients may come from other populations. A
        client is excluded only if

        1. it differs significantly both given its labels and without them, and
        2. its histogram is one that no plausible benign population produces: it crosses the
           expected CDF, or a part of the expected mass is all but absent.

        Condition 2 relies on the labels only where most of the client's samples belong to classes
        that most clients hold; malicious clients could otherwise invent the reference for a class.

        Parameters
        ----------
        clients : ClientViews
            The k clients to judge.
        comparisons : Comparisons
            Their comparisons with this reference.
        p_values : PValues
            The p-values of these.
        """
        fdr_level = self.tuning.fdr_level
        family_level = fdr_level / self.sampled.n_clients  # Bonferroni over all clients

        given_labels = clients.given_labels
        in_common_classes = given_labels.counts[:, self.sampled.common_classes].sum(axis=(1, 2))
        labels_are_reliable = 2 * in_common_classes >= given_labels.sample_sizes

        # 1. Significance. Without reliable labels both views must pass the strict level.
        pooled_level = np.where(labels_are_reliable, fdr_level, family_level)
        is_significant = p_values.given_labels <= family_level
        is_significant &= p_values.pooled <= pooled_level

        # 2a. The client's CDF lies above the expected one in places and below it in others, in both
        # views. Another population has smaller or larger scores, not both. Where half of the
        # clients are outliers, beyond those expected by chance, crossing says nothing.
        crossing = np.minimum(comparisons.given_labels.crossing, comparisons.pooled.crossing)
        reference_is_majority = self.outlier_fraction * (1 - fdr_level) < 0.5
        crosses = (crossing > self.tuning.crossing_margin) & reference_is_majority

        # 2b. A part of the expected mass is missing.
        lacks_mass = np.where(
            labels_are_reliable,
            self._lacks_expected_mass(comparisons.given_labels),
            self._lacks_mass_without_labels(comparisons.given_labels)
            & self._lacks_mass_without_labels(comparisons.pooled),
        )
        is_excluded = is_significant & (crosses | lacks_mass)

        # Larger scores than expected, at the level of one test. Such clients stay, but their
        # objections to a lower threshold count less in the vote.
        larger_given_labels = comparisons.given_labels.has_larger_scores
        larger_given_labels = (p_values.given_labels < fdr_level) & larger_given_labels
        larger_pooled = (p_values.pooled < fdr_level) & comparisons.pooled.has_larger_scores

        return OutlierVerdict(
            p_value=p_values.given_labels,
            is_excluded=is_excluded,
            is_outlier=p_values.given_labels <= self.p_cutoff,
            suspected_larger=larger_given_labels | larger_pooled,
        )

    def _lacks_expected_mass(self, comparison: Comparison) -> BoolArray:
        """Return (k,) whether a client lacks mass that its labels lead one to expect.

        Ratios are observed over expected mass. A client with larger scores than the reference must
        lack most of the lower half; one with smaller scores must lack nearly all of the tail, which
        holds few samples and is held to a smaller ratio.
        """
        lacks_lower_half = comparison.lower_half_ratio <= self.tuning.min_mass_ratio
        lacks_tail = comparison.tail_ratio <= self.tuning.max_strict_ratio
        return np.where(comparison.has_larger_scores, lacks_lower_half, lacks_tail)

    def _lacks_mass_without_labels(self, comparison: Comparison) -> BoolArray:
        """Return (k,) whether a client lacks nearly all of the mass on one side.

        This is for clients whose labels do not tell which scores to expect, so more must be missing
        than in `_lacks_expected_mass`. Ratios are observed over expected mass. The body is the mass
        up to the expected CDF's quantile `body_mass`, and the tail is the rest. A client with
        larger scores than the reference must lack the body or the lower half, one with smaller
        scores the tail.

        Where many clients are outliers, the reference itself is in doubt. Then larger scores count
        only if hardly anything of the whole body is left.
        """
        tuning = self.tuning
        reference_is_in_doubt = self.outlier_fraction > tuning.many_outliers
        if reference_is_in_doubt:
            lacks_lower_mass = comparison.body_ratio <= tuning.max_body_ratio_in_doubt
        else:
            lacks_body = comparison.body_ratio <= tuning.max_strict_ratio
            lacks_lower_half = comparison.lower_half_ratio <= tuning.max_strict_ratio
            lacks_lower_mass = lacks_body | lacks_lower_half
        lacks_tail = comparison.tail_ratio <= tuning.max_strict_ratio
        return np.where(comparison.has_larger_scores, lacks_lower_mass, lacks_tail)

    def refit_until_stable(self) -> CandidateReference:
        """Return the fixed point at which all clients but the outliers are the reference.

        Where half of the clients or more are outliers, only the clearest of them, fewer than half,
        are left out: a reference is a majority.
        """
        current = self
        for _ in range(MAX_REFITS):
            outliers = current.verdict.is_outlier
            if current.outlier_fraction >= 0.5:
                largest_minority = (len(current.members) - 1) // 2
                outlier_p_values = np.where(outliers, current.verdict.p_value, 2)
                outliers = smallest(outlier_p_values, largest_minority)
            if (current.members == ~outliers).all():
                break
            current = CandidateReference(self.sampled, ~outliers, self.mean_misfit)
        return current

    def two_population_misfit(self) -> float:
        """Return the mean misfit, at least 1 of each client, if outliers are a second population.

        Each of the two is compared with itself.
        """
        clients = self.sampled.clients.given_labels
        misfits = []
        for population in (self.verdict.is_outlier, ~self.verdict.is_outlier):
            if population.any():
                comparison = compare_with_members(clients, population)
                misfits.append(comparison.chi2_ratio[population])
        return float(np.maximum(np.concatenate(misfits), 1).mean())


def smallest(values: FloatArray, n: int) -> BoolArray:
    """Return a mask of the n smallest of some values (k,); ties go to the first."""
    return np.argsort(np.argsort(values, kind="stable")) < n


def nearest_majority(distances: FloatArray) -> BoolArray:
    """Return a mask of the smallest strict majority with the smallest distances."""
    return smallest(distances, len(distances) // 2 + 1)


def concentrate(clients: ClientHistograms, members: BoolArray) -> BoolArray:
    """Move a reference set towards the majority nearest to it.

    These are concentration steps as of Rousseeuw and Van Driessen (1999, FAST-MCD): the nearest
    majority becomes the reference, a few times. Members that fit stay, so that clients that agree
    more closely than sampling allows win nothing by it.

    Parameters
    ----------
    clients : ClientHistograms
        The sampled clients, given their labels.
    members : ndarray of bool, shape (k,)
        The set to begin with.

    Returns
    -------
    ndarray of bool, shape (k,)
    """
    fits_up_to = float(scaled_chi2_quantile(clients.basis.degrees_of_freedom, 0.05))
    for _ in range(MAX_CONCENTRATION_STEPS):
        misfit = compare_with_members(clients, members).chi2_ratio

        # Distances beyond sampling and what the members differ by.
        excess = max(np.median(misfit[members]) - 1, 0)
        overdispersion = excess / np.median(clients.sample_sizes[members])
        distance = misfit / (1 + overdispersion * clients.sample_sizes)

        # First the members that fit, then the others that fit, then the rest.
        fits = distance <= fits_up_to
        among_fitting = np.where(members, 0, 1 + distance)
        rank = np.where(fits, among_fitting, 1 + fits_up_to + distance)
        nearest = nearest_majority(rank)
        if (nearest == members).all():
            break
        members = nearest
    return members


def unique_masks(masks: Iterable[BoolArray]) -> list[BoolArray]:
    """Return each mask once, in the order of the first."""
    return list({mask.tobytes(): mask for mask in masks}.values())


def find_plausible_references(clients: ClientViews, n_clients: int) -> list[CandidateReference]:
    """Find the reference sets that explain the reports about equally well, the best first.

    Several starting sets are tried, each is refined until it is stable, and all whose misfit is
    close to the best one's are kept.

    Parameters
    ----------
    clients : ClientViews
        The clients among which references are sought.
    n_clients : int
        Number of clients of the whole round.

    Returns
    -------
    list of CandidateReference
        At least one.
    """
    sampled = SampledRound.from_clients(clients, n_clients)
    histograms = clients.given_labels

    def refine(starting_sets: Iterable[BoolArray]) -> list[CandidateReference]:
        return [
            CandidateReference(sampled, members).refit_until_stable()
            for members in unique_masks(starting_sets)
        ]

    everybody = np.ones(len(histograms.sample_sizes), dtype=bool)
    cdfs = _pooled_cdfs(clients)
    nearest_half = _nearest_to_median_cdf(cdfs, histograms.sample_sizes)
    central_half = concentrate(histograms, nearest_half)

    # Primary candidates: the central half, everybody, and the outliers of either.
    candidates = refine([central_half, everybody])
    outlier_sets = [
        candidate.verdict.is_outlier
        for candidate in candidates
        if candidate.verdict.is_outlier.sum() > 1
    ]
    candidates += refine(concentrate(histograms, mask) for mask in unique_masks(outlier_sets))
    max_misfit = _max_plausible_misfit(candidates)

    # Secondary candidates. They may save a client or raise the threshold, but do not tighten
    # `max_misfit`: adding them must not make a primary candidate implausible.
    hardest_half = nearest_majority(cdfs.mean(axis=1))  # the lowest CDFs: the largest scores
    candidates += refine(concentrate(histograms, mask) for mask in (~central_half, hardest_half))
    minority_starts = unique_masks(
        candidate.verdict.is_outlier
        for candidate in candidates
        if candidate.outlier_fraction >= 0.5
    )
    candidates += refine(minority_starts[:MAX_MINORITY_STARTS])

    plausible = _best_per_outlier_set(candidates, max_misfit)
    return _drop_overdispersed_rivals(plausible, clients)


def _pooled_cdfs(clients: ClientViews) -> FloatArray:
    """Return (k, B) the empirical score CDF of every client, all classes together."""
    pooled_counts = clients.pooled.counts[:, 0]
    return np.cumsum(pooled_counts, axis=1) / clients.pooled.sample_sizes[:, None]


def _nearest_to_median_cdf(cdfs: FloatArray, sizes: FloatArray) -> BoolArray:
    """Return the majority of the clients nearest to the median CDF.

    Squared distances shrink as 1/n under sampling and level off where clients differ; weighting by
    n / (1 + n / median n) makes clients of all sizes comparable in both regimes.
    """
    squared_distances = ((cdfs - np.median(cdfs, axis=0)) ** 2).sum(axis=1)
    return nearest_majority(squared_distances * sizes / (1 + sizes / np.median(sizes)))


def _max_plausible_misfit(candidates: Sequence[CandidateReference]) -> float:
    """Return the largest misfit at which a candidate is still plausible."""
    tuning = candidates[0].tuning
    smallest_misfit = min(candidate.mean_misfit for candidate in candidates)
    return max(tuning.plausible_misfit_ratio, 1) * smallest_misfit


def _best_per_outlier_set(
    candidates: Sequence[CandidateReference], max_misfit: float
) -> list[CandidateReference]:
    """Return the best candidate for every set of outliers, if its misfit is small enough.

    A reference from which half of the clients are outliers describes a minority. It counts only
    where no other candidate is left.
    """
    by_misfit = sorted(candidates, key=lambda candidate: candidate.mean_misfit, reverse=True)
    best: dict[bytes, CandidateReference] = {}
    for candidate in by_misfit:  # later ones have a smaller misfit and replace earlier ones
        best[candidate.verdict.is_outlier.tobytes()] = candidate

    plausible = [candidate for candidate in best.values() if candidate.mean_misfit <= max_misfit]
    of_majorities = [candidate for candidate in plausible if candidate.outlier_fraction < 0.5]
    return sorted(of_majorities or plausible, key=lambda candidate: candidate.mean_misfit)


def _drop_overdispersed_rivals(
    plausible: Sequence[CandidateReference], clients: ClientViews
) -> list[CandidateReference]:
    """Drop rivals that explain the best candidate's outliers away by a large overdispersion.

    Such a rival finds fewer of the same outliers. It is dropped where two populations fit the
    reports far better: K log(ratio of misfits) > 2 log N, for K clients and N samples. The
    histogram of a second population costs 1.25 log N by the criterion of Schwarz (1978).
    """
    best, *rivals = plausible
    best_outliers = best.verdict.is_outlier
    sample_sizes = clients.given_labels.sample_sizes
    n_samples = sample_sizes.sum()
    n_clients = len(sample_sizes)
    max_misfit = best.two_population_misfit() * n_samples ** (2 / n_clients)

    kept = [best]
    for rival in rivals:
        finds_other_outliers = (rival.verdict.is_outlier & ~best_outliers).any()
        if finds_other_outliers or rival.two_population_misfit() <= max_misfit:
            kept.append(rival)
    return kept
