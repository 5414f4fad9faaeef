"""The clients' counts by class or group, in one table beside the pooled one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from robfcp.federation.counts import Counts, DenseCounts, table
from robfcp.reports import By, Names

Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Stratified:
    """(R, C H) counts of the R clients that reported by class; column c H + h is class c, bin h.

    `rows` are these clients' places in the federation, rising.
    """

    by: By
    names: Names
    table: Counts
    rows: NDArray[np.intp]
    n_bins: int

    @property
    def n_strata(self) -> int:
        """C, the number of classes or groups."""
        return self.names if isinstance(self.names, int) else len(self.names)

    @property
    def labels(self) -> tuple[str, ...]:
        """The strata's names; their numbers where they have none."""
        if isinstance(self.names, int):
            return tuple(str(c) for c in range(self.names))
        return self.names

    @property
    def sizes(self) -> Whole:
        """(R, C) samples of each client and stratum; noisy where the counts are."""
        ends = (np.arange(self.n_strata) + 1) * self.n_bins - 1
        return self.table.merged(ends)

    def stratum(self, number: int) -> tuple[NDArray[np.intp], Counts]:
        """The clients that hold one stratum and their (R', H) counts of it."""
        first = number * self.n_bins
        if isinstance(self.table, DenseCounts):
            own = self.table.array[:, first : first + self.n_bins]
            some = own.any(axis=1)
            return self.rows[some], DenseCounts(own[some])
        starts, cells, values = self.table.entries()
        inside = (cells >= first) & (cells < first + self.n_bins)
        passed = np.concatenate([[0], np.cumsum(inside)])
        lengths = np.diff(passed[starts])
        held = lengths > 0
        ends = np.concatenate([[0], np.cumsum(lengths[held])]).astype(np.int64)
        bins = cells[inside].astype(np.int64) - first
        return self.rows[held], table(ends, bins, values[inside].astype(np.int64), self.n_bins)

    def subset(self, mask: Mask) -> Stratified:
        """Of the chosen clients, at their new places."""
        place = np.cumsum(mask) - 1
        kept = mask[self.rows]
        chosen = np.flatnonzero(kept)
        return replace(self, table=self.table.rows(chosen), rows=place[self.rows[kept]])

    def clustered(self, cluster: Sequence[int], names: Names) -> Stratified:
        """Strata merged: stratum c becomes part of cluster[c]."""
        starts, cells, values = self.table.entries()
        target = np.asarray(cluster, dtype=np.int64)
        moved = target[cells // self.n_bins] * self.n_bins + cells % self.n_bins
        owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        width = (int(target.max()) + 1) * self.n_bins
        joined = _joined(owner, moved, values.astype(np.int64), len(starts) - 1, width)
        return replace(self, names=names, table=joined)


def _joined(owner: Whole, cells: Whole, values: Whole, n_rows: int, width: int) -> Counts:
    """Rows from (owner, cell, value) entries, equal cells added up."""
    keys, where = np.unique(owner * width + cells, return_inverse=True)
    sums = np.rint(np.bincount(where, weights=values, minlength=len(keys))).astype(np.int64)
    starts = np.searchsorted(keys // width, np.arange(n_rows + 1))
    return table(starts, keys % width, sums, width)


def stratified(
    counts: Counts,
    rows: NDArray[np.intp],
    by: By,
    names: Names,
    n_bins: int,
    owns: Sequence[Names],
    kinds: NDArray[np.int32],
) -> Stratified:
    """Counts by class, each row brought from its own names, owns[kinds[k]], to the common ones."""
    found = Stratified(by, names, counts, rows, n_bins)
    odd = [kind for kind in np.unique(kinds).tolist() if owns[kind] != names]
    return _renamed(found, owns, kinds, odd) if odd else found


def _renamed(
    found: Stratified, owns: Sequence[Names], kinds: NDArray[np.int32], odd: Sequence[int]
) -> Stratified:
    """The same with every row's strata at their places among the common names."""
    place = {name: c for c, name in enumerate(found.labels)}
    starts, cells, values = found.table.entries()
    moved = cells.astype(np.int64)
    kind = np.repeat(kinds, np.diff(starts))
    for one in odd:
        own = owns[one]
        if isinstance(own, int):  # a number alone means the common order
            continue
        there = np.array([place[name] for name in own])
        here = kind == one
        old = moved[here]
        moved[here] = there[old // found.n_bins] * found.n_bins + old % found.n_bins
    owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    width = found.n_strata * found.n_bins
    joined = _joined(owner, moved, values.astype(np.int64), len(starts) - 1, width)
    return replace(found, table=joined)
