"""Metrics: how good prediction sets and intervals are, on labeled test data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._probabilities import ClassColumns, check_labels
from robfcp._typing import BoolArray, FloatArray, IndexArray, IntArray
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


Classes = Sequence[object] | NDArray[np.generic] | None


def _as_membership(sets: ArrayLike) -> BoolArray:
    """Return (n, C) membership, of one sample at least."""
    membership = as_array("sets", sets)
    if membership.ndim != 2 or membership.dtype != bool:
        raise RobfcpError("sets: need a boolean (samples, classes) array, one level at a time")
    if not len(membership):
        raise RobfcpError("sets: there are no samples; pass at least one")
    return membership


def _class_names(sets: ArrayLike, classes: Classes) -> tuple[str, ...] | None:
    """Return the names of the classes, those of a frame's columns if none are given."""
    if classes is None:
        return ClassColumns.names_of(sets)
    return tuple(str(name) for name in classes)


def _label_columns(sets: ArrayLike, labels: ArrayLike, classes: Classes) -> IndexArray:
    """Return (n,) each label's column, looked up where the classes have names."""
    membership = _as_membership(sets)
    names = _class_names(sets, classes)
    if not names:
        return check_labels(labels, membership.shape)

    n_classes = membership.shape[1]
    if len(set(names)) != n_classes:
        raise RobfcpError(f"classes: need {n_classes} different names, one a column of sets")
    label_names = as_array("labels", labels)
    reject_missing("labels", label_names)
    return check_labels(label_names.astype(str), membership.shape, names)


def _set_sizes(sets: ArrayLike) -> IntArray:
    """Return (n,) the number of labels in each set."""
    sizes: IntArray = _as_membership(sets).sum(axis=1)
    return sizes


def _interval_bounds(intervals: ArrayLike) -> FloatArray:
    """Return (n, 2) numbers, of one interval at least."""
    bounds = as_float_array("intervals", intervals)
    is_pairs = bounds.ndim == 2 and bounds.shape[1] == 2 and len(bounds) > 0
    if not is_pairs or np.isnan(bounds).any():
        raise RobfcpError("intervals: need an (n, 2) array of numbers with at least one row")
    return bounds


def interval_coverage(intervals: ArrayLike, targets: ArrayLike) -> float:
    """Return the fraction of targets inside their (n, 2) interval.

    Parameters
    ----------
    intervals : array_like, shape (n, 2)
        Ends, as `Calibration.predict_interval` gives them.
    targets : array_like, shape (n,)
        True values.

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
    bounds = _interval_bounds(intervals)
    values = as_float_array("targets", targets)
    if values.shape != (len(bounds),) or np.isnan(values).any():
        raise RobfcpError("targets: need one number an interval, none of them NaN")

    lower, upper = bounds.T
    is_inside = (lower <= values) & (values <= upper)
    return float(is_inside.mean())


def interval_width(intervals: ArrayLike) -> float:
    """Return the mean width of (n, 2) intervals; crossed bounds count as empty.

    Parameters
    ----------
    intervals : array_like
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
    lower, upper = _interval_bounds(intervals).T
    widths = np.maximum(upper - lower, 0)
    return float(widths.mean())


def is_covered(sets: ArrayLike, labels: ArrayLike, *, classes: Classes = None) -> BoolArray:
    """Return (n,) whether each sample's set holds its label.

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
    membership = _as_membership(sets)
    columns = _label_columns(sets, labels, classes)
    return membership[np.arange(len(membership)), columns]


def coverage(sets: ArrayLike, labels: ArrayLike, *, classes: Classes = None) -> float:
    """Return the fraction of samples whose set holds the true label.

    Parameters
    ----------
    sets : array_like, shape (n, C)
        Membership, as `Calibration.predict_set` gives it.
    labels : array_like, shape (n,)
        True class numbers, or names where `classes` or a frame's columns name them.
    classes : Classes
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
    """Return the mean number of labels in a set.

    Parameters
    ----------
    sets : array_like
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
    return float(_set_sizes(sets).mean())


def singleton_rate(sets: ArrayLike) -> float:
    """Return the fraction of sets with exactly one label.

    Parameters
    ----------
    sets : array_like
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
    is_singleton = _set_sizes(sets) == 1
    return float(is_singleton.mean())


