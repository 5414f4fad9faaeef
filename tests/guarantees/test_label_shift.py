"""Pruning by class and rule PC: plain loops, honest sites stay, and liars gain nothing."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from plain_shift import (
    ATTACKS,
    by_class,
    class_cdfs,
    draw_sites,
    label_counts,
    lie,
    pair_p,
    pruned,
    random_table,
    site_reports,
    usual_exponent,
)
from scipy.stats import binom, chi2_contingency, hypergeom

from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import LabelShift
from robfcp.guarantees import label_shift as rules
from robfcp.guarantees.label_shift import (
    Pairs,
    class_counts,
    fixed_edges,
    least_exponent,
    least_shift,
    mixes_differ,
    pruned_pac,
    witnesses,
)
from robfcp.guarantees.tails import pac_threshold
from robfcp.report import Report

LEVEL = Fraction(9, 10)


def pair_p_values(below, sizes, sigma=0.0):
    """(K, K) p-values for "both are honest" at one edge."""
    found = np.minimum(1, 2 * np.exp(-Pairs(sizes).exponents(below, sigma)))
    np.fill_diagonal(found, 1)
    return found


def check_tables(number, seed):
    """Pairs and pruning against plain loops; how often nobody, somebody and too many were odd."""
    rng = np.random.default_rng(seed)
    seen = {"all": 0, "some": 0, "none": 0}
    for trial in range(number):
        below, sizes, m = random_table(rng)
        sigma, beta = (0.0, 0.05)[trial % 2], (0.01, 0.2)[trial // 2 % 2]
        if trial % 10 == 0:  # more liars than stated
            below[: m + 2] = 0
        found = pair_p_values(below, sizes, sigma)
        for k in range(len(sizes)):
            for other in range(len(sizes)):
                wanted = 1.0 if k == other else pair_p(below, sizes, k, other, sigma)
                assert found[k, other] == pytest.approx(wanted, rel=1e-6, abs=1e-12)
        mask = Pairs(sizes).kept(below, m, beta, sigma)
        kept = pruned(below, sizes, m, beta, sigma)
        assert (mask is None) == (kept is None)
        if kept is None:
            seen["none"] += 1
        else:
            assert np.flatnonzero(mask).tolist() == kept
            seen["all" if mask.all() else "some"] += 1
    return seen


def test_pairs_and_pruning_are_those_of_plain_loops():
    assert min(check_tables(60, 0).values()) > 1


@pytest.mark.slow
def test_pairs_and_pruning_are_those_of_plain_loops_on_many_tables():
    assert min(check_tables(1000, 1).values()) > 30


def test_a_pair_value_is_never_below_the_exact_chance():
    """Given the pooled counts a site's total is a sum of hypergeometrics: the tail by convolution.

    Of values as extreme as x or more (by the p-value itself) the chance is at most p.
    """
    rng = np.random.default_rng(2)
    for _ in range(40):
        sizes = rng.integers(1, 25, (2, int(rng.integers(1, 4))))
        pooled = rng.binomial(sizes.sum(axis=0), rng.uniform(0.2, 1))
        chances = np.ones(1)
        for c in range(sizes.shape[1]):
            one = hypergeom(int(sizes[:, c].sum()), int(pooled[c]), int(sizes[0, c]))
            chances = np.convolve(chances, one.pmf(np.arange(sizes[0, c] + 1)))
        least = np.maximum(0, pooled - sizes[1])
        most = np.minimum(pooled, sizes[0])
        p = np.full(len(chances), 2.0)
        here = least.copy()
        while True:  # one way to reach each total
            table = np.stack([here, pooled - here]).astype(float)
            p[here.sum()] = pair_p_values(table, sizes)[0, 1]
            open_ = np.flatnonzero(here < most)
            if not open_.size:
                break
            here[open_[0]] += 1
        for value in p[p <= 1]:
            assert chances[p <= value].sum() <= value + 1e-9


def test_a_pair_value_is_never_weaker_than_hoeffdings_and_bennetts():
    rng = np.random.default_rng(19)
    gains = []
    for _ in range(60):
        below, sizes, _ = random_table(rng)
        found = Pairs(sizes).exponents(below)
        for k in range(len(sizes)):
            for other in set(range(len(sizes))) - {k}:
                usual = usual_exponent(below, sizes, k, other)
                assert found[k, other] >= usual - 1e-9
                gains += [found[k, other] / usual] if usual > 5 else []
    assert np.median(gains) > 1.25


def test_sites_without_a_common_class_say_nothing_about_each_other():
    sizes = np.array([[40.0, 0], [0, 40], [40, 40]])
    found = pair_p_values(np.array([[0.0, 0], [0, 40], [40, 0]]), sizes)
    assert found[0, 1] == found[1, 0] == 1
    assert found[0, 2] < 1e-6
    assert found[1, 2] < 1e-6


def test_nobody_is_dropped_where_nobody_lies_or_too_few_could_speak():
    below, sizes = np.zeros((6, 1)), np.full((6, 1), 50.0)
    below[0] = 50
    assert Pairs(sizes).kept(below, 0, 0.1).all()
    assert Pairs(sizes).kept(below, 5, 0.1).all()


def test_pairs_are_worked_on_in_blocks(monkeypatch):
    below, sizes, _ = random_table(np.random.default_rng(3))
    whole = [Pairs(sizes).exponents(below, sigma) for sigma in (0.0, 0.1)]
    monkeypatch.setattr(rules, "_KEPT", 1)
    monkeypatch.setattr(rules, "_BLOCK", 1)
    parts = [Pairs(sizes).exponents(below, sigma) for sigma in (0.0, 0.1)]
    np.testing.assert_allclose(parts, whole, rtol=1e-12, atol=1e-12)


def test_the_bound_that_saves_logarithms_misses_no_pair():
    rng = np.random.default_rng(18)
    some = 0
    for _ in range(300):
        below, sizes, _ = random_table(rng)
        pairs = Pairs(sizes)
        for sigma in (0.0, 0.03):
            wanted = pairs.exponents(below, sigma)
            for least in (0.01, 1.0, 6.0, 20.0):
                found = pairs.doubtful(below, least, sigma)
                assert (found == (wanted >= least)).all()
                some += found.sum()
    assert some > 1000


def test_the_least_exponent_is_where_markovs_bound_is_a_clients_part_of_beta():
    p = 2 * np.exp(-least_exponent(20, 4, 0.01))
    assert p * (20 - 1 - 4) / witnesses(20, 4) == pytest.approx(0.01 / 20)
    assert [witnesses(20, m) for m in (0, 2, 6, 9, 15)] == [5, 4, 2, 1, 1]


def test_edges_are_fixed_beforehand_and_the_top_is_among_them():
    assert fixed_edges(7).tolist() == list(range(7))
    many = fixed_edges(5000)
    assert len(many) == 256
    assert (many[0], many[-1]) == (0, 4999)


def test_counts_are_those_of_the_tables():
    rng = np.random.default_rng(4)
    tables = rng.integers(0, 5, (5, 3, 400))
    counts = class_counts(by_class(tables))
    assert counts.sizes.tolist() == tables.sum(axis=2).tolist()
    below = np.cumsum(tables, axis=2)
    for place, edge in enumerate(counts.edges):
        assert counts.below[place].tolist() == below[:, :, edge].tolist()
    assert counts.ids[0] == "site-00"
    assert len(counts.names) == 3


def test_pooled_reports_are_refused_in_words():
    rng = np.random.default_rng(5)
    federation = Federation.from_counts(rng.integers(1, 9, (4, 10)))
    with pytest.raises(RobfcpError, match="needs reports by class"):
        class_counts(federation)
    grouped = [
        Report.from_scores(f"s{k}", rng.random(30), groups=["a", "b"] * 15) for k in range(3)
    ]
    with pytest.raises(RobfcpError, match="needs reports by class"):
        class_counts(Federation.from_reports(grouped))


def drawn(seed, n_sites=20, n_classes=4, n=200, bins=40):
    """A generator, tables of honest sites whose mixes differ, and the classes' CDFs."""
    rng = np.random.default_rng(seed)
    cdfs = class_cdfs(n_classes, bins)
    return rng, draw_sites(rng, label_counts(rng, n_sites, n_classes, n), cdfs), cdfs


