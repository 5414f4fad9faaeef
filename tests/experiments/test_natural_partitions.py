"""Natural partitions: models that never saw a site, sites as they are, and what is measured."""

import json
from pathlib import Path

import numpy as np
import pytest
from makers import command_error, command_output

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


def toy(label=lambda index: index % 2):
    """Four sites of 30 samples, with a feature that names the site."""
    index = np.arange(120) % 4
    x = np.column_stack([index, np.random.default_rng(0).normal(size=120)]).astype(np.float32)
    sites = np.array([f"s{k}" for k in index])
    return SiteTable("toy", x, label(index).astype(np.int64), ("a", "b"), {"site": sites})


def test_no_site_is_predicted_by_a_model_that_saw_it():
    """Labels that only the site itself reveals cannot be learnt when it is left out."""
    table = toy(lambda index: index == 3)
    _, logits, library = leave_one_site_out(
        table, LeaveOutSettings(folds=4, iterations=5, min_samples=2)
    )
    predicted = logits.argmax(axis=1)
    assert (predicted[table.sites == "s3"] == 0).all()  # class b was never seen in training
    assert (predicted == table.y).mean() == pytest.approx(0.75)
    assert library.startswith("scikit-learn")


def test_leaving_out_is_seeded_thins_large_sites_and_refuses_one_site():
    settings = LeaveOutSettings(folds=2, iterations=5, min_samples=2, per_site=10, seed=3)
    table, logits, _ = leave_one_site_out(toy(), settings)
    assert np.array_equal(logits, leave_one_site_out(toy(), settings)[1])
    assert np.unique(table.sites, return_counts=True)[1].tolist() == [10] * 4
    with pytest.raises(RobfcpError, match="1 site leaves none"):
        leave_one_site_out(toy().take(np.arange(0, 120, 4)), settings)


def test_natural_sites_keep_their_samples_and_are_halved(stroke):
    sites, data = stroke.column("country"), (stroke.probabilities, stroke.labels)
    config, scores = (
        ScenarioConfig(malicious_fraction=0.0, partition=sites, min_client_size=50),
        LAC()(*data),
    )
    scenario = make_scenario(*data, config, np.random.default_rng(0))
    for name, client_scores in zip(scenario.federation.clients, scenario.scores, strict=True):
        assert abs(2 * len(client_scores) - (sites == name).sum()) <= 1
        assert np.isin(client_scores, scores[sites == name]).all()
    tested = scenario.test_label_scores[np.arange(len(scenario.test_labels)), scenario.test_labels]
    all_scores = np.sort(np.concatenate([*scenario.scores, tested]))
    assert np.array_equal(all_scores, np.sort(scores[np.isin(sites, scenario.federation.clients)]))
    for options, message in (
        ({"beta": 0.5}, "natural clients are as"),
        ({"partition": [*"ab"]}, "2 names"),
    ):
        with pytest.raises(RobfcpError, match=message):
            simulate(*data, **{"partition": sites, **options})


def test_gross_attacks_are_detected_among_real_hospitals_without_false_positives():
    for index, fraction, expected in ((2, 0.0, ("none", 4, 0)), (0, 0.2, ("efficiency", 94, 24))):
        rows = natural_partitions.attack_runs(
            natural_partitions.FEDERATIONS[index], ("efficiency",), fraction, 1
        )
        for row, kind in zip(rows, ("default", "exact"), strict=True):
            assert row["reports"] == kind
            assert (row["attack"], row["n_benign"], row["consensus_n_detected"]) == expected
            assert row["consensus_n_false_positives"] == 0


