"""Many reports at once: their numbers in columns, checked and pooled together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robfcp.federation.marks import Header
from robfcp.reports import MAX_SAMPLES, are_clients

MOST_ENTRIES = 2**20  # of one report: sums of so many counts stay within 64 bits

Whole = NDArray[np.int64]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Ragged:
    """Cells and what is in them, of some rows of a block: `lengths` of them each, in order."""

    rows: Indices
    lengths: Whole
    cells: Whole
    values: Whole

    @property
    def owners(self) -> Indices:
        """The row of every entry."""
        return np.repeat(self.rows, self.lengths)

    def sums(self, numbers: NDArray[np.int64] | Mask) -> Whole:
        """The sum of one number an entry, row by row."""
        passed = np.zeros(len(numbers) + 1, dtype=np.int64)
        np.cumsum(numbers, out=passed[1:])
        ends = np.cumsum(self.lengths)
        return passed[ends] - passed[ends - self.lengths]

    def where(self, kept: Mask) -> Ragged:
        """The chosen entries alone."""
        return Ragged(self.rows, self.sums(kept), self.cells[kept], self.values[kept])

    def fit(self, limits: Whole, lowest: int) -> Mask:
        """Of which rows the cells rise within 0..limit - 1 and the values are counts."""
        wrong = (self.values < lowest) | (self.values > MAX_SAMPLES)
        some = self.lengths > 0
        ends = np.cumsum(self.lengths)
        firsts, lasts = (ends - self.lengths)[some], ends[some] - 1
        falls = np.zeros(len(self.cells), dtype=bool)
        np.less_equal(self.cells[1:], self.cells[:-1], out=falls[1:])
        falls[firsts] = self.cells[firsts] < 0
        falls[lasts] |= self.cells[lasts] >= limits[some]
        wrong |= falls
        fine = self.lengths <= MOST_ENTRIES
        return fine & (self.sums(wrong) == 0) if wrong.any() else fine


NOTHING = Ragged(*(np.zeros(0, dtype=np.int64) for _ in range(4)))


@dataclass(frozen=True)
class Block:
    """Reports in the order in which they came.

    Parameters
    ----------
    names
        (n,) who says to have sent them.
    sizes
        (n,) how many samples they claim.
    headers
        What reports share, each kind once.
    kinds
        (n,) which of the headers each has.
    known
        (n,) which ones were checked before: they hold noise, or came as objects.
    counts
        Counts on the grid, of all that state them.
    strata
        Counts by class or group; the counts of a row that states no others are their sums.
    told
        Scores of all labels, of those that tell sizes of sets.
    """

    names: list[str]
    sizes: Whole
    headers: list[Header]
    kinds: Indices
    known: Mask
    counts: Ragged
    strata: Ragged
    told: Ragged

    def __len__(self) -> int:
        return len(self.names)

    def fine(self) -> Mask:
        """(n,) which reports are right, by the rules of `robfcp.reports`."""
        units = np.array([1 if h.risk is None else h.risk.resolution for h in self.headers])
        cells = self._bins * np.array([h.n_strata for h in self.headers])
        totals = np.zeros(len(self), dtype=np.int64)
        fine = are_clients(self.names)
        for part, limits, lowest in ((self.strata, cells, 1), (self.counts, self._bins, 0)):
            fine[part.rows] &= part.fit(limits[self.kinds[part.rows]], lowest)
            totals[part.rows] = part.sums(part.values)
        fine &= (self.sizes >= 1) & (self.sizes <= MAX_SAMPLES)
        fine &= (totals <= MAX_SAMPLES) & (totals == self.sizes * units[self.kinds])
        told = self.told
        if len(told.rows):
            labels, samples = told.sums(told.values), np.maximum(self.sizes[told.rows], 1)
            fine[told.rows] &= told.fit(self._bins[self.kinds[told.rows]], 0)
            fine[told.rows] &= (labels <= MAX_SAMPLES) & (labels >= samples)
            fine[told.rows] &= labels % samples == 0
        return fine | self.known

    @property
    def _bins(self) -> Whole:
        return np.array([header.grid.n_bins for header in self.headers], dtype=np.int64)

    def pooled(self) -> Ragged:
        """Every row's counts on the grid, without empty bins."""
        counts = self.counts
        empty = (counts.values == 0) & ~self.known[counts.owners]  # noise can leave nothing
        if empty.any():
            counts = counts.where(~empty)
        if len(counts.rows) == len(self):
            return counts
        owners, cells, values = self.strata.owners, self.strata.cells, self.strata.values
        if len(counts.rows):
            derived = np.ones(len(self), dtype=bool)
            derived[counts.rows] = False
            inside = derived[owners]
            owners, cells, values = owners[inside], cells[inside], values[inside]
        widths = self._bins
        width = widths[0] if (widths == widths[0]).all() else widths[self.kinds[owners]]
        bins = cells - cells // width * width  # faster than % where they are all one
        return added(
            np.concatenate([counts.owners, owners]),
            np.concatenate([counts.cells, bins]),
            np.concatenate([counts.values, values]),
            len(self),
        )

    def told_in_use(self) -> Ragged:
        """Scores of all labels, without empty bins."""
        empty = self.told.values == 0
        return self.told.where(~empty) if empty.any() else self.told


def added(owners: Indices, cells: Whole, values: Whole, n_rows: int) -> Ragged:
    """Rows of entries in any order, equal cells added up."""
    bits = int(cells.max(initial=0)).bit_length()
    keys = (owners << bits) | cells
    order = np.argsort(keys, kind="stable")  # rows are runs already
    keys = keys[order]
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    sums = np.add.reduceat(values[order], firsts) if len(firsts) else values
    keys = keys[firsts]
    lengths = np.bincount(keys >> bits, minlength=n_rows)
    return Ragged(np.arange(n_rows), lengths, keys & ((1 << bits) - 1), sums)
