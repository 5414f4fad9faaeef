"""The monitor: rare false alarms, samples counted once, and states that survive a kill."""

import json
import multiprocessing
import time

import numpy as np
import pytest
from effort import cases
from makers import LAC, command_error, command_output, outputs, reports_by_class, write_table
from scipy.special import betaincinv

import robfcp
from robfcp.errors import RobfcpError
from robfcp.evaluation import coverage_floor
from robfcp.guarantees._local_bounds import local_threshold_range
from robfcp.local._threshold import LocalThreshold, calibrate_unseen_client, local_coverage_bound
from robfcp.monitoring import EValueReport, MonitorState
from robfcp.monitoring._state import MAX_POINTS

BINNING = robfcp.Binning.uniform(20)


def calibration(**options):
    federation = robfcp.Federation.from_counts([[50] * 20] * 20, BINNING, score=LAC)
    return robfcp.calibrate(federation, **{"defense": "none", **options})


CALIBRATION = calibration()
MARGINAL_CALIBRATION = calibration(guarantee=robfcp.MarginalGuarantee(1))


def samples(n_samples, miss_rate, seed):
    """Return two-class outputs whose LAC score exceeds the threshold at a given rate."""
    rng, threshold = np.random.default_rng(seed), CALIBRATION.threshold
    is_missed = rng.random(n_samples) < miss_rate
    score = np.where(
        is_missed,
        threshold + (1 - threshold) * rng.random(n_samples),
        threshold * rng.random(n_samples),
    )
    label = rng.integers(0, 2, n_samples)
    p = np.where(label[:, None] == np.arange(2), 1 - score[:, None], score[:, None])
    return p, label


def local_report(n_samples=200, seed=0, **options):
    return robfcp.Report.from_scores(
        "site-3", LAC(*samples(n_samples, 0.1, seed)), BINNING, score=LAC, **options
    )


def monitor(min_coverage=0.9, **options):
    return robfcp.Monitor(CALIBRATION, min_coverage=min_coverage, **{"seed": 1, **options})


@pytest.mark.effort
def test_false_alarms_are_as_rare_as_stated():
    """Clients exactly at the minimum coverage, inspected after each of 1000 samples, delta 0.1."""
    rng, n_alarms, n_below_target = np.random.default_rng(0), 0, 0
    n_trials = cases(100)
    for seed in range(n_trials):
        started = monitor(reference_report=local_report(100, seed), delta=0.1, seed=seed)
        assert started.state.log_alarm_threshold == pytest.approx(
            np.log(20)
        )  # both alarms share delta
        state = started.update(*samples(1000, 0.1, rng))
        n_alarms = n_alarms + state.has_alarm
        n_below_target = n_below_target + (state.target_missed_since is not None)
    assert max(n_alarms, n_below_target) <= 0.1 * n_trials + 2.33 * np.sqrt(0.09 * n_trials)


def test_the_line_states_whether_the_target_is_missed_also_without_an_alarm():
    started = monitor(min_coverage=0.8)
    assert (
        "the wanted 0.9000 is not shown to be missed" in started.update(*samples(40, 0.14, 0)).line
    )
    state = started.update(*samples(4000, 0.14, 1))
    assert not state.has_alarm
    assert 40 < state.target_missed_since < 4000
    assert f"the wanted 0.9000 is missed (shown at {state.target_missed_since})" in state.line
    assert started.update(*samples(500, 0.0, 2)).target_missed_since == state.target_missed_since


@pytest.mark.parametrize(("n_covered", "drop", "median"), [(0, 0.05, 800), (20_000, 0.1, 20_900)])
def test_a_drop_is_detected_soon_also_after_many_covered_samples(n_covered, drop, median):
    """Bets start at all times, so that 20,000 covered samples hardly delay the alarm."""
    alarm_steps = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        started = monitor(delta=0.01 if n_covered else 0.05, seed=seed)
        if n_covered:
            started.update(*samples(n_covered, 0.1, rng))
        alarm_steps.append(started.update(*samples(3000, 0.1 + drop, rng)).alarm_steps["coverage"])
    assert n_covered < min(alarm_steps) <= np.median(alarm_steps) < median
    p, y = samples(600, 0.02, 0)
    p = np.where(
        p > 0.5, 0.5 + (p - 0.5) * 0.3, 0.5 - (0.5 - p) * 0.3
    )  # less confident, still covered
    assert list(
        monitor(reference_report=local_report(500), min_coverage=0.85).update(p, y).alarm_steps
    ) == ["drift"]


