"""The outlier test of clients against a reference set: two statistics, their null and p-values.

Every client is compared with what its labels lead one to expect of its scores, given the reference
set without the client itself. The differences become p-values under a null distribution with
overdispersion, as benign clients differ beyond sampling. All is done in two views: given the
labels, and without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from robfcp._typing import BoolArray, FloatArray, IndexArray
from robfcp.defense.consensus._basis import ClientHistograms, ClientViews, ComparisonBasis
from robfcp.defense.consensus._class_estimates import (
    divide_among_classes,
    estimate_class_counts,
)
from robfcp.defense.consensus._tuning import Tuning

# Numerical guards: without effect on any client with samples.
_MIN_SHARE = 1e-12  # the least expected share of the samples, as callers divide by it
_ROUNDING = 1e-9  # by which a CDF computed in floating point may miss 1/2
_MIN_RATE = 1e-9  # the least expected count and sum, for the same reason
_MIN_STATISTIC = 1e-3  # smaller ones have p-value 1 as well; keeps zero out of the logarithm
_MIN_EXCESS = 1e-300  # stands for zero and less in a logarithm
SMALLEST_P_VALUE = 1e-300

# Upper tail probabilities between which the chi-square part is integrated, descending from 1 to
# 1e-10.
_TAIL_PROBABILITIES = np.concatenate([np.linspace(1, 0.1, 31)[:-1], np.geomspace(0.1, 1e-10, 46)])

# Statistics and sizes are rounded to a grid of 128 points per factor e before p-values are taken,
# so that equal clients have equal p-values whoever is computed beside them.
_STEPS_PER_E = 128
_KEY_BASE = 2**16  # more than any rounded log size


class ExpectedCounts(NamedTuple):
    """What a reference leads one to expect of some clients' counts, all classes together.

    Attributes
    ----------
    mean : ndarray of shape (k, B)
        Expected counts, in samples; their sum is the client's size.
    variance : ndarray of shape (k, B)
        Their variances, in squared samples: of the client's own sampling and of the reference's
        error. Privacy noise is not in them.
    inner_edge_variance : ndarray of shape (k, B - 1)
        Variances of the cumulative counts up to each inner edge: all edges but the last.
    """

    mean: FloatArray
    variance: FloatArray
    inner_edge_variance: FloatArray


def expected_counts(
    counts: FloatArray, reference: FloatArray, has_pooled_clients: bool, tuning: Tuning
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
        For each client the reference's counts without the client itself, an array of the caller's
        that nobody else reads: it is changed in place where there are pooled clients.
    has_pooled_clients : bool
        Whether the last class holds clients without labels, whose reference is all classes.
    tuning : Tuning
        For W and the prior of each bin.
    """
    class_sizes = counts.sum(axis=2)  # n_c, (k, C)
    all_classes = reference.sum(axis=1)  # (k, B), read before the last class is overwritten
    if has_pooled_clients:
        reference[:, -1] = all_classes

    class_shares = smoothed_class_shares(reference, all_classes, tuning)  # p_cb, (k, C, B)
    reference_sizes = reference.sum(axis=2) + tuning.prior_strength  # N_c + W, (k, C)
    cumulative_shares = np.cumsum(class_shares, axis=2)[:, :, :-1]

    # Sums over the classes, as products of a (1, C) row for each client with its (C, B) shares.
    size_rows = class_sizes[:, None]
    variance_factors = class_sizes * (1 + class_sizes / reference_sizes)
    variance_rows = variance_factors[:, None]
    mean = np.matmul(size_rows, class_shares)
    variance = np.matmul(variance_rows, class_shares * (1 - class_shares))
    inner_edge_variance = np.matmul(variance_rows, cumulative_shares * (1 - cumulative_shares))
    return ExpectedCounts(mean[:, 0], variance[:, 0], inner_edge_variance[:, 0])


