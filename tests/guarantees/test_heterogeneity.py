"""Pruning: which clients cannot be benign, against brute force and simulation."""

import numpy as np
import pytest
from scipy.stats import binomtest

from robfcp.federation import Federation
from robfcp.guarantees import _heterogeneity


def attacked(rng, n_malicious, n_samples=500, n_clients=40, bins=30, forged_bin=-1):
    """Return homogeneous clients, the last of which are malicious and report one bin."""
    counts = rng.multinomial(n_samples, np.full(bins, 1 / bins), n_clients)
    counts[n_clients - n_malicious :] = 0
    counts[n_clients - n_malicious :, forged_bin] = n_samples
    return Federation.from_counts(counts)


def test_intervals_are_clopper_pearsons_and_share_beta_over_clients_and_inner_edges():
    sizes = np.array([6, 40, 40])
    cumulative = np.array([[2, 5], [13, 40], [0, 13]])
    counts = np.column_stack(
        [cumulative[:, 0], np.diff(cumulative, axis=1)[:, 0], sizes - cumulative[:, 1]]
    )
    of_federation = _heterogeneity.ClientIntervals(Federation.from_counts(counts), 0.06)
    for low, high in (
        _heterogeneity.client_cdf_intervals(cumulative, sizes, 0.01),
        (of_federation.low.T, of_federation.high.T),
    ):
        for k in range(3):
            for e in range(2):
                test = binomtest(int(cumulative[k, e]), int(sizes[k]))
                interval = test.proportion_ci(0.99, method="exact")
                assert low[k, e] == pytest.approx(interval.low, abs=1e-9)
                assert high[k, e] == pytest.approx(interval.high, abs=1e-9)


def test_a_client_is_compatible_when_its_interval_contains_a_point_of_the_quorum():
    rng = np.random.default_rng(0)
    outcomes = set()
    for _ in range(500):
        n_clients = int(rng.integers(1, 8))
        quorum = int(rng.integers(1, n_clients + 1))
        bounds = np.sort(rng.integers(0, 12, (2, 3, n_clients)), axis=0).astype(float)
        is_compatible = _heterogeneity.compatible_clients(bounds[0], bounds[1], quorum)
        points = np.arange(0, 12, 0.5)
        for e in range(3):
            is_inside = (bounds[0, e][:, None] <= points) & (points <= bounds[1, e][:, None])
            expected = (is_inside & (is_inside.sum(axis=0) >= quorum)).any(axis=1)
            assert is_compatible[e].tolist() == expected.tolist()
            outcomes.update(expected.tolist())
    assert outcomes == {True, False}


@pytest.mark.parametrize(("bins", "forged_bin"), [(30, -1), (1000, 0)])
def test_obviously_malicious_clients_are_pruned_and_max_malicious_decreases(bins, forged_bin):
    """Also where only some of a thousand bins are compared."""
    federation = attacked(np.random.default_rng(1), 12, 800, bins=bins, forged_bin=forged_bin)
    kept_mask, max_malicious_left, pruned, is_contradicted = _heterogeneity.prune_clients(
        federation, 15, 0.0, 0.05
    )
    assert kept_mask.tolist() == [True] * 28 + [False] * 12
    assert max_malicious_left == 3
    assert not is_contradicted
    assert set(pruned) == set(federation.clients[28:])


def plain_pruning(low, high, max_malicious):
    """Return the clients that, at every bin, share a point with K - m of the clients.

    None where K - m clients share no point at some bin. low, high: (E, K) the widened intervals.
    """
    n_bins, n_clients = low.shape
    remaining = list(range(n_clients))
    while True:
        n_compatible_bins = dict.fromkeys(remaining, 0)
        for e in range(n_bins):
            compatible = set()
            for point in low[e, remaining]:  # where most intervals overlap, one of them begins
                holders = [k for k in remaining if low[e, k] <= point <= high[e, k]]
                if len(holders) >= n_clients - max_malicious:
                    compatible.update(holders)
            if not compatible:
                return None
            for k in compatible:
                n_compatible_bins[k] += 1
        compatible_everywhere = [k for k in remaining if n_compatible_bins[k] == n_bins]
        if compatible_everywhere == remaining:
            return remaining
        remaining = compatible_everywhere


def test_clients_that_share_no_point_with_all_but_m_clients_are_pruned():
    rng = np.random.default_rng(6)
    outcomes = set()
    for _ in range(150):
        n_clients = int(rng.integers(2, 9))
        max_malicious = int(rng.integers(0, n_clients))
        fractions = rng.dirichlet([8, 8, 8], n_clients)
        federation = Federation.from_counts(rng.multinomial(300, fractions))
        intervals = _heterogeneity.ClientIntervals(federation, 0.05)
        remaining = plain_pruning(intervals.low - 0.01, intervals.high + 0.01, max_malicious)
        pruning = _heterogeneity.prune_clients(federation, max_malicious, 0.01, 0.05)
        assert pruning.is_contradicted == (remaining is None)
        if remaining is None:
            outcomes.add("contradicted")
            remaining = list(range(n_clients))
        else:
            n_pruned = n_clients - len(remaining)
            assert pruning.max_malicious_left == max_malicious - n_pruned
            outcomes.add("dropped" if n_pruned else "all kept")
        assert np.flatnonzero(pruning.kept_mask).tolist() == remaining
    assert outcomes == {"contradicted", "dropped", "all kept"}


def test_clients_within_the_given_heterogeneity_remain():
    rng = np.random.default_rng(3)
    shift = np.linspace(-0.1, 0.1, 40)[:, None] * np.where(np.arange(10) < 5, 1, -1) / 5
    federation = Federation.from_counts(np.stack([rng.multinomial(5000, 0.1 + s) for s in shift]))
    assert _heterogeneity.prune_clients(federation, 10, 0.1, 0.05).kept_mask.all()


def test_reports_that_contradict_the_assumptions_prune_no_client():
    kept_mask, max_malicious_left, pruned, is_contradicted = _heterogeneity.prune_clients(
        attacked(np.random.default_rng(4), 20), 10, 0.0, 0.05
    )
    assert (kept_mask.all(), max_malicious_left, pruned, is_contradicted) == (True, 10, {}, True)


def test_estimated_heterogeneity_is_0_where_there_is_none_and_close_to_it_elsewhere():
    rng = np.random.default_rng(5)
    homogeneous = _heterogeneity.estimate_heterogeneity(attacked(rng, 10), 10)
    assert (homogeneous.lower_bound, homogeneous.recommended < 0.03) == (0, True)
    halves = np.where(np.arange(40)[:, None] < 20, 0.2, -0.2) * np.where(np.arange(10) < 5, 1, -1)
    counts = np.stack([rng.multinomial(5000, 0.1 + row / 5) for row in halves])
    heterogeneous = _heterogeneity.estimate_heterogeneity(Federation.from_counts(counts), 5)
    assert 0.1 < heterogeneous.lower_bound <= 0.2
    assert 0.15 < heterogeneous.recommended <= 0.42


@pytest.mark.parametrize("n_different", [0, 1, 3])
def test_n_incompatible_counts_the_clients_beyond_the_given_heterogeneity(n_different):
    federation = attacked(np.random.default_rng(6), n_different, n_samples=2000, n_clients=12)
    assert _heterogeneity.ClientIntervals(federation, 0.05).n_incompatible(0.02) == n_different
    assert _heterogeneity.ClientIntervals(federation, 0.05).n_incompatible(1.0) == 0
