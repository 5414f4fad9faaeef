"""The field's rules: one protocol for all, their formulas by hand, and the table they end in."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import ceil, comb

import numpy as np
import pytest
from makers import outputs, refused, said

from robfcp import Report, RobfcpError
from robfcp.federation import Federation
from robfcp.grid import Grid
from robfcp.lab.attacks import named_attack
from robfcp.lab.redteam import METHODS, field, standings
from robfcp.lab.rivals import (
    BY_CLASS,
    RULES,
    chosen_orders,
    expected_coverages,
    fedcp_qq_index,
    limits_of,
)
from robfcp.lab.worlds import Setting, apply_attack, federation_of, make_world
from robfcp.scores import LAC

LEVEL = Fraction(9, 10)


def published_coverage(m: int, n: int, order: int, place: int) -> Fraction:
    """The finite-sample formula of the rule's paper, term by term."""
    total = Fraction(0)
    for counts in product(range(n + 1), repeat=m):
        if sum(i >= order for i in counts) >= place:
            ways = np.prod([comb(n, i) for i in counts], dtype=object)
            total += Fraction(int(ways), comb(m * n, sum(counts)))
    return 1 - total / (m * n + 1)


@pytest.mark.parametrize(("m", "n"), [(2, 4), (3, 3), (4, 2)])
def test_expected_coverage_is_the_published_formula(m: int, n: int) -> None:
    for order in range(1, n + 1):
        found = expected_coverages(np.full(m, order), np.full(m, n))
        exact = [float(published_coverage(m, n, order, place)) for place in range(1, m + 1)]
        np.testing.assert_allclose(found, exact, atol=1e-9)


def test_orders_reach_the_level_with_little_excess() -> None:
    for sizes in ((50,) * 20, (500,) * 9, tuple(range(20, 120, 5))):
        local, place = chosen_orders(sizes, LEVEL) or ((), 0)
        coverage = expected_coverages(np.array(local), np.array(sizes))[place - 1]
        assert 0.9 <= coverage < 0.905
        assert len(sizes) / 4 < place <= 3 * len(sizes) / 4
    assert chosen_orders((2, 2), LEVEL) is None
    assert fedcp_qq_index(Federation.from_counts([[1, 1], [2, 0]]), LEVEL) is None


def test_it_covers_on_sites_of_one_distribution() -> None:
    rng, covered = np.random.default_rng(0), []
    grid = Grid.uniform(1000)
    for _ in range(300):
        scores = [rng.random(50) for _ in range(20)]
        index = fedcp_qq_index(federation_of(scores, grid, LAC()), LEVEL)
        assert index is not None
        covered.append(grid.upper[index])
    assert 0.899 < np.mean(covered) < 0.904  # a bin is .001 wide


# One protocol for all rules

PROVED = ("own data", "letter")  # no other site moves these thresholds beyond what is proved


@pytest.fixture(scope="module")
def world():
    setting = Setting(n_clients=9, share=1 / 9, beta=2.0)
    return make_world(*outputs(0, 6000, 4), setting, np.random.default_rng(1))


def limits(name, world, federation=None, **more):
    """(K, C) whatever form the rule answers in."""
    given = {"coverage": 0.9, "scores": world.scores, "liars": 1, **more}
    found = limits_of(name, federation or world.federation, **given)
    return np.broadcast_to(found, (9, 4))


@pytest.mark.parametrize("name", RULES)
def test_every_rule_keeps_the_protocol(name, world):
    found = limits(name, world)
    assert np.array_equal(found, limits(name, world)), "the same every time"
    assert (found >= 0).all()
    coverage = world.measured(np.array(found)).numbers()["coverage"]
    assert 0.88 < coverage < 0.97, "nobody lies"
    assert (limits(name, world, coverage=0.5) <= found).all(), "a lower level, smaller sets"
    for wrong, word in (
        ({"scores": world.scores[1:]}, "8 sites but 9 reports"),
        ({"liars": 9}, "leave none honest"),
        ({"liars": -1}, "liars"),
        ({"coverage": 1.0}, "coverage"),
    ):
        with pytest.raises(RobfcpError, match=word):
            limits(name, world, **wrong)
    losses = [
        Report.from_losses(str(k), [[1.0, 0.5, 0.0]], [0, 0.5, 1], risk="fnr") for k in range(9)
    ]
    for reports, word in (
        (Federation.from_reports(losses), "hold losses"),
        (replace(world.federation, strata=None), "by class; make them with labels"),
    ):
        if word == "hold losses" or name in BY_CLASS:
            with pytest.raises(RobfcpError, match=word):
                limits(name, world, reports)
    with pytest.raises(RobfcpError, match="'nothing' is unknown; use one of fedcp-qq"):
        limits("nothing", world)


