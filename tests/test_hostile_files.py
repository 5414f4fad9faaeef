"""Malformed files of all kinds are refused in one printable line."""

import json
import re
from functools import cache

import numpy as np
import pytest
from effort import cases
from fuzz.mutations import mutate_json
from makers import LAC, beta_scores, outputs, reports_of, seal

import robfcp
from robfcp.calibration._record import Record
from robfcp.errors import ReportError, RobfcpError
from robfcp.local._feedback import ClientFeedback
from robfcp.monitoring import AlarmHistory, EValueReport
from robfcp.privacy import Privacy, PrivacyLedger
from robfcp.reports.terms import read_keys, read_registered_sizes, read_terms

DIGEST, OTHER_DIGEST = "ab" * 32, "cd" * 32
BINNING = robfcp.Binning.uniform(20)


def monitor(path=None):
    """Return a monitor with a reference report, which continues from its state file, if any."""
    local_report = robfcp.Report.from_predictions(
        "site-3", *outputs(0, 200), stratify_by_class=False, binning=BINNING, min_cell_count=1
    )
    federation = robfcp.Federation.from_counts([[50] * 20] * 9, BINNING, score=LAC)
    calibration = robfcp.calibrate(federation, defense="none")
    return robfcp.Monitor(
        calibration, min_coverage=0.9, reference_report=local_report, seed=1, path=path
    )


def alarm_history():
    history = AlarmHistory(DIGEST, "r", 6, 1, 0.05)
    for step in (1, 2):
        reports = [EValueReport(f"s{k}", DIGEST, 0.9, 9 * step, 0.5, "r", step) for k in range(6)]
        _, history = history.with_inspection(reports, step)
    return history


def client_feedback():
    reports = [
        robfcp.Report.from_predictions(f"s{k}", *outputs(k), min_cell_count=1) for k in range(11)
    ]
    return robfcp.calibrate(reports, defense=robfcp.Consensus(max_malicious=2)).feedback("s3")


PRIVATE_REPORT = robfcp.Report("a", [20] * 10, robfcp.Binning.uniform(10), LAC, n_samples=200,
                        privacy=Privacy(1.0))  # fmt: skip
