"""Columns are read by name, so that their order does not matter."""

import numpy as np
import pandas as pd
import pytest
from makers import outputs, reports_by_class

import robfcp
from robfcp._probabilities import ClassColumns, check_labels
from robfcp.errors import RobfcpError


@pytest.mark.parametrize(
    ("names", "labels", "order", "class_names"),
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
def test_classes_are_read_from_column_names(names, labels, order, class_names):
    columns = ClassColumns.classes_of_names(names, labels)
    assert (columns.order, columns.names) == (order, class_names)


@pytest.mark.parametrize(
    ("names", "labels", "columns"),
    [
        (["p1", "p2", "p3"], [3, 1], [2, 0]),
        (["benign", "malignant"], [1, 0], [1, 0]),
        (["p1", "p0"], ["0", "1"], [1, 0]),
        (["age", "p_b", "p_a"], ["a", "b"], [2, 1]),
    ],
)
def test_labels_are_mapped_to_columns(names, labels, columns):
    np.testing.assert_array_equal(check_labels(labels, (len(labels), len(names)), names), columns)


def test_labels_without_a_column_are_refused_by_sample():
    for names, labels in ((["p1", "p2"], [0, 1]), ([*"ab"], [*"ac"]), ([*"ab"], [0, 2])):
        with pytest.raises(RobfcpError, match=r"of sample [01] is none of the columns"):
            check_labels(labels, (2, 2), names)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_are_scored_and_predicted_by_name(library):
    frame_type = pytest.importorskip(library).DataFrame
    p, y = outputs(0, 400)
    names = ["flu", "cold", "well"]
    shuffled = frame_type({names[c]: p[:, c] for c in (2, 0, 1)})
    named_labels = [names[c] for c in y]
    np.testing.assert_array_equal(robfcp.LAC()(shuffled, named_labels), robfcp.LAC()(p, y))
    calibration = robfcp.calibrate(
        reports_by_class([(p[k::4], named_labels[k::4]) for k in range(4)], names)
    )
    for frame in (shuffled, frame_type({f"p{c}": p[:, c] for c in (2, 0, 1)})):
        np.testing.assert_array_equal(calibration.predict_set(frame), calibration.predict_set(p))
    assert calibration.evaluate(shuffled, named_labels) == calibration.evaluate(p, y)
    monitored = robfcp.Monitor(calibration, min_coverage=0.5, seed=0).update(shuffled, named_labels)
    assert monitored == robfcp.Monitor(calibration, min_coverage=0.5, seed=0).update(p, y)
    wrong_columns = frame_type({"flu": p[:, 0], "cold": p[:, 1], "ill": p[:, 2]})
    for call, message in (
        (lambda: calibration.predict_set(wrong_columns), "no column is called 'well'"),
        (lambda: calibration.evaluate(p, ["bird"] * len(p)), "bird of sample 0 is none of the"),
        (lambda: robfcp.LAC()(p, named_labels), "are text; name the classes"),
        (lambda: robfcp.LAC()(p[:, 0], y), r"pass numpy.column_stack\(\[1 - p, p\]\)"),
        (
            lambda: calibration.predict_set(frame_type({f"p{c}": y for c in (1, 2, 3)})),
            "count from 1",
        ),
    ):
        with pytest.raises(RobfcpError, match=message):
            call()


def test_nullable_columns_and_series_are_accepted():
    p, y = outputs(0, 400)
    frame = pd.DataFrame(p, columns=["b", "c", "a"])
    named_labels = np.array(["b", "c", "a"])[y]
    for rows, labels in ((pd.DataFrame(p).astype("Float64"), y), (frame, pd.Series(named_labels))):
        np.testing.assert_array_equal(robfcp.LAC()(rows, labels), robfcp.LAC()(p, y))
