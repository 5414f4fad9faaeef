"""Sums and ratios of counts, at their least over all sets of clients that may be the benign ones.

At most m of K clients are malicious, so the benign clients are all clients without a set R of at
most m, a *removal* (docs/theory.md, section 1). What holds for every removal holds for the benign
clients. All numbers are whole numbers and all comparisons are exact.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import BoolArray, FloatArray, IntArray

# Results below this fit into 64 bits, with a bit to spare.
_MAX_INT64_RESULT = 2**62

# Up to so many clients it is fastest to sort all of them, for all numbers of malicious clients at
# once; above, equal clients are counted first.
_MAX_CLIENTS_SORTING = 512

# Counts that are sorted, or keys that are counted, at a time: 1 MiB, which stays in the cache.
_MAX_BLOCK_COUNTS = 2**17


def as_integers(values: NDArray[Any], largest: int) -> NDArray[Any]:
    """Return values as int64, or as Python integers where results up to `largest` overflow.

    Parameters
    ----------
    values : ndarray
        Whole numbers. They may be returned as they are, without a copy.
    largest : int
        The largest absolute value of anything that will be computed of them, sums included.
    """
    integer_type = np.int64 if largest < _MAX_INT64_RESULT else object
    return np.asarray(values).astype(integer_type, copy=False)


def excess_counts(counts: IntArray, sizes: IntArray, p: int, q: int) -> NDArray[Any]:
    """Return the whole numbers q c_k - p n_k.

    Parameters
    ----------
    counts : ndarray of shape (E, K)
        c_k, the clients' cumulative counts at each bin, in any unit.
    sizes : ndarray of shape (K,)
        n_k, what a client's counts add up to, in the same unit.
    p, q : int
        The level p / q.

    Returns
    -------
    ndarray of shape (E, K)
        Python integers where 64 bits are too few, also for sums over clients and twice those.
    """
    largest_count_sum = int(np.abs(counts).sum(axis=1).max(initial=0))
    largest = q * largest_count_sum + p * int(np.abs(sizes).sum())
    scaled_counts = q * as_integers(counts, 2 * largest)
    scaled_sizes = p * as_integers(sizes, 2 * largest)
    return np.asarray(scaled_counts - scaled_sizes)


def sum_of_largest(values: NDArray[Any], k: int) -> NDArray[Any]:
    """Return (E,) each row's sum of its k largest entries, negative ones counted as 0.

    Parameters
    ----------
    values : ndarray of shape (E, K)
        The rows.
    k : int
        From 0 to K.
    """
    # partition is not defined at the index K, and not needed where all entries are taken.
    first_of_largest = values.shape[1] - k
    partitioned = values
    if k > 0 and first_of_largest:
        partitioned = np.partition(values, first_of_largest, axis=1)
    return np.asarray(np.maximum(partitioned[:, first_of_largest:], 0).sum(axis=1))


def min_sums_over_removals(excess_counts: NDArray[Any], max_malicious: int) -> NDArray[Any]:
    """Return the least sum over all clients but j, for each number j of removed clients.

    Parameters
    ----------
    excess_counts : ndarray of shape (E, K)
        One whole number for each bin and client; sums of them must not overflow.
    max_malicious : int
        The largest number of removed clients, m, from 0 to K - 1.

    Returns
    -------
    ndarray of shape (E, m + 1)
        For j = 0, ..., m the sum over all clients without those of the j largest numbers: exactly
        j are removed, also where that makes the sum larger.
    """
    n_remaining = excess_counts.shape[1] - max_malicious
    partitioned = excess_counts
    if 0 < max_malicious < excess_counts.shape[1]:
        partitioned = np.partition(excess_counts, n_remaining, axis=1)
    largest = np.sort(partitioned[:, n_remaining:], axis=1)
    sums_of_remaining = partitioned[:, :n_remaining].sum(axis=1)

    # Column i: what the i least of the m largest numbers add to the sum of the others. Then m - i
    # clients are removed, so the columns are reversed below.
    additions = np.zeros((len(excess_counts), max_malicious + 1), dtype=excess_counts.dtype)
    np.cumsum(largest, axis=1, out=additions[:, 1:])
    return np.asarray((sums_of_remaining[:, None] + additions)[:, ::-1])


class ClientGroups(NamedTuple):
    """Clients, or groups of clients with equal counts and sizes.

    Attributes
    ----------
    counts : ndarray of shape (R, G)
        R counts of one client of each group, such as those below a bin and those above it.
    sizes : ndarray of shape (G,)
        What one client's counts add up to, in the same unit.
    n_clients : ndarray of shape (G,)
        How many clients there are in each group.
    """

    counts: IntArray
    sizes: IntArray
    n_clients: IntArray

    @staticmethod
    def from_clients(counts: NDArray[Any], sizes: NDArray[Any]) -> ClientGroups:
        """Return groups of equal clients, if they are at most half as many as the clients.

        Else, and where clients are few, every client is a group.

        Parameters
        ----------
        counts : ndarray of shape (R, K)
            R counts of each client, whole numbers of any integer type.
        sizes : ndarray of shape (K,)
            The clients' sizes, in the same unit.
        """
        # A key states a client's counts and size, as an index into an array of this shape would.
        columns = (*counts, sizes)
        shape = tuple(int(column.max()) + 1 for column in columns)
        can_have_keys = counts.min() >= 0 and prod(shape) < _MAX_INT64_RESULT
        if len(sizes) >= _MAX_CLIENTS_SORTING and can_have_keys:
            keys, n_equal = _count_equal_rows(columns, shape)
            if 2 * len(keys) <= len(sizes):
                *group_counts, group_sizes = np.unravel_index(keys, shape)
                return ClientGroups(np.stack(group_counts), group_sizes, n_equal)

        n_clients = np.ones(len(sizes), dtype=np.int64)
        return ClientGroups(counts.astype(np.int64), sizes.astype(np.int64), n_clients)

    def with_complements(self) -> ClientGroups:
        """Return the groups with R more rows of counts: what each row leaves of the sizes."""
        return self._replace(counts=np.concatenate([self.counts, self.sizes - self.counts]))


def _count_equal_rows(
    columns: tuple[NDArray[Any], ...], shape: tuple[int, ...]
) -> tuple[IntArray, IntArray]:
    """Return one key for each distinct row of the columns, and how often the row occurs.

    Ends before all rows are seen if more than half as many keys as rows are found.

    Parameters
    ----------
    columns : tuple of ndarray of shape (K,)
        Whole numbers, not negative.
    shape : tuple of int
        For each column a number larger than all in it; the product must fit into 64 bits.

    Returns
    -------
    tuple of ndarray of shape (G,)
        Rising keys of the rows seen, which `np.unravel_index` turns into rows; how often each
        occurs. Not all rows are seen if 2 G > K.
    """
    n_rows = len(columns[0])
    keys = np.zeros(0, dtype=np.int64)
    n_equal = np.zeros(0, dtype=np.int64)
    start = 0
    while start < n_rows and 2 * len(keys) <= n_rows:
        stop = start + max(_MAX_BLOCK_COUNTS, len(keys))
        block = tuple(column[start:stop].astype(np.int64) for column in columns)
        block_keys = np.ravel_multi_index(block, shape)
        # Keys so far weigh as much as they occurred.
        weights = np.concatenate([n_equal, np.ones(len(block_keys))])
        keys, key_indices = np.unique(np.concatenate([keys, block_keys]), return_inverse=True)
        n_equal = np.bincount(key_indices, weights).astype(np.int64)
        start = stop
    return keys, n_equal


class _RatioProblem(NamedTuple):
    """For each row of counts: the least ratio of two sums over the clients that are not removed.

    The ratio of a row is (C - sum over R of c_k) / (N - sum over R of n_k), R being the removed
    clients, C and N the totals.

    Attributes
    ----------
    counts : ndarray of shape (R, G)
        c_k, of one client of each group.
    sizes : ndarray of shape (G,)
        n_k, of one client of each group.
    n_clients : ndarray of shape (G,)
        How many clients there are in each group.
    total_counts, total_sizes : ndarray of shape (R,)
        C and N, what noise may change included; N is positive for every allowed removal.
    largest_sum : int
        The absolute value of no sum of counts or sizes is larger. Arrays are of Python integers
        where its product with a count or size overflows.
    """

    counts: NDArray[Any]
    sizes: NDArray[Any]
    n_clients: IntArray
    total_counts: NDArray[Any]
    total_sizes: NDArray[Any]
    largest_sum: int

    def falls(
        self,
        numerators: NDArray[Any],
        denominators: NDArray[Any],
        new_numerators: NDArray[Any],
        new_denominators: NDArray[Any],
    ) -> BoolArray:
        """Return whether new ratios are smaller, by products of whole numbers.

        Parameters
        ----------
        numerators, denominators, new_numerators, new_denominators : ndarray of shape (P,)
            Of P ratios, before and after; denominators are positive.
        """
        largest_product = self.largest_sum**2
        new_products = as_integers(new_numerators, largest_product) * denominators
        products = as_integers(numerators, largest_product) * new_denominators
        return np.asarray(new_products < products).astype(bool)


def min_coverage_over_removals(
    groups: ClientGroups,
    max_malicious_values: IntArray,
    lost_counts: IntArray | int = 0,
    added_sizes: IntArray | int = 0,
) -> tuple[FloatArray, FloatArray]:
    """Return the least ratio of counts to sizes over all removals of at most m clients, exactly.

    The ratio is (sum_S c_k - lost) / (sum_S n_k + added) over the clients S that remain. It is
    found by Dinkelbach's iteration (docs/theory.md, section 3, "Computation"): unless a ratio x is
    the least, removing the at most m clients with the largest positive c_k - x n_k gives a smaller
    one.

    Parameters
    ----------
    groups : ClientGroups
        R rows of counts c_k, and the sizes n_k, in the same unit.
    max_malicious_values : ndarray of shape (M,)
        Rising values of m, each less than the number of clients: the sizes of those that remain,
        with what is added, must be positive.
    lost_counts, added_sizes : int or ndarray of shape (R,)
        What noise may take from the sum of counts and add to the sum of sizes, in their unit;
        negative if it takes from the sizes.

    Returns
    -------
    tuple of ndarray of shape (R, M)
        Numerators and denominators of the least ratios, as floats of whole numbers.
    """
    # Largest values first, so that the types hold every product in the iteration.
    n_clients = groups.n_clients
    sums_of_counts = np.abs(groups.counts * n_clients).sum(axis=1)
    sum_of_sizes = (groups.sizes * n_clients).sum()
    largest_noise = max(_largest(lost_counts), _largest(added_sizes))
    largest_sum = 2 * max(_largest(sums_of_counts), int(sum_of_sizes)) + largest_noise
    largest_factor = max(_largest(groups.counts), _largest(groups.sizes))
    counts = as_integers(groups.counts, largest_sum * largest_factor)
    sizes = as_integers(groups.sizes, largest_sum * largest_factor)

    total_counts = (counts * n_clients).sum(axis=1) - lost_counts
    total_sizes = (sizes * n_clients).sum() + added_sizes
    problem = _RatioProblem(
        counts,
        sizes,
        n_clients,
        np.broadcast_to(total_counts, len(counts)),
        np.broadcast_to(total_sizes, len(counts)),
        largest_sum,
    )

    # The partition below takes clients one by one, so it needs groups of one client.
    has_equal_clients = bool((n_clients > 1).any())
    if len(n_clients) <= _MAX_CLIENTS_SORTING or has_equal_clients:
        numerators, denominators = _min_ratios_by_sorting(problem, max_malicious_values)
    else:
        numerators, denominators = _min_ratios_by_partition(problem, max_malicious_values)
    return numerators.astype(float), denominators.astype(float)


def _largest(values: NDArray[Any] | int) -> int:
    """Return the largest absolute value."""
    return int(np.max(np.abs(values)))


def _min_ratios_by_sorting(
    problem: _RatioProblem, max_malicious_values: IntArray
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the least ratios for few groups: all rows and values of m at once.

    Parameters
    ----------
    problem : _RatioProblem
        R rows of counts.
    max_malicious_values : ndarray of shape (M,)
        The values of m.

    Returns
    -------
    tuple of ndarray of shape (R, M)
        Numerators and denominators.
    """
    sizes = problem.sizes
    n_clients = problem.n_clients
    n_values = len(max_malicious_values)
    numerators = np.repeat(problem.total_counts[:, None], n_values, axis=1)
    denominators = np.repeat(problem.total_sizes[:, None], n_values, axis=1)

    # A pair of a row and a value of m leaves the iteration when its ratio does not fall any more.
    all_rows, all_columns = np.indices(numerators.shape)
    n_pairs_at_once = max(1, _MAX_BLOCK_COUNTS // len(n_clients))
    for start in range(0, numerators.size, n_pairs_at_once):
        rows = all_rows.ravel()[start : start + n_pairs_at_once]
        columns = all_columns.ravel()[start : start + n_pairs_at_once]
        while rows.size:
            numerator = numerators[rows, columns]
            denominator = denominators[rows, columns]
            row_counts = problem.counts[rows]

            # (P, G) of P pairs, for one client: sizes x - counts times the denominator, x being the
            # ratio. Negative where removing a client lowers the ratio; the lower, the more.
            changes = sizes * numerator[:, None]
            changes -= row_counts * denominator[:, None]
            order = np.argsort(changes, axis=1)
            is_lowering = np.take_along_axis(changes, order, axis=1) < 0

            # Of the sorted groups the first m clients that lower the ratio are removed.
            n_removable = n_clients[order] * is_lowering
            n_before = np.cumsum(n_removable, axis=1) - n_removable
            n_left = np.maximum(max_malicious_values[columns, None] - n_before, 0)
            n_removed = np.minimum(n_left, n_removable)

            removed_counts = n_removed * np.take_along_axis(row_counts, order, axis=1)
            removed_sizes = n_removed * sizes[order]
            new_numerator = problem.total_counts[rows] - removed_counts.sum(axis=1)
            new_denominator = problem.total_sizes[rows] - removed_sizes.sum(axis=1)
            falls = problem.falls(numerator, denominator, new_numerator, new_denominator)
            rows = rows[falls]
            columns = columns[falls]
            numerators[rows, columns] = new_numerator[falls]
            denominators[rows, columns] = new_denominator[falls]
    return numerators, denominators


def _min_ratios_by_partition(
    problem: _RatioProblem, max_malicious_values: IntArray
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the least ratios for many clients, all different: one at a time.

    A larger m never makes a ratio larger, so its iteration starts where that of the next smaller
    one ended.

    Parameters
    ----------
    problem : _RatioProblem
        R rows of counts; every group is one client.
    max_malicious_values : ndarray of shape (M,)
        The values of m, rising.

    Returns
    -------
    tuple of ndarray of shape (R, M)
        Numerators and denominators.
    """
    shape = len(problem.counts), len(max_malicious_values)
    numerators = np.empty(shape, dtype=problem.total_counts.dtype)
    denominators = np.empty(shape, dtype=problem.total_sizes.dtype)
    sizes = problem.sizes
    for row, counts in enumerate(problem.counts):
        # Python's integers, as products of two sums may need more than 64 bits.
        total_count = int(problem.total_counts[row])
        total_size = int(problem.total_sizes[row])
        numerator = total_count
        denominator = total_size
        for column, max_malicious in enumerate(max_malicious_values.tolist()):
            # Dinkelbach's iteration: see `min_coverage_over_removals`.
            while True:
                changes = sizes * numerator
                changes -= counts * denominator
                candidates = np.argpartition(changes, max(0, max_malicious - 1))[:max_malicious]
                removed = candidates[(changes[candidates] < 0).astype(bool)]
                new_numerator = total_count - int(counts[removed].sum())
                new_denominator = total_size - int(sizes[removed].sum())
                if new_numerator * denominator >= numerator * new_denominator:
                    break
                numerator = new_numerator
                denominator = new_denominator
            numerators[row, column] = numerator
            denominators[row, column] = denominator
    return numerators, denominators
