"""Groups of clients linked by pairs of reports that are too close."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FALSE_ALARM = 1e-3


@dataclass(frozen=True)
class Copies:
    """Clients that report the same sample, exactly or with a few counts moved."""

    clients: tuple[str, ...]
    exact: bool
    p_value: float


def components(
    owner: NDArray[np.intp], left: NDArray[np.intp], right: NDArray[np.intp]
) -> list[NDArray[np.intp]]:
    """The clients whose rows are linked, two or more, in the order of their first members."""
    if not len(left):
        return []
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n_rows = int(owner.max()) + 1
    graph = coo_array((np.ones(len(left)), (left, right)), shape=(n_rows, n_rows))
    _, labels = connected_components(graph, directed=False)
    linked = np.zeros(len(labels), dtype=bool)
    linked[labels[left]] = True
    members = np.flatnonzero(linked[labels[owner]])
    members = members[np.argsort(labels[owner[members]], kind="stable")]
    cuts = np.flatnonzero(np.diff(labels[owner[members]])) + 1
    return sorted(np.split(members, cuts), key=lambda group: int(group[0]))
