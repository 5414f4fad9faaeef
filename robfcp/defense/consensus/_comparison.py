"""How every client's scores differ from what a reference set leads one to expect of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from robfcp._typing import BoolArray, FloatArray, IndexArray
from robfcp.defense.consensus._basis import ClientHistograms, ClientViews

ANSCOMBE = 0.375  # 3/8 stabilizes the variance of a Poisson count's square root (Anscombe 1948)

# E[4 (sqrt(X + 3/8) - sqrt(r + 3/8))^2] of a Poisson count X of mean r is close to 1 - exp(-1.3 r):
# 1 for large r, but less where a bin is all but empty. Fitted to the exact sums.
POISSON_DEFICIT_RATE = 1.3

_TINY = 1e-12  # the least expected share of the samples, as callers divide by it
_MIN_RATE = 1e-9  # the least expected count and sum, for the same reason
_VARIANCE_PAD = (
    0.375  # added to variances of cumulative counts: one edge of few samples says little
)


class ReferenceCounts(NamedTuple):
    """Weighted counts of a reference set in both views.

    Attributes
    ----------
    given_labels : ndarray of shape (C, B)
        Counts by class and merged bin.
    pooled : ndarray of shape (1, B)
        Counts of all classes together; the same object where there are no labels.
    """

    given_labels: FloatArray
    pooled: FloatArray

    @staticmethod
    def from_members(clients: ClientViews, members: BoolArray) -> ReferenceCounts:
        """Return the counts of some clients together.

        Parameters
        ----------
        clients : ClientViews
            The k sampled clients.
        members : ndarray of bool, shape (k,)
            Those in the reference set.
        """
        given_labels = _weighted_total(clients.given_labels, members)
        pooled = given_labels
        if clients.pooled is not clients.given_labels:
            pooled = _weighted_total(clients.pooled, members)
        return ReferenceCounts(given_labels, pooled)


def _weighted_total(clients: ClientHistograms, members: BoolArray) -> FloatArray:
    """Return (C, B) the weighted counts of the members together."""
    weighted = members[:, None, None] * clients.reference_weight * clients.counts
    return np.asarray(weighted.sum(axis=0))


class ExpectedCounts(NamedTuple):
    """What a reference leads one to expect of some clients' pooled counts.

    Attributes
    ----------
    mean : ndarray of shape (k, B)
        Expected counts.
    variance : ndarray of shape (k, B)
        Their variances: of the client's own sampling and of the reference's error.
    inner_edge_variance : ndarray of shape (k, B - 1)
        Variances of the cumulative counts up to each inner edge: all edges but the last.
    """

    mean: FloatArray
    variance: FloatArray
    inner_edge_variance: FloatArray


def expected_counts(
    counts: FloatArray, reference: FloatArray, has_pooled_clients: bool, prior_strength: float
) -> ExpectedCounts:
    """Return the counts to expect of clients with these labels, and their variances.

    Let n_c be a client's samples of class c, N_c the reference's and p_cb the reference's share of
    bin b within class c. A multinomial sample of each class has

        E_b = sum_c n_c p_cb  and  V_b = sum_c n_c p_cb (1 - p_cb) (1 + n_c / (N_c + W)),

    where the last factor adds the error of the estimated shares. The shares of all classes together
    count as W = `prior_strength` samples of each class.

    Parameters
    ----------
    counts : ndarray of shape (k, C, B)
        The clients' counts, of which only the class totals are used.
    reference : ndarray of shape (k, C, B)
        For each client the reference's counts without the client itself. Changed in place where
        there are pooled clients.
    has_pooled_clients : bool
        Whether the last class holds clients without labels, whose reference is all classes.
    prior_strength : float
        W.
    """
    class_sizes = counts.sum(axis=2)
    all_classes = reference.sum(axis=1)
    if has_pooled_clients:
        reference[:, -1] = all_classes

    # Shares within each class, drawn towards those of all classes together.
    smoothed = all_classes + 0.5
    prior = prior_strength * smoothed / smoothed.sum(axis=1, keepdims=True)
    reference_sizes = reference.sum(axis=2) + prior_strength
    shares = (reference + prior[:, None]) / reference_sizes[:, :, None]
    cumulative_shares = np.cumsum(shares, axis=2)[:, :, :-1]

    variance_factors = class_sizes * (1 + class_sizes / reference_sizes)
    mean = np.matmul(class_sizes[:, None], shares)[:, 0]
    variance = np.matmul(variance_factors[:, None], shares * (1 - shares))[:, 0]
    inner_edge_variance = np.matmul(
        variance_factors[:, None], cumulative_shares * (1 - cumulative_shares)
    )[:, 0]
    return ExpectedCounts(mean, variance, inner_edge_variance)


class Comparison(NamedTuple):
    """How some clients' scores compare with what a reference leads one to expect; (k,) each.

    Attributes
    ----------
    chi2_ratio : ndarray of float
        Weighted squared differences by bin, over their mean under sampling.
    anderson_darling_ratio : ndarray of float
        Mean of the squared differences of the cumulative counts over their variances, as in the
        statistic of Anderson and Darling (1952).
    has_larger_scores : ndarray of bool
        Whether the client's CDF is below the expected one on average.
    crossing : ndarray of float
        How far the client's CDF lies on the other side of the expected one somewhere.
    lower_half_ratio, body_ratio, tail_ratio : ndarray of float
        The mass found over the mass expected in the lower half, in the body, and above the body (of
        the tail, less a standard deviation of its privacy noise).
    max_deviation_bin : ndarray of int
        The merged bin at whose end the two CDFs are farthest apart.
    observed_cdf, expected_cdf : ndarray of float
        The two CDFs there.
    """

    chi2_ratio: FloatArray
    anderson_darling_ratio: FloatArray
    has_larger_scores: BoolArray
    crossing: FloatArray
    lower_half_ratio: FloatArray
    body_ratio: FloatArray
    tail_ratio: FloatArray
    max_deviation_bin: IndexArray
    observed_cdf: FloatArray
    expected_cdf: FloatArray


class Comparisons(NamedTuple):
    """Comparisons of the same clients given their labels and without them.

    Both are one object where there are no labels.
    """

    given_labels: Comparison
    pooled: Comparison


def compare_views(
    clients: ClientViews, reference: ReferenceCounts, is_member: BoolArray
) -> Comparisons:
    """Compare every client with a reference set, given their labels and without them.

    Parameters
    ----------
    clients : ClientViews
        The k clients, sampled or not.
    reference : ReferenceCounts
        Counts of the reference set in both views.
    is_member : ndarray of bool, shape (k,)
        The clients that belong to the reference set.
    """
    given_labels = compare_with_reference(clients.given_labels, reference.given_labels, is_member)
    pooled = given_labels
    if clients.pooled is not clients.given_labels:
        pooled = compare_with_reference(clients.pooled, reference.pooled, is_member)
    return Comparisons(given_labels, pooled)


def compare_with_members(clients: ClientHistograms, members: BoolArray) -> Comparison:
    """Compare every client with a reference set made of some of them, in one view.

    Parameters
    ----------
    clients : ClientHistograms
        The k clients.
    members : ndarray of bool, shape (k,)
        The clients that form the reference set.
    """
    return compare_with_reference(clients, _weighted_total(clients, members), members)


def compare_with_reference(
    clients: ClientHistograms, reference: FloatArray, is_member: BoolArray
) -> Comparison:
    """Compare every client with a reference set, from which it is left out where it is a member.

    Parameters
    ----------
    clients : ClientHistograms
        The k clients.
    reference : ndarray of shape (C, B)
        Counts of the reference set in the same view.
    is_member : ndarray of bool, shape (k,)
        The clients that belong to the reference set.
    """
    tuning = clients.basis.tuning
    contribution = clients.counts * clients.reference_weight * is_member[:, None, None]
    expected = expected_counts(
        clients.counts,
        reference - contribution,
        clients.basis.has_pooled_clients,
        tuning.prior_strength,
    )
    observed = clients.counts.sum(axis=1)
    sizes = clients.sample_sizes[:, None]

    # The two cumulative distribution functions and the difference between them.
    observed_cdf = np.cumsum(observed, axis=1) / sizes
    expected_cdf = np.cumsum(expected.mean, axis=1) / sizes
    difference = observed_cdf - expected_cdf
    has_larger_scores = difference.mean(axis=1) < 0
    crossing = np.where(has_larger_scores, difference.max(axis=1), -difference.min(axis=1))

    # What is found of the expected lower half, body and tail.
    half_end = np.argmax(expected_cdf >= 0.5 - 1e-9, axis=1)
    body_end = np.maximum((expected_cdf <= tuning.body_mass).sum(axis=1) - 1, 0)
    observed_half, expected_half = _cdfs_at(half_end, observed_cdf, expected_cdf)
    observed_body, expected_body = _cdfs_at(body_end, observed_cdf, expected_cdf)
    noise_deviation = np.sqrt(clients.noise_variance.sum(axis=1)) / clients.sample_sizes
    observed_tail = 1 - observed_body - noise_deviation
    expected_tail = np.maximum(1 - expected_body, _TINY)

    # Where the two are farthest apart, for the reasons.
    n_inner_edges = max(observed.shape[1] - 1, 1)
    max_deviation_bin = np.argmax(np.abs(difference)[:, :n_inner_edges], axis=1)
    observed_there, expected_there = _cdfs_at(max_deviation_bin, observed_cdf, expected_cdf)

    return Comparison(
        chi2_ratio=_chi2_ratio(observed, expected, clients.noise_variance),
        anderson_darling_ratio=_anderson_darling_ratio(observed, expected, clients.noise_variance),
        has_larger_scores=has_larger_scores,
        crossing=crossing,
        lower_half_ratio=observed_half / expected_half,
        body_ratio=observed_body / expected_body,
        tail_ratio=observed_tail / expected_tail,
        max_deviation_bin=max_deviation_bin,
        observed_cdf=observed_there,
        expected_cdf=expected_there,
    )


def _chi2_ratio(
    observed: FloatArray, expected: ExpectedCounts, noise_variance: FloatArray
) -> FloatArray:
    """Return (k,) weighted squared differences of root counts, over their mean under sampling.

    The square root of a Poisson count plus 3/8 has a nearly constant variance (Anscombe 1948). A
    count with privacy noise of variance s, plus s, has the mean and variance of a Poisson count, so
    s is added on both sides. A bin weighs by its mean over its variance: the reference's error
    makes bins of large counts less certain.

    Parameters
    ----------
    observed : ndarray of shape (k, B)
        The clients' counts, none below 0.
    expected : ExpectedCounts
        What the reference leads one to expect; its variance includes the reference's own error.
    noise_variance : ndarray of shape (k, B) or (1, 1)
        Of the privacy noise on each count.
    """
    rate = expected.mean + noise_variance
    total_variance = expected.variance + noise_variance
    squares = 4 * (np.sqrt(observed + noise_variance + ANSCOMBE) - np.sqrt(rate + ANSCOMBE)) ** 2

    # The mean of each square: that of a Poisson count of this rate, which is below 1 for small
    # rates, times the variance over the Poisson variance.
    poisson_mean_square = 1 - np.exp(-POISSON_DEFICIT_RATE * rate)
    mean_under_sampling = poisson_mean_square * total_variance / np.maximum(rate, _MIN_RATE)

    weights = (rate + ANSCOMBE) / (total_variance + ANSCOMBE)
    mean_of_sum = (mean_under_sampling * weights).sum(axis=1)
    return np.asarray((squares * weights).sum(axis=1) / np.maximum(mean_of_sum, _MIN_RATE))


def _anderson_darling_ratio(
    observed: FloatArray, expected: ExpectedCounts, noise_variance: FloatArray
) -> FloatArray:
    """Return (k,) the mean over inner edges of squared cumulative differences over variances.

    Its mean under sampling is about 1, which is also what is returned where there is one bin and
    hence no inner edge.

    Parameters
    ----------
    observed : ndarray of shape (k, B)
        The clients' counts.
    expected : ExpectedCounts
        What the reference leads one to expect.
    noise_variance : ndarray of shape (k, B) or (1, 1)
        Of the privacy noise on each count.
    """
    n_clients, n_bins = observed.shape
    if n_bins == 1:
        return np.ones(n_clients)

    noise_by_bin = np.broadcast_to(noise_variance, observed.shape)
    cumulative_noise = np.cumsum(noise_by_bin, axis=1)[:, :-1]
    cumulative_difference = np.cumsum(observed - expected.mean, axis=1)[:, :-1]
    variance = expected.inner_edge_variance + cumulative_noise + _VARIANCE_PAD
    return np.asarray((cumulative_difference**2 / variance).mean(axis=1))


def _cdfs_at(
    bin_index: IndexArray, observed_cdf: FloatArray, expected_cdf: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return (k,) each client's observed and expected CDF at the end of one bin of its own.

    The expected CDF is at least `_TINY`, as callers divide by it.

    Parameters
    ----------
    bin_index : ndarray of int, shape (k,)
        A bin for each client.
    observed_cdf, expected_cdf : ndarray of shape (k, B)
        The CDFs at the ends of all bins.
    """
    columns = bin_index[:, None]
    observed = np.take_along_axis(observed_cdf, columns, axis=1)[:, 0]
    expected = np.take_along_axis(expected_cdf, columns, axis=1)[:, 0]
    return observed, np.maximum(expected, _TINY)
