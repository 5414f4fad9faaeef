"""Many sites' alarms: no m liars can ring them, e-BH is what it says, forged and replayed e-reports
are refused, and the server's record only grows."""

import json
from itertools import combinations

import numpy as np
import pytest
from effort import cases
from makers import refused, said

import robfcp
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation import Fault
from robfcp.monitoring import AlarmHistory, EReport, merge, read_alarms, record_look
from robfcp.monitoring import monitor as betting
from robfcp.monitoring.alarms import listed, log_mean_of_smallest, log_product_of_smallest
from robfcp.report.signing import generate_key, load_key, sign

DIGEST = "ab" * 32


def e_report(client, log=0.0, *, step=0, n=None, **options):
    fields = {"calibration": DIGEST, "floor": 0.9, "round": "r", **options}
    n = 1000 * (step + 1) if n is None else n
    return EReport(client, n_samples=n, log_coverage=float(log), step=step, **fields)


def sent(logs, **options):
    return [e_report(f"s{k}", log, **options) for k, log in enumerate(logs)]


@pytest.mark.parametrize("m", [0, 1, 2])
@pytest.mark.parametrize("lie", [None, 1e9, 27.6, 0.0, -1e9])
def test_the_merged_strength_is_the_least_over_any_honest_set_whatever_liars_send(m, lie):
    rng = np.random.default_rng(m)
    for _ in range(20):
        honest = rng.normal(0, 3, 6 - m)
        lies = rng.normal(0, 3, m) if lie is None else np.full(m, lie)
        logs = np.append(honest, lies)
        sets = [logs[list(kept)] for kept in combinations(range(6), 6 - m)]
        mean = min(np.logaddexp.reduce(one) - np.log(6 - m) for one in sets)
        assert log_mean_of_smallest(logs, m, 6) == pytest.approx(mean)
        product = min(np.logaddexp(np.log(0.9), np.log(0.1) + one).sum() for one in sets)
        assert log_product_of_smallest(logs, m, 6) == pytest.approx(product)
        assert mean <= np.logaddexp.reduce(honest) - np.log(6 - m) + 1e-12


@pytest.mark.effort
def test_forty_percent_liars_ring_no_more_than_stated():
    """Runs of 20 sites at the floor, 8 report e^27; looked at after each of 500 samples."""

    def strength(missed):
        factors = betting.log_factors(0.9, missed)
        return betting.log_wealth(betting.log_started(np.full(7, -np.inf), 0, factors), 0)

    rng, rung = np.random.default_rng(0), 0
    runs = cases(60)
    for _ in range(runs):
        sites = [np.exp(strength(rng.random(500) < 0.1)) for _ in range(12)]
        rung += bool((np.mean(sites, axis=0) >= 20).any())  # what the K - m smallest are at most
    assert rung <= 0.05 * runs + 2.33 * np.sqrt(0.05 * runs)


FAULT = Fault("s9", "file", "s9: broken; send it again")


@pytest.mark.parametrize(
    ("logs", "m", "options", "rings", "n_sites"),
    [
        ([4] * 4, 1, {}, True, 4),
        ([4] * 4, 1, {"n_sites": 40}, False, 40),  # silent sites count for nothing
        ([4] * 4, 1, {"faulty": [FAULT]}, True, 4),
        ([4] * 4, 4, {"n_sites": 5}, False, 5),
        ([], 0, {"n_sites": 3}, False, 3),
        ([-2] * 14 + [30] * 6, 6, {}, False, 20),  # drift at m sites cannot ring
        ([-2] * 13 + [30] * 7, 6, {}, True, 20),  # and one more can
        ([2.5] * 20, 2, {}, False, 20),
        ([2.5] * 20, 2, {"independent": True}, True, 20),  # only where that was stated
    ],
)
def test_alarms_ring_where_they_should(logs, m, options, rings, n_sites):
    merged = merge(sent(logs), m, **options)
    assert (merged.alarm, merged.n_sites, merged.drift) == (rings, n_sites, False)
    if 30 in logs:
        assert set(merged.alarmed) == {f"s{k}" for k, log in enumerate(logs) if log == 30}


