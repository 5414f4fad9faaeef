"""How good prediction sets and intervals are, on labelled test data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._util.numbers import array, floats, share, whole
from robfcp.errors import RobfcpError
from robfcp.scores import check_labels

Sets = NDArray[np.bool_]


def _members(sets: ArrayLike) -> Sets:
    members = array("sets", sets)
    if members.ndim != 2 or members.dtype != bool:
        raise RobfcpError("sets: need a boolean (samples, classes) array, one level at a time")
    if not len(members):
        raise RobfcpError("sets: there are no samples; pass at least one")
    return members


def _ends(intervals: ArrayLike) -> NDArray[np.float64]:
    ends = floats("intervals", intervals)
    if ends.ndim != 2 or ends.shape[1] != 2 or not len(ends) or np.isnan(ends).any():
        raise RobfcpError("intervals: need an (n, 2) array of numbers with at least one row")
    return ends


def covered(sets: ArrayLike, labels: ArrayLike) -> NDArray[np.bool_]:
    """(n,) whether each sample's set holds its label.

    Parameters
    ----------
    sets
        (n, C) membership, as `Calibration.predict_set` gives it.
    labels
        (n,) true class numbers.

    Returns
    -------
    (n,) array of bool
        One answer a sample.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.covered([[True, False], [True, True]], [1, 1])
    array([False,  True])
    """
    members = _members(sets)
    label = check_labels(labels, *members.shape)
    return members[np.arange(len(members)), label]


def coverage(sets: ArrayLike, labels: ArrayLike) -> float:
    """Share of samples whose set holds the true label.

    Parameters
    ----------
    sets
        (n, C) membership, as `Calibration.predict_set` gives it.
    labels
        (n,) true class numbers.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.coverage([[True, False], [True, True]], [1, 1])
    0.5
    """
    return float(covered(sets, labels).mean())


def set_size(sets: ArrayLike) -> float:
    """Mean number of labels in a set.

    Parameters
    ----------
    sets
        (n, C) membership, as `Calibration.predict_set` gives it.

    Returns
    -------
    float
        Between 0 and C.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.set_size([[True, False], [True, True]])
    1.5
    """
    return float(_members(sets).sum(axis=1).mean())


def class_coverage(sets: ArrayLike, labels: ArrayLike) -> NDArray[np.float64]:
    """(C,) coverage of the samples of each class; NaN for a class without samples.

    Parameters
    ----------
    sets
        (n, C) membership, as `Calibration.predict_set` gives it.
    labels
        (n,) true class numbers.

    Returns
    -------
    (C,) array
        One share a class.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.class_coverage([[True, False], [True, True], [True, False]], [0, 1, 1])
    array([1. , 0.5])
    """
    hit, label = covered(sets, labels), np.asarray(labels)
    n_classes = np.asarray(sets).shape[1]
    size = np.bincount(label, minlength=n_classes)
    hits = np.bincount(label, weights=hit, minlength=n_classes)
    return np.where(size > 0, hits / np.maximum(size, 1), np.nan)


def coverage_gap(sets: ArrayLike, labels: ArrayLike, level: float) -> float:
    """Mean |class coverage - level| over the classes that occur (CovGap).

    Parameters
    ----------
    sets
        (n, C) membership, as `Calibration.predict_set` gives it.
    labels
        (n,) true class numbers.
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
    >>> metrics.coverage_gap([[True, False], [True, True], [True, False]], [0, 1, 1], 0.75)
    0.25
    """
    wanted = share("level", level, "give 0.9, say")
    return float(np.nanmean(np.abs(class_coverage(sets, labels) - wanted)))


def size_stratified_coverage(
    sets: ArrayLike, labels: ArrayLike, strata: Sequence[int] = (0, 1, 2, 3, 5, 10)
) -> dict[str, tuple[int, float]]:
    """For each range of set sizes the number of samples and their coverage.

    Parameters
    ----------
    sets
        (n, C) membership, as `Calibration.predict_set` gives it.
    labels
        (n,) true class numbers.
    strata
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
    hit, size = covered(sets, labels), np.asarray(sets).sum(axis=1)
    strata = [whole("strata", end, "give rising set sizes") for end in strata]
    if sorted(set(strata)) != strata:
        raise RobfcpError(f"strata: {strata} do not rise; sort them and drop repeats")
    result = {}
    for low, high in zip([-1, *strata], [*strata, None], strict=True):
        inside = (size > low) & (True if high is None else size <= high)
        name = f"{low + 1}+" if high is None else f"{low + 1}-{high}"
        if high == low + 1:
            name = str(high)
        if inside.any():
            result[name] = (int(inside.sum()), float(hit[inside].mean()))
    return result


