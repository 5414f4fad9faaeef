"""From untrusted reports to what a federation holds: read, agree, put in tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import IndexArray, IntArray
from robfcp._validation import check_client_name, check_integer
from robfcp.binning import Binning
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation import _agreement
from robfcp.federation._blocks import CountBlock, build_block, pooled_view, stratified_view
from robfcp.federation._inbox import (
    POSITION_DTYPE,
    Inbox,
    PositionsOf,
    RawReport,
    RejectedReport,
    StoredTable,
    UntrustedReport,
)
from robfcp.federation._rows import pool_strata
from robfcp.federation._selection import ReportSelection
from robfcp.federation._stored import StoredCountTable
from robfcp.federation._strata import StratifiedTable
from robfcp.federation._tables import check_table_size
from robfcp.privacy import Privacy
from robfcp.reports import (
    BinningDigest,
    Header,
    Report,
    StratumKind,
    StratumNames,
    n_strata,
    signing,
)

T = TypeVar("T")
FilePath = str | os.PathLike[str]
Strata = tuple[StratumKind, StratumNames]


def read_reports(
    reports: Iterable[UntrustedReport],
    expected: Mapping[str, Any],
    rejected: Iterable[RejectedReport],
    expected_clients: Iterable[str],
    *,
    registered_sizes: Mapping[str, int] | None,
    privacy: Privacy | None,
    quorum: int | float | None,
) -> dict[str, Any]:
    """Read every report once and return what a federation holds of the valid ones.

    Parameters
    ----------
    reports : iterable
        Reports from anybody, and tables of them.
    expected : mapping
        What the server states of grid, score, round, model and risk; None where it is the
        majority's.
    rejected : iterable of RejectedReport
        What was rejected before.
    expected_clients : iterable of str
        Who should report.
    registered_sizes : mapping, optional
        Who may report, and with how many samples.
    privacy : Privacy, optional
        The agreed privacy.
    quorum : int or float, optional
        The least number of valid reports, or their least share.

    Returns
    -------
    dict
        The fields of `Federation`, and under "signatures" what was checked of them.
    """
    has_registry = registered_sizes is not None
    if registered_sizes is not None:
        registered_sizes = _check_registered_sizes(registered_sizes)

    # Reports that are valid by themselves.
    inbox = Inbox(expected.get("grid"))
    for item in reports:
        inbox.add(item)
    selection = ReportSelection(inbox.finish())
    selection.rejected += [(f"file:{report.client}", report) for report in rejected]
    if registered_sizes is not None:
        selection.require_registered_sizes(registered_sizes)

    # What the round agrees on.
    for name, value in expected.items():
        if isinstance(value, Binning):
            value = BinningDigest.of(value)
        selection.require(_agreement.require_equal(name, value, selection.ballot()))
    strata = _agreement.most_common_strata(selection.ballot())
    selection.require(_agreement.require_same_strata(strata))
    selection.require(_agreement.require_agreed_noise(selection.ballot(), privacy, has_registry))
    selection.require_one_report_each()

    # Where sizes, of all or in a class, are not exact, all noise has to be the same.
    votes = selection.votes()
    are_sizes_hidden = any(header.protects_sample_size for header, _ in votes)
    are_sizes_known = has_registry or not are_sizes_hidden
    has_noisy_strata = any(header.privacy and header.strata for header, _ in votes)
    if not are_sizes_known or has_noisy_strata:
        selection.require(_agreement.require_same_noise(votes))

    # Who is missing, and whether the others are enough.
    awaited_clients = {*expected_clients, *(registered_sizes or ())}
    names_of_rejected = {report.client for _, report in selection.rejected}
    heard = selection.clients_heard(awaited_clients | names_of_rejected)
    rejected_of = selection.rejected_by_client(heard)
    missing = awaited_clients - heard - set(rejected_of)
    n_valid = int(selection.is_valid.sum())
    if registered_sizes is not None:
        n_awaited = len(set(registered_sizes) | missing)
    else:
        n_awaited = n_valid + len(rejected_of) + len(missing)
    first_rejected = next(iter(rejected_of.values()), None)
    first_reason = None if first_rejected is None else first_rejected.reason
    _agreement.check_quorum(n_valid, n_awaited, quorum, first_reason)

    return {
        **build_fields(selection, registered_sizes, strata),
        "rejected_reports": tuple(sorted(rejected_of.values(), key=_client_of)),
        "missing_clients": tuple(sorted(missing)),
        "resubmitted_clients": selection.resubmitted_clients,
        "sizes_registered": has_registry,
        "signatures": _signature_text(selection.reports.n_signed, selection.reports.n_read),
        "sizes_known": are_sizes_known,
    }


def _client_of(rejected: RejectedReport) -> str:
    """Return whose report was rejected."""
    return rejected.client


def _signature_text(n_signed: int, n_read: int) -> str:
    """Return what was checked of signatures without registered keys."""
    if not n_signed:
        return "not checked"
    return f"{n_signed} of {n_read} valid, by keys that nobody registered"


def rebuild_from_record(
    reports: Iterable[bytes], sizes: Mapping[str, int], strata: Strata | None
) -> dict[str, Any]:
    """Return what a federation holds of reports that were valid together: nobody votes again."""
    inbox = Inbox()
    for item in reports:
        inbox.add(item)
    selection = ReportSelection(inbox.finish())
    selection.require(_agreement.require_same_strata(strata))
    selection.require_one_report_each()
    if selection.rejected:
        raise RobfcpError(selection.rejected[0][1].reason)
    contexts = {header[:5] for header in selection.reports.headers}  # all but noise and strata
    if len(contexts) != 1:
        raise RobfcpError("the reports are not of one round")
    return build_fields(selection, sizes, strata)


def _check_registered_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the registry with whole numbers for plain names; refuse anything else."""
    if not isinstance(sizes, Mapping) or not sizes:
        raise RobfcpError("sizes: registers nobody; map site names to numbers of samples")
    for client in sizes:
        check_client_name(client)
    return {
        str(client): check_integer(f"sizes: {client}", size, "register its number of samples", 1)
        for client, size in sizes.items()
    }


