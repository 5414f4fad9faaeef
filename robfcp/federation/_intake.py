"""From untrusted reports to what a federation holds: read, agree, put in tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from robfcp._typing import BoolArray, IndexArray, IntArray
from robfcp._validation import check_client_name, check_integer
from robfcp.binning import Binning
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation._agreement import (
    ReportSelection,
    check_quorum,
    limit_min_cell_count,
    limit_noise,
    require_equal,
    require_same_noise,
)
from robfcp.federation._inbox import (
    POSITION_DTYPE,
    Inbox,
    PositionsOf,
    RawReport,
    RejectedReport,
    RoundStrata,
    StoredTable,
    UntrustedReport,
    charge_to_source,
)
from robfcp.federation._round_strata import require_known_strata, vote_on_strata
from robfcp.federation._stored import StoredCountTable
from robfcp.federation._strata import (
    ALL_LABELS_STRATA,
    CountBlock,
    StratifiedTable,
    build_block,
    pool_strata,
    pooled_view,
    stratified_view,
)
from robfcp.federation._tables import CountTable, check_table_size
from robfcp.privacy import Privacy
from robfcp.reports import (
    BinningDigest,
    Header,
    Report,
    Strata,
    n_strata,
    signing,
)

T = TypeVar("T")
FilePath = str | os.PathLike[str]


def read_reports(
    reports: Iterable[UntrustedReport],
    expected: Mapping[str, Any],
    rejected: Iterable[RejectedReport],
    expected_clients: Iterable[str],
    *,
    registered_sizes: Mapping[str, int] | None,
    privacy: Privacy | None,
    min_cell_count: int | None,
    quorum: int | float | None,
) -> dict[str, Any]:
    """Read every report once and return what a federation holds of the valid ones.

    Parameters
    ----------
    reports : iterable
        Reports from anybody, and tables of them.
    expected : mapping
        What the server states under "score", "binning" (a `Binning`), "round", "model" and "risk";
        None where it is what most reports have.
    rejected : iterable of RejectedReport
        What was rejected before.
    expected_clients : iterable of str
        Who should report.
    registered_sizes : mapping of str to int, optional
        Who may report, and with how many samples.
    privacy : Privacy, optional
        The agreed privacy.
    min_cell_count : int, optional
        The agreed minimum cell count.
    quorum : int or float, optional
        The least number of valid reports, or their least share.

    Returns
    -------
    dict
        The fields of `Federation` but `verification`, and under "signatures" a text that says what
        was checked of them, which the caller takes out.

    Raises
    ------
    QuorumError
        Where too few reports are valid.
    RobfcpError
        Where reports are split evenly, or the registered sizes are not valid.
    """
    has_registry = registered_sizes is not None
    if registered_sizes is not None:
        registered_sizes = _check_registered_sizes(registered_sizes)

    # Reports that are valid by themselves. Those on another binning are refused before it is built.
    inbox = Inbox(expected.get("binning"))
    for item in reports:
        inbox.add(item)
    selection = ReportSelection(inbox.finish())
    selection.rejected += [(f"file:{report.client}", report) for report in rejected]
    if registered_sizes is not None:
        selection.require_registered_sizes(registered_sizes)

    round_strata = _require_agreement(selection, expected, privacy, min_cell_count, has_registry)
    are_sizes_known = _require_comparable_noise(selection, has_registry)

    # Who is missing, and whether the others are enough.
    awaited_clients = {*expected_clients, *(registered_sizes or ())}
    clients_of_rejected = {report.client for _, report in selection.rejected}
    heard = selection.clients_with_valid_report(awaited_clients | clients_of_rejected)
    rejected_of_sender = selection.rejected_by_sender(heard)
    missing = awaited_clients - heard - set(rejected_of_sender)
    n_valid = int(selection.is_valid.sum())
    if registered_sizes is not None:
        # What unregistered senders sent is not awaited, so that nobody can inflate the quorum.
        n_awaited = len(set(registered_sizes) | missing)
    else:
        n_awaited = n_valid + len(rejected_of_sender) + len(missing)
    first_rejected = next(iter(rejected_of_sender.values()), None)
    first_reason = None if first_rejected is None else first_rejected.reason
    check_quorum(n_valid, n_awaited, quorum, first_reason)

    return {
        **build_fields(selection, registered_sizes, round_strata),
        "rejected_reports": tuple(sorted(rejected_of_sender.values(), key=_client_of)),
        "missing_clients": tuple(sorted(missing)),
        "resubmitted_clients": selection.resubmitted_clients,
        "sizes_registered": has_registry,
        "signatures": _signature_text(selection.reports.n_signed, selection.reports.n_read),
        "sizes_known": are_sizes_known,
    }


def _require_agreement(
    selection: ReportSelection,
    expected: Mapping[str, Any],
    privacy: Privacy | None,
    min_cell_count: int | None,
    has_registry: bool,
) -> RoundStrata:
    """Reject what does not agree with the server or with most, and clients that sent several.

    Parameters
    ----------
    selection : ReportSelection
        The reports; those that disagree are rejected in place.
    expected : mapping
        As `read_reports` takes it. Each entry is settled among the reports that agreed on the ones
        before.
    privacy : Privacy, optional
        The agreed privacy.
    min_cell_count : int, optional
        The agreed minimum cell count.
    has_registry : bool
        Whether sample sizes are registered.

    Returns
    -------
    RoundStrata
        The strata and the classes of the round.
    """
    for name, value in expected.items():
        if isinstance(value, Binning):
            value = BinningDigest.of(value)
        selection.require(require_equal(name, value, selection.votes_of_sole_reports()))
    round_strata = vote_on_strata(selection.votes_of_sole_reports())
    selection.require(require_known_strata(round_strata))
    selection.require(limit_noise(selection.votes_of_sole_reports(), privacy, has_registry))
    selection.require(limit_min_cell_count(selection.votes_of_sole_reports(), min_cell_count))

    # Last: a client's report for another round, say, does not contradict its report for this one.
    selection.require_one_report_each()
    return round_strata


def _require_comparable_noise(selection: ReportSelection, has_registry: bool) -> bool:
    """Reject other noise than most reports hold where it matters; return whether sizes are known.

    Sizes are known where no report hides its size, or where sizes are registered. Where sizes, of
    all samples or of a class, are only known with noise, all noise has to be the same.

    Parameters
    ----------
    selection : ReportSelection
        The reports, after `_require_agreement`; those of other noise are rejected in place.
    has_registry : bool
        Whether sample sizes are registered.
    """
    votes = selection.votes_of_valid_reports()
    are_sizes_hidden = any(header.protects_sample_size for header, _ in votes)
    are_sizes_known = has_registry or not are_sizes_hidden
    has_noisy_strata = any(header.privacy and header.strata for header, _ in votes)
    if not are_sizes_known or has_noisy_strata:
        selection.require(require_same_noise(votes))
    return are_sizes_known


def _client_of(rejected: RejectedReport) -> str:
    """Return the name that a rejected report is listed under."""
    return rejected.client


def _signature_text(n_signed: int, n_read: int) -> str:
    """Return what was checked of signatures without registered keys, as the record states it.

    Parameters
    ----------
    n_signed : int
        How many reports are signed by the key that they name.
    n_read : int
        How many arrived.
    """
    if not n_signed:
        return "not checked"
    return f"{n_signed} of {n_read} valid, by keys that nobody registered"


def rebuild_from_record(
    reports: Iterable[bytes], sizes: Mapping[str, int], round_strata: RoundStrata
) -> dict[str, Any]:
    """Return what a federation holds of reports that were valid together: nobody votes again.

    Parameters
    ----------
    reports : iterable of bytes
        The reports that counted in a round, as JSON.
    sizes : mapping of str to int
        The sample sizes of that round, which stand in for those that reports hide.
    round_strata : RoundStrata
        The strata and the classes of that round.

    Returns
    -------
    dict
        What `build_fields` returns.

    Raises
    ------
    RobfcpError
        Where any report is not valid, or they are not of one round.
    """
    inbox = Inbox()
    for item in reports:
        inbox.add(item)
    selection = ReportSelection(inbox.finish())
    selection.require(require_known_strata(round_strata))
    selection.require_one_report_each()
    if selection.rejected:
        _, first_rejected = selection.rejected[0]
        raise RobfcpError(first_rejected.reason)

    # Reports of one round differ in noise, strata, classes and coarsening alone.
    headers = selection.reports.headers
    contexts = {
        header._replace(privacy=None, strata=None, min_cell_count=1, class_names=None)
        for header in headers
    }
    if len(contexts) != 1:
        raise RobfcpError("the reports are not of one round")
    return build_fields(selection, sizes, round_strata)


def _check_registered_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the registered number of samples of each client, checked.

    Parameters
    ----------
    sizes : mapping of str to int
        What the caller passed, or what stood in a registry.

    Returns
    -------
    dict of str to int
        The same as plain str and int, in which numpy's types are not left.

    Raises
    ------
    RobfcpError
        Where nobody is registered, a name is no client's, or a size is no whole number from 1 on.
    """
    if not isinstance(sizes, Mapping) or not sizes:
        raise RobfcpError(
            "registered_sizes: registers nobody; map site names to numbers of samples"
        )
    for client in sizes:
        check_client_name(client)
    return {
        str(client): check_integer(
            f"registered_sizes: {client}", size, "register its number of samples", 1
        )
        for client, size in sizes.items()
    }


