"""The null distribution of a benign client's test statistic, and the test of many clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from robfcp._typing import BoolArray, FloatArray
from robfcp.defense.consensus._basis import ComparisonBasis
from robfcp.defense.consensus._comparison import Comparison, Comparisons

MEDIAN_ERROR_FACTOR = 1.25  # sqrt(pi / 2): the standard error of a median over that of a mean
SMALLEST_P_VALUE = 1e-300

# Upper tail probabilities between which the chi-square part is integrated, descending from 1 to
# 1e-10.
_TAIL_PROBABILITIES = np.concatenate([np.linspace(1, 0.1, 31)[:-1], np.geomspace(0.1, 1e-10, 46)])

# Statistics and sizes are rounded to a grid of 128 points per factor e before p-values are taken,
# so that equal clients have equal p-values whoever is computed beside them.
_STEPS_PER_E = 128
_KEY_BASE = 2**16  # more than any rounded log size
_MIN_STATISTIC = 1e-3  # smaller ones have p-value 1 as well; keeps zero out of the logarithm


def scaled_chi2_quantile(degrees_of_freedom: float, upper_tail: FloatArray | float) -> FloatArray:
    """Return what a chi-square variable over its degrees of freedom exceeds with a probability."""
    from scipy.special import gammainccinv

    half = degrees_of_freedom / 2
    return np.asarray(gammainccinv(half, upper_tail) / half, dtype=np.float64)


@dataclass(frozen=True)
class OverdispersedNull:
    """The distribution u (1 + phi n G) of the test statistic of a benign client of n samples.

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
            Of all sampled clients.
        members : ndarray of bool, shape (k,)
            The reference set.
        degrees_of_freedom : float
            Of the statistic.
        basis : ComparisonBasis
            For the median sample size and the constants.
        """
        tuning = basis.tuning
        n_members = int(members.sum())
        order = max(0.5, tuning.reference_quantile * len(members) / n_members)
        typical = np.quantile(statistics[members], order)
        excess = max(float(typical / scaled_chi2_quantile(degrees_of_freedom, 0.5)) - 1, 0)

        relative_error = MEDIAN_ERROR_FACTOR * np.sqrt(2 / degrees_of_freedom / n_members)
        standard_error = relative_error / basis.median_size
        overdispersion = excess / float(np.median(sample_sizes[members])) + standard_error

        # The spread of one more client, whose center is estimated too.
        log_sd = tuning.log_heterogeneity_sd * np.sqrt(1 + 1.5 / n_members)
        return OverdispersedNull(
            degrees_of_freedom, overdispersion, log_sd, tuning.n_effective_tests
        )

    def p_value(self, statistics: FloatArray, sample_sizes: FloatArray) -> FloatArray:
        """Return (k,) the p-values of test statistics, corrected for several tests.

        A p-value is `n_effective_tests` times the probability of a statistic at least as large,
        between `SMALLEST_P_VALUE` and 1. The probability belongs to statistics and sizes rounded to
        a grid of factors, so that few distinct pairs need be computed.

        Parameters
        ----------
        statistics : ndarray of shape (k,)
            The clients' test statistics, finite and not negative.
        sample_sizes : ndarray of shape (k,)
            Their sample sizes, at least 1.
        """
        log_statistics = np.rint(_STEPS_PER_E * np.log(np.maximum(statistics, _MIN_STATISTIC)))
        log_sizes = np.rint(_STEPS_PER_E * np.log(sample_sizes))

        # One number for each pair, which `divmod` takes apart: 0 <= log_size < _KEY_BASE.
        keys, key_of_client = np.unique(log_statistics * _KEY_BASE + log_sizes, return_inverse=True)
        log_statistic, log_size = np.divmod(keys, _KEY_BASE)

        tail = self._upper_tail(
            np.exp(log_statistic / _STEPS_PER_E), np.exp(log_size / _STEPS_PER_E)
        )
        p_values = np.clip(self.n_effective_tests * tail, SMALLEST_P_VALUE, 1)
        return np.asarray(p_values[key_of_client])

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
        upper, lower = _TAIL_PROBABILITIES[:-1], _TAIL_PROBABILITIES[1:]
        u = scaled_chi2_quantile(self.degrees_of_freedom, np.sqrt(lower * upper))
        weights = -np.diff(_TAIL_PROBABILITIES)  # they descend from 1, so the weights are positive

        # Where x <= u any G is large enough: the excess is replaced by a tiny positive number,
        # whose logarithm is so far below that the probability is 1.
        excess = statistics[:, None] / u - 1
        smallest_g = np.maximum(excess, 1e-300) / (self.overdispersion * sample_sizes[:, None])
        probability = ndtr(-np.log(smallest_g) / self.log_sd)
        return np.asarray((probability * weights).sum(axis=1))


class PValues(NamedTuple):
    """p-values (k,) of the same clients given their labels and without them."""

    given_labels: FloatArray
    pooled: FloatArray


class StatisticNulls(NamedTuple):
    """The null distributions of both statistics in one view.

    Attributes
    ----------
    null_by_bin : OverdispersedNull
        Of the statistic by bin.
    null_cumulative : OverdispersedNull
        Of the cumulative statistic.
    """

    null_by_bin: OverdispersedNull
    null_cumulative: OverdispersedNull

    @staticmethod
    def fit(
        comparison: Comparison,
        sample_sizes: FloatArray,
        members: BoolArray,
        basis: ComparisonBasis,
    ) -> StatisticNulls:
        """Fit both null distributions to the members of a reference set.

        Parameters
        ----------
        comparison : Comparison
            Of the k sampled clients with the reference set, in this view.
        sample_sizes : ndarray of shape (k,)
            Their sample sizes.
        members : ndarray of bool, shape (k,)
            The reference set.
        basis : ComparisonBasis
            For the degrees of freedom and the constants.
        """
        null_by_bin = OverdispersedNull.fit(
            comparison.chi2_ratio, sample_sizes, members, basis.degrees_of_freedom, basis
        )
        null_cumulative = OverdispersedNull.fit(
            comparison.anderson_darling_ratio,
            sample_sizes,
            members,
            basis.tuning.cumulative_freedom,
            basis,
        )
        return StatisticNulls(null_by_bin, null_cumulative)

    def p_value(self, comparison: Comparison, sample_sizes: FloatArray) -> FloatArray:
        """Return (k,) the smaller p-value of both statistics.

        Each p-value is already multiplied by the number of independent tests that the two
        statistics together are worth (`Tuning.n_effective_tests`), so nothing is corrected here.

        Parameters
        ----------
        comparison : Comparison
            Of k clients with the reference set, in this view.
        sample_sizes : ndarray of shape (k,)
            Their sample sizes.
        """
        p_by_bin = self.null_by_bin.p_value(comparison.chi2_ratio, sample_sizes)
        p_cumulative = self.null_cumulative.p_value(comparison.anderson_darling_ratio, sample_sizes)
        return np.minimum(p_by_bin, p_cumulative)


class ViewNulls(NamedTuple):
    """The null distributions of one reference set, given the labels and without them."""

    given_labels: StatisticNulls
    pooled: StatisticNulls

    @staticmethod
    def fit(
        comparisons: Comparisons,
        sample_sizes: FloatArray,
        members: BoolArray,
        basis: ComparisonBasis,
    ) -> ViewNulls:
        """Fit the null distributions of both views.

        Parameters
        ----------
        comparisons : Comparisons
            Of the k sampled clients with the reference set.
        sample_sizes : ndarray of shape (k,)
            Their sample sizes.
        members : ndarray of bool, shape (k,)
            The reference set.
        basis : ComparisonBasis
            For the degrees of freedom and the constants.
        """
        given_labels = StatisticNulls.fit(comparisons.given_labels, sample_sizes, members, basis)
        pooled = given_labels
        if comparisons.pooled is not comparisons.given_labels:
            pooled = StatisticNulls.fit(comparisons.pooled, sample_sizes, members, basis)
        return ViewNulls(given_labels, pooled)

    def p_values(self, comparisons: Comparisons, sample_sizes: FloatArray) -> PValues:
        """Return the p-values of some clients in both views.

        Parameters
        ----------
        comparisons : Comparisons
            Of k clients, sampled or not, with the reference set.
        sample_sizes : ndarray of shape (k,)
            Their sample sizes.
        """
        given_labels = self.given_labels.p_value(comparisons.given_labels, sample_sizes)
        pooled = given_labels
        if comparisons.pooled is not comparisons.given_labels:
            pooled = self.pooled.p_value(comparisons.pooled, sample_sizes)
        return PValues(given_labels, pooled)


def benjamini_hochberg_cutoff(p_values: FloatArray, n_clients: int, fdr_level: float) -> float:
    """Return the largest p-value that is rejected at a false discovery rate.

    With p_(1) <= ... <= p_(k) the largest p_(j) <= fdr_level j / k (Benjamini and Hochberg 1995);
    at least the Bonferroni level of the whole round.

    Parameters
    ----------
    p_values : ndarray of shape (k,)
        Of the sampled clients.
    n_clients : int
        K, the clients of the round.
    fdr_level : float
        The false discovery rate.
    """
    ordered = np.sort(p_values)
    limits = fdr_level * np.arange(1, len(p_values) + 1) / len(p_values)
    rejected = ordered[ordered <= limits]
    return float(rejected.max(initial=fdr_level / n_clients))
