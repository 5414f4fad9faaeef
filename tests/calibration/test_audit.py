"""Forged calibrations are refused under a pinned key and contradict their record; every altered,
removed or inserted line of a server's log is detected."""

import json
import multiprocessing
from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from makers import LAC, outputs, reports_by_class, reports_of

import robfcp
from robfcp._sealed import check_signer, sha256_of
from robfcp.audit import AuditLog, find_own_report, log_calibration, verify_calibration
from robfcp.errors import RobfcpError
from robfcp.local._feedback import ClientFeedback, save_feedback

pytest.importorskip("cryptography")
from robfcp.reports.signing import generate_key, load_key, read_public_key


def reports(n_clients=12, seed=0):
    scores = np.random.default_rng(seed).random((n_clients, 80)) ** 2
    scores[3] = 0
    return reports_of(scores, model="m1")


@pytest.fixture
def server(tmp_path):
    public_key = generate_key(tmp_path / "server.key")
    return load_key(tmp_path / "server.key"), public_key


@pytest.fixture
def calibration():
    return robfcp.calibrate(reports(), defense=robfcp.Consensus(max_malicious=2))


def reseal(data, change):
    """Return a file with a changed body and the digest of that."""
    envelope = msgspec.json.decode(data)
    change(envelope["body"])
    envelope["digest"] = sha256_of(msgspec.json.encode(envelope["body"]))
    return msgspec.json.encode(envelope)


@pytest.mark.parametrize("attack", ["unsigned", "another key", "another key named", "kind"])
def test_other_signatures_are_refused(tmp_path, calibration, server, attack):
    server_key, public_key = server
    generate_key(tmp_path / "other.key")
    keys = {"unsigned": None, "kind": server_key}
    data = calibration.to_json(keys.get(attack, load_key(tmp_path / "other.key")))
    envelope = msgspec.json.decode(data)
    # a signature over one kind of file means nothing for another
    envelope |= {"another key named": {"key": public_key}, "kind": {"kind": "client-feedback"}}.get(
        attack, {}
    )
    with pytest.raises(RobfcpError, match="is not signed"):
        check_signer(msgspec.json.encode(envelope), public_key, "c.json")


def test_feedback_is_signed_as_a_whole(tmp_path, calibration, server):
    key, public_key = server
    (path, *_) = save_feedback(calibration, tmp_path / "feedback", key)
    assert ClientFeedback.load(path, public_key).calibration == calibration
    altered = reseal(path.read_bytes(), lambda body: body.update(verdict="flagged"))
    for data in (altered, calibration.feedback("site-00").to_json()):
        path.write_bytes(data)
        with pytest.raises(RobfcpError, match="is not signed"):
            ClientFeedback.load(path, public_key)


def test_a_public_key_is_read_from_its_text_its_file_or_a_registry(tmp_path, server):
    _, public_key = server
    assert read_public_key(public_key) == public_key
    assert read_public_key(str(tmp_path / "server.key.pub")) == public_key
    (tmp_path / "r.toml").write_text(f'["server"]\nkey = "{public_key}"\n')
    assert read_public_key(str(tmp_path / "r.toml")) == public_key