@pytest.mark.parametrize(
    ("liars", "n_sites", "words"),
    [(2, None, "cannot tolerate 2 among 2"), (-1, None, "liars:"), (1, 1, "raise it")],
)
def test_what_cannot_be_merged_is_refused(liars, n_sites, words):
    with pytest.raises(RobfcpError, match=words):
        merge(sent([0, 0]), liars, n_sites=n_sites)


def test_listed_sites_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    for _ in range(300):
        logs = {f"s{k}": v for k, v in enumerate(rng.normal(2, 3, 12))}
        m = int(rng.integers(0, 4))
        order = sorted(logs, key=lambda name: (-logs[name], name))
        good = [
            r
            for r in range(1, 13)
            if all(np.exp(logs[n]) >= 12 / (0.1 * max(1, r - m)) for n in order[:r])
        ]
        assert listed(logs, m, 0.1, 12) == tuple(order[: max(good, default=0)])


@pytest.mark.parametrize("m", [0, 4])
def test_few_honest_sites_are_listed_falsely_even_beside_liars(m):
    """16 sites at the floor, three that drift, m liars that claim everything."""
    rng, shares = np.random.default_rng(m), []
    for _ in range(3000):
        q = 0.1 + 0.9 * 0.25
        misses = rng.binomial(60, 0.1, 16)
        null = misses * np.log(q / 0.1) + (60 - misses) * np.log((1 - q) / 0.9)  # mean exactly 1
        logs = {f"h{k}": v for k, v in enumerate(null)}
        logs |= {f"l{k}": 1e6 for k in range(m)} | {f"d{k}": 8.0 for k in range(3)}
        found = listed(logs, m, 0.2, len(logs))
        honest = [name for name in found if name[0] != "l"]
        shares.append(sum(name[0] == "h" for name in honest) / max(1, len(honest)))
    assert np.mean(shares) <= 0.2


def test_other_calibrations_rounds_steps_and_twins_count_for_nothing(tmp_path):
    files = {
        "a": e_report("a", 1),
        "b": e_report("b", 2, log_drift=-1.0),
        "c": e_report("c", 9, calibration="cd" * 32),
        "d": e_report("d", 9, round="old"),
        "e1": e_report("e", 3),
        "e2": e_report("e", 4),
        "f": e_report("f", 9, step=1),
    }
    for name, report in files.items():
        report.save(tmp_path / f"{name}.json")
    (tmp_path / "junk.json").write_text("{")
    found, faults = read_alarms(sorted(tmp_path.glob("*.json")), round="r", step=0)
    assert found == [files["a"], files["b"]]
    assert {fault.client for fault in faults} == {"c", "d", "e", "f", str(tmp_path / "junk.json")}
    assert merge(found, 0, faulty=faults).n_sites == 2


def test_signatures_are_of_their_own_kind_and_round_and_a_forgery_silences_nobody(tmp_path):
    pytest.importorskip("cryptography")
    keys, private = {}, {}
    for client in "ab":
        keys[client] = generate_key(tmp_path / f"{client}.key")
        private[client] = load_key(tmp_path / f"{client}.key")
    path, report = tmp_path / "e.json", e_report("a", 1.0)
    good = sign(report, private["a"])
    path.write_bytes(good)
    assert EReport.load(path, keys, "r") == EReport.load(path) == report
    other = json.loads(sign(robfcp.Report.from_scores("a", [0.1], round="r"), private["a"]))
    body = {"kind": "signed-e-report", "key": other["key"], "signature": other["signature"]}
    forged = json.dumps(body)[:-1].encode() + b', "body": ' + report.to_json() + b"}"
    for data, round, words in (
        (good, "s", "a replay"),
        (sign(report, private["b"]), "r", "not by its registered key"),
        (forged, "r", "not by its registered key"),
        (report.to_json(), "r", "the e-report is not signed"),
        (json.dumps(other).encode(), "r", "not signed"),
    ):
        path.write_bytes(data)
        with pytest.raises(ReportError, match=words):
            EReport.load(path, keys, round)
    with pytest.raises(ReportError, match="must name its round"):
        sign(e_report("a", round=None), private["a"])
    report.save(tmp_path / "1.json", private["a"])
    e_report("a", -5.0).save(tmp_path / "2.json")
    read = read_alarms([tmp_path / "1.json", tmp_path / "2.json"], keys=keys, round="r")
    assert read == ([report], [])
    with pytest.raises(RobfcpError, match="needs --round"):
        read_alarms([], keys=keys)


