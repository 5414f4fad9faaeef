"""The counts by class or group of the clients that keep them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import BoolArray, IndexArray, IntArray
from robfcp.federation._tables import CountTable, SparseTable
from robfcp.reports import StratumKind, StratumNames, n_strata, stratum_labels

MANY_STRATA = 32  # from here on one table by columns is cheaper than a pass for every stratum


@dataclass(frozen=True, eq=False)
class StratifiedTable:
    """(R, C H) counts of the R clients that report by class or group.

    Attributes
    ----------
    by : {"class", "group"}
        What the strata are.
    names : tuple of str or int
        The strata's names, or only their number C.
    table : CountTable
        (R, C H) counts; column c H + h is stratum c, bin h.
    rows : (R,) ndarray of int
        These clients' places in the federation, rising.
    n_bins : int
        H, the bins of a stratum.
    """

    by: StratumKind
    names: StratumNames
    table: CountTable
    rows: NDArray[np.intp]
    n_bins: int

    @property
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
        last_cells = (np.arange(self.n_strata) + 1) * self.n_bins - 1
        return self.table.merge_bins(last_cells)

    def row(self, client: int) -> IntArray | None:
        """Return (C H,) counts of the client at a place of the federation; None without any."""
        place = int(np.searchsorted(self.rows, client))
        if place == len(self.rows) or self.rows[place] != client:
            return None
        return self.table.row(place)

    def select_stratum(
        self, number: int, noisy: BoolArray | None = None
    ) -> tuple[IndexArray, CountTable]:
        """Return the clients that hold one stratum, and their counts of it.

        Parameters
        ----------
        number : int
            The stratum's place among the names.
        noisy : (R,) ndarray of bool, optional
            Whose counts hold noise. They all hold the stratum, also with counts of 0: else who is
            left would tell of the noise. Nobody's if None.

        Returns
        -------
        rows : (R',) ndarray of int
            These clients' places in the federation, rising.
        table : CountTable
            Their (R', H) counts.
        """
        table = self._stratum_table(number)
        is_holder = table.is_nonempty
        if noisy is not None:
            is_holder = is_holder | noisy
        holders = np.flatnonzero(is_holder)
        return self.rows[holders], table.select(holders)

    def _stratum_table(self, number: int) -> CountTable:
        """Return (R, H) counts of one stratum."""
        first = number * self.n_bins
        if self.n_strata <= MANY_STRATA or not isinstance(self.table, SparseTable):
            return self.table.bin_slice(first, self.n_bins)
        return SparseTable(self._by_column[:, first : first + self.n_bins].tocsr())

    @cached_property
    def _by_column(self) -> Any:
        """The counts in memory in compressed sparse columns, to slice many strata one by one."""
        assert isinstance(self.table, SparseTable)
        return self.table.csr.tocsc()

    def load(self) -> StratifiedTable:
        """Return the same in memory."""
        return replace(self, table=self.table.load())

    def select(self, clients: IndexArray | slice) -> StratifiedTable:
        """Return what some clients hold, with their places among these.

        Parameters
        ----------
        clients : ndarray of int, or slice
            Rising places in the federation.
        """
        own: IndexArray | slice
        if isinstance(clients, slice):
            first, stop = np.searchsorted(self.rows, [clients.start, clients.stop]).tolist()
            own = slice(first, stop)
            places = self.rows[own] - clients.start
        else:
            own = np.flatnonzero(np.isin(self.rows, clients))
            places = np.searchsorted(clients, self.rows[own])
        return replace(self, table=self.table.select(own), rows=places)

    def merge_strata(self, cluster: Sequence[int], names: StratumNames) -> StratifiedTable:
        """Return the counts by merged strata.

        Parameters
        ----------
        cluster : (C,) sequence of int
            What each stratum becomes a part of.
        names : tuple of str or int
            The merged strata's names.
        """
        target = np.asarray(cluster, dtype=np.int64)
        table = self.table.load()
        strata, bins = np.divmod(table.entries().bins, self.n_bins)
        cells = target[strata] * self.n_bins + bins
        n_merged = int(target.max()) + 1
        moved = table.with_columns(cells, n_merged * self.n_bins)
        return replace(self, names=names, table=moved)

    def with_common_order(
        self, names_of_kind: Sequence[StratumNames | None], kinds: NDArray[np.int32]
    ) -> StratifiedTable:
        """Return the counts with the strata of every row in the common order, that of `names`.

        Parameters
        ----------
        names_of_kind : sequence
            The different lists of names that clients use. A number alone means the common order.
        kinds : (R,) ndarray of int
            Which of these lists each row uses.
        """
        place = {name: stratum for stratum, name in enumerate(self.labels)}
        orders = {}
        for kind in np.unique(kinds).tolist():
            own_names = names_of_kind[kind]
            if isinstance(own_names, tuple) and own_names != self.names:
                orders[kind] = np.array([place[name] for name in own_names])
        if not orders:
            return self

        table = self.table.load()
        starts, cells, _ = table.entries()
        strata, bins = np.divmod(cells, self.n_bins)
        kind_of_entry = np.repeat(kinds, np.diff(starts))
        for kind, order in orders.items():
            is_of_kind = kind_of_entry == kind
            strata[is_of_kind] = order[strata[is_of_kind]]
        moved = table.with_columns(strata * self.n_bins + bins, table.n_bins)
        return replace(self, table=moved)
