"""Where a site's scores fall among the other sites' scores of the same class."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.federation import Federation
from robfcp.grid import Grid

PLACES = 12  # equal parts of the others' scores
SHARES = 10  # of what is left, for a wrong label
FEWEST = 20  # scores of others that a class needs to be compared with

Whole = NDArray[np.int64]
Array = NDArray[np.float64]


def places(own: NDArray[Any], others: Whole) -> Array:
    """(C, B) how many of a site's scores of each class fall into each twelfth of the others'.

    Both are (C, H) counts. A score in a bin that holds the others' ranks from u to v is spread
    evenly over [u, v], so that scores drawn as the others' are uniform whatever ties there are. A
    class of which the others have fewer than 20 is left empty.
    """
    found = np.zeros((len(own), PLACES))
    edges = np.arange(PLACES + 1) / PLACES
    for c in np.flatnonzero(own.any(axis=1) & (others.sum(axis=1) >= FEWEST)):
        bins = np.flatnonzero(own[c])
        upper = np.cumsum(others[c]) / others[c].sum()
        high = upper[bins]
        low = high - others[c, bins] / others[c].sum()
        width = np.maximum(high - low, 1e-9)
        low = np.minimum(low, 1 - width)
        reached = np.clip((edges - low[:, None]) / width[:, None], 0, 1)
        found[c] = own[c, bins] @ np.diff(reached, axis=1)
    return found


def wrong_places(others: Whole, grid: Grid) -> Array | None:
    """(C, B) shares of the places where scores of wrong labels fall; None on other grids.

    A score s on [0, 1] leaves s of the probability to the other labels; a wrong one gets a share w
    of that, Beta(1, C - 2) as if drawn evenly from all ways to share it, and the score 1 - w s.
    """
    upper = grid.upper
    if len(others) < 2 or not 0 < upper[0] <= upper[-1] <= 1:
        return None
    share = others.sum(axis=0) / max(1, int(others.sum()))
    middle = (np.append(0, upper[:-1]) + upper) / 2
    ranks = (np.arange(SHARES) + 0.5) / SHARES
    parts = np.ones(1) if len(others) == 2 else 1 - ranks ** (1 / (len(others) - 2))
    wrong = np.zeros(grid.n_bins)
    for part in parts:
        place = grid.edge_at(1 - part * middle)
        wrong += np.bincount(place, weights=share, minlength=grid.n_bins) / len(parts)
    found = places(np.broadcast_to(wrong, others.shape), others)
    return found / np.maximum(found.sum(axis=1, keepdims=True), 1e-12)


class SiteTables:
    """Each site's counts beside the trusted others': by class where it keeps them, else pooled."""

    def __init__(self, federation: Federation, trusted: NDArray[np.bool_]) -> None:
        self._federation, self._trusted = federation, trusted
        strata = federation.strata
        self._strata = strata
        self._row = {} if strata is None else {int(k): r for r, k in enumerate(strata.rows)}
        self._pooled = federation.pooled(trusted)[None, :]
        if strata is not None:
            self._by_class = self._shaped(strata.table.pooled(trusted[strata.rows]))

    def of(self, client: int) -> tuple[Whole, Whole, tuple[str, ...]]:
        """The site's (C, H) counts, the trusted others', and the classes' names: () if pooled."""
        row = self._row.get(client)
        if self._strata is None or row is None:
            own, kept = self._federation.table.row(client)[None, :], self._pooled
            names: tuple[str, ...] = ()
        else:
            own, kept = self._shaped(self._strata.table.row(row)), self._by_class
            names = self._strata.labels
        return own, kept - own if self._trusted[client] else kept, names

    def _shaped(self, row: Whole) -> Whole:
        return row.reshape(-1, self._federation.grid.n_bins)