def begun(**options):
    return AlarmHistory(DIGEST, "r", **{"n_sites": 6, "liars": 1, "delta": 0.05, **options})


def test_every_look_is_what_merge_says_and_the_first_alarm_stays():
    rng, history, first = np.random.default_rng(0), begun(), None
    for step in range(12):
        logs = rng.normal(0.8 * step - 1, 1, 6) if step < 9 else np.full(6, -3.0)
        reports = sent(logs, step=step, log_drift=-1.0)
        merged, history = history.looked(reports, step)
        assert merged == merge(reports, 1, n_sites=6) == history.merged[-1]
        first = step if merged.alarm and first is None else first
    assert first is not None
    assert history.rang == {"coverage": first}
    assert f"alarm since step {first}" in history.line
    assert AlarmHistory.from_json(history.to_json()) == history


def test_drift_and_sites_that_alarm_by_themselves_are_told_apart():
    _, drift = begun().looked(sent([-1] * 6, step=1, log_drift=9.0), 1)
    assert drift.rang == {"drift": 1}
    assert drift.line.startswith("no alarm, but drift since step 1")
    _, alone = begun().looked(sent([30, -1, -1, -1, -1, -1], step=1), 1)
    assert alone.alarmed == ("s0",)
    assert "1 alarm by themselves" in alone.line
    assert begun().looked([], 1)[1].merged[0].log_mean == -np.inf


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": 2}, "of step 2, not 3"),
        ({"n": 10}, "counts 10 samples, at step 2 it was 3000"),
        ({"n": 3000, "log": 5.0}, "counts no new samples since step 2"),
        ({"floor": 0.8}, "its floor is 0.8, at step 2 it was 0.9"),
        ({"calibration": "cd" * 32}, "watches another calibration"),
    ],
    ids=str,
)
def test_replays_and_monitors_begun_anew_count_for_nothing(change, words):
    _, history = begun().looked(sent([0] * 6, step=2), 2)
    bad = e_report("s0", **{"step": 3, **change})
    merged, after = history.looked([bad, *sent([9] * 6, step=3)[1:]], 3)
    assert [fault.client for fault in merged.faulty] == ["s0"]
    assert words in merged.faulty[0].reason == after.looks[-1].faulty["s0"]
    assert "s0" not in after.looks[-1].sites


def test_a_step_may_be_looked_at_again_only_grows_and_no_clock_runs_backwards():
    reports = sent([3.5] * 6, step=1)
    first, history = begun().looked(reports[:3], 1)
    assert not first.alarm
    again, grown = history.looked(reports[3:], 1)
    assert again == merge(reports, 1, n_sites=6)
    assert len(grown.looks) == 1
    assert grown.looked(reports, 1)[1] == grown
    merged, kept = grown.looked([e_report("s0", -9.0, step=1)], 1)
    assert kept.looks[-1].sites == grown.looks[-1].sites
    assert (merged.alarm, merged.faulty) == (True, ())  # what was recorded of it stands
    with pytest.raises(RobfcpError, match="0 comes before step 1, which is recorded; steps only"):
        grown.looked(sent([0] * 6), 0)
    with pytest.raises(RobfcpError, match="step:"):
        grown.looked([], -1)


def test_what_is_watched_is_fixed_with_the_first_look(tmp_path):
    path = tmp_path / "alarms.json"
    record_look(path, sent([0] * 6, step=1), 1, step=1, round="r", n_sites=8)
    for name, was, other in (
        ("liars", 1, 2),
        ("n_sites", 8, 9),
        ("delta", 0.05, 0.5),
        ("round", "r", "other"),
        ("independent", False, True),
        ("checked", False, True),
    ):
        options = {"liars": 1, "step": 2, name: other}
        with pytest.raises(RobfcpError, match=f"begun with {name} {was}, not {other}"):
            record_look(path, sent([0] * 6, step=2), **options)
    _, history = record_look(path, sent([0] * 6, step=2), 1, step=2)
    assert [look.step for look in history.looks] == [1, 2]
    with pytest.raises(RobfcpError, match="none of the e-reports is a valid one of step 3"):
        record_look(path, sent([0] * 6, step=2), 1, step=3)
    new = tmp_path / "new.json"
    with pytest.raises(RobfcpError, match="the first look needs a valid e-report"):
        record_look(new, [], 0, step=1)
    with pytest.raises(RobfcpError, match="needs --sites, how many are watched, or --keys"):
        record_look(new, sent([0] * 3, step=1), 0, step=1)