def test_rules_are_what_their_formulas_say(world):
    """Against loops over the sites' own scores, up to a bin."""
    scores, labels = world.scores, [labels for _, labels in world.samples]
    sizes = np.array([len(part) for part in scores])

    def own(part, level=0.9):
        return np.sort(part)[min(len(part), ceil(level * (len(part) + 1))) - 1]

    local = [own(part) for part in scores]
    expected = {
        "fedwq-cp": np.average(local, weights=sizes),
        "majority": np.sort(local)[4],
        "gc-fcp": [
            own(np.concatenate([s[y == c] for s, y in zip(scores, labels, strict=True)]))
            for c in range(4)
        ],
        "crc-shrinkage": [[shrunk_by_hand(scores, k)] for k in range(9)],
        "pfwcp": [[weighted_by_hand(scores, labels, k)] for k in range(9)],
    }
    for name, by_hand in expected.items():
        wide = 0.03 if name == "gc-fcp" else 0.012  # a bin; a coreset rounds up by a 64th
        assert np.abs(limits(name, world) - by_hand).max() <= wide, name
    assert limits("p-coqs", world)[0, 0] == pytest.approx(own(np.concatenate(scores)), abs=0.02)


def shrunk_by_hand(scores, k):
    """The least t with ((n_k R_k + 19 R) + 1) / (n_k + 20) <= .1, by trying them all."""
    pool, n = np.concatenate(scores), len(scores[k])
    for t in np.linspace(0, 1, 2001):
        if (n * (scores[k] > t).mean() + 19 * (pool > t).mean() + 1) / (n + 20) <= 0.1:
            return t
    return np.inf


def weighted_by_hand(scores, labels, j):
    """Every site's quantile with its samples weighed by the ratio of label mixes to j's."""
    mix = [np.bincount(y, minlength=4) / len(y) for y in labels]
    found, effective = [], []
    for s, y, own in zip(scores, labels, mix, strict=True):
        weights = (mix[j] / np.maximum(own, 1e-9))[y]
        order = np.argsort(s)
        reached = np.cumsum(weights[order]) >= 0.9 * weights.sum() - 1e-9
        found.append(s[order][reached.argmax()])
        effective.append(weights.sum() ** 2 / (weights**2).sum())
    return np.average(found, weights=effective)


def test_a_filter_drops_the_odd_site_and_sites_own_thresholds_outlast_the_worst_lies(world):
    honest = world.federation.subset(world.benign)
    alone = limits_of("prism-fcp", honest, 0.9, world.scores[1:])
    for attack in ("coverage", "efficiency"):
        sent = apply_attack(named_attack(attack), world, np.random.default_rng(0))
        assert limits("prism-fcp", world, sent)[0, 0] == pytest.approx(alone, abs=0.02)
        for name in PROVED:
            covered = world.measured(limits(name, world, sent) + 0.0).numbers()
            assert covered["coverage"] > 0.88
    lost = world.measured(limits("fedwq-cp", world, apply_attack(
        named_attack("coverage"), replace(world, malicious=np.arange(4)), np.random.default_rng(0)
    )) + 0.0).numbers()["coverage"]  # fmt: skip
    assert lost < 0.8


def test_the_field_has_every_method_with_and_without_liars(tmp_path):
    words = ("lab", "rivals", "heart", "--workers", 1, "--attack", "coverage")
    cells = json.loads(
        said(*words, "--json", "-o", tmp_path / "f.csv", "--plot", tmp_path / "f.png")
    )
    assert {cell["defence"] for cell in cells} == set(METHODS)
    assert [*dict.fromkeys(cell["step"] for cell in cells)] == ["nobody lies", "one liar", "40%"]
    assert {cell["n_malicious"] for cell in cells} == {0, 1, 2}
    assert (tmp_path / "f.png").stat().st_size > 5000
    (none,) = (line for line in standings(cells) if line["method"] == "none")
    own = [cell for cell in cells if cell["defence"] == "none"]
    assert none["growth"] == 1
    assert none["one liar"] == (own[1]["error"], own[1]["growth"])
    assert "is not in the field; choose from stroke" in refused("lab", "rivals", "imagenet")


@pytest.mark.slow
def test_what_one_process_finds_two_find():
    one, two = (field(["heart"], attacks=("coverage",), workers=number) for number in (1, 2))
    assert one == two
