"""Which clients contradict each other under label shift, and who is dropped for it.

Clients are compared in pairs, at one bin, over the classes that both hold, so that label mixes may
differ at will (docs/theory.md, section 11, "P: pruning that cannot expel the honest"). All counts
are whole samples without noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from robfcp._typing import BoolArray, FloatArray, IntArray
from robfcp.guarantees._tail_bounds import kl_divergence

# Pairs of clients times classes up to which the terms are remembered from bin to bin: two arrays
# of 128 MiB.
_MAX_CACHED_TERMS = 2**24

# Pairs of clients, times classes, that are worked on at a time: so many stay in the cache.
_MAX_BLOCK_TERMS = 2**16

# Factor of a bound that only decides for which pairs logarithms are taken. Below 1, so that
# rounding errs towards taking them.
_PREFILTER_SLACK = 1 - 1e-9

# Divisors are at least this, lest they be 0.
_MIN_DIVISOR = 1e-12


class _PairTerms(NamedTuple):
    """What the sizes say of the pairs of some clients k with all clients l.

    Attributes
    ----------
    rows : slice
        The B clients k.
    harmonic : ndarray of shape (B, C, K)
        n_kc n_lc / (n_kc + n_lc).
    variance_factor : ndarray of shape (B, C, K)
        n_kc n_lc / ((n_kc + n_lc)^2 (n_kc + n_lc - 1)): times the pooled count up to a bin, times
        the pooled count above it, the variance of the hypergeometric x_kc.
    """

    rows: slice
    harmonic: FloatArray
    variance_factor: FloatArray


class ClientPairs:
    """All pairs of clients, compared at one bin after another over the classes that both hold.

    x is the first client's count up to the bin in these classes and n its size. Given each class's
    pooled count, benign clients' counts are independent hypergeometric variables, and x is a sum of
    independent indicators, with mean mu and variance V. Of such sums the binomial one of the same
    mean and variance, n' = mu^2 / (mu - V) draws, has the largest generating function below 1:
    P(X <= x) <= exp(-e) with e = n' kl(x / n', mu / n') for x <= mu. Above mu it is likewise with
    n - x, and twice that probability is for either side. For benign clients within sigma > 0 of a
    common distribution e is Hoeffding's, 2 (|D| - 2 sigma H)+^2 / H with D = x - mu and H the sum
    over c of n_kc n_lc / (n_kc + n_lc) (docs/theory.md, section 11, "P: pruning").

    Parameters
    ----------
    sizes : array_like of shape (K, C)
        n_kc, the samples of each client and class; 0 where the client does not hold the class.
    """

    def __init__(self, sizes: ArrayLike) -> None:
        self.sizes = np.asarray(sizes, dtype=np.float64)
        self._is_holder = (self.sizes > 0).astype(np.float64)
        # (K, K) n of each pair: the row's client's samples of the classes that both hold.
        self._shared_sizes = self.sizes @ self._is_holder.T
        self._cached_terms: list[_PairTerms] | None = None
        if self.sizes.size * len(self.sizes) <= _MAX_CACHED_TERMS:
            self._cached_terms = list(self._compute_terms())

    def _terms(self) -> Iterator[_PairTerms]:
        """Yield the terms of all pairs, some rows at a time."""
        if self._cached_terms is not None:
            return iter(self._cached_terms)
        return self._compute_terms()

    def _compute_terms(self) -> Iterator[_PairTerms]:
        """Compute the terms of all pairs, some rows at a time."""
        for rows in _row_blocks(len(self.sizes), self.sizes.size):
            sizes_k = self.sizes[rows, :, None]  # (B, C, 1)
            sizes_l = self.sizes.T[None]  # (1, C, K)
            totals = sizes_k + sizes_l
            # The maxima only avoid 0 / 0: where they act a numerator is 0.
            harmonic = sizes_k * sizes_l / np.maximum(totals, 1)
            variance_factor = harmonic / np.maximum(totals * (totals - 1), 1)
            yield _PairTerms(rows, harmonic, variance_factor)

    def _differences(self, cumulative: FloatArray) -> FloatArray:
        """Return (K, K) D_kl = sum over c of n_kc n_lc / (n_kc + n_lc) (x_kc / n_kc - x_lc / n_lc).

        That is x - mu in samples: k's count less its mean given the pooled counts. Antisymmetric.

        Parameters
        ----------
        cumulative : ndarray of shape (K, C)
            x_kc, the counts up to the bin.
        """
        one_sided = self._harmonic_sums(cumulative / np.maximum(self.sizes, 1))
        return one_sided - one_sided.T

    def _harmonic_sums(self, values: FloatArray) -> FloatArray:
        """Return (K, K) the sums over c of n_kc n_lc / (n_kc + n_lc) v_kc.

        Parameters
        ----------
        values : ndarray of shape (K, C)
            v, of the row's client k.
        """
        sums = np.zeros((len(values), len(values)))
        for rows, harmonic, _ in self._terms():
            sums[rows] = _sum_over_classes(values[rows], harmonic)
        return sums

    def _differences_and_variances(self, cumulative: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (K, K) D_kl, and V_kl = sum over c of n_kc n_lc P_c (1 - P_c) / (n_kc + n_lc - 1).

        P_c is the pooled CDF (x_kc + x_lc) / (n_kc + n_lc). The mean and the variance of a sum of
        hypergeometric variables, one for each class. Both in one pass over the terms.

        Parameters
        ----------
        cumulative : ndarray of shape (K, C)
            x_kc, the counts up to the bin.
        """
        n_clients = len(cumulative)
        cdfs = cumulative / np.maximum(self.sizes, 1)
        above = self.sizes - cumulative
        products = cumulative * above
        differences = np.zeros((n_clients, n_clients))
        variances = np.zeros((n_clients, n_clients))
        for rows, harmonic, variance_factor in self._terms():
            differences[rows] = _sum_over_classes(cdfs[rows], harmonic)
            # V is the factor times (x_k + x_l) (y_k + y_l), y being the counts above. Here are
            # x_k y_k and x_k y_l; as the factor is symmetric, the transpose adds the other two.
            variances[rows] = _sum_over_classes(products[rows], variance_factor)
            mixed_terms = variance_factor * above.T[None]
            variances[rows] += _sum_over_classes(cumulative[rows], mixed_terms)
        return differences - differences.T, variances + variances.T

    @cached_property
    def _harmonic_sizes(self) -> FloatArray:
        """(K, K) H_kl = sum over c of n_kc n_lc / (n_kc + n_lc)."""
        return np.concatenate([terms.harmonic.sum(axis=1) for terms in self._terms()])

    def exponents(
        self, cumulative: ArrayLike, sigma: float = 0.0, min_exponent: float = 0.0
    ) -> FloatArray:
        """Return (K, K) e of each pair, the row's client first; 0 where two share no class.

        The p-value for "both are benign" is min(1, 2 exp(-e)).

        Parameters
        ----------
        cumulative : array_like of shape (K, C)
            x_kc, the counts up to the bin.
        sigma : float, default=0
            The declared heterogeneity within classes.
        min_exponent : float, default=0
            Below it e may be returned as 0, which saves logarithms; not used if sigma > 0.
        """
        counts = np.asarray(cumulative, dtype=np.float64)
        if sigma > 0:
            distances = np.abs(self._differences(counts))
            return self._hoeffding_exponents(distances, sigma)
        differences, variances = self._differences_and_variances(counts)
        return self._binomial_exponents(counts, differences, variances, min_exponent)

    def _binomial_exponents(
        self,
        counts: FloatArray,
        differences: FloatArray,
        variances: FloatArray,
        min_exponent: float,
    ) -> FloatArray:
        """Return (K, K) e of the binomial of the same mean and variance.

        Parameters
        ----------
        counts : ndarray of shape (K, C)
            x_kc.
        differences, variances : ndarray of shape (K, K)
            D = x - mu and V, of the row's client.
        min_exponent : float
            Below it e may be returned as 0.
        """
        shared_counts = counts @ self._is_holder.T  # (K, K) x, over the classes that both hold
        exponents = np.zeros(differences.shape)
        for rows in _row_blocks(len(counts), len(counts)):
            # kl <= chi-square, so that e <= D^2 / V: most pairs need no logarithm.
            all_d = differences[rows]
            all_v = variances[rows]
            is_needed = (all_d * all_d >= min_exponent * _PREFILTER_SLACK * all_v) & (all_v > 0)
            d = all_d[is_needed]
            v = all_v[is_needed]
            x = shared_counts[rows][is_needed]
            n_minus_x = self._shared_sizes[rows][is_needed] - x

            # Above the mean n - x takes the place of x, and n - mu that of mu.
            is_below = d < 0
            mean = np.maximum(np.where(is_below, x - d, n_minus_x + d), _MIN_DIVISOR)
            n_draws = mean**2 / np.maximum(mean - v, _MIN_DIVISOR)
            fraction = np.where(is_below, x, n_minus_x) / n_draws
            exponents[rows][is_needed] = n_draws * kl_divergence(fraction, mean / n_draws)
        return exponents

    def _hoeffding_exponents(self, distances: FloatArray, sigma: float) -> FloatArray:
        """Return (K, K) e = 2 (|D| - 2 sigma H)+^2 / H; 0 where H is.

        Parameters
        ----------
        distances : ndarray of shape (K, K)
            |D|, or a lower bound on it, which may be negative.
        sigma : float
            The declared heterogeneity within classes: two clients differ by at most twice that.
        """
        sizes = self._harmonic_sizes
        excess = np.maximum(distances - 2 * sigma * sizes, 0)
        return np.where(sizes > 0, 2 * excess**2 / np.maximum(sizes, _MIN_DIVISOR), 0.0)

    def exponent_lower_bound(
        self, cumulative: IntArray, cumulative_upper: IntArray, sigma: float
    ) -> FloatArray:
        """Return (K, K) lower bounds on the exponents e where counts lie between two bounds.

        The p-value for "both are benign" is at most 2 exp(-e), as for `exponents`, here with e of
        Hoeffding's inequality. Let D_kl(x) be `_differences` of the lower counts x, and

            R_kl = sum over c of n_kc n_lc / (n_kc + n_lc) (u_kc - x_kc) / n_kc.

        D_kl of the true counts lies between D_kl(x) - R_lk and D_kl(x) + R_kl: it is largest where
        the counts of k are as large and those of l as small as they may be.

        Parameters
        ----------
        cumulative, cumulative_upper : ndarray of shape (K, C)
            x_kc and u_kc: the counts up to the bin are at least and at most these.
        sigma : float
            The declared heterogeneity within classes.
        """
        widths = self._harmonic_sums((cumulative_upper - cumulative) / np.maximum(self.sizes, 1))
        differences = self._differences(cumulative.astype(np.float64))
        # How far that range is from 0; negative where 0 is in it, which counts as 0.
        distances = np.maximum(differences - widths.T, -differences - widths)
        return self._hoeffding_exponents(distances, sigma)

    def contradictions(
        self,
        cumulative: ArrayLike,
        max_malicious: int,
        beta: float,
        sigma: float,
        n_clients: int,
        cumulative_upper: IntArray | None = None,
    ) -> BoolArray | None:
        """Return (K, K) which clients contradict which at one bin; None if no client is dropped.

        Symmetric. Where counts are known up to two bounds, only pairs count that contradict each
        other wherever the counts lie between them.

        Parameters
        ----------
        cumulative : array_like of shape (K, C)
            The counts up to the bin, at least, for all K clients.
        max_malicious : int
            m.
        beta : float
            The probability with which a benign client is dropped.
        sigma : float
            The declared heterogeneity within classes.
        n_clients : int
            How many clients are compared: K, or K - 1 where one of them is held out. Then every one
            may be that one, so all K rows are returned, and `pruned_mask` leaves it out.
        cumulative_upper : ndarray of shape (K, C), optional
            The counts up to the bin, at most.
        """
        n_witnesses = min_witnesses(n_clients, max_malicious)
        n_needed = max_malicious + n_witnesses
        if max_malicious == 0 or n_needed > n_clients - 1:
            return None

        # A pair contradicts each other where p (K - 1 - m) / j <= beta / K, for p = 2 exp(-e): by
        # Markov's inequality j of K - 1 - m benign clients contradict a benign one with probability
        # at most p (K - 1 - m) / j.
        n_other_benign = n_clients - 1 - max_malicious
        min_exponent = np.log(2 * n_clients * n_other_benign / (n_witnesses * beta))
        contradicts = self.exponents(cumulative, sigma, min_exponent) >= min_exponent
        if cumulative_upper is not None:
            lower = np.asarray(cumulative, dtype=np.int64)
            is_uncertain = np.asarray((cumulative_upper > lower).any(axis=1))
            certainly = self.exponent_lower_bound(lower, cumulative_upper, sigma) >= min_exponent
            pair_is_uncertain = is_uncertain[:, None] | is_uncertain
            contradicts = np.where(pair_is_uncertain, certainly, contradicts)
        np.fill_diagonal(contradicts, False)
        drops_any = (contradicts.sum(axis=1) >= n_needed).any()
        return contradicts if drops_any else None


