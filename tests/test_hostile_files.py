"""Files of every kind, broken in every way we know: refused in one line that can be printed."""

import json
import re
from functools import cache

import numpy as np
import pytest
from effort import cases
from fuzz.mutations import mutate_json
from makers import LAC, beta_scores, outputs, reports_of, sealed

import robfcp
from robfcp.calibration._record import Record
from robfcp.errors import ReportError, RobfcpError
from robfcp.local._feedback import ClientFeedback
from robfcp.monitoring import AlarmHistory, EValueReport
from robfcp.privacy import Privacy, PrivacyLedger
from robfcp.reports.terms import read_keys, read_registered_sizes, read_terms

DIGEST, OTHER = "ab" * 32, "cd" * 32
GRID = robfcp.Binning.uniform(20)


def monitor(path=None):
    """A monitor that keeps a bag of scores too, going on with a state file if there is one."""
    own = robfcp.Report.from_predictions(
        "site-3", *outputs(0, 200), stratify_by_class=False, binning=GRID, min_cell_count=1
    )
    federation = robfcp.Federation.from_counts([[50] * 20] * 9, GRID, score=LAC)
    calibration = robfcp.calibrate(federation, defense="none")
    return robfcp.Monitor(calibration, min_coverage=0.9, reference_report=own, seed=1, path=path)


def looked():
    history = AlarmHistory(DIGEST, "r", 6, 1, 0.05)
    for step in (1, 2):
        sent = [EValueReport(f"s{k}", DIGEST, 0.9, 9 * step, 0.5, "r", step) for k in range(6)]
        _, history = history.with_inspection(sent, step)
    return history


def letter():
    sites = [
        robfcp.Report.from_predictions(f"s{k}", *outputs(k), min_cell_count=1) for k in range(11)
    ]
    return robfcp.calibrate(sites, defense=robfcp.Consensus(at_most=2)).feedback("s3")


PRIVATE = robfcp.Report("a", [20] * 10, robfcp.Binning.uniform(10), LAC, n_samples=200,
                        privacy=Privacy(1.0))  # fmt: skip
