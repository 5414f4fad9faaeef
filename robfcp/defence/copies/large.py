"""Copies among many clients in linear time: rows that agree exactly on a part of the bins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robfcp.federation import Counts

MANY = 4000  # beyond so many different reports not every pair of them is compared
BINS_A_PART = 12  # bins in use that fall into one part, on average
MOST_PARTS = 64
LEAST = 6  # bins in use on which rows must agree before it means anything
_PAIRS = 2**12  # looked at together

Indices = NDArray[np.intp]


def row_codes(table: Counts, n_bins: int) -> NDArray[np.uint64]:
    """(K,) numbers that are equal for equal rows, and for others with chance 2^-64."""
    starts, bins, values = table.entries()
    terms = _factors(n_bins)[bins] * values.astype(np.uint64)
    return np.add.reduceat(terms, starts[:-1])


def similar_rows(table: Counts, n_bins: int) -> tuple[Indices, Indices]:
    """Pairs of rows that agree on some part and have sum (sqrt a - sqrt c)^2 below 0.3 bins.

    The bins fall into parts by lot, so that copies with a few counts moved still agree on one. Of
    several rows that agree only neighbours in their order are paired: pairs stay linear in K and
    groups are joined through common members.
    """
    starts, bins, values = table.entries()
    parts = int(np.clip(len(bins) // len(starts) // BINS_A_PART, 4, MOST_PARTS))
    part = np.random.default_rng(1).permutation(n_bins) % parts
    found = []
    for number in range(parts):
        inside = (part == number)[bins]
        used = np.add.reduceat(inside, starts[:-1], dtype=np.intp)
        terms = _factors(n_bins)[bins] * values.astype(np.uint64) * inside
        codes = np.add.reduceat(terms, starts[:-1])
        rows = np.flatnonzero(used >= LEAST)
        rows = rows[np.argsort(codes[rows], kind="stable")]
        (same,) = np.nonzero(codes[rows[1:]] == codes[rows[:-1]])
        found.append(np.stack([rows[same], rows[same + 1]]))
    left, right = np.unique(np.concatenate(found, axis=1), axis=1)
    kept = np.zeros(len(left), dtype=bool)
    for start in range(0, len(left), _PAIRS):
        pairs = slice(start, start + _PAIRS)
        first, second = (table.rows(ends[pairs]).dense() for ends in (left, right))
        squared = ((np.sqrt(first) - np.sqrt(second)) ** 2).sum(axis=1)
        kept[pairs] = squared < 0.3 * ((first > 0) | (second > 0)).sum(axis=1)
    return left[kept], right[kept]


def _factors(n_bins: int) -> NDArray[np.uint64]:
    """(H,) odd 64-bit numbers, the same every time."""
    drawn = np.random.default_rng(0).integers(2**63, size=n_bins).astype(np.uint64)
    return drawn * np.uint64(2) + np.uint64(1)
