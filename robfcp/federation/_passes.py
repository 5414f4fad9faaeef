"""Functions applied to a federation block by block, wherever its counts are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import IndexArray
from robfcp.federation._stored import StoredCountTable
from robfcp.federation._strata import CountBlock, StratifiedTable

if TYPE_CHECKING:
    from robfcp.federation._federation import Federation

T = TypeVar("T")


def iter_block_results(
    federation: Federation, work: Callable[..., T], columns: tuple[NDArray[Any], ...]
) -> Iterator[tuple[IndexArray | slice, T]]:
    """Yield the rows of every block, and the result of `work` for it.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    work : callable
        Takes a block, a federation of some clients, and the rows of every column that belong to
        them. Where counts are stored it runs where they are, perhaps in another process; the block
        then has no names of clients.
    columns : tuple of (K, ...) ndarray
        Arrays with a row for each client.

    Yields
    ------
    rows : slice or (n,) ndarray of int
        The positions of the block's clients in the federation. Blocks of counts in memory come in
        order, as slices; those of stored counts in any order.
    result : object
        The result of `work`.
    """
    if federation.is_out_of_core:
        yield from _iter_stored_results(federation, work, columns)
        return
    first = 0
    for block in federation.iter_blocks():
        rows = slice(first, first + block.n_clients)
        yield rows, work(block, *(column[rows] for column in columns))
        first = rows.stop


def _iter_stored_results(
    federation: Federation, work: Callable[..., T], columns: tuple[NDArray[Any], ...]
) -> Iterator[tuple[IndexArray, T]]:
    """Yield what `iter_block_results` does, for counts that stay where they are."""
    # Blocks need no names, which would have to be sent to where they are.
    nameless = replace(federation, clients=(), rows=None)

    def work_on_block(count_block: CountBlock) -> tuple[IndexArray, T]:
        rows, block = _select_stored_block(nameless, count_block)
        return rows, work(block, *(column[rows] for column in columns))

    source = cast(StoredCountTable, federation.table).source
    yield from source.iter_blocks(work_on_block)


def _select_stored_block(
    federation: Federation, count_block: CountBlock
) -> tuple[IndexArray, Federation]:
    """Return the clients of a stored block that a federation has, as a federation in memory.

    Parameters
    ----------
    federation : Federation
        With a `StoredCountTable`, and with no names: `clients` is empty, and stays so. All other
        fields that have an entry for each client are selected here.
    count_block : CountBlock
        The counts of some clients of the round, of whom the federation may have but a few.

    Returns
    -------
    rows : (n,) ndarray of int
        The positions of these clients in the federation.
    block : Federation
        These n clients.
    """
    table = cast(StoredCountTable, federation.table)
    rows, block_rows, counts = table.select_block_rows(count_block)
    privacy = federation.privacy
    if privacy:
        privacy = tuple(privacy[row] for row in rows.tolist())
    block = replace(
        federation,
        table=counts,
        sample_sizes=federation.sample_sizes[rows],
        privacy=privacy,
        min_cell_counts=federation.min_cell_counts[rows],
        strata=_select_stored_strata(federation.strata, count_block, block_rows),
        all_label_counts=_select_stored_strata(
            federation.all_label_counts, count_block, block_rows
        ),
        class_totals=_select_stored_strata(federation.class_totals, count_block, block_rows),
    )
    return rows, block


def _select_stored_strata(
    strata: StratifiedTable | None, count_block: CountBlock, block_rows: IndexArray
) -> StratifiedTable | None:
    """Return the counts by stratum of the selected clients of a block.

    Parameters
    ----------
    strata : StratifiedTable or None
        The counts by stratum of the federation, with a `StoredCountTable`.
    count_block : CountBlock
        The counts of some clients of the round.
    block_rows : (n,) ndarray of int
        The rows of the block that are selected, rising. All clients of `strata` are among them.

    Returns
    -------
    StratifiedTable or None
        In memory. Its `rows` are positions among the n selected clients.
    """
    if strata is None:
        return None
    table = cast(StoredCountTable, strata.table)
    _, stratified_rows, counts = table.select_block_rows(count_block)
    rows = np.searchsorted(block_rows, stratified_rows)
    return replace(strata, table=counts, rows=rows)