SPLIT = robfcp.Report.from_predictions(
    "a", *outputs(0, 6), binning=robfcp.Binning.uniform(10), min_cell_count=1
)
DEFAULT = robfcp.Report.from_predictions("a", *outputs(0, 200), binning=robfcp.Binning.uniform(10))
PLAIN = reports_of(beta_scores(0, 6, 50), round="7", model="abc")
BY_CLASS = robfcp.calibrate(
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
EVERY_NUMBER = [-1, 1.5, None, "1"]
FILES = {
    "report": (PLAIN[0].to_json, robfcp.Report.load),
    "default report": (DEFAULT.to_json, robfcp.Report.load),
    "report by class": (SPLIT.to_json, robfcp.Report.load),
    "private report": (PRIVATE.to_json, robfcp.Report.load),
    "e-report": (EValueReport("a", DIGEST, 0.9, 10**6, 1.0, "r").to_json, EValueReport.load),
    "monitor": (lambda: monitor().update(*outputs(1, 60)).to_json(), monitor),
    "alarms": (lambda: looked().to_json(), AlarmHistory.load),
    "letter": (lambda: letter().to_json(), ClientFeedback.load),
    "calibration": (BY_CLASS.to_json, robfcp.Calibration.load),
    "ledger": (lambda: json.dumps(LEDGER).encode(), lambda path: PrivacyLedger(path).releases()),
}
# Values that fields must not have: "a.b" is b inside a, an object is joined to what stands there.
WRONG = {
    "report": REPORT_FIELDS | {
        "n_samples": [*EVERY_NUMBER, 49, 50.0],
        "model": [3, "x" * 300],
        "counts": [
            [1.5], [1], None, {"bins": [0], "counts": [25, 25]}, {"bins": [], "counts": []},
            {"bins": [5, 5], "counts": [9, 50]}, {"bins": [5, 4], "counts": [25, 25]},
            {"bins": [-1], "counts": [50]}, {"bins": [1, -(2**63), 5], "counts": [25, 24, 1]},
            {"bins": [10**6], "counts": [50]}, {"bins": [10**30], "counts": [50]},
            {"bins": [3], "counts": [10**30]}, {"bins": [3, 4], "counts": [51, -1]},
            {"bins": [1000], "counts": [50]},
        ],
        "grid": [
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
        "": [{"risk": {"name": "fnr", "bound": 1.0, "resolution": 1}}],
    },
    "report by class": {
        "strata": [
            {"steps": [0, 0, 30], "counts": [2, 2, 2]}, {"steps": [2**62], "counts": [6]},
            {"steps": [30], "counts": [6]}, {"steps": [-1, 2], "counts": [3, 3]},
            {"steps": [3, 0], "counts": [3, 3]}, {"steps": [3, -2], "counts": [3, 3]},
            {"steps": [3, -(2**63)], "counts": [3, 3]}, {"steps": [2**63], "counts": [6]},
            {"steps": [2**100], "counts": [6]}, {"steps": [3, 1], "counts": [7, -1]},
            {"steps": [3, 10], "counts": [7, -1]}, {"steps": [3, 1], "counts": [6, 0]},
            {"steps": [3], "counts": [2**63]}, {"steps": [3, 10, 10], "counts": [2**62] * 3},
            {"counts": [1.5] * 6}, {"counts": [6]}, {"steps": [3], "counts": [7]},
            {"steps": [], "counts": []}, {"more": 1}, None,
        ],
        "strata.names": [
            1, 0, -1, 10**6, 10**30, ["a", "a", "b"], ["a", "\u001b[2J", "b"], ["a", "", "b"], [],
            "abc", [1, 2, 3],
        ],
        "strata.by": ["ward", "group", None],
        "counts": [[6] + [0] * 9],
        "class_totals": [{"names": 3, "totals": [2, 2, 2]}],
        "": [{"risk": {"name": "fnr", "bound": 1.0, "resolution": 360}}],
        "set_sizes": [[-6] + [3] * 8, [6] * 9 + [1], [6]],
    },
    "private report": {
        "n_samples": [100_000, 0, None, "1"],
        "counts": [
            [10**6, -(10**6) + 200] + [0] * 8, [2**41] + [0] * 9, [-(2**41)] + [0] * 9, [1, 2],
            [10**12] * 2 + [-(10**12)] * 2 + [0] * 6,
        ],
        "privacy": [
            {"scale": 1.0}, {"epsilon": -1}, {"neighbours": "add-remove"}, {"promise": 1},
        ],
        "set_sizes": [[20] * 10],
    },
    "e-report": REPORT_FIELDS | {
        "log_coverage": [None, "1", 1e300, 1e7, float("nan"), float("inf")],
        "log_drift": [1e300, "a", float("nan")],
        "n_samples": [*EVERY_NUMBER, 0, 2**60],
        "step": EVERY_NUMBER,
        "floor": [0.0, 1.0, "x"],
        "calibration": ["AB" * 32, "", None],
    },
    "monitor": {
        "": [{"more": 1}, {"floor": 1.0}, {"floor": "high"}, {"delta": 0}, {"misses": 61},
             {"misses": -1}, {"n": 61}, {"n": 2**50}, {"level": -1}, {"seed": -4}, {"seed": 2**64},
             {"changes": []}, {"changes": [0.0]}, {"started": []}, {"curve": []},
             {"curve": [[60, 0.0, 0.0, 0.0], [60, 0.0, 0.0, 0.0]]}, {"batches": ["x"]},
             {"rows": ["0" * 15]}, {"run_length": 0.1}, {"client": "a\n"}, {"calibration": None}],
        "alarms": [{"coverage": 0}, {"coverage": 99}, {"x\x1b": 9}],
        "bag": [{"bins": [2**40], "counts": [260]}, {"bins": [20], "counts": [260]},
                {"reported": 0}, {"bins": [3, 2]}, {"bins": [-1]}, {"counts": [0]}, {"counts": [1]},
                {"started": []}, {"cells": [1] * 10}, {"cells": [-1] + [0] * 8 + [61]}],
    },
    "alarms": {
        "": [{"calibration": "x"}, {"calibration": OTHER}, {"delta": 2.0}, {"liars": 6},
             {"n_sites": 2}],
        "looks": [[{"step": 1, "sites": {}}] * 2, [{"step": 1, "sites": {}, "extra": 1}]],
        "looks.0.step": [2, 3],
        "looks.0.sites.s0": [{"client": "s1"}, {"client": "a\u202eb"}, {"n_samples": -1},
                             {"log_coverage": 1e9}, {"step": 2}, {"calibration": OTHER}],
    },
    "letter": {
        "": [{"more": 1}, {"verdict": "perhaps"}, {"covered": [1.5]}, {"calibration": None}],
        "others": [{"more": 1}, {"thresholds": [0.5, 0.6]}, {"label_counts": [1, -2, 3]},
                   {"liars": -1}, {"alike": 7.0}],
    },
    "calibration": {
        "": [{"more": 1}, {"recorded": "../../../../x"}, {"recorded": "0" * 63}, {"classes": 2},
             {"classes": ["a", "b", "c", "d"]}, {"by": None}, {"by": "ward"}, {"liars": 99}],
        "levels.0.parts": [[], None],
        "levels.0.parts.2.name": ["0"],
        "levels.0.certificate": [{"lower": -0.1}, {"lower": 2.0}, {"lower": float("nan")},
                                 {"confidence": 0.0}, {"confidence": 1.0}],
        "levels.0.certificate.assumptions.0": [
            {"name": "alike", "value": "very"}, {"name": "alike", "value": -0.1},
        ],
        "levels.0.parts.0.curve.0": [{"lower": 0.9, "upper": 0.1}],
    },
    "ledger": {"": [{"more": 1}, {"schema": 2}, {"kind": "report"}, {"releases": [{}]},
                    {"releases": None}]},
}  # fmt: skip
JUNK = [b"null", b"[]", b"{}", b"\xff\xfe\x00", b"[" * 9999, b'"\\ud800"', b"{", b""]


@cache
def good(kind):
    return FILES[kind][0]()


def changed(kind, field, value):
    """The valid file with another value there, its digest made to fit again."""
    data = json.loads(good(kind))
    inside = data["body"] if "digest" in data else data
    *way, last = (int(step) if step.isdigit() else step for step in field.split("."))
    place = inside
    for step in way:
        place = place[step]
    if not field:
        inside |= value
    elif isinstance(value, dict) and last != "class_totals" and isinstance(place[last], dict):
        place[last] |= value
    else:
        place[last] = value
    return sealed(data["kind"], inside) if "digest" in data else json.dumps(data).encode()


def refused_in_one_line(kind, data, folder):
    (folder / "x.json").write_bytes(data)
    with pytest.raises(RobfcpError, match=";") as caught:
        FILES[kind][1](folder / "x.json")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500
    return caught.value


CASES = [(kind, field) for kind, wrong in WRONG.items() for field in wrong]


@pytest.mark.parametrize(("kind", "field"), CASES)
def test_a_value_that_cannot_be_is_refused_with_the_client_named(kind, field, tmp_path):
    for value in WRONG[kind][field]:
        error = refused_in_one_line(kind, changed(kind, field, value), tmp_path)
        if "report" in kind:
            assert isinstance(error, ReportError)
            named = error.client in (json.loads(good(kind))["client"], str(tmp_path / "x.json"))
            assert named or field == "client"
        if kind in ("report", "default report") and field:
            assert error.field == field or error.field in ("report", "kind", "min_cell_count")


@pytest.mark.parametrize("kind", FILES)
def test_what_is_cut_altered_newer_or_of_another_kind_is_refused(kind, tmp_path):
    data = good(kind)
    cuts = [data[:end] for end in {*range(1, len(data), len(data) // 40 + 1), len(data) - 1}]
    others = [good(other) for other in FILES if other not in (kind, "ledger")]
    if "report" in kind:
        others = [one for one in others if b'"kind":"report"' not in one]
    newer = re.sub(rb'"schema":( ?)[12]', rb'"schema":\g<1>9', data)
    for broken in [*JUNK, *cuts, *others, newer]:
        refused_in_one_line(kind, broken, tmp_path)
    if b'"digest":"' in data and b'"body":' in data:
        body = data.index(b'"body":') + 7
        places = [place for place in range(body, len(data)) if data[place : place + 1].isdigit()]
        for place in places[:: len(places) // 20 + 1]:
            other = b"%d" % (9 - int(data[place : place + 1]))
            refused_in_one_line(kind, data[:place] + other + data[place + 1 :], tmp_path)


def test_a_record_that_is_damaged_or_another_calibrations_is_refused(tmp_path):
    calibration = robfcp.calibrate(PLAIN, defense=robfcp.Consensus(at_most=1))
    calibration.save(tmp_path / "c.json")
    path, data = calibration.record_path(tmp_path / "c.json"), calibration.record.to_json()
    another = robfcp.calibrate(PLAIN[1:]).record.to_json()
    for broken in [*JUNK, data[:-9], data.replace(b"site-01", b"site-11"), another]:
        path.write_bytes(broken)
        with pytest.raises(RobfcpError) as caught:
            _ = robfcp.Calibration.load(tmp_path / "c.json", record=True).federation
        assert str(caught.value).isprintable()
    path.write_bytes(data)
    assert list(robfcp.Calibration.load(tmp_path / "c.json", record=True).federation) == PLAIN
    for strata in (["class", ["a"]], ["class", 7], ["group", ["a"]], ["class", 2**70]):
        body = json.loads(BY_CLASS.record.to_json())["body"]
        body["federation"]["strata"] = strata
        with pytest.raises(RobfcpError, match="record: not a calibration's record"):
            Record.from_json(sealed("record", body))


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (read_keys, '["site 1"]\nkey = "ed25519:AAAA"', "not an Ed25519 public key"),
        (read_keys, '[a]\nkey = "AAAA"', "not an Ed25519 public key"),
        (read_keys, "[a]\nkey = 3", "a: a whole number stands at key where text"),
        (read_keys, "[a]\nsamples = 3", "a has no key"),
        (read_keys, "[a]\nsamples = -3", "whole numbers of samples"),
        (read_keys, "[a]\nsize = 3", "a: 'size' is not known"),
        (read_keys, "[a", "not TOML"),
        (read_keys, "", "registers nobody"),
        (read_registered_sizes, '[a]\nkey = "k"\n', "no number of samples"),
        (read_terms, "[", "not TOML"),
        (read_terms, "rounds = 3", "'rounds' is not known; use round, model"),
        (read_terms, "epsilon = true", "stands at epsilon where a number"),
        *(
            (read_registered_sizes, f'{{"a": {n}}}', "whole numbers of samples")
            for n in ("true", "0", "1.5")
        ),
        (read_registered_sizes, "{", "not JSON"),
        (read_registered_sizes, '{"a": 1, "a": 2}', "not JSON"),
    ],
)
def test_registries_and_terms_say_what_is_wrong(read, text, words, tmp_path):
    path = tmp_path / ("r.json" if "JSON" in words or ": " in text else "r.toml")
    path.write_text(text)
    with pytest.raises(RobfcpError, match=words) as caught:
        read(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("kind", ["report", "e-report", "monitor", "alarms", "ledger"])
def test_a_400_mb_file_is_refused_before_it_is_read(kind, tmp_path):
    with open(tmp_path / "x.json", "wb") as stream:
        stream.truncate(400 * 2**20)
    with pytest.raises(RobfcpError, match="larger than"):
        FILES[kind][1](tmp_path / "x.json")


@pytest.mark.effort
def test_every_mutation_of_a_report_is_refused_or_means_the_same():
    """Thousands of them: never a traceback, never counts that differ from what stands."""
    rng, accepted, lines = np.random.default_rng(1), 0, []
    originals = [one.to_json() for one in (*PLAIN, SPLIT, PRIVATE)]
    for _ in range(cases(2000)):
        data = mutate_json(originals[rng.integers(len(originals))], rng)
        try:
            report = robfcp.Report.from_json(data)
        except ReportError as error:
            lines.append(str(error))
            continue
        accepted, said = accepted + 1, json.loads(data)
        assert report.grid.digest == said["grid"]["digest"]
        assert report.n_samples == said.get("n_samples", report.n_samples)
        assert robfcp.Report.from_json(report.to_json()) == report
        if report.privacy is None:
            assert report.n_samples == report.counts.sum()
            assert report.counts.min() >= 0
        if report.strata is not None:
            assert (report.strata.dense().sum(axis=0) == report.counts).all()
    assert cases(10) < accepted < cases(750)
    assert all(map(str.isprintable, lines))