# ------------------------------------------------------------------------------ tables


@dataclass(frozen=True, eq=False)
class BlockSource:
    """All counts of a round: those of tables that stay where they are, and those in memory."""

    stored_tables: Sequence[StoredTable]
    memory: CountBlock

    def iter_blocks(self, work: Callable[[CountBlock], T]) -> Iterator[T]:
        """Yield what `work` makes of every block."""
        if len(self.memory.positions) or not self.stored_tables:
            yield work(self.memory)
        for table in self.stored_tables:
            yield from table.iter_blocks(work)


def build_fields(
    selection: ReportSelection, registered_sizes: Mapping[str, int] | None, strata: Strata | None
) -> dict[str, Any]:
    """Return what a federation holds of the valid reports, in the order of their clients' names.

    Parameters
    ----------
    selection : ReportSelection
        One valid report at least.
    registered_sizes : mapping, optional
        The sample sizes of reports that hide theirs.
    strata : tuple or None
        The round's strata.
    """
    reports = selection.reports
    rows, clients = _order_by_name(reports.clients, selection)
    n_clients = len(clients)
    header_index = reports.header_index[rows]
    first = reports.headers[header_index[0]]
    n_bins = first.binning.n_bins
    check_table_size(n_clients, n_bins)

    positions_of = _positions_of_rows(rows, len(reports.sizes))
    in_memory = _build_block_in_memory(selection, positions_of, n_bins, strata)
    tables = {
        "table": in_memory.counts,
        "strata": in_memory.strata,
        "all_label_counts": in_memory.all_label_counts,
    }
    if reports.stored_tables:
        for table in reports.stored_tables:
            table.set_positions(positions_of, strata)
        source = BlockSource(reports.stored_tables, in_memory)
        has_all_labels = reports.has_all_labels[rows]
        has_strata = np.array([header.strata is not None for header in reports.headers], dtype=bool)
        tables |= _stored_tables(source, n_bins, strata, has_strata[header_index], has_all_labels)
    else:
        clients = tuple(clients)

    sizes = reports.sizes[rows]
    if registered_sizes is not None:
        sizes = _fill_in_sizes(sizes, header_index, reports.headers, clients, registered_sizes)
    return {
        "clients": clients,
        "sample_sizes": sizes,
        "binning": first.binning.binning(),
        "score": first.score,
        "round": first.round,
        "model": first.model,
        "risk": first.risk,
        "privacy": _privacy_of_clients(header_index, reports.headers),
        **tables,
    }


def _order_by_name(clients: Any, selection: ReportSelection) -> tuple[IndexArray | slice, Any]:
    """Return the rows of the valid reports in the order of their clients' names, and these."""
    if not isinstance(clients, list):
        ordered: tuple[IndexArray | slice, Any] = clients.ordered(selection.is_valid)
        return ordered
    rows = np.flatnonzero(selection.is_valid)
    names = [clients[row] for row in rows.tolist()]
    in_order = sorted(range(len(names)), key=names.__getitem__)
    return rows[in_order], [names[place] for place in in_order]


def _positions_of_rows(rows: IndexArray | slice, n_rows: int) -> PositionsOf:
    """Return a function that gives the positions of reports in the federation.

    Parameters
    ----------
    rows : ndarray of int, or slice
        The rows of the federation's clients, in its order; a slice where that is all of them.
    n_rows : int
        How many reports there are.
    """
    if isinstance(rows, slice):
        return _same_positions
    positions = np.full(n_rows, -1, dtype=POSITION_DTYPE)
    positions[rows] = np.arange(len(rows), dtype=POSITION_DTYPE)
    return positions.__getitem__


