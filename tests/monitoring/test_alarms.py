"""Many sites' alarms: no m liars can ring them, e-BH is what it says, forged and replayed e-reports
are refused, and the server's record only grows."""

import json
from itertools import combinations

import numpy as np
import pytest
from makers import refused, said

import robfcp
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation import RejectedReport
from robfcp.monitoring import (
    AlarmHistory,
    EValueReport,
    alarming_clients,
    merge_e_values,
    read_e_value_reports,
    record_inspection,
)
from robfcp.monitoring._merge import log_mean_of_smallest, log_product_of_smallest
from robfcp.reports.signing import generate_key, load_key, sign

DIGEST = "ab" * 32


def e_report(client, log=0.0, *, step=0, n=None, **options):
    fields = {"calibration": DIGEST, "floor": 0.9, "round": "r", **options}
    n = 1000 * (step + 1) if n is None else n
    return EValueReport(client, n_samples=n, log_coverage=float(log), step=step, **fields)


def sent(logs, **options):
    return [e_report(f"s{k}", log, **options) for k, log in enumerate(logs)]


@pytest.mark.parametrize("m", [0, 1, 2])
@pytest.mark.parametrize("lie", [None, 1e9, 27.6, 0.0, -1e9])
@pytest.mark.parametrize("silent", [0, 1, 4])
def test_the_merged_strength_is_the_least_over_any_honest_set_whatever_liars_send(m, lie, silent):
    rng, kept = np.random.default_rng(m), 6 + silent - m
    for _ in range(5):
        honest = rng.normal(0, 3, 6 - m)
        lies = rng.normal(0, 3, m) if lie is None else np.full(m, lie)
        logs = np.concatenate([honest, lies])
        every = np.append(logs, np.full(silent, -np.inf))
        sets = [every[list(some)] for some in combinations(range(6 + silent), kept)]
        mean = min(np.logaddexp.reduce(one) - np.log(kept) for one in sets)
        assert log_mean_of_smallest(logs, m, 6 + silent) == pytest.approx(mean)
        product = min(np.logaddexp(np.log(0.9), np.log(0.1) + one).sum() for one in sets)
        assert log_product_of_smallest(logs, m, 6 + silent) == pytest.approx(product)
        assert mean <= np.logaddexp.reduce(honest) - np.log(kept) + 1e-12


FAULT = RejectedReport("s9", "file", "s9: broken; send it again")


@pytest.mark.parametrize(
    ("logs", "m", "options", "rings", "n_sites"),
    [
        ([4] * 4, 1, {}, True, 4),
        ([9] * 4, 1, {"n_clients": 2 * 10**9}, False, 2 * 10**9),  # silent sites take no memory
        ([4] * 4, 1, {"rejected": [FAULT]}, True, 4),
        ([], 0, {"n_clients": 3}, False, 3),
        ([-2] * 14 + [30] * 6, 6, {}, False, 20),  # drift at m sites cannot ring
        ([-2] * 13 + [30] * 7, 6, {}, True, 20),  # and one more can
        ([2.5] * 20, 2, {}, False, 20),
        ([2.5] * 20, 2, {"independent": True}, True, 20),  # only where that was stated
    ],
)
def test_alarms_ring_where_they_should(logs, m, options, rings, n_sites):
    merged = merge_e_values(sent(logs), m, **options)
    assert (merged.has_alarm, merged.n_sites, merged.has_exchangeability_alarm) == (
        rings,
        n_sites,
        False,
    )
    assert set(merged.alarmed) == {f"s{k}" for k, log in enumerate(logs) if log == 30} or rings


