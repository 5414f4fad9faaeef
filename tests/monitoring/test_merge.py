"""Merged alarms: m malicious clients cannot raise them, e-BH is as defined, forged and replayed
e-value reports are rejected, and the history only grows."""

import json
from itertools import combinations

import numpy as np
import pytest
from makers import command_error, command_output

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


def e_value_report(client, log_e_value=0.0, *, step=0, n_samples=None, **options):
    fields = {"calibration": DIGEST, "min_coverage": 0.9, "round": "r", **options}
    n_samples = 1000 * (step + 1) if n_samples is None else n_samples
    return EValueReport(
        client, n_samples=n_samples, log_e_coverage=float(log_e_value), step=step, **fields
    )


def e_value_reports(log_e_values, **options):
    return [
        e_value_report(f"s{k}", log_e_value, **options)
        for k, log_e_value in enumerate(log_e_values)
    ]


@pytest.mark.parametrize("max_malicious", [0, 1, 2])
@pytest.mark.parametrize("claimed", [None, 1e9, 27.6, 0.0, -1e9])
@pytest.mark.parametrize("n_silent", [0, 1, 4])
def test_merged_e_values_are_the_smallest_over_all_plausible_benign_sets(
    max_malicious, claimed, n_silent
):
    rng, n_remaining = np.random.default_rng(max_malicious), 6 + n_silent - max_malicious
    for _ in range(5):
        benign = rng.normal(0, 3, 6 - max_malicious)
        malicious = (
            rng.normal(0, 3, max_malicious) if claimed is None else np.full(max_malicious, claimed)
        )
        reported = np.concatenate([benign, malicious])
        all_clients = np.append(reported, np.full(n_silent, -np.inf))
        remaining_sets = [
            all_clients[list(subset)] for subset in combinations(range(6 + n_silent), n_remaining)
        ]
        mean = min(
            np.logaddexp.reduce(remaining) - np.log(n_remaining) for remaining in remaining_sets
        )
        assert log_mean_of_smallest(reported, max_malicious, 6 + n_silent) == pytest.approx(mean)
        product = min(
            np.logaddexp(np.log(0.9), np.log(0.1) + remaining).sum() for remaining in remaining_sets
        )
        assert log_product_of_smallest(reported, max_malicious, 6 + n_silent) == pytest.approx(
            product
        )
        assert mean <= np.logaddexp.reduce(benign) - np.log(n_remaining) + 1e-12


REJECTION = RejectedReport("s9", "file", "s9: broken; send it again")


@pytest.mark.parametrize(
    ("log_e_values", "max_malicious", "options", "has_alarm", "n_clients"),
    [
        ([4] * 4, 1, {}, True, 4),
        ([9] * 4, 1, {"n_clients": 2 * 10**9}, False, 2 * 10**9),  # silent clients take no memory
        ([4] * 4, 1, {"rejected": [REJECTION]}, True, 4),
        ([], 0, {"n_clients": 3}, False, 3),
        ([-2] * 14 + [30] * 6, 6, {}, False, 20),  # drift at m clients raises no alarm
        ([-2] * 13 + [30] * 7, 6, {}, True, 20),  # and at one more it does
        ([2.5] * 20, 2, {}, False, 20),
        ([2.5] * 20, 2, {"independent": True}, True, 20),  # only where clients are independent
    ],
)
def test_alarms_are_raised_as_expected(log_e_values, max_malicious, options, has_alarm, n_clients):
    merged = merge_e_values(e_value_reports(log_e_values), max_malicious, **options)
    assert merged.has_alarm == has_alarm
    assert merged.n_clients == n_clients
    assert not merged.has_exchangeability_alarm
    assert (
        set(merged.alarming_clients)
        == {f"s{k}" for k, log_e_value in enumerate(log_e_values) if log_e_value == 30}
        or has_alarm
    )


