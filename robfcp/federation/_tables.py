"""The clients' counts as one table, dense or only the bins in use, and the same by class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.reports import StratifiedCounts, StratumKind, StratumNames, n_strata, stratum_labels

_MANY_BINS = 5_000
_MAX_CELLS = 2**24
_SORT_ABOVE_STRATA = 32  # that many times all entries are gone through rather than sorted
_ENTRIES = 2**18  # handled at a time: several arrays of them are needed

T = TypeVar("T")
IntArray = NDArray[np.int64]
IndexArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]

# starts, bins, values: row k holds values[starts[k]:starts[k + 1]] in those bins
Entries = tuple[IntArray, NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class DenseCounts:
    """All (K, H) counts."""

    array: NDArray[Any]

    def dense(self) -> IntArray:
        """The table itself."""
        return self.array

    def entries(self) -> Entries:
        """The counts other than 0, row by row."""
        rows, bins = np.nonzero(self.array)
        starts = np.searchsorted(rows, np.arange(len(self.array) + 1))
        return starts, bins, self.array[rows, bins]

    def row(self, k: int) -> IntArray:
        """(H,) counts of one client."""
        return self.array[k]

    def select(self, chosen: IndexArray | slice) -> DenseCounts:
        """The chosen clients in the given order."""
        return DenseCounts(self.array[chosen])

    def parts(self, most: int) -> Iterator[slice]:
        """Rows with at most so many entries together, one after another: all of them."""
        yield slice(0, len(self.array))

    def cumulative_count(self, index: int) -> IntArray:
        """(K,) counts up to and with bin `index`."""
        return self.array[:, : index + 1].sum(axis=1)

    def merge_bins(self, ends: IndexArray) -> IntArray:
        """(K, B) counts of merged bins that end with the given ones."""
        starts = np.concatenate([[0], ends[:-1] + 1])
        return np.add.reduceat(self.array, starts, axis=1)

    @property
    def is_nonempty(self) -> BoolArray:
        """(K,) whose counts are not all 0."""
        return np.asarray(self.array.any(axis=1))

    def bin_slice(self, first: int, n_bins: int) -> DenseCounts:
        """The bins from `first` on as a table of their own."""
        return DenseCounts(self.array[:, first : first + n_bins])

    def pooled_counts(self, mask: BoolArray | None) -> IntArray:
        """(H,) counts of the chosen clients together."""
        return (self.array if mask is None else self.array[mask]).sum(axis=0)


@dataclass(frozen=True, eq=False)
class SparseCounts:
    """The counts other than 0 alone, in the smallest whole numbers."""

    starts: IntArray
    bins: NDArray[Any]
    values: NDArray[Any]
    n_bins: int

    @property
    def n_rows(self) -> int:
        """K."""
        return len(self.starts) - 1

    @property
    def lengths(self) -> IntArray:
        """(K,) how many entries each row has."""
        return np.diff(self.starts)

    @property
    def is_nonempty(self) -> BoolArray:
        """(K,) whose counts are not all 0."""
        return self.lengths > 0

    @property
    def owners(self) -> IndexArray:
        """The row of every entry."""
        return np.repeat(np.arange(self.n_rows), self.lengths)

    def dense(self) -> IntArray:
        """(K, H) counts; large."""
        table = np.zeros((self.n_rows, self.n_bins), dtype=np.int64)
        table[self.owners, self.bins] = self.values
        return table

    def entries(self) -> Entries:
        """The counts other than 0, row by row."""
        return self.starts, self.bins, self.values

    def row(self, k: int) -> IntArray:
        """(H,) counts of one client."""
        return self.select(slice(k, k + 1)).dense()[0]

    def select(self, chosen: IndexArray | slice) -> SparseCounts:
        """The chosen clients in the given order; a slice of them is a view."""
        if isinstance(chosen, slice):
            starts = self.starts[chosen.start : chosen.stop + 1]
            here = slice(starts[0], starts[-1])
            return SparseCounts(starts - starts[0], self.bins[here], self.values[here], self.n_bins)
        starts = np.concatenate([[0], np.cumsum(self.lengths[chosen])])
        found = SparseCounts(
            starts,
            np.empty(starts[-1], dtype=self.bins.dtype),
            np.empty(starts[-1], dtype=self.values.dtype),
            self.n_bins,
        )
        for rows in found.parts():
            here = slice(starts[rows.start], starts[rows.stop])
            shift = self.starts[chosen[rows]] - starts[rows]
            source = np.repeat(shift, found.lengths[rows]) + np.arange(here.start, here.stop)
            found.bins[here], found.values[here] = self.bins[source], self.values[source]
        return found

    def chosen(self, rows: IndexArray, n_bins: int) -> Loaded:
        """The chosen rows, all on grids of `n_bins`, as a table."""
        everybody = np.array_equal(rows, np.arange(self.n_rows))
        return table(*(self if everybody else self.select(rows)).entries(), n_bins)

    def parts(self, most: int | None = None) -> Iterator[slice]:
        """Rows with at most so many entries together, one after another; one row at least."""
        first, number = 0, most or _ENTRIES
        while first < self.n_rows:
            last = int(np.searchsorted(self.starts, self.starts[first] + number, side="right")) - 1
            last = min(last, first + number // 16)  # rows of one entry are many
            yield slice(first, last := max(last, first + 1))
            first = last

    def sums(self, numbers: NDArray[Any]) -> IntArray:
        """(K,) sums of one number an entry."""
        passed = np.zeros(len(numbers) + 1, dtype=np.int64)
        np.cumsum(numbers, out=passed[1:])
        return np.diff(passed[self.starts])

    def cumulative_count(self, index: int) -> IntArray:
        """(K,) counts up to and with bin `index`."""
        result = np.empty(self.n_rows, dtype=np.int64)
        for rows in self.parts():
            part = self.select(rows)
            result[rows] = part.sums((part.bins <= index) * part.values)
        return result

    def merge_bins(self, ends: IndexArray) -> IntArray:
        """(K, B) counts of merged bins that end with the given ones."""
        place = np.searchsorted(ends, np.arange(self.n_bins))
        result = np.empty((self.n_rows, len(ends)), dtype=np.int64)
        for rows in self.parts():
            part = self.select(rows)
            cells = part.owners * len(ends) + place[part.bins]
            counts = np.bincount(cells, part.values, minlength=part.n_rows * len(ends))
            result[rows] = counts.reshape(-1, len(ends))
        return result

    def pooled_counts(self, mask: BoolArray | None) -> IntArray:
        """(H,) counts of the chosen clients together."""
        chosen = np.ones(self.n_rows, dtype=bool) if mask is None else np.asarray(mask)
        result = np.zeros(self.n_bins)
        for rows in self.parts():
            part = self.select(rows)
            each = np.repeat(chosen[rows], part.lengths) * part.values
            result += np.bincount(part.bins, weights=each, minlength=self.n_bins)
        return result.astype(np.int64)

    def bin_slice(self, first: int, n_bins: int) -> SparseCounts:
        """The bins from `first` on as a table of their own."""
        inside = np.flatnonzero((self.bins >= first) & (self.bins < first + n_bins))
        starts = np.searchsorted(inside, self.starts)
        return SparseCounts(starts, self.bins[inside] - first, self.values[inside], n_bins)


Loaded = DenseCounts | SparseCounts


class CountBlock(NamedTuple):
    """Some sites' counts in memory; `places` are the rising places of these sites among all."""

    positions: IndexArray
    counts: Loaded
    strata: StratifiedTable | None
    all_label_counts: StratifiedTable | None


