"""Reports: what crosses the wire is checked to the last field."""

import json

import numpy as np
import pytest

import robfcp
from robfcp.errors import ReportError, RobfcpError
from robfcp.files import read_limited
from robfcp.grid import Grid
from robfcp.report.report import Report
from robfcp.scores import APS, LAC, RAPS, AbsoluteResidual

RNG = np.random.default_rng(0)
EXAMPLES = [
    Report.from_scores("site-1", RNG.random(50), score=LAC(), round="7", model="abc"),
    Report.from_scores("site-2", RNG.random(5000), Grid.uniform(10), score=APS(randomized=False)),
    Report.from_scores("<script>", RNG.random(5), score=RAPS(0.5, 2)),
    Report.from_scores("ünï", RNG.normal(size=9), score=AbsoluteResidual()),
    Report.from_scores("site-5", RNG.random(50), Grid.open_ended([0.25, 0.5])),
    Report(client="site-6", counts=[1, 0, 2], grid=Grid([0, 0.1, 0.7, np.inf])),
    Report(client="site-7", counts=np.array([3, 4], dtype=np.uint8), grid=Grid.uniform(2)),
]


@pytest.mark.parametrize("report", EXAMPLES, ids=lambda report: report.client)
def test_json_round_trips_to_the_bit(report, tmp_path):
    again = Report.from_json(report.to_json())
    assert again == report
    assert again.to_json() == report.to_json()
    assert again.n_samples == report.counts.sum()
    report.save(tmp_path / "r.json")
    assert Report.load(tmp_path / "r.json") == report
    assert Report.from_json(report.to_json().decode()) == report
    assert report != report.client


def test_sparse_counts_are_used_where_they_are_shorter():
    assert b'"bins"' in EXAMPLES[0].to_json()
    assert b'"counts":[' in EXAMPLES[1].to_json()
    assert len(EXAMPLES[0].to_json()) < 1500


@pytest.mark.parametrize(
    ("counts", "problem"),
    [
        ([1, 2, 3], "3 counts do not fit the grid's 2 bins"),
        ([-1, 2], r"counts\[0\] is negative"),
        ([1.0, 2.0], "not a vector of integers"),
        ([np.nan, 1], "not a vector of integers"),
        ([True, False], "not a vector of integers"),
        ([2**41, 0], "exceed"),
        ([10**30, 0], "not a vector of integers"),
        ([2**63, 1], "not a vector of integers|exceed"),
        ([[1, 2]], "not a vector of integers"),
        ([[1], [1, 2]], "not a vector of integers"),
        (None, "not a vector of integers"),
        (["a", "b"], "not a vector of integers"),
        ([0, 0], "all zero"),
    ],
)
def test_counts_that_are_no_histogram_are_refused(counts, problem):
    with pytest.raises(ReportError, match=f"^site-7: .*{problem}.*; rebuild") as caught:
        Report(client="site-7", counts=counts, grid=Grid.uniform(2))
    assert caught.value.field == "counts"
    assert caught.value.client == "site-7"


@pytest.mark.parametrize("client", ["", "x" * 201, 7, None, "a\nb", "\x00", b"x"])
def test_impossible_names_are_refused(client):
    with pytest.raises(ReportError) as caught:
        Report(client=client, counts=[1, 2], grid=Grid.uniform(2))
    assert caught.value.field == "client"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["round", "model"])
@pytest.mark.parametrize("value", [3, "x" * 300, "a\nb"])
def test_round_and_model_are_short_texts(field, value):
    with pytest.raises(ReportError, match=field):
        Report(client="a", counts=[1, 2], grid=Grid.uniform(2), **{field: value})


def test_scores_that_do_not_fit_name_the_client():
    with pytest.raises(RobfcpError, match=r"^site-3: scores: range"):
        Report.from_scores("site-3", [2.0], Grid.default())


