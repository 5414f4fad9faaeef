"""The monitor: it rings as rarely as it says, counts nothing twice, and survives being killed."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from effort import cases
from typer.testing import CliRunner

import robfcp
from robfcp.calibration.sealed import digest_of
from robfcp.cli import app
from robfcp.errors import RobfcpError
from robfcp.monitoring import monitor as betting
from robfcp.monitoring import monitor as states

LAC = robfcp.LAC()
GRID = robfcp.Grid.uniform(20)


def calibration(**options):
    federation = robfcp.Federation.from_counts([[50] * 18 + [50] * 2] * 20, GRID, score=LAC)
    return robfcp.calibrate(federation, **{"defence": "none", "malicious": 1, **options})


CALIBRATION = calibration()


def samples(n, missing, rng):
    """Two-class outputs whose LAC score of the true label exceeds the threshold that often."""
    limit = CALIBRATION.threshold
    missed = rng.random(n) < missing
    score = np.where(missed, limit + (1 - limit) * rng.random(n), limit * rng.random(n))
    label = rng.integers(0, 2, n)
    p = np.where(label[:, None] == np.arange(2), 1 - score[:, None], score[:, None])
    return p, label


def own_report(n=200, seed=0, **options):
    p, y = samples(n, 0.1, np.random.default_rng(seed))
    return robfcp.Report.from_scores("site-3", LAC(p, y), GRID, score=LAC, **options)


@pytest.mark.effort
def test_a_site_that_keeps_the_promise_rings_as_rarely_as_stated():
    """Sites exactly at the floor, looked at after each of 1000 samples, delta 0.1."""
    rng, rung = np.random.default_rng(0), {"coverage": 0, "drift": 0}
    number = cases(100)
    for seed in range(number):
        report = own_report(100, seed)
        watch = robfcp.Monitor(CALIBRATION, report=report, floor=0.9, delta=0.1, seed=seed)
        for name in watch.update(*samples(1000, 0.1, rng)).alarms:
            rung[name] += 1
    most = 0.1 * number + 2.33 * np.sqrt(0.09 * number)
    assert rung["coverage"] <= most
    assert rung["drift"] <= most


@pytest.mark.slow
def test_against_an_average_level_good_sites_would_ring():
    """Why the floor must hold for this calibration: 1 - alpha rings far more often than delta."""
    rng, rung = np.random.default_rng(0), 0
    for _ in range(200):
        score = np.sort(rng.random(200))
        threshold = score[180]  # conformal at 0.9 for n = 200
        factors = betting.log_factors(0.9, rng.random(10_000) > threshold)
        started = betting.log_started(np.full(betting.N_BETS, -np.inf), 0, factors)
        rung += betting.log_wealth(started, 0).max() >= np.log(20)
    assert rung > 30


@pytest.mark.parametrize("drop", [0.05, 0.1])
def test_a_drop_is_seen(drop):
    found = []
    for seed in range(20):
        watch = robfcp.Monitor(CALIBRATION, floor=0.9, seed=seed)
        reading = watch.update(*samples(3000, 0.1 + drop, np.random.default_rng(seed)))
        found.append(reading.alarms.get("coverage", np.inf))
    assert max(found) < np.inf
    assert np.median(found) < {0.05: 800, 0.1: 250}[drop]


def test_a_drop_after_a_long_good_time_is_seen_too():
    """Betting starts anew all the time: 20,000 good samples delay the alarm by little."""
    found = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        watch = robfcp.Monitor(CALIBRATION, floor=0.9, delta=0.01, seed=seed)
        watch.update(*samples(20_000, 0.1, rng))
        found.append(watch.update(*samples(3000, 0.2, rng)).alarms.get("coverage", np.inf))
    assert min(found) > 20_000
    assert np.median(found) < 20_900


def test_drifting_scores_are_seen_while_coverage_still_holds():
    rng = np.random.default_rng(0)
    watch = robfcp.Monitor(CALIBRATION, report=own_report(500), floor=0.85, seed=1)
    p, y = samples(600, 0.02, rng)
    p = np.where(p > 0.5, 0.5 + (p - 0.5) * 0.3, 0.5 - (0.5 - p) * 0.3)  # less sure, still covered
    reading = watch.update(p, y)
    assert list(reading.alarms) == ["drift"]


def test_batches_and_single_samples_give_the_same():
    p, y = samples(300, 0.25, np.random.default_rng(3))
    names = np.arange(300)
    options = {"report": own_report(), "floor": 0.9, "seed": 5, "run_length": 1000}
    one, many, single = (robfcp.Monitor(CALIBRATION, **options) for _ in range(3))
    whole = one.update(p, y, ids=names)
    for rows in np.array_split(names, 7):
        parts = many.update(p[rows], y[rows], ids=rows)
    for k in names:
        ones = single.update(p[[k]], y[[k]], ids=[k])
    assert whole.alarms == parts.alarms == ones.alarms
    assert {"coverage", "change"} <= set(whole.alarms)
    for name in ("n", "misses"):
        assert getattr(whole, name) == getattr(parts, name) == getattr(ones, name)
    for name in ("log_coverage", "log_change", "log_drift"):
        values = [getattr(reading, name) for reading in (whole, parts, ones)]
        np.testing.assert_allclose(values, values[0], rtol=1e-9)


def test_nothing_is_counted_twice():
    p, y = samples(100, 0.1, np.random.default_rng(0))
    watch = robfcp.Monitor(CALIBRATION, floor=0.9)
    for samples_of, names, new in (
        ((p, y), {}, 100),
        ((p, y), {}, 0),
        ((p.copy(), y.tolist()), {}, 0),
        ((p, y), {"batch": "monday"}, 100),
        ((p[:50], y[:50]), {"batch": "monday"}, 0),
        ((p, y), {"ids": np.arange(100)}, 100),
        ((p, y), {"ids": np.arange(50, 150)}, 50),
        ((p[:2], y[:2]), {"ids": ["a", "a"]}, 1),
    ):
        before = watch.state
        assert watch.update(*samples_of, **names).n == before.n + new
        assert new or watch.state == before


def test_a_few_samples_without_names_are_refused():
    p, y = samples(29, 0.1, np.random.default_rng(0))
    watch = robfcp.Monitor(CALIBRATION, floor=0.9)
    with pytest.raises(RobfcpError, match="name them"):
        watch.update(p, y)
    assert watch.update(p, y, batch="tuesday").n == 29


def test_a_refused_batch_changes_nothing(tmp_path):
    watch = robfcp.Monitor(CALIBRATION, floor=0.9, path=tmp_path / "m.json")
    watch.update(*samples(50, 0.1, np.random.default_rng(0)))
    before = (tmp_path / "m.json").read_bytes()
    for p, y in [([[0.5, 0.6]] * 40, [0] * 40), ([[0.5, 0.5]] * 40, [7] * 40)]:
        with pytest.raises(RobfcpError):
            watch.update(p, y)
    assert (tmp_path / "m.json").read_bytes() == before == watch.state.to_json()


def test_the_floor_must_hold_for_this_calibration():
    with pytest.raises(RobfcpError, match=r"on average.*state a floor"):
        robfcp.Monitor(calibration(guarantee="marginal"))
    watch = robfcp.Monitor(calibration(guarantee="marginal"), floor=0.87)
    assert (watch.state.floor, watch.state.source) == (0.87, "stated floor")
    assert robfcp.Monitor(CALIBRATION).state.floor == CALIBRATION.certificate.lower
    federation = robfcp.Federation.from_counts([[1, 1]] * 2, score=LAC)
    full = robfcp.calibrate(federation, defence="none", malicious=0, confidence_level=0.99)
    with pytest.raises(RobfcpError, match="every set is full"):
        robfcp.Monitor(full)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delta": 0}, "delta"),
        ({"floor": 1}, "floor"),
        ({"run_length": 0.5}, "run_length"),
        ({"level": 3}, "level"),
        ({"client": "a\nb"}, "unprintable"),
        ({"report": robfcp.Report("a", [1, 1], robfcp.Grid.uniform(2), score=LAC)}, "grid"),
        ({"report": own_report(model="other")}, "model"),
    ],
)
def test_what_does_not_fit_is_refused(options, words):
    with pytest.raises(RobfcpError, match=words):
        robfcp.Monitor(CALIBRATION, **options)


def test_a_noisy_report_is_no_bag():
    privacy = robfcp.Privacy(epsilon=1.0)
    noisy = robfcp.Report("a", [10] * 20, GRID, score=LAC, n_samples=200, privacy=privacy)
    with pytest.raises(RobfcpError, match="holds noise"):
        robfcp.Monitor(CALIBRATION, report=noisy)


def test_the_state_goes_on_where_it_was_and_only_for_what_it_watched(tmp_path):
    path, options = tmp_path / "m.json", {"floor": 0.9, "seed": 2, "report": own_report()}
    rng = np.random.default_rng(0)
    parts = [samples(80, 0.2, rng) for _ in range(6)]
    memory = robfcp.Monitor(CALIBRATION, **options)
    for p, y in parts:
        memory.update(p, y)
        robfcp.Monitor(CALIBRATION, path=path, **options).update(p, y)
    assert path.read_bytes() == memory.state.to_json()
    with pytest.raises(RobfcpError, match="watches another calibration"):
        robfcp.Monitor(calibration(confidence_level=0.8), path=path, **options)
    for change in (
        {"delta": 0.01},
        {"floor": 0.8},
        {"client": "b"},
        {"report": own_report(seed=9)},
    ):
        with pytest.raises(RobfcpError, match="was begun with"):
            robfcp.Monitor(CALIBRATION, path=path, **{**options, **change})


def test_the_state_knows_its_calibration_from_a_letter_and_from_a_file(tmp_path):
    federation = robfcp.Federation.from_counts([[50] * 20] * 20, GRID, score=LAC)
    found = robfcp.calibrate(federation, defence="none", malicious=1)
    found.save(tmp_path / "c.json")
    robfcp.calibration.save_letters(found, tmp_path / "letters")
    for path in ("c.json", "letters/client-00.json"):
        other = robfcp.calibration.load_calibration(tmp_path / path)
        assert other.identity == found.identity
    assert calibration(confidence_level=0.8).identity != CALIBRATION.identity


def test_the_state_stays_small():
    rng = np.random.default_rng(0)
    watch = robfcp.Monitor(CALIBRATION, floor=0.9, report=own_report(), seed=0)
    for _ in range(60):
        watch.update(*samples(500, 0.1, rng))
    assert len(watch.state.curve) <= states.MAX_POINTS
    assert watch.state.curve[-1].n == 30_000
    assert len(watch.state.to_json()) < 60_000


FEEDER = """
import sys, numpy as np, robfcp
calibration = robfcp.Calibration.load("c.json")
own = robfcp.Report.load("own.json")
for k in range(int(sys.argv[1]), int(sys.argv[2])):
    data = np.load(f"batch-{k}.npz")
    watch = robfcp.Monitor(calibration, report=own, floor=0.9, seed=1, path="m.json")
    watch.update(data["p"], data["y"])
    print(k, flush=True)
