"""Untrusted reports in: each is read once, and valid ones become rows of growing tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp._typing import BoolArray, IndexArray, IntArray
from robfcp._validation import set_fields
from robfcp.binning import Binning
from robfcp.errors import MAX_NAME, ReportError, RobfcpError, printable
from robfcp.federation._rows import GrowingColumn, GrowingRows, RunsOfPositions, SparseCounts
from robfcp.federation._strata import Strata
from robfcp.reports import (
    Header,
    HeaderReader,
    Report,
    ReportRow,
    parse_report,
    require_expected_binning,
    row_of_object,
    signing,
    validate_report,
)

# The positions in the federation of some reports, by their rows; -1 where a report does not count.
PositionsOf = Callable[[slice | IndexArray], IndexArray]

MAX_REJECTIONS_LISTED = 2**12  # of a table; with more it is refused, unless as many are valid
POSITION_DTYPE: Any = np.int32  # of the positions of many clients in a federation


class RejectedReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a client's report was left out.

    Parameters
    ----------
    client
        The client's name, or the file's where the client is not known.
    field
        The part of the report that was wrong.
    reason
        What was wrong and what to do, on one printable line.

    Examples
    --------
    >>> import robfcp
    >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.4]) for name in "ab"]
    >>> federation = robfcp.Federation.from_reports(reports, registered_sizes={"a": 2})
    >>> federation.rejected_reports[0].reason
    'b: is not registered; add it to the registry'
    """

    client: str
    field: str
    reason: str

    def __post_init__(self) -> None:
        set_fields(self, client=printable(self.client, MAX_NAME), reason=printable(self.reason))

    @staticmethod
    def of(error: ReportError) -> RejectedReport:
        """Return the rejection that an error is.

        Parameters
        ----------
        error
            What reading the report raised.
        """
        return RejectedReport(error.client, error.field, str(error))


def charge_to_source(source: str, label: str, field: str, reason: str) -> RejectedReport:
    """Return a rejection in the name of the source, not of the client that the report names.

    For a rejected report that names a client with a valid report, so that nobody can discredit or
    silence another.

    Parameters
    ----------
    source : str
        Where the report came from: "report #3", or "file:" and a path.
    label : str
        The source as the reason shows it.
    field : str
        The entry of the report that was wrong.
    reason : str
        What was wrong; it names the client.
    """
    return RejectedReport(source, field, f"{label}: {reason}")


class RawReport(NamedTuple):
    """A report's JSON with the name that errors give it until its client is known."""

    data: bytes | str
    source: str


@dataclass(eq=False)
class Block:
    """n reports in columns, as a table holds them; row i of every column is the same report.

    Attributes
    ----------
    names : sequence of str
        (n,) the clients' names, in Python or in Arrow.
    sizes : (n,) ndarray of int
        n_k.
    headers : list of Header
        What reports state besides, each once.
    kinds : (n,) ndarray of int
        The index among `headers` of each report's header.
    counts : SparseCounts
        Counts of the reports without strata; empty rows for the others.
    strata : SparseCounts
        Counts in cells c H + h of the reports with strata; empty rows for the others.
    all_label_counts : SparseCounts
        Counts of the scores of all labels; empty rows where a report states none.
    """

    names: Any
    sizes: IntArray
    headers: list[Header]
    kinds: IndexArray
    counts: SparseCounts
    strata: SparseCounts
    all_label_counts: SparseCounts


class TableChunk(NamedTuple):
    """N consecutive rows of a table of reports, n of which are valid.

    Attributes
    ----------
    right : (N,) ndarray of bool
        Which rows are valid.
    block : Block
        The n valid rows, in order.
    told : tuple
        (n,) which valid rows state the scores of all labels; and the (n, 2) digests of what the
        valid rows count (`hash_rows`), by which a report that came twice is recognized. The digests
        are only read where the table is out of core.
    others : iterable
        The other rows: the index from 0 of each within the chunk, and its JSON.
    """

    right: BoolArray
    block: Block
    told: tuple[BoolArray, NDArray[np.uint64]]
    others: Iterable[tuple[int, bytes]]