def test_gross_liars_are_dropped_and_the_rule_runs_on_the_rest():
    rng, tables, _ = drawn(6, n=400, bins=100)
    federation = by_class(lie(rng, tables, 5, "top"))
    walk = pruned_pac(class_counts(federation), LEVEL, 5, 0.05)
    assert set(walk.dropped) <= set(federation.ids[15:])
    assert walk.dropped
    assert not walk.contradiction
    honest = pac_threshold(by_class(tables[:15]), LEVEL, 0, 0.04)
    assert walk.index >= honest
    assert walk.index < pac_threshold(federation, LEVEL, 5, 0.05)
    _, certificate = LabelShift(5).threshold(federation, LEVEL, 0.95)
    assert "cannot be honest were dropped" in certificate.note
    assert certificate.kind == "pac"


def plain_edge(counts, level, m, delta):
    """Rule PC by loops over all removals; sites of one size. The edge, and the most dropped."""
    found, most, n = None, 0, int(counts.sizes[0].sum())
    n_sites = len(counts.ids)
    for place in reversed(range(len(counts.edges))):
        kept = pruned(counts.below[place], counts.sizes, m, 0.2 * delta, 0.0)
        if kept is None:
            return None, most
        left = m - (n_sites - len(kept))
        covered = counts.below[place].sum(axis=1)
        enough = True
        for removed in range(left + 1):
            total = n * (len(kept) - removed)
            need = int(binom.isf(0.8 * delta, total, float(level))) + 1
            while binom.sf(need - 2, total, float(level)) <= 0.8 * delta:
                need -= 1
            for gone in combinations(kept, removed):
                enough &= sum(covered[k] for k in kept if k not in gone) >= need
        if not enough:
            break
        found, most = int(counts.edges[place]), max(most, n_sites - len(kept))
    return found, most