def empty_set_rate(sets: ArrayLike) -> float:
    """Return the fraction of sets with no label.

    Parameters
    ----------
    sets : array_like
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
    is_empty = _set_sizes(sets) == 0
    return float(is_empty.mean())


def class_conditional_coverage(
    sets: ArrayLike, labels: ArrayLike, *, classes: Classes = None
) -> FloatArray:
    """Return (C,) coverage of the samples of each class; NaN for a class without samples.

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
    n_classes = _as_membership(sets).shape[1]
    columns = _label_columns(sets, labels, classes)
    covered = is_covered(sets, labels, classes=classes)
    n_samples = np.bincount(columns, minlength=n_classes)
    n_covered = np.bincount(columns, weights=covered, minlength=n_classes)
    return np.where(n_samples > 0, n_covered / np.maximum(n_samples, 1), np.nan)


def covgap(sets: ArrayLike, labels: ArrayLike, level: float, *, classes: Classes = None) -> float:
    """Return the mean of |class coverage - level| over the classes that occur (CovGap).

    Parameters
    ----------
    sets, labels, classes
        As `coverage` takes them.
    level : float
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
    target = check_fraction("level", level, "give 0.9, say")
    coverages = class_conditional_coverage(sets, labels, classes=classes)
    return float(np.nanmean(np.abs(coverages - target)))


def size_stratified_coverage(
    sets: ArrayLike,
    labels: ArrayLike,
    size_ends: Sequence[int] = (0, 1, 2, 3, 5, 10),
    *,
    classes: Classes = None,
) -> dict[str, tuple[int, float]]:
    """Return the number of samples and their coverage for each range of set sizes.

    Parameters
    ----------
    sets, labels, classes
        As `coverage` takes them.
    size_ends : sequence of int
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
    covered = is_covered(sets, labels, classes=classes)
    sizes = _set_sizes(sets)
    size_ends = [check_integer("size_ends", end, "give rising set sizes") for end in size_ends]
    if sorted(set(size_ends)) != size_ends:
        raise RobfcpError(f"size_ends: {size_ends} do not rise; sort them and drop repeats")

    # Range r is from the end before it, exclusive, to its own; the last range has no end.
    range_of_sample = np.searchsorted(size_ends, sizes)
    coverages = {}
    for index, name in enumerate(_range_names(size_ends)):
        is_inside = range_of_sample == index
        if is_inside.any():
            coverages[name] = (int(is_inside.sum()), float(covered[is_inside].mean()))
    return coverages


def _range_names(size_ends: Sequence[int]) -> list[str]:
    """Return '0', '1', '2-5', '6+' of ends 0, 1, 5."""
    names = []
    first = 0
    for end in size_ends:
        names.append(str(end) if end == first else f"{first}-{end}")
        first = end + 1
    return [*names, f"{first}+"]