# ------------------------------------------------------------------------------ tables


@dataclass(frozen=True, eq=False)
class BlockSource:
    """All counts of a round: those of tables that stay where they are, and those in memory.

    Attributes
    ----------
    stored_tables : sequence of StoredTable
        Those whose `set_positions` was called: their blocks need the positions.
    memory : CountBlock
        The counts in memory, as one block; maybe of no clients.
    """

    stored_tables: Sequence[StoredTable]
    memory: CountBlock

    def iter_blocks(self, work: Callable[[CountBlock], T]) -> Iterator[T]:
        """Yield the result of `work` for every block; for one empty block where there is none."""
        if len(self.memory.positions) or not self.stored_tables:
            yield work(self.memory)
        for table in self.stored_tables:
            yield from table.iter_blocks(work)


def build_fields(
    selection: ReportSelection,
    registered_sizes: Mapping[str, int] | None,
    round_strata: RoundStrata,
) -> dict[str, Any]:
    """Return what a federation holds of the valid reports, in the order of their clients' names.

    Tells stored tables where their rows stand in the federation, which changes them.

    Parameters
    ----------
    selection : ReportSelection
        One valid report at least, and one at most of each client. All valid headers agree on
        binning, score, round, model and risk.
    registered_sizes : mapping of str to int, optional
        The sample sizes of reports that hide theirs.
    round_strata : RoundStrata
        The strata and the classes of the round.

    Returns
    -------
    dict
        The fields of `Federation` that follow from the valid reports alone.
    """
    reports = selection.reports
    rows, clients = _order_by_name(reports.clients, selection.is_valid)
    n_clients = len(clients)
    header_index = reports.header_index[rows]
    # All valid headers agree on all but privacy, strata and coarsening: the first stands for them.
    common_header = reports.headers[header_index[0]]
    n_bins = common_header.binning.n_bins
    check_table_size(n_clients, n_bins)

    positions_of = _positions_of_rows(rows, len(reports.sizes))
    in_memory = _build_block_in_memory(selection, positions_of, n_bins, round_strata)
    if reports.stored_tables:
        # Names stay packed: there may be too many for a tuple.
        for table in reports.stored_tables:
            table.set_positions(positions_of, round_strata)
        source = BlockSource(reports.stored_tables, in_memory)
        states_strata = np.array([header.strata is not None for header in reports.headers])
        states_totals = np.array([header.class_names is not None for header in reports.headers])
        tables = _build_stored_tables(
            source,
            n_bins,
            round_strata,
            has_strata=states_strata[header_index],
            has_class_totals=states_totals[header_index],
            has_all_labels=reports.has_all_labels[rows],
        )
    else:
        clients = tuple(clients)
        tables = {
            "table": in_memory.counts,
            "strata": in_memory.strata,
            "all_label_counts": in_memory.all_label_counts,
            "class_totals": in_memory.class_totals,
        }

    sizes = reports.sizes[rows]
    if registered_sizes is not None:
        sizes = _fill_in_sizes(sizes, header_index, reports.headers, clients, registered_sizes)
    return {
        "clients": clients,
        "sample_sizes": sizes,
        "binning": common_header.binning.binning(),
        "score": common_header.score,
        "round": common_header.round,
        "model": common_header.model,
        "risk": common_header.risk,
        "privacy": _privacy_of_clients(header_index, reports.headers),
        "min_cell_counts": _min_cell_counts(header_index, reports.headers),
        **tables,
    }


