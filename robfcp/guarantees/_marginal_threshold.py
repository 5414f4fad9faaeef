"""Marginal coverage: the threshold that covers on average, whatever the malicious clients do."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import BoolArray, IndexArray, IntArray
from robfcp.federation import Federation
from robfcp.guarantees._checks import check_max_malicious
from robfcp.guarantees._count_bounds import CountBounds, count_bounds
from robfcp.guarantees._sums import excess_counts
from robfcp.guarantees._tail_bounds import marginal_tail_test
from robfcp.guarantees._worst_case import (
    TailTest,
    accepted_bins,
    first_lastingly_accepted,
    noise_allowance,
)


def marginal_threshold_bin(
    federation: Federation,
    level: Fraction,
    max_malicious: int | None = None,
    max_malicious_samples: int | None = None,
) -> int | None:
    """Return the first bin that covers at `level` on average; None for an infinite threshold.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    level : Fraction
        The target coverage.
    max_malicious : int, optional
        The largest number of malicious clients.
    max_malicious_samples : int, optional
        The largest number of samples that malicious clients hold together; beside the number of
        clients, or in place of it. At least one of the two is given.
    """
    bounds = count_bounds(federation)
    return marginal_bin(bounds, level, max_malicious, max_malicious_samples)


def marginal_bin(
    bounds: CountBounds,
    level: Fraction,
    max_malicious: int | None = None,
    max_malicious_samples: int | None = None,
) -> int | None:
    """Return the first bin that covers at `level` on average; None for an infinite threshold.

    The first t at which the sum over S of c_k - level n_k is at least 1 for every S that leaves out
    at most m clients: it is the largest of FCP's thresholds over all sets of clients that could be
    the benign ones (docs/theory.md, section 4, formulas (2) and (3)). Noise is allowed for, with a
    probability that is paid for by a higher level.

    Parameters
    ----------
    bounds : CountBounds
        The counts.
    level : Fraction
        The target coverage.
    max_malicious : int, optional
        m.
    max_malicious_samples : int, optional
        W: the largest number of samples that malicious clients hold together. With both bounds a
        bin is accepted if either of them suffices. With neither no bin is.
    """
    test, noise_delta = marginal_test(bounds, level)
    if max_malicious is not None:
        max_malicious = check_max_malicious(max_malicious, bounds.federation.n_clients)
    if max_malicious_samples is not None:
        bounds.require_sizes("max_malicious_samples")

    def accepted(bins: IndexArray) -> BoolArray:
        is_accepted = np.zeros(len(bins), dtype=bool)
        if max_malicious is not None:
            is_accepted = accepted_bins(bounds, bins, test, max_malicious, noise_delta)
        if max_malicious_samples is not None and not is_accepted.all():
            is_accepted = is_accepted | _bins_that_survive_samples(
                bounds, bins, test, max_malicious_samples, noise_delta
            )
        return is_accepted

    return first_lastingly_accepted(bounds, accepted)


def marginal_test(bounds: CountBounds, level: Fraction) -> tuple[TailTest, float]:
    """Return what a marginal threshold requires, and the probability with which noise may fool it.

    The test is for a level that is higher by that probability, so that coverage on average is still
    at least `level`.

    Parameters
    ----------
    bounds : CountBounds
        The counts.
    level : Fraction
        The target coverage.
    """
    noise_delta = bounds.noise_delta_of_level(level)
    test = marginal_tail_test(level + noise_delta, len(bounds.sizes), bounds.counts_per_sample)
    return test, float(noise_delta)


def _bins_that_survive_samples(
    bounds: CountBounds,
    bins: IndexArray,
    test: TailTest,
    max_malicious_samples: int,
    noise_delta: float,
) -> BoolArray:
    """Return (E,) at which bins a test is passed, if malicious clients hold few samples.

    Parameters
    ----------
    bounds : CountBounds
        The counts; sample sizes must be known.
    bins : ndarray of shape (E,)
        The bins.
    test : TailTest
        What is required, one number for all S, as a marginal test has.
    max_malicious_samples : int
        W, in samples.
    noise_delta : float
        The probability with which noise passes the test at a bin that would fail it.
    """
    # Excess, allowance and required sum are in units times q, sizes and W in samples.
    excess = excess_counts(bounds.lower(bins), bounds.sizes_in_units, test.p, test.q)
    allowance = noise_allowance(bounds, bins, test, noise_delta)
    required = (bounds.units_per_count * test.min_excess + allowance).tolist()
    survives = [
        survives_malicious_samples(row, bounds.sizes, max_malicious_samples, required_excess)
        for row, required_excess in zip(excess, required, strict=True)
    ]
    return np.array(survives, dtype=bool)


def survives_malicious_samples(
    excess_counts: NDArray[Any],
    sizes: IntArray,
    max_malicious_samples: int,
    required_excess: int = 0,
) -> bool:
    """Return whether the sum over S is reached by every S whose complement has at most W samples.

    The largest sum of g_k over removals R with at most W samples is a knapsack problem. For any
    lambda >= 0 it is at most lambda W + sum over k of max(0, g_k - lambda n_k), and lambda =
    g_j / n_j of the client at which the greedy filling breaks makes that the fractional optimum.
    Sound, not exact (docs/theory.md, section 4, "Size budget").

    Parameters
    ----------
    excess_counts : ndarray of shape (K,)
        g_k, whole numbers in any unit.
    sizes : ndarray of shape (K,)
        n_k, in samples; positive.
    max_malicious_samples : int
        W, in samples.
    required_excess : int, default=0
        What the sum must reach, in the unit of g_k.
    """
    if max_malicious_samples >= int(np.sum(sizes)):
        return False
    # By how much a removal may lower the sum over all clients.
    spare = int(excess_counts.sum()) - required_excess

    is_removable = (excess_counts > 0) & (np.asarray(sizes) <= max_malicious_samples)
    excess = excess_counts[is_removable]
    removable_sizes = np.asarray(sizes)[is_removable]
    order = np.argsort(-(excess / removable_sizes).astype(float), kind="stable")
    n_filled = np.cumsum(removable_sizes[order])
    all_fit = not n_filled.size or n_filled[-1] <= max_malicious_samples
    if all_fit:
        return spare - int(excess.sum()) >= 0

    # The bound at lambda = g_j / n_j, multiplied by n_j, so that everything is a whole number.
    # Python's integers, as products may need more than 64 bits.
    breaking = order[int(np.searchsorted(n_filled, max_malicious_samples, side="right"))]
    breaking_excess = int(excess[breaking])
    breaking_size = int(removable_sizes[breaking])
    beyond = excess.astype(object) * breaking_size - breaking_excess * removable_sizes.astype(
        object
    )
    largest_removal = breaking_excess * max_malicious_samples + int(np.maximum(beyond, 0).sum())
    return spare * breaking_size - largest_removal >= 0


def breakdown_point_of_any_rule(sizes: IntArray, level: Fraction) -> int | None:
    """Return the least m at which no rule that guarantees `level` against m can avoid full sets.

    m clients report all their samples at the top. Either they are malicious, or they are benign and
    m others mimic the remaining clients: the reports are the same (docs/theory.md, section 5,
    theorem D). With sizes n_k, largest first, it is the least m <= K / 2 with sum over k <= m of
    n_k > (1 - level) (N - sum over m < k <= 2m of n_k).

    Parameters
    ----------
    sizes : ndarray of shape (K,)
        n_k, in samples, in any order.
    level : Fraction
        The target coverage.

    Returns
    -------
    int or None
        None if there is none up to K / 2.
    """
    falling_sizes = np.sort(np.asarray(sizes, dtype=np.int64))[::-1]
    # Entry m: the samples of the m largest clients.
    n_samples_of_largest = [0, *np.cumsum(falling_sizes).tolist()]
    n_samples = n_samples_of_largest[-1]
    for m in range(1, len(sizes) // 2 + 1):
        n_malicious_samples = n_samples_of_largest[m]
        n_mimicked_samples = n_samples_of_largest[2 * m] - n_samples_of_largest[m]
        if n_malicious_samples > (1 - level) * (n_samples - n_mimicked_samples):
            return m
    return None