def pooled_view(block: CountBlock) -> tuple[IndexArray, Loaded]:
    """All rows and their counts."""
    return np.arange(len(block.positions)), block.counts


def stratified_view(name: str, block: CountBlock) -> tuple[IndexArray, Loaded]:
    """The rows that have counts by class, or of all labels, and these."""
    found = getattr(block, name)
    if found is None:
        return np.zeros(0, dtype=np.intp), join_rows([])
    return found.rows, found.table


View = Callable[[CountBlock], tuple[IndexArray, Loaded]]


@dataclass(frozen=True, eq=False)
class StoredCountTable:
    """Counts that stay where they are: a question about them is a pass over blocks.

    `view` finds a block's rows and their counts; of these only those at the places `at` belong to
    the table, all of them if None.
    """

    source: Any  # its `each(work)` gives what work makes of every portion, wherever it runs
    view: View
    n_rows: int
    n_bins: int
    rows: IndexArray | None = None

    def select_block_rows(self, block: CountBlock) -> tuple[IndexArray, IndexArray, Loaded]:
        """What a block holds of the table: places in the table, rows of the block, counts."""
        rows, counts = self.view(block)
        places = block.positions[rows]
        if self.rows is None:
            return places, rows, counts
        own = np.searchsorted(self.rows, places)
        mine = np.flatnonzero(own < len(self.rows))
        mine = mine[self.rows[own[mine]] == places[mine]]
        return own[mine], rows[mine], counts.select(mine)

    def iter_blocks(
        self, work: Callable[..., T], *columns: NDArray[Any]
    ) -> Iterator[tuple[IndexArray, T]]:
        """What `work` makes of every block's counts and columns, with the places of its rows."""

        def here(block: CountBlock) -> tuple[IndexArray, T]:
            places, _, counts = self.select_block_rows(block)
            return places, work(counts, *(column[places] for column in columns))

        return self.source.iter_blocks(here)

    def map_blocks(self, work: Callable[..., NDArray[Any]], *columns: NDArray[Any]) -> NDArray[Any]:
        """(K, ...) a few numbers a row."""
        return scatter(self.iter_blocks(work, *columns), self.n_rows)

    def dense(self) -> IntArray:
        """(K, H) counts; large."""
        return self.load().dense()

    def entries(self) -> Entries:
        """The counts other than 0, row by row; large."""
        return self.load().entries()

    def row(self, k: int) -> IntArray:
        """(H,) counts of one client."""
        return self.select(slice(k, k + 1)).dense()[0]

    def select(self, chosen: IndexArray | slice) -> StoredCountTable | SparseCounts:
        """The chosen clients; they stay where they are as long as their places rise."""
        if isinstance(chosen, slice):
            chosen = np.arange(chosen.start, min(chosen.stop, self.n_rows))
        if (chosen[1:] <= chosen[:-1]).any():
            rising, where = np.unique(chosen, return_inverse=True)
            return replace(self, rows=self._at(rising), n_rows=len(rising)).load().select(where)
        return replace(self, rows=self._at(chosen), n_rows=len(chosen))

    def _at(self, rows: IndexArray) -> IndexArray:
        return rows if self.rows is None else self.rows[rows]

    def load(self) -> SparseCounts:
        """All of them, in memory."""
        columns = Columns(4)
        for places, (starts, bins, values) in self.iter_blocks(lambda counts: counts.entries()):
            columns.extend(places, np.diff(starts), bins, values)
        order, *found = columns.whole()
        return replace(rows_of(*found).select(np.argsort(order)), n_bins=self.n_bins)

    @property
    def is_nonempty(self) -> BoolArray:
        """(K,) whose counts are not all 0."""
        return self.map_blocks(lambda counts: counts.is_nonempty)

    def bin_slice(self, first: int, n_bins: int) -> StoredCountTable:
        """The bins from `first` on as a table of their own."""
        view = self.view

        def inside(block: CountBlock) -> tuple[IndexArray, Loaded]:
            rows, counts = view(block)
            return rows, counts.bin_slice(first, n_bins)

        return replace(self, view=inside, n_bins=n_bins)

    def cumulative_count(self, index: int) -> IntArray:
        """(K,) counts up to and with bin `index`."""
        return self.map_blocks(lambda counts: counts.cumulative_count(index))

    def merge_bins(self, ends: IndexArray) -> IntArray:
        """(K, B) counts of merged bins that end with the given ones."""
        return self.map_blocks(lambda counts: counts.merge_bins(ends))

    def pooled_counts(self, mask: BoolArray | None) -> IntArray:
        """(H,) counts of the chosen clients together."""
        chosen = np.ones(self.n_rows, dtype=bool) if mask is None else np.asarray(mask)
        parts = self.iter_blocks(lambda counts, kept: counts.pooled_counts(kept), chosen)
        return sum((found for _, found in parts), np.zeros(self.n_bins, dtype=np.int64))


