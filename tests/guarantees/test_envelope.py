"""The envelope against brute force over all removals."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from effort import cases

from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees.engine import EdgeEnvelope, envelope
from robfcp.guarantees.tails import bounds_of


def removals(n_clients: int, m: int):
    """Every set of clients that could be left when at most m are removed."""
    for number in range(m + 1):
        for removed in combinations(range(n_clients), number):
            yield [k for k in range(n_clients) if k not in removed]


def random_counts(rng: np.random.Generator, n_clients: int, edges: int, largest: int):
    sizes = rng.integers(1, largest, n_clients)
    below = np.sort(rng.integers(0, sizes[:, None] + 1, (n_clients, edges)), axis=1)
    return below, sizes


@pytest.mark.effort
def test_envelope_is_the_least_and_largest_share_over_all_removals():
    rng = np.random.default_rng(1)
    for _ in range(cases(250)):
        n_clients = int(rng.integers(2, 8))
        m = int(rng.integers(0, n_clients))
        below, sizes = random_counts(rng, n_clients, 3, int(rng.choice([3, 12, 400])))
        lower, upper = envelope(below, sizes, m)
        for edge in range(3):
            shares = [
                Fraction(int(below[kept, edge].sum()), int(sizes[kept].sum()))
                for kept in removals(n_clients, m)
            ]
            assert lower[edge] == float(min(shares))
            assert upper[edge] == float(max(shares))


def test_envelope_of_equal_sizes_drops_the_largest_and_smallest_shares():
    rng = np.random.default_rng(2)
    below = rng.integers(0, 51, 20)
    lower, upper = envelope(below, np.full(20, 50), 4)
    ordered = np.sort(below)
    assert lower == ordered[:16].sum() / 800
    assert upper == ordered[4:].sum() / 800


def test_all_edges_at_once_equal_one_edge_at_a_time():
    rng = np.random.default_rng(3)
    below, sizes = random_counts(rng, 40, 30, 500)
    lower, upper = envelope(below, sizes, 7)
    singles = [envelope(below[:, edge], sizes, 7) for edge in range(30)]
    assert lower.tolist() == [float(single[0]) for single in singles]
    assert upper.tolist() == [float(single[1]) for single in singles]


def test_envelope_widens_with_the_number_of_liars_and_contains_the_pooled_share():
    rng = np.random.default_rng(4)
    below, sizes = random_counts(rng, 30, 10, 500)
    pooled = below.sum(axis=0) / sizes.sum()
    before = envelope(below, sizes, 0)
    np.testing.assert_array_equal(before[0], pooled)
    for m in range(1, 30):
        lower, upper = envelope(below, sizes, m)
        assert (lower <= before[0]).all()
        assert (upper >= before[1]).all()
        before = lower, upper


def test_sizes_beyond_64_bit_products_stay_exact():
    sizes = np.array([2**40, 2**40 + 1, 2**39 + 5, 7])
    below = np.array([2**39, 2**39 + 2, 2**38, 3])
    lower, upper = envelope(below, sizes, 1)
    shares = [Fraction(int(below[kept].sum()), int(sizes[kept].sum())) for kept in removals(4, 1)]
    assert lower == float(min(shares))
    assert upper == float(max(shares))


def test_the_smallest_total_removes_the_largest_clients():
    sizes = np.array([5, 1, 9, 3])
    bounds = bounds_of(Federation.from_counts(sizes[:, None]))
    for m, left in enumerate([18, 9, 4, 1]):
        assert bounds.smallest_total(m, 0.0) == left


@pytest.mark.parametrize("m", [-1, 3, 1.5, True])
def test_a_budget_that_leaves_nobody_or_is_no_number_is_refused(m):
    with pytest.raises(RobfcpError, match="liars"):
        envelope(np.array([1, 2, 3]), np.array([4, 4, 4]), m)


def random_edge(rng):
    """Counts up to an edge and sizes, of few clients or of many alike, small or past 64 bits."""
    n_clients = int(rng.choice([1, 2, 7, 60, 700]))
    largest = int(rng.choice([1, 5, 60, 10**9, 10**12]))
    sizes = rng.integers(1, largest + 1, n_clients)
    if rng.random() < 0.3:
        sizes[:] = largest
    return (sizes * rng.random(n_clients).round(2)).astype(np.int64), sizes


@pytest.mark.parametrize("seed", range(60))
def test_one_edge_for_many_numbers_of_liars_is_the_envelope_of_each(seed):
    rng = np.random.default_rng(seed)
    below, sizes = random_edge(rng)
    budgets = sorted(set(rng.integers(0, len(sizes), 6).tolist()))
    together, alone = EdgeEnvelope(below, sizes), EdgeEnvelope(below, sizes)
    together.work_out(budgets)
    near_low, near_high = together.without_most()
    for m in reversed(budgets):
        lower, upper = envelope(below, sizes, m)
        assert together.ends(m) == alone.ends(m) == (lower, upper)
        assert near_low[m] >= lower - 1e-12
        assert near_high[m] <= upper + 1e-12
