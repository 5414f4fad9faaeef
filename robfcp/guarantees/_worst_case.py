"""What is proved whoever the malicious clients are: a tail test over all removals of clients.

A bin is accepted if for every set S of clients that may be the benign ones, S leaving out j of all
clients, the sum over S of q c_k - p n_k reaches what a tail requires; c_k is client k's count up to
the bin and n_k what its counts sum to, both in the units of `CountBounds`. The benign clients are
such a set, so what an accepted bin proves of every S it proves of them. All sums are of whole
numbers, hence exact (docs/theory.md, sections 1 and 4).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import BoolArray, FloatArray, IndexArray, IntArray
from robfcp.guarantees._count_bounds import MAX_CACHED_COUNTS, CountBounds
from robfcp.guarantees._sums import (
    ClientGroups,
    as_integers,
    excess_counts,
    min_coverage_over_removals,
    min_sums_over_removals,
)


class TailTest(NamedTuple):
    """What the sum over S of q c_k - p n_k must reach.

    Attributes
    ----------
    p, q : int
        What a client's size is charged with, as the fraction p / q: the level, or more where a
        required sum that grows with the size is charged to the clients.
    min_excess : ndarray of shape (m + 1,) or (1,)
        The required sum where S leaves out j clients, j = 0, ..., m; one number for all j. In
        counts times q, not in units; Python integers where 64 bits are too few.
    """

    p: int
    q: int
    min_excess: NDArray[Any]

    def accepts(
        self,
        counts: IntArray,
        sizes: IntArray,
        max_malicious: int,
        noise_allowance: NDArray[Any] | int = 0,
        units_per_count: int = 1,
    ) -> BoolArray:
        """Return (E,) whether the sum is reached by every S that leaves out at most m clients.

        Parameters
        ----------
        counts : ndarray of shape (E, K)
            c_k at each bin, in units.
        sizes : ndarray of shape (K,)
            n_k, in units.
        max_malicious : int
            m, as in `min_excess`.
        noise_allowance : int or ndarray of shape (E,), default=0
            What noise may add to the sum, in units times q.
        units_per_count : int, default=1
            How many units make a count.
        """
        sums = min_sums_over_removals(excess_counts(counts, sizes, self.p, self.q), max_malicious)
        # (E, m + 1), or (E, 1) where one number is for all j.
        required = units_per_count * self.min_excess + np.asarray(noise_allowance).reshape(-1, 1)
        return np.asarray((sums >= required).astype(bool).all(axis=1))

    def breakdown_point(self, sizes: IntArray, max_malicious: int) -> int | None:
        """Return the least number of malicious clients that can force the last bin.

        They are the largest clients and put all their samples into the last bin, while the others
        have theirs in the first; fewer may do on other reports (docs/theory.md, section 5).

        Parameters
        ----------
        sizes : ndarray of shape (K,)
            n_k in samples, in any order.
        max_malicious : int
            The number m that the test allows for.

        Returns
        -------
        int or None
            None where no number below K suffices.
        """
        falling_sizes = np.sort(np.asarray(sizes, dtype=np.int64))[::-1]
        clients = np.arange(len(falling_sizes))

        def is_forced(last_malicious: int) -> bool:
            """Return whether the largest clients, 0 to `last_malicious`, force the last bin."""
            is_malicious = clients <= last_malicious
            counts_below_last_bin = np.where(is_malicious, 0, falling_sizes)
            return not self.accepts(counts_below_last_bin[None], falling_sizes, max_malicious)[0]

        # Forcing is monotone in the number of clients; all K clients are not considered.
        last_malicious = first_accepted(len(falling_sizes) - 1, is_forced)
        return None if last_malicious is None else last_malicious + 1


def first_accepted(n_bins: int, is_accepted: Callable[[int], bool]) -> int | None:
    """Return the first bin that is accepted, by bisection; None if none is.

    Parameters
    ----------
    n_bins : int
        How many bins there are.
    is_accepted : callable
        Whether a bin is accepted. It must be monotone: if a bin is, so are all above it.
    """
    if not n_bins or not is_accepted(n_bins - 1):
        return None
    # The last bin is accepted, so it need not be among those that are searched.
    return bisect_left(range(n_bins - 1), True, key=is_accepted)


def first_lastingly_accepted(
    bounds: CountBounds, accepted: Callable[[IndexArray], BoolArray]
) -> int | None:
    """Return the first bin from which on all bins are accepted; None if the last one is not.

    Without noise all bins above an accepted one are accepted, as counts rise. With noise the bins
    are looked at from the top.

    Parameters
    ----------
    bounds : CountBounds
        The counts.
    accepted : callable
        (E,) whether each of some bins, an array of shape (E,), is accepted; without noise it must
        be monotone.
    """
    if not bounds.has_noise:

        def is_accepted(bin_index: int) -> bool:
            return bool(accepted(np.array([bin_index]))[0])

        return first_accepted(bounds.n_bins, is_accepted)

    # Blocks of bins whose counts of all clients are remembered.
    n_bins_at_once = max(1, MAX_CACHED_COUNTS // max(1, len(bounds.sizes)))
    for stop in range(bounds.n_bins, 0, -n_bins_at_once):
        bins = np.arange(max(0, stop - n_bins_at_once), stop)
        rejected = bins[~accepted(bins)]
        if rejected.size:
            first_bin = int(rejected[-1]) + 1
            return first_bin if first_bin < bounds.n_bins else None
    return 0


def accepted_bins(
    bounds: CountBounds, bins: IndexArray, test: TailTest, max_malicious: int, noise_delta: float
) -> BoolArray:
    """Return (E,) at which bins a test is passed, whoever the at most m malicious clients are.

    Parameters
    ----------
    bounds : CountBounds
        The counts.
    bins : ndarray of shape (E,)
        The bins.
    test : TailTest
        What is required, in counts; made for the same m.
    max_malicious : int
        m.
    noise_delta : float
        The probability with which noise passes the test at a bin that would fail it; 0 without
        noise.
    """
    allowance = noise_allowance(bounds, bins, test, noise_delta)
    return test.accepts(
        bounds.lower(bins),
        bounds.sizes_in_units,
        max_malicious,
        allowance,
        bounds.units_per_count,
    )


def noise_allowance(
    bounds: CountBounds, bins: IndexArray, test: TailTest, noise_delta: float
) -> NDArray[Any]:
    """Return (E,) what noise adds at most to the sum over S of q c_k - p n_k, whatever S is.

    n_k is the sum of the counts below and above the bin. So the noise below counts q - p times and
    that above p times. Where sizes are known both are the same noise with opposite signs, which
    counts q times. In units times q; 0 without noise.

    Parameters
    ----------
    bounds : CountBounds
        The counts.
    bins : ndarray of shape (E,)
        The bins.
    test : TailTest
        For p and q.
    noise_delta : float
        The probability with which it adds more at any one bin.
    """
    noise_below, noise_above = bounds.noise_bounds(bins, noise_delta)
    largest_noise = max(noise_below.max(initial=0), noise_above.max(initial=0))
    largest = 2 * test.q * int(largest_noise)  # bounds (q - p) below + p above
    allowance_below = (test.q - test.p) * as_integers(noise_below, largest)
    allowance_above = test.p * as_integers(noise_above, largest)
    return np.asarray(allowance_below + allowance_above)


def min_and_max_coverage(
    bounds: CountBounds, bins: IndexArray, max_malicious_values: IntArray, noise_delta: float
) -> tuple[FloatArray, FloatArray]:
    """Return the least and the largest coverage over all removals, widened by what noise may do.

    L_m, U_m = min and max over removals R, |R| <= m, of (sum over k not in R of c_k) / (sum over k
    not in R of n_k): the exact ratios (docs/theory.md, section 3, proposition A). c_k is client k's
    count up to the bin, the lowest that its report allows in L_m and the highest in U_m, and n_k
    its size. Both are in the units of `CountBounds`; ratios of units are those of counts.

    Parameters
    ----------
    bounds : CountBounds
        The counts.
    bins : ndarray of shape (E,)
        The bins.
    max_malicious_values : ndarray of shape (M,)
        Rising values of m. Each must leave samples beyond the noise, `CountBounds.min_n_samples` of
        at least 1, else a denominator may be 0 or negative; callers ensure it.
    noise_delta : float
        The probability with which noise moves one of the two ends further at any one bin, for any
        m and any removal. Callers add up the ends and the bins.

    Returns
    -------
    tuple of ndarray of shape (M, E)
        L_m and U_m, fractions.
    """
    noise_below, noise_above = bounds.noise_bounds(bins, noise_delta)
    lower, upper = bounds.lower_and_upper(bins)
    sizes = bounds.sizes_in_units

    low = np.empty((len(max_malicious_values), len(bins)))
    high = np.empty_like(low)
    for column, lower_counts in enumerate(lower):
        upper_counts = upper[column]
        # (2, G) of the G groups of equal clients: counts up to the bin, at least, and counts
        # above it, at least.
        if np.array_equal(lower_counts, upper_counts):
            groups = ClientGroups.from_clients(lower_counts[None], sizes).with_complements()
        else:
            both_counts = np.stack([lower_counts, sizes - upper_counts])
            groups = ClientGroups.from_clients(both_counts, sizes)

        # Row 0: the least coverage. Row 1: the least miss rate, U_m being 1 less that.
        # Row 0 loses noise_below from its counts. Sizes are the sum of the counts below and above,
        # so they change by noise_above - noise_below. Row 1 mirrors it. All are in units.
        lost_counts = np.array([noise_below[column], noise_above[column]])
        added_sizes = lost_counts[::-1] - lost_counts
        numerators, denominators = min_coverage_over_removals(
            groups, max_malicious_values, lost_counts, added_sizes
        )
        low[:, column] = numerators[0] / denominators[0]
        high[:, column] = (denominators[1] - numerators[1]) / denominators[1]
    return np.clip(low, 0, 1), np.clip(high, 0, 1)
