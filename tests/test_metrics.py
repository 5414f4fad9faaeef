"""Metrics count what they say, and take names for labels."""

import numpy as np
import pandas as pd
import pytest

import robfcp
from robfcp import metrics


def test_metrics_are_what_they_say():
    sets = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 1, 1]], dtype=bool)
    y = np.array([0, 2, 1, 2])
    assert metrics.coverage(sets, y) == 0.5
    assert metrics.set_size(sets) == 1.5
    np.testing.assert_array_equal(metrics.class_coverage(sets, y), [1, 0, 0.5])
    np.testing.assert_array_equal(metrics.class_coverage(sets, [0, 0, 0, 0])[1:], [np.nan, np.nan])
    assert metrics.coverage_gap(sets, y, 0.9) == pytest.approx((0.1 + 0.9 + 0.4) / 3)
    assert metrics.size_stratified_coverage(sets, y) == {
        "0": (1, 0.0),
        "1": (1, 1.0),
        "2": (1, 0.0),
        "3": (1, 1.0),
    }
    assert metrics.size_stratified_violation(sets, y, 0.9) == 0.9
    assert metrics.singleton_share(sets) == 0.25
    assert metrics.empty_share(sets) == 0.25
    assert metrics.group_coverage(sets, y, ["a", "b", "a", "b"]) == {"a": (2, 0.5), "b": (2, 0.5)}
    intervals = np.array([[0, 1], [2, 1]])
    assert metrics.interval_width(intervals) == 0.5
    assert metrics.interval_coverage(intervals, [1, 1.5]) == 0.5
    assert metrics.summary(sets, y)["worst_class_coverage"] == 0
    wide = np.ones((2, 12), dtype=bool)
    assert list(metrics.size_stratified_coverage(wide, [0, 1])) == ["11+"]
    for bad in (sets[0], sets.astype(int), sets[:0]):
        with pytest.raises(robfcp.RobfcpError):
            metrics.coverage(bad, y)
    with pytest.raises(robfcp.RobfcpError):
        metrics.group_coverage(sets, y, ["a"])


@pytest.mark.parametrize("metric", ["covered", "coverage", "class_coverage", "summary"])
def test_metrics_take_names_for_labels(metric):
    sets = np.array([[True, False, True], [False, True, False], [False, False, True]])
    names = ["flu", "cold", "well"]
    by_name = getattr(metrics, metric)(sets, ["well", "flu", "well"], classes=names)
    np.testing.assert_equal(by_name, getattr(metrics, metric)(sets, [2, 0, 2]))
    by_column = getattr(metrics, metric)(
        pd.DataFrame(sets, columns=names), pd.Series(["well", "flu", "well"])
    )
    np.testing.assert_equal(by_column, by_name)


def test_metrics_refuse_names_that_do_not_fit():
    sets = np.eye(2, dtype=bool)
    with pytest.raises(
        robfcp.RobfcpError, match="cough of sample 1 is none of the columns flu, cold"
    ):
        metrics.coverage(sets, ["flu", "cough"], classes=["flu", "cold"])
    with pytest.raises(robfcp.RobfcpError, match="need 2 different names"):
        metrics.coverage(sets, ["flu", "flu"], classes=["flu", "flu"])
    with pytest.raises(robfcp.RobfcpError, match="does not fit 2 samples"):
        metrics.coverage(sets, ["flu"], classes=["flu", "cold"])
    args = (sets, ["flu", "cold"])
    named = {"classes": ["flu", "cold"]}
    assert metrics.coverage_gap(*args, 0.9, **named) == pytest.approx(0.1)
    assert metrics.size_stratified_violation(*args, 0.9, **named) == pytest.approx(0.1)
    assert metrics.group_coverage(*args, ["a", "b"], **named)["a"] == (1, 1.0)
    assert metrics.group_coverage(*args, ["a", "b"], **named)["b"] == (1, 1.0)
