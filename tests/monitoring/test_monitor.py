"""The monitor: it rings as rarely as it says, counts nothing twice, and survives being killed."""

import json
import multiprocessing
import time

import numpy as np
import pytest
from effort import cases
from makers import LAC, by_class, outputs, refused, said, table
from scipy.special import betaincinv

import robfcp
from robfcp.errors import RobfcpError
from robfcp.evaluation import coverage_floor
from robfcp.guarantees._local_bounds import local_threshold_range
from robfcp.local._threshold import LocalThreshold, calibrate_unseen_client, local_coverage_bound
from robfcp.monitoring import EValueReport, MonitorState
from robfcp.monitoring._state import MAX_POINTS

GRID = robfcp.Binning.uniform(20)


def calibration(**options):
    federation = robfcp.Federation.from_counts([[50] * 20] * 20, GRID, score=LAC)
    return robfcp.calibrate(federation, **{"defense": "none", **options})


CALIBRATION, AVERAGE = calibration(), calibration(guarantee=robfcp.MarginalGuarantee(1))


def samples(n, missing, seed):
    """Two-class outputs whose LAC score of the true label exceeds the threshold that often."""
    rng, limit = np.random.default_rng(seed), CALIBRATION.threshold
    missed = rng.random(n) < missing
    score = np.where(missed, limit + (1 - limit) * rng.random(n), limit * rng.random(n))
    label = rng.integers(0, 2, n)
    p = np.where(label[:, None] == np.arange(2), 1 - score[:, None], score[:, None])
    return p, label


def own_report(n=200, seed=0, **options):
    return robfcp.Report.from_scores(
        "site-3", LAC(*samples(n, 0.1, seed)), GRID, score=LAC, **options
    )


def monitor(floor=0.9, **options):
    return robfcp.Monitor(CALIBRATION, min_coverage=floor, **{"seed": 1, **options})


@pytest.mark.effort
def test_a_site_that_keeps_the_promise_rings_as_rarely_as_stated():
    """Sites exactly at the floor, looked at after each of 1000 samples, delta 0.1."""
    rng, rung, short = np.random.default_rng(0), 0, 0
    number = cases(100)
    for seed in range(number):
        watch = monitor(reference_report=own_report(100, seed), delta=0.1, seed=seed)
        assert watch.state.log_alarm_threshold == pytest.approx(
            np.log(20)
        )  # both alarms share delta
        state = watch.update(*samples(1000, 0.1, rng))
        rung, short = rung + state.has_alarm, short + (state.short_since is not None)
    assert max(rung, short) <= 0.1 * number + 2.33 * np.sqrt(0.09 * number)


def test_the_line_says_whether_the_wanted_level_is_missed_though_no_alarm_rings():
    watch = monitor(floor=0.8)
    assert "the wanted 0.9000 is not shown to be missed" in watch.update(*samples(40, 0.14, 0)).line
    state = watch.update(*samples(4000, 0.14, 1))
    assert not state.has_alarm
    assert 40 < state.short_since < 4000
    assert f"the wanted 0.9000 is missed (shown at {state.short_since})" in state.line
    assert watch.update(*samples(500, 0.0, 2)).short_since == state.short_since


@pytest.mark.parametrize(("good", "drop", "median"), [(0, 0.05, 800), (20_000, 0.1, 20_900)])
def test_a_drop_is_seen_soon_also_after_a_long_good_time(good, drop, median):
    """Betting starts anew all the time: 20,000 good samples delay the alarm by little."""
    found = []
    for seed in range(12):
        rng, watch = np.random.default_rng(seed), monitor(delta=0.01 if good else 0.05, seed=seed)
        if good:
            watch.update(*samples(good, 0.1, rng))
        found.append(watch.update(*samples(3000, 0.1 + drop, rng)).alarms["coverage"])
    assert good < min(found) <= np.median(found) < median
    p, y = samples(600, 0.02, 0)
    p = np.where(p > 0.5, 0.5 + (p - 0.5) * 0.3, 0.5 - (0.5 - p) * 0.3)  # less sure, still covered
    assert list(monitor(reference_report=own_report(500), floor=0.85).update(p, y).alarms) == [
        "drift"
    ]


def test_batches_and_single_samples_give_the_same():
    (p, y), states = samples(300, 0.25, 3), []
    for parts in (1, 7, 300):
        watch = monitor(reference_report=own_report(), average_run_length=1000)
        for rows in np.array_split(np.arange(300), parts):
            state = watch.update(p[rows], y[rows], ids=rows)
        states.append(state)
    assert {"coverage", "change"} <= set(states[0].alarms)
    for name in ("alarms", "n", "misses", "row_ids"):
        assert len({str(getattr(state, name)) for state in states}) == 1
    for name in ("log_e_coverage", "log_shiryaev_roberts", "log_e_exchangeability"):
        values = [getattr(state, name) for state in states]
        np.testing.assert_allclose(values, values[0], rtol=1e-9)