def test_batches_and_single_samples_give_the_same():
    (p, y), states = samples(300, 0.25, 3), []
    for n_batches in (1, 7, 300):
        started = monitor(reference_report=local_report(), average_run_length=1000)
        for rows in np.array_split(np.arange(300), n_batches):
            state = started.update(p[rows], y[rows], ids=rows)
        states.append(state)
    assert {"coverage", "change"} <= set(states[0].alarm_steps)
    for name in ("alarm_steps", "n_samples", "n_missed", "row_ids"):
        assert len({str(getattr(state, name)) for state in states}) == 1
    for name in ("log_e_coverage", "log_shiryaev_roberts", "log_e_exchangeability"):
        values = [getattr(state, name) for state in states]
        np.testing.assert_allclose(values, values[0], rtol=1e-9)


def test_samples_are_counted_once_and_small_batches_need_names():
    p, y = samples(100, 0.1, 0)
    started = monitor()
    for batch, names, n_new in (
        ((p, y), {}, 100),
        ((p.copy(), y.tolist()), {}, 0),
        ((p, y), {"batch": "monday"}, 100),
        ((p[:50], y[:50]), {"batch": "monday"}, 0),
        ((p, y), {"ids": np.arange(100)}, 100),
        ((p, y), {"ids": np.arange(50, 150)}, 50),
        ((p[:2], y[:2]), {"ids": ["a", "a"]}, 1),
    ):
        previous = started.state
        assert started.update(*batch, **names).n_samples == previous.n_samples + n_new
        assert n_new or started.state == previous
    with pytest.raises(RobfcpError, match="name them"):
        started.update(p[:29], y[:29])


def test_repeated_rows_are_distinguished_from_new_ones_and_from_rounded_outputs():
    p, y = samples(6000, 0.1, 0)
    started, coarse = monitor(), monitor()
    for rows in np.arange(5000).reshape(10, 500):
        assert started.update(p[rows], y[rows]).n_repeated_rows == 0
        assert (
            coarse.update(p[rows].round(2), y[rows]).n_repeated_rows == 0
        )  # rounded outputs are equal by chance
    assert 150 < started.update(p[4750:5250], y[4750:5250]).n_repeated_rows < 350
    assert "rows came before" in started.state.line


def test_a_refused_batch_changes_nothing_and_a_score_at_the_threshold_is_covered(tmp_path):
    started = monitor(path=tmp_path / "m.json")
    started.update(*samples(50, 0.1, 0))
    for p, y in [([[0.5, 0.6]] * 40, [0] * 40), ([[0.5, 0.5]] * 40, [7] * 40)]:
        with pytest.raises(RobfcpError):
            started.update(p, y)
    assert MonitorState.load(tmp_path / "m.json") == started.state
    at_threshold = np.tile([1 - CALIBRATION.threshold, CALIBRATION.threshold], (40, 1))
    assert (started.state.n_samples, monitor().update(at_threshold, [0] * 40).n_missed) == (50, 0)


PRIVATE_REPORT = robfcp.Report(
    "a", [10] * 20, BINNING, LAC, n_samples=200, privacy=robfcp.Privacy(1.0)
)
TRIVIAL_CALIBRATION = robfcp.calibrate(
    robfcp.Federation.from_counts([[1, 1]], score=LAC), coverage=0.99, defense="none"
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 0}, "delta"),
        ({"min_coverage": 1}, "min_coverage"),
        ({"average_run_length": 0.5}, "average_run_length"),
        ({"client": "a\nb"}, "unprintable"),
        ({"reference_report": local_report(model="other")}, "model: not the calibration's"),
        ({"reference_report": PRIVATE_REPORT}, "holds noise"),
        ({"calibration": MARGINAL_CALIBRATION}, r"on average.*give min_coverage"),
        ({"calibration": TRIVIAL_CALIBRATION}, "every set is full"),
    ],
)
def test_contradicting_options_are_refused(options, message):
    with pytest.raises(RobfcpError, match=message):
        robfcp.Monitor(**({"calibration": CALIBRATION} | options))


