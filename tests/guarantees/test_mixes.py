"""Rule T: plain loops, stated mixes and lists of them, words for what cannot be certified."""

from fractions import Fraction

import numpy as np
import pytest
from plain_shift import (
    ATTACKS,
    accepts,
    by_class,
    class_cdfs,
    critical,
    draw_sites,
    label_counts,
    lie,
    mix_edge,
    pruned,
    random_table,
)

from robfcp.errors import RobfcpError
from robfcp.guarantees import LabelShift
from robfcp.guarantees.label_shift import (
    LabelMixes,
    accepted,
    class_counts,
    mix_threshold,
    read_mixes,
)
from robfcp.guarantees.tails import small_enough

NAMES = ("cat", "dog", "eel")


# Reading


def test_mixes_are_read_by_name_by_word_and_in_lists():
    every = np.eye(3).tolist()
    wanted = {
        "uniform": ("uniform", [[1 / 3] * 3]),
        "any": ("any", every),
        "by name": ({"eel": 0.25, "cat": 0.75}, [[0.75, 0, 0.25]]),
        "a list": ([{"cat": 1}, "any", "uniform"], [[1, 0, 0], [1 / 3] * 3, *every]),
    }
    sizes = np.array([5.0, 2.0, 40.0])
    for mix, rows in wanted.values():
        mixes = read_mixes(mix, NAMES)
        assert mixes.means(np.eye(3)).T.tolist() == rows
    around = LabelMixes(np.array([[0.5, 0.5, 0]]), np.array([0.1, 0.4, 0]), 0.5)
    spelled = around.means(np.eye(3)).T
    least = [min(n / p for n, p in zip(sizes, row, strict=True) if p) for row in spelled]
    assert around.scarcest(sizes).tolist() == pytest.approx(least)
    assert LabelShift(0, mix={0: 0.5, 1: 0.5}).mix == {"0": 0.5, "1": 0.5}


@pytest.mark.parametrize(
    ("mix", "words"),
    [
        ("balanced", "'balanced' is unknown; use 'uniform', 'any'"),
        ({"cat": 0.5, "fox": 0.5}, "'fox' is none of the classes"),
        ({"cat": 0.5}, "add up to 1"),
        ({"cat": 1.5, "dog": -0.5}, "not negative"),
        ({}, "add up to 1"),
        ([], "is unknown; use 'uniform'"),
        ([0.5, 0.5], "0.5 is unknown"),
        ({"cat": float("nan"), "dog": 0.5}, "not negative"),
        ([{"cat": 1}, {"fox": 1}], "'fox' is none"),
        (["cat", 0.5, 0.5], "'cat' is unknown"),
        (3.0, "3.0 is unknown"),
        ({"cat": "half", "dog": 0.5}, "shares are numbers"),
        ({"cat": [1.0, 2.0], "dog": 0.5}, "shares are numbers"),
    ],
)
def test_other_mixes_are_refused_in_words(mix, words):
    with pytest.raises(RobfcpError, match=words):
        read_mixes(LabelShift(0, mix=mix).mix, NAMES)


# Acceptance


def check_tables(number, seed):
    """Acceptance at one edge against plain loops; how many mixes were accepted and refused."""
    rng = np.random.default_rng(seed)
    seen = {True: 0, False: 0}
    for trial in range(number):
        below, sizes, m = random_table(rng)
        below, sizes = below[:11], sizes[:11]
        m = min(m, 4)
        sigma = (0.0, 0.05)[trial % 2]
        kept = pruned(below, sizes, m, 0.02, sigma)
        if kept is None:
            continue
        left = m - (len(sizes) - len(kept))
        n_classes = sizes.shape[1]
        base, step = ((np.zeros(n_classes), 1.0), (rng.dirichlet(np.ones(n_classes)) / 2, 0.5))[
            trial % 2
        ]
        mixes = LabelMixes(rng.dirichlet(np.ones(n_classes), 2), base, step)
        found = accepted(below[kept], sizes[kept], left, mixes, 0.4 - sigma, 0.08)
        for mix, mine in zip(mixes.means(np.eye(n_classes)).T, found, strict=True):
            wanted = accepts(below[kept], sizes[kept], left, mix, 0.4 - sigma, 0.08)
            assert mine == wanted
            seen[wanted] += 1
    return seen


def test_acceptance_is_that_of_plain_loops():
    assert min(check_tables(50, 0).values()) > 12


@pytest.mark.slow
def test_acceptance_is_that_of_plain_loops_on_many_tables():
    assert min(check_tables(1000, 1).values()) > 500


def test_a_share_is_small_enough_up_to_the_one_that_bisection_finds():
    sizes = np.array([5.0, 29.0, 31.0, 100, 1e4, 1e9])
    for size in sizes:
        wanted = critical(size, 0.1, 0.05)
        for share in (0.0, 0.01, 0.05, 0.09, 0.0999, 0.1, 0.11, 0.5):
            found = small_enough(np.array([share]), np.array([size]), 0.1, 0.05)
            assert found[0] == (wanted is not None and share <= wanted)
        if wanted:
            around = np.array([wanted - 1e-9, wanted + 1e-9])
            assert small_enough(around, np.full(2, size), 0.1, 0.05).tolist() == [True, False]


