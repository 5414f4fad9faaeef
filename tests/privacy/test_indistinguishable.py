"""Neighboring data give the same refusals and the same noise-free parts of private reports."""

import numpy as np
import pytest

import robfcp
from robfcp import LAC, Binning, Federation, Privacy, Report
from robfcp.errors import RobfcpError
from robfcp.reports._noising import clip_to_binning
from robfcp.scores._base import scores_with_nan

pytest.importorskip("opendp.prelude")
SCORES = [LAC(), robfcp.APS(False), robfcp.RAPS(), robfcp.APS(True)]
NAN, INF = float("nan"), float("inf")
QUIET = Privacy(epsilon=1e6)  # noise that never moves a count
BINNING = Binning.uniform(4)


@pytest.mark.parametrize("invalid", [0.7, NAN, INF, -INF, 1e300, -5.0])
def test_every_score_counts_somewhere(invalid):
    binning, scores = Binning([0.0, 0.25, 0.5]), [0.1, 0.3, invalid]
    counts = binning.counts(clip_to_binning(np.array(scores), binning))
    assert counts.tolist() == ([2, 1] if invalid < 0 else [1, 2])
    with pytest.raises(RobfcpError, match="scores"):
        Report.from_scores("a", scores, binning)


@pytest.mark.parametrize("score", SCORES, ids=repr)
def test_an_invalid_row_changes_one_score(score):
    rng = np.random.default_rng(0)
    rows, labels = rng.dirichlet(np.ones(4), 50), rng.integers(0, 4, 50)
    scores = score(rows, labels, 5)
    assert np.array_equal(scores_with_nan(score, rows, labels, 5), scores)
    invalid = []
    for label, dtype in (("?", object), (NAN, float), (-1, int), (4, int), (2**62, int)):
        invalid.append((rows, labels.astype(dtype)))
        invalid[-1][1][17] = label
    for column, value in ((slice(None), NAN), (0, -1.0), (0, INF), (slice(None), 0.0), (1, 5.0)):
        invalid.append((rows.copy(), labels))
        invalid[-1][0][17, column] = value
    for probabilities, truth in invalid:
        tolerant = scores_with_nan(score, probabilities, truth, 5)
        assert np.isnan(tolerant[17])
        assert np.array_equal(np.delete(tolerant, 17), np.delete(scores, 17))


CATS = (["cat", "dog", "dog"], ("cat", "dog"))
INVALID_LABELS = [("labels", *CATS, invalid) for invalid in ("eel", None)]
INVALID_LABELS += [("groups", *CATS, invalid) for invalid in ("eel", None)]
INVALID_LABELS += [("labels", [0, 1, 1], 2, invalid) for invalid in (2, NAN, "?")]
INVALID_LABELS += [("groups", [0, 1, 1], ("0", "1"), invalid) for invalid in (2, "?")]


@pytest.mark.parametrize(("by", "usual", "names", "invalid"), INVALID_LABELS)
def test_an_unknown_label_counts_in_one_fixed_cell(by, usual, names, invalid):
    def cells(last, privacy):
        values = np.array([*usual[:2], last], dtype=object if last is None else None)
        options = {by: values, "classes": names, "privacy": privacy}
        return Report.from_scores("a", [0.1, 0.3, 0.6], BINNING, **options).strata.dense().tolist()

    assert cells(usual[2], QUIET) == [[1, 0, 0, 0], [0, 1, 1, 0]]
    assert cells(invalid, QUIET) == [[1, 0, 0, 1], [0, 1, 0, 0]]
    with pytest.raises(RobfcpError):
        cells(invalid, None)


@pytest.mark.parametrize("invalid", [NAN, None, -1, 7, "cow"])
def test_no_label_makes_a_private_report_of_probabilities_fail(invalid):
    p, y = np.full((4, 3), [0.5, 0.3, 0.2]), np.array([0, 1, 2, invalid], dtype=object)
    report = Report.from_predictions(
        "a", p, y, binning=BINNING, classes=3, stratify_by_class=True, privacy=QUIET
    )
    assert report.strata.dense().tolist() == [[0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("invalid", "clipped"),
    [
        *((invalid, [1, 0, 0]) for invalid in ([NAN, 0, 0], [9, 0, -1], [None, 0, 0])),
        ([0, 1, 0], [1, 1, 0]),
    ],
)
def test_losses_of_private_reports_are_clipped(invalid, clipped):
    def report(last, **options):
        table = np.array([[1.0, 0.5, 0.0], [1.0, 1.0, 0.0], last], dtype=object)
        return Report.from_losses("a", table, [0.1, 0.5, 0.9], **options).counts.tolist()

    expected = report(clipped, risk=robfcp.Risk("x", resolution=360))
    assert report(invalid, risk="x", privacy=QUIET) == expected
    with pytest.raises(RobfcpError):
        report(invalid, risk="x")


@pytest.mark.parametrize(("p", "y"), [(NAN, 1), (-2.0, 1), (0.0, NAN), (0.0, 3)])
def test_multilabel_outputs_of_private_reports_are_clipped(p, y):
    outputs, truth = [[0.9, 0.2], [0.6, p]], [[1, 0], [1, y]]
    report = Report.from_multilabel("a", outputs, truth, BINNING, privacy=QUIET)
    clipped = [[0.9, 0.2], [0.6, 0.0]], [[1, 0], [1, 1]]
    expected = Report.from_multilabel("a", *clipped, BINNING, min_cell_count=1)
    assert (report.counts * 77).tolist() == expected.counts.tolist()  # 360 parts, not 27,720


def test_regression_scores_are_tolerant_too_and_an_empty_client_is_no_failure():
    predictions, truth = np.array([1.0, NAN, 3.0]), np.array([1.5, 2.0, INF])
    scores = scores_with_nan(robfcp.AbsoluteResidual(), predictions, truth)
    assert (scores[0], np.isfinite(scores[1])) == (0.5, False)
    assert scores_with_nan(LAC(), np.zeros((0, 3)), np.zeros(0, int)).shape == (0,)
    scores_of_failing = scores_with_nan(
        lambda p, y, rng: [[0.5][k] for k in y], np.zeros((2, 2)), [0, 3]
    )
    assert (scores_of_failing[0], np.isnan(scores_of_failing[1])) == (
        0.5,
        True,
    )  # whatever a custom score raises
    with pytest.raises(RobfcpError, match="one a prediction"):
        scores_with_nan(LAC(), np.zeros((2, 3)), [1])
    hiding = Privacy(epsilon=1.0, neighbors="add-remove")
    assert Report.from_scores("a", [], BINNING, privacy=hiding).n_samples >= 1


def test_a_threshold_in_the_last_bin_of_a_private_round_covers_everything():
    counts = np.tile([0, 0, 0, 100], (6, 1))
    noisy = {"privacy": Privacy(epsilon=100.0), "sample_sizes": [100] * 6}
    private = Federation.from_counts(counts, BINNING, score=LAC(), **noisy)
    exact = Federation.from_counts(counts, BINNING, score=LAC())
    assert robfcp.calibrate(private, defense="none").threshold == INF
    assert (
        robfcp.calibrate(private, guarantee=robfcp.MarginalGuarantee(max_malicious=1)).threshold
        == INF
    )
    assert robfcp.calibrate(exact, defense="none").threshold == 1.0
