"""The figures most people ask for, together."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from robfcp.metrics.given import Classes
from robfcp.metrics.parts import class_coverage
from robfcp.metrics.sets import coverage, empty_share, set_size, singleton_share


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
        "set_size": set_size(sets),
        "singletons": singleton_share(sets),
        "empty": empty_share(sets),
        "worst_class_coverage": float(np.nanmin(class_coverage(sets, labels, classes=classes))),
    }
