"""What the clients' cumulative counts are at least and at most: exact, coarse and noisy reports.

========  ==========================================  ==========================================
report    at least                                    at most
========  ==========================================  ==========================================
exact     the count                                   the count
coarse    the count: scores were only moved up        the count, with the same samples moved down
                                                      as far as they may have come from
noisy     an unbiased estimate                        the same estimate
silent    0: the noise is larger than the sample      the sample size
========  ==========================================  ==========================================

Counts are in *units*. Without noise a unit is a count; with noise it is half a count, as an
estimate may be the mean of two counts (see `NoiseModel`). A count is a sample, or, under a loss,
one of `CountBounds.counts_per_sample` parts of a sample's loss.

The noise of an estimate is not in these bounds. Guarantees sum the counts of many clients, and the
noise of any such sum rarely exceeds `CountBounds.noise_bounds`. A client whose noise at a bin is
larger than its sample is silent there, which needs no bound on its noise. So nobody can drown the
others by claiming more noise than it has samples. Who is silent follows from the sample sizes and
the stated noise alone.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import BoolArray, FloatArray, IndexArray, IntArray
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees._checks import LEVEL_DELTA_FRACTION
from robfcp.guarantees._noise_model import NoiseModel

# Counts (bins times clients) that are remembered at most; beyond that all are forgotten. 16 MiB.
MAX_CACHED_COUNTS = 2**21


class CountBounds:
    """Bounds on the clients' cumulative counts, for one round or for one stratum of it.

    Made once for a federation and passed to all that is computed of it, as it remembers the counts
    that it has read: arrays that methods return may be remembered ones and must not be changed.

    Parameters
    ----------
    federation : Federation
        The reports.

    Attributes
    ----------
    federation : Federation
        The reports.
    sizes : ndarray of shape (K,)
        n_k in samples, never in units; noisy where the sizes are hidden, so it may be negative.
    n_bins : int
        H.
    counts_per_sample : int
        How many counts a sample has: 1, or the number of parts that a loss is counted in.
    noise_model : NoiseModel or None
        The noise; None where reports hold none.
    """

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.sizes: IntArray = federation.sample_sizes
        self.n_bins = federation.binning.n_bins
        self.counts_per_sample = federation.counts_per_sample
        self.noise_model: NoiseModel | None = None
        if federation.has_noise:
            self.noise_model = NoiseModel.from_federation(federation)
            if not federation.sizes_known:
                # All noisy counts. Losses never have hidden sizes, so counts are samples here.
                self.sizes = federation.map_blocks(
                    lambda block: block.cumulative_count(self.n_bins - 1)
                )
        self._estimates_at: dict[int, IntArray] = {}  # by bin, each of shape (K,), in units

    @property
    def has_noise(self) -> bool:
        """Whether bounds are estimates in half counts, which need not rise from bin to bin."""
        return self.noise_model is not None

    @property
    def sizes_known(self) -> bool:
        """Whether sample sizes are exact; else they are noisy."""
        return self.noise_model is None or self.noise_model.sizes_known

    @property
    def units_per_count(self) -> int:
        """How many units make a count: two with noise, where bounds are in half counts."""
        return 1 if self.noise_model is None else 2

    @property
    def sizes_in_units(self) -> IntArray:
        """(K,) the sum of each client's counts, in the units of `lower` and `upper`."""
        units_per_sample = self.units_per_count * self.counts_per_sample
        return self.sizes if units_per_sample == 1 else units_per_sample * self.sizes

    def require_sizes(self, field: str) -> None:
        """Refuse hidden sample sizes for what cannot do without them.

        Parameters
        ----------
        field : str
            The argument that needs them, as messages name it.
        """
        if not self.sizes_known:
            problem = "needs every site's number of samples, which reports under add-remove hide"
            raise RobfcpError(f"{field}: {problem}; register the sizes or use substitution")

    def split_delta(self, delta: float, noise_fraction: float) -> tuple[float, float]:
        """Return how much of a probability to fail is for noise, and how much for sampling.

        Parameters
        ----------
        delta : float
            The probability to fail, of both together.
        noise_fraction : float
            Which fraction of it is for noise, if there is noise; without noise all is for sampling.
        """
        if not self.has_noise:
            return 0.0, delta
        return noise_fraction * delta, delta - noise_fraction * delta

    def noise_delta_of_level(self, level: Fraction) -> Fraction:
        """Return with which probability noise may fool a marginal threshold; 0 without noise.

        Who uses it raises the level by as much, so that coverage stays `level` on average.
        """
        return (1 - level) * LEVEL_DELTA_FRACTION if self.has_noise else Fraction(0)

    def lower(self, bins: IndexArray) -> IntArray:
        """Return (E, K) what the counts up to some bins are at least, in units.

        With noise: unbiased estimates, which `noise_bounds` must be allowed for.

        Parameters
        ----------
        bins : ndarray of shape (E,)
            The bins.
        """
        estimates = self.estimates(bins)
        if self.noise_model is None:
            return estimates
        return np.where(self.noise_model.is_silent(bins), 0, estimates)

    def upper(self, bins: IndexArray) -> IntArray:
        """Return (E, K) what the counts up to some bins are at most, in units.

        With noise: unbiased estimates, which `noise_bounds` must be allowed for.

        Parameters
        ----------
        bins : ndarray of shape (E,)
            The bins.
        """
        counts = self.estimates(bins)
        is_coarsened = self.federation.is_coarsened
        if is_coarsened.any():
            counts = counts.copy()
            counts[:, is_coarsened] = self._highest_coarse_counts(bins, is_coarsened)
        if self.noise_model is None:
            return counts
        return np.where(self.noise_model.is_silent(bins), self.sizes_in_units, counts)

    def lower_and_upper(self, bins: IndexArray) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return both bounds, (E, K) each, in units; the same as `lower` and `upper`.

        Stored counts without noise are in the smallest unsigned integer type that holds them: who
        subtracts must convert them first.

        Parameters
        ----------
        bins : ndarray of shape (E,)
            The bins.
        """
        if self.federation.is_out_of_core and not self.has_noise:
            return self._read_both_stored(bins)
        return self.lower(bins), self.upper(bins)

    def estimates(self, bins: IndexArray) -> IntArray:
        """Return (E, K) the counts up to some bins as sent, or as estimated where there is noise.

        In units. What was read is remembered; before that becomes too much, all is forgotten.

        Parameters
        ----------
        bins : ndarray of shape (E,)
            The bins, in any order and with repetitions; at least one.

        Returns
        -------
        ndarray of int, shape (E, K)
            May be a view of what is remembered: callers do not change it.
        """
        requested = bins.tolist()
        missing = sorted(set(requested) - set(self._estimates_at))
        n_counts = (len(self._estimates_at) + len(missing)) * len(self.sizes)
        if missing and n_counts > MAX_CACHED_COUNTS:
            self._estimates_at = {}
            missing = sorted(set(requested))
        if missing:
            rows = self._read_estimates(np.array(missing))
            self._estimates_at.update(zip(missing, rows, strict=True))

        if len(requested) == 1:
            return self._estimates_at[requested[0]][None]
        return np.stack([self._estimates_at[bin_index] for bin_index in requested])

    def _read_estimates(self, bins: IndexArray) -> IntArray:
        """Return (E, K) the estimates at rising, distinct bins, in units, in one pass over reports.

        Parameters
        ----------
        bins : ndarray of shape (E,)
            The bins, rising and distinct: reports sum their counts between them.
        """
        if self.noise_model is not None:
            bins_and_last = self._with_last_bin(bins)
            cumulative = self.federation.map_blocks(
                lambda block: block.cumulative_counts(bins_and_last)
            )
            return self._estimates_from(cumulative.T, bins, self.federation.total_counts)
        if len(bins) == 1:
            bin_index = int(bins[0])
            counts = self.federation.map_blocks(lambda block: block.cumulative_count(bin_index))
            return counts[None, :]
        counts = self.federation.map_blocks(lambda block: block.cumulative_counts(bins))
        return np.ascontiguousarray(counts.T)

    def _highest_coarse_counts(self, bins: IndexArray, is_coarsened: BoolArray) -> IntArray:
        """Return (E, n) what the cumulative counts of n coarsened reports are at most, in units.

        A count up to a bin is largest where every sample lies in the lowest bin that its report
        allows.

        Parameters
        ----------
        bins : ndarray of shape (E,)
            The bins, in any order.
        is_coarsened : ndarray of shape (K,)
            Which clients sent the n coarsened reports.
        """
        rising_bins, rows = np.unique(bins, return_inverse=True)
        bins_and_last = self._with_last_bin(rising_bins)
        coarse = self.federation.select(is_coarsened)
        cumulative = coarse.map_blocks(
            lambda block: block.counts_in_lowest_bins().cumulative_counts(bins_and_last)
        )
        return self._estimates_from(cumulative.T, rising_bins, coarse.total_counts)[rows]

    def _with_last_bin(self, bins: IndexArray) -> IndexArray:
        """Return rising bins and the last bin once, so (E,) or (E + 1,): its count is the sum."""
        return np.unique(np.append(bins, self.n_bins - 1))

    def _estimates_from(
        self, cumulative: IntArray, bins: IndexArray, total_counts: IntArray
    ) -> IntArray:
        """Return (E, n) the estimates of n clients at rising bins, in units.

        Parameters
        ----------
        cumulative : ndarray of shape (E, n) or (E + 1, n)
            The counts at `_with_last_bin(bins)`: up to each bin, the last row being all counts.
        bins : ndarray of shape (E,)
            The bins, rising and distinct.
        total_counts : ndarray of shape (n,)
            What the clients' counts add up to without noise, in whole counts.
        """
        at_bins = cumulative[: len(bins)]
        if self.noise_model is None:
            return at_bins
        return self.noise_model.estimates(at_bins, cumulative[-1], total_counts, bins)

    def _read_both_stored(self, bins: IndexArray) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return both bounds, (E, K) each, of counts without noise that stay where they are stored.

        In one pass over the tables, and in the smallest unsigned type that holds every count.

        Parameters
        ----------
        bins : ndarray of shape (E,)
            The bins, in any order.
        """
        rising_bins, rows = np.unique(bins, return_inverse=True)
        integer_type: Any = np.int64
        largest = self.counts_per_sample * int(self.sizes.max())
        # Private counts may be negative even where their noise is negligible.
        if largest < 2**32 and not self.federation.has_private_reports:
            integer_type = np.min_scalar_type(largest)

        def read(block: Federation) -> NDArray[Any]:
            # (K, 2, E): the lower bounds of each client, and the upper ones.
            lower_and_upper = np.repeat(block.cumulative_counts(rising_bins)[:, None], 2, axis=1)
            is_coarsened = block.is_coarsened
            if is_coarsened.any():
                lowest = block.select(is_coarsened).counts_in_lowest_bins()
                lower_and_upper[is_coarsened, 1] = lowest.cumulative_counts(rising_bins)
            return lower_and_upper.astype(integer_type)

        lower, upper = self.federation.map_blocks(read).transpose(1, 2, 0)
        return lower[rows], upper[rows]

    def noise_bounds(self, bins: IndexArray, delta: float) -> tuple[IntArray, IntArray]:
        """Return what noise adds at most to the counts of any set of clients, in units.

        Parameters
        ----------
        bins : ndarray of shape (E,)
            The bins.
        delta : float
            The probability with which it adds more at any one bin, to either side together.

        Returns
        -------
        tuple of ndarray of shape (E,)
            To the counts up to each bin, and to those above it, in units; 0 without noise. The
            noise is symmetric: it takes more than that away with the same probability.
        """
        if self.noise_model is None:
            no_noise = np.zeros(len(bins), dtype=np.int64)
            return no_noise, no_noise
        return self.noise_model.bounds_of_any_sum(bins, delta)

    def per_client(self, bins: IndexArray, delta: float) -> tuple[IntArray, IntArray]:
        """Return bounds on each client's own count that allow for its noise, in whole counts.

        Not in units: half counts are rounded outwards. Divide by `Federation.total_counts` for
        fractions. Where sizes are hidden the clip is at the noisy size, which may be too low, so
        callers `require_sizes` first.

        Parameters
        ----------
        bins : ndarray of shape (E,)
            The bins.
        delta : float
            The probability with which each of the bounds is wrong; there is none without noise.

        Returns
        -------
        tuple of ndarray of shape (E, K)
            What the counts are at least and at most, in [0, counts_per_sample n_k].
        """
        if self.noise_model is None:
            lower, upper = self.lower_and_upper(bins)
            return lower.astype(np.int64), upper.astype(np.int64)
        noise = self.noise_model.bounds_of_clients(bins, delta)
        lower = -((noise - self.lower(bins)) // 2)  # rounded up
        upper = (self.upper(bins) + noise) // 2
        max_counts = self.counts_per_sample * self.sizes
        return np.clip(lower, 0, max_counts), np.clip(upper, 0, max_counts)

    def pooled_counts(self, benign_mask: BoolArray | None) -> NDArray[Any]:
        """Return (H,) estimates of the benign clients' pooled counts up to each bin, never falling.

        In counts, not in units. Those of coarsened reports are half-way between both bounds, and so
        may be half counts. Noise is as likely to move them down as up, is not bounded in them, and
        makes them fractional.

        Parameters
        ----------
        benign_mask : ndarray of shape (K,), optional
            The benign clients; all clients if None.
        """
        if self.noise_model is not None:
            return self._pooled_estimates(self.noise_model, benign_mask)
        return np.cumsum(self.federation.pooled_midpoints(benign_mask))

    def _pooled_estimates(
        self, noise_model: NoiseModel, benign_mask: BoolArray | None
    ) -> FloatArray:
        """Return (H,) the pooled estimates of the benign clients, in counts, that never fall.

        Parameters
        ----------
        noise_model : NoiseModel
            The noise of the round.
        benign_mask : ndarray of shape (K,), optional
            The benign clients; all clients if None.
        """
        if benign_mask is None:
            benign_mask = np.ones(len(self.sizes), dtype=bool)
        bins = np.arange(self.n_bins)

        def sum_of_block(
            block: Federation,
            sizes_in_half_counts: IntArray,
            variances: FloatArray,
            is_benign: BoolArray,
        ) -> IntArray:
            """Return (H,) the half counts of a block's benign clients; columns are (K,)."""
            cumulative = block.cumulative_midpoints()
            estimates = noise_model.estimates(
                cumulative.T, cumulative[:, -1], block.total_counts, bins
            )
            clipped = noise_model.clip_estimates(estimates, sizes_in_half_counts, variances)
            return np.asarray(clipped[:, is_benign].sum(axis=1))

        # Units are half counts where there is noise.
        columns = self.sizes_in_units, noise_model.variances, benign_mask
        half_counts = self.federation.reduce_blocks(sum_of_block, *columns)
        return isotonic_fit(half_counts / 2)

    def min_n_samples(self, max_malicious_values: IntArray, delta: float) -> FloatArray:
        """Return (M,) how many samples the clients without any m have together, at least.

        That is N_min of docs/theory.md, section 9: N without the m largest n_k.

        Parameters
        ----------
        max_malicious_values : ndarray of shape (M,)
            The values of m, in any order, each from 0 to K - 1.
        delta : float
            The probability with which the noise of hidden sizes makes it less.

        Returns
        -------
        ndarray of shape (M,)
            Samples; less than 1 where noise may be all of them, which callers must refuse.
        """
        n_largest, n_samples_of_largest = self._largest_clients
        next_rows = np.maximum(np.searchsorted(n_largest, max_malicious_values), 1)
        rows = next_rows - 1

        # Between two entries all clients have the same size, so that what m of them have is linear
        # in m.
        n_samples_between = n_samples_of_largest[next_rows] - n_samples_of_largest[rows]
        size = n_samples_between // (n_largest[next_rows] - n_largest[rows])
        n_removed = n_samples_of_largest[rows] + (max_malicious_values - n_largest[rows]) * size
        n_remaining = (int(self.sizes.sum()) - n_removed).astype(float)
        if self.noise_model is None or self.noise_model.sizes_known:
            return n_remaining
        # From half counts to samples: sizes are never hidden under a loss.
        return n_remaining - self.noise_model.bound_of_hidden_total(delta) / 2

    @cached_property
    def _largest_clients(self) -> tuple[IntArray, IntArray]:
        """(S + 1,) how many clients have at least each of S falling sizes, and their samples.

        Both begin with 0 and rise; the first ends with K. Noisy sizes below 0 count as 0, as
        removing such a client would add samples.
        """
        sizes, n_clients = np.unique(np.maximum(self.sizes, 0), return_counts=True)
        n_samples = sizes.astype(np.int64) * n_clients
        n_largest = np.concatenate([[0], np.cumsum(n_clients[::-1])])
        n_samples_of_largest = np.concatenate([[0], np.cumsum(n_samples[::-1])])
        return n_largest, n_samples_of_largest


def count_bounds(federation: Federation) -> CountBounds:
    """Return the bounds on the cumulative counts of a round, or of one stratum of it.

    Make them once for a federation and pass them on, as they remember the counts that were read.

    Parameters
    ----------
    federation : Federation
        The reports.
    """
    return CountBounds(federation)


def isotonic_fit(values: FloatArray) -> FloatArray:
    """Return (H,) the vector closest to `values` (least squares) that never falls."""
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(values).x, dtype=np.float64)
