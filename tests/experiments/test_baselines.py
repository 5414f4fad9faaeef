"""Baselines: one protocol for all, their formulas by hand, and the table they end in."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import ceil, comb

import numpy as np
import pytest
from effort import EFFORT
from makers import command_error, command_output, outputs

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


def published_coverage(m, n, order, position):
    """The finite-sample formula of the paper, term by term."""
    total = Fraction(0)
    for counts in product(range(n + 1), repeat=m):
        if sum(i >= order for i in counts) >= position:
            n_ways = np.prod([comb(n, i) for i in counts], dtype=object)
            total += Fraction(int(n_ways), comb(m * n, sum(counts)))
    return 1 - total / (m * n + 1)


@pytest.mark.parametrize(("m", "n"), [(2, 4), (3, 3), (4, 2)])
def test_expected_coverage_is_the_published_formula(m, n):
    for order in range(1, n + 1):
        computed = baselines.order_statistic_coverage(np.full(m, order), np.full(m, n))
        exact = [float(published_coverage(m, n, order, position)) for position in range(1, m + 1)]
        np.testing.assert_allclose(computed, exact, atol=1e-9)


def test_quantile_orders_reach_the_level_and_cover_clients_of_one_distribution():
    for sizes in ((50,) * 20, (500,) * 9, tuple(range(20, 120, 5))):
        local, position = baselines.quantile_orders(sizes, LEVEL) or ((), 0)
        coverage = baselines.order_statistic_coverage(np.array(local), np.array(sizes))[
            position - 1
        ]
        assert 0.9 <= coverage < 0.905
        assert len(sizes) / 4 < position <= 3 * len(sizes) / 4
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
    config = ScenarioConfig(n_clients=9, malicious_fraction=1 / 9, beta=2.0)
    return make_scenario(*outputs(0, 6000, 4), config, np.random.default_rng(1))


def thresholds_of(name, scenario, federation=None, **more):
    """The thresholds as (K, C), in whatever form the baseline returns them."""
    arguments = {"coverage": 0.9, "scores": scenario.scores, "n_malicious": 1, **more}
    thresholds = baselines.baseline_thresholds(name, federation or scenario.federation, **arguments)
    return np.broadcast_to(thresholds, (9, 4))


@pytest.mark.parametrize("name", baselines.BASELINES)
def test_every_baseline_keeps_the_protocol(name, scenario):
    thresholds = thresholds_of(name, scenario)
    assert np.array_equal(thresholds, thresholds_of(name, scenario)), "the same every time"
    assert (thresholds >= 0).all()
    coverage = scenario.measured(np.array(thresholds)).measures()["coverage"]
    assert 0.88 < coverage < 0.97, "all clients are benign"
    assert (thresholds_of(name, scenario, coverage=0.5) <= thresholds).all(), (
        "a lower level, smaller sets"
    )
    for invalid, message in (
        ({"scores": scenario.scores[1:]}, "8 clients but 9 reports"),
        ({"n_malicious": 9}, "leave none benign"),
        ({"n_malicious": -1}, "n_malicious"),
        ({"coverage": 1.0}, "coverage"),
    ):
        with pytest.raises(RobfcpError, match=message):
            thresholds_of(name, scenario, **invalid)
    losses = [Report.from_losses(name, [[1.0, 0.0]], [0, 1], risk="fnr") for name in "ab"]
    invalid = [(name, Federation.from_reports(losses), "hold losses")]
    invalid.append(("nothing", None, "'nothing' is unknown; use one of fedcp-qq"))
    if name in baselines.BY_CLASS:
        invalid.append((name, replace(scenario.federation, strata=None), "recreate them with"))
    for baseline, federation, message in invalid:
        with pytest.raises(RobfcpError, match=message):
            thresholds_of(baseline, scenario, federation)


def test_baselines_are_what_their_formulas_say(scenario):
    """Against loops over the clients' own scores, up to a bin."""
    scores, labels = scenario.scores, [labels for _, labels in scenario.samples]
    sizes = np.array([len(values) for values in scores])

    def conformal_quantile(values, level=0.9):
        return np.sort(values)[min(len(values), ceil(level * (len(values) + 1))) - 1]

    local_thresholds = [conformal_quantile(values) for values in scores]
    expected = {
        "fedwq-cp": np.average(local_thresholds, weights=sizes),
        "majority-sets": np.sort(local_thresholds)[4],
        "gc-fcp": [
            conformal_quantile(
                np.concatenate([s[y == c] for s, y in zip(scores, labels, strict=True)])
            )
            for c in range(4)
        ],
        "crc-shrinkage": [[shrunk_by_hand(scores, k)] for k in range(9)],
        "pfwcp": [[weighted_by_hand(scores, labels, k)] for k in range(9)],
    }
    for name, by_hand in expected.items():
        wide = 0.03 if name == "gc-fcp" else 0.012  # a bin; a coreset rounds up by a 64th
        assert np.abs(thresholds_of(name, scenario) - by_hand).max() <= wide, name
    assert thresholds_of("p-coqs", scenario)[0, 0] == pytest.approx(
        conformal_quantile(np.concatenate(scores)), abs=0.02
    )


