"""The reports of a federation as JSON, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from robfcp._typing import IndexArray
from robfcp.federation._tables import CountTable
from robfcp.reports import (
    REPORT_SCHEMA,
    Report,
    WireClassTotals,
    WireCounts,
    WireStratifiedCounts,
    to_wire_binning,
    to_wire_score,
)

T = TypeVar("T")
_DENSE_ROWS = 512  # that are held in full at a time

if TYPE_CHECKING:
    from robfcp.federation._federation import Federation


def encode_reports(federation: Federation, report_of: Callable[[int], Report]) -> Iterator[bytes]:
    """Yield every client's report as JSON: a tenth of the time of one by one.

    Parameters
    ----------
    federation : Federation
        K clients, with all counts in memory.
    report_of : callable
        Makes the report of the client at a position from 0; used for private ones, whose counts
        include zeros.
    """
    # The counts of each client, of every kind; None where it reports none of the kind.
    strata = federation.strata
    all_labels = federation.all_label_counts
    n_clients = federation.n_clients
    counts_of_clients = _iter_rows(federation.table)
    strata_of_clients: Iterator[WireCounts | None] = iter([None] * n_clients)
    if strata is not None:
        strata_of_clients = _align(_iter_rows(strata.table), strata.rows, n_clients)
    labels_of_clients: Iterator[WireCounts | None] = iter([None] * n_clients)
    if all_labels is not None:
        labels_of_clients = _align(_iter_rows(all_labels.table), all_labels.rows, n_clients)

    class_totals = federation.class_totals
    totals_of_clients: Iterator[list[int] | None] = iter([None] * n_clients)
    if class_totals is not None:
        totals_of_clients = _align(
            _iter_dense_rows(class_totals.table), class_totals.rows, n_clients
        )

    # What all reports share is encoded once.
    binning = _encode(to_wire_binning(federation.binning))
    score = _encode(to_wire_score(federation.score))
    risk = _encode(federation.risk)
    names = None if strata is None else msgspec.Raw(msgspec.json.encode(strata.names))

    class_names = None
    if class_totals is not None:
        class_names = msgspec.Raw(msgspec.json.encode(class_totals.names))

    columns = zip(
        counts_of_clients, strata_of_clients, labels_of_clients, totals_of_clients, strict=True
    )
    for position, (counts, client_strata, labels, totals) in enumerate(columns):
        if federation.privacy and federation.privacy[position] is not None:
            yield report_of(position).to_json()
            continue

        # The order of the keys is that of a record, whose digest others have kept.
        message: dict[str, Any] = {
            "kind": Report.KIND,
            "schema": REPORT_SCHEMA,
            "client": federation.clients[position],
            "binning": binning,
            "n_samples": int(federation.sample_sizes[position]),
        }
        if client_strata is None:
            message["counts"] = counts
        if score is not None:
            message["score"] = score
        message["round"] = federation.round
        message["model"] = federation.model
        if risk is not None:
            message["risk"] = risk
        if client_strata is not None:
            assert strata is not None
            assert names is not None
            # A report lists each cell c H + h as its distance from the one before.
            steps = np.diff(client_strata.bins, prepend=0).tolist()
            message["strata"] = WireStratifiedCounts(strata.by, names, steps, client_strata.counts)
        if labels is not None:
            message["all_label_counts"] = labels
        message["min_cell_count"] = int(federation.min_cell_counts[position])
        if totals is not None:
            assert class_names is not None
            message["class_totals"] = WireClassTotals(class_names, totals)
        yield msgspec.json.encode(message)


def _encode(entry: object) -> msgspec.Raw | None:
    """Return an entry of a report as JSON, for messages that share it; None where it is None."""
    return None if entry is None else msgspec.Raw(msgspec.json.encode(entry))


def _iter_dense_rows(table: CountTable) -> Iterator[list[int]]:
    """Yield the counts of each row, those of 0 too, without a full table of many rows."""
    for first in range(0, table.n_rows, _DENSE_ROWS):
        yield from table.select(slice(first, first + _DENSE_ROWS)).dense().tolist()


def _iter_rows(table: CountTable) -> Iterator[WireCounts]:
    """Yield the counts of each row other than 0, as a report lists them; of a table in memory."""
    starts, bins, counts = table.entries()
    for first, stop in pairwise(starts.tolist()):
        yield WireCounts(bins[first:stop].tolist(), counts[first:stop].tolist())


def _align(values: Iterator[T], rows: IndexArray, n_clients: int) -> Iterator[T | None]:
    """Yield a value for every client; None for clients without one.

    Parameters
    ----------
    values : iterator
        R values, in the order of the clients that have one.
    rows : (R,) ndarray of int
        The positions of these clients, rising.
    n_clients : int
        K.
    """
    has_value = np.zeros(n_clients, dtype=bool)
    has_value[rows] = True
    for is_given in has_value.tolist():
        yield next(values) if is_given else None