def test_thresholds_are_those_of_plain_loops():
    fell = edges = 0
    for trial in range(16):
        rng, tables, _ = drawn([17, trial], n_sites=9, n_classes=2, n=(200, 800)[trial % 2])
        federation = by_class(lie(rng, tables, trial % 3, ATTACKS[trial // 3 % 4]))
        counts = class_counts(federation)
        walk = pruned_pac(class_counts(federation), Fraction(3, 4), 3, 0.1)
        wanted, dropped = plain_edge(counts, Fraction(3, 4), 3, 0.1)
        assert walk.index == wanted
        fell += dropped > 0
        edges += wanted is not None and wanted < 38
    assert fell > 3
    assert edges > 10


def test_where_too_many_disagree_nothing_is_certified_and_it_says_why():
    rng, tables, _ = drawn(14, n=400)
    federation = by_class(lie(rng, tables, 8, "bottom"))
    walk = pruned_pac(class_counts(federation), LEVEL, 3, 0.05)
    assert walk.contradiction
    assert walk.index is None
    index, certificate = LabelShift(3).threshold(federation, LEVEL, 0.95)
    assert index is None
    assert "every set is full" in certificate.note
    assert "more than 3 sites disagree" in certificate.note
    assert "nothing is certified" in certificate.note


def test_without_drops_it_is_the_plain_rule_at_four_fifths_of_delta():
    for seed in range(5):
        _, tables, _ = drawn([7, seed], n=80, bins=250)
        federation = by_class(tables)
        for m in (0, 3):
            walk = pruned_pac(class_counts(federation), LEVEL, m, 0.05)
            assert walk.dropped == ()
            assert walk.index == pac_threshold(federation, LEVEL, m, 0.04)


def test_the_least_shift_is_nothing_for_sites_alike_and_something_for_sites_apart():
    _, tables, _ = drawn(8)
    assert least_shift(by_class(tables), 4) == 0
    rng = np.random.default_rng(9)
    moved = tables.copy()
    sizes = tables[:10].sum(axis=2)
    moved[:10] = draw_sites(rng, sizes, class_cdfs(4, 40) ** 3)
    apart = least_shift(by_class(moved), 4)
    assert 0.02 < apart < 0.5
    assert prune_at_all(moved, 4, apart)
    assert not prune_at_all(moved, 4, apart - 2 / 128)


def prune_at_all(tables, m, sigma):
    """Whether everybody is kept at every edge."""
    counts = class_counts(by_class(tables))
    pairs = Pairs(counts.sizes)
    found = [pairs.kept(below, m, 0.01, sigma) for below in counts.below]
    return all(kept is not None and kept.all() for kept in found)


def test_sites_that_keep_no_labels_are_left_out():
    _, tables, _ = drawn(15, n_sites=10)
    federation = by_class(tables)
    pooled = Report("pooled", tables[0].sum(axis=0), federation.grid)
    mixed = Federation.from_reports([*site_reports(tables), pooled])
    assert class_counts(mixed).ids == federation.ids
    assert pruned_pac(class_counts(mixed), LEVEL, 2, 0.05) == pruned_pac(
        class_counts(federation), LEVEL, 2, 0.05
    )


def test_label_counts_from_one_mix_are_told_from_others_by_pearsons_test():
    rng = np.random.default_rng(16)
    sizes = rng.multinomial(200, [0.2, 0.3, 0.5], 8)
    assert mixes_differ(sizes) == pytest.approx(chi2_contingency(sizes).pvalue)
    padded = np.pad(sizes, ((0, 1), (0, 1)))
    assert mixes_differ(padded) == pytest.approx(mixes_differ(sizes))
    assert mixes_differ(label_counts(rng, 8, 3, 200)) < 1e-6
    assert mixes_differ(sizes[:, :1]) == mixes_differ(sizes[:1]) == 1


# Simulations


def coverage(sizes, cdfs, index):
    """True coverage of honest sites' pool, given their label counts."""
    return float((sizes * cdfs[:, index]).sum() / sizes.sum())


def failures(runs, seed, told, liars, attack, delta=0.1, n=60, inflated=1):
    """In how many runs the threshold covers too little of the honest pool, and of finite ones."""
    low = finite = 0
    cdfs = class_cdfs(3, 150)
    for run in range(runs):
        rng = np.random.default_rng([seed, run])
        sizes = label_counts(rng, 16, 3, n)
        sizes[16 - liars :] *= inflated
        tables = lie(rng, draw_sites(rng, sizes, cdfs), liars, attack)
        walk = pruned_pac(class_counts(by_class(tables)), Fraction(4, 5), told, delta)
        if walk.index is None:
            continue
        finite += walk.index < 149
        low += coverage(sizes[: 16 - liars], cdfs, walk.index) < 0.8
    return low, finite


@pytest.mark.slow
def test_honest_sites_are_dropped_in_at_most_a_fifth_of_delta_of_the_runs():
    delta, runs = 0.5, 300
    cdfs = class_cdfs(3, 12)
    dropped = np.zeros(12)
    for run in range(runs):
        rng = np.random.default_rng([10, run])
        sizes = label_counts(rng, 16, 3, 100, 0.5)
        counts = class_counts(by_class(draw_sites(rng, sizes, cdfs)))
        for place, below in enumerate(counts.below):
            kept = Pairs(counts.sizes).kept(below, 4, 0.2 * delta)
            dropped[place] += kept is None or not kept.all()
    assert dropped.max() <= 0.2 * delta * runs


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_liars_within_the_bound_do_not_break_the_claim(attack):
    runs, delta = 150, 0.1
    low, finite = failures(runs, 11, 4, 4, attack)
    assert low <= delta * runs
    assert finite > 0.9 * runs


@pytest.mark.slow
def test_liars_beyond_the_bound_break_it():
    runs, delta = 100, 0.1
    assert failures(runs, 12, 0, 4, "bottom", n=200)[0] > 2 * delta * runs
    assert failures(runs, 12, 4, 4, "bottom", n=200)[0] <= delta * runs
    assert failures(runs, 13, 3, 3, "bottom", n=8, inflated=6)[0] <= delta * runs
    assert failures(runs, 13, 2, 3, "bottom", n=8, inflated=6)[0] > 2 * delta * runs