def size_stratified_violation(sets: ArrayLike, labels: ArrayLike, level: float) -> float:
    """Largest |coverage - level| over the strata of set size (SSCV).

    Parameters
    ----------
    sets
        (n, C) membership, as `Calibration.predict_set` gives it.
    labels
        (n,) true class numbers.
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
    >>> metrics.size_stratified_violation([[True, False], [True, True]], [0, 1], 0.75)
    0.25
    """
    wanted = share("level", level, "give 0.9, say")
    return max(abs(c - wanted) for _, c in size_stratified_coverage(sets, labels).values())


def singleton_share(sets: ArrayLike) -> float:
    """Share of sets with exactly one label.

    Parameters
    ----------
    sets
        (n, C) membership, as `Calibration.predict_set` gives it.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.singleton_share([[True, False], [True, True]])
    0.5
    """
    return float((_members(sets).sum(axis=1) == 1).mean())


def empty_share(sets: ArrayLike) -> float:
    """Share of sets with no label.

    Parameters
    ----------
    sets
        (n, C) membership, as `Calibration.predict_set` gives it.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.empty_share([[True, False], [False, False]])
    0.5
    """
    return float((~_members(sets).any(axis=1)).mean())


def client_coverage(
    sets: ArrayLike, labels: ArrayLike, clients: ArrayLike
) -> dict[str, tuple[int, float]]:
    """For each client the number of its samples and their coverage.

    Parameters
    ----------
    sets
        (n, C) membership, as `Calibration.predict_set` gives it.
    labels
        (n,) true class numbers.
    clients
        (n,) whose sample each is.

    Returns
    -------
    dict
        Samples and coverage by client.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.client_coverage([[True, False], [True, True]], [1, 1], ["a", "b"])
    {'a': (1, 0.0), 'b': (1, 1.0)}
    """
    return _coverage_by("client", sets, labels, clients)


def group_coverage(
    sets: ArrayLike, labels: ArrayLike, groups: ArrayLike
) -> dict[str, tuple[int, float]]:
    """For each group (scanner, sex, age band) the number of its samples and their coverage.

    Parameters
    ----------
    sets
        (n, C) membership, as `Calibration.predict_set` gives it.
    labels
        (n,) true class numbers.
    groups
        (n,) the group of each sample.

    Returns
    -------
    dict
        Samples and coverage by group.

    Examples
    --------
    >>> from robfcp import metrics
    >>> metrics.group_coverage([[True, False], [True, True]], [1, 1], ["new", "old"])
    {'new': (1, 0.0), 'old': (1, 1.0)}
    """
    return _coverage_by("group", sets, labels, groups)


def _coverage_by(
    kind: str, sets: ArrayLike, labels: ArrayLike, given: ArrayLike
) -> dict[str, tuple[int, float]]:
    """Samples and coverage by name."""
    hit, name = covered(sets, labels), array(f"{kind}s", given).astype(str)
    if name.shape != hit.shape:
        raise RobfcpError(f"{kind}s: need one {kind} a sample")
    names, which = np.unique(name, return_inverse=True)
    size, hits = np.bincount(which), np.bincount(which, weights=hit)
    return {str(c): (int(n), float(h / n)) for c, n, h in zip(names, size, hits, strict=True)}


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
    ends, y = _ends(intervals), floats("targets", targets)
    if y.shape != (len(ends),) or np.isnan(y).any():
        raise RobfcpError("targets: need one number an interval, none of them NaN")
    return float(((ends[:, 0] <= y) & (y <= ends[:, 1])).mean())


def interval_width(intervals: ArrayLike) -> float:
    """Mean width of (n, 2) intervals; crossed ends count as empty.

    Parameters
    ----------
    intervals
        (n, 2) ends, as `Calibration.predict_interval` gives them.

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
    ends = _ends(intervals)
    return float(np.maximum(ends[:, 1] - ends[:, 0], 0).mean())


def summary(sets: ArrayLike, labels: ArrayLike) -> Mapping[str, float]:
    """The figures most people ask for.

    Parameters
    ----------
    sets
        (n, C) membership, as `Calibration.predict_set` gives it.
    labels
        (n,) true class numbers.

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
        "coverage": coverage(sets, labels),
        "set_size": set_size(sets),
        "singletons": singleton_share(sets),
        "empty": empty_share(sets),
        "worst_class_coverage": float(np.nanmin(class_coverage(sets, labels))),
    }