NAMES = ("flu", "cold", "none")
CLIENT_OUTPUTS = [outputs(seed, 200, 3) for seed in range(9)]
OPTIONS = [
    {"defense": robfcp.Consensus(max_malicious=2), "coverage": [0.8, 0.9]},
    {"defense": robfcp.Consensus(n_malicious=2)},
    {"defense": robfcp.RobFCP(n_malicious=2, metric="l1")},
    {"defense": "none", "certificate_confidence": 0.8},
    {"guarantee": robfcp.PACGuarantee(2, heterogeneity=0.3)},
    {"guarantee": robfcp.MarginalGuarantee(max_malicious_samples=100)},
    {"by": "class"},
    {"by": "class", "guarantee": robfcp.MarginalGuarantee(2), "coverage": [0.9, 0.8]},
    {"by": {"flu": "ill", "cold": "ill", "none": "well"}},
    {"guarantee": robfcp.LabelShiftGuarantee(2)},
    {"guarantee": robfcp.LabelShiftGuarantee(1, label_distribution="any")},
    {
        "guarantee": robfcp.LabelShiftGuarantee(
            1, label_distribution=["uniform", {"flu": np.float32(1)}]
        )
    },
    {"by": "class", "privacy": robfcp.Privacy(4.0), "binning": robfcp.Binning.uniform(16)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_unaltered_calibration_agrees_with_its_file_and_its_record(options, tmp_path):
    report_options = {name: options[name] for name in ("privacy", "binning") if name in options}
    calibrate_options = {
        name: value for name, value in options.items() if name not in report_options
    }
    calibration = robfcp.calibrate(
        reports_by_class(CLIENT_OUTPUTS, NAMES, stratify_by_class=True, **report_options),
        **calibrate_options,
    )
    calibration.save(tmp_path / "c.json")
    loaded = robfcp.Calibration.load(tmp_path / "c.json", record=True)
    assert verify_calibration(loaded) == []
    assert (loaded, loaded.record.guarantee) == (calibration, calibration.record.guarantee)
    assert (loaded.levels, loaded.classes) == (calibration.levels, NAMES)
    assert {level.certificate.n_clients for level in loaded.levels} == {len(CLIENT_OUTPUTS)}
    coverage_by_client = loaded.client_coverage()
    for k, (p, y) in enumerate(() if report_options else CLIENT_OUTPUTS):
        for level_index, level in enumerate(calibration.levels):
            thresholds = (
                level.threshold
                if calibration.by is None
                else [stratum.threshold for stratum in level.strata]
            )
            is_covered = LAC(p, y) <= np.broadcast_to(thresholds, 3)[y]
            assert coverage_by_client[k, level_index] == pytest.approx(is_covered.mean())


FORGED_THRESHOLD = float(robfcp.Binning.default().upper_edges[7])
FORGERIES = {
    "threshold": lambda body: body["levels"][0].update(threshold=FORGED_THRESHOLD),
    "certificate lower": lambda body: body["levels"][0]["certificate"].update(lower=0.99, upper=1),
    "certificate max malicious": lambda body: body["levels"][0]["certificate"].update(
        max_malicious=1
    ),
    "n malicious": lambda body: body.update(n_malicious=3, max_malicious=3),
}


@pytest.mark.parametrize("field", FORGERIES)
def test_every_forged_value_is_named(calibration, field):
    data = reseal(calibration.to_json(), FORGERIES[field])
    changed = robfcp.Calibration.from_json(data).with_record(calibration.record)
    discrepancies = verify_calibration(changed)
    assert field in [discrepancy.field for discrepancy in discrepancies]
    assert "but its record gives" in discrepancies[0].line


def test_a_forged_verdict_is_detected(calibration):
    record, maliciousness = calibration.record, calibration.maliciousness.copy()
    changed = calibration.with_record(replace(record, reasons={"site-00": "outlier"}))
    values = {
        discrepancy.field: (discrepancy.documented, discrepancy.recomputed)
        for discrepancy in verify_calibration(changed)
    }
    assert values["flagged clients"] == (["site-00"], ["site-03"])
    maliciousness[5] += 1
    changed = calibration.with_record(replace(record, maliciousness=maliciousness))
    (discrepancy,) = verify_calibration(changed)
    assert discrepancy.field == "the maliciousness of site-05"


def test_the_record_contains_the_report_of_a_client(calibration):
    assert find_own_report(calibration, reports()[4]) == []
    unknown_client = robfcp.Report.from_scores("unseen", [0.5], score=robfcp.LAC())
    for report, expected in ((reports(seed=1)[4], "another one"), (unknown_client, "no report")):
        assert [discrepancy.recomputed for discrepancy in find_own_report(calibration, report)] == [
            expected
        ]


def test_a_round_with_a_custom_defense_cannot_be_recomputed():
    class CustomDefense(robfcp.defense.FCP):
        name = "mine"

    calibration = robfcp.calibrate(reports(), defense=CustomDefense())
    assert (calibration.record.defense, calibration.record.parameters) == ("custom:mine", {})
    with pytest.raises(RobfcpError, match="cannot be made again"):
        verify_calibration(calibration)


# The log


@pytest.fixture
def log(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    calibration = robfcp.calibrate(
        [*reports(), "{broken"], defense=robfcp.Consensus(max_malicious=2)
    )
    log_calibration(log, calibration, {"malicious": 2})
    return log


def test_all_events_of_a_round_are_logged(log):
    events = list(log.events())
    event_counts = Counter(event["event"] for event in events)
    assert (event_counts["report received"], event_counts["report rejected"]) == (12, 1)
    assert (events[0]["event"], events[0]["terms"]) == ("round opened", {"malicious": 2})
    assert events[-1]["event"] == "calibration written"
    assert [event["client"] for event in events if event.get("verdict") == "flagged"] == ["site-03"]


CHANGES = [
    (lambda lines: lines[:3] + lines[4:], 2),
    (lambda lines: lines[:3] + [lines[2]] + lines[3:], 2),
    (lambda lines: [lines[1], lines[0], *lines[2:]], 0),
    (lambda lines: lines[:3] + [lines[3].replace("benign", "flagged")] + lines[4:], 3),
    (lambda lines: lines[:3] + ["{}"] + lines[4:], 2),
    (lambda lines: lines[:3] + ["[" * 5000] + lines[4:], 2),
    (lambda lines: lines[1:], 0),
]


@pytest.mark.parametrize(("change", "n_valid"), CHANGES)
def test_every_change_breaks_the_chain(log, change, n_valid):
    lines = log.path.read_text().splitlines()
    log.path.write_text("\n".join(change(lines)) + "\n")
    message = f"trust lines 1 to {n_valid} at most" if n_valid else "trust none"
    with pytest.raises(RobfcpError, match=message):
        list(log.events())


def write(path):
    for index in range(20):
        AuditLog(path).write("test", index=index)


def test_several_processes_keep_one_chain(tmp_path):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pool.map(write, [tmp_path / "a"] * 4)
    assert len(list(AuditLog(tmp_path / "a").events())) == 80


def test_lines_are_printable_json_and_a_truncated_one_is_refused(tmp_path):
    log = AuditLog(tmp_path / "a")
    log.write("x", name="a\n\x1b[2J\u202e", number=float(1), path=tmp_path)
    (line,) = log.path.read_text("ascii").splitlines()
    assert "\x1b" not in line
    assert json.loads(line)["name"] == "a\n\x1b[2J\u202e"
    with pytest.raises(RobfcpError, match="too long"):
        log.write("x", name="x" * 2**21)
    log.path.write_text(line[:-5])
    with pytest.raises(RobfcpError, match="cut short"):
        log.write("more")
