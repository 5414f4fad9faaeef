"""Label shift against plain loops: pairs, pruning, rules PC and T."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import plain_shift as plain
import pytest
from scipy.stats import binom, hypergeom

from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import LabelShiftGuarantee, count_bounds
from robfcp.guarantees import _client_pairs as client_pairs
from robfcp.guarantees import _label_distributions as label_distributions
from robfcp.guarantees import _label_shift as label_shift
from robfcp.guarantees._tail_bounds import pac_threshold
from robfcp.reports import Report

LEVEL = Fraction(9, 10)
NAMES = ("cat", "dog", "eel")


def pair_p_values(below, sizes, sigma=0.0):
    """(K, K) p-values for "both are honest" at one edge."""
    found = np.minimum(1, 2 * np.exp(-client_pairs.ClientPairs(sizes).exponents(below, sigma)))
    np.fill_diagonal(found, 1)
    return found


def kept_at(below, sizes, m, beta, sigma=0.0):
    """(K,) whom pruning keeps at one edge, or None."""
    everybody = np.ones(len(sizes), dtype=bool)
    against = client_pairs.ClientPairs(sizes).contradictions(below, m, beta, sigma, len(sizes))
    return everybody if against is None else client_pairs.pruned_mask(against, everybody, m)


@pytest.mark.parametrize("number", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_pairs_pruning_and_acceptance_are_those_of_plain_loops(number):
    """How often nobody, somebody and too many were odd, and a mix was accepted or not, counts."""
    rng = np.random.default_rng(number)
    seen = dict.fromkeys(["all", "some", "none", True, False], 0)
    for trial in range(number):
        below, sizes, m = plain.random_table(rng)
        sigma, beta = (0.0, 0.05)[trial % 2], (0.01, 0.2)[trial // 2 % 2]
        if trial % 10 == 0:  # more liars than stated
            below[: m + 2] = 0
        found = pair_p_values(below, sizes, sigma)
        for k in range(len(sizes)):
            for other in range(len(sizes)):
                wanted = 1.0 if k == other else plain.pair_p(below, sizes, k, other, sigma)
                assert found[k, other] == pytest.approx(wanted, rel=1e-6, abs=1e-12)
        mask, kept = (one(below, sizes, m, beta, sigma) for one in (kept_at, plain.pruned))
        assert (mask is None) == (kept is None)
        if kept is None:
            seen["none"] += 1
            continue
        assert np.flatnonzero(mask).tolist() == kept
        seen["all" if mask.all() else "some"] += 1
        few, left, n_classes = kept[:9], min(m - (len(sizes) - len(kept)), 4), sizes.shape[1]
        around = (np.zeros(n_classes), 1.0), (rng.dirichlet(np.ones(n_classes)) / 2, 0.5)
        mixes = label_distributions.LabelDistributions(
            rng.dirichlet(np.ones(n_classes), 2), *around[trial % 2]
        )
        evidence = label_shift.BinEvidence(below[few], sizes[few], left, 0.08, None)
        told = label_shift.accepts_distributions(evidence, mixes, 0.4 - sigma)
        for mix, mine in zip(mixes.expectations(np.eye(n_classes)).T, told, strict=True):
            assert mine == plain.accepts(below[few], sizes[few], left, mix, 0.4 - sigma, 0.08)
            seen[bool(mine)] += 1
    assert min(seen.values()) > 0.015 * number


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


def test_pairs_are_worked_on_in_blocks(monkeypatch):
    below, sizes, _ = plain.random_table(np.random.default_rng(3))
    whole = [client_pairs.ClientPairs(sizes).exponents(below, sigma) for sigma in (0.0, 0.1)]
    monkeypatch.setattr(client_pairs, "_MAX_CACHED_TERMS", 1)
    monkeypatch.setattr(client_pairs, "_MAX_BLOCK_TERMS", 1)
    parts = [client_pairs.ClientPairs(sizes).exponents(below, sigma) for sigma in (0.0, 0.1)]
    np.testing.assert_allclose(parts, whole, rtol=1e-12, atol=1e-12)


def test_the_bound_that_saves_logarithms_misses_no_pair():
    rng, some = np.random.default_rng(18), 0
    for _ in range(100):
        below, sizes, _ = plain.random_table(rng)
        wanted = client_pairs.ClientPairs(sizes).exponents(below)
        for least in (0.01, 1.0, 6.0, 20.0):
            found = client_pairs.ClientPairs(sizes).exponents(below, min_exponent=least) >= least
            assert (found == (wanted >= least)).all()
            some += found.sum()
    assert some > 1000


def test_counts_are_those_of_the_tables():
    rng = np.random.default_rng(4)
    tables = rng.integers(0, 5, (5, 3, 400))
    counts = label_shift.class_counts(plain.by_class(tables))
    assert counts.class_sizes.tolist() == tables.sum(axis=2).tolist()
    below = np.cumsum(tables, axis=2)
    for place, edge in enumerate(counts.edges):
        assert counts.cumulative[place].tolist() == below[:, :, edge].tolist()
    assert (counts.clients[0], len(counts.names)) == ("site-00", 3)
    assert (len(counts.edges), counts.edges[0], counts.edges[-1]) == (256, 0, 399)


def test_pooled_reports_are_refused_in_words():
    rng = np.random.default_rng(5)
    groups = ["a", "b"] * 15
    grouped = [Report.from_scores(f"s{k}", rng.random(30), groups=groups) for k in range(3)]
    for reports in (Federation.from_counts([[3, 4]] * 4), Federation.from_reports(grouped)):
        with pytest.raises(RobfcpError, match="needs reports by class"):
            label_shift.class_counts(reports)


def drawn(seed, n_sites=20, n_classes=4, n=200, bins=40):
    """A generator, tables of honest sites whose mixes differ, and the classes' CDFs."""
    rng = np.random.default_rng(seed)
    cdfs = plain.class_cdfs(n_classes, bins)
    return rng, plain.draw_sites(rng, plain.label_counts(rng, n_sites, n_classes, n), cdfs), cdfs