class StoredTable:
    """A table of reports, whose counts may be too many for the memory.

    Attributes
    ----------
    name : str
        How errors name it.
    is_out_of_core : bool
        Whether its counts stay where they are.
    rows : list of (int, int, ndarray of bool or None)
        For every chunk the row of its first valid report among all accepted reports, how many valid
        ones it has, and which of its own N rows are valid; None where all are. `Inbox` fills it.
    places : list of ndarray of int, or range
        For every chunk the positions of its N rows in the federation; -1 where a row is left out.
        `set_positions` fills it.
    common : tuple or None
        The kind of the round's strata and their names; `set_positions` sets it.
    pieces : callable
        `pieces(binning)` yields the rows as `TableChunk`, checked, once.
    iter_blocks : callable
        `iter_blocks(work)` yields the results of `work` for the `CountBlock` of each chunk, in any
        order, the same at every call. Only after `set_positions`.
    packed : callable
        `packed([])` makes a collector of names that takes little memory; it has `extend(names)`
        and `whole()`.
    """

    name: Any
    is_out_of_core: bool
    rows: list[tuple[int, int, BoolArray | None]]
    places: list[IndexArray | range]
    common: Strata | None
    pieces: Any
    iter_blocks: Any
    packed: Any

    def set_positions(self, positions_of: PositionsOf, common: Strata | None) -> None:
        """Keep where the rows stand in the federation, and the round's strata.

        Sets `places` and `common`, without which `iter_blocks` cannot run. Needs `rows`, which
        `Inbox` fills while it reads.

        Parameters
        ----------
        positions_of : callable
            The positions in the federation of some of all accepted reports; -1 where a report does
            not count.
        common : tuple or None
            The kind of the round's strata and their names.
        """
        self.common = common
        self.places = []
        for first, n_rows, is_valid in self.rows:
            positions: Any = positions_of(slice(first, first + n_rows))  # of the valid rows
            if is_valid is not None:
                of_all_rows = np.full(len(is_valid), -1, dtype=POSITION_DTYPE)
                of_all_rows[is_valid] = positions
                positions = of_all_rows
            elif _are_consecutive(positions):
                positions = range(positions[0], positions[-1] + 1)  # instead of many numbers
            self.places.append(positions)


# What may arrive as reports. A `RejectedReport` could not even be read; a table has many of them.
UntrustedReport = (
    Report | bytes | str | Mapping[str, Any] | RejectedReport | RawReport | StoredTable
)


def _are_consecutive(positions: IndexArray) -> bool:
    """Whether positions, one at least, rise one by one from 0 or more."""
    if not len(positions) or positions[0] < 0:
        return False
    return bool((positions[1:] == positions[:-1] + 1).all())


@dataclass(frozen=True, eq=False)
class AcceptedReports:
    """The n valid reports, row by row in the order of arrival, and the rejected ones.

    Of the n reports m have their counts in memory.

    Attributes
    ----------
    clients : sequence of str
        (n,) the clients' names: a list, or packed where there are tables. A name may come more
        than once.
    sizes : (n,) ndarray of int
        n_k, or the noisy total where a report hides it; maybe of a narrow type.
    headers : list of Header
        What reports state besides, each once, in the order of the first that states it.
    header_index : (n,) ndarray of int
        The index among `headers` of each report's header.
    has_all_labels : (n,) ndarray of bool
        Which reports state the scores of all labels.
    tables : tuple of three SparseCounts
        Counts of the reports without strata; counts by stratum; the scores of all labels. Each has
        m rows, of the reports in memory in order; a row is empty where a report has no such counts.
    digests : (n - m, 2) ndarray of uint64
        Of the counts of the other reports in order, as `hash_rows` makes them.
    is_in_memory : (n,) ndarray of bool
        Which rows have their counts in memory.
    positions : RunsOfPositions
        Where each report stood among all that arrived.
    is_discarded : (n,) ndarray of bool
        Rows of tables that could not be read to their end.
    stored_tables : list of StoredTable
        The tables whose counts stay where they are.
    rejected : list of (str, RejectedReport)
        The rejected reports, each with its source ("report #3"), in the order of arrival.
    n_read : int
        How many reports arrived.
    n_signed : int
        How many of them are signed by the key they name.
    """

    clients: Any
    sizes: IntArray
    headers: list[Header]
    header_index: IntArray
    has_all_labels: BoolArray
    tables: tuple[SparseCounts, SparseCounts, SparseCounts]
    digests: NDArray[np.uint64]
    is_in_memory: BoolArray
    positions: RunsOfPositions
    is_discarded: BoolArray
    stored_tables: list[StoredTable]
    rejected: list[tuple[str, RejectedReport]]
    n_read: int
    n_signed: int


