"""Bets against "fresh scores are exchangeable with the site's own report": conformal p-values.

p_t = (number in the bag with a larger bin + u_t (number in the same bin + 1)) / (bag + 1); the bag
is the report and all fresh scores before t. While the null is true the p_t are independent and
uniform, whatever the distribution of the scores.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Bins = NDArray[np.intp]

POWERS = np.array([0.7, 0.85])  # e p^(e-1): scores have risen; the same on 1 - p: fallen
N_CELLS = 10  # of the histogram that learns any other change
N_BETS = 2 * len(POWERS) + 1
_BLOCK = 256


def uniforms(seed: int, start: int, n: int) -> Vector:
    """(n,) draws number start, start + 1, ... of a stream: the same however it is cut up."""
    stream = np.random.Philox(key=seed)
    stream.advance(start // 4)  # four draws a step
    raw = np.asarray(stream.random_raw(start % 4 + n))[start % 4 :]
    return np.asarray(((raw >> np.uint64(12)) + 0.5) * 2.0**-52)


def p_values(bag: NDArray[np.int64], bins: Bins, u: Vector) -> Vector:
    """(T,) conformal p-values of the bins in their order; every one joins the (H,) bag."""
    p = np.empty(len(bins))
    for start in range(0, len(bins), _BLOCK):
        block = bins[start : start + _BLOCK]
        before = np.tri(len(block), k=-1, dtype=bool)  # who of the block came earlier
        above = np.cumsum(bag[::-1])[::-1] - bag
        larger = above[block] + (before & (block[None, :] > block[:, None])).sum(axis=1)
        same = bag[block] + (before & (block[None, :] == block[:, None])).sum(axis=1)
        total = int(bag.sum()) + np.arange(len(block)) + 1
        p[start : start + _BLOCK] = (larger + u[start : start + _BLOCK] * (same + 1)) / total
        np.add.at(bag, block, 1)
    return np.clip(p, 2.0**-60, 1 - 2.0**-53)


def log_bets(p: Vector, cells: NDArray[np.int64]) -> Vector:
    """(T, J) ln of each bet's factor at every step; the (B,) cells count the p-values seen.

    ln(e) + (e-1) ln p and the same on 1 - p; and ln(B (c + 1/2) / (t + B/2)), c of the t p-values
    so far being in this one's cell.
    """
    rising = np.log(POWERS) + np.multiply.outer(np.log(p), POWERS - 1)
    falling = np.log(POWERS) + np.multiply.outer(np.log1p(-p), POWERS - 1)
    cell = np.minimum((p * N_CELLS).astype(np.intp), N_CELLS - 1)
    own = np.zeros((len(p), N_CELLS), dtype=np.int64)
    own[np.arange(len(p)), cell] = 1
    seen = cells + np.cumsum(own, axis=0) - own
    count = seen[np.arange(len(p)), cell]
    learnt = np.log(N_CELLS * (count + 0.5) / (seen.sum(axis=1) + N_CELLS / 2))
    cells += own.sum(axis=0)
    return np.column_stack([rising, falling, learnt])
