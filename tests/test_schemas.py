"""The published JSON Schemas: current, and true of the files that robfcp writes."""

import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

import robfcp
from robfcp.audit import AuditLog
from robfcp.monitoring import record_inspection
from robfcp.reports import signing
from robfcp.schemas import FILE_SCHEMAS, file_schema

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}


def problems(value, schema, definitions, path=""):
    """Where a JSON value breaks a schema; the keywords are those that the schemas use."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].removeprefix("#/$defs/")]
    if "anyOf" in schema:
        choices = [problems(value, choice, definitions, path) for choice in schema["anyOf"]]
        return [] if [] in choices else [f"{path}: fits no choice"]
    if "const" in schema and value != schema["const"]:
        return [f"{path}: is not {schema['const']!r}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{path}: is none of {schema['enum']}"]
    kind = schema.get("type")
    if kind in TYPES and not isinstance(value, TYPES[kind]):
        return [f"{path}: is no {kind}"]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind in ("integer", "number"):
        if not is_number or (kind == "integer" and not isinstance(value, int)):
            return [f"{path}: is no {kind}"]
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            return [f"{path}: is out of range"]
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        return [f"{path}: does not match {schema['pattern']}"]
    if isinstance(value, list):
        items = schema.get("items", {})
        prefix = schema.get("prefixItems", [])
        found = []
        for k, item in enumerate(value):
            item_schema = prefix[k] if k < len(prefix) else items
            if item_schema:
                found += problems(item, item_schema, definitions, f"{path}/{k}")
        return found
    if isinstance(value, dict):
        return problems_of_object(value, schema, definitions, path)
    return []


def problems_of_object(value, schema, definitions, path):
    """Where an object breaks a schema."""
    known = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    found = [f"{path}: lacks {key}" for key in schema.get("required", ()) if key not in value]
    for key, item in value.items():
        if key in known:
            found += problems(item, known[key], definitions, f"{path}/{key}")
        elif others is False:
            found.append(f"{path}: {key} is not known")
        elif isinstance(others, dict):
            found += problems(item, others, definitions, f"{path}/{key}")
    return found


def check(kind, data):
    """Refuse a file that breaks the schema of its kind."""
    schema = file_schema(kind)
    assert problems(json.loads(data), schema, schema.get("$defs", {})) == []


@pytest.fixture(scope="module")
def calibration():
    rng = np.random.default_rng(5)
    reports = []
    for k in range(8):
        probabilities = rng.dirichlet(np.ones(3), 120)
        labels = (probabilities.cumsum(axis=1) > rng.random((120, 1))).argmax(axis=1)
        reports.append(
            robfcp.Report.from_predictions(
                f"c{k}", probabilities, labels, stratify_by_class=True, include_all_labels=True
            )
        )
    guarantee = robfcp.PACGuarantee(max_malicious=1, heterogeneity=0.1)
    federation = robfcp.Federation.from_reports(reports, expected_clients=["c0", "absent"])
    return robfcp.calibrate(federation, coverage=[0.8, 0.9], by="class", guarantee=guarantee)


def test_the_schemas_in_the_documentation_are_current():
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == sorted(FILE_SCHEMAS)
    for kind in FILE_SCHEMAS:
        stored = json.loads((FOLDER / f"{kind}.json").read_text(encoding="utf-8"))
        assert stored == file_schema(kind), f"{kind}: run python scripts/schemas.py"


def test_reports_of_every_kind_fit_their_schema():
    rng = np.random.default_rng(6)
    probabilities = rng.dirichlet(np.ones(4), 200)
    labels = rng.integers(4, size=200)
    exact = robfcp.Report.from_predictions("a", probabilities, labels, min_cell_count=1)
    totals = robfcp.Report.from_predictions("a", probabilities, labels, include_all_labels=True)
    noisy = robfcp.Report.from_predictions(
        "a", probabilities, labels, privacy=robfcp.Privacy(epsilon=1.0)
    )
    losses = robfcp.Report.from_multilabel("a", probabilities, probabilities > 0.3)
    for report in (exact, totals, noisy, losses):
        check("report", report.to_json())


def test_files_of_a_calibration_fit_their_schemas(calibration):
    check("calibration", calibration.to_json())
    check("record", calibration.require_record().to_json())
    for client in ("c0", "c5", "absent"):
        check("client-feedback", calibration.feedback(client).to_json())


def test_files_of_a_monitor_fit_their_schemas(tmp_path):
    rng = np.random.default_rng(7)
    reports = [robfcp.Report.from_scores(f"c{k}", rng.random(200)) for k in range(5)]
    pooled = robfcp.calibrate(
        [msgspec.structs.replace(report, score=robfcp.LAC()) for report in reports]
    )
    monitor = robfcp.Monitor(
        pooled, min_coverage=0.8, seed=1, client="c0", path=tmp_path / "m.json"
    )
    probabilities = rng.dirichlet(np.ones(2), 60)
    monitor.update(probabilities, rng.integers(2, size=60))
    check("monitor", (tmp_path / "m.json").read_bytes())

    e_value_report = monitor.e_value_report("r1", step=1)
    check("e-value-report", e_value_report.to_json())
    history = tmp_path / "history.json"
    record_inspection(history, [e_value_report], 0, step=1, n_clients=5)
    check("alarm-history", history.read_bytes())


def test_other_files_fit_their_schemas(tmp_path):
    ledger = robfcp.PrivacyLedger(tmp_path / "ledger.json", dataset="2026")
    ledger.charge(robfcp.Privacy(epsilon=1.0, n_rounds=2), "r1")
    check("privacy-ledger", (tmp_path / "ledger.json").read_bytes())

    log = AuditLog(tmp_path / "audit.jsonl")
    log.write("round opened", round="r1")
    for line in (tmp_path / "audit.jsonl").read_text().splitlines():
        check("audit-event", line)

    check("round-terms", '{"round": "r1", "dp-epsilon": 1.0, "min-cell-count": 5}')
    check("client-policy", '{"dp-epsilon": 1.0, "stratify-by-class": false, "min-cell-count": 5}')
    check("registry", '{"a": 100, "b": {"n-samples": 5, "key": "ed25519:AA=="}}')


def test_a_signed_report_fits_its_schema(tmp_path):
    pytest.importorskip("cryptography")
    signing.generate_key(tmp_path / "key")
    report = robfcp.Report.from_scores("a", [0.1, 0.2, 0.9], round="r1")
    check("signed-report", signing.sign(report, signing.load_key(tmp_path / "key")))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"min_cell_count": None}, "/min_cell_count: is no integer"),
        ({"client": 5}, "/client: is no string"),
        ({"extra": 1}, ": extra is not known"),
        ({"schema": 9}, "/schema: is none of [2]"),
        ({"binning": {"name": "default"}}, "/binning: lacks digest"),
    ],
)
def test_a_schema_refuses_what_robfcp_refuses(change, expected):
    report = json.loads(robfcp.Report.from_scores("a", [0.1, 0.2, 0.9]).to_json()) | change
    schema = file_schema("report")
    assert expected in problems(report, schema, schema["$defs"])
    with pytest.raises(robfcp.RobfcpError):
        robfcp.Report.from_json(json.dumps(report))


def test_an_unknown_kind_is_refused_in_one_line():
    with pytest.raises(robfcp.RobfcpError, match="schema: 'letter' is unknown; use one of report"):
        file_schema("letter")
