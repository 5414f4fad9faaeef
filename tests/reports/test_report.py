"""Reports: made as requested, and read with every field checked."""

import json
from functools import partial

import numpy as np
import pytest
from makers import command_error, command_output, embedded_data, outputs

import robfcp
from robfcp import Privacy
from robfcp._files import read_bounded
from robfcp.binning import Binning
from robfcp.errors import ReportError, RobfcpError
from robfcp.page import render_html
from robfcp.reports._report import Report
from robfcp.scores import APS, LAC, RAPS, AbsoluteResidual

RNG = np.random.default_rng(0)
P, Y = RNG.dirichlet([1.0, 1.0, 1.0], 40), RNG.integers(0, 3, 40)
NAMES = ("cat", "dog", "eel")
LABEL_NAMES = np.array(NAMES)[Y]
FOUR, EIGHT = Binning.uniform(4), Binning.uniform(8)
HALF = np.linspace(0, 1, 40)
LOSSES = Report.from_losses("a", [[1.0, 0.0]] * 3, [0.1, 0.5], risk="fnr")
UNUSUAL_BINNINGS = [
    Binning([0, 0.5, 1], "default"),
    Binning([0, 0.3, 1], "uniform"),
    Binning([0, 0.3, 1], "uniform", {"bins": 2, "low": 0.0, "high": 1.0}),
    Binning(Binning.open_ended().edges, "mine"),
    Binning([-np.inf, np.inf]),
    Binning([5e-324, 1e-323]),
    Binning([0, 0.1, 0.7, np.inf]),
]
RAPS_OF_NUMPY = RAPS(np.float32(0.5), np.int64(2), np.bool_(False))  # numbers of other libraries
EXAMPLES = [
    Report.from_scores("site-1", RNG.random(50), score=LAC(), round="7", model="abc"),
    Report.from_scores(
        "site-2", RNG.random(5000), Binning.uniform(10), score=APS(randomized=False)
    ),
    Report.from_scores("<script>", RNG.random(5), score=RAPS(0.5, 2)),
    Report.from_scores("ünï", RNG.normal(size=9), score=AbsoluteResidual()),
    Report.from_scores("site-5", RNG.random(50), Binning.open_ended([0.25, 0.5])),
    Report(
        np.str_("b"), np.ones(2, np.uint8), Binning.uniform(2), RAPS_OF_NUMPY, n_samples=np.int32(2)
    ),
    *(Report("a", np.ones(binning.n_bins, dtype=int), binning) for binning in UNUSUAL_BINNINGS),
    Report.from_predictions("a", P, Y, round="r", model="m", min_cell_count=1),
    Report.from_predictions(
        "a", P, Y, classes=NAMES, binning=Binning.open_ended([0.0, 0.5, 1.0]), min_cell_count=1
    ),
    Report.from_predictions("a", P, Y, groups=LABEL_NAMES, include_all_labels=True),
    Report.from_scores("a", [0.1, 0.5], EIGHT, labels=[0, 19_999], classes=20_000),
    Report.from_scores(
        "a",
        RNG.random(60),
        labels=RNG.integers(0, 3, 60),
        classes=["x", "y", "z"],
        all_label_scores=RNG.random((60, 3)),
        min_cell_count=5,
    ),
    Report.from_scores(
        "a",
        RNG.random(200),
        labels=RNG.integers(0, 2, 200),
        classes=2,
        stratify_by_class=True,
        min_cell_count=7,
    ),
    LOSSES,
]


def test_a_report_without_a_minimum_cell_count_or_of_an_older_schema_is_refused_in_a_line():
    message = json.loads(Report.from_scores("a", [0.1, 0.2, 0.9]).to_json())
    del message["min_cell_count"]
    with pytest.raises(ReportError, match="a: min_cell_count is missing; state it; 1 means exact"):
        Report.from_json(json.dumps(message))
    message["schema"] = 1
    with pytest.raises(ReportError, match=r"a: schema 1 is of an older robfcp .* update robfcp"):
        Report.from_json(json.dumps(message))


@pytest.mark.parametrize("report", EXAMPLES, ids=repr)
def test_json_round_trips_to_the_bit(report, tmp_path):
    parsed = Report.from_json(report.to_json())
    assert parsed == report == Report.from_json(report.to_json().decode())
    assert parsed.to_json() == report.to_json()
    report.save(tmp_path / "r.json")
    assert Report.load(tmp_path / "r.json") == report
    assert report != report.client
    with pytest.raises(ValueError, match="read-only"):
        report.counts[0] = 5
    assert ("counts" in json.loads(report.to_json())) is (report.strata is None)


def test_sparse_counts_are_used_where_they_are_shorter():
    assert b'"bins"' in EXAMPLES[0].to_json()
    assert b'"counts":[' in EXAMPLES[1].to_json()


