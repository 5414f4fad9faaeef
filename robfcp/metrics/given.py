"""What metrics are given, checked: sets, labels, intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._util.names import a_few
from robfcp._util.numbers import array, floats, refuse_missing
from robfcp.errors import RobfcpError
from robfcp.scores import check_labels, column_names

Sets = NDArray[np.bool_]
Classes = Sequence[object] | NDArray[np.generic] | None


def members_of(sets: ArrayLike) -> Sets:
    """(n, C) membership, of one sample at least."""
    members = array("sets", sets)
    if members.ndim != 2 or members.dtype != bool:
        raise RobfcpError("sets: need a boolean (samples, classes) array, one level at a time")
    if not len(members):
        raise RobfcpError("sets: there are no samples; pass at least one")
    return members


def columns_of(sets: ArrayLike, labels: ArrayLike, classes: Classes) -> NDArray[np.intp]:
    """(n,) each label's column, looked up where the classes have names."""
    members = members_of(sets)
    names = column_names(sets) if classes is None else tuple(str(name) for name in classes)
    if not names:
        return check_labels(labels, *members.shape)
    if len(set(names)) != members.shape[1]:
        raise RobfcpError(f"classes: need {members.shape[1]} different names, one a column of sets")
    found = array("labels", labels)
    if found.shape != (len(members),):
        raise RobfcpError(
            f"labels: shape {found.shape} does not fit {len(members)} samples; give one per row"
        )
    refuse_missing("labels", found)
    known = {name: column for column, name in enumerate(names)}
    each, which = np.unique(found.astype(str), return_inverse=True)
    strange = [str(label) for label in each if str(label) not in known]
    if strange:
        raise RobfcpError(
            f"labels: {strange[0]:.40} is none of the classes {a_few(names)}; check the names"
        )
    columns = np.array([known[str(label)] for label in each], dtype=np.intp)
    return columns[which.reshape(found.shape)]


def ends_of(intervals: ArrayLike) -> NDArray[np.float64]:
    """(n, 2) numbers, of one interval at least."""
    ends = floats("intervals", intervals)
    if ends.ndim != 2 or ends.shape[1] != 2 or not len(ends) or np.isnan(ends).any():
        raise RobfcpError("intervals: need an (n, 2) array of numbers with at least one row")
    return ends
