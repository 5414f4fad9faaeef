"""Baselines: one protocol for all, their formulas by hand, and the table they end in."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import ceil, comb

import numpy as np
import pytest
from effort import EFFORT
from makers import outputs, refused, said

from robfcp import Report, RobfcpError
from robfcp.binning import Binning
from robfcp.defense import Consensus
from robfcp.experiments import baselines, redteam
from robfcp.experiments import outputs as shipped
from robfcp.experiments.attacks import AdaptiveAttack, get_attack
from robfcp.experiments.scenarios import (
    ScenarioConfig,
    apply_attack,
    build_federation,
    make_scenario,
)
from robfcp.experiments.simulation import evaluate_defenses
from robfcp.federation import Federation
from robfcp.scores import LAC

LEVEL = Fraction(9, 10)


def published_coverage(m, n, order, place):
    """The finite-sample formula of the rule's paper, term by term."""
    total = Fraction(0)
    for counts in product(range(n + 1), repeat=m):
        if sum(i >= order for i in counts) >= place:
            ways = np.prod([comb(n, i) for i in counts], dtype=object)
            total += Fraction(int(ways), comb(m * n, sum(counts)))
    return 1 - total / (m * n + 1)


@pytest.mark.parametrize(("m", "n"), [(2, 4), (3, 3), (4, 2)])
def test_expected_coverage_is_the_published_formula(m, n):
    for order in range(1, n + 1):
        found = baselines.order_statistic_coverage(np.full(m, order), np.full(m, n))
        exact = [float(published_coverage(m, n, order, place)) for place in range(1, m + 1)]
        np.testing.assert_allclose(found, exact, atol=1e-9)


def test_quantile_orders_reach_the_level_and_cover_clients_of_one_distribution():
    for sizes in ((50,) * 20, (500,) * 9, tuple(range(20, 120, 5))):
        local, place = baselines.quantile_orders(sizes, LEVEL) or ((), 0)
        coverage = baselines.order_statistic_coverage(np.array(local), np.array(sizes))[place - 1]
        assert 0.9 <= coverage < 0.905
        assert len(sizes) / 4 < place <= 3 * len(sizes) / 4
    assert baselines.fedcp_qq_index(Federation.from_counts([[1, 1], [2, 0]]), LEVEL) is None
    rng, covered, binning = np.random.default_rng(0), [], Binning.uniform(1000)
    for _ in range(300):
        scores = [rng.random(50) for _ in range(20)]
        federation = build_federation(scores, binning, LAC())
        covered.append(binning.upper_edges[baselines.fedcp_qq_index(federation, LEVEL)])
    assert 0.899 < np.mean(covered) < 0.904  # a bin is .001 wide


# One protocol for all baselines


@pytest.fixture(scope="module")
def scenario():
    config = ScenarioConfig(n_clients=9, share=1 / 9, beta=2.0)
    return make_scenario(*outputs(0, 6000, 4), config, np.random.default_rng(1))


def limits(name, scenario, federation=None, **more):
    """(K, C) whatever form the rule answers in."""
    given = {"coverage": 0.9, "scores": scenario.scores, "liars": 1, **more}
    found = baselines.baseline_thresholds(name, federation or scenario.federation, **given)
    return np.broadcast_to(found, (9, 4))


@pytest.mark.parametrize("name", baselines.BASELINES)
def test_every_baseline_keeps_the_protocol(name, scenario):
    found = limits(name, scenario)
    assert np.array_equal(found, limits(name, scenario)), "the same every time"
    assert (found >= 0).all()
    coverage = scenario.measured(np.array(found)).numbers()["coverage"]
    assert 0.88 < coverage < 0.97, "nobody lies"
    assert (limits(name, scenario, coverage=0.5) <= found).all(), "a lower level, smaller sets"
    for wrong, word in (
        ({"scores": scenario.scores[1:]}, "8 sites but 9 reports"),
        ({"liars": 9}, "leave none honest"),
        ({"liars": -1}, "liars"),
        ({"coverage": 1.0}, "coverage"),
    ):
        with pytest.raises(RobfcpError, match=word):
            limits(name, scenario, **wrong)
    losses = [Report.from_losses(name, [[1.0, 0.0]], [0, 1], risk="fnr") for name in "ab"]
    wrong = [(name, Federation.from_reports(losses), "hold losses")]
    wrong.append(("nothing", None, "'nothing' is unknown; use one of fedcp-qq"))
    if name in baselines.BY_CLASS:
        wrong.append((name, replace(scenario.federation, strata=None), "make them with labels"))
    for rule, federation, word in wrong:
        with pytest.raises(RobfcpError, match=word):
            limits(rule, scenario, federation)


