"""The clients' counts by class or group, in one table beside the pooled one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.federation.building import CountsBuilder
from robfcp.federation.counts import (
    Counts,
    DenseCounts,
    SparseCounts,
    added,
    narrowed,
    row_parts,
    table,
)
from robfcp.report import By, Names

Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]
_ENTRIES = 2**19  # moved at a time
FEW_STRATA = 32  # that many times all entries are gone through rather than sorted
DENSE_SHARE = 0.1  # of the bins in use, from which on a stratum's table is filled in


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
        row, bins, values = self._entries(number)
        lengths = np.bincount(row, minlength=len(self.rows))
        held = lengths > 0
        ends = np.concatenate([[0], np.cumsum(lengths[held])]).astype(np.int64)
        return self.rows[held], _small_table(ends, bins, values, self.n_bins)

    def _entries(self, number: int) -> tuple[Whole, NDArray[Any], NDArray[Any]]:
        """Row, bin and count of every entry of one stratum, row after row."""
        if self.n_strata <= FEW_STRATA:
            starts, cells, values = self.table.entries()
            first = number * self.n_bins
            inside = np.flatnonzero((cells >= first) & (cells < first + self.n_bins))
            row = np.searchsorted(starts, inside, side="right") - 1
            return row, cells[inside] - first, values[inside]
        row, bins, values, ends = self._sorted
        here = slice(ends[number], ends[number + 1])
        return row[here], bins[here], values[here]

    @cached_property
    def _sorted(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], Whole]:
        """Row, bin and count of all entries, stratum after stratum, and where each one begins."""
        starts, cells, values = self.table.entries()
        stratum = narrowed(cells // self.n_bins, self.n_strata)
        order = np.argsort(stratum, kind="stable")
        ends = np.concatenate([[0], np.cumsum(np.bincount(stratum, minlength=self.n_strata))])
        row = np.repeat(narrowed(np.arange(len(starts) - 1), len(starts)), np.diff(starts))
        return row[order], (cells % self.n_bins)[order], values[order], ends

    def subset(self, mask: Mask) -> Stratified:
        """Of the chosen clients, at their new places."""
        place = np.cumsum(mask) - 1
        kept = mask[self.rows]
        chosen = np.flatnonzero(kept)
        return replace(self, table=self.table.rows(chosen), rows=place[self.rows[kept]])

    def clustered(self, cluster: Sequence[int], names: Names) -> Stratified:
        """Strata merged: stratum c becomes part of cluster[c]."""
        target = np.asarray(cluster, dtype=np.int64)
        width = (int(target.max()) + 1) * self.n_bins

        def move(rows: slice, lengths: Whole, cells: Whole) -> Whole:
            old = cells // self.n_bins
            return cells + (target[old] - old) * self.n_bins

        return replace(self, names=names, table=_regrouped(self.table, move, width))


def _regrouped(counts: Counts, move: Callable[[slice, Whole, Whole], Whole], width: int) -> Counts:
    """The counts with cells moved within their rows, equal ones added up, a part at a time."""
    starts, cells, values = counts.entries()
    builder = CountsBuilder()
    for rows, here in row_parts(starts, _ENTRIES):
        lengths = np.diff(starts[rows.start : rows.stop + 1])
        owners = np.repeat(np.arange(len(lengths)), lengths)
        moved = move(rows, lengths, cells[here].astype(np.int64))
        builder.add(added(owners, moved, values[here].astype(np.int64), len(lengths)))
    return builder.build(np.arange(builder.n_rows), width)


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
    named = {kind: own for kind in odd if not isinstance(own := owns[kind], int)}
    moves = {kind: np.array([place[name] for name in own]) for kind, own in named.items()}

    def move(rows: slice, lengths: Whole, cells: Whole) -> Whole:
        kind = np.repeat(kinds[rows], lengths)  # a number alone means the common order
        for one, there in moves.items():
            here = np.flatnonzero(kind == one)
            old = cells[here] // found.n_bins
            cells[here] += (there[old] - old) * found.n_bins
        return cells

    width = found.n_strata * found.n_bins
    return replace(found, table=_regrouped(found.table, move, width))


def _small_table(starts: Whole, bins: NDArray[Any], values: NDArray[Any], n_bins: int) -> Counts:
    """A table that is made for a few questions: not worth filling in."""
    bins, values = bins.astype(np.int64), values.astype(np.int64)
    if not len(bins) or len(bins) > DENSE_SHARE * (len(starts) - 1) * n_bins:
        return table(starts, bins, values, n_bins)
    return SparseCounts(starts, narrowed(bins, n_bins), narrowed(values), n_bins)