def test_two_tests_are_averaged_and_two_alarms_share_delta():
    """The larger of two would ring falsely twice as often."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        logs, drift = rng.normal(2, 2, 5), rng.normal(3, 2)
        found = merge_e_values(sent(logs, log_drift=drift), 1, independent=True)
        strength = (np.exp(found.log_mean) + np.exp(found.log_product)) / 2
        assert (found.has_alarm, found.has_exchangeability_alarm) == (
            strength >= 40,
            np.exp(found.log_drift) >= 40,
        )


def test_listed_sites_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    for _ in range(300):
        logs = {f"s{k}": v for k, v in enumerate(rng.normal(2, 3, 12))}
        m = int(rng.integers(0, 4))
        order = sorted(logs, key=lambda name: (-logs[name], name))
        enough = [np.exp(logs[order[r - 1]]) >= 12 / (0.1 * max(1, r - m)) for r in range(1, 13)]
        last = max(np.flatnonzero(enough) + 1, default=0)  # the least of r is the r-th
        assert alarming_clients(logs, m, 0.1, 12) == tuple(order[:last])


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
        found = alarming_clients(logs, m, 0.2, len(logs))
        honest = [name for name in found if name[0] != "l"]
        shares.append(sum(name[0] == "h" for name in honest) / max(1, len(honest)))
    assert np.mean(shares) <= 0.2


def test_other_calibrations_rounds_steps_and_twins_count_for_nothing(tmp_path):
    good = [e_report("a", 1), e_report("b", 2, log_drift=-1.0)]
    bad = [e_report("c", 9, calibration="cd" * 32), e_report("d", 9, round="old")]
    bad += [e_report("e", 3), e_report("e", 4), e_report("f", 9, step=1)]
    for k, report in enumerate([*good, *bad]):
        report.save(tmp_path / f"{k}.json")
    (tmp_path / "junk.json").write_text("{")
    found, faults = read_e_value_reports(sorted(tmp_path.glob("*.json")), round="r", step=0)
    assert (found, merge_e_values(found, 0, rejected=faults).n_sites) == (good, 2)
    assert {fault.client for fault in faults} == {*"cdef", str(tmp_path / "junk.json")}


def test_signatures_are_of_their_own_kind_and_round_and_a_forgery_silences_nobody(tmp_path):
    pytest.importorskip("cryptography")
    keys = {client: generate_key(tmp_path / f"{client}.key") for client in "ab"}
    own, others = (load_key(tmp_path / f"{client}.key") for client in "ab")
    path, report = tmp_path / "e.json", e_report("a", 1.0)
    other = json.loads(sign(robfcp.Report.from_scores("a", [0.1], round="r"), own))
    body = {"kind": "signed-e-report", "key": other["key"], "signature": other["signature"]}
    forged = json.dumps(body)[:-1].encode() + b', "body": ' + report.to_json() + b"}"
    for data, round, words in (
        (sign(report, own), "s", "a replay"),
        (sign(report, others), "r", "not by its registered key"),
        (forged, "r", "not by its registered key"),
        (report.to_json(), "r", "the e-report is not signed"),
        (json.dumps(other).encode(), "r", "not signed"),
    ):
        path.write_bytes(data)
        with pytest.raises(ReportError, match=words):
            EValueReport.load(path, keys, round)
    report.save(path, own)
    e_report("a", -5.0).save(tmp_path / "2.json")
    assert read_e_value_reports([path, tmp_path / "2.json"], keys=keys, round="r") == ([report], [])


def begun(**options):
    return AlarmHistory(DIGEST, "r", **{"n_sites": 6, "liars": 1, "delta": 0.05, **options})


def test_every_look_is_what_merge_says_and_the_first_alarm_stays():
    rng, history, first = np.random.default_rng(0), begun(), None
    for step in range(12):
        logs = rng.normal(0.8 * step - 1, 1, 6) if step < 9 else np.full(6, -3.0)
        reports = sent(logs, step=step, log_drift=-1.0)
        merged, history = history.with_inspection(reports, step)
        assert merged == merge_e_values(reports, 1, n_clients=6) == history.merged[-1]
        first = step if merged.has_alarm and first is None else first
    assert history.alarm_steps == {"coverage": first}
    assert f"alarm since step {first}" in history.line
    assert AlarmHistory.from_json(history.to_json()) == history


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": 2}, "of step 2, not 3"),
        ({"n": 10}, "counts 10 samples, at step 2 it was 3000"),
        ({"n": 3000, "log": 5.0}, "counts no new samples since step 2"),
        ({"floor": 0.8}, "its floor is 0.8, at step 2 it was 0.9"),
        ({"calibration": "cd" * 32}, "watches another calibration"),
    ],
)
def test_replays_and_monitors_begun_anew_count_for_nothing(change, words):
    _, history = begun().with_inspection(sent([0] * 6, step=2), 2)
    bad = e_report("s0", **{"step": 3, **change})
    merged, after = history.with_inspection([bad, *sent([9] * 6, step=3)[1:]], 3)
    assert words in merged.faulty[0].reason == after.looks[-1].faulty["s0"]
    assert "s0" not in after.looks[-1].sites


def test_a_step_may_be_looked_at_again_only_grows_and_no_clock_runs_backwards():
    reports = sent([4] * 6, step=1)
    first, history = begun().with_inspection(reports[:3], 1)
    again, grown = history.with_inspection(reports[3:], 1)
    assert (first.has_alarm, again) == (False, merge_e_values(reports, 1, n_clients=6))
    assert len(grown.looks) == 1
    assert grown.with_inspection(reports, 1)[1] == grown
    merged, kept = grown.with_inspection([e_report("s0", -9.0, step=1)], 1)
    assert kept.looks[-1].sites == grown.looks[-1].sites
    assert (merged.has_alarm, merged.faulty) == (True, ())  # what was recorded of it stands
    with pytest.raises(RobfcpError, match="0 comes before step 1, which is recorded; steps only"):
        grown.with_inspection(sent([0] * 6), 0)


def test_what_is_watched_is_fixed_with_the_first_look(tmp_path):
    path, new, zeros = tmp_path / "alarms.json", tmp_path / "new.json", sent([0] * 6, step=2)
    begin = {"max_malicious": 1, "n_sites": 8, "delta": 0.05, "round": "r", "independent": False}
    in_file = {"max_malicious": "liars"}
    record_inspection(path, sent([0] * 6, step=1), step=1, **begin)
    for name, other in zip(begin, (2, 9, 0.5, "other", True), strict=True):
        words = f"begun with {in_file.get(name, name)} {begin[name]}, not {other}"
        with pytest.raises(RobfcpError, match=words):
            record_inspection(path, zeros, **{"max_malicious": 1, "step": 2, name: other})
    _, history = record_inspection(path, zeros, 1, step=2)
    assert [look.step for look in history.looks] == [1, 2]
    for look, words in (
        (
            lambda: record_inspection(path, zeros, 1, step=3),
            "none of the e-reports is a valid one of",
        ),
        (lambda: record_inspection(new, [], 1, step=2), "the first look needs a valid e-report"),
        (lambda: record_inspection(new, zeros, 1, step=2), "needs --sites, how many are watched"),
        (lambda: merge_e_values(zeros, 6), "tolerate 6 among 6"),
        (lambda: merge_e_values(zeros, 1, n_clients=1), "raise it"),
    ):
        with pytest.raises(RobfcpError, match=words):
            look()


def test_junk_and_invented_names_cannot_stop_a_look():
    _, history = begun().with_inspection(sent([0] * 5, step=1), 1)
    junk = [RejectedReport(f"e-{k}.json", "file", f"e-{k}.json: broken") for k in range(200)]
    invented = [e_report(f"ghost-{k}", 60.0, step=2) for k in range(9)]
    merged, after = history.with_inspection([*sent([4] * 5, step=2), *invented], 2, junk)
    assert merged == merge_e_values(sent([4] * 5, step=2), 1, n_clients=6, rejected=merged.faulty)
    assert merged.has_alarm
    assert set(after.looks[-1].sites) == {f"s{k}" for k in range(5)}
    assert "more than the 6 sites watched, of which 5 were heard" in merged.faulty[-1].reason
    for signed, words in ((False, "6 sites (names unchecked) of"), (True, "6 sites of which")):
        assert words in begun(checked=signed).with_inspection(sent([4] * 6, step=1), 1)[1].line


def test_the_command_tells_what_follows_and_keeps_every_look(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for k in range(12):
        e_report(f"site-{k}", 12 if k < 5 else -1, step=3).save(f"e-{k}.json")
    words = ["alarms", *(f"e-{k}.json" for k in range(12)), "-m"]
    keep = [*words, "2", "--history", "h.json"]
    for wrong, why in (
        (keep, "needs --step"),
        ([*words, "2", "--html", "h.html"], "pass --history"),
        ([*keep, "--sites", "12", "--step", "4"], "of step 3, not 4"),
    ):
        assert why in refused(*wrong)
    keep += ["--sites", "12", "--step", "3", "--html", "h.html", "--json"]
    assert json.loads(said(*keep, code=3))["rang"] == {"coverage": 3}
    assert "</html>" in (tmp_path / "h.html").read_text()
    (tmp_path / "e-0.json").write_text("{}")
    quiet = " ".join(said(*words, "5").split())
    assert "4 alarm by themselves" in quiet
    assert "faulty e-0.json" in quiet
