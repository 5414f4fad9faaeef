"""Copies among many clients in linear time: rows that agree exactly on a part of the bins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robfcp.federation import Counts

MANY = 4000  # beyond so many different reports not every pair of them is compared
BINS_A_PART = 12  # bins in use that fall into one part, on average
MOST_PARTS = 64
LEAST = 6  # bins in use on which rows must agree before it means anything
_PAIRS = 2**12  # looked at together

Indices = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Codes:
    """Numbers that are equal for rows that are equal on a part of the bins.

    For others with chance 2^-64. The bins fall into parts by lot.
    """

    parts: NDArray[np.uint64]  # (P, K)
    used: Indices  # (P, K) bins in use

    @property
    def rows(self) -> NDArray[np.uint64]:
        """(K,) numbers that are equal for equal rows."""
        return self.parts.sum(axis=0, dtype=np.uint64)


def codes_of(table: Counts, n_bins: int) -> Codes:
    """Of all rows, one pass over the counts for each part."""
    starts, bins, values = table.entries()
    parts = int(np.clip(len(bins) // len(starts) // BINS_A_PART, 4, MOST_PARTS))
    part = np.random.default_rng(1).permutation(n_bins) % parts
    whole, factors = values.astype(np.uint64), _factors(n_bins)
    codes = np.empty((parts, len(starts) - 1), dtype=np.uint64)
    used = np.empty(codes.shape, dtype=np.intp)
    for number in range(parts):
        inside = part == number
        codes[number] = np.add.reduceat((factors * inside)[bins] * whole, starts[:-1])
        used[number] = np.add.reduceat(inside[bins], starts[:-1], dtype=np.intp)
    return Codes(codes, used)


def similar_rows(table: Counts, codes: Codes, distinct: Indices) -> tuple[Indices, Indices]:
    """Pairs of distinct rows that agree on a part and have sum (sqrt a - sqrt c)^2 below 0.3 bins.

    Copies with a few counts moved still agree on some part. Of several rows that agree only
    neighbours in their order are paired: pairs stay linear in K and groups are joined through
    common members. Rows are given by their places among the distinct.
    """
    found = []
    for own, used in zip(codes.parts[:, distinct], codes.used[:, distinct], strict=True):
        rows = np.flatnonzero(used >= LEAST)
        rows = rows[np.argsort(own[rows], kind="stable")]
        (same,) = np.nonzero(own[rows[1:]] == own[rows[:-1]])
        found.append(np.stack([rows[same], rows[same + 1]]))
    left, right = np.unique(np.concatenate(found, axis=1), axis=1)
    kept = np.zeros(len(left), dtype=bool)
    for start in range(0, len(left), _PAIRS):
        pairs = slice(start, start + _PAIRS)
        first, second = (table.rows(distinct[ends[pairs]]).dense() for ends in (left, right))
        squared = ((np.sqrt(first) - np.sqrt(second)) ** 2).sum(axis=1)
        kept[pairs] = squared < 0.3 * ((first > 0) | (second > 0)).sum(axis=1)
    return left[kept], right[kept]


def _factors(n_bins: int) -> NDArray[np.uint64]:
    """(H,) odd 64-bit numbers, the same every time."""
    drawn = np.random.default_rng(0).integers(2**63, size=n_bins).astype(np.uint64)
    return drawn * np.uint64(2) + np.uint64(1)