def test_counts_cannot_be_changed_afterwards():
    counts = np.array([1, 2])
    report = Report(client="a", counts=counts, grid=Grid.uniform(2))
    counts[0] = 9
    assert report.counts[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        report.counts[0] = 5


def alter(**changes):
    message = json.loads(EXAMPLES[0].to_json())
    message.update(changes)
    return json.dumps(message)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "report"),
        ("{", "report"),
        ("[]", "report"),
        ("null", "report"),
        ("[" * 100_000, "report"),
        ('"\ud800"', "report"),
        (b"\xff\xfe\x00", "report"),
        (alter(schema=99), "schema"),
        (alter(schema="1"), "schema"),
        (alter(client=5), "client"),
        (alter(client=""), "client"),
        (alter(n_samples=49), "n_samples"),
        (alter(n_samples=-1), "n_samples"),
        (alter(n_samples=None), "n_samples"),
        (alter(n_samples=50.0), "n_samples"),
        (alter(counts=[1.5]), "counts"),
        (alter(counts=[1]), "counts"),
        (alter(counts={"bins": [0], "counts": [25, 25]}), "counts"),
        (alter(counts={"bins": [], "counts": []}), "counts"),
        (alter(counts={"bins": [5, 5], "counts": [25, 25]}), "counts"),
        (alter(counts={"bins": [-1], "counts": [50]}), "counts"),
        (alter(counts={"bins": [10**6], "counts": [50]}), "counts"),
        (alter(counts={"bins": [10**30], "counts": [50]}), "counts"),
        (alter(counts={"bins": [3], "counts": [10**30]}), "counts"),
        (alter(counts={"bins": [3, 4], "counts": [51, -1]}), "counts"),
        (alter(grid={"name": "default", "digest": "0"}), "grid"),
        (alter(grid={"name": "nope", "digest": "0"}), "grid"),
        (alter(grid={"name": "uniform", "digest": "0", "parameters": {"bins": "x"}}), "grid"),
        (
            alter(
                grid={
                    "name": "uniform",
                    "digest": "0",
                    "parameters": {"bins": "9", "low": "a", "high": True},
                }
            ),
            "grid",
        ),
        (alter(grid={"name": "x", "digest": "0", "edges": [1, 0]}), "grid"),
        (alter(grid={"name": "x", "digest": "0", "edges": []}), "grid"),
        (alter(score={"name": "nope"}), "score"),
        (alter(score={"name": "raps", "parameters": {"penalty": "x"}}), "score"),
        (alter(extra=1), "report"),
        (alter(round=7), "round"),
        (alter(kind="calibration"), "kind"),
    ],
)
def test_broken_json_gets_one_line_that_names_client_and_field(text, field):
    with pytest.raises(ReportError) as caught:
        Report.from_json(text, source="mail.json")
    assert caught.value.field == field
    assert caught.value.client in ("site-1", "mail.json", "''")
    assert "\n" not in str(caught.value)
    assert ";" in str(caught.value)


def test_a_400_mb_body_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "huge.json"
    with open(path, "wb") as stream:
        stream.truncate(400 * 2**20)
    with pytest.raises(RobfcpError, match="larger than"):
        Report.load(path)


def test_missing_files_and_folders_are_one_clear_line(tmp_path):
    with pytest.raises(RobfcpError, match="no such file"):
        Report.load(tmp_path / "nothing.json")
    with pytest.raises(RobfcpError, match="is a folder"):
        read_limited(tmp_path)
    with pytest.raises(RobfcpError, match="cannot be written"):
        EXAMPLES[0].save(tmp_path / "no" / "where.json")


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(RobfcpError, match=r"r.json: cannot be written \(disk\); choose another"):
        EXAMPLES[0].save(tmp_path / "r.json")
    assert list(tmp_path.iterdir()) == []


def test_every_mutation_of_a_report_is_refused_or_means_the_same(monkeypatch):
    """Thousands of mutated bytes: never a traceback, never counts that differ from what stands."""
    rng = np.random.default_rng(1)
    originals = [report.to_json() for report in EXAMPLES]
    accepted = 0
    for _ in range(6000):
        data = bytearray(originals[rng.integers(len(originals))])
        for _ in range(rng.integers(1, 4)):
            position = rng.integers(len(data))
            action = rng.integers(3)
            if action == 0:
                data[position] = rng.integers(256)
            elif action == 1:
                del data[position : position + rng.integers(1, 9)]
            else:
                data[position:position] = bytes(rng.choice(list(b'0123456789.-eE,[]{}":n'), 2))
            if not data:
                break
        try:
            report = Report.from_json(bytes(data))
        except ReportError as error:
            lines = str(error).count("\n")
        else:
            lines = 0
            accepted += 1
            message = json.loads(bytes(data))
            assert report.n_samples == message["n_samples"] == report.counts.sum()
            assert report.counts.min() >= 0
            assert report.grid.digest == message["grid"]["digest"]
        assert lines == 0
    assert accepted < 1500


def test_bins_whose_differences_overflow_are_refused():
    message = json.loads(site_report().to_json())
    message["counts"] = {"bins": [1, -(2**63), 5], "counts": [1, 1, 1]}
    with pytest.raises(ReportError, match="rise strictly within"):
        Report.from_json(json.dumps(message))


def site_report():
    return Report.from_scores("a", [0.1, 0.2, 0.9])


def test_another_kind_of_file_is_called_by_its_name(tmp_path):
    robfcp.calibrate([Report.from_scores("a", [0.1] * 30)]).save(tmp_path / "c.json")
    found = robfcp.read_federation([tmp_path / "c.json", *_saved(tmp_path)])
    (fault,) = found.faulty
    assert fault.reason.endswith(
        "c.json: is of kind 'calibration', not a report; send what robfcp sketch wrote"
    )


def _saved(folder):
    Report.from_scores("a", [0.1] * 30).save(folder / "a.json")
    return [folder / "a.json"]