def shrunk_by_hand(scores, k):
    """The least t with ((n_k R_k + 19 R) + 1) / (n_k + 20) <= .1, by trying them all."""
    pool, n = np.concatenate(scores), len(scores[k])
    for t in np.linspace(0, 1, 2001):
        if (n * (scores[k] > t).mean() + 19 * (pool > t).mean() + 1) / (n + 20) <= 0.1:
            return t
    return np.inf


def weighted_by_hand(scores, labels, j):
    """The mean of the clients' quantiles at the label distribution of client j."""
    label_distributions = [np.bincount(y, minlength=4) / len(y) for y in labels]
    quantiles, effective = [], []
    for s, y, client_mix in zip(scores, labels, label_distributions, strict=True):
        weights = (label_distributions[j] / np.maximum(client_mix, 1e-9))[y]
        order = np.argsort(s)
        reached = np.cumsum(weights[order]) >= 0.9 * weights.sum() - 1e-9
        quantiles.append(s[order][reached.argmax()])
        effective.append(weights.sum() ** 2 / (weights**2).sum())
    return np.average(quantiles, weights=effective)


def test_local_thresholds_resist_attacks_that_a_mean_of_quantiles_does_not(scenario):
    attacked = replace(scenario, malicious=np.arange(4))
    attacked_federation = apply_attack(get_attack("coverage"), attacked, np.random.default_rng(0))
    metrics = {
        name: scenario.measured(thresholds_of(name, scenario, attacked_federation) + 0.0)
        for name in baselines.BASELINES
    }
    coverage = {name: measured.measures()["coverage"] for name, measured in metrics.items()}
    assert min(coverage[name] for name in ("local-only", "local-clipped", "prism-fcp")) > 0.87
    assert coverage["fedwq-cp"] < 0.8


def test_the_full_comparison_has_every_method_with_and_without_attack(tmp_path):
    options = ("--workers", 1, "--attack", "coverage", "--json", "--plot", tmp_path / "f.png")
    cells = json.loads(command_output("experiments", "compare", "heart", *options))["cells"]
    assert {cell["defense"] for cell in cells} == set(redteam.METHODS)
    assert [*dict.fromkeys(cell["step"] for cell in cells)] == ["none", "1 client", "40%"]
    assert {cell["n_malicious"] for cell in cells} == {0, 1, 2}
    assert (tmp_path / "f.png").stat().st_size > 5000
    lines = {(line["method"], line["min_cell_count"]): line for line in redteam.ranking(cells)}
    for key in (("none", 5), ("none", 1)):
        (cell,) = (
            c
            for c in cells
            if (c["defense"], c["min_cell_count"]) == key and c["step"] == "1 client"
        )
        assert lines[key]["1 client"] == (cell["error"], cell["growth"])
    assert lines["none", 1]["growth"] == 1
    assert {("fedcp-qq", 1), ("marginal-guarantee", 5), ("marginal-guarantee", 1)} <= set(lines)
    assert ("fedcp-qq", 5) not in lines  # its clients send no reports of this package
    on_exact_counts = {
        line["method"] for line in lines.values() if redteam.is_on_exact_counts(line)
    }
    assert on_exact_counts == set(redteam.METHODS_ON_REPORTS)
    assert "is not among the compared data sets; choose from stroke" in command_error(
        "experiments", "compare", "imagenet"
    )


# Every attack against every defense

MALICIOUS_FRACTIONS = (0.4,) if EFFORT == 1 else (0.2, 0.4)
SMALL = {"n_clients": 8, "n_runs": 1, "trials": 1, "malicious_fractions": MALICIOUS_FRACTIONS}
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
    errors = {
        (cell.attack, cell.malicious_fraction, cell.defense): cell.coverage_error for cell in cells
    }
    assert len(errors) == len(cells) == 4 * len(MALICIOUS_FRACTIONS) * len(redteam.DEFENSES)
    repeated = redteam.redteam(*data, **SMALL, attacks=ATTACKED[:1])
    assert repeated == tuple(cell for cell in cells if cell.attack == "coverage")
    assert abs(errors["coverage", 0.4, Consensus.name]) <= 0.01
    assert errors["coverage", 0.4, "none"] < -0.04
    assert errors["coverage", 0.4, "rob-fcp"] < -0.1
    assert abs(errors["malformed", 0.4, "none"]) < 0.02
    for fraction, method in product(MALICIOUS_FRACTIONS, ("none", "fedcp-qq")):
        assert errors["adaptive", fraction, method] <= errors["coverage", fraction, method] + 1e-12


