"""Which sites look so much like the others that nothing would be said of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from robfcp.calibration.diagnosis.explanations import law_likelihoods
from robfcp.calibration.diagnosis.places import FEWEST, PLACES
from robfcp.federation import Federation

EDGES = np.arange(PLACES + 1) / PLACES
_ENTRIES = 2**16  # handled at a time


def ordinary(
    federation: Federation, trusted: NDArray[np.bool_], *, certain: float, equal: float
) -> NDArray[np.bool_]:
    """(K,) whether no explanation is better than "alike" by nearly `certain`, and no bin is full.

    All sites at once and from above, so that whoever is left can be looked at by itself: no mixture
    of laws is likelier than the likeliest of them. Nobody is ordinary where reports are by class or
    the others have few scores. Counts must be exact.
    """
    found = np.zeros(federation.n_clients, dtype=bool)
    starts, bins, values = federation.entries()
    rising = np.diff(bins.astype(np.int64)) > 0
    rising[starts[1:-1] - 1] = True
    if federation.strata is not None or not rising.all():
        return found
    pooled = federation.pooled(trusted)
    for rows in _blocks(starts):
        here = slice(starts[rows.start], starts[rows.stop])
        first = starts[rows] - starts[rows.start]
        counts = values[here].astype(np.int64)
        own = np.add.reduceat(counts, first)
        placed, others = _placed(counts, bins[here], first, own, pooled, trusted[rows])
        best, alike = law_likelihoods(placed)
        full = np.maximum.reduceat(counts, first) >= equal * own
        found[rows] = (best - alike < certain - 1) & ~full & (others >= FEWEST)
    return found


def _placed(
    counts: NDArray[np.int64],
    bins: NDArray[np.integer],
    first: NDArray[np.int64],
    own: NDArray[np.int64],
    pooled: NDArray[np.int64],
    trusted: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(R, B) what `places` finds for each site, and (R,) the scores it is compared with."""
    lengths = np.diff(first, append=len(counts))
    row = np.repeat(np.arange(len(first)), lengths)
    running = np.cumsum(counts)
    running -= np.repeat((running - counts)[first], lengths)
    among = trusted[row]  # a trusted site's own scores are none of the others'
    others = pooled.sum() - own * trusted
    total = np.maximum(others, 1)[row]
    high = (np.cumsum(pooled)[bins] - running * among) / total
    low = high - (pooled[bins] - counts * among) / total
    width = np.maximum(high - low, 1e-9)
    low = np.minimum(low, 1 - width)
    reached = np.clip((EDGES - low[:, None]) / width[:, None], 0, 1)
    return np.add.reduceat(counts[:, None] * np.diff(reached, axis=1), first, axis=0), others


def _blocks(starts: NDArray[np.int64]) -> Iterator[slice]:
    """Slices of rows with a bounded number of entries."""
    first = 0
    while first < len(starts) - 1:
        last = int(np.searchsorted(starts, starts[first] + _ENTRIES, side="right")) - 1
        last = max(last, first + 1)
        yield slice(first, last)
        first = last
