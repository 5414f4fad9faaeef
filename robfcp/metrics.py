"""Metrics: how good prediction sets and intervals are, on labelled test data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._probabilities import ClassColumns, check_labels
from robfcp._validation import (
    as_array,
    as_float_array,
    check_fraction,
    check_integer,
    reject_missing,
)
from robfcp.errors import RobfcpError

__all__ = [
    "class_conditional_coverage",
    "coverage",
    "covgap",
    "empty_set_rate",
    "group_conditional_coverage",
    "interval_coverage",
    "interval_width",
    "is_covered",
    "mean_set_size",
    "singleton_rate",
    "size_stratified_coverage",
    "size_stratified_coverage_violation",
    "summary",
    "table",
]


Sets = NDArray[np.bool_]
Classes = Sequence[object] | NDArray[np.generic] | None


def _as_membership(sets: ArrayLike) -> Sets:
    """(n, C) membership, of one sample at least."""
    members = as_array("sets", sets)
    if members.ndim != 2 or members.dtype != bool:
        raise RobfcpError("sets: need a boolean (samples, classes) array, one level at a time")
    if not len(members):
        raise RobfcpError("sets: there are no samples; pass at least one")
    return members


def _label_columns(sets: ArrayLike, labels: ArrayLike, classes: Classes) -> NDArray[np.intp]:
    """(n,) each label's column, looked up where the classes have names."""
    members = _as_membership(sets)
    names = ClassColumns.names_of(sets) if classes is None else tuple(str(name) for name in classes)
    if not names:
        return check_labels(labels, members.shape)
    if len(set(names)) != members.shape[1]:
        raise RobfcpError(f"classes: need {members.shape[1]} different names, one a column of sets")
    given = as_array("labels", labels)
    reject_missing("labels", given)
    return check_labels(given.astype(str), members.shape, names)


def _interval_bounds(intervals: ArrayLike) -> NDArray[np.float64]:
    """(n, 2) numbers, of one interval at least."""
    ends = as_float_array("intervals", intervals)
    if ends.ndim != 2 or ends.shape[1] != 2 or not len(ends) or np.isnan(ends).any():
        raise RobfcpError("intervals: need an (n, 2) array of numbers with at least one row")
    return ends


def interval_coverage(intervals: ArrayLike, targets: ArrayLike) -> float:
    """Share of targets inside their (n, 2) interval.

    Parameters
    ----------
    intervals
        (n, 2) ends, as `Calibration.predict_interval` gives them.
    targets
        (n,) true values.

    Returns
    -------
    float
        Between 0 and 1; the ends belong to their interval.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.interval_coverage([[0.0, 1.0], [2.0, 3.0]], [0.5, 4.0])
    0.5
    """
    ends, y = _interval_bounds(intervals), as_float_array("targets", targets)
    if y.shape != (len(ends),) or np.isnan(y).any():
        raise RobfcpError("targets: need one number an interval, none of them NaN")
    return float(((ends[:, 0] <= y) & (y <= ends[:, 1])).mean())


def interval_width(intervals: ArrayLike) -> float:
    """Mean width of (n, 2) intervals; crossed ends count as empty.

    Parameters
    ----------
    intervals
        As `interval_coverage` takes them.

    Returns
    -------
    float
        Infinite where an interval is.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.interval_width([[0.0, 1.0], [3.0, 2.0]])
    0.5
    """
    ends = _interval_bounds(intervals)
    return float(np.maximum(ends[:, 1] - ends[:, 0], 0).mean())


def is_covered(sets: ArrayLike, labels: ArrayLike, *, classes: Classes = None) -> NDArray[np.bool_]:
    """(n,) whether each sample's set holds its label.

    Parameters
    ----------
    sets, labels, classes
        As `coverage` takes them.

    Returns
    -------
    (n,) array of bool
        One answer a sample.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.is_covered([[True, False], [True, True]], [1, 1])
    array([False,  True])
    """
    members = _as_membership(sets)
    return members[np.arange(len(members)), _label_columns(sets, labels, classes)]


def coverage(sets: ArrayLike, labels: ArrayLike, *, classes: Classes = None) -> float:
    """Share of samples whose set holds the true label.

    Parameters
    ----------
    sets
        (n, C) membership, as `Calibration.predict_set` gives it.
    labels
        (n,) true class numbers, or names where `classes` or a frame's columns name them.
    classes
        What the columns of `sets` stand for, where labels are names: `model.classes_`.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.coverage([[True, False], [True, True]], [1, 1])
    0.5
    >>> metrics.coverage([[True, False], [True, True]], ["flu", "cold"], classes=["flu", "cold"])
    1.0
    """
    return float(is_covered(sets, labels, classes=classes).mean())