def _order_by_name(clients: Any, is_valid: BoolArray) -> tuple[IndexArray | slice, Any]:
    """Return the rows of the valid reports in the order of their clients' names, and these names.

    Parameters
    ----------
    clients : list of str, or packed names
        (n,) the clients of all reports. Packed names sort themselves.
    is_valid : (n,) ndarray of bool
        Which reports count.

    Returns
    -------
    rows : (K,) ndarray of int, or slice
        A slice of all rows where all reports are valid and in order, which takes no memory; only
        packed names give one.
    clients : sequence of str
        (K,) the names of these rows, packed as before.
    """
    if not isinstance(clients, list):
        ordered: tuple[IndexArray | slice, Any] = clients.ordered(is_valid)
        return ordered
    rows = np.flatnonzero(is_valid)
    names = [clients[row] for row in rows.tolist()]
    order = sorted(range(len(names)), key=names.__getitem__)
    return rows[order], [names[index] for index in order]


def _positions_of_rows(rows: IndexArray | slice, n_rows: int) -> PositionsOf:
    """Return a function from rows of reports to their positions in the federation.

    That function takes an array or a slice of rows; -1 stands for a report that does not count.

    Parameters
    ----------
    rows : (K,) ndarray of int, or slice
        The rows of the federation's clients, in its order; a slice where that is all of them.
    n_rows : int
        n, how many reports there are.
    """
    if isinstance(rows, slice):
        return _same_positions
    positions = np.full(n_rows, -1, dtype=POSITION_DTYPE)
    positions[rows] = np.arange(len(rows), dtype=POSITION_DTYPE)
    return positions.__getitem__