def size_stratified_coverage_violation(
    sets: ArrayLike, labels: ArrayLike, level: float, *, classes: Classes = None
) -> float:
    """Return the largest |coverage - level| over the ranges of set size (SSCV).

    Parameters
    ----------
    sets, labels, classes
        As `coverage` takes them.
    level : float
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
    target = check_fraction("level", level, "give 0.9, say")
    by_size = size_stratified_coverage(sets, labels, classes=classes)
    return max(abs(coverage_of_range - target) for _, coverage_of_range in by_size.values())


def group_conditional_coverage(
    sets: ArrayLike, labels: ArrayLike, groups: ArrayLike, *, classes: Classes = None
) -> dict[str, tuple[int, float]]:
    """Return the number of samples and coverage of each group: site, scanner, sex, age band.

    Parameters
    ----------
    sets, labels, classes
        As `coverage` takes them.
    groups : array_like, shape (n,)
        The group of each sample.

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
    covered = is_covered(sets, labels, classes=classes)
    group_of_sample = as_array("groups", groups).astype(str)
    if group_of_sample.shape != covered.shape:
        raise RobfcpError("groups: need one group a sample")

    names, indices = np.unique(group_of_sample, return_inverse=True)
    sizes = np.bincount(indices)
    coverages = np.bincount(indices, weights=covered) / sizes
    return {
        str(name): (int(size), float(coverage_of_group))
        for name, size, coverage_of_group in zip(names, sizes, coverages, strict=True)
    }


def summary(sets: ArrayLike, labels: ArrayLike, *, classes: Classes = None) -> Mapping[str, float]:
    """Return the figures most people ask for.

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
    mean_set_size 1.5
    singleton_rate 0.5
    empty_set_rate 0.0
    worst_class_coverage 0.5
    """
    coverages = class_conditional_coverage(sets, labels, classes=classes)
    return {
        "coverage": coverage(sets, labels, classes=classes),
        "mean_set_size": mean_set_size(sets),
        "singleton_rate": singleton_rate(sets),
        "empty_set_rate": empty_set_rate(sets),
        "worst_class_coverage": float(np.nanmin(coverages)),
    }


def table(
    sets: ArrayLike, labels: ArrayLike, *, classes: Classes = None, clients: ArrayLike | None = None
) -> Any:
    """Return samples, coverage and set size of all, of every class and of every site, in a frame.

    Parameters
    ----------
    sets, labels, classes
        As `coverage` takes them.
    clients : array_like, shape (n,), optional
        The site, or any other group, of each sample.

    Returns
    -------
    pandas.DataFrame
        A row for all, one a class that occurs and one a site.

    Examples
    --------
    >>> from robfcp import metrics
    >>> table = metrics.table([[True, False], [True, True]], [1, 1], clients=["a", "b"])
    >>> print(table.to_string())
         part name  samples  coverage  mean_set_size  singleton_rate  empty_set_rate
    0     all  all        2       0.5            1.5             0.5             0.0
    1   class    1        2       0.5            1.5             0.5             0.0
    2  client    a        1       0.0            1.0             1.0             0.0
    3  client    b        1       1.0            2.0             0.0             0.0
    """
    try:
        frame = import_module("pandas").DataFrame
    except ImportError:
        raise RobfcpError("table: a frame is pandas'; pip install pandas") from None
    covered = is_covered(sets, labels, classes=classes)
    sizes = _set_sizes(sets)
    names_by_part = {
        "all": np.full(len(covered), "all"),
        "class": _class_of_sample(sets, labels, classes),
    }
    if clients is not None:
        names_by_part["client"] = as_array("clients", clients)
        if names_by_part["client"].shape != covered.shape:
            raise RobfcpError("clients: need one a sample")

    rows = []
    for grouping, names in names_by_part.items():
        for name in np.unique(names):
            selected = names == name
            row = {
                "part": grouping,
                "name": str(name),
                "samples": selected.sum(),
                "coverage": covered[selected].mean(),
                "mean_set_size": sizes[selected].mean(),
                "singleton_rate": (sizes[selected] == 1).mean(),
                "empty_set_rate": (sizes[selected] == 0).mean(),
            }
            rows.append(row)
    return frame(rows)


def _class_of_sample(sets: ArrayLike, labels: ArrayLike, classes: Classes) -> NDArray[Any]:
    """Return (n,) the name of each sample's class; its column where classes have no names."""
    columns = _label_columns(sets, labels, classes)
    names = _class_names(sets, classes)
    return np.array(names)[columns] if names else columns