def _sum_over_classes(values: FloatArray, terms: FloatArray) -> FloatArray:
    """Return (B, K) the sums over classes of (B, C) values times (B, C, K) terms."""
    return np.asarray(np.matmul(values[:, None, :], terms)[:, 0])


def _row_blocks(n_rows: int, width: int) -> Iterator[slice]:
    """Return slices of rows, each of which a cache holds.

    Parameters
    ----------
    n_rows : int
        How many rows there are.
    width : int
        How many numbers one row has.
    """
    step = max(1, _MAX_BLOCK_TERMS // max(1, width))
    return (slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step))


def min_witnesses(n_clients: int, max_malicious: int) -> int:
    """Return j: how many benign clients, beyond m others, must contradict a client to drop it.

    Any fixed j is valid, as the level of a pair allows for it. A larger j makes that level higher,
    but more clients must contradict; a quarter of K - 2 m is between.
    """
    return max(1, (n_clients - 2 * max_malicious) // 4)


def pruned_mask(
    contradictions: BoolArray, is_present: BoolArray, max_malicious: int
) -> BoolArray | None:
    """Return (K,) which of the clients present are kept; None where more than m would be dropped.

    A client is dropped when m' + j of those present contradict it, m' being the malicious clients
    that may be left. Then at least j of a fixed set of K - 1 - m benign clients do, which by
    Markov's inequality has a probability of at most beta / K, the same in every pass
    (docs/theory.md, section 11, theorem P).

    Parameters
    ----------
    contradictions : ndarray of shape (K, K)
        Which clients contradict which, as `ClientPairs.contradictions` returns them.
    is_present : ndarray of shape (K,)
        The clients that are compared: all, or all but the one held out. Never changed.
    max_malicious : int
        m.
    """
    # The number of witnesses stays that of all clients present, in every pass.
    n_witnesses = min_witnesses(int(is_present.sum()), max_malicious)
    kept_mask = is_present
    max_malicious_left = max_malicious
    while True:
        n_contradicting = contradictions[:, kept_mask].sum(axis=1)
        is_dropped = kept_mask & (n_contradicting >= max_malicious_left + n_witnesses)
        n_dropped = int(is_dropped.sum())
        if n_dropped == 0:
            return kept_mask
        if n_dropped > max_malicious_left:
            return None
        kept_mask = kept_mask & ~is_dropped
        max_malicious_left -= n_dropped
