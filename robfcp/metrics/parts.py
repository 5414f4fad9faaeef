"""Coverage part by part: of each class, set size, client and group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._util.numbers import array, share, whole
from robfcp.errors import RobfcpError
from robfcp.metrics.given import Classes, columns_of, members_of
from robfcp.metrics.sets import covered


def class_coverage(
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
    >>> metrics.class_coverage([[True, False], [True, True], [True, False]], [0, 1, 1])
    array([1. , 0.5])
    """
    members, label = members_of(sets), columns_of(sets, labels, classes)
    hit, n_classes = members[np.arange(len(members)), label], members.shape[1]
    size = np.bincount(label, minlength=n_classes)
    hits = np.bincount(label, weights=hit, minlength=n_classes)
    return np.where(size > 0, hits / np.maximum(size, 1), np.nan)


def coverage_gap(
    sets: ArrayLike, labels: ArrayLike, level: float, *, classes: Classes = None
) -> float:
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
    >>> metrics.coverage_gap([[True, False], [True, True], [True, False]], [0, 1, 1], 0.75)
    0.25
    """
    wanted = share("level", level, "give 0.9, say")
    return float(np.nanmean(np.abs(class_coverage(sets, labels, classes=classes) - wanted)))


def size_stratified_coverage(
    sets: ArrayLike,
    labels: ArrayLike,
    strata: Sequence[int] = (0, 1, 2, 3, 5, 10),
    *,
    classes: Classes = None,
) -> dict[str, tuple[int, float]]:
    """For each range of set sizes the number of samples and their coverage.

    Parameters
    ----------
    sets, labels, classes
        As `coverage` takes them.
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
    hit, size = covered(sets, labels, classes=classes), members_of(sets).sum(axis=1)
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


def size_stratified_violation(
    sets: ArrayLike, labels: ArrayLike, level: float, *, classes: Classes = None
) -> float:
    """Largest |coverage - level| over the strata of set size (SSCV).

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
    >>> metrics.size_stratified_violation([[True, False], [True, True]], [0, 1], 0.75)
    0.25
    """
    wanted = share("level", level, "give 0.9, say")
    found = size_stratified_coverage(sets, labels, classes=classes)
    return max(abs(share - wanted) for _, share in found.values())


def client_coverage(
    sets: ArrayLike, labels: ArrayLike, clients: ArrayLike, *, classes: Classes = None
) -> dict[str, tuple[int, float]]:
    """For each client the number of its samples and their coverage.

    Parameters
    ----------
    sets, labels, classes
        As `coverage` takes them.
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
    return _coverage_by("client", sets, labels, clients, classes)


def group_coverage(
    sets: ArrayLike, labels: ArrayLike, groups: ArrayLike, *, classes: Classes = None
) -> dict[str, tuple[int, float]]:
    """For each group (scanner, sex, age band) the number of its samples and their coverage.

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
    >>> metrics.group_coverage([[True, False], [True, True]], [1, 1], ["new", "old"])
    {'new': (1, 0.0), 'old': (1, 1.0)}
    """
    return _coverage_by("group", sets, labels, groups, classes)


def _coverage_by(
    kind: str, sets: ArrayLike, labels: ArrayLike, given: ArrayLike, classes: Classes
) -> dict[str, tuple[int, float]]:
    """Samples and coverage by name."""
    hit = covered(sets, labels, classes=classes)
    name = array(f"{kind}s", given).astype(str)
    if name.shape != hit.shape:
        raise RobfcpError(f"{kind}s: need one {kind} a sample")
    names, which = np.unique(name, return_inverse=True)
    size, hits = np.bincount(which), np.bincount(which, weights=hit)
    return {str(c): (int(n), float(h / n)) for c, n, h in zip(names, size, hits, strict=True)}
