"""Many sites' evidence: no m liars can ring, e-BH is what it says, forged e-reports are refused."""

import json
from itertools import combinations

import numpy as np
import pytest
from effort import cases
from typer.testing import CliRunner

import robfcp
from robfcp.cli import app
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation import Fault
from robfcp.monitoring import EReport, merge, read_alarms
from robfcp.monitoring import monitor as betting
from robfcp.monitoring.alarms import listed, log_mean_of_smallest, log_product_of_smallest
from robfcp.report import generate_key, load_key, sign

DIGEST = "ab" * 32


def e_report(client, log_coverage=0.0, **options):
    fields = {"calibration": DIGEST, "floor": 0.9, "n_samples": 10**6, "round": "r", **options}
    return EReport(client=client, log_coverage=float(log_coverage), **fields)


def wealth(missed):
    """(T,) ln of the wealth of one site at floor 0.9."""
    factors = betting.log_factors(0.9, missed)
    return betting.log_wealth(betting.log_started(np.full(7, -np.inf), 0, factors), 0)


@pytest.mark.parametrize("m", [0, 1, 2])
def test_the_merged_wealth_is_the_least_mean_over_any_honest_set(m):
    logs = np.random.default_rng(m).normal(0, 3, 6)
    brute = min(np.exp(logs[list(kept)]).mean() for kept in combinations(range(6), 6 - m))
    assert np.exp(log_mean_of_smallest(logs, m)) == pytest.approx(brute)
    brute = min(
        np.prod(0.9 + 0.1 * np.exp(logs[list(kept)])) for kept in combinations(range(6), 6 - m)
    )
    assert np.exp(log_product_of_smallest(logs, m)) == pytest.approx(brute)


@pytest.mark.parametrize("lie", [1e9, 27.6, 0.0, -1e9])
def test_liars_never_lift_it_above_the_honest_mean(lie):
    rng = np.random.default_rng(0)
    for _ in range(200):
        honest = rng.normal(0, 2, 7)
        merged = log_mean_of_smallest(np.append(honest, [lie, lie, 1e3]), 3)
        assert merged <= np.logaddexp.reduce(honest) - np.log(7) + 1e-12


@pytest.mark.effort
def test_forty_percent_liars_ring_no_more_than_stated():
    """Runs of 20 sites at the floor, 8 report e^27; looked at after each of 500 samples."""
    rng, rung = np.random.default_rng(0), 0
    runs = cases(60)
    for _ in range(runs):
        sites = [np.exp(wealth(rng.random(500) < 0.1)) for _ in range(12)]
        rung += bool((np.mean(sites, axis=0) >= 20).any())  # what the K - m smallest are at most
    assert rung <= 0.05 * runs + 2.33 * np.sqrt(0.05 * runs)


def test_silent_and_refused_sites_are_no_evidence():
    reports = [e_report(f"s{k}", 4) for k in range(4)]
    assert merge(reports, 1).alarm
    silent = merge(reports, 1, n_sites=40)
    assert silent.n_sites == 40
    assert not silent.alarm
    fault = Fault("s9", "file", "s9: broken; send it again")
    assert merge(reports, 1, faulty=[fault]).n_sites == 5
    assert merge(reports, 4, n_sites=5).log_mean == -np.inf
    assert merge([], 0, n_sites=3).log_mean == -np.inf


def test_drift_at_m_sites_cannot_ring_and_one_more_can():
    good = [e_report(f"g{k}", -2) for k in range(14)]
    for number, rings in ((6, False), (7, True)):
        drifting = [e_report(f"d{k}", 30) for k in range(number)]
        merged = merge([*good[: 20 - number], *drifting], 6)
        assert merged.alarm is rings
        assert set(merged.alarmed) == {report.client for report in drifting}


def test_the_product_rings_only_where_independence_was_stated():
    reports = [e_report(f"s{k}", 2.5) for k in range(20)]
    assert not merge(reports, 2).alarm
    assert merge(reports, 2, independent=True).alarm


