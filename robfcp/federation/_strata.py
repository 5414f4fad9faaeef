"""Counts by class or group: of the clients that report them, in blocks of clients, and pooled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csc_array

from robfcp._typing import BoolArray, IndexArray, IntArray
from robfcp.federation._inbox import GrowingRows, ReportTables, RoundStrata
from robfcp.federation._tables import CountTable, SparseCounts, SparseTable
from robfcp.reports import Header, Strata, StratumKind, StratumNames, n_strata, stratum_labels

MANY_STRATA = 32  # from here on one table by columns is cheaper than a pass for every stratum

# The counts of the scores of all labels have no strata. They are kept in a table of one stratum, as
# which `StratifiedTable` holds the counts of some of the clients.
ALL_LABELS_STRATA: Strata = ("class", 1)

_MAX_POOLED_ENTRIES = 2**18  # summed over strata at a time: what it takes stays small


@dataclass(frozen=True, eq=False)
class StratifiedTable:
    """(R, C H) counts of the R clients that report by class or group, in the round's strata.

    The counts of the scores of all labels are one with a single stratum (`ALL_LABELS_STRATA`).

    Attributes
    ----------
    by : {"class", "group"}
        What the strata are.
    names : tuple of str or int
        The strata's names in the order of the table, or only their number C.
    table : CountTable
        (R, C H) counts; column c H + h is stratum c, bin h.
    rows : (R,) ndarray of int
        The positions of these clients in the federation, rising.
    n_bins : int
        H, the bins of a stratum.
    lowest_table : CountTable or None
        The counts as low as coarsened reports allow, of merged strata; see
        `Federation.merge_strata`.
    """

    by: StratumKind
    names: StratumNames
    table: CountTable
    rows: NDArray[np.intp]
    n_bins: int
    lowest_table: CountTable | None = None

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
        """(R, C) sums of the counts of each client and stratum; noisy where the counts are.

        They are samples where one count is one sample.
        """
        last_cells = (np.arange(self.n_strata) + 1) * self.n_bins - 1
        return self.table.merge_bins(last_cells)

    def row(self, client: int) -> IntArray | None:
        """Return (C H,) counts of the client at a position of the federation; None without any."""
        row = int(np.searchsorted(self.rows, client))
        is_stratified = row < len(self.rows) and self.rows[row] == client
        return self.table.row(row) if is_stratified else None

    def select_stratum(
        self, stratum: int, is_noisy: BoolArray | None = None
    ) -> tuple[IndexArray, CountTable, CountTable | None]:
        """Return the clients that hold one stratum, and their counts of it.

        Parameters
        ----------
        stratum : int
            The stratum's position among the names, from 0.
        is_noisy : (R,) ndarray of bool, optional
            Which of the R clients' counts hold noise; none if None. These clients all hold the
            stratum, also with counts of 0: else the noise would show in which clients are left out.

        Returns
        -------
        rows : (R',) ndarray of int
            The positions of these clients in the federation, rising.
        table : CountTable
            Their (R', H) counts.
        lowest_table : CountTable or None
            The same of `lowest_table`.
        """
        table = self._stratum_table(stratum)
        is_holder = table.is_nonempty
        if is_noisy is not None:
            is_holder = is_holder | is_noisy
        holders = np.flatnonzero(is_holder)
        lowest_table = self.lowest_table
        if lowest_table is not None:
            lowest_table = lowest_table.bin_slice(stratum * self.n_bins, self.n_bins)
            lowest_table = lowest_table.select(holders)
        return self.rows[holders], table.select(holders), lowest_table

    def _stratum_table(self, stratum: int) -> CountTable:
        """Return (R, H) counts of one stratum."""
        first = stratum * self.n_bins
        if self.n_strata <= MANY_STRATA or not isinstance(self.table, SparseTable):
            return self.table.bin_slice(first, self.n_bins)
        return SparseTable(self._by_column[:, first : first + self.n_bins].tocsr())

    @cached_property
    def _by_column(self) -> csc_array:
        """(R, C H) counts in memory in compressed columns, to slice many strata one by one."""
        assert isinstance(self.table, SparseTable)
        return self.table.csr.tocsc()

    def load(self) -> StratifiedTable:
        """Return the same with the counts in memory."""
        return replace(self, table=self.table.load())

    def select(self, clients: IndexArray | slice) -> StratifiedTable:
        """Return the counts of some clients, with their positions among these.

        Parameters
        ----------
        clients : (n,) ndarray of int, or slice
            Rising positions in the federation; a slice has a start and a stop. Those without counts
            by stratum are passed over.

        Returns
        -------
        StratifiedTable
            Its `rows` are positions among the n clients.
        """
        selected: IndexArray | slice
        if isinstance(clients, slice):
            # The rows of these clients are consecutive, for rows rise.
            first, stop = np.searchsorted(self.rows, [clients.start, clients.stop]).tolist()
            selected = slice(first, stop)
            rows = self.rows[selected] - clients.start
        else:
            selected = np.flatnonzero(np.isin(self.rows, clients))
            rows = np.searchsorted(clients, self.rows[selected])
        lowest_table = self.lowest_table
        if lowest_table is not None:
            lowest_table = lowest_table.select(selected)
        table = self.table.select(selected)
        return replace(self, table=table, rows=rows, lowest_table=lowest_table)

    def merge_strata(self, cluster: Sequence[int], names: StratumNames) -> StratifiedTable:
        """Return the counts by merged strata, in memory.

        Parameters
        ----------
        cluster : (C,) sequence of int
            The index of the merged stratum that each stratum goes to: 0 to M - 1, all of them used.
        names : tuple of str or int
            The names of the M merged strata, or M.
        """
        target = np.asarray(cluster, dtype=np.int64)
        table = self.table.load()
        strata, bins = np.divmod(table.entries().bins, self.n_bins)
        cells = target[strata] * self.n_bins + bins
        n_merged = int(target.max()) + 1
        moved = table.with_columns(cells, n_merged * self.n_bins)
        return replace(self, names=names, table=moved)

    def with_common_order(
        self, name_lists: Sequence[StratumNames | None], list_of_row: NDArray[np.int32]
    ) -> StratifiedTable:
        """Return the counts with the strata of every row in the common order, that of `names`.

        Parameters
        ----------
        name_lists : sequence of tuple of str, int or None
            The different lists of names that clients use. A number alone means the common order. A
            list in use has no name that is not among `labels`, as `require_known_strata` has it.
        list_of_row : (R,) ndarray of int
            The index of the list that each row uses.

        Returns
        -------
        StratifiedTable
            In memory if any row is in another order; else the table itself.
        """
        orders = {}  # by the index of a list: the common stratum of each of its names
        for index in np.unique(list_of_row).tolist():
            names = name_lists[index]
            if isinstance(names, tuple) and names != self.names:
                orders[index] = self._positions_of(names)
        if not orders:
            return self

        table = self.table.load()
        starts, cells, _ = table.entries()
        strata, bins = np.divmod(cells, self.n_bins)
        list_of_entry = np.repeat(list_of_row, np.diff(starts))
        for index, order in orders.items():
            has_order = list_of_entry == index
            strata[has_order] = order[strata[has_order]]
        moved = table.with_columns(strata * self.n_bins + bins, table.n_bins)
        return replace(self, table=moved)

    def _positions_of(self, names: Sequence[str]) -> IndexArray:
        """Return the positions of some strata, all of them known, among `labels`."""
        position_of_name = {name: position for position, name in enumerate(self.labels)}
        return np.array([position_of_name[name] for name in names])


class CountBlock(NamedTuple):
    """Some clients' counts in memory.

    Attributes
    ----------
    positions : (n,) ndarray of int
        The positions of these clients in the federation, rising.
    counts : SparseTable
        Their (n, H) counts.
    strata : StratifiedTable or None
        The counts by class or group of the clients that report them; its rows are rows of `counts`.
    all_label_counts : StratifiedTable or None
        The scores of all labels of the clients that report them; likewise.
    class_totals : StratifiedTable or None
        The rounded samples of each class of the clients that report them; likewise.
    """

    positions: IndexArray
    counts: SparseTable
    strata: StratifiedTable | None
    all_label_counts: StratifiedTable | None
    class_totals: StratifiedTable | None


def pooled_view(block: CountBlock) -> tuple[IndexArray, CountTable]:
    """Return all (n,) rows of a block, and their (n, H) counts."""
    return np.arange(len(block.positions)), block.counts


def stratified_view(name: str, block: CountBlock) -> tuple[IndexArray, CountTable] | None:
    """Return the rows of a block that have such counts, and these counts; None without any.

    Parameters
    ----------
    name : {"strata", "all_label_counts", "class_totals"}
        The attribute of the block that holds the counts.
    block : CountBlock
        The counts of n clients.

    Returns
    -------
    rows : (r,) ndarray of int
        Rows of the block, rising.
    table : CountTable
        (r, C H) counts of these clients.
    """
    stratified: StratifiedTable | None = getattr(block, name)
    if stratified is None:
        return None
    return stratified.rows, stratified.table


def build_block(
    positions: IndexArray,
    tables: ReportTables,
    report_rows: IndexArray,
    headers: Sequence[Header],
    header_index: NDArray[Any],
    round_strata: RoundStrata,
    n_bins: int,
) -> CountBlock:
    """Collect the counts of some clients in one block.

    Parameters
    ----------
    positions : (n,) ndarray of int
        Positions of these clients in the federation, rising.
    tables : ReportTables
        What the reports count; the counts of clients with strata are pooled over these.
    report_rows : (n,) ndarray of int
        Rows of the tables that hold these clients' reports.
    headers : sequence of Header
        The different headers of the reports.
    header_index : (n,) ndarray of int
        The index among them of each client's header.
    round_strata : RoundStrata
        The strata and the classes of the round.
    n_bins : int
        H, the bins of the common binning.

    Returns
    -------
    CountBlock
        All strata are in the common order, whatever order a client used.
    """
    # Clients that report by stratum, and those that report class totals: a table with one bin.
    names_of_strata = [header.strata and header.strata[1] for header in headers]
    strata = _select_strata(
        tables.strata, round_strata.strata, report_rows, names_of_strata, header_index, n_bins
    )
    class_names = [header.class_names for header in headers]
    class_totals = _select_strata(
        tables.class_totals,
        round_strata.classes,
        report_rows,
        class_names,
        header_index,
        n_bins=1,
    )

    # Clients that also report the scores of all labels.
    counts_of_all_labels = tables.all_label_counts
    has_all_labels = counts_of_all_labels.lengths[report_rows] > 0
    label_rows = np.flatnonzero(has_all_labels)
    all_label_counts = None
    if len(label_rows):
        table = counts_of_all_labels.to_table(report_rows[label_rows], n_bins)
        all_label_counts = StratifiedTable(*ALL_LABELS_STRATA, table, label_rows, n_bins)

    pooled = tables.counts.to_table(report_rows, n_bins)
    return CountBlock(positions, pooled, strata, all_label_counts, class_totals)


def _select_strata(
    counts: SparseCounts,
    common: Strata | None,
    report_rows: IndexArray,
    names_of_header: Sequence[StratumNames | None],
    header_index: NDArray[Any],
    n_bins: int,
) -> StratifiedTable | None:
    """Return the counts by stratum of some reports in the common order; None where none has any.

    Parameters
    ----------
    counts : SparseCounts
        By stratum, in cells c H + h; rows are empty where a report has none.
    common : tuple or None
        The kind of strata and the names of the round; None where all clients are pooled.
    report_rows : (n,) ndarray of int
        Rows of the counts that hold these reports.
    names_of_header : sequence of tuple of str, int or None
        The names in each different header, in the client's own order; None where it has none.
    header_index : (n,) ndarray of int
        The index among them of each report's header.
    n_bins : int
        H, the bins of a stratum.
    """
    has_names = np.array([names is not None for names in names_of_header], dtype=bool)
    rows = np.flatnonzero(has_names[header_index])
    if common is None or not len(rows):
        return None
    kind, names = common
    table = counts.to_table(report_rows[rows], n_strata(names) * n_bins)
    unordered = StratifiedTable(kind, names, table, rows, n_bins)
    return unordered.with_common_order(names_of_header, header_index[rows])


def _row_slices(starts: IntArray) -> Iterator[slice]:
    """Yield all rows in order, in slices of few entries together; one row at least in each.

    Parameters
    ----------
    starts : (n + 1,) ndarray of int
        Where each row begins among the entries, and where the last one ends.
    """
    n_rows = len(starts) - 1
    first = 0
    while first < n_rows:
        fitting = np.searchsorted(starts, starts[first] + _MAX_POOLED_ENTRIES, side="right") - 1
        stop = max(int(fitting), first + 1)
        yield slice(first, stop)
        first = stop


def pool_strata(counts: SparseCounts, strata: SparseCounts, n_bins: int) -> SparseCounts:
    """Return every row's counts: those in `counts`, or where that row is empty sums over strata.

    Parameters
    ----------
    counts, strata : SparseCounts
        The same n rows. Cell c H + h of `strata` is bin h of stratum c.
    n_bins : int
        H, the bins of a stratum.

    Returns
    -------
    SparseCounts
        n rows; `counts` itself where there are no counts by stratum at all.
    """
    if not len(strata.bins):
        return counts
    pooled = GrowingRows()
    for rows in _row_slices(counts.starts + strata.starts):  # the entries of both together
        some_counts = counts.select_range(rows)
        some_strata = strata.select_range(rows)
        strata_rows = some_strata.owners
        is_pooled = (some_counts.lengths == 0)[strata_rows]  # of the entries by stratum
        strata_bins = some_strata.bins[is_pooled].astype(np.int64) % n_bins

        entry_rows = np.concatenate([some_counts.owners, strata_rows[is_pooled]])
        entry_bins = np.concatenate([some_counts.bins.astype(np.int64), strata_bins])
        values = np.concatenate([some_counts.values, some_strata.values[is_pooled]])
        n_rows = rows.stop - rows.start
        lengths, bins, sums = _sum_duplicate_cells(
            entry_rows, entry_bins, values.astype(np.int64), n_rows
        )
        pooled.extend(SparseCounts.from_lengths(lengths, bins, sums))
    return pooled.concatenated()


def _sum_duplicate_cells(
    rows: IndexArray, cells: IntArray, values: IntArray, n_rows: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Return rows whose entries came in any order, with equal cells of a row added up.

    Parameters
    ----------
    rows, cells, values : (U,) ndarray of int
        The row, the cell and the count of each entry.
    n_rows : int
        n, the number of rows.

    Returns
    -------
    lengths : (n,) ndarray of int
        The number of different cells of each row.
    cells, values : (V,) ndarray of int64
        These cells, rising within a row, and their counts. A sum of 0, as noise may make it, stays.
    """
    shape = (n_rows, int(cells.max(initial=0)) + 1)
    csr = coo_array((values, (rows, cells)), shape=shape).tocsr()
    return np.diff(csr.indptr), csr.indices.astype(np.int64), csr.data
