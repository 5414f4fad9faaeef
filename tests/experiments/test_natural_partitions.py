"""Natural federations: models that never saw a site, sites as they are, and what is measured."""

import json
from pathlib import Path

import numpy as np
import pytest
from makers import refused, said

from robfcp import LAC, Calibration, Report, RobfcpError, calibrate
from robfcp.experiments import natural_partitions, outputs, partitions, simulate
from robfcp.experiments.data_faults import (
    BENIGN_ONLY,
    CRAFTED_REPORT,
    FAULTS,
    compare_defenses,
    stroke_fault_scenario,
)
from robfcp.experiments.datasets import SiteTable
from robfcp.experiments.natural_partitions import LeaveOutSettings, leave_one_site_out
from robfcp.experiments.scenarios import ScenarioConfig, make_scenario
from robfcp.guarantees import MarginalGuarantee


@pytest.fixture(scope="module")
def stroke():
    return outputs.load("stroke", outputs.NATURAL)


def toy(label=lambda number: number % 2):
    """Four sites of 30 samples, told by a feature that names the site."""
    number = np.arange(120) % 4
    x = np.column_stack([number, np.random.default_rng(0).normal(size=120)]).astype(np.float32)
    sites = np.array([f"s{k}" for k in number])
    return SiteTable("toy", x, label(number).astype(np.int64), ("a", "b"), {"site": sites})


def test_no_site_is_predicted_by_a_model_that_saw_it():
    """Labels that only the site itself reveals cannot be learnt when it is left out."""
    alone = toy(lambda number: number == 3)
    _, logits, library = leave_one_site_out(alone, LeaveOutSettings(folds=4, iterations=5, least=2))
    chosen = logits.argmax(axis=1)
    assert (chosen[alone.sites == "s3"] == 0).all()  # class b was never seen in training
    assert (chosen == alone.y).mean() == pytest.approx(0.75)
    assert library.startswith("scikit-learn")


def test_leaving_out_is_seeded_thins_large_sites_and_refuses_one_site():
    settings = LeaveOutSettings(folds=2, iterations=5, least=2, per_site=10, seed=3)
    table, logits, _ = leave_one_site_out(toy(), settings)
    assert np.array_equal(logits, leave_one_site_out(toy(), settings)[1])
    assert np.unique(table.sites, return_counts=True)[1].tolist() == [10] * 4
    with pytest.raises(RobfcpError, match="1 site leaves none"):
        leave_one_site_out(toy().take(np.arange(0, 120, 4)), settings)


def test_natural_sites_own_their_samples_and_are_halved(stroke):
    sites, data = stroke.column("country"), (stroke.probabilities, stroke.labels)
    setting, scores = ScenarioConfig(share=0.0, sites=sites, min_size=50), LAC()(*data)
    world = make_scenario(*data, setting, np.random.default_rng(0))
    for name, own in zip(world.federation.clients, world.scores, strict=True):
        assert abs(2 * len(own) - (sites == name).sum()) <= 1
        assert np.isin(own, scores[sites == name]).all()
    tested = world.test_columns[np.arange(len(world.test_labels)), world.test_labels]
    mine = np.sort(np.concatenate([*world.scores, tested]))
    assert np.array_equal(mine, np.sort(scores[np.isin(sites, world.federation.clients)]))
    for wrong, word in (({"beta": 0.5}, "natural sites are as"), ({"sites": [*"ab"]}, "2 names")):
        with pytest.raises(RobfcpError, match=word):
            simulate(*data, **{"sites": sites, **wrong})


def test_gross_lies_are_found_among_real_hospitals_and_nobody_is_accused():
    for place, share, found in ((2, 0.0, ("nobody lies", 4, 0)), (0, 0.2, ("efficiency", 94, 24))):
        rows = natural_partitions.attack_runs(
            natural_partitions.FEDERATIONS[place], ("efficiency",), share, 1
        )
        for row, kind in zip(rows, ("default", "exact"), strict=True):
            assert row["reports"] == kind
            assert (row["attack"], row["honest"], row["consensus_found"]) == found
            assert row["consensus_false_alarms"] == 0