"""


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    CALIBRATION.save(tmp_path / "c.json")
    own_report().save(tmp_path / "own.json")
    for k in range(24):
        p, y = samples(40, 0.12, rng)
        np.savez(tmp_path / f"batch-{k}.npz", p=p, y=y)
    (tmp_path / "feed.py").write_text(FEEDER)
    return tmp_path


def feeder(folder, first, last):
    return subprocess.Popen(
        [sys.executable, "feed.py", str(first), str(last)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("times", [1, pytest.param(12, marks=pytest.mark.slow)])
def test_killed_at_any_point_it_ends_where_it_would_have(folder, times):
    rng = np.random.default_rng(1)
    expected = robfcp.Monitor(CALIBRATION, report=own_report(), floor=0.9, seed=1)
    for k in range(24):
        data = np.load(folder / f"batch-{k}.npz")
        expected.update(data["p"], data["y"])
    for _ in range(times):
        process = feeder(folder, 0, 24)
        for _ in range(rng.integers(1, 6)):
            process.stdout.readline()
        time.sleep(float(rng.random()) * 0.003)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    process = feeder(folder, 0, 24)
    assert process.wait(60) == 0, process.stderr.read()
    process.communicate()
    assert (folder / "m.json").read_bytes() == expected.state.to_json()


def test_two_processes_at_once_lose_nothing(folder):
    robfcp.Monitor(
        CALIBRATION, report=own_report(), floor=0.9, seed=1, path=folder / "m.json"
    ).update(*samples(30, 0.1, np.random.default_rng(8)))
    both = [feeder(folder, 0, 12), feeder(folder, 12, 24), feeder(folder, 6, 18)]
    for process in both:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    assert states.MonitorState.load(folder / "m.json").n == 30 + 24 * 40


def body_of(watch):
    return json.loads(watch.state.to_json())["body"]


def sealed(body):
    data = json.dumps(body, separators=(",", ":")).encode()
    head = json.dumps({"kind": "monitor", "schema": 1, "digest": digest_of(data)})
    return head[:-1].encode() + b', "body": ' + data + b"}"


def hostile_states():
    watch = robfcp.Monitor(CALIBRATION, report=own_report(), floor=0.9, seed=1)
    watch.update(*samples(60, 0.2, np.random.default_rng(0)))
    good = body_of(watch)
    yield b""
    yield b"null"
    yield b"\xff\xfe"
    yield b"[" * 5000
    yield watch.state.to_json()[:-30]
    yield watch.state.to_json().replace(b'"misses":', b'"misses":1')
    yield watch.state.to_json().replace(b'"schema":1', b'"schema":9')
    yield CALIBRATION.to_json()
    for change in (
        {"floor": 1.0}, {"floor": "high"}, {"delta": 0}, {"misses": 61}, {"misses": -1},
        {"n": 61}, {"n": 2**50}, {"level": -1}, {"seed": -4}, {"seed": 2**64}, {"changes": []},
        {"changes": [0.0]}, {"alarms": {"coverage": 0}}, {"alarms": {"coverage": 99}},
        {"curve": []}, {"curve": [[60, 0.0, 0.0, 0.0], [60, 0.0, 0.0, 0.0]]},
        {"batches": ["x"]}, {"rows": ["0" * 15]}, {"started": []},
        {"alarms": {"x\x1b": 9}}, {"run_length": 0.1}, {"client": "a\n"},
        {"more": 1}, {"calibration": None},
    ):  # fmt: skip
        yield sealed({**good, **change})
    for change in (
        {"reported": 0}, {"bins": [3, 2]}, {"bins": [-1]}, {"counts": [0]}, {"counts": [1]},
        {"started": []}, {"cells": [1] * 10}, {"cells": [-1] + [0] * 8 + [61]},
        {"bins": [2**40], "counts": [260]}, {"bins": [20], "counts": [260]},
    ):  # fmt: skip
        yield sealed({**good, "bag": {**good["bag"], **change}})


@pytest.mark.parametrize("data", list(hostile_states()), ids=lambda d: str(len(d)))
def test_a_hostile_state_file_is_refused_in_one_line(data, tmp_path):
    (tmp_path / "m.json").write_bytes(data)
    with pytest.raises(RobfcpError) as refused:
        robfcp.Monitor(
            CALIBRATION, report=own_report(), floor=0.9, seed=1, path=tmp_path / "m.json"
        )
    assert str(refused.value).isprintable()


def write(path, p, y, ids=None):
    rows = np.column_stack([p, y] + ([] if ids is None else [ids]))
    header = "p0,p1,label" + ("" if ids is None else ",id")
    np.savetxt(path, rows, delimiter=",", header=header, comments="", fmt="%.17g")


def test_the_command_counts_batches_once_draws_and_reports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    CALIBRATION.save("c.json")
    own_report().save("own.json")
    rng = np.random.default_rng(0)
    write("mon.csv", *samples(120, 0.1, rng))
    write("tue.csv", *samples(400, 0.3, rng))
    run = CliRunner(env={"COLUMNS": "80"}).invoke
    common = ["monitor", "c.json", "--own", "own.json", "--floor", "0.9", "--state", "m.json"]
    first = run(app, [*common, "mon.csv"])
    assert first.exit_code == 0, first.exception
    assert "no alarm: 120 samples" in first.output
    again = run(app, [*common, "mon.csv", "tue.csv", "--plot", "w.png", "--report", "e.json"])
    assert again.exit_code == 0, again.exception
    assert "mon.csv: was counted before" in again.output
    assert "alarm (coverage at sample" in again.output
    assert (tmp_path / "w.png").stat().st_size > 5000
    report = robfcp.monitoring.EReport.from_json((tmp_path / "e.json").read_bytes())
    assert (report.client, report.n_samples) == ("site-3", 520)
    told = json.loads(run(app, [*common, "--json"]).output)
    assert (told["n"], told["alarm"], told["new"]) == (520, True, 0)
    assert told["curve"]["n"][-1] == 520
    write("wed.csv", *samples(50, 0.1, rng), ids=np.arange(50))
    write("thu.csv", *samples(50, 0.1, rng), ids=np.arange(20, 70))
    named = run(app, ["monitor", "c.json", "wed.csv", "thu.csv", "--id", "ID", "-s", "i.json"])
    assert "70 new samples -> i.json" in named.output
    own = run(app, ["monitor", "c.json", "--own", "own.json", "--floor", "own", "-s", "x.json"])
    assert own.exit_code == 0, own.exception


def test_the_curve_keeps_the_sample_at_which_an_alarm_rang():
    rng = np.random.default_rng(0)
    monitor = robfcp.Monitor(calibration(), floor=0.9, seed=0)
    for number in range(30):
        labels = (rng.random(500) < (0.5 if number == 3 else 0.02)).astype(int)
        monitor.update(np.tile([0.999, 0.001], (500, 1)), labels, batch=str(number))
    reading = monitor.state
    rang = reading.alarms["coverage"]
    assert 1500 < rang < 2000
    points = {point.n: point.coverage for point in monitor.state.curve}
    assert points[rang] >= -np.log(reading.delta)
    assert len(points) <= 401
    assert reading.log_coverage < points[rang]
