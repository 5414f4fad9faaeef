"""Binomial tails over many sizes at once, by the incomplete beta function."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]


def least_count(totals: Whole, probability: float, delta: float, low: Whole) -> Whole:
    """The least c in low..N + 1 with P(Bin(N, probability) >= c) <= delta, by bisection."""
    from scipy.special import betainc

    low, high = low.copy(), totals + 1
    while (open_ := low < high).any():
        middle = (low + high) // 2
        rare = betainc(np.maximum(middle, 1), totals - middle + 1, probability) <= delta
        rare &= middle > 0
        high = np.where(open_ & rare, middle, high)
        low = np.where(open_ & ~rare, middle + 1, low)
    return high