def test_the_state_file_is_continued_and_only_by_the_same_monitor(tmp_path):
    path, options = tmp_path / "m.json", {"reference_report": local_report()}
    in_memory = monitor(**options)
    for seed in range(6):
        in_memory.update(*samples(80, 0.2, seed))
        monitor(path=path, **options).update(*samples(80, 0.2, seed))
    assert path.read_bytes() == in_memory.state.to_json()
    with pytest.raises(RobfcpError, match="watches another calibration"):
        robfcp.Monitor(calibration(coverage=0.8), path=path, min_coverage=0.9, **options)
    other_report = {"reference_report": local_report(seed=9)}
    for change in ({"delta": 0.01}, {"min_coverage": 0.8}, {"client": "b"}, other_report):
        with pytest.raises(RobfcpError, match="was begun with"):
            monitor(path=path, **{**options, **change})


def test_the_state_is_bounded_and_keeps_the_sample_of_an_alarm():
    started = monitor(reference_report=local_report())
    for batch_index in range(60):
        state = started.update(*samples(500, 0.5 if batch_index == 3 else 0.02, batch_index))
    points = {point.n_samples: point.log_e_coverage for point in state.points}
    alarm_step = state.alarm_steps["coverage"]
    assert points[alarm_step] >= -np.log(state.delta) > state.log_e_coverage
    assert len(points) <= MAX_POINTS + len(state.alarm_steps)
    assert (max(points), len(state.to_json()) < 60_000) == (30_000, True)


def update_repeatedly(path, first=0, last=24):
    for k in range(first, last):
        monitor(reference_report=local_report(), path=path).update(*samples(40, 0.12, k))


def start_updating(path, *ranges):
    """Start processes that update a monitor, each with a range of batches."""
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=update_repeatedly, args=(path, *range_)) for range_ in ranges]
    for process in processes:
        process.start()
    return processes


@pytest.mark.parametrize("times", [1, pytest.param(12, marks=pytest.mark.slow)])
def test_a_killed_monitor_ends_in_the_same_state(tmp_path, times):
    rng = np.random.default_rng(1)
    update_repeatedly(tmp_path / "whole.json")
    for _ in range(times):
        (process,) = start_updating(tmp_path / "m.json", (0, 24))
        time.sleep(float(rng.random()) * 0.2)
        process.kill()
        process.join()
    update_repeatedly(tmp_path / "m.json")
    assert (tmp_path / "m.json").read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_concurrent_processes_lose_no_samples(tmp_path):
    path = tmp_path / "m.json"
    monitor(reference_report=local_report(), path=path).update(*samples(30, 0.1, 99))
    for process in start_updating(path, (0, 12), (12, 24), (6, 18)):
        process.join(120)
        assert process.exitcode == 0
    assert MonitorState.load(path).n_samples == 30 + 24 * 40


def test_the_command_counts_batches_once_and_writes_reports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    CALIBRATION.save("c.json")
    local_report().save("own.json")
    write_table("mon.csv", *samples(120, 0.1, 0))
    write_table("tue.csv", *samples(400, 0.3, 1), ids=np.arange(400))
    arguments = ["monitor", "c.json", "mon.csv", "-s", "n.json", "--report", "e.json"]
    assert "the monitor has no name" in command_error(*arguments)
    assert not (tmp_path / "n.json").exists()  # nothing was counted
    command_output(*arguments[:-2])
    command_output(*arguments, "-c", "site-9")  # a monitor without a name can be given one
    assert EValueReport.load("e.json").client == "site-9"
    assert EValueReport.load("e.json").n_samples == 120
    common = ["monitor", "c.json", "--reference-report", "own.json", "--state", "m.json"]
    assert "no alarm: 120 samples" in command_output(*common, "mon.csv")
    small_batch = write_table("few.csv", *samples(9, 0.1, 0))
    assert "few.csv: samples: fewer than 30 may look like others" in command_error(
        *common, small_batch
    )
    write_table("more.csv", *(column[:90] for column in samples(120, 0.1, 0)))
    printed = command_output(*common, "mon.csv", "tue.csv", "more.csv", code=3)
    assert "mon.csv: 120 of 120 samples were counted before" in printed
    assert "more.csv: about 90 of 90 rows are the very same as rows before" in printed
    repeated = ("monitor", "c.json", "tue.csv", "tue.csv", "--id", "ID", "-s", "i.json", "--json")
    printed = json.loads(command_output(*repeated, code=3))
    assert (printed["n_samples"], printed["has_alarm"], printed["n_new"]) == (400, True, 400)
    printed = json.loads(
        command_output(
            "monitor", "c.json", "--reference-report", "own.json", "-s", "x.json", "--json"
        )
    )
    lower_bound = local_coverage_bound(local_report(), CALIBRATION.threshold, 1 - 0.05 / 20)
    assert (printed["min_coverage"], printed["target_coverage"]) == (
        lower_bound,
        0.9,
    )  # of the local report, not of the calibration