def test_two_tests_are_averaged_and_two_alarms_share_delta():
    """The larger of the two would raise twice as many false alarms."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        log_e_values, log_e_exchangeability = rng.normal(2, 2, 5), rng.normal(3, 2)
        merged = merge_e_values(
            e_value_reports(log_e_values, log_e_exchangeability=log_e_exchangeability),
            1,
            independent=True,
        )
        mean_e_value = (np.exp(merged.log_mean_e_value) + np.exp(merged.log_product_e_value)) / 2
        assert merged.has_alarm == (mean_e_value >= 40)
        assert merged.has_exchangeability_alarm == (np.exp(merged.log_e_exchangeability) >= 40)


def test_alarming_clients_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    for _ in range(300):
        log_e_values = {f"s{k}": v for k, v in enumerate(rng.normal(2, 3, 12))}
        max_malicious = int(rng.integers(0, 4))
        order = sorted(log_e_values, key=lambda name: (-log_e_values[name], name))
        is_large = [
            np.exp(log_e_values[order[r - 1]]) >= 12 / (0.1 * max(1, r - max_malicious))
            for r in range(1, 13)
        ]
        n_alarming = max(np.flatnonzero(is_large) + 1, default=0)  # the smallest of r is the r-th
        assert alarming_clients(log_e_values, max_malicious, 0.1, 12) == tuple(order[:n_alarming])


@pytest.mark.parametrize("max_malicious", [0, 4])
def test_the_false_discovery_rate_holds_with_malicious_clients(max_malicious):
    """16 clients at the minimum coverage, three that drift, m malicious with huge e-values."""
    rng, false_discovery_proportions = np.random.default_rng(max_malicious), []
    for _ in range(3000):
        q = 0.1 + 0.9 * 0.25
        misses = rng.binomial(60, 0.1, 16)
        null_log_e_values = misses * np.log(q / 0.1) + (60 - misses) * np.log(
            (1 - q) / 0.9
        )  # mean exactly 1
        log_e_values = {f"h{k}": v for k, v in enumerate(null_log_e_values)}
        log_e_values |= {f"l{k}": 1e6 for k in range(max_malicious)} | {
            f"d{k}": 8.0 for k in range(3)
        }
        alarming = alarming_clients(log_e_values, max_malicious, 0.2, len(log_e_values))
        benign_alarming = [name for name in alarming if name[0] != "l"]
        false_discovery_proportions.append(
            sum(name[0] == "h" for name in benign_alarming) / max(1, len(benign_alarming))
        )
    assert np.mean(false_discovery_proportions) <= 0.2


def test_reports_of_other_calibrations_rounds_or_steps_and_contradictions_are_rejected(tmp_path):
    expected = [e_value_report("a", 1), e_value_report("b", 2, log_e_exchangeability=-1.0)]
    invalid = [e_value_report("c", 9, calibration="cd" * 32), e_value_report("d", 9, round="old")]
    invalid += [e_value_report("e", 3), e_value_report("e", 4), e_value_report("f", 9, step=1)]
    for k, report in enumerate([*expected, *invalid]):
        report.save(tmp_path / f"{k}.json")
    (tmp_path / "junk.json").write_text("{")
    valid_reports, rejections = read_e_value_reports(
        sorted(tmp_path.glob("*.json")), round="r", step=0
    )
    assert valid_reports == expected
    assert merge_e_values(valid_reports, 0, rejected=rejections).n_clients == 2
    assert {rejection.client for rejection in rejections} == {*"cdef", str(tmp_path / "junk.json")}


def test_signatures_are_for_one_kind_of_file_and_round_and_a_forgery_excludes_no_client(tmp_path):
    pytest.importorskip("cryptography")
    keys = {client: generate_key(tmp_path / f"{client}.key") for client in "ab"}
    key, other_key = (load_key(tmp_path / f"{client}.key") for client in "ab")
    path, report = tmp_path / "e.json", e_value_report("a", 1.0)
    signed_report = json.loads(sign(robfcp.Report.from_scores("a", [0.1], round="r"), key))
    envelope = {
        "kind": "signed-e-value-report",
        "key": signed_report["key"],
        "signature": signed_report["signature"],
    }
    forged = json.dumps(envelope)[:-1].encode() + b', "body": ' + report.to_json() + b"}"
    for data, round, message in (
        (sign(report, key), "s", "a replay"),
        (sign(report, other_key), "r", "not by its registered key"),
        (forged, "r", "not by its registered key"),
        (report.to_json(), "r", "the e-value-report is not signed"),
        (json.dumps(signed_report).encode(), "r", "not signed"),
    ):
        path.write_bytes(data)
        with pytest.raises(ReportError, match=message):
            EValueReport.load(path, keys, round)
    report.save(path, key)
    e_value_report("a", -5.0).save(tmp_path / "2.json")
    assert read_e_value_reports([path, tmp_path / "2.json"], keys=keys, round="r") == ([report], [])


def new_history(**options):
    return AlarmHistory(
        DIGEST, "r", **{"n_clients": 6, "max_malicious": 1, "delta": 0.05, **options}
    )


def test_every_inspection_is_the_merged_e_value_and_the_first_alarm_is_kept():
    rng, history, first_alarm = np.random.default_rng(0), new_history(), None
    for step in range(12):
        log_e_values = rng.normal(0.8 * step - 1, 1, 6) if step < 9 else np.full(6, -3.0)
        reports = e_value_reports(log_e_values, step=step, log_e_exchangeability=-1.0)
        merged, history = history.with_inspection(reports, step)
        assert merged == merge_e_values(reports, 1, n_clients=6) == history.merged[-1]
        first_alarm = step if merged.has_alarm and first_alarm is None else first_alarm
    assert history.alarm_steps == {"coverage": first_alarm}
    assert f"alarm since step {first_alarm}" in history.line
    assert AlarmHistory.from_json(history.to_json()) == history


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": 2}, "of step 2, not 3"),
        ({"n_samples": 10}, "counts 10 samples, at step 2 it was 3000"),
        ({"n_samples": 3000, "log_e_value": 5.0}, "counts no new samples since step 2"),
        ({"min_coverage": 0.8}, "min_coverage is 0.8, at step 2 it was 0.9"),
        ({"calibration": "cd" * 32}, "watches another calibration"),
    ],
)
def test_replayed_reports_and_restarted_monitors_are_rejected(options, message):
    _, history = new_history().with_inspection(e_value_reports([0] * 6, step=2), 2)
    invalid = e_value_report("s0", **{"step": 3, **options})
    merged, updated = history.with_inspection([invalid, *e_value_reports([9] * 6, step=3)[1:]], 3)
    assert message in merged.rejected_reports[0].reason == updated.inspections[-1].rejections["s0"]
    assert "s0" not in updated.inspections[-1].e_value_reports


def test_an_inspection_may_be_repeated_with_more_reports_and_steps_only_increase():
    reports = e_value_reports([4] * 6, step=1)
    first, history = new_history().with_inspection(reports[:3], 1)
    repeated, updated = history.with_inspection(reports[3:], 1)
    assert (first.has_alarm, repeated) == (False, merge_e_values(reports, 1, n_clients=6))
    assert len(updated.inspections) == 1
    assert updated.with_inspection(reports, 1)[1] == updated
    merged, unchanged = updated.with_inspection([e_value_report("s0", -9.0, step=1)], 1)
    assert unchanged.inspections[-1].e_value_reports == updated.inspections[-1].e_value_reports
    assert merged.has_alarm
    assert merged.rejected_reports == ()  # the recorded report is kept
    with pytest.raises(RobfcpError, match="0 comes before step 1, which is recorded; steps only"):
        updated.with_inspection(e_value_reports([0] * 6), 0)


def test_the_settings_are_fixed_by_the_first_inspection(tmp_path):
    path = tmp_path / "alarms.json"
    new_path = tmp_path / "new.json"
    reports = e_value_reports([0] * 6, step=2)
    settings = {
        "max_malicious": 1,
        "n_clients": 8,
        "delta": 0.05,
        "round": "r",
        "independent": False,
    }
    record_inspection(path, e_value_reports([0] * 6, step=1), step=1, **settings)
    for name, changed in zip(settings, (2, 9, 0.5, "other", True), strict=True):
        message = f"begun with {name} {settings[name]}, not {changed}"
        with pytest.raises(RobfcpError, match=message):
            record_inspection(path, reports, **{"max_malicious": 1, "step": 2, name: changed})
    _, history = record_inspection(path, reports, 1, step=2)
    assert [inspection.step for inspection in history.inspections] == [1, 2]
    for call, message in (
        (
            lambda: record_inspection(path, reports, 1, step=3),
            "none of the e-value reports is a valid one of",
        ),
        (
            lambda: record_inspection(new_path, [], 1, step=2),
            "the first inspection needs a valid e-value report",
        ),
        (
            lambda: record_inspection(new_path, reports, 1, step=2),
            "needs --n-clients, how many are watched",
        ),
        (lambda: merge_e_values(reports, 6), "tolerate 6 among 6"),
        (lambda: merge_e_values(reports, 1, n_clients=1), "raise it"),
    ):
        with pytest.raises(RobfcpError, match=message):
            call()


def test_invalid_files_and_unknown_clients_cannot_prevent_an_inspection():
    _, history = new_history().with_inspection(e_value_reports([0] * 5, step=1), 1)
    rejections = [RejectedReport(f"e-{k}.json", "file", f"e-{k}.json: broken") for k in range(200)]
    unknown = [e_value_report(f"unknown-{k}", 60.0, step=2) for k in range(9)]
    merged, updated = history.with_inspection(
        [*e_value_reports([4] * 5, step=2), *unknown], 2, rejections
    )
    assert merged == merge_e_values(
        e_value_reports([4] * 5, step=2), 1, n_clients=6, rejected=merged.rejected_reports
    )
    assert merged.has_alarm
    assert set(updated.inspections[-1].e_value_reports) == {f"s{k}" for k in range(5)}
    assert (
        "more than the 6 sites watched, of which 5 were heard" in merged.rejected_reports[-1].reason
    )
    for is_signed, text in ((False, "6 sites (names unchecked) of"), (True, "6 sites of which")):
        history = new_history(signatures_checked=is_signed)
        _, updated = history.with_inspection(e_value_reports([4] * 6, step=1), 1)
        assert text in updated.line


def test_the_command_prints_alarms_and_keeps_every_inspection(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for k in range(12):
        e_value_report(f"site-{k}", 12 if k < 5 else -1, step=3).save(f"e-{k}.json")
    arguments = ["merge-alarms", *(f"e-{k}.json" for k in range(12)), "-m"]
    with_history = [*arguments, "2", "--history", "h.json"]
    for invalid, message in (
        (with_history, "needs --step"),
        ([*arguments, "2", "--html", "h.html"], "pass --history"),
        ([*with_history, "--n-clients", "12", "--step", "4"], "of step 3, not 4"),
    ):
        assert message in command_error(*invalid)
    with_history += ["--n-clients", "12", "--step", "3", "--html", "h.html", "--json"]
    assert json.loads(command_output(*with_history, code=3))["alarm_steps"] == {"coverage": 3}
    assert "</html>" in (tmp_path / "h.html").read_text()
    (tmp_path / "e-0.json").write_text("{}")
    printed = " ".join(command_output(*arguments, "5").split())
    assert "4 alarm by themselves" in printed
    assert "rejected e-0.json" in printed
