"""The privacy noise in cumulative counts: how they are estimated, and how far they err."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import BoolArray, FloatArray, IndexArray, IntArray
from robfcp.federation import Federation
from robfcp.privacy import Noise, noise_bound

# How many standard deviations of a client's own noise its count may lie outside of [0, n_k] where
# counts are pooled. Benign clients' counts hardly ever lie further.
MAX_NOISE_DEVIATIONS = 3


@dataclass(frozen=True, eq=False)
class NoiseModel:
    """How cumulative counts are estimated where reports hold privacy noise, and how far they err.

    The noise of a count adds up over the bins that are summed. For the count up to a bin these are
    the bins below, or those above if the sample size is known, or all bins if the mean of both sums
    is taken: the estimate with the least variance is used. Which one it is follows from the number
    of bins alone, never from the data. As a mean of two counts may be half a count, estimates are
    twice the counts: they are *half counts*. Counts are samples, or parts of a loss.

    Attributes
    ----------
    sizes_known : bool
        Whether the sample sizes are known exactly. Where they are hidden, bins are always summed
        from below, and the sum of all bins is the estimate of the size.
    takes_mean : ndarray of shape (H,)
        At which bins the mean of the sums from both sides is taken.
    n_bins_summed : ndarray of shape (H,)
        How many bins' noisy counts are in the estimate at each bin; all bins for a mean.
    n_draws : ndarray of shape (H,)
        How many draws of a client's noise are in its estimate: n_bins_summed times
        `Federation.noise_draws`, as a pooled count holds one for each class.
    half_counts_per_draw : ndarray of shape (H,)
        How many half counts a draw of 1 adds to an estimate: 2, or 1 where the mean is taken.
    total_counts : ndarray of shape (K,)
        What the counts of each client add up to without noise, in whole counts.
    variances : ndarray of shape (K,)
        The variance, in counts squared, of all draws in one pooled count of a client; 0 without.
    distributions : tuple of Noise
        The different noise distributions of the round, each of one draw.
    clients_with : tuple of ndarray of shape (K,)
        For each distribution which clients' counts hold it.
    """

    sizes_known: bool
    takes_mean: BoolArray
    n_bins_summed: IntArray
    n_draws: IntArray
    half_counts_per_draw: IntArray
    total_counts: IntArray
    variances: FloatArray
    distributions: tuple[Noise, ...]
    clients_with: tuple[BoolArray, ...]

    @staticmethod
    def from_federation(federation: Federation) -> NoiseModel:
        """Return the noise model of the reports of one round."""
        n_bins = federation.binning.n_bins
        n_bins_below = np.arange(1, n_bins + 1)
        takes_mean = np.zeros(n_bins, dtype=bool)
        n_bins_summed = n_bins_below
        if federation.sizes_known:
            # In multiples of one count's variance the mean of both sides has H / 4, and one side
            # has as many as it has bins.
            n_bins_of_shorter_side = np.minimum(n_bins_below, n_bins - n_bins_below)
            takes_mean = 4 * n_bins_of_shorter_side > n_bins
            n_bins_summed = np.where(takes_mean, n_bins, n_bins_of_shorter_side)

        # Clients with the same noise are bounded together.
        clients_by_noise: dict[Noise, list[int]] = {}
        for client, noise in enumerate(federation.noise_models):
            if noise is not None:
                clients_by_noise.setdefault(noise, []).append(client)

        distributions = sorted(clients_by_noise)
        variances = np.zeros(federation.n_clients)
        clients_with = []
        for distribution in distributions:
            has_distribution = np.zeros(federation.n_clients, dtype=bool)
            has_distribution[clients_by_noise[distribution]] = True
            clients_with.append(has_distribution)
            variances[has_distribution] = distribution.variance * federation.noise_draws
        return NoiseModel(
            sizes_known=federation.sizes_known,
            takes_mean=takes_mean,
            n_bins_summed=n_bins_summed,
            n_draws=federation.noise_draws * n_bins_summed,
            half_counts_per_draw=2 - takes_mean,
            total_counts=federation.total_counts,
            variances=variances,
            distributions=tuple(distributions),
            clients_with=tuple(clients_with),
        )

    @property
    def n_bins(self) -> int:
        """H."""
        return len(self.n_bins_summed)

    def estimates(
        self, cumulative: IntArray, sums: IntArray, total_counts: IntArray, bins: IndexArray
    ) -> IntArray:
        """Return (E, C) twice the counts up to some bins, from the side or sides with least noise.

        The C clients may be some of the round's, such as those of a block.

        Parameters
        ----------
        cumulative : ndarray of shape (E, C)
            The noisy counts up to each bin, summed, in whole counts.
        sums : ndarray of shape (C,)
            All noisy counts of each client, summed.
        total_counts : ndarray of shape (C,)
            What they would add up to without noise; not used where sizes are hidden.
        bins : ndarray of shape (E,)
            The bins.

        Returns
        -------
        ndarray of shape (E, C)
            In half counts.
        """
        if not self.sizes_known:
            return 2 * cumulative
        # The total is exact: what noisy counts lie above, taken from it, leaves those below.
        from_above = total_counts - (sums - cumulative)
        is_lower_half = 2 * (bins + 1) <= self.n_bins
        from_shorter_side = np.where(is_lower_half[:, None], cumulative, from_above)
        takes_mean = self.takes_mean[bins, None]
        return np.where(takes_mean, cumulative + from_above, 2 * from_shorter_side)

    def is_silent(self, bins: IndexArray) -> BoolArray:
        """Return (E, K) whether the noise of a client's estimate is larger than its sample.

        That is, whether its variance is larger than the square of the client's total count, both in
        counts squared. Nobody is silent where sizes are hidden: there is no total to compare with.

        Parameters
        ----------
        bins : ndarray of shape (E,)
            The bins.
        """
        if not self.sizes_known:
            return np.zeros((len(bins), len(self.total_counts)), dtype=bool)
        variances = self.variances * self._variance_factors[bins, None]
        return np.asarray(variances > self.total_counts.astype(np.float64) ** 2)

    @property
    def _variance_factors(self) -> FloatArray:
        """(H,) the variance of half an estimate, which is in counts, over that of one count."""
        return np.asarray(self.n_bins_summed * (self.half_counts_per_draw / 2) ** 2)

    def bounds_of_any_sum(self, bins: IndexArray, delta: float) -> tuple[IntArray, IntArray]:
        """Return what the noise of the counts of any set of clients rarely exceeds.

        Parameters
        ----------
        bins : ndarray of shape (E,)
            The bins.
        delta : float
            With at most this probability the noise at any one bin is larger. Where sizes are
            hidden the counts below and above have noise of their own: each has half of it.

        Returns
        -------
        tuple of ndarray of shape (E,)
            In half counts: the noise of the counts up to each bin, and of those above it.
        """
        # With an exact total the noise above is that below with the other sign.
        if self.sizes_known:
            bounds = self._bounds_from_below(bins, delta)
            return bounds, bounds
        # n bins above a bin hold as much noise as the n lowest bins, which end at bin n - 1.
        last_bin_above = self.n_bins - 2 - bins
        bounds_above = self._bounds_from_below(np.maximum(last_bin_above, 0), delta / 2)
        bounds_above = np.where(last_bin_above < 0, 0, bounds_above)
        return self._bounds_from_below(bins, delta / 2), bounds_above

    def bound_of_hidden_total(self, delta: float) -> int:
        """Return half counts that the noise of any set of clients' hidden sizes rarely exceeds."""
        last_bin = np.array([self.n_bins - 1])
        return int(self._bounds_from_below(last_bin, delta)[0])

    def _bounds_from_below(self, bins: IndexArray, delta: float) -> IntArray:
        """Return (E,) half counts that the noise of the counts up to each bin rarely exceeds.

        The noise is that of any set of clients: silent ones are not estimated, so theirs is not in
        the sum, and leaving clients out never makes the bound of the others larger.

        Parameters
        ----------
        bins : ndarray of shape (E,)
            The bins.
        delta : float
            The probability with which it is exceeded at any one bin.
        """
        is_summed = ~self.is_silent(bins)
        n_draws = []  # for each distribution a list of E numbers of draws
        for clients in self.clients_with:
            n_clients = is_summed[:, clients].sum(axis=1)
            n_draws.append((n_clients * self.n_draws[bins]).tolist())

        bounds = np.zeros(len(bins), dtype=np.int64)
        for row, n_draws_at_bin in enumerate(zip(*n_draws, strict=True)):
            terms = tuple(zip(self.distributions, n_draws_at_bin, strict=True))
            bounds[row] = noise_bound(terms, delta)
        return np.asarray(self.half_counts_per_draw[bins] * bounds)

    def bounds_of_clients(self, bins: IndexArray, delta: float) -> IntArray:
        """Return (E, K) half counts that each client's own noise rarely exceeds at each bin.

        Parameters
        ----------
        bins : ndarray of shape (E,)
            The bins.
        delta : float
            The probability with which the noise of one client exceeds it at one bin.
        """
        # Many bins have the same number of draws: each bound is computed once.
        n_draws, rows = np.unique(self.n_draws[bins], return_inverse=True)
        bounds = np.zeros((len(bins), len(self.total_counts)), dtype=np.int64)
        for distribution, clients in zip(self.distributions, self.clients_with, strict=True):
            sums = [((distribution, n_terms),) for n_terms in n_draws.tolist()]
            bounds_of_sums = np.array([noise_bound(terms, delta) for terms in sums])
            client_bounds = self.half_counts_per_draw[bins] * bounds_of_sums[rows]
            bounds[:, clients] = client_bounds[:, None]
        return bounds

    def clip_estimates(
        self, estimates: IntArray, sizes: IntArray, variances: FloatArray
    ) -> IntArray:
        """Return the estimates at all bins, held near what counts without noise can be.

        Each is held within [0, n_k], widened by MAX_NOISE_DEVIATIONS standard deviations of the
        client's own noise. So what a malicious client adds is bounded by the sample size and the
        noise that it claims.

        Parameters
        ----------
        estimates : ndarray of shape (H, C)
            Half counts of C clients, which may be some of the round's.
        sizes : ndarray of shape (C,)
            What their counts add up to, in half counts; noisy where sizes are hidden.
        variances : ndarray of shape (C,)
            The variance of the noise of each of these clients' counts, in counts squared.

        Returns
        -------
        ndarray of shape (H, C)
            Half counts.
        """
        factors_below = self._variance_factors
        # A hidden size is the noisy sum over all bins: an estimate exceeds it by the noise of the
        # bins above.
        factors_above = factors_below if self.sizes_known else self.n_bins - self.n_bins_summed
        lowest = -_max_half_counts(variances, factors_below)
        highest = sizes + _max_half_counts(variances, factors_above)
        return np.asarray(np.clip(estimates, lowest, highest))


def _max_half_counts(variances: FloatArray, factors: NDArray[Any]) -> IntArray:
    """Return (H, C) MAX_NOISE_DEVIATIONS standard deviations of noise, in half counts, rounded up.

    Parameters
    ----------
    variances : ndarray of shape (C,)
        The variance of the noise of one count of each client, in counts squared.
    factors : ndarray of shape (H,)
        The variance at each bin, over that of one count.
    """
    deviations = np.sqrt(variances * factors[:, None])
    return np.ceil(2 * MAX_NOISE_DEVIATIONS * deviations).astype(np.int64)
