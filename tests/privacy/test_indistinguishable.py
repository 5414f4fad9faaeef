"""Neighbouring data are never told apart by what a private site refuses, or by what is free."""

import numpy as np
import pytest

import robfcp
from robfcp.errors import RobfcpError
from robfcp.report.private import clamped
from robfcp.scores.base import scores_or_nan

SCORES = [robfcp.LAC(), robfcp.APS(False), robfcp.RAPS(), robfcp.APS(True)]
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("odd", [0.7, NAN, INF, -INF, 1e300, -5.0])
def test_every_score_counts_somewhere(odd):
    grid = robfcp.Grid(np.array([0.0, 0.25, 0.5]))
    counts = grid.counts(clamped(np.array([0.1, 0.3, odd]), grid))
    expected = [2, 1] if odd < 0 else [1, 2]
    assert counts.tolist() == expected
    with pytest.raises(RobfcpError, match="scores"):
        robfcp.Report.from_scores("a", [0.1, 0.3, odd], grid)


@pytest.mark.parametrize("score", SCORES, ids=repr)
def test_one_odd_row_changes_one_score(score):
    rng = np.random.default_rng(0)
    rows, labels = rng.dirichlet(np.ones(4), 50), rng.integers(0, 4, 50)
    whole = score(rows, labels, 5)
    assert np.array_equal(scores_or_nan(score, rows, labels, 5), whole)
    texts, floats = labels.astype(object), labels.astype(float)  # as a missing label makes it
    texts[17], floats[17] = "unknown", NAN
    odd = [(rows, texts), (rows, floats)]
    for label in (-1, 4, 2**62):
        odd.append((rows, np.where(np.arange(50) == 17, label, labels)))
    for place, value in ((slice(None), NAN), (0, -1.0), (0, INF), (slice(None), 0.0), (1, 5.0)):
        broken = rows.copy()
        broken[17, place] = value
        odd.append((broken, labels))
    for given, truth in odd:
        found = scores_or_nan(score, given, truth, 5)
        assert np.isnan(found[17])
        assert np.array_equal(np.delete(found, 17), np.delete(whole, 17))


QUIET = robfcp.Privacy(epsilon=1e6)  # noise that never moves a count
GRID = robfcp.Grid.uniform(4)
LABELS = {
    "names": (["cat", "dog", "dog"], ["cat", "dog", "eel"], ("cat", "dog")),
    "a missing name": (["cat", "dog", "dog"], ["cat", "dog", None], ("cat", "dog")),
    "numbers": ([0, 1, 1], [0, 1, 2], 2),
    "a missing number": ([0, 1, 1], [0, 1, NAN], 2),
    "a number that is none": ([0, 1, 1], [0, 1, "?"], 2),
}


@pytest.mark.parametrize("by", ["labels", "groups"])
@pytest.mark.parametrize("case", LABELS)
def test_an_unknown_label_counts_in_one_fixed_cell(case, by):
    pytest.importorskip("opendp.prelude")
    usual, odd, names = LABELS[case]
    if by == "groups" and isinstance(names, int):
        names = ("0", "1")
    scores = [0.1, 0.3, 0.6]

    def cells(given):
        given = np.array(given, dtype=object) if None in given else given
        more = {by: given, "classes": names, "privacy": QUIET}
        return robfcp.Report.from_scores("a", scores, GRID, **more).strata.dense().tolist()

    if not (by == "groups" and "number" in case and isinstance(odd[2], float)):
        assert cells(usual) == [[1, 0, 0, 0], [0, 1, 1, 0]]
        assert cells(odd) == [[1, 0, 0, 1], [0, 1, 0, 0]]
    with pytest.raises(RobfcpError):
        robfcp.Report.from_scores("a", scores, GRID, **{by: odd, "classes": names})


@pytest.mark.parametrize("odd", [NAN, None, -1, 7, "cow"])
def test_no_label_makes_a_private_report_of_probabilities_fail(odd):
    pytest.importorskip("opendp.prelude")
    p, y = np.full((4, 3), [0.5, 0.3, 0.2]), np.array([0, 1, 2, odd], dtype=object)
    found = robfcp.Report.of("a", p, y, grid=GRID, classes=3, by_class=True, privacy=QUIET)
    assert found.strata.dense().tolist() == [[0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize("odd", [[NAN, 0, 0], [9, 0, -1], [None, 0, 0], [0, 1, 0]])
def test_losses_of_private_reports_are_clamped(odd):
    pytest.importorskip("opendp.prelude")
    usual = [[1.0, 0.5, 0.0], [1.0, 1.0, 0.0]]
    table = np.array([*usual, odd], dtype=object)
    found = robfcp.Report.from_losses("a", table, [0.1, 0.5, 0.9], risk="x", privacy=QUIET)
    meant = [1, 1, 0] if odd[0] == 0 else [1, 0, 0]
    wanted = robfcp.Report.from_losses(
        "a", [*usual, meant], [0.1, 0.5, 0.9], risk=robfcp.Risk("x", resolution=360)
    )
    assert found.counts.tolist() == wanted.counts.tolist()
    with pytest.raises(RobfcpError):
        robfcp.Report.from_losses("a", table, [0.1, 0.5, 0.9], risk="x")


@pytest.mark.parametrize(("p", "y"), [(NAN, 1), (-2.0, 1), (0.0, NAN), (0.0, 3)])
def test_multilabel_outputs_of_private_reports_are_clamped(p, y):
    pytest.importorskip("opendp.prelude")
    outputs, truth = [[0.9, 0.2], [0.6, p]], [[1, 0], [1, y]]
    found = robfcp.Report.from_multilabel("a", outputs, truth, GRID, privacy=QUIET)
    wanted = robfcp.Report.from_multilabel("a", [[0.9, 0.2], [0.6, 0.0]], [[1, 0], [1, 1]], GRID)
    assert (found.counts * 77).tolist() == wanted.counts.tolist()  # 360 parts, not 27,720


def test_regression_scores_are_tolerant_too():
    predictions, truth = np.array([1.0, NAN, 3.0]), np.array([1.5, 2.0, INF])
    found = scores_or_nan(robfcp.AbsoluteResidual(), predictions, truth)
    assert found[0] == 0.5
    assert not np.isfinite(found[1])
    assert scores_or_nan(robfcp.LAC(), np.zeros((0, 3)), np.zeros(0, int)).shape == (0,)
    with pytest.raises(RobfcpError, match="one a prediction"):
        scores_or_nan(robfcp.LAC(), np.zeros((2, 3)), [1])


def test_a_threshold_in_the_last_bin_of_a_private_round_covers_everything():
    grid = robfcp.Grid.uniform(8)
    counts = np.tile([0, 0, 0, 0, 0, 0, 0, 100], (6, 1))
    privacy = robfcp.Privacy(epsilon=100.0)
    private = robfcp.Federation.from_counts(
        counts, grid, score=robfcp.LAC(), privacy=privacy, sizes=[100] * 6
    )
    assert robfcp.calibrate(private, defence="none").threshold == INF
    guaranteed = robfcp.calibrate(private, promise=robfcp.Marginal(liars=1))
    assert guaranteed.threshold == INF
    plain = robfcp.Federation.from_counts(counts, grid, score=robfcp.LAC())
    assert robfcp.calibrate(plain, defence="none").threshold == 1.0


def test_nobody_left_is_no_failure_either():
    pytest.importorskip("opendp.prelude")
    privacy = robfcp.Privacy(epsilon=1.0, neighbours="add-remove")
    report = robfcp.Report.from_scores("a", [], robfcp.Grid.uniform(8), privacy=privacy)
    assert report.n_samples >= 1