STRATIFIED_REPORT = robfcp.Report.from_predictions(
    "a", *outputs(0, 6), binning=robfcp.Binning.uniform(10), min_cell_count=1
)
DEFAULT_REPORT = robfcp.Report.from_predictions(
    "a", *outputs(0, 200), binning=robfcp.Binning.uniform(10)
)
POOLED_REPORTS = reports_of(beta_scores(0, 6, 50), round="7", model="abc")
CALIBRATION_BY_CLASS = robfcp.calibrate(
    [
        robfcp.Report.from_predictions(f"s{k}", *outputs(k), stratify_by_class=True)
        for k in range(4)
    ],
    by="class",
)
LEDGER = {"schema": 1, "kind": "privacy-ledger", "dataset": None, "releases": []}
REPORT_FIELDS = {
    "": [{"extra": 1}, {"kind": "calibration"}],
    "schema": [99, "1", True, None],
    "client": [5, "", None, "a\nb", "a\u202eb\n", "x" * 300],
    "round": [7, "r" * 300, "a\nb"],
}
INVALID_NUMBERS = [-1, 1.5, None, "1"]
FILES = {
    "report": (POOLED_REPORTS[0].to_json, robfcp.Report.load),
    "default report": (DEFAULT_REPORT.to_json, robfcp.Report.load),
    "report by class": (STRATIFIED_REPORT.to_json, robfcp.Report.load),
    "private report": (PRIVATE_REPORT.to_json, robfcp.Report.load),
    "e-value report": (EValueReport("a", DIGEST, 0.9, 10**6, 1.0, "r").to_json, EValueReport.load),
    "monitor": (lambda: monitor().update(*outputs(1, 60)).to_json(), monitor),
    "alarm history": (lambda: alarm_history().to_json(), AlarmHistory.load),
    "client feedback": (lambda: client_feedback().to_json(), ClientFeedback.load),
    "calibration": (CALIBRATION_BY_CLASS.to_json, robfcp.Calibration.load),
    "ledger": (lambda: json.dumps(LEDGER).encode(), lambda path: PrivacyLedger(path).releases()),
}
# Invalid values by field: "a.b" is b inside a, and an object is merged with the present one.
INVALID_VALUES = {
    "report": REPORT_FIELDS | {
        "n_samples": [*INVALID_NUMBERS, 49, 50.0],
        "model": [3, "x" * 300],
        "counts": [
            [1.5], [1], None, {"bins": [0], "counts": [25, 25]}, {"bins": [], "counts": []},
            {"bins": [5, 5], "counts": [9, 50]}, {"bins": [5, 4], "counts": [25, 25]},
            {"bins": [-1], "counts": [50]}, {"bins": [1, -(2**63), 5], "counts": [25, 24, 1]},
            {"bins": [10**6], "counts": [50]}, {"bins": [10**30], "counts": [50]},
            {"bins": [3], "counts": [10**30]}, {"bins": [3, 4], "counts": [51, -1]},
            {"bins": [1000], "counts": [50]},
        ],
        "binning": [
            None, {"digest": "0"}, {"name": "nope"}, {"name": "x", "edges": [1, 0]},
            {"name": "x", "edges": []}, {"name": "uniform", "parameters": {"bins": "x"}},
            {"name": "uniform", "parameters": {"bins": "9", "low": "a", "high": True}},
            {"name": "uniform", "parameters": {"bins": 10**9}},
        ],
        "score": [{"name": "nope"}, {"name": "raps", "parameters": {"penalty": "x"}}, 3],
    },
    "default report": {
        "schema": [1],
        "min_cell_count": [0, -1, 3, 10, 10**9, 2**70, 1.5, "5", None, True],
        "counts": [{"bins": [0, 4, 9], "counts": [3, 97, 100]}, [4, 6] + [0] * 7 + [190]],
        "class_totals": [
            5, {"names": 2}, {"names": ["a", "a", "b"]}, {"names": 10**9}, {"totals": [200]},
            {"totals": [0, 0, 0]}, {"totals": [100, -5, 105]}, {"totals": [100, 50, 48]},
            {"totals": [100, 100, 100]}, {"totals": [50, 50, 50]}, {"more": 1}, {"totals": None},
        ],
        "": [{"risk": {"name": "fnr", "upper_bound": 1.0, "resolution": 1}}],
    },
    "report by class": {
        "strata": [
            {"cell_steps": [0, 0, 30], "counts": [2, 2, 2]}, {"cell_steps": [2**62], "counts": [6]},
            {"cell_steps": [30], "counts": [6]}, {"cell_steps": [-1, 2], "counts": [3, 3]},
            {"cell_steps": [3, 0], "counts": [3, 3]}, {"cell_steps": [3, -2], "counts": [3, 3]},
            {"cell_steps": [3, -(2**63)], "counts": [3, 3]}, {"cell_steps": [2**63], "counts": [6]},
            {"cell_steps": [2**100], "counts": [6]}, {"cell_steps": [3, 1], "counts": [7, -1]},
            {"cell_steps": [3, 10], "counts": [7, -1]}, {"cell_steps": [3, 1], "counts": [6, 0]},
            {"cell_steps": [3], "counts": [2**63]},
            {"cell_steps": [3, 10, 10], "counts": [2**62] * 3}, {"counts": [1.5] * 6},
            {"counts": [6]}, {"cell_steps": [3], "counts": [7]},
            {"cell_steps": [], "counts": []}, {"more": 1}, None,
        ],
        "strata.names": [
            1, 0, -1, 10**6, 10**30, ["a", "a", "b"], ["a", "\u001b[2J", "b"], ["a", "", "b"], [],
            "abc", [1, 2, 3],
        ],
        "strata.by": ["ward", "group", None],
        "counts": [[6] + [0] * 9],
        "class_totals": [{"names": 3, "totals": [2, 2, 2]}],
        "": [{"risk": {"name": "fnr", "upper_bound": 1.0, "resolution": 360}}],
        "all_label_counts": [[-6] + [3] * 8, [6] * 9 + [1], [6]],
    },
    "private report": {
        "n_samples": [100_000, 0, None, "1"],
        "counts": [
            [10**6, -(10**6) + 200] + [0] * 8, [2**41] + [0] * 9, [-(2**41)] + [0] * 9, [1, 2],
            [10**12] * 2 + [-(10**12)] * 2 + [0] * 6,
        ],
        "privacy": [
            {"scale": 1.0}, {"epsilon": -1}, {"neighbors": "add-remove"}, {"promise": 1},
        ],
        "all_label_counts": [[20] * 10],
    },
    "e-value report": REPORT_FIELDS | {
        "log_e_coverage": [None, "1", 1e300, 1e7, float("nan"), float("inf")],
        "log_e_exchangeability": [1e300, "a", float("nan")],
        "n_samples": [*INVALID_NUMBERS, 0, 2**60],
        "step": INVALID_NUMBERS,
        "min_coverage": [0.0, 1.0, "x"],
        "calibration": ["AB" * 32, "", None],
    },
    "monitor": {
        "": [{"more": 1}, {"min_coverage": 1.0}, {"min_coverage": "high"}, {"delta": 0},
             {"n_missed": 61}, {"n_missed": -1}, {"n_samples": 61}, {"n_samples": 2**50},
             {"level": -1}, {"seed": -4}, {"seed": 2**64}, {"log_sr_statistics": []},
             {"log_sr_statistics": [0.0]}, {"log_wealths": []}, {"points": []},
             {"points": [[60, 0.0, 0.0, 0.0], [60, 0.0, 0.0, 0.0]]}, {"batch_digests": ["x"]},
             {"row_ids": ["0" * 15]}, {"average_run_length": 0.1}, {"client": "a\n"},
             {"calibration": None}],
        "alarm_steps": [{"coverage": 0}, {"coverage": 99}, {"x\x1b": 9}],
        "exchangeability": [{"bins": [2**40], "counts": [260]}, {"bins": [20], "counts": [260]},
                            {"n_reference": 0}, {"bins": [3, 2]}, {"bins": [-1]}, {"counts": [0]},
                            {"counts": [1]}, {"log_wealths": []}, {"p_value_counts": [1] * 10},
                            {"p_value_counts": [-1] + [0] * 8 + [61]}],
    },
    "alarm history": {
        "": [{"calibration": "x"}, {"calibration": OTHER_DIGEST}, {"delta": 2.0},
             {"max_malicious": 6}, {"n_clients": 2}],
        "inspections": [[{"step": 1, "e_value_reports": {}}] * 2,
                        [{"step": 1, "e_value_reports": {}, "extra": 1}]],
        "inspections.0.step": [2, 3],
        "inspections.0.e_value_reports.s0": [{"client": "s1"}, {"client": "a\u202eb"},
                                             {"n_samples": -1}, {"log_e_coverage": 1e9},
                                             {"step": 2}, {"calibration": OTHER_DIGEST}],
    },
    "client feedback": {
        "": [{"more": 1}, {"verdict": "perhaps"}, {"coverage": [1.5]}, {"calibration": None}],
        "peer_thresholds": [{"more": 1}, {"thresholds": [0.5, 0.6]}, {"label_counts": [1, -2, 3]},
                            {"max_malicious": -1}, {"heterogeneity": 7.0}],
    },
    "calibration": {
        "": [{"more": 1}, {"record_sha256": "../../../../x"}, {"record_sha256": "0" * 63},
             {"classes": 2}, {"classes": ["a", "b", "c", "d"]}, {"by": None}, {"by": "ward"},
             {"n_malicious": 99}],
        "levels.0.strata": [[], None],
        "levels.0.strata.2.name": ["0"],
        "levels.0.certificate": [{"lower": -0.1}, {"lower": 2.0}, {"lower": float("nan")},
                                 {"confidence": 0.0}, {"confidence": 1.0}],
        "levels.0.certificate.assumptions.0": [
            {"name": "heterogeneity", "value": "very"}, {"name": "heterogeneity", "value": -0.1},
        ],
        "levels.0.strata.0.certificate_points.0": [{"lower": 0.9, "upper": 0.1}],
    },
    "ledger": {"": [{"more": 1}, {"schema": 2}, {"kind": "report"}, {"releases": [{}]},
                    {"releases": None}]},
}  # fmt: skip
JUNK = [b"null", b"[]", b"{}", b"\xff\xfe\x00", b"[" * 9999, b'"\\ud800"', b"{", b""]