NO_COUNTS = ([1.0] * 4, [np.nan] * 4, [True] * 4, [10**30] * 4, [[1] * 4], [[1], [1, 2]], None)


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("counts", [1, 2, 3], "3 counts do not fit the binning's 4 bins"),
        ("counts", [-1, 2, 0, 0], r"counts\[0\] is negative"),
        ("counts", [2**41, 0, 0, 0], "exceed"),
        ("counts", [2**39] * 4, "exceed"),
        ("counts", [2**63, 1, 0, 0], "not a vector of integers|exceed"),
        ("counts", [0] * 4, "all zero"),
        *(("counts", invalid, "not a vector of integers") for invalid in (*NO_COUNTS, ["a"] * 4)),
        *(("n_samples", invalid, "n_samples") for invalid in (1.0, True, np.ones(2), 5)),
        ("all_label_counts", [1, 2, 3], "3 counts do not fit"),
        ("all_label_counts", [-1, 5, 4, 0], "negative"),
        ("all_label_counts", [3, 3, 3, 4], "do not make as many for each"),
        ("all_label_counts", [1, 1, 0, 0], "do not make as many for each"),
        ("all_label_counts", [2**62, 2**62, 0, 0], "exceed"),
        ("all_label_counts", ["a", 1, 1, 1], "integers"),
        *(
            ("client", invalid, "name|client")
            for invalid in ("", "x" * 201, 7, None, "a\nb", "\x00", b"x")
        ),
        *(
            (field_name, invalid, field_name)
            for field_name in ("round", "model")
            for invalid in (3, "x" * 300, "a\nb")
        ),
        *(("score", invalid, "is not a score; pass LAC") for invalid in (LAC, "lac")),
        *(
            ("binning", invalid, "is not a binning; pass Binning.default")
            for invalid in (7, None, "default")
        ),
        *(("privacy", invalid, "is not stated as such; pass Privacy") for invalid in (1.0, "x")),
        ("risk", "fnr", "is not a risk"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_invalid_report_is_refused_in_one_line_that_names_client_and_field(
    field, value, problem
):
    with pytest.raises(ReportError, match=problem) as caught:
        Report(**{"client": "site-7", "counts": [1] * 4, "binning": FOUR, field: value})
    assert caught.value.field == field
    assert field == "client" or caught.value.client == "site-7"
    assert str(caught.value).isprintable()
    assert ";" in str(caught.value)


def test_missing_files_and_failed_writes_are_one_clear_line_and_leave_nothing(
    tmp_path, monkeypatch
):
    with pytest.raises(RobfcpError, match="no such file"):
        Report.load(tmp_path / "nothing.json")
    with pytest.raises(RobfcpError, match="is a folder"):
        read_bounded(tmp_path)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(RobfcpError, match=r"r.json: cannot be written \(disk\); choose another"):
        EXAMPLES[0].save(tmp_path / "r.json")
    assert list(tmp_path.iterdir()) == []


# Of predictions and labels


@pytest.mark.parametrize("score", [LAC(), APS(), RAPS(0.5, 2)], ids=str)
def test_a_report_of_predictions_is_that_of_their_scores_by_class(score):
    options = {"score": score, "round": "r"}
    make = partial(Report.from_predictions, "a", P, rng=3, min_cell_count=1)
    report = make(Y, **options)
    assert report == Report.from_scores("a", score(P, Y, 3), labels=Y, classes=3, **options)
    with_names = make(LABEL_NAMES, classes=NAMES, **options)
    assert with_names.strata.names == NAMES
    assert (with_names.strata.dense() == report.strata.dense()).all()
    assert make(Y, classes=NAMES, **options) == with_names
    with_all_labels = make(Y, score=score, include_all_labels=True)
    label_scores = score.score_all_labels(P, 3)  # with the draws that the true labels had
    assert (with_all_labels.all_label_counts == report.binning.counts(label_scores.ravel())).all()


def test_a_frame_names_the_classes_in_any_order_of_its_columns():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(P, columns=list(NAMES))
    assert Report.from_predictions("a", frame, LABEL_NAMES) == Report.from_predictions(
        "a", P, Y, classes=NAMES
    )
    numbered = pandas.DataFrame(P[:, ::-1], columns=["p2", "p1", "p0"])
    assert Report.from_predictions("a", numbered, Y) == Report.from_predictions("a", P, Y)


def test_groups_numbers_withheld_labels_and_privacy_make_no_classes():
    grouped = Report.from_predictions("a", P, Y, groups=Y % 2)
    assert (grouped.strata.by, grouped.strata.stratum_sizes.sum()) == ("group", 40)
    exact_options = {"stratify_by_class": False, "min_cell_count": 1}
    assert Report.from_predictions("a", P, Y, **exact_options) == Report.from_scores(
        "a", LAC()(P, Y), score=LAC()
    )
    assert Report.from_predictions("a", P[:, 0], P[:, 1], score=AbsoluteResidual()).strata is None
    pytest.importorskip("opendp")
    with_unknown_label = np.where(np.arange(40) == 5, "cow", LABEL_NAMES)
    private = Report.from_predictions(
        "a", P, with_unknown_label, classes=NAMES, privacy=Privacy(1.0), binning=EIGHT
    )
    assert (private.strata, private.n_samples) == (None, 40)


PREDICTED = {"probabilities": P, "labels": Y}
TWO_SCORES = np.column_stack([HALF, HALF])


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (Report.from_predictions, {"labels": [0] * 39}, "labels: shape"),
        (
            Report.from_predictions,
            {"labels": ["cow", *LABEL_NAMES[1:]], "classes": NAMES},
            "cow of sample 0 is none",
        ),
        (Report.from_predictions, {"labels": LABEL_NAMES}, "labels: are text; name the classes"),
        (Report.from_predictions, {"probabilities": P * 2}, "probabilities: row 0 sums to 2"),
        (
            Report.from_predictions,
            {"privacy": Privacy(1.0), "include_all_labels": True},
            "leave them out of private",
        ),
        (
            Report.from_predictions,
            {"score": AbsoluteResidual(), "stratify_by_class": True},
            "has no classes",
        ),
        (
            Report.from_scores,
            {"all_label_scores": [0.1] * 40},
            r"need \(n, C\) scores of 40 samples",
        ),
        (Report.from_scores, {"all_label_scores": TWO_SCORES + np.nan}, "label_scores"),
        (Report.from_scores, {"scores": [2.0], "binning": Binning.default()}, "scores: range"),
        (Report.from_scores, {"scores": [[0.5], [0.2, 0.3]]}, "scores: rows differ"),
        (
            Report,
            {
                "counts": [10] * 4,
                "binning": FOUR,
                "n_samples": 40,
                "privacy": Privacy(1.0),
                "all_label_counts": [10] * 4,
            },
            "sizes of sets",
        ),
        (
            Report,
            {
                "counts": LOSSES.counts,
                "binning": LOSSES.binning,
                "n_samples": 3,
                "risk": LOSSES.risk,
                "all_label_counts": LOSSES.counts,
            },
            "not with losses",
        ),
    ],
)
def test_data_of_no_report_are_refused_in_one_line_that_names_client_and_field(
    make, options, message
):
    defaults = {Report.from_predictions: PREDICTED, Report.from_scores: {"scores": HALF}}.get(
        make, {}
    )
    with pytest.raises(RobfcpError, match=f"^site-7: .*{message}") as caught:
        make("site-7", **(defaults | options))
    assert str(caught.value).isprintable()