def test_gross_liars_are_dropped_and_the_rule_runs_on_the_rest():
    rng, tables, _ = drawn(6, n=400, bins=100)
    federation = plain.by_class(plain.lie(rng, tables, 5, "top"))
    walk = label_shift.pac_threshold_after_pruning(
        label_shift.class_counts(federation), LEVEL, 5, 0.05
    )
    assert walk.pruned_clients == federation.clients[15:]
    honest = pac_threshold(count_bounds(plain.by_class(tables[:15])), LEVEL, 0, 0.04)
    assert honest <= walk.bin_index < pac_threshold(count_bounds(federation), LEVEL, 5, 0.05)


def plain_edge(counts, level, m, delta):
    """Rule PC by loops over all removals; sites of one size. The edge, and the most dropped."""
    found, most, n = None, 0, int(counts.class_sizes[0].sum())
    n_sites = len(counts.clients)
    for place in reversed(range(len(counts.edges))):
        kept = plain.pruned(counts.cumulative[place], counts.class_sizes, m, 0.2 * delta, 0.0)
        if kept is None:
            return None, most
        left = m - (n_sites - len(kept))
        covered = counts.cumulative[place].sum(axis=1)
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
        federation = plain.by_class(
            plain.lie(rng, tables, trial % 3, plain.ATTACKS[trial // 3 % 4])
        )
        counts = label_shift.class_counts(federation)
        walk = label_shift.pac_threshold_after_pruning(
            label_shift.class_counts(federation), Fraction(3, 4), 3, 0.1
        )
        wanted, dropped = plain_edge(counts, Fraction(3, 4), 3, 0.1)
        assert walk.bin_index == wanted
        fell += dropped > 0
        edges += wanted is not None and wanted < 38
    assert fell > 3
    assert edges > 10


# Mixes


@pytest.mark.parametrize(
    ("mix", "rows"),
    [
        ("uniform", [[1 / 3] * 3]),
        ({"eel": 0.25, "cat": 0.75}, [[0.75, 0, 0.25]]),
        ([{"cat": 1}, "any", "uniform"], [[1, 0, 0], [1 / 3] * 3, *np.eye(3).tolist()]),
    ],
)
def test_mixes_are_read_by_name_by_word_and_in_lists(mix, rows):
    mixes, sizes = (
        label_distributions.parse_label_distributions(mix, NAMES),
        np.array([5.0, 2.0, 40.0]),
    )
    assert mixes.expectations(np.eye(3)).T.tolist() == rows
    least = [min(n / p for n, p in zip(sizes, row, strict=True) if p) for row in rows]
    assert mixes.min_effective_sizes(sizes).tolist() == pytest.approx(least)


@pytest.mark.parametrize(
    ("mix", "words"),
    [
        ("balanced", "'balanced' is unknown; use 'uniform', 'any'"),
        ({"cat": 0.5, "fox": 0.5}, "'fox' is none of the classes"),
        ({"cat": 0.5}, "add up to 1"),
        ([], "is unknown; use 'uniform'"),
        ({"cat": float("nan"), "dog": 0.5}, "not negative"),
        ({"cat": [1.0, 2.0], "dog": 0.5}, "shares are numbers"),
    ],
)
def test_other_mixes_are_refused_in_words(mix, words):
    with pytest.raises(RobfcpError, match=words):
        label_distributions.parse_label_distributions(LabelShiftGuarantee(0, mix=mix).mix, NAMES)


def test_thresholds_of_mixes_are_those_of_plain_loops():
    seen = set()
    for trial in range(12):
        rng, tables, _ = drawn([2, trial], 9, 3, 120, 15)
        m, liars = trial % 3, trial % 4
        counts = label_shift.class_counts(
            plain.by_class(plain.lie(rng, tables, liars, plain.ATTACKS[trial % 4]))
        )
        mixes = label_distributions.parse_label_distributions([{"0": 1}, "uniform"], counts.names)
        sigma = 0.03 * (trial % 2)
        found = label_shift.label_distribution_threshold(counts, mixes, 0.3, m, 0.1, sigma)
        assert found.bin_index == plain.mix_edge(counts, mixes.distributions, 0.3, m, 0.1, sigma)
        seen.add(found.bin_index)
    assert len(seen) > 2


def test_counts_in_fives_speak_against_nobody_whom_the_true_ones_do_not():
    """Whatever lies between the two bounds, e is at least what `at_least` says."""
    rng = np.random.default_rng(12)
    spoke = 0
    for _ in range(60):
        sizes = rng.integers(0, 40, (6, 3))
        below = rng.binomial(sizes, rng.random((6, 1)))
        most = below + rng.binomial(sizes - below, 0.3) * (rng.random((6, 1)) < 0.5)
        pairs, sigma = client_pairs.ClientPairs(sizes), float(rng.choice([0.01, 0.1]))
        bound = pairs.exponent_lower_bound(below, most, sigma)
        for _ in range(5):
            true = below + rng.binomial(most - below, rng.random())
            assert (bound <= pairs.exponents(true, sigma) + 1e-9).all()
        spoke += int((bound > 0).sum())
    assert spoke > 100


@pytest.mark.parametrize(("n_clients", "m"), [(9, 1), (12, 2), (7, 3)])
def test_a_pair_contradicts_where_enough_witnesses_have_a_share_of_beta(n_clients, m, monkeypatch):
    """With j witnesses among the K - 1 - m other benign clients p (K - 1 - m) / j <= beta / K."""
    rng = np.random.default_rng(n_clients)
    beta = 0.01
    n_witnesses = max(1, (n_clients - 2 * m) // 4)
    limit = beta / n_clients * n_witnesses / (n_clients - 1 - m)
    p_values = limit * rng.choice([0.95, 1.05], (n_clients, n_clients), p=[0.9, 0.1])
    pairs = client_pairs.ClientPairs(np.full((n_clients, 2), 30))
    monkeypatch.setattr(pairs, "exponents", lambda *_: np.log(2 / p_values))
    found = pairs.contradictions(np.full((n_clients, 2), 20), m, beta, 0.0, n_clients)
    expected = p_values <= limit
    np.fill_diagonal(expected, False)
    assert (found == expected).all()
    assert not expected.all()