def test_baselines_are_what_their_formulas_say(scenario):
    """Against loops over the clients' own scores, up to a bin."""
    scores, labels = scenario.scores, [labels for _, labels in scenario.samples]
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
        assert np.abs(limits(name, scenario) - by_hand).max() <= wide, name
    assert limits("p-coqs", scenario)[0, 0] == pytest.approx(own(np.concatenate(scores)), abs=0.02)


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


def test_local_thresholds_resist_attacks_that_a_mean_of_quantiles_does_not(scenario):
    attacked = replace(scenario, malicious=np.arange(4))
    sent = apply_attack(get_attack("coverage"), attacked, np.random.default_rng(0))
    found = {
        name: scenario.measured(limits(name, scenario, sent) + 0.0) for name in baselines.BASELINES
    }
    covered = {name: one.numbers()["coverage"] for name, one in found.items()}
    assert min(covered[name] for name in ("own data", "letter", "prism-fcp")) > 0.87
    assert covered["fedwq-cp"] < 0.8


def test_the_full_comparison_has_every_method_with_and_without_attack(tmp_path):
    words = ("--workers", 1, "--attack", "coverage", "--json", "--plot", tmp_path / "f.png")
    cells = json.loads(said("lab", "rivals", "heart", *words))["cells"]
    assert {cell["defence"] for cell in cells} == set(redteam.METHODS)
    assert [*dict.fromkeys(cell["step"] for cell in cells)] == ["nobody lies", "one liar", "40%"]
    assert {cell["n_malicious"] for cell in cells} == {0, 1, 2}
    assert (tmp_path / "f.png").stat().st_size > 5000
    lines = {(line["method"], line["min_cell_count"]): line for line in redteam.ranking(cells)}
    for key in (("none", 5), ("none", 1)):
        (own,) = (
            c
            for c in cells
            if (c["defence"], c["min_cell_count"]) == key and c["step"] == "one liar"
        )
        assert lines[key]["one liar"] == (own["error"], own["growth"])
    assert lines["none", 1]["growth"] == 1
    assert {("fedcp-qq", 1), ("guaranteed", 5), ("guaranteed", 1)} <= set(lines)
    assert ("fedcp-qq", 5) not in lines  # its clients send no reports of this package
    on_exact_counts = {
        line["method"] for line in lines.values() if redteam.is_on_exact_counts(line)
    }
    assert on_exact_counts == set(redteam.METHODS_ON_REPORTS)
    assert "is not in the field; choose from stroke" in refused("lab", "rivals", "imagenet")


# Every attack against every defense

SHARES = (0.4,) if EFFORT == 1 else (0.2, 0.4)
SMALL = {"n_clients": 8, "n_runs": 1, "trials": 1, "malicious_fractions": SHARES}
ATTACKED = ("coverage", "label-poisoning", "malformed", "adaptive")


@pytest.fixture(scope="module")
def data():
    mnist = shipped.load("mnist")
    return mnist.probabilities[:800], mnist.labels[:800]


@pytest.fixture(scope="module")
def cells(data):
    return redteam.redteam(*data, **SMALL, attacks=ATTACKED)


@pytest.mark.effort
def test_there_is_a_cell_for_every_attack_and_the_default_holds_where_others_break(data, cells):
    found = {(cell.attack, cell.share, cell.defence): cell.coverage_error for cell in cells}
    assert len(found) == len(cells) == 4 * len(SHARES) * len(redteam.DEFENSES)
    again = redteam.redteam(*data, **SMALL, attacks=ATTACKED[:1])
    assert again == tuple(cell for cell in cells if cell.attack == "coverage")
    assert abs(found["coverage", 0.4, Consensus.name]) <= 0.01
    assert found["coverage", 0.4, "none"] < -0.04
    assert found["coverage", 0.4, "rob-fcp"] < -0.1
    assert abs(found["malformed", 0.4, "none"]) < 0.02
    for share, rule in product(SHARES, ("none", "fedcp-qq")):
        assert found["adaptive", share, rule] <= found["coverage", share, rule] + 1e-12