def _same_positions(rows: slice | IndexArray) -> IndexArray:
    """Return the positions of reports that all count, and arrived in the federation's order.

    Parameters
    ----------
    rows : slice or ndarray of int
        Rows of some reports, which are their positions too.
    """
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def _fill_in_sizes(
    sizes: IntArray,
    header_index: IntArray,
    headers: Sequence[Header],
    clients: Sequence[str],
    registered_sizes: Mapping[str, int],
) -> IntArray:
    """Return the sample sizes, registered ones in place of those that privacy hides.

    Parameters
    ----------
    sizes : (K,) ndarray of int
        n_k as reported: a noisy total where privacy hides it.
    header_index : (K,) ndarray of int
        Which of the headers each client's report has.
    headers : sequence of Header
        The different headers.
    clients : sequence of str
        (K,) the clients' names.
    registered_sizes : mapping of str to int
        The registered sizes.

    Returns
    -------
    (K,) ndarray of int
        A new array where anything is hidden, else `sizes` itself.
    """
    hides_size = np.array([header.protects_sample_size for header in headers], dtype=bool)
    if not hides_size.any():
        return sizes
    sizes = sizes.astype(np.int64)  # a copy, wide enough for any registered size
    for position in np.flatnonzero(hides_size[header_index]).tolist():
        sizes[position] = registered_sizes.get(clients[position], sizes[position])
    return sizes


def _privacy_of_clients(
    header_index: IntArray, headers: Sequence[Header]
) -> tuple[Privacy | None, ...]:
    """Return the privacy of each client's counts; an empty tuple where no report is private.

    Parameters
    ----------
    header_index : (K,) ndarray of int
        Which of the headers each client's report has.
    headers : sequence of Header
        The different headers, those of rejected reports too.
    """
    if not any(header.privacy for header in headers):
        return ()
    return tuple(headers[index].privacy for index in header_index.tolist())


def _min_cell_counts(header_index: IntArray, headers: Sequence[Header]) -> IntArray:
    """Return (K,) the minimum cell count that each client's report states."""
    declared = np.array([header.min_cell_count for header in headers], dtype=np.int64)
    return declared[header_index]


def _build_block_in_memory(
    selection: ReportSelection,
    positions_of: PositionsOf,
    n_bins: int,
    round_strata: RoundStrata,
) -> CountBlock:
    """Return the counts of the valid reports in memory, by their positions in the federation.

    Parameters
    ----------
    selection : ReportSelection
        The reports of the round. Those whose counts stay in files are passed over.
    positions_of : callable
        The position in the federation of each report; -1 where it does not count.
    n_bins : int
        H, the bins of the round's binning.
    round_strata : RoundStrata
        The strata and the classes of the round.
    """
    reports = selection.reports
    rows = np.flatnonzero(reports.is_in_memory)  # row i of the tables is report rows[i]
    positions = positions_of(rows)

    # `build_block` takes rising positions: the rows of the tables in the order of their positions,
    # without those at -1, which come first.
    order = np.argsort(positions, kind="stable")
    table_rows = order[np.searchsorted(positions[order], 0) :]

    tables = reports.tables
    pooled = pool_strata(tables.counts, tables.strata, n_bins)
    return build_block(
        positions[table_rows],
        tables._replace(counts=pooled),
        table_rows,
        reports.headers,
        reports.header_index[rows[table_rows]],
        round_strata,
        n_bins,
    )


