"""Metrics take names for labels; what each one counts its own example says."""

import numpy as np
import pandas as pd
import pytest

import robfcp
from robfcp import metrics

SETS, Y = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 1, 1]], dtype=bool), [0, 2, 1, 2]


def test_what_the_examples_do_not_show_and_what_are_no_sets_is_refused():
    np.testing.assert_equal(
        metrics.class_conditional_coverage(SETS, [0] * 4), [0.75, np.nan, np.nan]
    )
    assert metrics.covgap(SETS, Y, 0.9) == pytest.approx((0.1 + 0.9 + 0.4) / 3)
    each = {"0": (1, 0.0), "1": (1, 1.0), "2": (1, 0.0), "3": (1, 1.0)}
    assert metrics.size_stratified_coverage(SETS, Y) == each
    assert list(metrics.size_stratified_coverage(np.ones((2, 12), bool), [0, 1])) == ["11+"]
    assert metrics.group_conditional_coverage(SETS, Y, [*"abab"]) == {"a": (2, 0.5), "b": (2, 0.5)}
    for bad, groups in ((SETS[0], "abab"), (SETS * 1, "abab"), (SETS[:0], "abab"), (SETS, "a")):
        with pytest.raises(robfcp.RobfcpError):
            metrics.group_conditional_coverage(bad, Y, [*groups])


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
    ("labels", "classes", "words"),
    [
        (["flu", "cough"], ["flu", "cold"], "cough of sample 1 is none of the columns flu, cold"),
        (["flu", "flu"], ["flu", "flu"], "need 2 different names"),
        (["flu"], ["flu", "cold"], "does not fit 2 rows"),
    ],
)
def test_metrics_refuse_names_that_do_not_fit(labels, classes, words):
    with pytest.raises(robfcp.RobfcpError, match=words):
        metrics.coverage(np.eye(2, dtype=bool), labels, classes=classes)
