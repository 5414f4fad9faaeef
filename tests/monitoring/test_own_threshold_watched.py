"""A site's own threshold can be checked and watched, against what its own samples prove."""

import json

import numpy as np
import pytest
from effort import cases
from scipy.special import betaincinv
from typer.testing import CliRunner

import robfcp
from robfcp.calibration import LocalThreshold, at_stranger, own_floor
from robfcp.calibration.checking import local_promise
from robfcp.cli import app
from robfcp.errors import RobfcpError
from robfcp.guarantees import own_interval

LAC = robfcp.LAC()
NAMES = ("flu", "cold")


def samples(rng, n, wrong=0.15):
    """Two classes; the model is sure, and wrong that often."""
    labels = rng.integers(0, 2, n)
    sure = rng.beta(8, 2, n)
    right = rng.random(n) >= wrong
    p = np.where(right, sure, 1 - sure)
    return np.where(labels[:, None] == np.arange(2), p[:, None], 1 - p[:, None]), labels


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(0)
    own = {f"site-{k}": samples(rng, 120) for k in range(6)}
    reports = [
        robfcp.Report.from_scores(name, LAC(p, y), score=LAC, labels=y, classes=NAMES)
        for name, (p, y) in own.items()
    ]
    return robfcp.calibrate(reports, malicious=1, defence="none"), own


@pytest.mark.effort
def test_the_floor_of_an_own_threshold_fails_as_rarely_as_stated():
    """Sites of 80 uniform scores: X_(a) itself covers less than the floor in 5% of them."""
    rng, below = np.random.default_rng(0), 0
    number = cases(4000)
    for _ in range(number):
        found = own_interval(rng.random(80), 0.1)
        one = LocalThreshold(
            0.9, 1.0, found.high, found.low, 1.0, found.floor, 80, (1, 1, 1), None, 0.0
        )
        below += found.low < local_promise(one).floor
    usual = 0.05 * number
    assert below <= usual + 3 * np.sqrt(usual)
    assert below >= usual - 4 * np.sqrt(usual)  # and not because it promises nothing


def test_check_and_monitor_take_the_own_threshold(world):
    calibration, own = world
    local = calibration.letter("site-2").at_site(*own["site-2"])
    rng = np.random.default_rng(1)
    p, y = samples(rng, 600)
    found = local.check(p, y)
    assert found.overall.coverage == (LAC(p, y) <= local.threshold).mean()
    a = round(local.levels[0].floor * 121)
    assert found.promise.floor == pytest.approx(betaincinv(a, 121 - a, 0.05))
    assert "own 120 samples" in found.promise.source
    assert local.check(p, y, floor=0.5).promise.floor == 0.5
    monitor = robfcp.Monitor(local, seed=0)
    reading = monitor.update(p, y)
    assert reading.misses == (LAC(p, y) > local.threshold).sum()
    assert reading.floor == found.promise.floor
    assert monitor.e_report().client == "site-2"
    bad = monitor.update(np.tile([0.999, 0.001], (600, 1)), rng.integers(0, 2, 600))
    assert "coverage" in bad.alarms
    with pytest.raises(RobfcpError, match="level: 3"):
        robfcp.Monitor(local, level=3)
    with pytest.raises(RobfcpError, match="level: 3"):
        local.check(p, y, level=3)
    stranger = robfcp.Monitor(at_stranger(calibration, *samples(rng, 120)))
    with pytest.raises(RobfcpError, match="has no name"):
        stranger.e_report()


def test_a_state_of_one_threshold_is_not_gone_on_with_for_another(world, tmp_path):
    calibration, own = world
    path = tmp_path / "m.json"
    local = calibration.letter("site-2").at_site(*own["site-2"])
    rng = np.random.default_rng(1)
    robfcp.Monitor(local, path=path, seed=0).update(*samples(rng, 50))
    assert robfcp.Monitor(local, path=path).state.n == 50
    other = calibration.letter("site-3").at_site(*own["site-3"])
    for wrong in (calibration, other):
        with pytest.raises(RobfcpError, match="watches another threshold"):
            robfcp.Monitor(wrong, path=path, client="site-2", floor=0.7)


def test_the_floor_between_two_edges_is_that_of_the_lower():
    report = robfcp.Report("a", [40, 40, 20], robfcp.Grid([0, 0.3, 0.6, 1]))
    assert own_floor(report, 0.59) == own_floor(report, 0.3) < own_floor(report, 0.6)
    assert own_floor(report, 0.1) == 0


def write(path, p, y, names):
    order = [NAMES.index(name) for name in names]
    rows = [",".join([*names, "label"])]
    for row, label in zip(p, y, strict=True):
        rows.append(",".join([*(f"{v:.9f}" for v in row[order]), str(order.index(label))]))
    path.write_text("\n".join(rows) + "\n")


def test_the_commands_watch_it_and_read_columns_by_their_names(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calibration, own = world
    calibration.letter("site-2").save("letter.json")
    calibration.save("c.json")
    p, y = samples(np.random.default_rng(1), 400)
    write(tmp_path / "own.csv", *own["site-2"], NAMES)
    write(tmp_path / "new.csv", p, y, NAMES)
    write(tmp_path / "turned.csv", p, y, NAMES[::-1])

    def go(*words):
        result = CliRunner().invoke(app, [*words, "--json"])
        assert result.exit_code == 0, result.exception
        return json.loads(result.stdout)

    local = calibration.letter("site-2").at_site(*own["site-2"])
    covered = (LAC(p, y) <= local.threshold).mean()
    checked = go("check", "letter.json", "new.csv", "--local", "own.csv")
    assert checked["coverage"] == pytest.approx(covered)
    assert go("check", "c.json", "turned.csv") == go("check", "c.json", "new.csv")
    seen = go("monitor", "letter.json", "turned.csv", "--local", "own.csv")
    assert seen["misses"] == round((1 - covered) * 400)
    common = go("monitor", "c.json", "turned.csv", "--floor", "0.8", "--state", "other.json")
    assert common["misses"] == (LAC(p, y) > calibration.threshold).sum()