def _build_stored_tables(
    source: BlockSource,
    n_bins: int,
    round_strata: RoundStrata,
    *,
    has_strata: BoolArray,
    has_class_totals: BoolArray,
    has_all_labels: BoolArray,
) -> dict[str, CountTable | StratifiedTable | None]:
    """Return the tables of a federation whose counts are not all in memory.

    Parameters
    ----------
    source : BlockSource
        Where they are.
    n_bins : int
        H.
    round_strata : RoundStrata
        The strata and the classes of the round.
    has_strata, has_class_totals, has_all_labels : (K,) ndarray of bool
        Which clients report counts by stratum, class totals, and the scores of all labels.

    Returns
    -------
    dict
        The fields "table", "strata", "class_totals" and "all_label_counts" of `Federation`.
    """

    def stratified(
        name: str, kind: Strata | None, mask: BoolArray, n_bins: int = n_bins
    ) -> StratifiedTable | None:
        """Return the table that blocks hold under `name`, of the clients of a (K,) mask."""
        rows = np.flatnonzero(mask).astype(POSITION_DTYPE)
        if kind is None or not len(rows):
            return None
        by, names = kind
        n_cells = n_strata(names) * n_bins
        view = partial(stratified_view, name)
        counts = StoredCountTable(source, view, len(rows), n_cells, rows)
        return StratifiedTable(by, names, counts, rows, n_bins)

    classes = round_strata.classes
    return {
        "table": StoredCountTable(source, pooled_view, len(has_strata), n_bins),
        "strata": stratified("strata", round_strata.strata, has_strata),
        "class_totals": stratified("class_totals", classes, has_class_totals, n_bins=1),
        "all_label_counts": stratified("all_label_counts", ALL_LABELS_STRATA, has_all_labels),
    }


# ------------------------------------------------------------------------------ signatures


def verify_signatures(
    reports: Iterable[UntrustedReport], keys: Mapping[str, str], round: str
) -> tuple[list[Report], list[RejectedReport]]:
    """Return the reports signed by registered keys, and what is rejected.

    A rejected report is charged to the client it names only where that client sent no genuine one,
    so that nobody can silence another.

    Parameters
    ----------
    reports : iterable
        Reports from anybody, and tables of them, which have no signatures.
    keys : mapping of str to str
        The registered public key of every client; "" where it is expired or revoked, so that no
        report of that client is genuine.
    round : str
        The round they must be for.

    Returns
    -------
    genuine : list of Report
        In the order of arrival.
    rejected : list of RejectedReport
        First those that are not genuine, then what is no readable report.
    """
    genuine: list[Report] = []
    forged: list[tuple[str, ReportError]] = []  # each with its source
    unreadable: list[RejectedReport] = []
    for position, item in enumerate(reports):
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
        source = f"report #{position + 1}"
        if isinstance(item, RawReport):
            data = item.data
            source = item.source
        try:
            genuine.append(signing.verify(_as_bytes(data), Report, keys, round, source))
        except ReportError as error:
            forged.append((source, error))

    heard = {report.client for report in genuine}
    rejected = [_rejection_of_forged(source, error, heard) for source, error in forged]
    return genuine, rejected + unreadable


def _as_bytes(item: object) -> bytes:
    """Return a report as the bytes of its file; b"", which is not signed, for anything else."""
    if isinstance(item, Report):
        return item.to_json()
    if isinstance(item, str):
        return item.encode()
    return item if isinstance(item, bytes) else b""


def _rejection_of_forged(source: str, error: ReportError, heard: set[str]) -> RejectedReport:
    """Return a rejection, in the name of the source where the client it names is heard.

    Parameters
    ----------
    source : str
        Where the report came from: "report #3", or "file:" and a path.
    error : ReportError
        What is wrong; its client is the one that the report names, or the source.
    heard : set of str
        The clients that sent a genuine report.
    """
    if error.client not in heard:
        return RejectedReport.of(error)
    return charge_to_source(source, source.removeprefix("file:"), error.field, str(error))