def test_nothing_is_counted_twice_and_a_few_samples_need_names():
    p, y = samples(100, 0.1, 0)
    watch = monitor()
    for given, names, new in (
        ((p, y), {}, 100),
        ((p.copy(), y.tolist()), {}, 0),
        ((p, y), {"batch": "monday"}, 100),
        ((p[:50], y[:50]), {"batch": "monday"}, 0),
        ((p, y), {"ids": np.arange(100)}, 100),
        ((p, y), {"ids": np.arange(50, 150)}, 50),
        ((p[:2], y[:2]), {"ids": ["a", "a"]}, 1),
    ):
        before = watch.state
        assert watch.update(*given, **names).n == before.n + new
        assert new or watch.state == before
    with pytest.raises(RobfcpError, match="name them"):
        watch.update(p[:29], y[:29])


def test_rows_that_come_again_are_told_from_new_ones_and_from_coarse_outputs():
    p, y = samples(6000, 0.1, 0)
    watch, coarse = monitor(), monitor()
    for rows in np.arange(5000).reshape(10, 500):
        assert watch.update(p[rows], y[rows]).repeated == 0
        assert coarse.update(p[rows].round(2), y[rows]).repeated == 0  # they only look alike
    assert 150 < watch.update(p[4750:5250], y[4750:5250]).repeated < 350
    assert "rows came before" in watch.state.line


def test_a_refused_batch_changes_nothing_and_a_score_at_the_threshold_is_covered(tmp_path):
    watch = monitor(path=tmp_path / "m.json")
    watch.update(*samples(50, 0.1, 0))
    for p, y in [([[0.5, 0.6]] * 40, [0] * 40), ([[0.5, 0.5]] * 40, [7] * 40)]:
        with pytest.raises(RobfcpError):
            watch.update(p, y)
    assert MonitorState.load(tmp_path / "m.json") == watch.state
    at = np.tile([1 - CALIBRATION.threshold, CALIBRATION.threshold], (40, 1))
    assert (watch.state.n, monitor().update(at, [0] * 40).misses) == (50, 0)


NOISY = robfcp.Report("a", [10] * 20, GRID, LAC, n_samples=200, privacy=robfcp.Privacy(1.0))
FULL = robfcp.calibrate(robfcp.Federation.from_counts([[1, 1]], score=LAC), 0.99, defense="none")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delta": 0}, "delta"),
        ({"min_coverage": 1}, "floor"),
        ({"average_run_length": 0.5}, "run_length"),
        ({"client": "a\nb"}, "unprintable"),
        ({"reference_report": own_report(model="other")}, "model: not the calibration's"),
        ({"reference_report": NOISY}, "holds noise"),
        ({"calibration": AVERAGE}, r"on average.*state a floor"),
        ({"calibration": FULL}, "every set is full"),
    ],
)
def test_what_does_not_fit_is_refused(options, words):
    with pytest.raises(RobfcpError, match=words):
        robfcp.Monitor(**({"calibration": CALIBRATION} | options))


def test_the_state_goes_on_where_it_was_and_only_for_what_it_watched(tmp_path):
    path, options = tmp_path / "m.json", {"reference_report": own_report()}
    memory = monitor(**options)
    for seed in range(6):
        memory.update(*samples(80, 0.2, seed))
        monitor(path=path, **options).update(*samples(80, 0.2, seed))
    assert path.read_bytes() == memory.state.to_json()
    with pytest.raises(RobfcpError, match="watches another calibration"):
        robfcp.Monitor(calibration(coverage=0.8), path=path, min_coverage=0.9, **options)
    other = {"reference_report": own_report(seed=9)}
    for change in ({"delta": 0.01}, {"floor": 0.8}, {"client": "b"}, other):
        with pytest.raises(RobfcpError, match="was begun with"):
            monitor(path=path, **{**options, **change})


def test_the_state_stays_small_and_keeps_the_sample_at_which_an_alarm_rang():
    watch = monitor(reference_report=own_report())
    for number in range(60):
        state = watch.update(*samples(500, 0.5 if number == 3 else 0.02, number))
    points, rang = {point.n: point.coverage for point in state.curve}, state.alarms["coverage"]
    assert points[rang] >= -np.log(state.delta) > state.log_e_coverage
    assert len(points) <= MAX_POINTS + len(state.alarms)
    assert (max(points), len(state.to_json()) < 60_000) == (30_000, True)


def feed(path, first=0, last=24):
    for k in range(first, last):
        monitor(reference_report=own_report(), path=path).update(*samples(40, 0.12, k))


def feeders(path, *parts):
    """Processes that feed a monitor each its part."""
    fork = multiprocessing.get_context("fork")
    found = [fork.Process(target=feed, args=(path, *part)) for part in parts]
    for process in found:
        process.start()
    return found


@pytest.mark.parametrize("times", [1, pytest.param(12, marks=pytest.mark.slow)])
def test_killed_at_any_point_it_ends_where_it_would_have(tmp_path, times):
    rng = np.random.default_rng(1)
    feed(tmp_path / "whole.json")
    for _ in range(times):
        (process,) = feeders(tmp_path / "m.json", (0, 24))
        time.sleep(float(rng.random()) * 0.2)
        process.kill()
        process.join()
    feed(tmp_path / "m.json")
    assert (tmp_path / "m.json").read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_processes_at_once_lose_nothing(tmp_path):
    path = tmp_path / "m.json"
    monitor(reference_report=own_report(), path=path).update(*samples(30, 0.1, 99))
    for process in feeders(path, (0, 12), (12, 24), (6, 18)):
        process.join(120)
        assert process.exitcode == 0
    assert MonitorState.load(path).n == 30 + 24 * 40