CountTable = Loaded | StoredCountTable


def scatter(parts: Iterable[tuple[IndexArray | slice, NDArray[Any]]], n_rows: int) -> NDArray[Any]:
    """(n_rows, ...) the parts, each at its places."""
    result = None
    for places, found in parts:
        if len(found) == n_rows and isinstance(places, slice):
            return found
        if result is None:
            result = np.zeros((n_rows, *found.shape[1:]), found.dtype)
        result[places] = found
    return np.zeros(0, dtype=np.int64) if result is None else result


def table(starts: IntArray, bins: NDArray[Any], values: NDArray[Any], n_bins: int) -> Loaded:
    """The entries as a table, dense where that is smaller."""
    sparse = SparseCounts(starts, narrowed(bins, n_bins), narrowed(values), n_bins)
    held = sparse.starts.nbytes + sparse.bins.nbytes + sparse.values.nbytes
    return sparse if held < 8 * sparse.n_rows * n_bins else DenseCounts(sparse.dense())


def narrowed(numbers: NDArray[Any], largest: int | None = None) -> NDArray[Any]:
    """The numbers in the smallest unsigned type, negative ones (of private reports) as they are."""
    if largest is None and numbers.min(initial=0) < 0:
        return numbers
    top = int(numbers.max(initial=0)) if largest is None else largest
    return numbers.astype(np.min_scalar_type(top) if top < 2**32 else np.int64, copy=False)


