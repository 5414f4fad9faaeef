"""The server's record of alarms: it only grows, rings once and for all, and cannot be replayed."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import robfcp
from robfcp.calibration.sealed import digest_of
from robfcp.cli import app
from robfcp.errors import RobfcpError
from robfcp.federation import Fault
from robfcp.monitoring import AlarmHistory, Chain, EReport, chain_path, merge, record_look
from robfcp.monitoring.chain import repeated

DIGEST = "ab" * 32
LAC = robfcp.LAC()


def e_report(client, step, log_coverage=0.0, n=None, **options):
    fields = {"calibration": DIGEST, "floor": 0.9, "round": "r", **options}
    samples = 1000 * (step + 1) if n is None else n
    return EReport(
        client=client, n_samples=samples, log_coverage=float(log_coverage), step=step, **fields
    )


def reports(step, logs, **options):
    return [e_report(f"s{k}", step, log, **options) for k, log in enumerate(logs)]


def begun(**options):
    return AlarmHistory(DIGEST, "r", **{"n_sites": 6, "liars": 1, "delta": 0.05, **options})


def test_every_look_is_what_merge_says_and_the_first_alarm_stays():
    rng, history = np.random.default_rng(0), begun()
    first = None
    for step in range(12):
        logs = rng.normal(0.8 * step - 1, 1, 6) if step < 9 else np.full(6, -3.0)
        sent = reports(step, logs, log_drift=-1.0)
        merged, history = history.looked(sent, step)
        assert merged == merge(sent, 1, n_sites=6)
        assert history.merged[-1] == merged
        first = step if merged.alarm and first is None else first
    assert first is not None
    assert history.rang == {"coverage": first}
    assert f"alarm since step {first}" in history.line
    assert AlarmHistory.from_json(history.to_json()) == history


def test_drift_and_sites_that_alarm_by_themselves_are_told_apart():
    _, drift = begun().looked(reports(1, [-1] * 6, log_drift=9.0), 1)
    assert drift.rang == {"drift": 1}
    assert drift.line.startswith("no alarm, but drift since step 1")
    _, alone = begun().looked(reports(1, [30, -1, -1, -1, -1, -1]), 1)
    assert alone.alarmed == ("s0",)
    assert "1 alarm by themselves" in alone.line
    assert begun().looked([], 1)[1].merged[0].log_mean == -np.inf


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": 2}, "of step 2, not 3"),
        ({"n": 10}, "counts 10 samples, at step 2 it was 3000"),
        ({"n": 3000, "log_coverage": 5.0}, "counts no new samples since step 2"),
        ({"floor": 0.8}, "its floor is 0.8, at step 2 it was 0.9"),
        ({"calibration": "cd" * 32}, "watches another calibration"),
    ],
    ids=str,
)
def test_replays_and_monitors_begun_anew_are_no_evidence(change, words):
    _, history = begun().looked(reports(2, [0] * 6), 2)
    bad = e_report("s0", **{"step": 3, **change})
    merged, after = history.looked([bad, *reports(3, [9] * 6)[1:]], 3)
    assert [fault.client for fault in merged.faulty] == ["s0"]
    assert words in merged.faulty[0].reason
    assert "s0" not in after.looks[-1].sites
    assert after.looks[-1].faulty["s0"] == merged.faulty[0].reason


def test_a_clock_that_runs_backwards_is_refused():
    _, history = begun().looked(reports(5, [0] * 6), 5)
    with pytest.raises(RobfcpError, match="4 comes before step 5, which is recorded; steps only"):
        history.looked(reports(4, [0] * 6), 4)
    with pytest.raises(RobfcpError, match="step:"):
        history.looked([], -1)


def test_a_step_may_be_looked_at_again_and_only_grows():
    sent = reports(1, [3.5] * 6)
    first, history = begun().looked(sent[:3], 1)
    assert not first.alarm
    again, grown = history.looked(sent[3:], 1)
    assert again == merge(sent, 1, n_sites=6)
    assert len(grown.looks) == 1
    assert grown.looked(sent, 1)[1] == grown
    changed = e_report("s0", 1, -9.0)
    merged, kept = grown.looked([changed], 1)
    assert kept.looks[-1].sites == grown.looks[-1].sites
    assert merged.alarm
    assert merged.faulty == ()  # what was recorded of it stands


def test_what_is_watched_is_fixed_with_the_first_look(tmp_path):
    path = tmp_path / "alarms.json"
    record_look(path, reports(1, [0] * 6), 1, step=1, round="r", n_sites=8)
    for other, words in (
        ({"liars": 2}, "was begun with liars 1, not 2"),
        ({"n_sites": 9}, "n_sites 8, not 9"),
        ({"delta": 0.5}, "delta 0.05, not 0.5"),
        ({"round": "other"}, "round r, not other"),
        ({"independent": True}, "independent False, not True"),
    ):
        with pytest.raises(RobfcpError, match=words):
            record_look(path, reports(2, [0] * 6), **{"liars": 1, "step": 2, **other})
    _, history = record_look(path, reports(2, [0] * 6), 1, step=2)
    assert [look.step for look in history.looks] == [1, 2]
    with pytest.raises(RobfcpError, match="the first look needs a valid e-report"):
        record_look(tmp_path / "new.json", [], 0, step=1)
    _, counted = record_look(
        tmp_path / "new.json", reports(1, [0] * 3), 0, step=1, faulty=[Fault("x", "file", "x: no")]
    )
    assert counted.n_sites == 4


def test_junk_and_invented_names_cannot_stop_a_look(tmp_path):
    _, history = begun().looked(reports(1, [0] * 5), 1)
    junk = [Fault(f"e-{k}.json", "file", f"e-{k}.json: broken") for k in range(9)]
    invented = [e_report(f"ghost-{k}", 2, 60.0) for k in range(9)]
    merged, after = history.looked([*reports(2, [4] * 5), *invented], 2, junk)
    assert merged == merge(reports(2, [4] * 5), 1, n_sites=6, faulty=merged.faulty)
    assert merged.alarm
    assert set(after.looks[-1].sites) == {f"s{k}" for k in range(5)}
    assert "more than the 6 sites watched, of which 5 were heard" in merged.faulty[-1].reason
    late, _ = history.looked(reports(2, [4] * 6), 2, junk)
    assert late.alarm
    assert merge(reports(1, [4] * 6), 1, n_sites=6, faulty=junk).alarm


def test_a_file_cut_anywhere_or_altered_is_refused_in_one_line():
    history = begun()
    for step in (1, 2):
        _, history = history.looked(reports(step, [0.5] * 6), step)
    data = history.to_json()
    for end in [*range(0, len(data), 37), len(data) - 1]:
        with pytest.raises(RobfcpError) as refused:
            AlarmHistory.from_json(data[:end], "alarms.json")
        assert str(refused.value).startswith("alarms.json: ")
        assert str(refused.value).isprintable()
    body = json.loads(data)["body"]
    look = body["looks"][0]
    sent = look["sites"]["s0"]
    for change in (
        {"calibration": "x"},
        {"delta": 2.0},
        {"liars": 6},
        {"n_sites": 2},
        {"looks": [look, look]},
        {"looks": [{**look, "sites": {"s1": sent}}]},
        {"looks": [{**look, "sites": {"s0": {**sent, "n_samples": -1}}}]},
        {"looks": [{**look, "sites": {"s0": {**sent, "log_coverage": 1e9}}}]},
        {"looks": [{**look, "sites": {"s0": {**sent, "step": 2}}}]},
        {"looks": [{**look, "sites": {"s0": {**sent, "calibration": "cd" * 32}}}]},
        {"looks": [{**look, "sites": {"a\u202eb": {**sent, "client": "a\u202eb"}}}]},
        {"looks": [{**look, "extra": 1}]},
    ):
        raw = json.dumps({**body, **change}, separators=(",", ":")).encode()
        head = f'{{"kind":"alarms","schema":1,"digest":"{digest_of(raw)}","body":'.encode()
        with pytest.raises(RobfcpError, match=r"pass the file that robfcp alarms --history wrote"):
            AlarmHistory.from_json(head + raw + b"}")


def federation(rng, n=200, clients=8, shifted=()):
    return robfcp.Federation.from_reports(
        robfcp.Report.from_scores(
            f"site-{k}", rng.beta(*(3, 2) if k in shifted else (0.6, 2.5), n), score=LAC
        )
        for k in range(clients)
    )


def test_reports_sent_again_are_named_and_small_ones_are_not():
    rng = np.random.default_rng(0)
    old, new = federation(rng), federation(rng)
    assert repeated(old, new) == []
    mixed = robfcp.Federation.from_reports([*list(new)[:5], *list(old)[5:]])
    assert repeated(old, mixed) == ["site-5", "site-6", "site-7"]
    few = federation(rng, n=10)
    assert repeated(few, few) == []
    other = robfcp.Federation.from_counts([[3, 4]])
    assert repeated(old, other) == []
    assert repeated(other, robfcp.Federation.from_counts([[9, 9]], ids=["else"])) == []


def test_a_round_after_an_alarm_records_it_and_asks_for_fresh_samples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    run = CliRunner(env={"COLUMNS": "80"}).invoke
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for report in federation(rng):
            report.save(tmp_path / folder / f"{report.client}.json")
    first = [f"one/site-{k}.json" for k in range(8)]
    fresh = [f"two/site-{k}.json" for k in range(7)] + ["one/site-7.json"]
    assert run(app, ["calibrate", *first, "--malicious", "1", "-o", "c1.json"]).exit_code == 0
    identity = robfcp.Calibration.load("c1.json").identity
    for k in range(8):
        e_report(f"site-{k}", 3, 12.0, calibration=identity).save(f"e-{k}.json")
    files = [f"e-{k}.json" for k in range(8)]
    words = ["alarms", *files, "-m", "1", "--history", "alarms.json"]
    assert "needs --step" in str(run(app, words).exception)
    assert "pass --history" in str(run(app, [*words[:-2], "--html", "h.html"]).exception)
    looked = run(app, [*words, "--step", "3", "--html", "h.html", "--json"])
    assert looked.exit_code == 0, looked.exception
    assert json.loads(looked.stdout)["rang"] == {"coverage": 3}
    assert "</html>" in (tmp_path / "h.html").read_text()
    told = run(app, [*words, "--step", "3"])
    assert "alarm since step 3" in told.output
    wrong = str(run(app, [*words, "--step", "4"]).exception)
    assert "only 0 of 8 e-reports are valid" in wrong
    assert "of step 3, not 4" in wrong
    assert "of step 3, not 4" in wrong

    more = ["--malicious", "1", "-o", "c2.json", "--alarms", "alarms.json"]
    alone = run(app, ["calibrate", *fresh, *more])
    assert "pass it as --previous" in str(alone.exception)
    said = run(app, ["calibrate", *fresh, *more, "--previous", "c1.json", "--html", "p.html"])
    assert said.exit_code == 0, said.exception
    assert "rang at step 3" in said.output
    assert "sent the report of the round before again: site-7" in said.output
    assert "ask site-7 for a new report" in " ".join(said.output.split())
    chain = Chain.from_json(chain_path("c2.json").read_bytes())
    link = chain.links[-1]
    assert link.alarms == AlarmHistory.load("alarms.json").digest
    assert (link.rang, link.repeated) == ({"coverage": 3}, ["site-7"])
    assert set(link.alarmed) == {f"site-{k}" for k in range(8)}
    assert chain.reputations()["site-0"].alarmed == 1
    other = run(app, ["calibrate", *fresh, *more[:-1], "alarms.json", "--previous", "c2.json"])
    assert "watches another calibration" in str(other.exception)
    found = run(app, ["calibrate", *fresh, *more, "--previous", "c1.json", "--json"])
    assert json.loads(found.stdout)["chain"]["rang"] == {"coverage": 3}