def test_junk_and_invented_names_cannot_stop_a_look():
    _, history = begun().looked(sent([0] * 5, step=1), 1)
    junk = [Fault(f"e-{k}.json", "file", f"e-{k}.json: broken") for k in range(9)]
    invented = [e_report(f"ghost-{k}", 60.0, step=2) for k in range(9)]
    merged, after = history.looked([*sent([4] * 5, step=2), *invented], 2, junk)
    assert merged == merge(sent([4] * 5, step=2), 1, n_sites=6, faulty=merged.faulty)
    assert merged.alarm
    assert set(after.looks[-1].sites) == {f"s{k}" for k in range(5)}
    assert "more than the 6 sites watched, of which 5 were heard" in merged.faulty[-1].reason
    assert history.looked(sent([4] * 6, step=2), 2, junk)[0].alarm
    assert merge(sent([4] * 6), 1, n_sites=6, faulty=junk).alarm
    two_hundred = [Fault(f"{k}.json", "file", "x") for k in range(200)]
    assert merge(sent([4] * 6), 1, faulty=two_hundred).alarm  # a broken file is nobody
    for signed, words in (
        (False, "6 sites (names unchecked) of which"),
        (True, "6 sites of which"),
    ):
        assert words in merge(sent([4] * 6), 1, checked=signed).line
        _, history = begun(checked=signed).looked(sent([4] * 6, step=1), 1)
        assert words in history.line


def test_silent_sites_are_arithmetic_and_take_no_memory():
    few, many = sent([9.0, 7.0, 1.0], log_drift=2.0), 2 * 10**9
    data = begun(n_sites=many, liars=2).to_json()
    _, history = AlarmHistory.from_json(data).looked(few, 0)
    assert history.rang == {}
    for total in (3, 4, 7):
        logs = np.array([9.0, 7.0, 1.0] + [-np.inf] * (total - 3))
        kept = np.sort(logs)[: total - 2]
        merged = merge(few, 2, n_sites=total)
        assert merged.log_mean == pytest.approx(np.logaddexp.reduce(kept) - np.log(total - 2))
        each = np.logaddexp(np.log(0.9), np.log(0.1) + kept)
        assert merged.log_product == pytest.approx(each.sum())


def test_the_command_tells_what_follows_and_keeps_every_look(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for k in range(12):
        e_report(f"site-{k}", 12 if k < 5 else -1, step=3).save(f"e-{k}.json")
    words = ["alarms", *(f"e-{k}.json" for k in range(12)), "-m", "2"]
    rung = said(*words, "-o", "a.json", code=3)
    assert "alarm: 12 sites (names unchecked) of which at most 2 lie" in " ".join(rung.split())
    assert "alarms  site-4" in rung
    assert max(map(len, rung.splitlines())) <= 80
    kept = json.loads((tmp_path / "a.json").read_text())
    assert (kept["alarm"], kept["n_sites"]) == (True, 12)
    keep = [*words, "--history", "h.json"]
    assert "needs --step" in refused(*keep)
    assert "needs --sites" in refused(*keep, "--step", "3")
    keep += ["--sites", "12"]
    assert "pass --history" in refused(*words, "--html", "h.html")
    looked = said(*keep, "--step", "3", "--html", "h.html", "--json", code=3)
    assert json.loads(looked)["rang"] == {"coverage": 3}
    assert "</html>" in (tmp_path / "h.html").read_text()
    assert "alarm since step 3" in said(*keep, "--step", "3", code=3)
    wrong = refused(*keep, "--step", "4")
    assert "only 0 of 12 e-reports are valid" in wrong
    assert "of step 3, not 4" in wrong
    (tmp_path / "e-0.json").write_text("{}")
    quiet = said(*words[:-1], "5")
    assert "4 alarm by themselves" in " ".join(quiet.split())
    assert "faulty  e-0.json" in quiet