def select_values(values: tuple[T, ...], rows: NDArray[np.intp] | slice) -> tuple[T, ...]:
    """The values at these places; none where there are none at all."""
    if isinstance(rows, slice):
        return values[rows]
    if hasattr(values, "take"):
        return cast("tuple[T, ...]", values.take(rows))
    return tuple(map(values.__getitem__, rows.tolist())) if values else ()


class Columns:
    """Numbers that come some at a time, in arrays of the smallest type that holds them.

    These grow in place: lists of parts and what joins them would be twice as much.
    """

    def __init__(self, number: int) -> None:
        self._arrays: list[NDArray[Any]] = [np.zeros(0, np.uint8) for _ in range(number)]
        self._ends = [0] * number

    def extend(self, *parts: NDArray[Any]) -> None:
        """These come after the others."""
        for k, (numbers, first) in enumerate(zip(map(narrowed, parts), self._ends, strict=True)):
            kind = np.promote_types(self._arrays[k].dtype, numbers.dtype)
            array, end = self._arrays[k].astype(kind, copy=False), first + len(numbers)
            if end > len(array):
                array.resize(end + end // 8, refcheck=False)
            array[first:end] = numbers
            self._arrays[k], self._ends[k] = array, end

    def whole(self) -> list[NDArray[Any]]:
        """All of them; nothing may come any more."""
        for array, end in zip(self._arrays, self._ends, strict=True):
            array.resize(end, refcheck=False)
        return self._arrays


def join_rows(parts: Iterable[Entries]) -> SparseCounts:
    """Rows that come block by block, each with its lengths, in one piece on a grid to be told."""
    columns = Columns(3)
    for part in parts:
        columns.extend(*part)
    return rows_of(*columns.whole())


def rows_of(lengths: NDArray[Any], bins: NDArray[Any], values: NDArray[Any]) -> SparseCounts:
    """Rows of so many entries each, on a grid to be told."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, dtype=np.int64, out=starts[1:])
    return SparseCounts(starts, bins, values, 0)


def added(owners: IndexArray, cells: IntArray, values: IntArray, n_rows: int) -> Entries:
    """Lengths, cells and values of rows whose entries came in any order, equal cells added up."""
    bits = int(cells.max(initial=0)).bit_length()
    keys = (owners << bits) | cells
    order = np.argsort(keys, kind="stable")  # rows are runs already
    keys = keys[order]
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    sums = np.add.reduceat(values[order], firsts) if len(firsts) else values
    keys = keys[firsts]
    return np.bincount(keys >> bits, minlength=n_rows), keys & ((1 << bits) - 1), sums


class CountSpans(NamedTuple):
    """Row and stratum of entries, the lowest and highest bin they may lie in, their values."""

    row: IndexArray
    stratum: IntArray
    low: IntArray
    high: IntArray
    counts: IntArray


def count_spans(
    table: CountTable, n_bins: int, unit: int, exact: BoolArray | None = None
) -> tuple[CountSpans, BoolArray]:
    """Where all entries may lie, and (K,) which rows are in fives: `StratifiedCounts.coarsened`.

    A sample of such a row is not below the cell before its own, and of many only five may be below
    it. They are known by it: in every stratum all cells but the first hold a multiple of five
    samples, that one five or more, or it is the last bin. Others may look so by chance: their
    bounds are wider; those that are not `exact` are none.
    """
    starts, cells, values = table.entries()
    rows, least = (
        np.repeat(np.arange(len(starts) - 1), np.diff(starts)),
        unit * StratifiedCounts.MIN_CELL_COUNT,
    )
    strata, high = np.divmod(cells.astype(np.int64), n_bins)
    first = (np.diff(rows, prepend=-1) != 0) | (np.diff(strata, prepend=-1) != 0)
    fits = np.where(first, (values >= least) | (high == n_bins - 1), values % least == 0)
    known = (np.bincount(rows, ~fits, minlength=len(starts) - 1) == 0) & (np.diff(starts) > 0)
    known = known if exact is None else known & exact
    low = np.where(first, 0, np.roll(high, 1))
    loose = np.where(values < 2 * least, values, least + values % least) * known[rows]
    found = CountSpans(
        row=np.tile(rows, 2),
        stratum=np.tile(strata, 2),
        low=np.concatenate([high, low]),
        high=np.tile(high, 2),
        counts=np.concatenate([values - loose, loose]).astype(np.int64),
    )
    return CountSpans(*(one[found.counts != 0] for one in found)), known


def detect_coarsened(table: CountTable, n_strata: int, n_bins: int, unit: int) -> BoolArray:
    """(K,) which rows are in fives; a few cells tell of most that they are not."""
    least, width = unit * StratifiedCounts.MIN_CELL_COUNT, 1 + 2 * n_strata
    if isinstance(table, DenseCounts):
        some = table.array[:, :: max(1, table.array.shape[1] // (32 * width))]
    else:
        starts, _, values = table.entries()
        at = starts[:-1, None] + np.arange(width)
        some = (
            np.where(at < starts[1:, None], values.take(at, mode="clip"), 0) if len(values) else at
        )
    found = np.count_nonzero(some % least, axis=1) <= n_strata
    if found.any():
        found[found] = count_spans(table.select(np.flatnonzero(found)), n_bins, unit)[1]
    return found


def sum_duplicate_cells(
    rows: IndexArray, cells: IntArray, values: IntArray, n_rows: int, n_bins: int
) -> CountTable:
    """The table of entries in any order, equal cells of a row added up."""
    found = join_rows([added(rows, cells, values, n_rows)])
    return table(found.starts, found.bins, found.values, n_bins)


def default_client_names(n_clients: int, width: int) -> tuple[str, ...]:
    """client-00, client-01, ... padded so that names sort as numbers."""
    return tuple(f"client-{k:0{width}d}" for k in range(n_clients))


def project_to_simplex(
    values: NDArray[np.float64], totals: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(K, H) the closest non-negative rows with the given totals: max(v - tau, 0)."""
    falling = -np.sort(-values, axis=1)
    excess = np.cumsum(falling, axis=1) - totals[:, None]
    ranks = np.arange(1, values.shape[1] + 1)
    kept = (falling * ranks > excess).sum(axis=1)
    tau = np.take_along_axis(excess, kept[:, None] - 1, axis=1) / kept[:, None]
    result: NDArray[np.float64] = np.maximum(values - tau, 0)
    return result


def check_table_size(n_clients: int, n_bins: int) -> None:
    """Refuse more cells than a file of its size should cost; usual grids are for any number."""
    if n_bins > _MANY_BINS and n_clients * n_bins > _MAX_CELLS:
        raise RobfcpError(
            f"grid: {n_bins} bins are too many for {n_clients} sites; use one of at most "
            f"{_MANY_BINS} bins"
        )


@dataclass(frozen=True, eq=False)
class StratifiedTable:
    """(R, C H) counts of the R clients that reported by class; column c H + h is class c, bin h.

    `rows` are these clients' places in the federation, rising.
    """

    by: StratumKind
    names: StratumNames
    table: CountTable
    rows: NDArray[np.intp]
    n_bins: int

    @cached_property
    def n_strata(self) -> int:
        """C, the number of classes or groups."""
        return n_strata(self.names)

    @property
    def labels(self) -> tuple[str, ...]:
        """The strata's names; their numbers where they have none."""
        return stratum_labels(self.names)

    @property
    def stratum_sizes(self) -> IntArray:
        """(R, C) samples of each client and stratum; noisy where the counts are."""
        ends = (np.arange(self.n_strata) + 1) * self.n_bins - 1
        return self.table.merge_bins(ends)

    def row(self, client: int) -> IntArray | None:
        """(C H,) counts of the client at this place of the federation; None without any."""
        place = int(np.searchsorted(self.rows, client))
        held = place < len(self.rows) and self.rows[place] == client
        return self.table.row(place) if held else None

    def select_stratum(
        self, number: int, noisy: BoolArray | None = None
    ) -> tuple[NDArray[np.intp], CountTable]:
        """The clients that hold one stratum and their (R', H) counts of it.

        `noisy` (R,) are those whose counts hold noise: they all hold it, also with counts of 0, or
        who is left would tell of the noise.
        """
        first = number * self.n_bins
        also = np.zeros(len(self.rows), dtype=bool) if noisy is None else noisy
        if isinstance(self.table, SparseCounts) and self.n_strata > _SORT_ABOVE_STRATA:
            row, bins, values, ends = self._sorted
            here = slice(ends[number], ends[number + 1])
            lengths = np.bincount(row[here], minlength=len(self.rows))
            part: CountTable = replace(
                rows_of(lengths, bins[here], values[here]), n_bins=self.n_bins
            )
        else:
            part = self.table.bin_slice(first, self.n_bins)
        held = np.flatnonzero(part.is_nonempty | also)
        chosen = part.select(held)
        if isinstance(chosen, SparseCounts):
            return self.rows[held], table(*chosen.entries(), self.n_bins)
        return self.rows[held], chosen

    @cached_property
    def _sorted(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], IntArray]:
        """Row, bin and count of all entries, stratum after stratum, and where each one begins."""
        starts, cells, values = self.table.entries()
        stratum = narrowed(cells // self.n_bins, self.n_strata)
        order = np.argsort(stratum, kind="stable")
        ends = np.concatenate([[0], np.cumsum(np.bincount(stratum, minlength=self.n_strata))])
        row = np.repeat(narrowed(np.arange(len(starts) - 1), len(starts)), np.diff(starts))
        return row[order], (cells % self.n_bins)[order], values[order], ends

    def load(self) -> StratifiedTable:
        """The same in memory."""
        if not isinstance(self.table, StoredCountTable):
            return self
        return replace(self, table=table(*self.table.entries(), self.table.n_bins))

    def select(self, clients: IndexArray | slice) -> StratifiedTable:
        """Of the chosen clients, rising, at their places among these; a slice of them is a view."""
        own: IndexArray | slice
        if isinstance(clients, slice):
            own = slice(*np.searchsorted(self.rows, [clients.start, clients.stop]).tolist())
            places = self.rows[own] - clients.start
        else:
            own = np.flatnonzero(np.isin(self.rows, clients))
            places = np.searchsorted(clients, self.rows[own])
        return replace(self, table=self.table.select(own), rows=places)

    def merge_strata(self, cluster: Sequence[int], names: StratumNames) -> StratifiedTable:
        """Strata merged: stratum c becomes part of cluster[c]."""
        target = np.asarray(cluster, dtype=np.int64)
        n_strata = int(target.max()) + 1
        return self.load()._map_strata(lambda rows, owners, strata: target[strata], names, n_strata)

    def with_common_order(
        self, owns: Sequence[StratumNames | None], kinds: NDArray[np.int32]
    ) -> StratifiedTable:
        """Each row brought from the order of its own names, owns[kinds[k]], to the common ones.

        A number alone means the common order.
        """
        place = {name: c for c, name in enumerate(self.labels)}
        moves = {
            kind: np.array([place[name] for name in own])
            for kind in np.unique(kinds).tolist()
            if isinstance(own := owns[kind], tuple) and own != self.names
        }
        if not moves:
            return self

        def target(rows: slice, owners: IndexArray, strata: IntArray) -> IntArray:
            kind = kinds[rows][owners]
            for one, there in moves.items():
                here = np.flatnonzero(kind == one)
                strata[here] = there[strata[here]]
            return strata

        return self._map_strata(target, self.names, self.n_strata)

    def _map_strata(
        self,
        target: Callable[[slice, IndexArray, IntArray], IntArray],
        names: StratumNames,
        n_strata: int,
    ) -> StratifiedTable:
        """The counts moved to other strata within their rows, equal cells added up, in parts."""
        starts, cells, values = self.table.entries()
        held, parts = SparseCounts(starts, cells, values, 0), []
        for rows in held.parts():
            part = held.select(rows)
            stratum, bins = np.divmod(part.bins.astype(np.int64), self.n_bins)
            moved = target(rows, part.owners, stratum) * self.n_bins + bins
            parts.append(added(part.owners, moved, part.values.astype(np.int64), part.n_rows))
        found = join_rows(parts)
        counts = table(found.starts, found.bins, found.values, n_strata * self.n_bins)
        return replace(self, names=names, table=counts)


def build_block(
    places: IndexArray,
    tables: Sequence[SparseCounts],
    here: IndexArray,
    own: tuple[Sequence[StratumNames | None], NDArray[Any]],
    common: tuple[StratumKind, StratumNames] | None,
    n_bins: int,
) -> CountBlock:
    """The sites at rows `here` of counts, counts by class and of all labels.

    `own` are names of classes, and which of them each site has; they become the round's.
    """
    (owns, kinds), (counts, by_class, told), split = own, tables, None
    rows = np.flatnonzero(np.array([one is not None for one in owns], dtype=bool)[kinds])
    if common is not None and len(rows):
        cells = by_class.chosen(here[rows], n_strata(common[1]) * n_bins)
        split = StratifiedTable(*common, cells, rows, n_bins).with_common_order(owns, kinds[rows])
    tells = np.flatnonzero(told.is_nonempty[here])
    labels = StratifiedTable("class", 1, told.chosen(here[tells], n_bins), tells, n_bins)
    return CountBlock(places, counts.chosen(here, n_bins), split, labels if len(tells) else None)
