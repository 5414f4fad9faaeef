"""The counts by class or group of the clients that report them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array

from robfcp._typing import BoolArray, IndexArray, IntArray
from robfcp.federation._tables import CountTable, SparseTable
from robfcp.reports import StratumKind, StratumNames, n_strata, stratum_labels

Strata = tuple[StratumKind, StratumNames]  # the kind of a round's strata, and their names

MANY_STRATA = 32  # from here on one table by columns is cheaper than a pass for every stratum


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
    ) -> tuple[IndexArray, CountTable]:
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
        """
        table = self._stratum_table(stratum)
        is_holder = table.is_nonempty
        if is_noisy is not None:
            is_holder = is_holder | is_noisy
        holders = np.flatnonzero(is_holder)
        return self.rows[holders], table.select(holders)

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
        return replace(self, table=self.table.select(selected), rows=rows)

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