def test_drift_of_scores_is_told_apart_from_lost_coverage():
    reports = [e_report(f"s{k}", -1, log_drift=9.0) for k in range(8)]
    merged = merge(reports, 2)
    assert (merged.alarm, merged.drift) == (False, True)
    assert merged.line.startswith("no alarm, but drift")
    assert not merge([e_report("a"), e_report("b")], 0).drift


def test_what_cannot_be_merged_is_refused():
    reports = [e_report("a"), e_report("b")]
    for arguments, words in [
        ((2,), "cannot tolerate 2 among 2"),
        ((-1,), "liars:"),
        ((1, 1), "raise it"),
    ]:
        with pytest.raises(RobfcpError, match=words):
            merge(reports, arguments[0], n_sites=(*arguments, None)[1])


def brute_listed(logs, m, delta, total):
    """By the definition: try every R."""
    order = sorted(logs, key=lambda name: (-logs[name], name))
    good = [
        r
        for r in range(1, len(order) + 1)
        if all(np.exp(logs[n]) >= total / (delta * max(1, r - m)) for n in order[:r])
    ]
    return tuple(order[: max(good, default=0)])


def test_listed_sites_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    for _ in range(300):
        logs = {f"s{k}": v for k, v in enumerate(rng.normal(2, 3, 12))}
        m = int(rng.integers(0, 4))
        assert listed(logs, m, 0.1) == brute_listed(logs, m, 0.1, 12)


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
        found = listed(logs, m, 0.2)
        honest = [name for name in found if name[0] != "l"]
        shares.append(sum(name[0] == "h" for name in honest) / max(1, len(honest)))
    assert np.mean(shares) <= 0.2


def hostile():
    good = json.loads(e_report("a", 1.0).to_json())
    yield b""
    yield b"[]"
    yield b"\xff"
    yield b"[" * 9999
    yield robfcp.Report.from_scores("a", [0.1]).to_json()
    for change in (
        {"log_coverage": None}, {"log_coverage": "1"}, {"log_coverage": 1e300},
        {"log_coverage": 1e7},
        {"n_samples": -1}, {"n_samples": 0}, {"n_samples": 1.5}, {"n_samples": 2**60},
        {"step": -1}, {"floor": 0.0}, {"floor": 1.0}, {"floor": "x"}, {"calibration": "AB" * 32},
        {"calibration": ""}, {"client": ""}, {"client": "a\u202eb\n"}, {"client": "x" * 300},
        {"round": "r" * 300}, {"schema": 2}, {"schema": "1"}, {"kind": "report"}, {"extra": 1},
        {"log_change": 1e300}, {"log_drift": "a"},
    ):  # fmt: skip
        yield json.dumps({**good, **change}).encode()
    yield json.dumps(good).replace("1.0", "NaN").encode()
    yield json.dumps(good).replace("1.0", "1e999").encode()


@pytest.mark.parametrize("data", list(hostile()), ids=lambda d: str(len(d)))
def test_a_hostile_e_report_is_refused_in_one_line(data, tmp_path):
    with pytest.raises(ReportError) as refused:
        EReport.from_json(data)
    assert str(refused.value).isprintable()
    (tmp_path / "e.json").write_bytes(data)
    e_report("b", 1.0).save(tmp_path / "b.json")
    found, faults = read_alarms([tmp_path / "e.json", tmp_path / "b.json", tmp_path / "no.json"])
    assert [report.client for report in found] == ["b"]
    assert len(faults) == 2


def test_an_e_report_comes_back_as_it_was():
    report = e_report("a", 3.25, step=4, log_change=2.0, log_drift=-1.0)
    assert EReport.from_json(report.to_json()) == report
    assert len(report.to_json()) < 400