@pytest.mark.effort
def test_the_worst_cell_of_each_defense_is_the_greatest_error_and_framed(cells):
    for defense, cell in redteam.worst_cells(cells).items():
        errors = [abs(compared.coverage_error) for compared in cells if compared.defense == defense]
        assert abs(cell.coverage_error) == max(errors)
    bigger = replace(cells[0], attack="bigger", set_size=99.0)
    assert redteam.worst_cells((cells[0], bigger)) == {
        cells[0].defense: bigger
    }  # of equals, the larger sets
    assert sum(record["worst"] for record in redteam.to_records(cells)) == len(redteam.DEFENSES)
    for axis in redteam.plot_redteam(cells):
        assert sum(patch.get_edgecolor()[0] > 0.8 for patch in axis.patches) == len(
            redteam.DEFENSES
        )


def test_a_search_evaluates_attacks_by_the_reports_that_arrive():
    data = outputs(0, 600, 3)
    options = {"n_clients": 6, "n_runs": 1, "trials": 2, "malicious_fractions": (1 / 3,)}
    for defense, min_cell_count in (("consensus", 5), ("consensus", 1), ("majority-sets", 5)):
        config = ScenarioConfig(
            malicious_fraction=1 / 3, n_clients=6, min_cell_count=min_cell_count
        )
        scenario = make_scenario(*data, config, np.random.default_rng(0))
        attack = redteam._informed_attack(AdaptiveAttack(), defense, scenario, config, 2)
        result = attack.search(scenario.federation, scenario.malicious, 0)
        (row,) = evaluate_defenses(
            scenario, result.federation, [defense], config, attack="adaptive", seed=0
        )
        benign_scores = np.concatenate(
            [scenario.scores[k] for k in np.flatnonzero(scenario.benign)]
        )
        assert result.coverage == pytest.approx((benign_scores <= row.threshold).mean())
        assert row.min_cell_count == (min_cell_count if defense == "consensus" else 1)
    assert len(redteam.search_attacks(*data, **options)) == 1


@pytest.mark.slow
def test_a_search_gives_the_worst_scenarios_first_and_repeats_by_its_seed():
    data = outputs(0, 1500, 5)
    options = {"n_clients": 10, "n_runs": 2, "trials": 20, "beta": 0.3}
    fractions = (0.2, 0.4)
    searches = redteam.search_attacks(
        *data, defenses=("rob-fcp", "none"), malicious_fractions=fractions, **options
    )
    assert len(searches) == 8
    harms = [search["harm"] for search in searches]
    assert harms == sorted(harms)
    assert harms[0] == searches[0]["error"] - min(searches[0]["undefended"], 0) < -0.01
    assert all(search["harm"] >= 0 for search in searches if search["defense"] == "none")
    worst_fraction = (searches[0]["malicious_fraction"],)
    repeated = redteam.search_attacks(
        *data, defenses=("rob-fcp",), malicious_fractions=worst_fraction, **options
    )
    assert searches[0] in repeated


def test_the_command_searches_and_prints_and_writes_what_it_found(data, tmp_path):
    np.savez(tmp_path / "outputs.npz", probabilities=data[0], labels=data[1])
    command = (
        "experiments",
        "redteam",
        tmp_path / "outputs.npz",
        "--n-runs",
        1,
        "--malicious-fraction",
        0.4,
    )
    options = ("--search", 3, "--n-clients", 5, "--defense", "rob-fcp")
    (search,) = json.loads(
        command_output(*command, *options, "--json", "-o", tmp_path / "searches.json")
    )
    assert [search] == json.loads((tmp_path / "searches.json").read_text())
    assert "no harmful attack found in 3 steps" in command_output(*command, *options[:-1], "none")
    assert "--search" in command_error(*command, *options, "--attack", "coverage")
    options = ("--attack", "class-capture", "--n-clients", 10, "--by", "class")
    assert "* worst" in command_output(*command, *options, "--plot", tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"
    assert "at least one" in command_error(*command, "--n-runs", 0)
