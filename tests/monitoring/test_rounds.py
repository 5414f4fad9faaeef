"""The comparison of two rounds: levels, clients, drift, unchanged reports."""

import json
from fractions import Fraction

import numpy as np
import pytest
from effort import cases
from makers import LAC, beta_scores, command_error, command_output, reports_of, save_reports

import robfcp
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.monitoring import compare_rounds
from robfcp.monitoring._rounds import drift_distances, unchanged_clients

BINNING = robfcp.Binning.uniform(4)


def federation(rng, n_samples=200, n_clients=12, shifted=(), **context):
    """Return clients with scores of one distribution, except for those that are shifted."""
    scores = beta_scores(rng, n_clients, n_samples)
    for client in shifted:
        scores[client] = rng.beta(3, 2, n_samples)
    return Federation.from_reports(reports_of(scores, **context))


def calibration(reports, **options):
    return robfcp.calibrate(reports, **{"defense": "none", **options})


def compare_counts(previous_counts, current_counts, *, previous_clients=None, current_clients=None):
    """Return the comparison of two rounds of counts, calibrated without a defense."""
    previous = Federation.from_counts(previous_counts, BINNING, clients=previous_clients)
    current = Federation.from_counts(current_counts, BINNING, clients=current_clients)
    return compare_rounds(calibration(previous), calibration(current))


# Drift


@pytest.mark.effort
def test_clients_that_drift_are_named_and_others_rarely():
    rng = np.random.default_rng(0)
    previous = federation(rng, n_samples=500)
    current = federation(rng, n_samples=500, shifted=[3, 7])
    assert set(drift_distances(previous, current, 0.05)) == {"site-03", "site-07"}

    n_false_alarms = 0
    for _ in range(cases(40)):
        distances = drift_distances(federation(rng, 30), federation(rng, 90), 0.05)
        n_false_alarms += bool(distances)
    assert n_false_alarms <= 0.05 * cases(40)


@pytest.mark.parametrize(("n_beyond", "is_named"), [(-1, False), (1, True)])
def test_a_client_is_named_above_the_distance_of_the_formula(n_beyond, is_named):
    n_clients, n_samples = 3, 1000
    radius = 2 * np.sqrt(np.log(4 * n_clients / 0.05) / (2 * n_samples))
    moved = int(n_samples * radius) + n_beyond
    counts = [[301, 0, 0, 699]] * 2 + [[9, 1, 1, 9]]
    current_counts = [counts[0], [301 - moved, moved, 0, 699], counts[2]]

    previous = Federation.from_counts(counts, BINNING)
    distances = drift_distances(previous, Federation.from_counts(current_counts, BINNING), 0.05)

    expected = {"client-1": pytest.approx(moved / n_samples)} if is_named else {}
    assert distances == expected


def test_clients_are_compared_by_their_names():
    low, high = [900, 50, 25, 25], [25, 25, 50, 900]
    counts = [low, high, low]
    comparison = compare_counts(
        counts, counts, previous_clients=["b", "a", "c"], current_clients=["a", "c", "b"]
    )
    # Now a has the low scores that b and c had before; c has the high ones.
    assert set(comparison.drift_distances) == {"a", "c"}
    assert comparison.unchanged_clients == ("b",)


def coarsened_reports(rng, n_samples, shift=0.0):
    """Return coarsened reports of eight clients by ten classes."""
    reports = []
    for k in range(8):
        labels = rng.integers(0, 10, n_samples)
        scores = np.clip(rng.beta(0.6, 2.5, n_samples) + shift, 0, 1)
        report = robfcp.Report.from_scores(
            f"site-{k}", scores, score=LAC, labels=labels, classes=10, min_cell_count=5
        )
        reports.append(report)
    return Federation.from_reports(reports)


def test_coarsening_is_not_taken_for_drift():
    """By class it moves about 2.5 samples of each class up: 10% of small reports, 0.25% of others.

    Without allowing for it every comparison here would name a client.
    """
    rng = np.random.default_rng(0)
    small, large = coarsened_reports(rng, 250), coarsened_reports(rng, 10_000)
    assert small.is_coarsened.all()
    assert large.is_coarsened.all()
    assert drift_distances(small, large, 0.05) == {}

    shifted = coarsened_reports(rng, 10_000, shift=0.4)
    assert len(drift_distances(small, shifted, 0.05)) == 8


def noisy_federation():
    counts = np.random.default_rng(0).integers(50, 90, (6, 4))
    privacy = robfcp.Privacy(1.0)
    return Federation.from_counts(counts, BINNING, privacy=privacy, sample_sizes=counts.sum(axis=1))


def loss_federation(rng):
    """Return losses of samples that all have the same distribution."""
    reports = []
    for k in range(6):
        probabilities = rng.random((60, 5))
        truths = (rng.random((60, 5)) < 0.4).astype(int)
        reports.append(robfcp.Report.from_multilabel(f"site-{k}", probabilities, truths, BINNING))
    return Federation.from_reports(reports)


