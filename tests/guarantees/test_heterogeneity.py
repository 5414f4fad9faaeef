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


def plainly_pruned(low, high, max_malicious):
    """Who stays where, at every bin, K - m of the clients share a point with each of them.

    None where that many share no point at some bin. low, high: (E, K) the widened intervals.
    """
    n_bins, n_clients = low.shape
    staying = list(range(n_clients))
    while True:
        n_agreeing_bins = dict.fromkeys(staying, 0)
        for e in range(n_bins):
            agreeing = set()
            for point in low[e, staying]:  # where most intervals overlap, one of them begins
                holders = [k for k in staying if low[e, k] <= point <= high[e, k]]
                if len(holders) >= n_clients - max_malicious:
                    agreeing.update(holders)
            if not agreeing:
                return None
            for k in agreeing:
                n_agreeing_bins[k] += 1
        agreeing_everywhere = [k for k in staying if n_agreeing_bins[k] == n_bins]
        if agreeing_everywhere == staying:
            return staying
        staying = agreeing_everywhere


def test_who_shares_no_point_with_all_but_m_clients_is_dropped():
    rng = np.random.default_rng(6)
    seen = set()
    for _ in range(150):
        n_clients = int(rng.integers(2, 9))
        max_malicious = int(rng.integers(0, n_clients))
        shares = rng.dirichlet([8, 8, 8], n_clients)
        federation = Federation.from_counts(rng.multinomial(300, shares))
        intervals = _heterogeneity.ClientIntervals(federation, 0.05)
        staying = plainly_pruned(intervals.low - 0.01, intervals.high + 0.01, max_malicious)
        found = _heterogeneity.prune_clients(federation, max_malicious, 0.01, 0.05)
        assert found.is_contradicted == (staying is None)
        if staying is None:
            seen.add("contradicted")
            staying = list(range(n_clients))
        else:
            n_dropped = n_clients - len(staying)
            assert found.max_malicious_left == max_malicious - n_dropped
            seen.add("dropped" if n_dropped else "all kept")
        assert np.flatnonzero(found.kept_mask).tolist() == staying
    assert seen == {"contradicted", "dropped", "all kept"}


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