def test_other_calibrations_rounds_and_twins_are_no_evidence(tmp_path):
    files = {
        "a": e_report("a", 1),
        "b": e_report("b", 2),
        "c": e_report("c", 9, calibration="cd" * 32),
        "d": e_report("d", 9, round="old"),
        "e1": e_report("e", 3),
        "e2": e_report("e", 4),
    }
    for name, report in files.items():
        report.save(tmp_path / f"{name}.json")
    found, faults = read_alarms(sorted(tmp_path.glob("*.json")), round="r")
    assert [report.client for report in found] == ["a", "b"]
    assert {fault.client for fault in faults} == {"c", "d", "e"}
    assert merge(found, 0, faulty=faults).n_sites == 5


def test_signatures_are_of_their_own_kind_and_round(tmp_path):
    pytest.importorskip("cryptography")
    keys, private = {}, {}
    for client in "ab":
        keys[client] = generate_key(tmp_path / f"{client}.key")
        private[client] = load_key(tmp_path / f"{client}.key")

    def refusal(data, round="r"):
        (tmp_path / "e.json").write_bytes(data)
        with pytest.raises(ReportError) as refused:
            EReport.load(tmp_path / "e.json", keys, round)
        return str(refused.value)

    good = e_report("a", 1.0).signed(private["a"])
    (tmp_path / "e.json").write_bytes(good)
    assert EReport.load(tmp_path / "e.json", keys, "r") == e_report("a", 1.0)
    assert EReport.load(tmp_path / "e.json") == e_report("a", 1.0)
    assert "a replay" in refusal(good, "s")
    assert "not by its registered key" in refusal(e_report("a").signed(private["b"]))
    assert "not by its registered key" in refusal(good.replace(b"1.0", b"2.0"))
    assert "is no signed-e-report" in refusal(e_report("a").to_json())
    report = robfcp.Report.from_scores("a", [0.1], round="r")
    assert "is not registered" in refusal(sign(report, private["a"]))
    raw = e_report("a").to_json()
    moved = json.loads(sign(report, private["a"]))
    forged = {"kind": "signed-e-report", "key": moved["key"], "signature": moved["signature"]}
    body = json.dumps(forged)[:-1].encode() + b', "body": ' + raw + b"}"
    assert "not by its registered key" in refusal(body)
    with pytest.raises(ReportError, match="must name its round"):
        e_report("a", round=None).signed(private["a"])


def test_a_forgery_silences_nobody(tmp_path):
    pytest.importorskip("cryptography")
    keys = {"a": generate_key(tmp_path / "a.key")}
    e_report("a", 5.0).save(tmp_path / "1.json", load_key(tmp_path / "a.key"))
    e_report("a", -5.0).save(tmp_path / "2.json")
    found, faults = read_alarms([tmp_path / "1.json", tmp_path / "2.json"], keys=keys, round="r")
    assert ([report.log_coverage for report in found], faults) == ([5.0], [])
    with pytest.raises(RobfcpError, match="needs --round"):
        read_alarms([], keys=keys)


def test_the_command_tells_what_follows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for k in range(12):
        e_report(f"site-{k}", 12 if k < 5 else -1).save(f"e-{k}.json")
    files = [f"e-{k}.json" for k in range(12)]
    run = CliRunner(env={"COLUMNS": "80"}).invoke
    rung = run(app, ["alarms", *files, "-m", "2", "-o", "a.json"])
    assert rung.exit_code == 0, rung.exception
    assert "alarm: 12 sites of which at most 2 lie" in rung.output
    assert "alarms  site-4" in rung.output
    assert max(map(len, rung.output.splitlines())) <= 80
    kept = json.loads((tmp_path / "a.json").read_text())
    assert (kept["alarm"], kept["n_sites"]) == (True, 12)
    (tmp_path / "e-0.json").write_text("{}")
    quiet = run(app, ["alarms", *files, "-m", "5"])
    assert "4 alarm by themselves" in quiet.output
    assert "faulty  e-0.json" in quiet.output
