"""One site's threshold from the others' reports, and the interval of its own scores."""

import numpy as np
import pytest
from plain_shift import (
    ATTACKS,
    by_class,
    class_cdfs,
    draw_sites,
    label_counts,
    lie,
    mix_edge,
)
from scipy.stats import binom

from robfcp.errors import RobfcpError
from robfcp.guarantees.label_shift import ClassCounts, class_counts
from robfcp.guarantees.site import own_interval, own_mixes, site_thresholds, stranger_threshold


def federation(seed, n_sites, n_classes, n, bins, liars=0, attack="bottom"):
    """The counts of a federation whose last sites lie."""
    rng = np.random.default_rng(seed)
    sizes = label_counts(rng, n_sites, n_classes, n)
    tables = draw_sites(rng, sizes, class_cdfs(n_classes, bins))
    return class_counts(by_class(lie(rng, tables, liars, attack)))


def others(counts, site):
    """The counts without one site."""
    rows = [k for k in range(len(counts.ids)) if k != site]
    return ClassCounts(
        counts.below[:, rows],
        counts.sizes[rows],
        counts.edges,
        tuple(counts.ids[k] for k in rows),
        counts.names,
    )


def next_mixes(sizes):
    """The mixes of n labels and one more, class by class."""
    n = int(sizes.sum())
    return [
        [(int(sizes[c]) + (c == y)) / (n + 1) for c in range(len(sizes))] for y in range(len(sizes))
    ]


def test_own_mixes_are_those_of_one_more_label():
    sizes = np.array([4, 0, 5])
    assert pytest.approx(np.array(next_mixes(sizes))) == own_mixes(sizes).means(np.eye(3)).T


def check_federations(number, seed):
    """Each site's edge against rule T on the others in plain loops, largest of its next mixes.

    sigma is paid twice: from the others to the common distribution, and from that to the site's.
    """
    rng = np.random.default_rng(seed)
    edges, pruned = set(), 0
    for trial in range(number):
        n_sites, n_classes = int(rng.integers(4, 10)), int(rng.integers(1, 4))
        m, liars = int(rng.integers(0, 3)), int(rng.integers(0, 4))
        n, alpha, sigma = int(rng.choice([40, 150, 400])), 0.3, 0.04 * (trial % 3 == 0)
        counts = federation([seed, trial], n_sites, n_classes, n, 8, liars, ATTACKS[trial % 4])
        delta = alpha / 20
        found = site_thresholds(counts, alpha, m, sigma)
        for site in range(n_sites):
            alone = [
                mix_edge(counts, [mix], alpha - delta - sigma, m, delta, sigma, without=site)
                for mix in next_mixes(counts.sizes[site])
            ]
            wanted = -1 if None in alone else max(alone)
            assert found[site] == wanted
            stranger = stranger_threshold(others(counts, site), counts.sizes[site], alpha, m, sigma)
            assert (-1 if stranger is None else stranger) == wanted
            edges.add(wanted)
        pruned += len(set(found.tolist())) > 1
    return edges, pruned


def test_site_edges_are_those_of_the_rule_on_the_others():
    edges, apart = check_federations(12, 1)
    assert len(edges) > 2
    assert -1 in edges
    assert apart > 2


@pytest.mark.slow
def test_site_edges_are_those_of_the_rule_on_the_others_in_many_federations():
    edges, _ = check_federations(150, 2)
    assert len(edges) > 4


def test_what_a_site_reports_of_its_scores_does_not_move_its_edge():
    rng = np.random.default_rng(3)
    sizes = label_counts(rng, 10, 3, 200)
    tables = draw_sites(rng, sizes, class_cdfs(3, 40))
    honest = site_thresholds(class_counts(by_class(tables)), 0.2, 2)
    lied = site_thresholds(class_counts(by_class(lie(rng, tables, 1, "bottom"))), 0.2, 2)
    assert honest[-1] == lied[-1] >= 0


def test_sites_not_asked_for_get_none_and_the_rest_are_unmoved():
    counts = federation(4, 8, 2, 300, 20)
    every = site_thresholds(counts, 0.3, 1)
    assert (every >= 0).all()
    some = site_thresholds(counts, 0.3, 1, sites=[2, 5])
    assert some[[2, 5]].tolist() == every[[2, 5]].tolist()
    assert (np.delete(some, [2, 5]) == -1).all()