def test_the_command_counts_batches_once_draws_and_reports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    CALIBRATION.save("c.json")
    own_report().save("own.json")
    table("mon.csv", *samples(120, 0.1, 0))
    table("tue.csv", *samples(400, 0.3, 1), ids=np.arange(400))
    nameless = ["monitor", "c.json", "mon.csv", "-s", "n.json", "--report", "e.json"]
    assert "the monitor has no name" in refused(*nameless)
    assert not (tmp_path / "n.json").exists()  # nothing was counted
    said(*nameless[:-2])
    said(*nameless, "-c", "site-9")  # and one begun without a name can get it
    assert (EValueReport.load("e.json").client, EValueReport.load("e.json").n_samples) == (
        "site-9",
        120,
    )
    common = ["monitor", "c.json", "--own", "own.json", "--state", "m.json"]
    assert "no alarm: 120 samples" in said(*common, "mon.csv")
    few = table("few.csv", *samples(9, 0.1, 0))
    assert "few.csv: samples: fewer than 30 may look like others" in refused(*common, few)
    table("more.csv", *(part[:90] for part in samples(120, 0.1, 0)))
    told = said(*common, "mon.csv", "tue.csv", "more.csv", code=3)
    assert "mon.csv: 120 of 120 samples were counted before" in told
    assert "more.csv: about 90 of 90 rows are the very same as rows before" in told
    twice = ("monitor", "c.json", "tue.csv", "tue.csv", "--id", "ID", "-s", "i.json", "--json")
    told = json.loads(said(*twice, code=3))
    assert (told["n"], told["alarm"], told["new"]) == (400, True, 400)
    told = json.loads(said("monitor", "c.json", "--own", "own.json", "-s", "x.json", "--json"))
    floor = local_coverage_bound(own_report(), CALIBRATION.threshold, 1 - 0.05 / 20)
    assert (told["floor"], told["wanted"]) == (floor, 0.9)  # the site's own, not the pool's


@pytest.mark.effort
def test_the_floors_of_own_thresholds_of_20_sites_fail_together_as_rarely_as_stated():
    """Sites of 80 uniform scores: X_(a) covers less than the floor at one of 20 in 5% of rounds."""
    rng, number = np.random.default_rng(0), cases(800)
    found = local_threshold_range(rng.random(80), 0.1)
    ends = (found.high, found.low, 1.0, found.marginal_lower, 80, (1, 1, 1), None, 0.0)
    floor = coverage_floor(CALIBRATION, local_threshold=LocalThreshold(0.9, 1.0, *ends))
    lows = np.sort(rng.random((number, 20, 80)))[:, :, round(81 * found.marginal_lower) - 1]
    below = np.count_nonzero(lows.min(axis=1) < floor.value)
    assert floor.source.endswith("0.95 confidence at all 20 sites together")
    usual = 0.05 * number
    assert below <= usual + 3 * np.sqrt(usual)
    assert below >= usual - 4 * np.sqrt(usual)  # and not because it promises nothing


def test_a_sites_own_threshold_is_checked_and_watched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = {f"site-{k:02d}": outputs(k, 120, 2, 0.3) for k in range(6)}
    reports = by_class(own.values(), ("flu", "cold"))
    found = robfcp.calibrate(reports, defense="none", guarantee=robfcp.MarginalGuarantee(1))
    p, y = outputs(11, 600, 2, 0.3)
    local, other = (
        found.feedback(name).calibrate_locally(*own[name]) for name in ("site-02", "site-03")
    )
    missed, checked = (LAC(p, y) > local.threshold).sum(), local.evaluate(p, y)
    assert checked.overall.coverage == pytest.approx(1 - missed / 600)
    a = round(local.levels[0].floor * 121)
    assert checked.floor.value == pytest.approx(betaincinv(a, 121 - a, 0.05 / 6))
    watch = robfcp.Monitor(local, path="m.json", seed=0)
    state = watch.update(p, y)
    assert (state.floor, state.misses) == (checked.floor.value, missed)
    assert watch.e_value_report().client == "site-02"
    for wrong in (found, other):
        with pytest.raises(RobfcpError, match="watches another threshold"):
            robfcp.Monitor(wrong, path="m.json", client="site-02", min_coverage=0.7)
    with pytest.raises(RobfcpError, match="has no name"):
        robfcp.Monitor(calibrate_unseen_client(found, *own["site-02"])).e_value_report()
    found.feedback("site-02").save("letter.json")
    table("own.csv", *own["site-02"], ("flu", "cold"))
    table("turned.csv", p[:, ::-1], 1 - y, ("cold", "flu"))  # columns are read by their names
    words = ("monitor", "letter.json", "turned.csv", "--local", "own.csv", "--json")
    assert json.loads(said(*words, code=None))["misses"] == missed
