"""Metrics take names for labels; their values are in the examples of their docstrings."""

import numpy as np
import pandas as pd
import pytest

import robfcp
from robfcp import metrics

SETS = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 1, 1]], dtype=bool)
LABELS = [0, 2, 1, 2]


def test_stratified_coverages_and_invalid_sets():
    np.testing.assert_equal(
        metrics.class_conditional_coverage(SETS, [0] * 4), [0.75, np.nan, np.nan]
    )
    assert metrics.covgap(SETS, LABELS, 0.9) == pytest.approx((0.1 + 0.9 + 0.4) / 3)
    expected = {"0": (1, 0.0), "1": (1, 1.0), "2": (1, 0.0), "3": (1, 1.0)}
    assert metrics.size_stratified_coverage(SETS, LABELS) == expected
    assert list(metrics.size_stratified_coverage(np.ones((2, 12), bool), [0, 1])) == ["11+"]
    assert metrics.group_conditional_coverage(SETS, LABELS, [*"abab"]) == {
        "a": (2, 0.5),
        "b": (2, 0.5),
    }
    for invalid, groups in ((SETS[0], "abab"), (SETS * 1, "abab"), (SETS[:0], "abab"), (SETS, "a")):
        with pytest.raises(robfcp.RobfcpError):
            metrics.group_conditional_coverage(invalid, LABELS, [*groups])


@pytest.mark.parametrize(
    "metric", ["is_covered", "coverage", "class_conditional_coverage", "summary"]
)
def test_metrics_take_names_for_labels(metric):
    classes, labels = ["flu", "cold", "well"], ["well", "flu", "well", "flu"]
    compute = getattr(metrics, metric)
    expected = compute(SETS, [2, 0, 2, 0])
    np.testing.assert_equal(compute(SETS, labels, classes=classes), expected)
    table = pd.DataFrame(SETS, columns=classes)
    np.testing.assert_equal(compute(table, pd.Series(labels)), expected)


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        (["flu", "cough"], ["flu", "cold"], "cough of sample 1 is none of the columns flu, cold"),
        (["flu", "flu"], ["flu", "flu"], "need 2 different names"),
        (["flu"], ["flu", "cold"], "does not fit 2 rows"),
    ],
)
def test_metrics_refuse_invalid_names_and_labels(labels, classes, message):
    with pytest.raises(robfcp.RobfcpError, match=message):
        metrics.coverage(np.eye(2, dtype=bool), labels, classes=classes)
