"""How good prediction sets are: coverage and size."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.metrics.given import Classes, columns_of, members_of


def covered(sets: ArrayLike, labels: ArrayLike, *, classes: Classes = None) -> NDArray[np.bool_]:
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
    >>> metrics.covered([[True, False], [True, True]], [1, 1])
    array([False,  True])
    """
    members = members_of(sets)
    return members[np.arange(len(members)), columns_of(sets, labels, classes)]


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
    return float(covered(sets, labels, classes=classes).mean())


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
    return float(members_of(sets).sum(axis=1).mean())


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
    return float((members_of(sets).sum(axis=1) == 1).mean())


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
    return float((~members_of(sets).any(axis=1)).mean())