def test_the_commands_take_natural_sites(tmp_path):
    words = ("--sites", "natural", "--seeds", 1, "--share", 0.25)
    given = outputs.load("heart", outputs.NATURAL)
    own, trained = tmp_path / "own.npz", tmp_path / "trained.npz"
    table = {"probabilities": given.probabilities, "labels": given.labels}
    np.savez(own, **table, ward=given.column("group"))
    outputs.write(trained, np.log(given.probabilities), given.labels, columns=given.columns)
    for data, more, expected in (
        ("stroke", ("--site-column", "country", "--min-size", 100), 24),
        (own, ("--site-column", "ward"), 2),
        (trained, (), 4),
        ("mnist", (), "mnist has no sites of its own; use one of stroke, heart"),
        ("heart", ("--site-column", "x"), "no column 'x'"),
        ("heart", ("--sites", "wild"), "'wild' is unknown here; use artificial or natural"),
        (own, (), "has no array 'site'"),
    ):
        if isinstance(expected, str):
            assert expected in refused("lab", "simulate", data, *words, *more)
        else:
            rows = json.loads(said("lab", "simulate", data, *words, *more, "--json"))["rows"]
            assert {row["n_clients"] for row in rows} == {expected}


def test_sites_get_what_each_rule_gives_them_and_letters_help_the_worst():
    rows, rules = natural_partitions.client_table(natural_partitions.FEDERATIONS[2], n_runs=2)
    weights = [row["samples"] for row in rows]
    assert weights == [303, 294, 123, 200]
    by_rule = {row["rule"]: row for row in rules}
    assert list(by_rule) == ["pooled", "dealt", "by class", "letter", "own data"]
    for rule in natural_partitions.METHODS:
        found, own = by_rule[rule], [row[rule] for row in rows]
        assert found["overall"] == pytest.approx(np.average(own, weights=weights))
        assert min(own) == found["worst"] <= found["tenth"] <= found["best"] == max(own)
    assert by_rule["letter"]["worst"] > by_rule["pooled"]["worst"]


@pytest.mark.parametrize("min_cell_count", [5, 1])
def test_outcomes_at_a_site_are_those_of_its_prediction_sets(stroke, min_cell_count):
    """Against loops, with the halves drawn as make_world draws them."""
    p, y, sites = stroke.probabilities, stroke.labels, stroke.column("country")
    rules = {
        "pooled": {},
        "by class": {"by": "class"},
        "letter": {"guarantee": MarginalGuarantee(1)},
    }
    found = natural_partitions.client_outcomes(
        p,
        y,
        sites,
        methods=tuple(rules),
        n_runs=1,
        min_size=700,
        min_cell_count=min_cell_count,
    )
    parts = partitions.partition_by_site(sites, 700)
    rng = np.random.default_rng([0, 0])
    halves = [np.array_split(rng.permutation(part), 2) for part in parts.values()]
    owned = zip(parts, halves, strict=True)
    options = {"classes": 4, "min_cell_count": min_cell_count}
    own_samples = [(name, p[own], y[own]) for name, (own, _) in owned]
    for rule, told in rules.items():
        needs_classes = rule != "pooled"
        reports = [
            Report.from_predictions(*given, stratify_by_class=needs_classes, **options)
            for given in own_samples
        ]
        calibration = calibrate(reports, defense="none", **told)
        for k, (own, test) in enumerate(halves):
            used = calibration
            if rule == "letter":
                used = calibration.feedback(reports[k].client).calibrate_locally(p[own], y[own])
            sets = used.predict_set(p[test])
            hit = sets[np.arange(len(test)), y[test]].mean()
            covered, sizes, _ = found[rule]
            assert (covered[k], sizes[k]) == pytest.approx((hit, sets.sum(axis=1).mean()))


