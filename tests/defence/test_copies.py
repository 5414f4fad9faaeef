"""Copies are reported as such; independent samples never are."""

import numpy as np
import pytest

from robfcp import Federation, Grid
from robfcp.defence import find_copies
from robfcp.defence.copies import lower_tail
from robfcp.lab.attacks import Mimic


def independent(n_clients, n, seed, skew=None):
    rng = np.random.default_rng(seed)
    grid = Grid.default()
    counts = []
    for k in range(n_clients):
        scores = rng.beta(0.3 if skew is None else 0.2 + skew * k, 4, n)
        counts.append(np.bincount(grid.index(scores), minlength=grid.n_bins))
    return Federation.from_counts(np.array(counts), grid)


@pytest.mark.parametrize("n", [20, 50, 500, 5000])
def test_independent_samples_are_never_called_copies(n):
    for seed in range(5):
        assert find_copies(independent(20, n, seed)) == ()
        assert find_copies(independent(20, n, seed, skew=0.05)) == ()


@pytest.mark.parametrize("copy", ["exact", "jittered"])
@pytest.mark.parametrize("n", [50, 500])
def test_copies_are_grouped_with_their_original(copy, n):
    attacked = Mimic(copy)(independent(20, n, 1), [2, 5, 7], 3)
    (group,) = find_copies(attacked)
    assert len(group.clients) == 4
    assert {"client-02", "client-05", "client-07"} < set(group.clients)
    assert group.exact == (copy == "exact")
    assert group.p_value <= 1e-3


def test_resampled_mimics_are_not_copies():
    assert find_copies(Mimic("resampled")(independent(20, 200, 1), [2, 5, 7], 3)) == ()


def test_equal_reports_that_chance_explains_are_no_copies():
    one_bin = np.zeros((4, 50), dtype=int)
    one_bin[:, 0] = 80
    assert find_copies(Federation.from_counts(one_bin)) == ()
    assert find_copies(Federation.from_counts([[1, 0], [1, 0], [0, 1]])) == ()


def test_two_groups_of_copies_are_told_apart():
    federation = independent(12, 200, 4)
    counts = federation.counts.copy()
    counts[[3, 8]] = counts[0]
    counts[[5, 6]] = counts[11]
    groups = find_copies(Federation.from_counts(counts, federation.grid))
    assert [group.clients for group in groups] == [
        ("client-00", "client-03", "client-08"),
        ("client-05", "client-06", "client-11"),
    ]


def test_the_chernoff_bound_is_above_the_exact_probability():
    first, second = np.array([2, 1, 3, 0]), np.array([2, 2, 2, 1])
    total = first + second
    share = first.sum() / total.sum()

    def terms(a):
        return ((a - share * total) ** 2 / (share * (1 - share) * total)).sum()

    rng = np.random.default_rng(0)
    draws = rng.binomial(total, share, size=(200_000, 4))
    exact = np.mean([terms(first) + 1e-12 >= terms(a) for a in draws[:20_000]])
    assert exact <= lower_tail(first, second) + 0.01
    assert lower_tail(first, second) <= 1