@cache
def valid_file(kind):
    return FILES[kind][0]()


def changed_file(kind, field, value):
    """Return the valid file with another value of a field, and its digest."""
    data = json.loads(valid_file(kind))
    content = data["body"] if "digest" in data else data
    *path, last = (int(step) if step.isdigit() else step for step in field.split("."))
    container = content
    for step in path:
        container = container[step]
    if not field:
        content |= value
    elif isinstance(value, dict) and last != "class_totals" and isinstance(container[last], dict):
        container[last] |= value
    else:
        container[last] = value
    return seal(data["kind"], content) if "digest" in data else json.dumps(data).encode()


def error_of_file(kind, data, folder):
    (folder / "x.json").write_bytes(data)
    with pytest.raises(RobfcpError, match=";") as error:
        FILES[kind][1](folder / "x.json")
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 500
    return error.value


CASES = [
    (kind, field) for kind, invalid_of_kind in INVALID_VALUES.items() for field in invalid_of_kind
]


@pytest.mark.parametrize(("kind", "field"), CASES)
def test_an_invalid_value_is_refused_with_the_client_named(kind, field, tmp_path):
    for value in INVALID_VALUES[kind][field]:
        error = error_of_file(kind, changed_file(kind, field, value), tmp_path)
        if "report" in kind:
            assert isinstance(error, ReportError)
            is_named = error.client in (
                json.loads(valid_file(kind))["client"],
                str(tmp_path / "x.json"),
            )
            assert is_named or field == "client"
        if kind in ("report", "default report") and field:
            assert error.field == field or error.field in ("report", "kind", "min_cell_count")