# Walks


def drawn(seed, n_sites=12, n=150, bins=40, spread=1.0):
    """Tables of honest sites with three classes whose mixes differ, and the classes' CDFs."""
    rng = np.random.default_rng(seed)
    cdfs = class_cdfs(3, bins, spread)
    return rng, draw_sites(rng, label_counts(rng, n_sites, 3, n), cdfs), cdfs


def test_thresholds_are_those_of_plain_loops():
    seen = set()
    for trial in range(12):
        rng, tables, _ = drawn([2, trial], n_sites=9, n=120, bins=15)
        m, liars = trial % 3, trial % 4
        counts = class_counts(by_class(lie(rng, tables, liars, ATTACKS[trial % 4])))
        mixes = read_mixes([{"0": 1}, "uniform"], counts.names)
        sigma = 0.03 * (trial % 2)
        found = mix_threshold(counts, mixes, 0.3, m, 0.1, sigma)
        assert found.index == mix_edge(counts, mixes.stated, 0.3, m, 0.1, sigma)
        seen.add(found.index)
    assert len(seen) > 2


def test_a_list_gets_the_largest_of_its_mixes_thresholds():
    for seed in range(5):
        _, tables, _ = drawn([3, seed])
        counts = class_counts(by_class(tables, NAMES))

        def edge(mix, counts=counts):
            return mix_threshold(counts, read_mixes(mix, NAMES), 0.2, 2, 0.1).index

        alone = [edge({name: 1}) for name in NAMES]
        assert edge("any") == edge([{name: 1} for name in NAMES]) == max(alone)
        assert min(alone) < max(alone)
        uneven = {"cat": 0.7, "dog": 0.2, "eel": 0.1}
        assert edge([uneven, "uniform"]) == max(edge(uneven), edge("uniform"))
        assert edge("uniform") <= edge("any")


def test_classes_that_too_few_sites_hold_are_named():
    _, tables, _ = drawn(4)
    tables[2:, 2] = 0
    federation = by_class(tables, NAMES)
    level = Fraction(4, 5)
    walk = mix_threshold(class_counts(federation), read_mixes("any", NAMES), 0.2, 2, 0.05)
    assert walk.index is None
    assert walk.too_few == ("eel",)
    index, certificate = LabelShift(2, mix="any").threshold(federation, level, 0.95)
    assert index is None
    assert "every set is full; too few sites hold eel" in certificate.note
    index, certificate = LabelShift(2, mix={"cat": 0.5, "dog": 0.5}).threshold(
        federation, level, 0.95
    )
    assert index is not None
    assert "too few" not in certificate.note
    assert certificate.kind == "mix"


def test_reports_that_contradict_the_declaration_certify_nothing_and_say_so():
    rng, tables, _ = drawn(5, n=400)
    federation = by_class(lie(rng, tables, 5, "bottom"), NAMES)
    walk = mix_threshold(class_counts(federation), read_mixes("uniform", NAMES), 0.1, 2, 0.05)
    assert walk.contradiction
    assert walk.index is None
    _, certificate = LabelShift(2, mix="uniform").threshold(federation, Fraction(9, 10), 0.95)
    assert "every set is full" in certificate.note
    assert "more than 2 sites disagree within classes" in certificate.note
    assert "state a larger alike" in certificate.note


def test_dropped_sites_are_named_and_only_five():
    rng, tables, _ = drawn(6, n_sites=24, n=500, bins=100)
    federation = by_class(lie(rng, tables, 7, "top"), NAMES)
    _, certificate = LabelShift(7, mix="uniform").threshold(federation, Fraction(9, 10), 0.95)
    assert "7 sites that cannot be honest were dropped first (site-17, " in certificate.note
    assert "site-21 and 2 more)" in certificate.note


def test_sigma_is_paid_from_alpha():
    _, tables, _ = drawn(7)
    counts = class_counts(by_class(tables))
    mixes = read_mixes("uniform", NAMES)
    edges = [mix_threshold(counts, mixes, 0.2, 1, 0.1, sigma).index for sigma in (0, 0.05, 0.1)]
    assert edges == sorted(edges)
    assert edges[0] < edges[-1]
    assert mix_threshold(counts, mixes, 0.2, 1, 0.1, 0.2).index is None


# Simulations


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_every_mix_of_a_list_is_covered_whatever_the_liars_report(attack):
    """theta of each mix at once; the same liars, not allowed for, break the claim."""
    runs, delta, level = 150, 0.1, 0.8
    mixes = np.array([[1 / 3] * 3, [0.6, 0.3, 0.1]])
    low = finite = broken = 0
    for run in range(runs):
        rng, tables, cdfs = drawn([8, run], n_sites=16, n=100, bins=150)
        counts = class_counts(by_class(lie(rng, tables, 4, attack)))
        for told in (4, 0):
            index = mix_threshold(counts, LabelMixes(mixes), 1 - level, told, delta).index
            missed = index is not None and (mixes @ cdfs[:, index]).min() < level
            low, broken = low + (told > 0 and missed), broken + (not told and missed)
            finite += told > 0 and index is not None and index < 149
    assert low <= delta * runs
    assert finite > 0.9 * runs
    if attack in ("bottom", "shifted"):
        assert broken > 2 * delta * runs