# Sizes of sets


def make_report(k, include_all_labels=True):
    return Report.from_predictions(
        f"s{k}", *outputs(k, 120), include_all_labels=include_all_labels, min_cell_count=1
    )


def test_the_page_shows_the_size_that_sets_have():
    defense, levels = robfcp.Consensus(max_malicious=1), (0.9, 0.8, 0.9999)
    calibration = robfcp.calibrate(
        [make_report(k) for k in range(8)], coverage=levels, defense=defense
    )
    sizes = embedded_data(render_html(calibration))["mean_set_sizes"]
    benign = [k for k in range(8) if f"s{k}" in calibration.benign_clients]
    scores = np.concatenate([LAC().score_all_labels(outputs(k, 120)[0]) for k in benign])
    for size, threshold in zip(sizes, calibration.threshold, strict=True):
        assert size == pytest.approx((scores <= threshold).sum(axis=1).mean(), abs=1e-5)
    assert calibration.threshold[-1] == np.inf
    without_sizes = robfcp.calibrate(
        [make_report(k, include_all_labels=False) for k in range(8)], defense=defense
    )
    assert embedded_data(render_html(without_sizes))["mean_set_sizes"] is None


def test_the_command_includes_all_labels_if_requested(tmp_path):
    np.savez(tmp_path / "o.npz", probabilities=P, labels=Y)
    arguments = [
        "report",
        tmp_path / "o.npz",
        "-c",
        "a",
        "-o",
        tmp_path / "a.json",
        "--include-all-labels",
    ]
    command_output(*arguments, "--score", "aps", "--min-cell-count", "1")
    assert Report.load(tmp_path / "a.json").all_label_counts.sum() == 3 * len(Y)
    assert "leave it out" in command_error(*arguments, "--risk", "fnr")
    assert "leave them" in command_error(
        *arguments, "--dp-epsilon", "1", "--ledger", tmp_path / "l.json"
    )
    assert not (tmp_path / "l.json").exists()