def mean_set_size(sets: ArrayLike) -> float:
    """Mean number of labels in a set.

    Parameters
    ----------
    sets
        As `coverage` takes them.

    Returns
    -------
    float
        Between 0 and C.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.mean_set_size([[True, False], [True, True]])
    1.5
    """
    return float(_as_membership(sets).sum(axis=1).mean())


def singleton_rate(sets: ArrayLike) -> float:
    """Share of sets with exactly one label.

    Parameters
    ----------
    sets
        As `coverage` takes them.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.singleton_rate([[True, False], [True, True]])
    0.5
    """
    return float((_as_membership(sets).sum(axis=1) == 1).mean())


def empty_set_rate(sets: ArrayLike) -> float:
    """Share of sets with no label.

    Parameters
    ----------
    sets
        As `coverage` takes them.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.empty_set_rate([[True, False], [False, False]])
    0.5
    """
    return float((~_as_membership(sets).any(axis=1)).mean())


def class_conditional_coverage(
    sets: ArrayLike, labels: ArrayLike, *, classes: Classes = None
) -> NDArray[np.float64]:
    """(C,) coverage of the samples of each class; NaN for a class without samples.

    Parameters
    ----------
    sets, labels, classes
        As `coverage` takes them.

    Returns
    -------
    (C,) array
        One share a class.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.class_conditional_coverage([[True, False], [True, True], [True, False]], [0, 1, 1])
    array([1. , 0.5])
    """
    members, label = _as_membership(sets), _label_columns(sets, labels, classes)
    hit, n_classes = members[np.arange(len(members)), label], members.shape[1]
    size = np.bincount(label, minlength=n_classes)
    hits = np.bincount(label, weights=hit, minlength=n_classes)
    return np.where(size > 0, hits / np.maximum(size, 1), np.nan)


def covgap(sets: ArrayLike, labels: ArrayLike, level: float, *, classes: Classes = None) -> float:
    """Mean |class coverage - level| over the classes that occur (CovGap).

    Parameters
    ----------
    sets, labels, classes
        As `coverage` takes them.
    level
        The coverage that was asked for.

    Returns
    -------
    float
        0 where every class is covered at the level.

    References
    ----------
    Ding, Angelopoulos, Bates, Jordan and Tibshirani (2023), "Class-conditional conformal prediction
    with many classes", NeurIPS.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.covgap([[True, False], [True, True], [True, False]], [0, 1, 1], 0.75)
    0.25
    """
    wanted = check_fraction("level", level, "give 0.9, say")
    return float(
        np.nanmean(np.abs(class_conditional_coverage(sets, labels, classes=classes) - wanted))
    )


def size_stratified_coverage(
    sets: ArrayLike,
    labels: ArrayLike,
    ends: Sequence[int] = (0, 1, 2, 3, 5, 10),
    *,
    classes: Classes = None,
) -> dict[str, tuple[int, float]]:
    """For each range of set sizes the number of samples and their coverage.

    Parameters
    ----------
    sets, labels, classes
        As `coverage` takes them.
    ends
        The upper ends of the ranges: (0, 1, 2, 3, 5, 10) means 0, 1, 2, 3, 4-5, 6-10, 11+.

    Returns
    -------
    dict
        Samples and coverage by range; ranges without samples are left out.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.size_stratified_coverage([[True, False], [True, True], [True, False]], [0, 1, 1])
    {'1': (2, 0.5), '2': (1, 1.0)}
    """
    hit, size = is_covered(sets, labels, classes=classes), _as_membership(sets).sum(axis=1)
    ends = [check_integer("ends", end, "give rising set sizes") for end in ends]
    if sorted(set(ends)) != ends:
        raise RobfcpError(f"ends: {ends} do not rise; sort them and drop repeats")
    result = {}
    for low, high in zip([-1, *ends], [*ends, None], strict=True):
        inside = (size > low) & (True if high is None else size <= high)
        name = f"{low + 1}+" if high is None else f"{low + 1}-{high}"
        if high == low + 1:
            name = str(high)
        if inside.any():
            result[name] = (int(inside.sum()), float(hit[inside].mean()))
    return result