def test_the_commands_take_natural_sites(tmp_path):
    options = ("--partition", "natural", "--n-runs", 1, "--malicious-fraction", 0.25)
    shipped = outputs.load("heart", outputs.NATURAL)
    outputs_path, logits_path = tmp_path / "own.npz", tmp_path / "trained.npz"
    table = {"probabilities": shipped.probabilities, "labels": shipped.labels}
    np.savez(outputs_path, **table, ward=shipped.column("group"))
    outputs.write_outputs(
        logits_path, np.log(shipped.probabilities), shipped.labels, columns=shipped.columns
    )
    for data, more, expected in (
        ("stroke", ("--site-column", "country", "--min-client-size", 100), 24),
        (outputs_path, ("--site-column", "ward"), 2),
        (logits_path, (), 4),
        ("mnist", (), "mnist has no sites of its own; use one of stroke, heart"),
        ("heart", ("--site-column", "x"), "no column 'x'"),
        ("heart", ("--partition", "wild"), "'wild' is unknown here; use artificial or natural"),
        (outputs_path, (), "has no array 'site'"),
    ):
        if isinstance(expected, str):
            assert expected in command_error("experiments", "simulate", data, *options, *more)
        else:
            rows = json.loads(
                command_output("experiments", "simulate", data, *options, *more, "--json")
            )["rows"]
            assert {row["n_clients"] for row in rows} == {expected}


def test_sites_get_the_coverage_of_each_method_and_feedback_helps_the_worst():
    rows, summaries = natural_partitions.client_table(natural_partitions.FEDERATIONS[2], n_runs=2)
    weights = [row["samples"] for row in rows]
    assert weights == [303, 294, 123, 200]
    by_method = {row["method"]: row for row in summaries}
    assert list(by_method) == [
        "pooled",
        "dealt",
        "class-conditional",
        "local-clipped",
        "local-only",
    ]
    for method in natural_partitions.METHODS:
        summary, coverages = by_method[method], [row[method] for row in rows]
        assert summary["overall"] == pytest.approx(np.average(coverages, weights=weights))
        assert (
            min(coverages)
            == summary["worst"]
            <= summary["tenth"]
            <= summary["best"]
            == max(coverages)
        )
    assert by_method["local-clipped"]["worst"] > by_method["pooled"]["worst"]


@pytest.mark.parametrize("min_cell_count", [5, 1])
def test_coverage_and_size_at_a_site_are_those_of_its_prediction_sets(stroke, min_cell_count):
    """Against loops, with the halves drawn as make_scenario draws them."""
    p, y, sites = stroke.probabilities, stroke.labels, stroke.column("country")
    options_of_method = {
        "pooled": {},
        "class-conditional": {"by": "class"},
        "local-clipped": {"guarantee": MarginalGuarantee(1)},
    }
    outcomes = natural_partitions.client_outcomes(
        p,
        y,
        sites,
        methods=tuple(options_of_method),
        n_runs=1,
        min_size=700,
        min_cell_count=min_cell_count,
    )
    partition = partitions.partition_by_site(sites, 700)
    rng = np.random.default_rng([0, 0])
    halves = [np.array_split(rng.permutation(rows), 2) for rows in partition.values()]
    named_halves = zip(partition, halves, strict=True)
    options = {"classes": 4, "min_cell_count": min_cell_count}
    client_samples = [
        (name, p[calibration_rows], y[calibration_rows])
        for name, (calibration_rows, _) in named_halves
    ]
    for method, method_options in options_of_method.items():
        needs_classes = method != "pooled"
        reports = [
            Report.from_predictions(*samples, stratify_by_class=needs_classes, **options)
            for samples in client_samples
        ]
        calibration = calibrate(reports, defense="none", **method_options)
        for k, (calibration_rows, test) in enumerate(halves):
            used_calibration = calibration
            if method == "local-clipped":
                used_calibration = calibration.feedback(reports[k].client).calibrate_locally(
                    p[calibration_rows], y[calibration_rows]
                )
            sets = used_calibration.predict_set(p[test])
            hit = sets[np.arange(len(test)), y[test]].mean()
            covered, sizes, _ = outcomes[method]
            assert (covered[k], sizes[k]) == pytest.approx((hit, sets.sum(axis=1).mean()))


def test_local_losses_control_the_risk_of_a_site_where_pooled_losses_fail_under_attack():
    loss, size, owners = natural_partitions.client_losses("several labels")
    assert (np.diff(loss) <= 0).all()
    assert (size[:, -1] == 5).all()
    assert {len(rows) for rows in owners} == {100}
    rows_of_method = {
        row["method"]: row
        for row in natural_partitions.client_risks("several labels", 0.2, n_runs=1)
    }
    assert tuple(rows_of_method) == natural_partitions.RISK_METHODS
    assert rows_of_method["pooled"]["loss"] > 0.11 > rows_of_method["local-clipped"]["loss"]
    assert (
        rows_of_method["pooled"]["worst_client"]
        > 0.3
        > rows_of_method["local-clipped"]["worst_client"]
    )
    assert (
        rows_of_method["local-only"]["above"]
        == 0
        < rows_of_method["local-clipped"]["above"]
        < rows_of_method["pooled"]["above"]
    )


