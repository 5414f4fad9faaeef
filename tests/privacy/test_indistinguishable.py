"""Neighbouring data are never told apart by what a private site refuses, or by what is free."""

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
GRID = Binning.uniform(4)


@pytest.mark.parametrize("odd", [0.7, NAN, INF, -INF, 1e300, -5.0])
def test_every_score_counts_somewhere(odd):
    binning, scores = Binning([0.0, 0.25, 0.5]), [0.1, 0.3, odd]
    counts = binning.counts(clip_to_binning(np.array(scores), binning))
    assert counts.tolist() == ([2, 1] if odd < 0 else [1, 2])
    with pytest.raises(RobfcpError, match="scores"):
        Report.from_scores("a", scores, binning)


@pytest.mark.parametrize("score", SCORES, ids=repr)
def test_one_odd_row_changes_one_score(score):
    rng = np.random.default_rng(0)
    rows, labels = rng.dirichlet(np.ones(4), 50), rng.integers(0, 4, 50)
    whole = score(rows, labels, 5)
    assert np.array_equal(scores_with_nan(score, rows, labels, 5), whole)
    odd = []
    for label, kind in (("?", object), (NAN, float), (-1, int), (4, int), (2**62, int)):
        odd.append((rows, labels.astype(kind)))
        odd[-1][1][17] = label
    for place, value in ((slice(None), NAN), (0, -1.0), (0, INF), (slice(None), 0.0), (1, 5.0)):
        odd.append((rows.copy(), labels))
        odd[-1][0][17, place] = value
    for given, truth in odd:
        found = scores_with_nan(score, given, truth, 5)
        assert np.isnan(found[17])
        assert np.array_equal(np.delete(found, 17), np.delete(whole, 17))


CATS = (["cat", "dog", "dog"], ("cat", "dog"))
ODD_LABELS = [("labels", *CATS, odd) for odd in ("eel", None)]
ODD_LABELS += [("groups", *CATS, odd) for odd in ("eel", None)]
ODD_LABELS += [("labels", [0, 1, 1], 2, odd) for odd in (2, NAN, "?")]
ODD_LABELS += [("groups", [0, 1, 1], ("0", "1"), odd) for odd in (2, "?")]


@pytest.mark.parametrize(("by", "usual", "names", "odd"), ODD_LABELS)
def test_an_unknown_label_counts_in_one_fixed_cell(by, usual, names, odd):
    def cells(last, privacy):
        given = np.array([*usual[:2], last], dtype=object if last is None else None)
        more = {by: given, "classes": names, "privacy": privacy}
        return Report.from_scores("a", [0.1, 0.3, 0.6], GRID, **more).strata.dense().tolist()

    assert cells(usual[2], QUIET) == [[1, 0, 0, 0], [0, 1, 1, 0]]
    assert cells(odd, QUIET) == [[1, 0, 0, 1], [0, 1, 0, 0]]
    with pytest.raises(RobfcpError):
        cells(odd, None)


@pytest.mark.parametrize("odd", [NAN, None, -1, 7, "cow"])
def test_no_label_makes_a_private_report_of_probabilities_fail(odd):
    p, y = np.full((4, 3), [0.5, 0.3, 0.2]), np.array([0, 1, 2, odd], dtype=object)
    found = Report.from_predictions(
        "a", p, y, binning=GRID, classes=3, stratify_by_class=True, privacy=QUIET
    )
    assert found.strata.dense().tolist() == [[0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("odd", "meant"),
    [
        *((odd, [1, 0, 0]) for odd in ([NAN, 0, 0], [9, 0, -1], [None, 0, 0])),
        ([0, 1, 0], [1, 1, 0]),
    ],
)
def test_losses_of_private_reports_are_clamped(odd, meant):
    def report(last, **more):
        table = np.array([[1.0, 0.5, 0.0], [1.0, 1.0, 0.0], last], dtype=object)
        return Report.from_losses("a", table, [0.1, 0.5, 0.9], **more).counts.tolist()

    wanted = report(meant, risk=robfcp.Risk("x", resolution=360))
    assert report(odd, risk="x", privacy=QUIET) == wanted
    with pytest.raises(RobfcpError):
        report(odd, risk="x")


@pytest.mark.parametrize(("p", "y"), [(NAN, 1), (-2.0, 1), (0.0, NAN), (0.0, 3)])
def test_multilabel_outputs_of_private_reports_are_clamped(p, y):
    outputs, truth = [[0.9, 0.2], [0.6, p]], [[1, 0], [1, y]]
    found = Report.from_multilabel("a", outputs, truth, GRID, privacy=QUIET)
    plain = [[0.9, 0.2], [0.6, 0.0]], [[1, 0], [1, 1]]
    wanted = Report.from_multilabel("a", *plain, GRID, min_cell_count=1)
    assert (found.counts * 77).tolist() == wanted.counts.tolist()  # 360 parts, not 27,720


def test_regression_scores_are_tolerant_too_and_nobody_left_is_no_failure():
    predictions, truth = np.array([1.0, NAN, 3.0]), np.array([1.5, 2.0, INF])
    found = scores_with_nan(robfcp.AbsoluteResidual(), predictions, truth)
    assert (found[0], np.isfinite(found[1])) == (0.5, False)
    assert scores_with_nan(LAC(), np.zeros((0, 3)), np.zeros(0, int)).shape == (0,)
    raises = scores_with_nan(lambda p, y, rng: [[0.5][k] for k in y], np.zeros((2, 2)), [0, 3])
    assert (raises[0], np.isnan(raises[1])) == (0.5, True)  # whatever an own score raises
    with pytest.raises(RobfcpError, match="one a prediction"):
        scores_with_nan(LAC(), np.zeros((2, 3)), [1])
    hiding = Privacy(epsilon=1.0, neighbours="add-remove")
    assert Report.from_scores("a", [], GRID, privacy=hiding).n_samples >= 1


def test_a_threshold_in_the_last_bin_of_a_private_round_covers_everything():
    counts = np.tile([0, 0, 0, 100], (6, 1))
    noisy = {"privacy": Privacy(epsilon=100.0), "sample_sizes": [100] * 6}
    private = Federation.from_counts(counts, GRID, score=LAC(), **noisy)
    plain = Federation.from_counts(counts, GRID, score=LAC())
    assert robfcp.calibrate(private, defense="none").threshold == INF
    assert robfcp.calibrate(private, guarantee=robfcp.MarginalGuarantee(liars=1)).threshold == INF
    assert robfcp.calibrate(plain, defense="none").threshold == 1.0