def test_one_site_alone_or_no_room_gets_none():
    assert site_thresholds(federation(5, 1, 2, 300, 20), 0.3, 0).tolist() == [-1]
    assert (site_thresholds(federation(5, 6, 2, 300, 20), 0.1, 0, 0.1) == -1).all()
    assert stranger_threshold(federation(5, 6, 2, 300, 20), np.array([3, 4]), 0.1, 0, 0.1) is None


def test_as_many_liars_as_others_are_refused():
    with pytest.raises(RobfcpError, match="nothing can be guaranteed against 3 of 3"):
        site_thresholds(federation(6, 4, 2, 50, 10), 0.2, 3)


# The site's own interval


def test_own_intervals_are_those_of_binomials():
    rng = np.random.default_rng(7)
    for n in (1, 2, 5, 20, 28, 36, 37, 50, 200, 1000):
        scores = rng.random(n)
        ordered = sorted(scores.tolist())
        for alpha in (0.05, 0.1, 0.3):
            found = own_interval(scores, alpha)
            a = int((1 - alpha) * (n + 1) - 1.645 * (n * alpha * (1 - alpha)) ** 0.5)
            a = max(1, a)
            b = [b for b in range(1, n + 1) if binom.sf(b - 1, n, 1 - alpha) <= 0.025]
            assert found.low == ordered[a - 1]
            assert found.high == (ordered[b[0] - 1] if b else np.inf)
            assert found.floor == a / (n + 1)
            assert found.n == n
            assert found.low <= found.high


def test_an_own_interval_needs_a_sample():
    with pytest.raises(RobfcpError, match="samples: there are none"):
        own_interval(np.array([]), 0.1)


# Simulations


@pytest.mark.slow
def test_a_test_point_of_one_site_is_missed_with_at_most_alpha():
    """P(miss) over everything, of a site whose mix is unlike the others' and four liars.

    They know the test label and pick what misses it most: the least of all that they can reach.
    """
    runs, alpha, bins = 300, 0.2, 100
    cdfs = np.column_stack([class_cdfs(3, bins), np.ones(3)])  # edge -1 is infinite
    missed, knowing, infinite = [], [], 0
    for run in range(runs):
        rng = np.random.default_rng([8, run])
        sizes = label_counts(rng, 16, 3, 150)
        mix = rng.dirichlet(np.ones(3))
        sizes[0] = rng.multinomial(30, mix)
        tables = draw_sites(rng, sizes, cdfs[:, :-1])
        edges = [
            int(site_thresholds(class_counts(by_class(told)), alpha, 4, sites=[0])[0])
            for told in (lie(rng, tables, 4, attack) for attack in ATTACKS)
        ]
        infinite += -1 in edges
        missed.append([1 - mix @ cdfs[:, edge] for edge in edges])
        knowing.append(mix @ np.max([1 - cdfs[:, edge] for edge in edges], axis=0))
    assert np.mean(missed, axis=0).max() - 1e-9 <= np.mean(knowing) <= alpha
    assert infinite < 0.1 * runs
    assert np.max(missed) > 0.05  # not for want of a threshold


@pytest.mark.slow
def test_liars_that_were_not_allowed_for_break_the_claim():
    runs, alpha = 100, 0.2
    cdfs = class_cdfs(3, 100)
    missed = {0: [], 6: []}
    for run in range(runs):
        rng = np.random.default_rng([10, run])
        sizes = label_counts(rng, 16, 3, 150)
        counts = class_counts(by_class(lie(rng, draw_sites(rng, sizes, cdfs), 6, "bottom")))
        for told, found in missed.items():
            edge = int(site_thresholds(counts, alpha, told, sites=[0])[0])
            found.append(0.0 if edge < 0 else 1 - sizes[0] @ cdfs[:, edge] / 150)
    assert np.mean(missed[0]) > alpha + 0.02
    assert np.mean(missed[6]) <= alpha


@pytest.mark.slow
def test_own_ends_cover_what_they_say():
    runs, n, alpha = 4000, 60, 0.1
    rng = np.random.default_rng(9)
    found = [own_interval(rng.random(n), alpha) for _ in range(runs)]
    low = np.array([one.low for one in found])
    assert abs(low.mean() - found[0].floor) < 4 * low.std() / np.sqrt(runs)
    assert np.mean([one.high < 1 - alpha for one in found]) <= 0.025 + 3 * 0.0025