def test_own_losses_hold_a_sites_risk_where_pooled_control_fails_under_liars():
    loss, size, owners = natural_partitions.client_losses("several labels")
    assert (np.diff(loss) <= 0).all()
    assert (size[:, -1] == 5).all()
    assert {len(rows) for rows in owners} == {100}
    found = {
        row["rule"]: row for row in natural_partitions.client_risks("several labels", 0.2, n_runs=1)
    }
    assert tuple(found) == natural_partitions.RISK_METHODS
    assert found["pooled"]["loss"] > 0.11 > found["letter"]["loss"]
    assert found["pooled"]["worst_site"] > 0.3 > found["letter"]["worst_site"]
    assert found["own data"]["above"] == 0 < found["letter"]["above"] < found["pooled"]["above"]


# The demo's story: what is wrong at some hospitals, and what it costs the others


def test_every_fault_happens_once_and_lines_are_what_thresholds_give_the_test_patients():
    story = stroke_fault_scenario(n_malicious=3, seed=4, min_cell_count=1)
    assert sorted(story.faults.values()) == sorted([*FAULTS, *[CRAFTED_REPORT] * 3])
    for one in story.reports:
        wrong = story.faults.get(one.client)
        assert (one.counts[0] == one.n_samples) == (wrong == CRAFTED_REPORT)
        if wrong is None:
            assert abs(one.n_samples - 2 * len(story.tests[one.client][1])) <= 2
    default = stroke_fault_scenario(n_malicious=3, seed=4)
    assert default.faults == story.faults
    for one, exact in zip(default.reports, story.reports, strict=True):
        assert (one.min_cell_count, one.strata, one.n_samples) == (5, None, exact.n_samples)
        assert one.class_totals is not None
    story = stroke_fault_scenario(seed=2)
    lines = {line["defence"]: line for line in compare_defenses(story, ("none",))}
    limit = calibrate(story.reports, defense="none").threshold
    own = [LAC()(*story.tests[one.client]) <= limit for one in story.benign_reports]
    label, everybody = (
        (story.tests[one.client][1] for one in story.benign_reports),
        np.concatenate(own),
    )
    label = np.concatenate([*label])
    assert lines["none"]["coverage"] == pytest.approx(everybody.mean())
    assert lines["none"]["worst_site"] == min(part.mean() for part in own)
    assert lines["none"]["worst_class"] == min(everybody[label == c].mean() for c in range(4))
    assert lines["none"]["coverage"] < lines[BENIGN_ONLY]["coverage"] - 0.02
    assert lines[BENIGN_ONLY]["found"] == lines[BENIGN_ONLY]["false_alarms"] == 0


@pytest.mark.slow
def test_demo_ends_with_a_page_and_the_reports(tmp_path):
    out = tmp_path / "out"
    told = json.loads(said("demo", "-o", out, "--json"))
    assert [line["defence"] for line in told["lines"]][:2] == [BENIGN_ONLY, "none"]
    liars = [name for name, fault in told["faults"].items() if fault == CRAFTED_REPORT]
    assert all(told["said"][name] == "scores all equal" for name in liars)
    recovered = [1 - told["lines"][k]["by_class"][3] for k in (0, 1, -1)]  # honest, none, ours
    assert recovered[1] > 1.5 * recovered[0] > recovered[2]
    paper = " ".join((Path(__file__).parents[2] / "paper.md").read_text().split())
    exact_honest, exact_ours = told["exact_lines"]
    assert abs(exact_honest["coverage"] - told["lines"][0]["coverage"]) < 0.02
    assert abs(exact_ours["coverage"] - exact_honest["coverage"]) < 0.02
    honest, plain, ours = (round(1000 * one) for one in recovered)
    assert f"misses {plain} of 1,000 patients who recovered" in paper
    assert f"would miss {honest}, and the defended threshold {ours}. It left out " in paper
    assert f"{told['lines'][-1]['found']} of the 24 wrong reports and no right one" in paper
    assert {"calibration.json", "demo.json", "page.html"} <= {path.name for path in out.iterdir()}
    again = calibrate([Report.load(path) for path in (out / "reports").iterdir()])
    assert len(again.federation.clients) == 49
    assert (again.federation.min_cell_counts == 5).all()
    assert again.threshold == Calibration.load(out / "calibration.json").threshold
