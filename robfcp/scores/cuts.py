"""Sets from the scores of the likeliest labels: everything from some probability up."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robfcp.scores.likeliest import Floats, Likeliest, Marks, put_back
from robfcp.scores.probabilities import Probabilities

Rows = NDArray[np.intp]


def from_cuts(
    likely: Likeliest, scores: Floats, p: Probabilities, limits: Floats, non_empty: bool
) -> tuple[Marks, Marks]:
    """(n, C, L) the sets at limits (L,) or (n, 1, L), and which rows are not decided by it.

    Undecided are rows where a label that is not among the likeliest could be in, and those where
    rounding lets a likelier label score more than a less likely one.
    """
    members = np.empty((*p.shape, limits.shape[-1]), dtype=bool)
    beyond = likely.beyond(scores, p.shape[1])
    left = ~(beyond > highest(limits)[:, 0])
    rows = np.arange(len(p))
    for level in range(limits.shape[-1]):
        limit = np.broadcast_to(limits[..., level], (len(p), 1))
        inside = scores <= limit
        inside &= likely.held
        number = np.count_nonzero(inside, axis=1)
        left |= (inside.argmin(axis=1) != number) & (number < inside.shape[1])
        cut = likely.falling[rows, np.maximum(number - 1, 0)].astype(p.dtype)
        cut[number == 0] = np.inf
        cut[limit[:, 0] == np.inf] = -1
        np.greater_equal(p, cut[:, None], out=members[:, :, level])
        if non_empty:
            empty = np.flatnonzero(cut == np.inf)
            left[empty] |= ~_likeliest_is_least(likely, scores, beyond, empty)
            members[empty, p[empty].argmax(axis=1), level] = True
    return members, left


def by_label(
    likely: Likeliest, scores: Floats, p: Probabilities, limits: Floats, non_empty: bool
) -> tuple[Marks, Marks]:
    """The same at limits (C, L), every label's own."""
    assert likely.picked is not None
    assert likely.order is not None
    beyond = likely.beyond(scores, p.shape[1])
    left = ~(beyond > highest(limits)[:, 0])
    members = np.empty((*p.shape, limits.shape[-1]), dtype=bool)
    members[:] = limits == np.inf
    row, label = np.divmod(likely.picked, p.shape[1])
    own = put_back(scores, likely.order)[likely.held]
    members[row, label] = own[:, None] <= limits[label]
    if non_empty:
        row, level = np.nonzero(~members.any(axis=1))
        left[row] |= ~_likeliest_is_least(likely, scores, beyond, row)
        members[row, p[row].argmax(axis=1), level] = True
    return members, left


def highest(limits: Floats) -> Floats:
    """(1, 1) or (n, 1) the largest limit that is a number: infinite ones let in every label."""
    finite = np.where(np.isfinite(limits), limits, -np.inf)
    return finite.max(axis=(1, 2))[:, None] if limits.ndim == 3 else finite.max().reshape(1, 1)


def of_rows(limits: Floats, rows: Rows) -> Floats:
    """The limits of some rows."""
    return limits[rows] if limits.ndim == 3 else limits


def _likeliest_is_least(
    likely: Likeliest, scores: Floats, beyond: Floats, rows: Rows
) -> NDArray[np.bool_]:
    """Whether, in some rows, nothing but the likeliest labels has the least score."""
    first = np.broadcast_to(likely.first, scores.shape)[rows]
    others = np.where((first > 0) & likely.held[rows], scores[rows], np.inf).min(axis=1)
    return np.asarray(np.minimum(others, beyond[rows]) > scores[rows, 0])
