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
from robfcp.defense.consensus._basis import ClientViews, common_classes
from robfcp.defense.consensus._outlier_test import (
    Comparison,
    OutlierTest,
    OutlierTestResults,
    benjamini_hochberg_cutoff,
    compare_with_members,
    scaled_chi2_quantile,
)
from robfcp.defense.consensus._tuning import Tuning


class OutlierVerdict(NamedTuple):
    """What one reference says of some clients; (k,) each.

    Attributes
    ----------
    p_value : ndarray of float
        Given the labels, corrected for the two statistics of that view; from `SMALLEST_P_VALUE`
        to 1.
    is_excluded : ndarray of bool
        Clients that no benign population looks like.
    is_outlier : ndarray of bool
        Clients that differ significantly given the labels, at the false discovery rate. Every
        excluded client is one.
    suspected_larger : ndarray of bool
        Clients whose scores are larger than expected, at the level of a single test.
    comparison : Comparison
        How they compare with the reference, given the labels.
    """

    p_value: FloatArray
    is_excluded: BoolArray
    is_outlier: BoolArray
    suspected_larger: BoolArray
    comparison: Comparison


@dataclass(frozen=True, eq=False)
class SampledRound:
    """The clients among which references are sought, and what all references share.

    Attributes
    ----------
    clients : ClientViews
        The sampled clients.
    tuning : Tuning
        The constants of the defense.
    is_common_class : ndarray of bool, shape (C,)
        The classes that most of them hold.
    n_clients : int
        Number of clients of the whole round, duplicates counted once. It is larger than the number
        k of sampled clients where there are many.
    max_fitting_ratio : float
        The largest statistic by bin (`Comparison.chi2_ratio`) at which a client fits a reference.
    max_ratio_of_lacking_half : float
        The largest observed over expected mass at which a client lacks the lower half.
    max_ratio_of_lacking_tail : float
        The same of the tail, and of every part of the mass where labels are not reliable: the limit
        of the half divided by `Tuning.tail_ratio_divisor`.
    max_ratio_of_lacking_body : float
        The same of the body where the reference itself is in doubt: the limit of the half divided
        by `Tuning.body_ratio_divisor`.
    """

    clients: ClientViews
    tuning: Tuning
    is_common_class: BoolArray
    n_clients: int
    max_fitting_ratio: float
    max_ratio_of_lacking_half: float
    max_ratio_of_lacking_tail: float
    max_ratio_of_lacking_body: float

    @staticmethod
    def from_clients(clients: ClientViews, n_clients: int) -> SampledRound:
        """Collect what all references of a round share.

        Parameters
        ----------
        clients : ClientViews
            The sampled clients.
        n_clients : int
            Number of clients of the whole round, duplicates counted once.
        """
        basis = clients.given_labels.basis
        tuning = basis.tuning
        max_fitting_ratio = scaled_chi2_quantile(
            basis.degrees_of_freedom, tuning.fit_tail_probability
        )
        return SampledRound(
            clients=clients,
            tuning=tuning,
            is_common_class=common_classes(clients.given_labels),
            n_clients=n_clients,
            max_fitting_ratio=float(max_fitting_ratio),
            max_ratio_of_lacking_half=tuning.min_mass_ratio,
            max_ratio_of_lacking_tail=tuning.min_mass_ratio / tuning.tail_ratio_divisor,
            max_ratio_of_lacking_body=tuning.min_mass_ratio / tuning.body_ratio_divisor,
        )