def _same_positions(rows: slice | IndexArray) -> IndexArray:
    """Return the positions of reports that all count, in the order of arrival."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def _fill_in_sizes(
    sizes: IntArray,
    header_index: IntArray,
    headers: Sequence[Header],
    clients: Sequence[str],
    registered_sizes: Mapping[str, int],
) -> IntArray:
    """Return the sample sizes, registered ones in place of those that privacy hides."""
    hides_size = np.array([header.protects_sample_size for header in headers], dtype=bool)
    if not hides_size.any():
        return sizes
    sizes = sizes.astype(np.int64)
    for position in np.flatnonzero(hides_size[header_index]).tolist():
        sizes[position] = registered_sizes.get(clients[position], sizes[position])
    return sizes


def _privacy_of_clients(
    header_index: IntArray, headers: Sequence[Header]
) -> tuple[Privacy | None, ...]:
    """Return the noise in each client's counts; an empty tuple where no report holds any."""
    if not any(header.privacy for header in headers):
        return ()
    return tuple(headers[index].privacy for index in header_index.tolist())


def _build_block_in_memory(
    selection: ReportSelection, positions_of: PositionsOf, n_bins: int, strata: Strata | None
) -> CountBlock:
    """Return the counts of the valid reports in memory, by their positions in the federation."""
    reports = selection.reports
    rows = np.flatnonzero(reports.is_in_memory)  # row k of the tables is report rows[k]
    positions = positions_of(rows)
    order = np.argsort(positions, kind="stable")
    table_rows = order[np.searchsorted(positions[order], 0) :]

    counts, counts_by_stratum, all_labels = reports.tables
    pooled = pool_strata(counts, counts_by_stratum, n_bins)
    names = [header.strata and header.strata[1] for header in reports.headers]
    names_of_rows = names, reports.header_index[rows[table_rows]]
    return build_block(
        positions[table_rows],
        (pooled, counts_by_stratum, all_labels),
        table_rows,
        names_of_rows,
        strata,
        n_bins,
    )


def _stored_tables(
    source: BlockSource,
    n_bins: int,
    strata: Strata | None,
    has_strata: NDArray[np.bool_],
    has_all_labels: NDArray[np.bool_],
) -> dict[str, Any]:
    """Return the tables of a federation whose counts are not all in memory.

    Parameters
    ----------
    source : BlockSource
        Where they are.
    n_bins : int
        H.
    strata : tuple or None
        The round's strata.
    has_strata, has_all_labels : (K,) ndarray of bool
        Which clients report counts by stratum, and the scores of all labels.
    """
    tables: dict[str, Any] = {
        "table": StoredCountTable(source, pooled_view, len(has_strata), n_bins)
    }
    all_labels: Strata = ("class", 1)
    for name, kind, mask in (
        ("strata", strata, has_strata),
        ("all_label_counts", all_labels, has_all_labels),
    ):
        rows = np.flatnonzero(mask).astype(POSITION_DTYPE)
        if kind is None or not len(rows):
            continue
        n_cells = n_strata(kind[1]) * n_bins
        view = partial(stratified_view, name)
        counts = StoredCountTable(source, view, len(rows), n_cells, rows)
        tables[name] = StratifiedTable(kind[0], kind[1], counts, rows, n_bins)
    return tables


# ------------------------------------------------------------------------------ signatures


def verify_signatures(
    reports: Iterable[UntrustedReport], keys: Mapping[str, str], round: str
) -> tuple[list[UntrustedReport], list[RejectedReport]]:
    """Return the reports signed by registered keys, and what is rejected.

    A rejected report is charged to the client it names only where that client sent no genuine one,
    so that nobody can silence another.

    Parameters
    ----------
    reports : iterable
        Reports from anybody, and tables of them, which have no signatures.
    keys : mapping of str to str
        The registered public key of every client.
    round : str
        The round they must be for.
    """
    genuine: list[UntrustedReport] = []
    forged: list[tuple[str, ReportError]] = []
    unreadable: list[RejectedReport] = []
    for number, item in enumerate(reports, 1):
        if isinstance(item, StoredTable):
            reason = (
                f"{item.name}: a collected table has no signatures; calibrate it without --keys"
            )
            unreadable.append(RejectedReport(f"file:{item.name}", "file", reason))
            continue
        if isinstance(item, RejectedReport):
            unreadable.append(item)
            continue
        data: Any = item
        source = f"report #{number}"
        if isinstance(item, RawReport):
            data, source = item
        try:
            report = signing.verify(_as_bytes(data), Report, keys, round, source)
            genuine.append(report)
        except ReportError as error:
            forged.append((source, error))

    heard = {report.client for report in genuine if isinstance(report, Report)}
    rejected = [_charge(source, error, heard) for source, error in forged]
    return genuine, rejected + unreadable


def _as_bytes(item: object) -> bytes:
    """Return the file that a report is; an empty one where it is something else."""
    if isinstance(item, Report):
        return item.to_json()
    if isinstance(item, str):
        return item.encode()
    return item if isinstance(item, bytes) else b""


def _charge(source: str, error: ReportError, heard: set[str]) -> RejectedReport:
    """Return a rejected report, of its source where the client it names is heard."""
    if error.client not in heard:
        return RejectedReport.of(error)
    return RejectedReport(source, error.field, f"{source.removeprefix('file:')}: {error}")
