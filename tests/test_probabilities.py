"""Columns are taken by name: whichever order they stand in, the same class is meant."""

import numpy as np
import pandas as pd
import pytest
from makers import by_class, outputs

import robfcp
from robfcp._probabilities import ClassColumns, check_labels
from robfcp.errors import RobfcpError


@pytest.mark.parametrize(
    ("names", "labels", "order", "called"),
    [
        (["p3", "p1", "p0", "p2"], None, (2, 1, 3, 0), ()),
        (["1", "0"], None, (1, 0), ()),
        (["class 2", "class 3", "class 1"], None, (2, 0, 1), ("1", "2", "3")),
        (["benign", "malignant"], None, (0, 1), ("benign", "malignant")),
        (["prob_cat", "prob_dog"], ["dog", "cat"], (0, 1), ("cat", "dog")),
        (["cat", "dog"], ["dog"], (0, 1), ("cat", "dog")),
        (["p_grade1", "p_grade2"], ["grade2"], (0, 1), ("grade1", "grade2")),
        (["age", "p_dog", "p_cat", "p_cow"], ["dog", "cat"], (1, 2, 3), ("dog", "cat", "cow")),
        (["car", "cat"], ["t", "r"], (0, 1), ("r", "t")),
        (["p1", "q1"], None, (0, 1), ("p1", "q1")),
        (["p1", "p01"], None, (0, 1), ("p1", "p01")),
    ],
)
def test_columns_stand_for_classes(names, labels, order, called):
    found = ClassColumns.classes_of_names(names, labels)
    assert (found.order, found.names) == (order, called)


@pytest.mark.parametrize(
    ("names", "labels", "columns"),
    [
        (["p1", "p2", "p3"], [3, 1], [2, 0]),
        (["benign", "malignant"], [1, 0], [1, 0]),
        (["p1", "p0"], ["0", "1"], [1, 0]),
        (["age", "p_b", "p_a"], ["a", "b"], [2, 1]),
    ],
)
def test_labels_find_their_columns(names, labels, columns):
    np.testing.assert_array_equal(check_labels(labels, (len(labels), len(names)), names), columns)


def test_labels_without_a_column_are_refused_by_sample():
    for names, labels in ((["p1", "p2"], [0, 1]), ([*"ab"], [*"ac"]), ([*"ab"], [0, 2])):
        with pytest.raises(RobfcpError, match=r"of sample [01] is none of the columns"):
            check_labels(labels, (2, 2), names)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_are_scored_and_predicted_by_name(library):
    kind = pytest.importorskip(library).DataFrame
    p, y = outputs(0, 400)
    names = ["flu", "cold", "well"]
    shuffled = kind({names[c]: p[:, c] for c in (2, 0, 1)})
    words = [names[c] for c in y]
    np.testing.assert_array_equal(robfcp.LAC()(shuffled, words), robfcp.LAC()(p, y))
    calibration = robfcp.calibrate(by_class([(p[k::4], words[k::4]) for k in range(4)], names))
    for frame in (shuffled, kind({f"p{c}": p[:, c] for c in (2, 0, 1)})):
        np.testing.assert_array_equal(calibration.predict_set(frame), calibration.predict_set(p))
    assert calibration.evaluate(shuffled, words) == calibration.evaluate(p, y)
    watched = robfcp.Monitor(calibration, min_coverage=0.5, seed=0).update(shuffled, words)
    assert watched == robfcp.Monitor(calibration, min_coverage=0.5, seed=0).update(p, y)
    ill = kind({"flu": p[:, 0], "cold": p[:, 1], "ill": p[:, 2]})
    for call, why in (
        (lambda: calibration.predict_set(ill), "no column is called 'well'"),
        (lambda: calibration.evaluate(p, ["bird"] * len(p)), "bird of sample 0 is none of the"),
        (lambda: robfcp.LAC()(p, words), "are text; name the classes"),
        (lambda: robfcp.LAC()(p[:, 0], y), r"pass numpy.column_stack\(\[1 - p, p\]\)"),
        (lambda: calibration.predict_set(kind({f"p{c}": y for c in (1, 2, 3)})), "count from 1"),
    ):
        with pytest.raises(RobfcpError, match=why):
            call()


def test_columns_that_may_have_gaps_and_series_are_taken():
    p, y = outputs(0, 400)
    frame, words = pd.DataFrame(p, columns=["b", "c", "a"]), np.array(["b", "c", "a"])[y]
    for rows, labels in ((pd.DataFrame(p).astype("Float64"), y), (frame, pd.Series(words))):
        np.testing.assert_array_equal(robfcp.LAC()(rows, labels), robfcp.LAC()(p, y))