@pytest.mark.effort
def test_bounds_of_local_thresholds_of_20_clients_fail_together_as_rarely_as_stated():
    """80 uniform scores each: X_(a) covers less than the bound at one of 20 clients in 5%."""
    rng, n_rounds = np.random.default_rng(0), cases(800)
    thresholds = local_threshold_range(rng.random(80), 0.1)
    fields = (
        thresholds.upper,
        thresholds.lower,
        1.0,
        thresholds.marginal_lower,
        80,
        (1, 1, 1),
        None,
        0.0,
    )
    bound = coverage_floor(CALIBRATION, local_threshold=LocalThreshold(0.9, 1.0, *fields))
    local_lowers = np.sort(rng.random((n_rounds, 20, 80)))[
        :, :, round(81 * thresholds.marginal_lower) - 1
    ]
    n_failed = np.count_nonzero(local_lowers.min(axis=1) < bound.value)
    assert bound.source.endswith("0.95 confidence at all 20 sites together")
    expected = 0.05 * n_rounds
    assert n_failed <= expected + 3 * np.sqrt(expected)
    assert n_failed >= expected - 4 * np.sqrt(expected)  # and not because the bound is trivial


def test_a_local_threshold_is_evaluated_and_monitored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    client_outputs = {f"site-{k:02d}": outputs(k, 120, 2, 0.3) for k in range(6)}
    reports = reports_by_class(client_outputs.values(), ("flu", "cold"))
    of_round = robfcp.calibrate(reports, defense="none", guarantee=robfcp.MarginalGuarantee(1))
    p, y = outputs(11, 600, 2, 0.3)
    local, other_local = (
        of_round.feedback(name).calibrate_locally(*client_outputs[name])
        for name in ("site-02", "site-03")
    )
    n_missed, evaluation = (LAC(p, y) > local.threshold).sum(), local.evaluate(p, y)
    assert evaluation.overall.coverage == pytest.approx(1 - n_missed / 600)
    a = round(local.levels[0].marginal_lower * 121)
    assert evaluation.min_coverage.value == pytest.approx(betaincinv(a, 121 - a, 0.05 / 6))
    local_monitor = robfcp.Monitor(local, path="m.json", seed=0)
    state = local_monitor.update(p, y)
    assert (state.min_coverage, state.n_missed) == (evaluation.min_coverage.value, n_missed)
    assert local_monitor.e_value_report().client == "site-02"
    for other_source in (of_round, other_local):
        with pytest.raises(RobfcpError, match="monitors another threshold"):
            robfcp.Monitor(other_source, path="m.json", client="site-02", min_coverage=0.7)
    with pytest.raises(RobfcpError, match="has no name"):
        robfcp.Monitor(
            calibrate_unseen_client(of_round, *client_outputs["site-02"])
        ).e_value_report()
    of_round.feedback("site-02").save("feedback.json")
    write_table("own.csv", *client_outputs["site-02"], ("flu", "cold"))
    write_table("turned.csv", p[:, ::-1], 1 - y, ("cold", "flu"))  # columns are read by their names
    arguments = ("monitor", "feedback.json", "turned.csv", "--local-data", "own.csv", "--json")
    assert json.loads(command_output(*arguments, code=None))["n_missed"] == n_missed