def smoothed_class_shares(
    reference: FloatArray, all_classes: FloatArray, tuning: Tuning
) -> FloatArray:
    """Return the shares of the bins within each class, drawn towards those of all classes together.

    Parameters
    ----------
    reference : ndarray of shape (..., C, B)
        Counts of a reference set by class, or of several.
    all_classes : ndarray of shape (..., B)
        Counts of all classes together.
    tuning : Tuning
        For how many samples of each class these stand, and for the prior of each bin.

    Returns
    -------
    ndarray of shape (..., C, B)
        p_cb, positive; their sum over the bins is 1.
    """
    smoothed = all_classes + tuning.bin_prior
    prior = tuning.prior_strength * smoothed / smoothed.sum(axis=-1, keepdims=True)
    reference_sizes = reference.sum(axis=-1) + tuning.prior_strength
    return np.asarray((reference + prior[..., None, :]) / reference_sizes[..., None])


class Comparison(NamedTuple):
    """How some clients' scores compare with what a reference leads one to expect; (k,) each.

    Attributes
    ----------
    chi2_ratio : ndarray of float
        The statistic by bin, which is also called misfit: weighted squared differences by bin, over
        their mean under sampling. About 1 under sampling alone.
    anderson_darling_ratio : ndarray of float
        The cumulative statistic: mean of the squared differences of the cumulative counts over
        their variances, as in the statistic of Anderson and Darling (1952). Also about 1.
    has_larger_scores : ndarray of bool
        Whether the client's CDF is below the expected one on average.
    crossing : ndarray of float
        How far the client's CDF lies on the other side of the expected one somewhere, as a share
        of its samples: above it where `has_larger_scores`, else below it.
    lower_half_ratio, body_ratio, tail_ratio : ndarray of float
        The observed mass over the mass expected in the lower half, in the body, and above the body.
        The first two are those of the counts as sent, of coarsened reports the least there can be;
        the last is less a standard deviation of its privacy noise, so that it may be negative.
    max_deviation_bin : ndarray of int
        The merged bin at whose end the two CDFs are farthest apart.
    observed_cdf, expected_cdf : ndarray of float
        The two CDFs there, from 0 to 1.
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


class CdfPair(NamedTuple):
    """The observed and the expected CDF of some clients.

    Attributes
    ----------
    observed, expected : ndarray of shape (k, B)
        Their values at the ends of the merged bins.
    """

    observed: FloatArray
    expected: FloatArray

    def read(self, bin_index: IndexArray) -> tuple[FloatArray, FloatArray]:
        """Return (k,) observed and (k,) expected values, each client's at the end of a bin.

        The expected values are at least `_MIN_SHARE`, as callers divide by them.

        Parameters
        ----------
        bin_index : ndarray of int, shape (k,)
            A merged bin for each client.
        """
        columns = bin_index[:, None]
        observed = np.take_along_axis(self.observed, columns, axis=1)[:, 0]
        expected = np.take_along_axis(self.expected, columns, axis=1)[:, 0]
        return observed, np.maximum(expected, _MIN_SHARE)


def reference_counts(clients: ClientHistograms, members: BoolArray) -> FloatArray:
    """Return (C, B) the weighted counts of a reference set, in one view; in samples.

    Of members with class totals alone it is not known which scores are of which class. Their counts
    by class are the likeliest ones, given the shares of the bins within each class of the reference
    set itself (`_class_estimates`). Nobody outside the reference set has a say in them.

    Parameters
    ----------
    clients : ClientHistograms
        The k clients.
    members : ndarray of bool, shape (k,)
        The clients that form the reference set.
    """
    weighted = members[:, None, None] * clients.reference_weight * clients.counts
    total = np.asarray(weighted.sum(axis=0))
    is_divided = members & clients.has_totals_alone
    if not is_divided.any():
        return total

    # The counts of the other members are known.
    tuning = clients.basis.tuning
    divided = clients.counts[is_divided]
    return estimate_class_counts(
        class_sizes=divided.sum(axis=2),
        counts=clients.reference_weight[is_divided, 0] * divided.sum(axis=1),
        start=total,
        shares_of=lambda counts: smoothed_class_shares(counts, counts.sum(axis=0), tuning),
        n_rounds=tuning.reference_em_rounds,
        common_classes=total - weighted[is_divided].sum(axis=0),
    )


def _contributions(
    clients: ClientHistograms, reference: FloatArray, is_member: BoolArray
) -> FloatArray:
    """Return (k, C, B) what each client contributes to a reference set; 0 of others than members.

    What clients with class totals alone contribute is divided among the classes by the shares of
    the reference, as in `reference_counts`. It is never more than the reference holds.

    Parameters
    ----------
    clients : ClientHistograms
        The k clients.
    reference : ndarray of shape (C, B)
        Counts of the reference set.
    is_member : ndarray of bool, shape (k,)
        The clients that belong to it.
    """
    contributions = clients.counts * clients.reference_weight * is_member[:, None, None]
    is_divided = is_member & clients.has_totals_alone
    if not is_divided.any():
        return contributions

    counts = clients.counts[is_divided]
    class_shares = smoothed_class_shares(reference, reference.sum(axis=0), clients.basis.tuning)
    divided = divide_among_classes(counts.sum(axis=2), counts.sum(axis=1), class_shares)
    weighted = divided * clients.reference_weight[is_divided]
    contributions[is_divided] = np.minimum(weighted, reference)
    return contributions


def compare_with_members(clients: ClientHistograms, members: BoolArray) -> Comparison:
    """Compare every client with a reference set made of some of them, in one view.

    Parameters
    ----------
    clients : ClientHistograms
        The k clients.
    members : ndarray of bool, shape (k,)
        The clients that form the reference set.
    """
    return compare_with_reference(clients, reference_counts(clients, members), members)


def compare_with_reference(
    clients: ClientHistograms, reference: FloatArray, is_member: BoolArray
) -> Comparison:
    """Compare every client with a reference set, from which it is left out where it is a member.

    Parameters
    ----------
    clients : ClientHistograms
        The k clients.
    reference : ndarray of shape (C, B)
        Counts of the reference set in the same view, as `reference_counts` returns them; not
        changed. Of the members among `clients` it must hold what they contribute.
    is_member : ndarray of bool, shape (k,)
        The clients that belong to the reference set.
    """
    basis = clients.basis
    contributions = _contributions(clients, reference, is_member)
    reference_without_client = reference - contributions  # (k, C, B), a new array
    expected = expected_counts(
        clients.counts, reference_without_client, basis.has_pooled_clients, basis.tuning
    )
    observed = clients.counts.sum(axis=1)  # (k, B)
    sizes = clients.sample_sizes[:, None]
    noise = _noise_variances(clients)

    # The two cumulative distribution functions and the difference between them, (k, B) each.
    observed_cdf = np.cumsum(observed, axis=1) / sizes
    expected_cdf = np.cumsum(expected.mean, axis=1) / sizes
    cdfs = CdfPair(observed_cdf, expected_cdf)
    difference = observed_cdf - expected_cdf
    has_larger_scores = difference.mean(axis=1) < 0
    crossing = np.where(has_larger_scores, difference.max(axis=1), -difference.min(axis=1))

    # Where the two are farthest apart, for the reasons. At the end of the last bin both are 1.
    n_inner_edges = max(observed.shape[1] - 1, 1)
    max_deviation_bin = np.argmax(np.abs(difference)[:, :n_inner_edges], axis=1)
    observed_at_max, expected_at_max = cdfs.read(max_deviation_bin)

    # Up to so many samples as a cell holds may lie below where a report counts them. That is no
    # evidence of a lower half, so that of clients with larger scores is read from counts as sent.
    cdfs_as_sent = cdfs
    if clients.coarsening is not None:
        cdfs_as_sent = CdfPair(clients.coarsening.cdf_as_sent, expected_cdf)
    noise_sd = np.sqrt(clients.noise_variance.sum(axis=1)) / clients.sample_sizes
    body_mass = basis.tuning.body_mass
    lower_half_ratio, body_ratio = _lower_mass_ratios(cdfs_as_sent, body_mass)
    tail_ratio = _tail_ratio(cdfs, noise_sd, body_mass)
    return Comparison(
        chi2_ratio=_chi2_ratio(observed, expected, noise.by_bin, basis.tuning),
        anderson_darling_ratio=_anderson_darling_ratio(
            observed, expected, noise.up_to_edge, basis.tuning
        ),
        has_larger_scores=has_larger_scores,
        crossing=crossing,
        lower_half_ratio=lower_half_ratio,
        body_ratio=body_ratio,
        tail_ratio=tail_ratio,
        max_deviation_bin=max_deviation_bin,
        observed_cdf=observed_at_max,
        expected_cdf=expected_at_max,
    )


class _NoiseVariances(NamedTuple):
    """Variances of what is added to the clients' counts beside sampling, in squared samples.

    Attributes
    ----------
    by_bin : ndarray of shape (k, B) or (1, 1)
        Of each count.
    up_to_edge : ndarray of shape (k, B - 1) or (1, 0)
        Of the cumulative counts up to each inner edge.
    """

    by_bin: FloatArray
    up_to_edge: FloatArray


def _noise_variances(clients: ClientHistograms) -> _NoiseVariances:
    """Return the variances of privacy noise and of coarsening; 0 without both.

    The noise of different bins is independent, so that variances of cumulative counts are sums. A
    cell of a coarsened report is known but for the counts up to its two edges, of which the count
    in a bin is the difference.
    """
    privacy_by_bin = np.broadcast_to(
        clients.noise_variance, (len(clients.counts), clients.counts.shape[2])
    )
    privacy_up_to_edge = np.cumsum(privacy_by_bin, axis=1)[:, :-1]
    if clients.coarsening is None:
        return _NoiseVariances(clients.noise_variance, privacy_up_to_edge)

    edge_variance = clients.coarsening.edge_variance
    lower_edge_variance = np.pad(edge_variance[:, :-1], ((0, 0), (1, 0)))
    return _NoiseVariances(
        by_bin=privacy_by_bin + edge_variance + lower_edge_variance,
        up_to_edge=privacy_up_to_edge + edge_variance[:, :-1],
    )


def _body_end(expected_cdf: FloatArray, body_mass: float) -> IndexArray:
    """Return (k,) the bin with which the body ends; the first one if there is none.

    It is the last merged bin at whose end the expected CDF is at most `body_mass`.
    """
    return np.maximum((expected_cdf <= body_mass).sum(axis=1) - 1, 0)


def _lower_mass_ratios(cdfs: CdfPair, body_mass: float) -> tuple[FloatArray, FloatArray]:
    """Return (k,) observed over expected mass: of the lower half, and of the body.

    The lower half ends with the first merged bin at whose end the expected CDF is at least 1/2.

    Parameters
    ----------
    cdfs : CdfPair
        The clients' CDFs.
    body_mass : float
        The expected share of scores up to the end of the body, at most.
    """
    half_end = np.argmax(cdfs.expected >= 0.5 - _ROUNDING, axis=1)
    observed_half, expected_half = cdfs.read(half_end)
    observed_body, expected_body = cdfs.read(_body_end(cdfs.expected, body_mass))
    return observed_half / expected_half, observed_body / expected_body


def _tail_ratio(cdfs: CdfPair, noise_sd: FloatArray, body_mass: float) -> FloatArray:
    """Return (k,) observed over expected mass of the tail, which is all above the body.

    Parameters
    ----------
    cdfs : CdfPair
        The clients' CDFs.
    noise_sd : ndarray of shape (k,) or (1,)
        Standard deviation of the privacy noise, as a share of the samples. It is subtracted from
        the tail, so that noise alone does not fill it.
    body_mass : float
        The expected share of scores up to the end of the body, at most.
    """
    observed_body, expected_body = cdfs.read(_body_end(cdfs.expected, body_mass))
    observed_tail = 1 - observed_body - noise_sd
    expected_tail = np.maximum(1 - expected_body, _MIN_SHARE)
    return np.asarray(observed_tail / expected_tail)


def _chi2_ratio(
    observed: FloatArray, expected: ExpectedCounts, noise_variance: FloatArray, tuning: Tuning
) -> FloatArray:
    """Return (k,) weighted squared differences of root counts, over their mean under sampling.

    About 1 for a client that differs by sampling alone, larger for others.

    The square root of a Poisson count plus 3/8 has a nearly constant variance (Anscombe 1948). A
    count with noise of variance s, plus s, has the mean and variance of a Poisson count, so s is
    added on both sides. A bin weighs by its mean over its variance: the reference's error makes
    bins of large counts less certain.

    Parameters
    ----------
    observed : ndarray of shape (k, B)
        The clients' counts, none below 0, in samples.
    expected : ExpectedCounts
        What the reference leads one to expect; its variance includes the reference's own error.
    noise_variance : ndarray of shape (k, B) or (1, 1)
        Of the noise and the coarsening of each count, in squared samples; 0 without both.
    tuning : Tuning
        For Anscombe's shift and the mean of each square.
    """
    shift = tuning.root_shift
    rate = expected.mean + noise_variance
    total_variance = expected.variance + noise_variance
    observed_root = np.sqrt(observed + noise_variance + shift)
    expected_root = np.sqrt(rate + shift)
    squares = 4 * (observed_root - expected_root) ** 2  # the root has a variance of about 1/4

    # The mean of each square: that of a Poisson count of this rate, which is below 1 for small
    # rates, times the variance over the Poisson variance.
    poisson_mean_square = 1 - np.exp(-tuning.poisson_deficit_rate * rate)
    mean_under_sampling = poisson_mean_square * total_variance / np.maximum(rate, _MIN_RATE)

    weights = (rate + shift) / (total_variance + shift)
    sum_of_squares = (squares * weights).sum(axis=1)
    mean_of_sum = (mean_under_sampling * weights).sum(axis=1)
    return np.asarray(sum_of_squares / np.maximum(mean_of_sum, _MIN_RATE))


def _anderson_darling_ratio(
    observed: FloatArray, expected: ExpectedCounts, noise_variance: FloatArray, tuning: Tuning
) -> FloatArray:
    """Return (k,) the mean over inner edges of squared cumulative differences over variances.

    Its mean under sampling is about 1, which is also what is returned where there is one bin and
    hence no inner edge.

    Parameters
    ----------
    observed : ndarray of shape (k, B)
        The clients' counts, in samples.
    expected : ExpectedCounts
        What the reference leads one to expect.
    noise_variance : ndarray of shape (k, B - 1)
        Of the noise and the coarsening of each cumulative count, in squared samples.
    tuning : Tuning
        For what is added to the variances.
    """
    n_clients, n_bins = observed.shape
    if n_bins == 1:
        return np.ones(n_clients)

    cumulative_difference = np.cumsum(observed - expected.mean, axis=1)[:, :-1]
    variance = expected.inner_edge_variance + noise_variance + tuning.cumulative_variance_pad
    return np.asarray((cumulative_difference**2 / variance).mean(axis=1))


def scaled_chi2_quantile(degrees_of_freedom: float, upper_tail: FloatArray | float) -> FloatArray:
    """Return what a chi-square variable over its degrees of freedom exceeds with a probability.

    Parameters
    ----------
    degrees_of_freedom : float
        Positive; need not be a whole number.
    upper_tail : float or ndarray
        The probability of exceeding it, between 0 and 1.

    Returns
    -------
    ndarray
        With the shape of `upper_tail`.
    """
    from scipy.special import gammainccinv

    half = degrees_of_freedom / 2
    return np.asarray(gammainccinv(half, upper_tail) / half, dtype=np.float64)


@dataclass(frozen=True)
class OverdispersedNull:
    """The distribution u (1 + phi n G) of a test statistic of a benign client of n samples.

    The statistic is either of the two ratios of `Comparison`; each has a null of its own.

    u is a chi-square variable over its degrees of freedom: sampling. The factor 1 + phi n G is
    overdispersion: benign clients differ by a constant share of their scores, which counts more the
    more samples show it. G is log-normal with median 1, as not all clients differ equally.

    Attributes
    ----------
    degrees_of_freedom : float
        Of u.
    overdispersion : float
        phi, per sample.
    log_sd : float
        Standard deviation of log G, for one more client than those it was fitted to.
    n_effective_tests : float
        How many independent tests the two statistics of a view are worth. `p_value` multiplies by
        it, so that the smaller of the two p-values needs no further correction.
    """

    degrees_of_freedom: float
    overdispersion: float
    log_sd: float
    n_effective_tests: float

    @staticmethod
    def fit(
        statistics: FloatArray,
        sample_sizes: FloatArray,
        members: BoolArray,
        degrees_of_freedom: float,
        basis: ComparisonBasis,
    ) -> OverdispersedNull:
        """Fit the overdispersion to the statistics of a reference set's own members.

        phi is the excess of their median over that of sampling alone, per sample of the median
        member, plus its standard error. Where the members are the clients nearest to each other,
        the median of all clients is a higher quantile of theirs.

        Parameters
        ----------
        statistics, sample_sizes : ndarray of shape (k,)
            Of all sampled clients: one of the two statistics, and the numbers of samples.
        members : ndarray of bool, shape (k,)
            The reference set: half of the clients or more, as in every `CandidateReference`.
        degrees_of_freedom : float
            Of the statistic under sampling alone.
        basis : ComparisonBasis
            For the median sample size and the constants.
        """
        tuning = basis.tuning
        n_members = int(members.sum())

        # The quantile `reference_quantile` of all clients, were the members those with the
        # smallest statistics, is this one of the members; their own median at least.
        order = max(0.5, tuning.reference_quantile * len(members) / n_members)
        typical_statistic = np.quantile(statistics[members], order)
        median_of_sampling = scaled_chi2_quantile(degrees_of_freedom, 0.5)
        excess = max(float(typical_statistic / median_of_sampling) - 1, 0)

        # The variance of u is 2 over its degrees of freedom, and its mean is 1. The standard error
        # is positive, so that phi is.
        relative_error = tuning.median_error_factor * np.sqrt(2 / degrees_of_freedom / n_members)
        standard_error = relative_error / basis.median_size
        overdispersion = excess / float(np.median(sample_sizes[members])) + standard_error

        # The spread of one more client, whose center is estimated too.
        center_error = tuning.center_error_variance / n_members
        log_sd = tuning.log_heterogeneity_sd * np.sqrt(1 + center_error)
        return OverdispersedNull(
            degrees_of_freedom, overdispersion, log_sd, tuning.n_effective_tests
        )

    def p_value(self, statistics: FloatArray, sample_sizes: FloatArray) -> FloatArray:
        """Return (k,) the p-values of test statistics, corrected for several tests.

        A p-value is `n_effective_tests` times the probability of a statistic at least as large,
        between `SMALLEST_P_VALUE` and 1: it is corrected for the two statistics of a view, though
        not for the number of clients. The probability belongs to statistics and sizes rounded to
        a grid of factors, so that few distinct pairs need be computed.

        Parameters
        ----------
        statistics : ndarray of shape (k,)
            The clients' test statistics, finite and not negative.
        sample_sizes : ndarray of shape (k,)
            Their sample sizes, at least 1.
        """
        positive_statistics = np.maximum(statistics, _MIN_STATISTIC)
        log_statistics = np.rint(_STEPS_PER_E * np.log(positive_statistics))
        log_sizes = np.rint(_STEPS_PER_E * np.log(sample_sizes))

        # A number for each pair, which `divmod` takes apart: 0 <= log_size < _KEY_BASE, and it
        # rounds down, so that logarithms of statistics may be negative.
        key_of_client = log_statistics * _KEY_BASE + log_sizes
        keys, key_index = np.unique(key_of_client, return_inverse=True)
        log_statistic, log_size = np.divmod(keys, _KEY_BASE)

        rounded_statistics = np.exp(log_statistic / _STEPS_PER_E)
        rounded_sizes = np.exp(log_size / _STEPS_PER_E)
        tail = self._upper_tail(rounded_statistics, rounded_sizes)
        p_values = np.clip(self.n_effective_tests * tail, SMALLEST_P_VALUE, 1)
        return np.asarray(p_values[key_index])

    def _upper_tail(self, statistics: FloatArray, sample_sizes: FloatArray) -> FloatArray:
        """Return (k,) the probabilities of statistics at least as large, by integration over u.

        P(u (1 + phi n G) >= x) = E_u[P(G >= (x / u - 1) / (phi n))], where u is a chi-square
        variable over its degrees of freedom, and G is log-normal with median 1 and standard
        deviation `log_sd` of its logarithm.

        Parameters
        ----------
        statistics, sample_sizes : ndarray of shape (k,)
            x and n, both positive.
        """
        from scipy.special import ndtr

        # u's distribution is cut into intervals between upper tail probabilities. Each is
        # represented by the quantile at the geometric mean of its ends.
        upper = _TAIL_PROBABILITIES[:-1]
        lower = _TAIL_PROBABILITIES[1:]
        u = scaled_chi2_quantile(self.degrees_of_freedom, np.sqrt(lower * upper))
        weights = -np.diff(_TAIL_PROBABILITIES)  # they descend from 1, so the weights are positive

        # Where x <= u any G is large enough: the excess is replaced by a tiny positive number,
        # whose logarithm is so far below that the probability is 1.
        excess = statistics[:, None] / u - 1
        smallest_g = np.maximum(excess, _MIN_EXCESS) / (self.overdispersion * sample_sizes[:, None])
        probability = ndtr(-np.log(smallest_g) / self.log_sd)
        return np.asarray((probability * weights).sum(axis=1))


def benjamini_hochberg_cutoff(p_values: FloatArray, n_clients: int, fdr_level: float) -> float:
    """Return the largest p-value that is rejected at a false discovery rate.

    With p_(1) <= ... <= p_(k) the largest p_(j) <= fdr_level j / k (Benjamini and Hochberg 1995);
    at least the Bonferroni level of the whole round.

    Parameters
    ----------
    p_values : ndarray of shape (k,)
        Of the sampled clients; the two statistics of a view are corrected for already.
    n_clients : int
        K, the clients of the whole round, of which the k are a sample.
    fdr_level : float
        The false discovery rate.
    """
    ordered = np.sort(p_values)
    ranks = np.arange(1, len(p_values) + 1)
    thresholds = fdr_level * ranks / len(p_values)
    rejected = ordered[ordered <= thresholds]
    return float(rejected.max(initial=fdr_level / n_clients))


class ViewResults(NamedTuple):
    """What the test of one view says of some clients.

    Attributes
    ----------
    comparison : Comparison
        How the k clients compare with the reference set.
    p_value : ndarray of shape (k,)
        The smaller p-value of both statistics. Each is already multiplied by the number of
        independent tests that the two together are worth (`Tuning.n_effective_tests`).
    """

    comparison: Comparison
    p_value: FloatArray


class ViewTest(NamedTuple):
    """The test of clients against one reference set in one view.

    Attributes
    ----------
    reference : ndarray of shape (C, B)
        Weighted counts of the reference set, as `reference_counts` returns them.
    null_by_bin, null_cumulative : OverdispersedNull
        The null distributions of `Comparison.chi2_ratio` and of `anderson_darling_ratio`, fitted
        to the members of the set.
    """

    reference: FloatArray
    null_by_bin: OverdispersedNull
    null_cumulative: OverdispersedNull

    @staticmethod
    def fit(clients: ClientHistograms, members: BoolArray) -> tuple[ViewTest, ViewResults]:
        """Fit the test to a reference set; return it and its results on the clients.

        Parameters
        ----------
        clients : ClientHistograms
            The k sampled clients.
        members : ndarray of bool, shape (k,)
            The reference set.
        """
        basis = clients.basis
        sizes = clients.sample_sizes
        reference = reference_counts(clients, members)
        comparison = compare_with_reference(clients, reference, members)

        null_by_bin = OverdispersedNull.fit(
            comparison.chi2_ratio, sizes, members, basis.degrees_of_freedom, basis
        )
        null_cumulative = OverdispersedNull.fit(
            comparison.anderson_darling_ratio,
            sizes,
            members,
            basis.tuning.cumulative_freedom,
            basis,
        )
        test = ViewTest(reference, null_by_bin, null_cumulative)
        return test, test.results_of(comparison, sizes)

    def results_of(self, comparison: Comparison, sample_sizes: FloatArray) -> ViewResults:
        """Return a comparison of k clients with its p-values.

        A p-value is the smaller of those of the two statistics. `OverdispersedNull.p_value` has
        already multiplied each by `n_effective_tests`, so no further correction is due.

        Parameters
        ----------
        comparison : Comparison
            Of k clients with the reference set.
        sample_sizes : ndarray of shape (k,)
            Their sample sizes.
        """
        p_by_bin = self.null_by_bin.p_value(comparison.chi2_ratio, sample_sizes)
        p_cumulative = self.null_cumulative.p_value(comparison.anderson_darling_ratio, sample_sizes)
        return ViewResults(comparison, np.minimum(p_by_bin, p_cumulative))

    def apply(self, clients: ClientHistograms, is_member: BoolArray) -> ViewResults:
        """Test k clients, sampled or not.

        Parameters
        ----------
        clients : ClientHistograms
            The clients, in this view.
        is_member : ndarray of bool, shape (k,)
            Which of them belong to the reference set.
        """
        comparison = compare_with_reference(clients, self.reference, is_member)
        return self.results_of(comparison, clients.sample_sizes)


class OutlierTestResults(NamedTuple):
    """What both views say of the same clients; one object twice where there are no labels."""

    given_labels: ViewResults
    pooled: ViewResults


class OutlierTest(NamedTuple):
    """The test of clients against one reference set, given their labels and without them.

    Both are one object where there are no labels.
    """

    given_labels: ViewTest
    pooled: ViewTest

    @staticmethod
    def fit(clients: ClientViews, members: BoolArray) -> tuple[OutlierTest, OutlierTestResults]:
        """Fit the test to a reference set; return it and its results on the clients.

        Parameters
        ----------
        clients : ClientViews
            The k sampled clients.
        members : ndarray of bool, shape (k,)
            The reference set.
        """
        given_labels, results = ViewTest.fit(clients.given_labels, members)
        if clients.pooled is clients.given_labels:
            return OutlierTest(given_labels, given_labels), OutlierTestResults(results, results)

        pooled, pooled_results = ViewTest.fit(clients.pooled, members)
        return OutlierTest(given_labels, pooled), OutlierTestResults(results, pooled_results)

    def apply(self, clients: ClientViews, is_member: BoolArray) -> OutlierTestResults:
        """Test k clients, sampled or not, in both views.

        Parameters
        ----------
        clients : ClientViews
            The clients.
        is_member : ndarray of bool, shape (k,)
            Which of them belong to the reference set.
        """
        results = self.given_labels.apply(clients.given_labels, is_member)
        if clients.pooled is clients.given_labels:
            return OutlierTestResults(results, results)
        return OutlierTestResults(results, self.pooled.apply(clients.pooled, is_member))