class CandidateReference:
    """Some of the sampled clients as the reference set, and how every client compares with it.

    Parameters
    ----------
    sampled : SampledRound
        The sampled clients, and what all references share.
    members : ndarray of bool, shape (k,)
        The reference set: half of the sampled clients or more, as all callers ensure.
    mean_misfit : float, optional
        That of the set which this one was first refined from; computed from `members` if None.

    Attributes
    ----------
    sampled : SampledRound
        The sampled clients, and what all references share.
    members : ndarray of bool, shape (k,)
        The reference set.
    mean_misfit : float
        Mean statistic by bin (`Comparison.chi2_ratio`), at least 1, of the members of the set that
        this one was first refined from: 1 under sampling alone.
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
        self._test, results = OutlierTest.fit(sampled.clients, members)

        if mean_misfit is None:
            misfits = results.given_labels.comparison.chi2_ratio
            mean_misfit = max(float(misfits[members].mean()), 1.0)
        self.mean_misfit = mean_misfit

        p_values = results.given_labels.p_value
        self.p_cutoff = benjamini_hochberg_cutoff(
            p_values, sampled.n_clients, sampled.tuning.fdr_level
        )
        self.outlier_fraction = float((p_values <= self.p_cutoff).mean())
        self.verdict = self._verdict_from(sampled.clients, results)

    @property
    def overdispersion(self) -> float:
        """phi: how much benign clients differ beyond sampling, per sample, without labels."""
        return self._test.pooled.null_by_bin.overdispersion

    def judge(self, clients: ClientViews, is_member: BoolArray) -> OutlierVerdict:
        """Test some clients against this reference and decide which of them to exclude.

        Parameters
        ----------
        clients : ClientViews
            k clients, sampled or not.
        is_member : ndarray of bool, shape (k,)
            Which of them belong to the reference.
        """
        return self._verdict_from(clients, self._test.apply(clients, is_member))

    def _verdict_from(self, clients: ClientViews, results: OutlierTestResults) -> OutlierVerdict:
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
        results : OutlierTestResults
            Their comparisons with this reference, and the p-values, each corrected for the two
            statistics of its view.
        """
        fdr_level = self.sampled.tuning.fdr_level
        family_level = fdr_level / self.sampled.n_clients  # Bonferroni over all clients
        given_labels, p_given_labels = results.given_labels
        pooled, p_pooled = results.pooled
        labels_are_reliable = self._labels_are_reliable(clients)

        # 1. Significance. Without reliable labels both views must pass the strict level.
        pooled_level = np.where(labels_are_reliable, fdr_level, family_level)
        is_significant = p_given_labels <= family_level
        is_significant &= p_pooled <= pooled_level

        # 2a. The client's CDF lies above the expected one in places and below it in others, in both
        # views. Another population has smaller or larger scores, not both. Where half of the
        # clients are outliers, beyond those expected by chance, crossing says nothing: among
        # outliers the fraction of false ones is `fdr_level`.
        crossing = np.minimum(given_labels.crossing, pooled.crossing)
        reference_is_majority = self.outlier_fraction * (1 - fdr_level) < 0.5
        crosses = (crossing > self.sampled.tuning.crossing_margin) & reference_is_majority

        # 2b. A part of the expected mass is missing.
        lacks_mass_given_labels = self._lacks_mass_without_labels(given_labels)
        lacks_mass_in_both = lacks_mass_given_labels & self._lacks_mass_without_labels(pooled)
        lacks_mass = np.where(
            labels_are_reliable, self._lacks_expected_mass(given_labels), lacks_mass_in_both
        )

        # Larger scores than expected, at the level of one test. Such clients stay, but their
        # objections to a lower threshold count less in the vote.
        larger_given_labels = (p_given_labels < fdr_level) & given_labels.has_larger_scores
        larger_pooled = (p_pooled < fdr_level) & pooled.has_larger_scores

        return OutlierVerdict(
            p_value=p_given_labels,
            is_excluded=is_significant & (crosses | lacks_mass),
            is_outlier=p_given_labels <= self.p_cutoff,
            suspected_larger=larger_given_labels | larger_pooled,
            comparison=given_labels,
        )

    def _labels_are_reliable(self, clients: ClientViews) -> BoolArray:
        """Return (k,) whether most of a client's samples are of classes that most clients hold.

        Nobody's labels are where clients are compared without classes: no class is common then.
        """
        histograms = clients.given_labels
        common_counts = histograms.counts[:, self.sampled.is_common_class]
        return np.asarray(2 * common_counts.sum(axis=(1, 2)) >= histograms.sample_sizes)

    def _lacks_expected_mass(self, comparison: Comparison) -> BoolArray:
        """Return (k,) whether a client lacks mass that its labels lead one to expect.

        Ratios are observed over expected mass. A client with larger scores than the reference must
        lack most of the lower half; one with smaller scores must lack nearly all of the tail, which
        holds few samples and has a smaller limit.

        Parameters
        ----------
        comparison : Comparison
            Of k clients with this reference, given their labels.
        """
        sampled = self.sampled
        lacks_lower_half = comparison.lower_half_ratio <= sampled.max_ratio_of_lacking_half
        lacks_tail = comparison.tail_ratio <= sampled.max_ratio_of_lacking_tail
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

        Parameters
        ----------
        comparison : Comparison
            Of k clients with this reference, in either view.
        """
        sampled = self.sampled
        max_ratio = sampled.max_ratio_of_lacking_tail  # the limit of the tail for every part
        reference_is_in_doubt = self.outlier_fraction > sampled.tuning.many_outliers
        if reference_is_in_doubt:
            lacks_lower_mass = comparison.body_ratio <= sampled.max_ratio_of_lacking_body
        else:
            lacks_body = comparison.body_ratio <= max_ratio
            lacks_lower_half = comparison.lower_half_ratio <= max_ratio
            lacks_lower_mass = lacks_body | lacks_lower_half
        lacks_tail = comparison.tail_ratio <= max_ratio
        return np.where(comparison.has_larger_scores, lacks_lower_mass, lacks_tail)

    def refit_until_stable(self) -> CandidateReference:
        """Return the fixed point at which all clients but the outliers are the reference.

        Where half of the clients or more are outliers, only the clearest of them, fewer than half,
        are left out: a reference is a majority.
        """
        current = self
        for _ in range(self.sampled.tuning.max_refits):
            outliers = current.verdict.is_outlier
            if current.outlier_fraction >= 0.5:
                largest_minority = (len(current.members) - 1) // 2
                # 2 is larger than any p-value, so that others than outliers come last.
                outlier_p_values = np.where(outliers, current.verdict.p_value, 2)
                outliers = smallest(outlier_p_values, largest_minority)
            if (current.members == ~outliers).all():
                break
            current = CandidateReference(self.sampled, ~outliers, self.mean_misfit)
        return current

    def two_population_misfit(self) -> float:
        """Return the mean misfit of the sampled clients if outliers are a second population.

        Each of the two populations is compared with itself. A client's misfit is its statistic by
        bin, and at least 1: closer agreement than sampling allows is no better fit.
        """
        clients = self.sampled.clients.given_labels
        misfits = []
        for population in (self.verdict.is_outlier, ~self.verdict.is_outlier):
            if population.any():
                comparison = compare_with_members(clients, population)
                misfits.append(comparison.chi2_ratio[population])
        return float(np.maximum(np.concatenate(misfits), 1).mean())


def smallest(values: FloatArray, n: int) -> BoolArray:
    """Return a mask (k,) of the n smallest of some values; ties go to the first.

    Parameters
    ----------
    values : ndarray of shape (k,)
        The values, none NaN.
    n : int
        How many are marked, from 0 to k.
    """
    ranks = np.argsort(np.argsort(values, kind="stable"))
    return np.asarray(ranks < n)


def nearest_majority(distances: FloatArray) -> BoolArray:
    """Return a mask (k,) of the floor(k / 2) + 1 clients with the smallest distances.

    Parameters
    ----------
    distances : ndarray of shape (k,)
        In any unit; ties go to the first.
    """
    return smallest(distances, len(distances) // 2 + 1)


def concentrate(sampled: SampledRound, members: BoolArray) -> BoolArray:
    """Move a reference set towards the majority nearest to it.

    These are concentration steps as of Rousseeuw and Van Driessen (1999, FAST-MCD): the nearest
    majority becomes the reference, a few times. Members that fit stay, so that clients that agree
    more closely than sampling allows win nothing by it.

    Parameters
    ----------
    sampled : SampledRound
        The sampled clients.
    members : ndarray of bool, shape (k,)
        The set to begin with, of any positive size; not changed.

    Returns
    -------
    ndarray of bool, shape (k,)
        A majority: floor(k / 2) + 1 clients.
    """
    clients = sampled.clients.given_labels
    sizes = clients.sample_sizes
    max_fitting = sampled.max_fitting_ratio
    for _ in range(sampled.tuning.max_concentration_steps):
        misfit = compare_with_members(clients, members).chi2_ratio

        # Distances beyond sampling and what the members differ by: under both the misfit of a
        # client of n samples is 1 + overdispersion n on average, so that its distance is about 1.
        excess = max(np.median(misfit[members]) - 1, 0)
        overdispersion = excess / np.median(sizes[members])
        distance = misfit / (1 + overdispersion * sizes)

        # First the members that fit (0), then the others that fit (at most 1 + max_fitting), then
        # those that do not (more than that); by distance within the last two.
        fits = distance <= max_fitting
        sort_key_if_fitting = np.where(members, 0, 1 + distance)
        sort_key = np.where(fits, sort_key_if_fitting, 1 + max_fitting + distance)
        nearest = nearest_majority(sort_key)
        if (nearest == members).all():
            break
        members = nearest
    return members


def unique_masks(masks: Iterable[BoolArray]) -> list[BoolArray]:
    """Return each distinct mask once, in the order in which they first occur.

    Parameters
    ----------
    masks : iterable of ndarray of bool, shape (n,)
        Masks over the same clients.
    """
    return list({mask.tobytes(): mask for mask in masks}.values())


def find_plausible_references(clients: ClientViews, n_clients: int) -> list[CandidateReference]:
    """Find the reference sets that explain the reports about equally well, the best first.

    Several starting sets are tried, each is refined until it is stable, and all whose misfit is
    close to the best one's are kept.

    Parameters
    ----------
    clients : ClientViews
        The k clients among which references are sought; at least `Tuning.min_clients`.
    n_clients : int
        Number of clients of the whole round, duplicates counted once.

    Returns
    -------
    list of CandidateReference
        At least one; by mean misfit, the smallest first.
    """
    sampled = SampledRound.from_clients(clients, n_clients)
    sizes = clients.given_labels.sample_sizes
    all_clients = np.ones(len(sizes), dtype=bool)
    cdfs = _pooled_cdfs(clients)
    central_half = concentrate(sampled, _nearest_to_median_cdf(cdfs, sizes))

    # Primary candidates: the central half, all clients, and the outliers of either.
    primary = _refine(sampled, [central_half, all_clients])
    outlier_sets = unique_masks(
        candidate.verdict.is_outlier
        for candidate in primary
        if candidate.verdict.is_outlier.sum() > 1
    )
    primary += _refine(sampled, [concentrate(sampled, mask) for mask in outlier_sets])

    # Secondary candidates. They may save a client or raise the threshold, but do not tighten
    # the limit of a plausible misfit: they must not make a primary candidate implausible.
    max_misfit = _max_plausible_misfit(primary, sampled.tuning)
    largest_scores_half = nearest_majority(cdfs.mean(axis=1))  # the lowest CDFs
    opposite_halves = [~central_half, largest_scores_half]
    secondary = _refine(sampled, [concentrate(sampled, mask) for mask in opposite_halves])
    minority_starts = unique_masks(
        candidate.verdict.is_outlier
        for candidate in primary + secondary
        if candidate.outlier_fraction >= 0.5
    )
    secondary += _refine(sampled, minority_starts[: sampled.tuning.max_minority_starts])

    plausible = _best_per_outlier_set(primary + secondary, max_misfit)
    return _drop_overdispersed_candidates(plausible, sampled)


def _refine(sampled: SampledRound, starting_sets: Iterable[BoolArray]) -> list[CandidateReference]:
    """Return the stable reference that each distinct starting set leads to.

    Parameters
    ----------
    sampled : SampledRound
        The k sampled clients.
    starting_sets : iterable of ndarray of bool, shape (k,)
        Half of the clients or more each. Different ones may lead to the same reference.
    """
    candidates = []
    for members in unique_masks(starting_sets):
        candidates.append(CandidateReference(sampled, members).refit_until_stable())
    return candidates


def _pooled_cdfs(clients: ClientViews) -> FloatArray:
    """Return (k, B) the empirical score CDF of every client, all classes together.

    Its values are those at the ends of the merged bins.
    """
    pooled_counts = clients.pooled.counts[:, 0]  # the pooled view has a single table
    return np.cumsum(pooled_counts, axis=1) / clients.pooled.sample_sizes[:, None]


def _nearest_to_median_cdf(cdfs: FloatArray, sizes: FloatArray) -> BoolArray:
    """Return a mask (k,) of the majority of the clients nearest to the median CDF.

    Squared distances shrink as 1/n under sampling and level off where clients differ; weighting by
    n / (1 + n / median n) makes clients of all sizes comparable in both regimes.

    Parameters
    ----------
    cdfs : ndarray of shape (k, B)
        The clients' CDFs at the ends of the merged bins.
    sizes : ndarray of shape (k,)
        n, their numbers of samples; positive.
    """
    squared_distances = ((cdfs - np.median(cdfs, axis=0)) ** 2).sum(axis=1)
    return nearest_majority(squared_distances * sizes / (1 + sizes / np.median(sizes)))


def _max_plausible_misfit(candidates: Sequence[CandidateReference], tuning: Tuning) -> float:
    """Return the largest mean misfit at which a candidate is still plausible.

    It is no smaller than that of the best candidate, whatever the tuning: one is always plausible.
    """
    smallest_misfit = min(candidate.mean_misfit for candidate in candidates)
    return max(tuning.plausible_misfit_ratio, 1) * smallest_misfit


def _best_per_outlier_set(
    candidates: Sequence[CandidateReference], max_misfit: float
) -> list[CandidateReference]:
    """Return the best candidate for every set of outliers, if its misfit is small enough.

    A reference from which half of the clients are outliers describes a minority. It counts only
    where no other candidate is left.

    Parameters
    ----------
    candidates : sequence of CandidateReference
        All of one round.
    max_misfit : float
        The largest mean misfit of a plausible one, which one candidate has at least.

    Returns
    -------
    list of CandidateReference
        At least one; by mean misfit, the smallest first.
    """
    by_misfit = sorted(candidates, key=lambda candidate: candidate.mean_misfit, reverse=True)
    best: dict[bytes, CandidateReference] = {}
    for candidate in by_misfit:  # later ones have a smaller misfit and replace earlier ones
        best[candidate.verdict.is_outlier.tobytes()] = candidate

    plausible = [candidate for candidate in best.values() if candidate.mean_misfit <= max_misfit]
    of_majorities = [candidate for candidate in plausible if candidate.outlier_fraction < 0.5]
    return sorted(of_majorities or plausible, key=lambda candidate: candidate.mean_misfit)


def _drop_overdispersed_candidates(
    plausible: Sequence[CandidateReference], sampled: SampledRound
) -> list[CandidateReference]:
    """Drop candidates that explain the best candidate's outliers away by a large overdispersion.

    Such a candidate finds fewer of the same outliers. It is dropped where two populations fit the
    reports far better: k log(ratio of misfits) > c log N, for the k sampled clients, their N
    samples and c = `population_cost`.

    Parameters
    ----------
    plausible : sequence of CandidateReference
        At least one; the best first, as `_best_per_outlier_set` returns them.
    sampled : SampledRound
        The sampled clients.

    Returns
    -------
    list of CandidateReference
        The others in the same order; always with the best.
    """
    best, *alternatives = plausible
    best_outliers = best.verdict.is_outlier
    sample_sizes = sampled.clients.given_labels.sample_sizes
    n_samples = sample_sizes.sum()
    n_sampled = len(sample_sizes)
    max_ratio = n_samples ** (sampled.tuning.population_cost / n_sampled)
    max_misfit = best.two_population_misfit() * max_ratio

    references = [best]
    for candidate in alternatives:
        finds_other_outliers = (candidate.verdict.is_outlier & ~best_outliers).any()
        if finds_other_outliers or candidate.two_population_misfit() <= max_misfit:
            references.append(candidate)
    return references