class Inbox:
    """Reads untrusted reports, and collects the valid ones in growing tables.

    Reports arrive one by one, or as tables of many. Of each valid one a few numbers are kept in
    arrays, so that a million reports need little memory.

    Parameters
    ----------
    binning : Binning, optional
        The round's binning where it is known. Reports on another one are rejected before that is
        built.
    """

    def __init__(self, binning: Binning | None = None) -> None:
        self._binning = binning
        self._header_reader = HeaderReader(binning)
        self._n_read = 0  # arrivals, rows of tables among them; the next one's position
        self._n_signed = 0
        self._rejected: list[tuple[int, RejectedReport]] = []  # by their position in the arrivals

        # Accepted reports. Row k of every column belongs to the k-th of them.
        self._n_rows = 0
        self._names: list[str] = []  # those since the last table
        self._packed_names: Any = None  # those before it, if a table came
        self._sizes = GrowingColumn()
        self._header_index = GrowingColumn()
        self._has_all_labels = GrowingColumn()
        self._positions = RunsOfPositions()

        # Equal headers are one. Most reports have the one of the report before.
        self._headers: dict[Header, int] = {}
        self._last_header: Header | None = None
        self._last_header_index = 0

        # Counts of the rows that are in memory.
        self._counts = GrowingRows()
        self._strata = GrowingRows()
        self._all_labels = GrowingRows()

        # Tables may keep their counts where they are: then there are digests of their rows.
        self._stored_tables: list[StoredTable] = []
        self._stored_rows: list[slice] = []
        self._digests: list[NDArray[np.uint64]] = []
        self._discarded_rows: list[slice] = []

    def add(self, item: UntrustedReport) -> None:
        """Read one report, or a table of them: keep what is valid, list what is not.

        What is wrong with a report is listed, never raised.

        Parameters
        ----------
        item : UntrustedReport
            What was sent, by anybody.
        """
        if isinstance(item, StoredTable):
            self._add_table(item)
            return
        position = self._n_read
        self._n_read += 1
        if isinstance(item, RejectedReport):
            self._rejected.append((position, item))
            return
        try:
            row = self._read(item, f"report #{position + 1}")
        except ReportError as error:
            self._rejected.append((position, RejectedReport.of(error)))
        else:
            self._add_row(row, position)

    def _read(self, item: Any, source: str) -> ReportRow:
        """Return what a report states; refuse what is no valid report.

        Parameters
        ----------
        item : object
            What was sent. Anything but an `UntrustedReport` is refused.
        source : str
            How errors name it until its client is known.
        """
        if isinstance(item, (bytes, str)):
            return self._read_json(item, source)
        if isinstance(item, RawReport):
            return self._read_json(item.data, item.source)
        if isinstance(item, Report):
            if self._binning is not None:
                require_expected_binning(item.client, item.grid, self._binning)
            return row_of_object(item, self._header_reader)
        if isinstance(item, Mapping):
            try:
                data = msgspec.json.encode(dict(item))
            except (TypeError, ValueError, OverflowError, RecursionError):
                raise ReportError(source, "report", "is not JSON data", "send a report") from None
            return self._read_json(data, source)
        problem = f"{type(item).__name__} is not a report"
        raise ReportError(source, "report", problem, "pass Report objects or JSON")

    def _read_json(self, data: bytes | str, source: str) -> ReportRow:
        """Return what a report states, signed or not; refuse what is no valid report.

        Counts it in `_n_signed` if it is signed by the key that it names.
        """
        if isinstance(data, bytes) and signing.looks_signed(data):
            signed = data
            data = signing.unwrap(signed)
            self._n_signed += signing.check_embedded_key(signed, source)
        report = parse_report(data, source, self._binning)
        return validate_report(report, self._header_reader)

    def _add_row(self, row: ReportRow, position: int) -> None:
        """Keep a valid report that arrived at a position, counted from 0."""
        header_index = self._index_of(row.header)
        self._n_rows += 1
        self._names.append(row.client)
        self._sizes.append(row.n_samples)
        self._header_index.append(header_index)
        self._has_all_labels.append(row.all_label_counts is not None)
        self._positions.append(position)
        for rows, counts in (
            (self._counts, row.counts),
            (self._strata, row.strata),
            (self._all_labels, row.all_label_counts),
        ):
            if counts is None:
                rows.append_empty()
            else:
                rows.append(counts.cells, counts.counts)

    def _index_of(self, header: Header) -> int:
        """Return the index of a header among the different ones; a new one is put last."""
        # Readers return the same object for equal headers in a row: that saves to hash it.
        if header is not self._last_header:
            self._last_header = header
            self._last_header_index = self._headers.setdefault(header, len(self._headers))
        return self._last_header_index

    def _add_table(self, table: StoredTable) -> None:
        """Keep the valid rows of a table; read each other row by itself, for the reason.

        A table that breaks off is one rejected file, and none of its rows counts: those kept so far
        are discarded, for columns cannot shrink.

        Parameters
        ----------
        table : StoredTable
            Its `rows` are filled. It is kept only if its counts stay where they are.
        """
        first_row = self._n_rows
        first_position = self._n_read
        n_rejected = len(self._rejected)
        try:
            for chunk in table.pieces(self._binning):
                position = self._n_read
                self._n_read += len(chunk.right)
                self._add_chunk(chunk, position, table)
                for index, data in chunk.others:
                    row_in_table = position - first_position + index
                    source = f"{table.name} row {row_in_table + 1}"
                    self._add_single_row(data, source, position + index)
                n_wrong = len(self._rejected) - n_rejected
                if n_wrong > max(MAX_REJECTIONS_LISTED, self._n_rows - first_row):
                    raise RobfcpError(f"{table.name}: most of its rows are no reports; make others")
        except RobfcpError as error:
            del self._rejected[n_rejected:]
            self._discarded_rows.append(slice(first_row, self._n_rows))
            rejected = RejectedReport(f"file:{table.name}", "file", str(error))
            self._rejected.append((self._n_read, rejected))
            self._n_read += 1
        else:
            if table.is_out_of_core:
                self._stored_tables.append(table)

    def _add_single_row(self, data: bytes, source: str, position: int) -> None:
        """Keep or reject a row of a table that could not be checked in columns.

        Its counts are kept in memory, even where the table is out of core. A private report is such
        a row, and may be valid.
        """
        try:
            row = self._read_json(data, source)
        except ReportError as error:
            self._rejected.append((position, RejectedReport.of(error)))
        else:
            self._add_row(row, position)

    def _add_chunk(self, chunk: TableChunk, first_position: int, table: StoredTable) -> None:
        """Keep the valid rows of a chunk of a table; their counts only where these are in memory.

        Parameters
        ----------
        chunk : TableChunk
            The next rows of the table.
        first_position : int
            The position of the chunk's first row among all that arrived, valid or not.
        table : StoredTable
            An entry is appended to its `rows`.
        """
        block = chunk.block
        n_rows = len(block.sizes)
        are_all_valid = bool(chunk.right.all())
        table.rows.append((self._n_rows, n_rows, None if are_all_valid else chunk.right))
        if not n_rows:
            return

        if self._packed_names is None:
            self._packed_names = table.packed([])
        self._pack_names()
        self._packed_names.extend(block.names)
        header_indices = [
            self._headers.setdefault(header, len(self._headers)) for header in block.headers
        ]
        has_all_labels, digests = chunk.told
        self._sizes.extend(block.sizes)
        self._header_index.extend(np.array(header_indices)[block.kinds])
        self._has_all_labels.extend(has_all_labels)
        self._positions.extend(first_position, chunk.right)

        rows = slice(self._n_rows, self._n_rows + n_rows)
        self._n_rows = rows.stop
        if table.is_out_of_core:
            self._stored_rows.append(rows)
            self._digests.append(digests)
            return
        self._counts.extend(block.counts)
        self._strata.extend(block.strata)
        self._all_labels.extend(block.all_label_counts)

    def _pack_names(self) -> None:
        """Append the names that came one by one to the packed ones, which then are all so far."""
        if self._names:
            self._packed_names.extend(self._names)
            self._names = []

    def finish(self) -> AcceptedReports:
        """Return all valid and rejected reports; nothing may be added any more."""
        clients: Any = self._names
        if self._packed_names is not None:
            self._pack_names()
            clients = self._packed_names.whole()

        self._rejected.sort(key=itemgetter(0))  # a chunk's other rows may come in any order
        rejected = [(f"report #{position + 1}", report) for position, report in self._rejected]
        tables = (self._counts.whole(), self._strata.whole(), self._all_labels.whole())
        no_digests = np.zeros((0, 2), np.uint64)
        return AcceptedReports(
            clients=clients,
            sizes=self._sizes.whole(),
            headers=list(self._headers),
            header_index=self._header_index.whole(),
            has_all_labels=self._has_all_labels.whole().astype(bool),
            tables=tables,
            digests=np.concatenate([no_digests, *self._digests]),
            is_in_memory=~_mask_of(self._stored_rows, self._n_rows),
            positions=self._positions,
            is_discarded=_mask_of(self._discarded_rows, self._n_rows),
            stored_tables=self._stored_tables,
            rejected=rejected,
            n_read=self._n_read,
            n_signed=self._n_signed,
        )


def _mask_of(slices: Sequence[slice], n_rows: int) -> BoolArray:
    """Return (n,) which of n rows are in any of some slices; these have a start and a stop."""
    mask = np.zeros(n_rows, dtype=bool)
    for rows in slices:
        mask[rows] = True
    return mask
