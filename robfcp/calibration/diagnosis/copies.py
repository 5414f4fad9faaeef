"""Reports that are another site's, whole or in part."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robfcp.federation import Counts, Federation

SURE = 20.0  # a part of another report by chance: less than e^-20
MOST_CELLS = 5_000_000  # beyond that only whole copies are looked for
FEWEST_CELLS = 5

Whole = NDArray[np.int64]


def copied_from(federation: Federation, clients: NDArray[np.intp]) -> dict[int, tuple[int, bool]]:
    """For each of the clients whose report is another's: whose, and whether it is all of it.

    A report is a part of another where none of its counts exceeds the other's and the chance that
    as many scores, drawn as all sites' are, fall into the other's cells is below e^-20 / K.
    """
    strata = federation.strata
    found: dict[int, tuple[int, bool]] = {}
    if strata is not None:
        rows = {int(k): r for r, k in enumerate(strata.rows)}
        chosen = [rows[k] for k in clients.tolist() if k in rows]
        for row, (other, whole) in _copies(strata.table, chosen).items():
            found[int(strata.rows[row])] = int(strata.rows[other]), whole
        clients = np.array([k for k in clients.tolist() if k not in rows], dtype=np.intp)
    return found | _copies(federation.table, clients.tolist())


def _copies(counts: Counts, chosen: list[int]) -> dict[int, tuple[int, bool]]:
    starts, cells, values = counts.entries()
    first: dict[bytes, list[int]] = {}
    for k in range(len(starts) - 1):
        here = slice(int(starts[k]), int(starts[k + 1]))
        key = cells[here].astype(np.int64).tobytes() + values[here].astype(np.int64).tobytes()
        first.setdefault(key, []).append(k)
    same = {k: group for group in first.values() if len(group) > 1 for k in group}
    share = counts.pooled(None) / max(1, int(counts.pooled(None).sum()))
    owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    found: dict[int, tuple[int, bool]] = {}
    for k in chosen:
        here = slice(int(starts[k]), int(starts[k + 1]))
        if here.stop - here.start < FEWEST_CELLS:
            continue
        if k in same:
            found[k] = next(other for other in same[k] if other != k), True
        elif len(chosen) * len(cells) <= MOST_CELLS:
            other = _part_of(
                k,
                own=cells[here],
                numbers=values[here],
                owner=owner,
                cells=cells,
                values=values,
                share=share,
            )
            if other is not None:
                found[k] = other, False
    return found


def _part_of(
    k: int,
    own: Whole,
    numbers: Whole,
    owner: Whole,
    cells: Whole,
    values: Whole,
    share: NDArray[np.float64],
) -> int | None:
    """The site whose counts hold all of this one's, too many for chance."""
    place = np.searchsorted(own, cells).clip(max=len(own) - 1)
    inside = (own[place] == cells) & (values >= numbers[place])
    n_rows = int(owner[-1]) + 1
    held = np.bincount(owner[inside], minlength=n_rows)
    held[k] = 0
    for other in np.flatnonzero(held == len(own)):
        reach = share[cells[owner == other]].sum()
        if -int(numbers.sum()) * np.log(max(reach, 1e-12)) > SURE + np.log(n_rows):
            return int(other)
    return None
