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
        (alter(counts={"bins": [1, -(2**63), 5], "counts": [25, 24, 1]}), "counts"),
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


def test_another_kind_of_file_is_called_by_its_name(tmp_path):
    robfcp.calibrate([Report.from_scores("a", [0.1] * 30)]).save(tmp_path / "c.json")
    Report.from_scores("a", [0.1] * 30).save(tmp_path / "a.json")
    (fault,) = robfcp.Federation.read([tmp_path / "c.json", tmp_path / "a.json"]).faulty
    assert fault.reason.endswith(
        "c.json: is of kind 'calibration', not a report; send what robfcp sketch wrote"
    )


# Of predictions and labels

P = RNG.dirichlet([1.0, 1.0, 1.0], 40)
Y = RNG.integers(0, 3, 40)
NAMES = ("cat", "dog", "eel")
WORDS = np.array(NAMES)[Y]


@pytest.mark.parametrize("score", [LAC(), APS(), RAPS(0.5, 2)], ids=str)
def test_a_report_of_predictions_is_that_of_their_scores_by_class(score):
    made = Report.of("a", P, Y, score=score, rng=3, round="r")
    scores = score(P, Y, 3)
    assert made == Report.from_scores("a", scores, score=score, labels=Y, classes=3, round="r")
    named = Report.of("a", P, WORDS, score=score, classes=NAMES, rng=3, round="r")
    assert named.strata.names == NAMES
    assert (named.strata.dense() == made.strata.dense()).all()
    assert Report.of("a", P, Y, score=score, classes=NAMES, rng=3, round="r") == named
    sized = Report.of("a", P, Y, score=score, rng=3, set_sizes=True)
    label_scores = score.all_labels(P, 3)  # with the draws that the true labels had
    assert (sized.set_sizes == made.grid.counts(label_scores.ravel())).all()


def test_a_frame_names_the_classes_in_whatever_order_its_columns_stand():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(P, columns=list(NAMES))
    assert Report.of("a", frame, WORDS) == Report.of("a", P, Y, classes=NAMES)
    numbered = pandas.DataFrame(P[:, ::-1], columns=["p2", "p1", "p0"])
    assert Report.of("a", numbered, Y) == Report.of("a", P, Y)


def test_groups_numbers_and_withheld_labels_make_no_classes():
    grouped = Report.of("a", P, Y, groups=Y % 2)
    assert (grouped.strata.by, grouped.strata.sizes.sum()) == ("group", 40)
    assert Report.of("a", P, Y, by_class=False) == Report.from_scores("a", LAC()(P, Y), score=LAC())
    values = Report.of("a", P[:, 0], P[:, 1], score=AbsoluteResidual())
    assert values.strata is None


def test_a_private_report_of_predictions_is_pooled_and_no_sample_shows_by_a_refusal():
    pytest.importorskip("opendp")
    privacy = robfcp.Privacy(epsilon=1.0)
    odd = P.copy()
    odd[3] = np.nan
    made = Report.of("a", odd, Y, privacy=privacy, grid=Grid.uniform(8))
    assert (made.strata, made.n_samples) == (None, 40)
    stranger = np.where(np.arange(40) == 5, "cow", WORDS)
    assert Report.of("a", P, stranger, classes=NAMES, privacy=privacy).n_samples == 40
    split = Report.of("a", P, Y, privacy=privacy, by_class=True, grid=Grid.uniform(8))
    assert len(split.strata.cells) == 24


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"labels": [0] * 39}, "labels: shape"),
        ({"labels": [3] * 40}, "labels: 3..3 leaves 0..2"),
        ({"labels": ["cow", *WORDS[1:]], "classes": NAMES}, "labels: cow of sample 0 is none of"),
        ({"labels": WORDS}, "labels: are text; name the classes"),
        ({"probabilities": P * 2}, "probabilities: row 0 sums to 2"),
        ({"score": LAC}, "is not a score; pass LAC"),
        ({"grid": 7}, "int is not a grid; pass Grid.default"),
        ({"privacy": 1.0}, "privacy is not stated as such; pass Privacy"),
        ({"privacy": robfcp.Privacy(1.0), "set_sizes": True}, "leave them out of private reports"),
        ({"groups": Y, "by_class": True}, "a report has one grouping"),
        ({"score": AbsoluteResidual(), "by_class": True}, "absolute-residual has no classes"),
    ],
)
def test_what_no_report_can_be_of_is_said_in_one_line_that_names_client_and_field(options, words):
    given = {"probabilities": P, "labels": Y} | options
    with pytest.raises(RobfcpError, match=words) as refused:
        Report.of("site-7", **given)
    assert str(refused.value).startswith("site-7: ")
    assert str(refused.value).isprintable()