def test_drift_is_not_tested_where_reports_cannot_be_compared():
    exact = Federation.from_counts([[60, 50, 40, 50]] * 6, BINNING, score=LAC)
    other_score = Federation.from_counts([[60, 50, 40, 50]] * 6, BINNING, score=robfcp.APS())
    other_binning = Federation.from_counts([[60, 50, 40, 25, 25]] * 6, score=LAC)
    message = "drift was not tested: it needs scores of one kind on one binning, without noise"
    for current in (noisy_federation(), other_score, other_binning):
        comparison = compare_rounds(calibration(exact), calibration(current))
        assert not comparison.is_drift_tested
        assert comparison.drift_distances == {}
        assert message in comparison.lines

    assert compare_rounds(calibration(exact), calibration(exact)).is_drift_tested


def test_losses_of_one_distribution_do_not_drift():
    rng = np.random.default_rng(0)
    previous, current = (calibration(loss_federation(rng), risk_level=0.3) for _ in range(2))
    comparison = compare_rounds(previous, current)
    assert comparison.drift_distances == {}
    assert comparison.lines[0].startswith("mean fnr of at most 30%: threshold ")
    assert ", certified upper bound " in comparison.lines[0]


@pytest.mark.parametrize("delta", [0, 1, -0.1, float("nan"), "high"])
def test_a_false_alarm_has_a_probability(delta):
    calibrated = calibration(federation(0))
    with pytest.raises(RobfcpError, match="delta"):
        compare_rounds(calibrated, calibrated, delta=delta)


# Unchanged reports


def test_a_report_is_unchanged_where_every_count_is():
    previous = Federation.from_counts([[10, 10, 10, 10], [10, 10, 10, 10], [10, 10, 5, 4]], BINNING)
    current = Federation.from_counts([[10, 10, 10, 10], [10, 10, 9, 11], [10, 10, 5, 4]], BINNING)
    assert unchanged_clients(previous, current) == ("client-0",)  # the last has too few samples

    on_another_binning = Federation.from_counts(
        [[10, 10, 10, 10]] * 3, robfcp.Binning([0.0, 0.1, 0.2, 0.3, 1.0])
    )
    assert unchanged_clients(previous, on_another_binning) == ()


def test_a_private_report_is_unchanged_where_its_noise_is():
    private = noisy_federation()
    assert unchanged_clients(private, private) == private.clients


# Clients


def test_clients_join_and_leave():
    counts = [[40, 30, 20, 10]] * 3
    comparison = compare_counts(
        counts, counts, previous_clients=["a", "b", "c"], current_clients=["b", "d", "e"]
    )
    assert comparison.joined_clients == ("d", "e")
    assert comparison.left_clients == ("a", "c")
    assert comparison.unchanged_clients == ("b",)
    assert comparison.lines[1:3] == ["joined: d, e", "left: a, c"]


def test_rounds_without_a_common_client_have_nothing_to_compare():
    counts = [[40, 30, 20, 10]] * 2
    comparison = compare_counts(
        counts, counts, previous_clients=["a", "b"], current_clients=["c", "d"]
    )
    assert (comparison.drift_distances, comparison.unchanged_clients) == ({}, ())
    assert comparison.is_drift_tested


def test_flagged_clients_of_both_rounds_are_named():
    """A client that joins is not newly flagged, and one that left is not compared."""
    rng = np.random.default_rng(0)
    previous_scores = beta_scores(rng, 13, 300)
    current_scores = beta_scores(rng, 13, 300)
    for malicious in (0, 1, 3):
        previous_scores[malicious] = np.zeros(300)
    for malicious in (1, 2, 12):
        current_scores[malicious] = np.zeros(300)
    previous_reports = reports_of(previous_scores)[:12]
    current_reports = reports_of(current_scores)
    del current_reports[3]
    previous = calibration(previous_reports, defense=robfcp.Consensus(n_malicious=3))
    current = calibration(current_reports, defense=robfcp.Consensus(n_malicious=3))
    assert previous.flagged_clients == ("site-00", "site-01", "site-03")
    assert current.flagged_clients == ("site-01", "site-02", "site-12")

    comparison = compare_rounds(previous, current)

    assert comparison.newly_flagged_clients == ("site-02",)
    assert comparison.no_longer_flagged_clients == ("site-00",)
    assert comparison.joined_clients == ("site-12",)
    assert comparison.left_clients == ("site-03",)
    assert "newly flagged: site-02" in comparison.lines
    assert "no longer flagged: site-00" in comparison.lines


def test_many_clients_are_not_all_named_in_a_line():
    small_round, large_round = federation(0, n_clients=3), federation(0, n_clients=20)
    comparison = compare_rounds(calibration(small_round), calibration(large_round))
    assert len(comparison.joined_clients) == 17
    (line,) = (line for line in comparison.lines if line.startswith("joined: "))
    assert line.endswith(", site-14 and 5 more")