@pytest.mark.effort
def test_the_worst_cell_of_each_defense_is_the_greatest_error_and_framed(cells):
    for defence, cell in redteam.worst_cells(cells).items():
        errors = [abs(other.coverage_error) for other in cells if other.defence == defence]
        assert abs(cell.coverage_error) == max(errors)
    bigger = replace(cells[0], attack="bigger", set_size=99.0)
    assert redteam.worst_cells((cells[0], bigger)) == {
        cells[0].defence: bigger
    }  # of equals, the larger sets
    assert sum(record["worst"] for record in redteam.to_records(cells)) == len(redteam.DEFENSES)
    for axis in redteam.plot_redteam(cells):
        assert sum(patch.get_edgecolor()[0] > 0.8 for patch in axis.patches) == len(
            redteam.DEFENSES
        )


def test_a_search_judges_lies_by_the_reports_that_arrive():
    data = outputs(0, 600, 3)
    options = {"n_clients": 6, "n_runs": 1, "trials": 2, "malicious_fractions": (1 / 3,)}
    for defense, min_cell_count in (("consensus", 5), ("consensus", 1), ("majority", 5)):
        config = ScenarioConfig(share=1 / 3, n_clients=6, min_cell_count=min_cell_count)
        scenario = make_scenario(*data, config, np.random.default_rng(0))
        attack = redteam._informed_attack(AdaptiveAttack(), defense, scenario, config, 2)
        result = attack.search(scenario.federation, scenario.malicious, 0)
        (row,) = evaluate_defenses(
            scenario, result.federation, [defense], config, attack="adaptive", seed=0
        )
        own = np.concatenate([scenario.scores[k] for k in np.flatnonzero(scenario.benign)])
        assert result.coverage == pytest.approx((own <= row.threshold).mean())
        assert row.min_cell_count == (min_cell_count if defense == "consensus" else 1)
    assert len(redteam.search_attacks(*data, **options)) == 1


@pytest.mark.slow
def test_a_search_gives_the_worst_scenarios_first_and_repeats_by_its_seed():
    data = outputs(0, 1500, 5)
    options = {"n_clients": 10, "n_runs": 2, "trials": 20, "beta": 0.3}
    fractions = (0.2, 0.4)
    found = redteam.search_attacks(
        *data, defenses=("rob-fcp", "none"), malicious_fractions=fractions, **options
    )
    assert len(found) == 8
    harms = [one["harm"] for one in found]
    assert harms == sorted(harms)
    assert harms[0] == found[0]["error"] - min(found[0]["undefended"], 0) < -0.01
    assert all(one["harm"] >= 0 for one in found if one["defence"] == "none")
    worst_fraction = (found[0]["share"],)
    again = redteam.search_attacks(
        *data, defenses=("rob-fcp",), malicious_fractions=worst_fraction, **options
    )
    assert found[0] in again


def test_the_command_searches_and_prints_and_writes_what_it_found(data, tmp_path):
    np.savez(tmp_path / "outputs.npz", probabilities=data[0], labels=data[1])
    command = ("lab", "redteam", tmp_path / "outputs.npz", "--seeds", 1, "--share", 0.4)
    words = ("--search", 3, "--clients", 5, "--defence", "rob-fcp")
    (one,) = json.loads(said(*command, *words, "--json", "-o", tmp_path / "worlds.json"))
    assert [one] == json.loads((tmp_path / "worlds.json").read_text())
    assert "no harmful lie found in 3 steps" in said(*command, *words[:-1], "none")
    assert "--search" in refused(*command, *words, "--attack", "coverage")
    words = ("--attack", "class-capture", "--clients", 10, "--by", "class")
    assert "* worst" in said(*command, *words, "--plot", tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"
    assert "at least one" in refused(*command, "--seeds", 0)
