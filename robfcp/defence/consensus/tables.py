"""Every site's counts by class on a few bins that the sites' own quantiles choose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.copies import Copies
from robfcp.federation import Federation

LEVELS = np.concatenate([[0.002, 0.02], np.arange(1, 10) / 10, [0.95, 0.98, 0.998]])
DRAWN = 2048  # of many sites, whose quantiles choose the bins and among whom the core is sought
_CELLS = 2**16  # of a block of sites worked on together
MOST_CELLS = 2**28  # of a table by class; beyond it classes are pooled

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Indices = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Tables:
    """(K, C, B) counts of K sites, copies merged; `owner` says which of them a client belongs to.

    `scale` brings each site to its `sizes` (K,), at most `cap` times the median; `noise` (K, B) is
    the variance of privacy noise in the bins.
    """

    counts: NDArray[np.integer]
    scale: Array
    sizes: Array
    noise: Array | None
    owner: Indices
    ends: Indices

    @property
    def shape(self) -> tuple[int, int, int]:
        """K, C, B."""
        n_sites, n_classes, n_bins = self.counts.shape
        return n_sites, n_classes, n_bins

    def rows(self, block: slice) -> Array:
        """(k, C, B) the scaled counts of a block of sites."""
        scaled: Array = self.counts[block] * self.scale[block, None, None]
        return scaled

    def blocks(self) -> Iterator[slice]:
        """Slices of sites that fit into memory together."""
        n_sites, n_classes, n_bins = self.shape
        step = max(1, _CELLS // (n_classes * n_bins))
        for start in range(0, n_sites, step):
            yield slice(start, min(start + step, n_sites))

    def total(self, mask: Mask) -> Array:
        """(C, B) the scaled counts of the chosen sites together."""
        found = np.zeros(self.shape[1:])
        for block in self.blocks():
            found += np.einsum("k,kcb->cb", self.scale[block] * mask[block], self.counts[block])
        return found

    def pooled(self) -> Tables:
        """The same without classes."""
        counts = self.counts.sum(axis=1, keepdims=True)
        return Tables(counts, self.scale, self.sizes, self.noise, self.owner, self.ends)

    def subset(self, chosen: Indices) -> Tables:
        """Of the chosen sites alone."""
        noise = None if self.noise is None else self.noise[chosen]
        counts, scale, sizes = self.counts[chosen], self.scale[chosen], self.sizes[chosen]
        return Tables(counts, scale, sizes, noise, np.arange(len(chosen)), self.ends)


def tables_of(federation: Federation, copies: Sequence[Copies], cap: float) -> Tables:
    """The tables of a round: by class where reports keep exact classes, pooled where not.

    Sites that keep their classes back while others do not are a class of their own. Copies are
    one site with their mean counts.
    """
    ends = _ends(federation)
    counts = np.maximum(_counts(federation, ends), 0)
    place = {client: k for k, client in enumerate(federation.ids)} if copies else {}
    first = np.arange(federation.n_clients)
    for group in copies:
        members = [place[client] for client in group.clients]
        first[members] = members[0]
        counts[members[0]] = np.rint(counts[members].mean(axis=0)).astype(counts.dtype)
    kept, owner = np.unique(first, return_inverse=True)
    if len(kept) < len(first):
        counts = counts[kept]
    told = np.maximum(federation.sizes[kept], 1).astype(np.float64)
    sizes = np.minimum(told, cap * np.median(told))
    noise = None
    if federation.variances.any():
        noise = federation.variances[kept, None] * np.diff(ends, prepend=-1)
    sums = np.maximum(counts.sum(axis=(1, 2), dtype=np.int64), 1)
    return Tables(counts, sizes / sums, sizes, noise, owner, ends)


def drawn(n_sites: int, table: NDArray[np.integer]) -> Indices:
    """All sites, or the rising places of a few, by lot: what is drawn follows from the counts."""
    if n_sites <= DRAWN:
        return np.arange(n_sites)
    seed = [n_sites, *table.sum(axis=tuple(range(table.ndim - 1)), dtype=np.int64).tolist()]
    lot = np.random.default_rng([abs(number) for number in seed])
    return np.sort(lot.choice(n_sites, DRAWN, replace=False))


def _ends(federation: Federation) -> Indices:
    """The last bins of merged bins: at the medians of the sites' own quantiles."""
    few = drawn(federation.n_clients, federation.pooled())
    some = federation.table if len(few) == federation.n_clients else federation.table.rows(few)
    counts = some.dense()
    below = np.cumsum(np.maximum(counts, 0) if counts.min() < 0 else counts, axis=1)
    last = federation.grid.n_bins - 1
    reached = np.median(_first_reaching(below, LEVELS - 1e-12), axis=0)
    return np.unique(np.append(np.minimum(reached.astype(np.intp), last), last))


def _first_reaching(below: NDArray[np.integer], levels: NDArray[np.float64]) -> Indices:
    """(K, L) the number of edges at which each site's share is less than each level.

    By bisection, since shares rise from edge to edge.
    """
    n_sites, n_bins = below.shape
    row, total = np.arange(n_sites)[:, None], np.maximum(below[:, -1:], 1)
    low = np.zeros((n_sites, len(levels)), dtype=np.intp)
    high = np.full(low.shape, n_bins)
    for _ in range(n_bins.bit_length()):
        middle = (low + high) // 2
        less = below[row, np.minimum(middle, n_bins - 1)] / total < levels
        less &= middle < high
        low, high = np.where(less, middle + 1, low), np.where(less, high, middle)
    return low


def _counts(federation: Federation, ends: Indices) -> NDArray[np.integer]:
    """(K, C, B) merged counts in the smallest whole numbers that hold them."""
    strata = federation.exact_strata
    n_clients, n_bins = federation.n_clients, len(ends)
    if strata is None or n_clients * (strata.n_strata + 1) * n_bins > MOST_CELLS:
        merged = federation.merged(ends)
        return merged.astype(_kind(merged))[:, None, :]
    n_classes, keeps = strata.n_strata, np.zeros(n_clients, dtype=bool)
    keeps[strata.rows] = True
    every = (np.arange(n_classes)[:, None] * strata.n_bins + ends).ravel()
    kind = _kind(federation.sizes)
    merged = strata.table.merged(every, kind).reshape(-1, n_classes, n_bins)
    if keeps.all():
        return merged
    found = np.zeros((n_clients, n_classes + 1, n_bins), kind)
    found[strata.rows, :n_classes] = merged
    found[~keeps, n_classes] = federation.merged(ends)[~keeps]
    return found


def _kind(values: NDArray[np.integer]) -> np.dtype[np.integer]:
    """The smallest signed whole numbers that hold the values."""
    most = int(np.abs(values).max(initial=0))
    return np.dtype(np.int16 if most < 2**15 else np.int32 if most < 2**31 else np.int64)