@pytest.mark.parametrize("kind", FILES)
def test_truncated_altered_newer_and_other_files_are_refused(kind, tmp_path):
    data = valid_file(kind)
    truncated = [data[:end] for end in {*range(1, len(data), len(data) // 40 + 1), len(data) - 1}]
    other_files = [
        valid_file(other_kind) for other_kind in FILES if other_kind not in (kind, "ledger")
    ]
    if "report" in kind:
        other_files = [
            other_file for other_file in other_files if b'"kind":"report"' not in other_file
        ]
    newer = re.sub(rb'"schema":( ?)[12]', rb'"schema":\g<1>9', data)
    for broken in [*JUNK, *truncated, *other_files, newer]:
        error_of_file(kind, broken, tmp_path)
    if b'"digest":"' in data and b'"body":' in data:
        body_start = data.index(b'"body":') + 7
        positions = [
            position
            for position in range(body_start, len(data))
            if data[position : position + 1].isdigit()
        ]
        for position in positions[:: len(positions) // 20 + 1]:
            other_kind = b"%d" % (9 - int(data[position : position + 1]))
            error_of_file(kind, data[:position] + other_kind + data[position + 1 :], tmp_path)


def test_a_damaged_record_or_that_of_another_calibration_is_refused(tmp_path):
    calibration = robfcp.calibrate(POOLED_REPORTS, defense=robfcp.Consensus(max_malicious=1))
    calibration.save(tmp_path / "c.json")
    path, data = calibration.record_path(tmp_path / "c.json"), calibration.record.to_json()
    other_record = robfcp.calibrate(POOLED_REPORTS[1:]).record.to_json()
    for broken in [*JUNK, data[:-9], data.replace(b"site-01", b"site-11"), other_record]:
        path.write_bytes(broken)
        with pytest.raises(RobfcpError) as error:
            _ = robfcp.Calibration.load(tmp_path / "c.json", record=True).federation
        assert str(error.value).isprintable()
    path.write_bytes(data)
    assert (
        list(robfcp.Calibration.load(tmp_path / "c.json", record=True).federation) == POOLED_REPORTS
    )
    for strata in (["class", ["a"]], ["class", 7], ["group", ["a"]], ["class", 2**70]):
        body = json.loads(CALIBRATION_BY_CLASS.record.to_json())["body"]
        body["federation"]["strata"] = strata
        with pytest.raises(RobfcpError, match="record: not a calibration's record"):
            Record.from_json(seal("record", body))


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_keys, '["site 1"]\nkey = "ed25519:AAAA"', "not an Ed25519 public key"),
        (read_keys, '[a]\nkey = "AAAA"', "not an Ed25519 public key"),
        (read_keys, "[a]\nkey = 3", "a: a whole number stands at key where text"),
        (read_keys, "[a]\nn-samples = 3", "a has no key"),
        (read_keys, "[a]\nn-samples = -3", "n-samples = 500"),
        (read_keys, "[a]\nsize = 3", "a: 'size' is not known"),
        (read_keys, "[a", "not TOML"),
        (read_keys, "", "registers nobody"),
        (read_registered_sizes, '[a]\nkey = "k"\n', "no number of samples"),
        (read_terms, "[", "not TOML"),
        (
            read_terms,
            "rounds = 3",
            r"'rounds' is not known; did you mean 'round'\?; use round, model",
        ),
        (read_terms, "dp-epsilon = true", "stands at dp-epsilon where a number"),
        *(
            (read_registered_sizes, f'{{"a": {n}}}', "n-samples = 500")
            for n in ("true", "0", "1.5")
        ),
        (read_registered_sizes, "{", "not JSON"),
        (read_registered_sizes, '{"a": 1, "a": 2}', "not JSON"),
    ],
)
def test_invalid_registries_and_terms_are_refused(read, text, message, tmp_path):
    path = tmp_path / ("r.json" if "JSON" in message or ": " in text else "r.toml")
    path.write_text(text)
    with pytest.raises(RobfcpError, match=message) as error:
        read(path)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("kind", ["report", "e-value report", "monitor", "alarm history", "ledger"])
def test_a_400_mb_file_is_refused_before_it_is_read(kind, tmp_path):
    with open(tmp_path / "x.json", "wb") as stream:
        stream.truncate(400 * 2**20)
    with pytest.raises(RobfcpError, match="larger than"):
        FILES[kind][1](tmp_path / "x.json")


@pytest.mark.effort
def test_every_mutation_of_a_report_is_refused_or_means_the_same():
    """Never another exception, and never counts that differ from the file."""
    rng, n_accepted, messages = np.random.default_rng(1), 0, []
    originals = [
        original.to_json() for original in (*POOLED_REPORTS, STRATIFIED_REPORT, PRIVATE_REPORT)
    ]
    for _ in range(cases(2000)):
        data = mutate_json(originals[rng.integers(len(originals))], rng)
        try:
            report = robfcp.Report.from_json(data)
        except ReportError as error:
            messages.append(str(error))
            continue
        n_accepted, content = n_accepted + 1, json.loads(data)
        assert report.binning.digest == content["binning"]["digest"]
        assert report.n_samples == content.get("n_samples", report.n_samples)
        assert robfcp.Report.from_json(report.to_json()) == report
        if report.privacy is None:
            assert report.n_samples == report.counts.sum()
            assert report.counts.min() >= 0
        if report.strata is not None:
            assert (report.strata.dense().sum(axis=0) == report.counts).all()
    assert cases(10) < n_accepted < cases(750)
    assert all(map(str.isprintable, messages))
