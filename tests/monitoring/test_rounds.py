"""What changed from one round to the next: levels, clients, drift, reports sent again."""

import json
from fractions import Fraction

import numpy as np
import pytest
from effort import cases
from makers import LAC, beta_scores, refused, reports_of, said, saved

import robfcp
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.monitoring import compare_rounds
from robfcp.monitoring._rounds import drift_distances, unchanged_clients

GRID = robfcp.Binning.uniform(4)


def federation(rng, n_samples=200, n_clients=12, shifted=(), **context):
    """Clients with scores from one distribution, but for those that are shifted."""
    scores = beta_scores(rng, n_clients, n_samples)
    for client in shifted:
        scores[client] = rng.beta(3, 2, n_samples)
    return Federation.from_reports(reports_of(scores, **context))


def calibration(reports, **options):
    return robfcp.calibrate(reports, **{"defense": "none", **options})


def compare_counts(counts_before, counts_now, *, ids_before=None, ids_now=None):
    """The comparison of two rounds of counts, which are calibrated without a defense."""
    before = Federation.from_counts(counts_before, GRID, clients=ids_before)
    now = Federation.from_counts(counts_now, GRID, clients=ids_now)
    return compare_rounds(calibration(before), calibration(now))


# Drift


@pytest.mark.effort
def test_drift_of_a_client_is_named_and_chance_is_not():
    rng = np.random.default_rng(0)
    before = federation(rng, n_samples=500)
    now = federation(rng, n_samples=500, shifted=[3, 7])
    assert set(drift_distances(before, now, 0.05)) == {"site-03", "site-07"}

    n_false_alarms = 0
    for _ in range(cases(40)):
        distances = drift_distances(federation(rng, 30), federation(rng, 90), 0.05)
        n_false_alarms += bool(distances)
    assert n_false_alarms <= 0.05 * cases(40)


@pytest.mark.parametrize(("beyond", "is_named"), [(-1, False), (1, True)])
def test_the_distance_named_is_the_first_above_the_formula(beyond, is_named):
    n_clients, n_samples = 3, 1000
    radius = 2 * np.sqrt(np.log(4 * n_clients / 0.05) / (2 * n_samples))
    moved = int(n_samples * radius) + beyond
    counts = [[301, 0, 0, 699]] * 2 + [[9, 1, 1, 9]]
    counts_now = [counts[0], [301 - moved, moved, 0, 699], counts[2]]

    before = Federation.from_counts(counts, GRID)
    distances = drift_distances(before, Federation.from_counts(counts_now, GRID), 0.05)

    expected = {"client-1": pytest.approx(moved / n_samples)} if is_named else {}
    assert distances == expected


def test_clients_are_compared_with_themselves_in_whatever_order_they_stand():
    low, high = [900, 50, 25, 25], [25, 25, 50, 900]
    counts = [low, high, low]
    comparison = compare_counts(counts, counts, ids_before=["b", "a", "c"], ids_now=["a", "c", "b"])
    # Now a has the low scores that b and c had before; c has the high ones.
    assert set(comparison.drift_distances) == {"a", "c"}
    assert comparison.unchanged_clients == ("b",)


def coarsened_reports(rng, n_samples, shift=0.0):
    """Reports of eight clients whose counts keep five samples together, by ten classes."""
    reports = []
    for k in range(8):
        labels = rng.integers(0, 10, n_samples)
        scores = np.clip(rng.beta(0.6, 2.5, n_samples) + shift, 0, 1)
        report = robfcp.Report.from_scores(
            f"site-{k}", scores, score=LAC, labels=labels, classes=10, min_cell_count=5
        )
        reports.append(report)
    return Federation.from_reports(reports)


