"""The clients' counts as one table: dense, or only the bins in use where that is smaller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import MAX_SAMPLES, are_clients
from robfcp.errors import RobfcpError
from robfcp.federation.majority import Header

DENSE_BYTES = 2**26  # tables up to this size are kept dense: they are handled faster
FINE_BINS = 5_000
MAX_FINE_CELLS = 2**24
_ENTRIES = 2**22  # entries handled at a time
_FEWER = 2**18  # likewise, where many arrays of them are needed and sums are whole numbers

Whole = NDArray[np.int64]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]
Kind = type[np.int64] | np.dtype[np.integer[Any]]


# starts, bins, values: row k holds values[starts[k]:starts[k + 1]] in those bins
Entries = tuple[Whole, NDArray[Any], NDArray[Any]]


class Counts(Protocol):
    """A (K, H) table of counts."""

    def dense(self) -> Whole: ...
    def entries(self) -> Entries: ...
    def row(self, k: int) -> Whole: ...
    def rows(self, chosen: Indices) -> Counts: ...
    def below(self, index: int) -> Whole: ...
    def merged(self, ends: Indices, kind: Kind = np.int64) -> NDArray[Any]: ...
    def pooled(self, mask: Mask | None) -> Whole: ...
    def weighted(self, weights: NDArray[np.float64]) -> NDArray[np.float64]: ...


@dataclass(frozen=True, eq=False)
class DenseCounts:
    """All (K, H) counts."""

    array: NDArray[Any]

    def dense(self) -> Whole:
        """The table itself."""
        return self.array

    def entries(self) -> Entries:
        """The counts above 0, row by row."""
        rows, bins = np.nonzero(self.array)
        starts = np.searchsorted(rows, np.arange(len(self.array) + 1))
        return starts, bins, self.array[rows, bins]

    def row(self, k: int) -> Whole:
        """(H,) counts of one client."""
        return self.array[k]

    def rows(self, chosen: Indices) -> DenseCounts:
        """The chosen clients in the given order."""
        return DenseCounts(self.array[chosen])

    def below(self, index: int) -> Whole:
        """(K,) counts up to and with bin `index`."""
        return self.array[:, : index + 1].sum(axis=1)

    def merged(self, ends: Indices, kind: Kind = np.int64) -> NDArray[Any]:
        """(K, B) counts of merged bins that end with the given ones, in numbers that hold them."""
        starts = np.concatenate([[0], ends[:-1] + 1])
        found = np.add.reduceat(self.array, starts, axis=1)
        return found if kind is np.int64 else found.astype(kind)

    def pooled(self, mask: Mask | None) -> Whole:
        """(H,) counts of the chosen clients together."""
        return (self.array if mask is None else self.array[mask]).sum(axis=0)

    def weighted(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """(H,) sums of the counts times the clients' weights."""
        used = np.flatnonzero(weights)
        return np.asarray(weights[used] @ self.array[used])