def size_stratified_coverage_violation(
    sets: ArrayLike, labels: ArrayLike, level: float, *, classes: Classes = None
) -> float:
    """Largest |coverage - level| over the ranges of set size (SSCV).

    Parameters
    ----------
    sets, labels, classes
        As `coverage` takes them.
    level
        The coverage that was asked for.

    Returns
    -------
    float
        0 where sets of every size cover at the level.

    References
    ----------
    Angelopoulos, Bates, Malik and Jordan (2021), "Uncertainty sets for image classifiers using
    conformal prediction", ICLR.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.size_stratified_coverage_violation([[True, False], [True, True]], [0, 1], 0.75)
    0.25
    """
    wanted = check_fraction("level", level, "give 0.9, say")
    found = size_stratified_coverage(sets, labels, classes=classes)
    return max(abs(share - wanted) for _, share in found.values())


def group_conditional_coverage(
    sets: ArrayLike, labels: ArrayLike, groups: ArrayLike, *, classes: Classes = None
) -> dict[str, tuple[int, float]]:
    """For each group (site, scanner, sex, age band) the number of its samples and their coverage.

    Parameters
    ----------
    sets, labels, classes
        As `coverage` takes them.
    groups
        (n,) the group of each sample.

    Returns
    -------
    dict
        Samples and coverage by group.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.group_conditional_coverage([[True, False], [True, True]], [1, 1], ["new", "old"])
    {'new': (1, 0.0), 'old': (1, 1.0)}
    """
    hit = is_covered(sets, labels, classes=classes)
    name = as_array("groups", groups).astype(str)
    if name.shape != hit.shape:
        raise RobfcpError("groups: need one group a sample")
    names, which = np.unique(name, return_inverse=True)
    size, hits = np.bincount(which), np.bincount(which, weights=hit)
    return {str(c): (int(n), float(h / n)) for c, n, h in zip(names, size, hits, strict=True)}


def summary(sets: ArrayLike, labels: ArrayLike, *, classes: Classes = None) -> Mapping[str, float]:
    """The figures most people ask for.

    Parameters
    ----------
    sets, labels, classes
        As `coverage` takes them.

    Returns
    -------
    dict
        Coverage, mean set size, shares of singletons and empty sets, the worst class's coverage.

    Examples
    --------
    >>> from robfcp import metrics
    >>> for name, value in metrics.summary([[True, False], [True, True]], [1, 1]).items():
    ...     print(name, value)
    coverage 0.5
    set_size 1.5
    singletons 0.5
    empty 0.0
    worst_class_coverage 0.5
    """
    return {
        "coverage": coverage(sets, labels, classes=classes),
        "set_size": mean_set_size(sets),
        "singletons": singleton_rate(sets),
        "empty": empty_set_rate(sets),
        "worst_class_coverage": float(
            np.nanmin(class_conditional_coverage(sets, labels, classes=classes))
        ),
    }


def table(
    sets: ArrayLike, labels: ArrayLike, *, classes: Classes = None, clients: ArrayLike | None = None
) -> Any:
    """Samples, coverage and set size of all, of every class and of every site, in one frame.

    Parameters
    ----------
    sets, labels, classes
        As `coverage` takes them.
    clients
        (n,) the site, or any other group, of each sample.

    Returns
    -------
    pandas.DataFrame
        A row for all, one a class that occurs and one a site.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.table([[True, False], [True, True]], [1, 1], clients=["a", "b"])
        part name  samples  coverage  set_size  singletons  empty
    0    all  all        2       0.5       1.5         0.5    0.0
    1  class    1        2       0.5       1.5         0.5    0.0
    2   site    a        1       0.0       1.0         1.0    0.0
    3   site    b        1       1.0       2.0         0.0    0.0
    """
    try:
        frame = import_module("pandas").DataFrame
    except ImportError:
        raise RobfcpError("table: a frame is pandas'; pip install pandas") from None
    hit, size = is_covered(sets, labels, classes=classes), _as_membership(sets).sum(axis=1)
    column = _label_columns(sets, labels, classes)
    named = ClassColumns.names_of(sets) if classes is None else tuple(map(str, classes))
    parts = {"all": np.full(len(hit), "all"), "class": np.array(named)[column] if named else column}
    if clients is not None:
        parts["site"] = as_array("sites", clients)
        if parts["site"].shape != hit.shape:
            raise RobfcpError("sites: need one a sample")
    rows = []
    for part, names in parts.items():
        for name in np.unique(names):
            own = names == name
            shares = [(size[own] == k).mean() for k in (1, 0)]
            rows.append((part, str(name), own.sum(), hit[own].mean(), size[own].mean(), *shares))
    heads = ["part", "name", "samples", "coverage", "set_size", "singletons", "empty"]
    return frame(rows, columns=heads)