# The demo's scenario: faults at some hospitals, and what they cost the others


def test_every_fault_happens_once_and_lines_are_what_thresholds_give_the_test_patients():
    scenario = stroke_fault_scenario(n_malicious=3, seed=4, min_cell_count=1)
    assert sorted(scenario.faults.values()) == sorted([*FAULTS, *[CRAFTED_REPORT] * 3])
    for report in scenario.reports:
        cause = scenario.faults.get(report.client)
        assert (report.counts[0] == report.n_samples) == (cause == CRAFTED_REPORT)
        if cause is None:
            assert abs(report.n_samples - 2 * len(scenario.tests[report.client][1])) <= 2
    default = stroke_fault_scenario(n_malicious=3, seed=4)
    assert default.faults == scenario.faults
    for report, exact in zip(default.reports, scenario.reports, strict=True):
        assert (report.min_cell_count, report.strata, report.n_samples) == (
            5,
            None,
            exact.n_samples,
        )
        assert report.class_totals is not None
    scenario = stroke_fault_scenario(seed=2)
    lines = {line["defense"]: line for line in compare_defenses(scenario, ("none",))}
    threshold = calibrate(scenario.reports, defense="none").threshold
    covered_of_clients = [
        LAC()(*scenario.tests[report.client]) <= threshold for report in scenario.benign_reports
    ]
    label, is_covered = (
        (scenario.tests[report.client][1] for report in scenario.benign_reports),
        np.concatenate(covered_of_clients),
    )
    label = np.concatenate([*label])
    assert lines["none"]["coverage"] == pytest.approx(is_covered.mean())
    assert lines["none"]["worst_client_coverage"] == min(
        covered.mean() for covered in covered_of_clients
    )
    assert lines["none"]["worst_class_coverage"] == min(
        is_covered[label == c].mean() for c in range(4)
    )
    assert lines["none"]["coverage"] < lines[BENIGN_ONLY]["coverage"] - 0.02
    assert lines[BENIGN_ONLY]["n_detected"] == lines[BENIGN_ONLY]["n_false_positives"] == 0


@pytest.mark.slow
def test_demo_ends_with_a_page_and_the_reports(tmp_path):
    folder = tmp_path / "out"
    result = json.loads(command_output("demo", "-o", folder, "--json"))
    assert [line["defense"] for line in result["methods"]][:2] == [BENIGN_ONLY, "none"]
    malicious = [name for name, cause in result["faults"].items() if cause == CRAFTED_REPORT]
    assert all(result["diagnoses"][name] == "scores all equal" for name in malicious)
    recovered = [
        1 - result["methods"][k]["class_coverage"][3] for k in (0, 1, -1)
    ]  # benign only, no defense, Consensus
    assert recovered[1] > 1.5 * recovered[0] > recovered[2]
    paper = " ".join((Path(__file__).parents[2] / "paper.md").read_text().split())
    exact_benign, exact_defended = result["methods_on_exact_counts"]
    assert abs(exact_benign["coverage"] - result["methods"][0]["coverage"]) < 0.02
    assert abs(exact_defended["coverage"] - exact_benign["coverage"]) < 0.02
    benign, undefended, defended = (round(1000 * fraction) for fraction in recovered)
    assert f"misses {undefended} of 1,000 patients who recovered" in paper
    assert f"would miss {benign}, and the defended threshold {defended}. It left out " in paper
    assert (
        f"{result['methods'][-1]['n_detected']} of the 24 wrong reports and no right one" in paper
    )
    assert {"calibration.json", "demo.json", "page.html"} <= {
        path.name for path in folder.iterdir()
    }
    repeated = calibrate([Report.load(path) for path in (folder / "reports").iterdir()])
    assert len(repeated.federation.clients) == 49
    assert (repeated.federation.min_cell_counts == 5).all()
    assert repeated.threshold == Calibration.load(folder / "calibration.json").threshold