def test_rounding_to_five_samples_is_not_taken_for_drift():
    """By class it moves some 2.5 samples a class up: 10% of the small reports, 0.25% of the others.

    Without allowing for it every comparison here would name some client.
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
    return Federation.from_counts(counts, GRID, privacy=privacy, sample_sizes=counts.sum(axis=1))


def loss_federation(rng):
    """Losses of samples that all have the same distribution."""
    reports = []
    for k in range(6):
        probabilities = rng.random((60, 5))
        truths = (rng.random((60, 5)) < 0.4).astype(int)
        reports.append(robfcp.Report.from_multilabel(f"site-{k}", probabilities, truths, GRID))
    return Federation.from_reports(reports)


def test_drift_is_not_tested_where_reports_cannot_be_compared():
    exact = Federation.from_counts([[60, 50, 40, 50]] * 6, GRID, score=LAC)
    other_score = Federation.from_counts([[60, 50, 40, 50]] * 6, GRID, score=robfcp.APS())
    other_grid = Federation.from_counts([[60, 50, 40, 25, 25]] * 6, score=LAC)
    words = "drift was not tested: it needs scores of one kind on one grid, without noise"
    for now in (noisy_federation(), other_score, other_grid):
        comparison = compare_rounds(calibration(exact), calibration(now))
        assert not comparison.is_drift_tested
        assert comparison.drift_distances == {}
        assert words in comparison.lines

    assert compare_rounds(calibration(exact), calibration(exact)).is_drift_tested


def test_losses_of_one_distribution_are_not_said_to_drift():
    rng = np.random.default_rng(0)
    before, now = (calibration(loss_federation(rng), risk_level=0.3) for _ in range(2))
    comparison = compare_rounds(before, now)
    assert comparison.drift_distances == {}
    assert comparison.lines[0].startswith("mean fnr of at most 30%: threshold ")
    assert ", certified upper bound " in comparison.lines[0]


@pytest.mark.parametrize("delta", [0, 1, -0.1, float("nan"), "high"])
def test_a_false_alarm_has_a_probability(delta):
    one = calibration(federation(0))
    with pytest.raises(RobfcpError, match="delta"):
        compare_rounds(one, one, delta=delta)


# Reports sent again


def test_a_report_is_unchanged_where_every_count_is():
    before = Federation.from_counts([[10, 10, 10, 10], [10, 10, 10, 10], [10, 10, 5, 4]], GRID)
    now = Federation.from_counts([[10, 10, 10, 10], [10, 10, 9, 11], [10, 10, 5, 4]], GRID)
    assert unchanged_clients(before, now) == ("client-0",)  # the last has too few samples

    same_counts_on_another_grid = Federation.from_counts(
        [[10, 10, 10, 10]] * 3, robfcp.Binning([0.0, 0.1, 0.2, 0.3, 1.0])
    )
    assert unchanged_clients(before, same_counts_on_another_grid) == ()


def test_noise_shows_a_report_sent_again():
    private = noisy_federation()
    assert unchanged_clients(private, private) == private.clients


# Clients


def test_clients_join_and_leave():
    counts = [[40, 30, 20, 10]] * 3
    comparison = compare_counts(counts, counts, ids_before=["a", "b", "c"], ids_now=["b", "d", "e"])
    assert comparison.joined_clients == ("d", "e")
    assert comparison.left_clients == ("a", "c")
    assert comparison.unchanged_clients == ("b",)
    assert comparison.lines[1:3] == ["joined: d, e", "left: a, c"]


def test_rounds_without_a_common_client_have_nothing_to_compare():
    counts = [[40, 30, 20, 10]] * 2
    comparison = compare_counts(counts, counts, ids_before=["a", "b"], ids_now=["c", "d"])
    assert (comparison.drift_distances, comparison.unchanged_clients) == ({}, ())
    assert comparison.is_drift_tested


def test_flagged_clients_of_both_rounds_are_named():
    """A client that joins is not newly flagged, and one that left is no longer in question."""
    rng = np.random.default_rng(0)
    scores = beta_scores(rng, 13, 300)
    scores_now = beta_scores(rng, 13, 300)
    for malicious in (0, 1, 3):
        scores[malicious] = np.zeros(300)
    for malicious in (1, 2, 12):
        scores_now[malicious] = np.zeros(300)
    reports = reports_of(scores)[:12]
    reports_now = reports_of(scores_now)
    del reports_now[3]
    before = calibration(reports, defense=robfcp.Consensus(exactly=3))
    now = calibration(reports_now, defense=robfcp.Consensus(exactly=3))
    assert before.flagged_clients == ("site-00", "site-01", "site-03")
    assert now.flagged_clients == ("site-01", "site-02", "site-12")

    comparison = compare_rounds(before, now)

    assert comparison.newly_flagged_clients == ("site-02",)
    assert comparison.no_longer_flagged_clients == ("site-00",)
    assert comparison.joined_clients == ("site-12",)
    assert comparison.left_clients == ("site-03",)
    assert "newly flagged: site-02" in comparison.lines
    assert "no longer flagged: site-00" in comparison.lines


def test_many_clients_are_not_all_named_in_a_line():
    few, many = federation(0, n_clients=3), federation(0, n_clients=20)
    comparison = compare_rounds(calibration(few), calibration(many))
    assert len(comparison.joined_clients) == 17
    (line,) = (line for line in comparison.lines if line.startswith("joined: "))
    assert line.endswith(", site-14 and 5 more")


# Levels


def test_levels_are_compared_by_their_coverage():
    reports = federation(0)
    before = calibration(reports, coverage=[0.7, 0.8])
    now = calibration(federation(1), coverage=[0.9, 0.8])

    (level,) = compare_rounds(before, now).levels

    assert level.coverage == Fraction(4, 5)
    assert level.threshold_before == before.levels[1].threshold
    assert level.threshold_now == now.levels[1].threshold
    assert level.lower_before == before.levels[1].certificate.lower
    assert level.lower_now == now.levels[1].certificate.lower


def test_an_infinite_threshold_is_called_so():
    enough = [[10, 10, 10, 10]] * 3
    too_few = [[1, 1, 1, 0]]
    before = calibration(Federation.from_counts(enough, GRID))
    now = calibration(Federation.from_counts(too_few, GRID))
    (level,) = compare_rounds(before, now).levels
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
    """The files of two rounds; in the second one client drifted and one sends its old report."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    first = saved(tmp_path / "first", federation(rng, n_samples=500))
    second = saved(tmp_path / "second", federation(rng, n_samples=500, shifted=[5]))
    second[7] = first[7]
    said("calibrate", *first, "-o", "first.json")
    return first, second


