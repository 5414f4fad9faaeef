"""Some clients' counts in memory, made of the rows of their reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import IndexArray
from robfcp.federation._rows import SparseCounts
from robfcp.federation._strata import Strata, StratifiedTable
from robfcp.federation._tables import CountTable, SparseTable
from robfcp.reports import StratumNames, n_strata

# The counts of the scores of all labels have no strata. They are kept in a table of one stratum, as
# which `StratifiedTable` holds the counts of some of the clients.
ALL_LABELS_STRATA: Strata = ("class", 1)


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
    """

    positions: IndexArray
    counts: SparseTable
    strata: StratifiedTable | None
    all_label_counts: StratifiedTable | None


def pooled_view(block: CountBlock) -> tuple[IndexArray, CountTable]:
    """Return all (n,) rows of a block, and their (n, H) counts."""
    return np.arange(len(block.positions)), block.counts


def stratified_view(name: str, block: CountBlock) -> tuple[IndexArray, CountTable] | None:
    """Return the rows of a block that have such counts, and these counts; None without any.

    Parameters
    ----------
    name : {"strata", "all_label_counts"}
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
    tables: Sequence[SparseCounts],
    report_rows: IndexArray,
    names_of_kind: tuple[Sequence[StratumNames | None], NDArray[Any]],
    common: Strata | None,
    n_bins: int,
) -> CountBlock:
    """Collect the counts of some clients in one block.

    Parameters
    ----------
    positions : (n,) ndarray of int
        Positions of these clients in the federation, rising.
    tables : sequence of three SparseCounts
        What the reports were collected in: counts, those of clients with strata pooled over these;
        counts by stratum in cells c H + h; and counts of the scores of all labels. Rows of the last
        two are empty where a report has none.
    report_rows : (n,) ndarray of int
        Rows of the tables that hold these clients' reports.
    names_of_kind : (sequence, (n,) ndarray of int)
        The different lists of strata names among the reports, None for those without strata; and
        the index of the list that each client uses.
    common : tuple or None
        The kind of strata and the names of the round; None where all clients are pooled.
    n_bins : int
        H, the bins of the common binning.

    Returns
    -------
    CountBlock
        All strata are in the common order, whatever order a client used.
    """
    counts, counts_by_stratum, counts_of_all_labels = tables
    name_lists, list_of_client = names_of_kind
    pooled = counts.to_table(report_rows, n_bins)

    # Clients that report by stratum. Each may list its strata in its own order.
    has_names = np.array([names is not None for names in name_lists], dtype=bool)
    stratified_rows = np.flatnonzero(has_names[list_of_client])
    strata = None
    if common is not None and len(stratified_rows):
        kind, common_names = common
        n_cells = n_strata(common_names) * n_bins
        table = counts_by_stratum.to_table(report_rows[stratified_rows], n_cells)
        unordered = StratifiedTable(kind, common_names, table, stratified_rows, n_bins)
        strata = unordered.with_common_order(name_lists, list_of_client[stratified_rows])

    # Clients that also report the scores of all labels.
    has_all_labels = counts_of_all_labels.lengths[report_rows] > 0
    label_rows = np.flatnonzero(has_all_labels)
    all_label_counts = None
    if len(label_rows):
        table = counts_of_all_labels.to_table(report_rows[label_rows], n_bins)
        all_label_counts = StratifiedTable(*ALL_LABELS_STRATA, table, label_rows, n_bins)

    return CountBlock(positions, pooled, strata, all_label_counts)
