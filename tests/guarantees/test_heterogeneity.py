"""Pruning: which clients cannot be benign, against brute force and simulation."""

import numpy as np
import pytest
from scipy.stats import binomtest

from robfcp.federation import Federation
from robfcp.guarantees import _heterogeneity


def attacked(rng, liars, n=500, n_clients=40, bins=30, place=-1):
    """Homogeneous clients, the last `liars` of which put everything into one bin."""
    counts = rng.multinomial(n, np.full(bins, 1 / bins), n_clients)
    counts[n_clients - liars :] = 0
    counts[n_clients - liars :, place] = n
    return Federation.from_counts(counts)


def test_intervals_are_clopper_pearsons_and_share_beta_over_sites_and_inner_edges():
    sizes = np.array([6, 40, 40])
    below = np.array([[2, 5], [13, 40], [0, 13]])
    counts = np.column_stack([below[:, 0], np.diff(below, axis=1)[:, 0], sizes - below[:, 1]])
    known = _heterogeneity.ClientIntervals(Federation.from_counts(counts), 0.06)
    for low, high in (
        _heterogeneity.client_cdf_intervals(below, sizes, 0.01),
        (known.low.T, known.high.T),
    ):
        for k in range(3):
            for e in range(2):
                test = binomtest(int(below[k, e]), int(sizes[k]))
                interval = test.proportion_ci(0.99, method="exact")
                assert low[k, e] == pytest.approx(interval.low, abs=1e-9)
                assert high[k, e] == pytest.approx(interval.high, abs=1e-9)


def test_a_client_agrees_when_its_interval_holds_a_point_shared_by_the_quorum():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(500):
        n_clients = int(rng.integers(1, 8))
        quorum = int(rng.integers(1, n_clients + 1))
        ends = np.sort(rng.integers(0, 12, (2, 3, n_clients)), axis=0).astype(float)
        found = _heterogeneity.compatible_clients(ends[0], ends[1], quorum)
        points = np.arange(0, 12, 0.5)
        for e in range(3):
            inside = (ends[0, e][:, None] <= points) & (points <= ends[1, e][:, None])
            wanted = (inside & (inside.sum(axis=0) >= quorum)).any(axis=1)
            assert found[e].tolist() == wanted.tolist()
            seen.update(wanted.tolist())
    assert seen == {True, False}


@pytest.mark.parametrize(("bins", "place"), [(30, -1), (1000, 0)])
def test_gross_liars_are_dropped_and_the_budget_falls_by_their_number(bins, place):
    """Also where a thousand bins are thinned to some of them."""
    federation = attacked(np.random.default_rng(1), 12, 800, bins=bins, place=place)
    kept, m, dropped, refuted = _heterogeneity.prune_clients(federation, 15, 0.0, 0.05)
    assert kept.tolist() == [True] * 28 + [False] * 12
    assert (m, refuted, set(dropped)) == (3, False, set(federation.clients[28:]))


def test_clients_within_the_stated_heterogeneity_stay():
    rng = np.random.default_rng(3)
    shift = np.linspace(-0.1, 0.1, 40)[:, None] * np.where(np.arange(10) < 5, 1, -1) / 5
    federation = Federation.from_counts(np.stack([rng.multinomial(5000, 0.1 + s) for s in shift]))
    assert _heterogeneity.prune_clients(federation, 10, 0.1, 0.05).kept_mask.all()


def test_reports_that_contradict_the_assumptions_prune_nobody_and_say_so():
    kept, m, dropped, refuted = _heterogeneity.prune_clients(
        attacked(np.random.default_rng(4), 20), 10, 0.0, 0.05
    )
    assert (kept.all(), m, dropped, refuted) == (True, 10, {}, True)


def test_diagnostic_sees_no_heterogeneity_where_there_is_none_and_most_of_it_where_there_is():
    rng = np.random.default_rng(5)
    same = _heterogeneity.estimate_heterogeneity(attacked(rng, 10), 10)
    assert (same.lower_bound, same.recommended < 0.03) == (0, True)
    halves = np.where(np.arange(40)[:, None] < 20, 0.2, -0.2) * np.where(np.arange(10) < 5, 1, -1)
    counts = np.stack([rng.multinomial(5000, 0.1 + row / 5) for row in halves])
    apart = _heterogeneity.estimate_heterogeneity(Federation.from_counts(counts), 5)
    assert 0.1 < apart.lower_bound <= 0.2
    assert 0.15 < apart.recommended <= 0.42


@pytest.mark.parametrize("apart", [0, 1, 3])
def test_clients_that_are_not_as_alike_as_stated_are_counted_from_below(apart):
    here = attacked(np.random.default_rng(6), apart, n=2000, n_clients=12)
    assert _heterogeneity.ClientIntervals(here, 0.05).n_incompatible(0.02) == apart
    assert _heterogeneity.ClientIntervals(here, 0.05).n_incompatible(1.0) == 0