@dataclass(frozen=True, eq=False)
class SparseCounts:
    """The counts other than 0 alone, in the smallest whole numbers; each row has an entry."""

    starts: Whole
    bins: NDArray[Any]
    values: NDArray[Any]
    n_bins: int

    @property
    def n_rows(self) -> int:
        """K."""
        return len(self.starts) - 1

    def dense(self) -> Whole:
        """(K, H) counts; large."""
        table = np.zeros((self.n_rows, self.n_bins), dtype=np.int64)
        table[np.repeat(np.arange(self.n_rows), np.diff(self.starts)), self.bins] = self.values
        return table

    def entries(self) -> Entries:
        """The counts above 0, row by row."""
        return self.starts, self.bins, self.values

    def row(self, k: int) -> Whole:
        """(H,) counts of one client."""
        counts = np.zeros(self.n_bins, dtype=np.int64)
        here = slice(self.starts[k], self.starts[k + 1])
        counts[self.bins[here]] = self.values[here]
        return counts

    def rows(self, chosen: Indices) -> SparseCounts:
        """The chosen clients in the given order."""
        lengths = np.diff(self.starts)[chosen]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        bins = np.empty(starts[-1], dtype=self.bins.dtype)
        values = np.empty(starts[-1], dtype=self.values.dtype)
        for rows, here in row_parts(starts, _FEWER):
            shift = self.starts[chosen[rows]] - starts[rows]
            source = np.repeat(shift, lengths[rows]) + np.arange(here.start, here.stop)
            bins[here], values[here] = self.bins[source], self.values[source]
        return SparseCounts(starts, bins, values, self.n_bins)

    def below(self, index: int) -> Whole:
        """(K,) counts up to and with bin `index`."""
        result = np.empty(self.n_rows, dtype=np.int64)
        for rows, here in row_parts(self.starts, _FEWER):
            kept = (self.bins[here] <= index).view(np.uint8) * self.values[here]
            offsets = self.starts[rows] - here.start
            result[rows] = np.add.reduceat(kept, offsets, dtype=self._sums)
        return result

    @cached_property
    def _sums(self) -> np.dtype[Any]:
        """The smallest whole numbers that hold every row's sum: adding these up is faster."""
        if self.values.dtype.kind != "u":
            return np.dtype(np.int64)
        longest = int(np.diff(self.starts).max(initial=0))
        return np.min_scalar_type(longest * int(self.values.max(initial=0)))

    def merged(self, ends: Indices, kind: Kind = np.int64) -> NDArray[Any]:
        """(K, B) counts of merged bins that end with the given ones, in numbers that hold them."""
        place = np.searchsorted(ends, np.arange(self.n_bins))
        result = np.empty((self.n_rows, len(ends)), dtype=kind)
        for rows, here in row_parts(self.starts, _FEWER):
            cells = np.repeat(
                np.arange(rows.stop - rows.start) * len(ends), np.diff(self.starts)[rows]
            )
            cells += place[self.bins[here]]
            size = (rows.stop - rows.start) * len(ends)
            counts = np.bincount(cells, weights=self.values[here], minlength=size)
            result[rows] = counts.reshape(-1, len(ends))
        return result

    def pooled(self, mask: Mask | None) -> Whole:
        """(H,) counts of the chosen clients together."""
        result, lengths = np.zeros(self.n_bins), np.diff(self.starts)
        for rows, here in row_parts(self.starts, _FEWER):
            values = self.values[here]
            if mask is not None:
                chosen = np.asarray(mask[rows], dtype=bool).view(np.uint8)
                values = values * np.repeat(chosen, lengths[rows])
            result += np.bincount(self.bins[here], weights=values, minlength=self.n_bins)
        return result.astype(np.int64)

    def weighted(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """(H,) sums of the counts times the clients' weights."""
        result = np.zeros(self.n_bins)
        for rows, here in row_parts(self.starts):
            each = np.repeat(weights[rows], np.diff(self.starts)[rows]) * self.values[here]
            result += np.bincount(self.bins[here], weights=each, minlength=self.n_bins)
        return result


def row_parts(starts: Whole, most: int | None = None) -> Iterator[tuple[slice, slice]]:
    """Slices of rows with the slices of their entries, a bounded number at a time."""
    first, number = 0, min(_ENTRIES, most or _ENTRIES)
    while first < len(starts) - 1:
        last = int(np.searchsorted(starts, starts[first] + number, side="right")) - 1
        last = max(last, first + 1)
        yield slice(first, last), slice(int(starts[first]), int(starts[last]))
        first = last


def table(starts: Whole, bins: NDArray[Any], values: NDArray[Any], n_bins: int) -> Counts:
    """The entries as a table, dense unless that is large and sparse is smaller."""
    sparse = SparseCounts(starts, narrowed(bins, n_bins), narrowed(values), n_bins)
    dense_bytes = 8 * sparse.n_rows * n_bins
    sparse_bytes = sparse.starts.nbytes + sparse.bins.nbytes + sparse.values.nbytes
    if dense_bytes > DENSE_BYTES and sparse_bytes < dense_bytes:
        return sparse
    return DenseCounts(sparse.dense())


def narrowed(numbers: NDArray[Any], largest: int | None = None) -> NDArray[Any]:
    """The numbers in the smallest unsigned type, negative ones (of private reports) as they are."""
    if largest is None and numbers.min(initial=0) < 0:
        return numbers
    top = int(numbers.max(initial=0)) if largest is None else largest
    return numbers.astype(np.min_scalar_type(top), copy=False)


def check_extent(n_clients: int, n_bins: int) -> None:
    """Refuse more cells than a file of its size should cost; usual grids are for any number."""
    if n_bins > FINE_BINS and n_clients * n_bins > MAX_FINE_CELLS:
        raise RobfcpError(
            f"grid: {n_bins} bins are too many for {n_clients} sites; use one of at most "
            f"{FINE_BINS} bins"
        )


MOST_ENTRIES = 2**20  # of one report: sums of so many counts stay within 64 bits


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
        """(n,) which reports are right, by the rules of `robfcp.report`."""
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