# Levels


def test_levels_are_compared_by_their_coverage():
    reports = federation(0)
    previous = calibration(reports, coverage=[0.7, 0.8])
    current = calibration(federation(1), coverage=[0.9, 0.8])

    (level,) = compare_rounds(previous, current).levels

    assert level.coverage == Fraction(4, 5)
    assert level.previous_threshold == previous.levels[1].threshold
    assert level.current_threshold == current.levels[1].threshold
    assert level.previous_lower == previous.levels[1].certificate.lower
    assert level.current_lower == current.levels[1].certificate.lower


def test_an_infinite_threshold_is_printed_as_infinite():
    finite_counts = [[10, 10, 10, 10]] * 3
    infinite_counts = [[1, 1, 1, 0]]
    previous = calibration(Federation.from_counts(finite_counts, BINNING))
    current = calibration(Federation.from_counts(infinite_counts, BINNING))
    (level,) = compare_rounds(previous, current).levels
    assert level.line == (
        "coverage 0.9: threshold 1 -> infinite, certified lower bound 95.85% -> 100%"
    )


def test_a_calibration_without_its_record_cannot_be_compared():
    complete = calibration(federation(0))
    with pytest.raises(RobfcpError, match="came without its record"):
        compare_rounds(complete.with_record(None), complete)


# The command


@pytest.fixture
def two_rounds(tmp_path, monkeypatch):
    """Return the files of two rounds; then one client has drifted and one report is unchanged."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    previous_paths = save_reports(tmp_path / "first", federation(rng, n_samples=500))
    current_paths = save_reports(tmp_path / "second", federation(rng, n_samples=500, shifted=[5]))
    current_paths[7] = previous_paths[7]
    command_output("calibrate", *previous_paths, "-o", "first.json")
    return previous_paths, current_paths


def test_the_command_prints_the_comparison_and_changes_no_file(two_rounds):
    _, current_paths = two_rounds
    arguments = "calibrate", *current_paths, "--exclude", "site-02"

    printed = command_output(*arguments, "-o", "compared.json", "--previous", "first.json")
    lines = printed.splitlines()
    start = lines.index("since first.json:")
    assert lines[start + 1].startswith("  coverage 0.9: threshold ")
    assert "  left: site-02" in lines
    assert "  drifted: site-05" in lines
    assert "  sent the report of the round before again: site-07" in lines

    without_previous = command_output(*arguments, "-o", "alone.json")
    assert "since" not in without_previous
    with open("compared.json", "rb") as compared, open("alone.json", "rb") as uncompared:
        assert compared.read() == uncompared.read()


def test_the_comparison_is_in_the_json(two_rounds):
    previous_paths, current_paths = two_rounds
    result = json.loads(
        command_output("calibrate", *current_paths, "--previous", "first.json", "--json")
    )

    comparison = result["comparison"]
    expected = compare_rounds(robfcp.calibrate(previous_paths), robfcp.calibrate(current_paths))
    assert comparison["drift_distances"] == dict(expected.drift_distances)
    assert comparison["unchanged_clients"] == ["site-07"]
    assert comparison["left_clients"] == []
    assert comparison["is_drift_tested"]
    assert comparison["levels"][0]["coverage"] == 0.9
    assert comparison["levels"][0]["current_threshold"] == expected.levels[0].current_threshold
    assert "comparison" not in json.loads(command_output("calibrate", *current_paths, "--json"))


@pytest.mark.parametrize(
    "option", ["-o first.json", "-o ./link.json", "--html first.json", "--feedback ."]
)
def test_the_previous_calibration_is_not_replaced(option, two_rounds, tmp_path):
    _, current_paths = two_rounds
    (tmp_path / "link.json").symlink_to("first.json")
    content = (tmp_path / "first.json").read_bytes()

    line = command_error("calibrate", *current_paths, "--previous", "first.json", *option.split())

    assert "would replace the inputs; choose another place" in line
    assert (tmp_path / "first.json").read_bytes() == content


def test_a_previous_calibration_without_its_record_is_refused_before_anything_is_written(
    two_rounds, tmp_path
):
    _, current_paths = two_rounds
    for record in tmp_path.glob("*.record.json"):
        record.unlink()
    line = command_error(
        "calibrate", *current_paths, "--previous", "first.json", "-o", "second.json"
    )
    assert "came without its record" in line
    assert not (tmp_path / "second.json").exists()


def test_reports_with_few_cells_may_be_equal_by_chance():
    counts = np.array([[0, 20, 20, 20], [0, 50, 50, 60]])
    exact = Federation.from_counts(counts, BINNING)
    assert unchanged_clients(exact, exact) == exact.clients
    coarse = Federation.from_counts(counts, BINNING, min_cell_count=5)
    assert unchanged_clients(coarse, coarse) == coarse.clients[1:]  # of 32 least cells