def test_the_command_says_what_changed_and_changes_nothing(two_rounds):
    _, second = two_rounds
    words = "calibrate", *second, "--exclude", "site-02"

    printed = said(*words, "-o", "compared.json", "--previous", "first.json")
    lines = printed.splitlines()
    start = lines.index("since first.json:")
    assert lines[start + 1].startswith("  coverage 0.9: threshold ")
    assert "  left: site-02" in lines
    assert "  drifted: site-05" in lines
    assert "  sent the report of the round before again: site-07" in lines

    alone = said(*words, "-o", "alone.json")
    assert "since" not in alone
    with open("compared.json", "rb") as compared, open("alone.json", "rb") as uncompared:
        assert compared.read() == uncompared.read()


def test_the_comparison_is_in_the_json(two_rounds):
    first, second = two_rounds
    found = json.loads(said("calibrate", *second, "--previous", "first.json", "--json"))

    comparison = found["comparison"]
    expected = compare_rounds(robfcp.calibrate(first), robfcp.calibrate(second))
    assert comparison["drift_distances"] == dict(expected.drift_distances)
    assert comparison["unchanged_clients"] == ["site-07"]
    assert comparison["left_clients"] == []
    assert comparison["is_drift_tested"]
    assert comparison["levels"][0]["coverage"] == 0.9
    assert comparison["levels"][0]["threshold_now"] == expected.levels[0].threshold_now
    assert "comparison" not in json.loads(said("calibrate", *second, "--json"))


@pytest.mark.parametrize(
    "option", ["-o first.json", "-o ./link.json", "--html first.json", "--letters ."]
)
def test_the_previous_calibration_is_not_replaced(option, two_rounds, tmp_path):
    _, second = two_rounds
    (tmp_path / "link.json").symlink_to("first.json")
    before = (tmp_path / "first.json").read_bytes()

    line = refused("calibrate", *second, "--previous", "first.json", *option.split())

    assert "would replace the inputs; choose another place" in line
    assert (tmp_path / "first.json").read_bytes() == before


def test_a_previous_calibration_without_its_record_is_refused_before_anything_is_written(
    two_rounds, tmp_path
):
    _, second = two_rounds
    for record in tmp_path.glob("*.record.json"):
        record.unlink()
    line = refused("calibrate", *second, "--previous", "first.json", "-o", "second.json")
    assert "came without its record" in line
    assert not (tmp_path / "second.json").exists()


def test_few_cells_may_be_equal_by_chance():
    counts = np.array([[0, 20, 20, 20], [0, 50, 50, 60]])
    exact = Federation.from_counts(counts, GRID)
    assert unchanged_clients(exact, exact) == exact.clients
    coarse = Federation.from_counts(counts, GRID, min_cell_count=5)
    assert unchanged_clients(coarse, coarse) == coarse.clients[1:]  # of 32 least cells
