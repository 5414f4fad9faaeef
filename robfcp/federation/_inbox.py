"""Untrusted reports in: each is read once, and valid ones become rows of growing tables."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_, itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp._typing import BoolArray, IndexArray, IntArray
from robfcp._validation import set_fields
from robfcp.binning import Binning
from robfcp.errors import MAX_NAME, ReportError, RobfcpError, printable
from robfcp.federation._tables import SparseCounts
from robfcp.reports import (
    BinningDigest,
    CellCounts,
    Header,
    HeaderReader,
    Report,
    ReportRow,
    Strata,
    StratumNames,
    parse_report,
    require_expected_binning,
    signing,
    validate_report,
)


class RoundStrata(NamedTuple):
    """By which strata a round has counts, and of which classes totals.

    Attributes
    ----------
    strata : tuple or None
        The kind of strata, and their names; None where all counts are pooled.
    class_names : tuple of str, int or None
        The names of the classes that totals are of, or their number; None without totals.
    """

    strata: Strata | None
    class_names: StratumNames | None

    @property
    def classes(self) -> Strata | None:
        """The classes that totals are of, as strata; None without totals."""
        return None if self.class_names is None else ("class", self.class_names)


# The positions in the federation of some reports, by their rows; -1 where a report does not count.
PositionsOf = Callable[[slice | IndexArray], IndexArray]

MAX_REJECTIONS_LISTED = 2**12  # of a table; with more it is refused, unless as many are valid
POSITION_DTYPE: Any = np.int32  # of the positions of many clients in a federation
_MAX_RECENT = 2**14  # values that wait to be put in an array of a small type


class RejectedReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a client's report was left out.

    Parameters
    ----------
    client : str
        The client's name, or the file's where the client is not known.
    field : str
        The part of the report that was wrong.
    reason : str
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
        error : ReportError
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
    header_index : (n,) ndarray of int
        The index among `headers` of each report's header.
    counts : SparseCounts
        Counts of the reports without strata; empty rows for the others.
    strata : SparseCounts
        Counts in cells c H + h of the reports with strata; empty rows for the others.
    all_label_counts : SparseCounts
        Counts of the scores of all labels; empty rows where a report states none.
    class_totals : SparseCounts
        Rounded samples of each class; empty rows where a report states none.
    """

    names: Any
    sizes: IntArray
    headers: list[Header]
    header_index: IndexArray
    counts: SparseCounts
    strata: SparseCounts
    all_label_counts: SparseCounts
    class_totals: SparseCounts

    @property
    def tables(self) -> ReportTables:
        """All that the reports count."""
        return ReportTables(self.counts, self.strata, self.all_label_counts, self.class_totals)


class ReportTables(NamedTuple):
    """What n reports count, row by row; a row is empty where a report has no such counts.

    Attributes
    ----------
    counts : SparseCounts
        Of the reports without strata, or of all, pooled over the strata.
    strata : SparseCounts
        By stratum, in cells c H + h.
    all_label_counts : SparseCounts
        Of the scores of all labels.
    class_totals : SparseCounts
        Rounded samples of each class.
    """

    counts: SparseCounts
    strata: SparseCounts
    all_label_counts: SparseCounts
    class_totals: SparseCounts


class TableChunk(NamedTuple):
    """N consecutive rows of a table of reports, n of which are valid.

    Attributes
    ----------
    is_valid : (N,) ndarray of bool
        Which rows are valid.
    block : Block
        The n valid rows, in order.
    has_all_labels : (n,) ndarray of bool
        Which valid rows state the scores of all labels.
    digests : (n, 2) ndarray of uint64
        Of what the valid rows count (`hash_rows`), by which a report that came twice is recognized.
        They are only read where the table is out of core.
    invalid_rows : iterable
        The other rows: the index from 0 of each within the chunk, and its JSON.
    """

    is_valid: BoolArray
    block: Block
    has_all_labels: BoolArray
    digests: NDArray[np.uint64]
    invalid_rows: Iterable[tuple[int, bytes]]


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
    positions : list of ndarray of int, or range
        For every chunk the positions of its N rows in the federation; -1 where a row is left out.
        `set_positions` fills it.
    round_strata : RoundStrata
        The strata and the classes of the round; `set_positions` sets it.
    iter_chunks : callable
        `iter_chunks(binning)` yields the rows as `TableChunk`, checked, once.
    iter_blocks : callable
        `iter_blocks(work)` yields the results of `work` for the `CountBlock` of each chunk, in any
        order, the same at every call. Only after `set_positions`.
    names_builder : callable
        `names_builder([])` makes a collector of names that takes little memory; it has
        `extend(names)` and `finish()`.
    """

    name: Any
    is_out_of_core: bool
    rows: list[tuple[int, int, BoolArray | None]]
    positions: list[IndexArray | range]
    round_strata: RoundStrata
    iter_chunks: Any
    iter_blocks: Any
    names_builder: Any

    def set_positions(self, positions_of: PositionsOf, round_strata: RoundStrata) -> None:
        """Keep where the rows stand in the federation, and the round's strata.

        Sets `positions` and `round_strata`, without which `iter_blocks` cannot run. Needs `rows`,
        which `Inbox` fills while it reads.

        Parameters
        ----------
        positions_of : callable
            The positions in the federation of some of all accepted reports; -1 where a report does
            not count.
        round_strata : RoundStrata
            The strata and the classes of the round.
        """
        self.round_strata = round_strata
        self.positions = []
        # Each chunk's valid rows are consecutive among all accepted reports.
        for first, n_rows, is_valid in self.rows:
            positions: Any = positions_of(slice(first, first + n_rows))  # of the valid rows
            if is_valid is not None:
                of_all_rows = np.full(len(is_valid), -1, dtype=POSITION_DTYPE)
                of_all_rows[is_valid] = positions
                positions = of_all_rows
            elif _are_consecutive(positions):
                positions = range(positions[0], positions[-1] + 1)  # instead of many numbers
            self.positions.append(positions)


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
    tables : ReportTables
        What the m reports in memory count, in order.
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
    tables: ReportTables
    digests: NDArray[np.uint64]
    is_in_memory: BoolArray
    positions: RunsOfPositions
    is_discarded: BoolArray
    stored_tables: list[StoredTable]
    rejected: list[tuple[str, RejectedReport]]
    n_read: int
    n_signed: int


def narrowed(values: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers in the smallest unsigned type; as they are if one is negative.

    Beyond 32 bits it is int64: numpy has no integer type for the sum of int64 and uint64.
    """
    if values.min(initial=0) < 0:
        return values
    largest = int(values.max(initial=0))
    if largest >= 2**32:
        return values.astype(np.int64, copy=False)
    return values.astype(np.min_scalar_type(largest), copy=False)


class GrowingColumn:
    """Whole numbers that come some at a time, in an array of the smallest type that holds them.

    The array grows in place: a list of parts and the array that joins them would need twice the
    memory. Numbers that come one by one wait in an `array` of C integers until there are many. They
    must fit in 64 bits with a sign.
    """

    def __init__(self) -> None:
        self._recent = array("q")
        self._array: NDArray[Any] = np.zeros(0, np.uint8)
        self._length = 0

    def append(self, value: int) -> None:
        """Append one number."""
        self._recent.append(value)
        if len(self._recent) >= _MAX_RECENT:
            self._settle()

    def extend(self, values: Sequence[int] | NDArray[Any]) -> None:
        """Append (n,) whole numbers."""
        if not isinstance(values, np.ndarray):
            self._recent.extend(values)
        elif len(values) < _MAX_RECENT:
            self._recent.frombytes(values.astype(np.int64).tobytes())
        else:
            self._settle()
            self._join(values)
        if len(self._recent) >= _MAX_RECENT:
            self._settle()

    def _settle(self) -> None:
        """Move the numbers that wait to the array."""
        recent = np.array(self._recent, dtype=np.int64)
        self._recent = array("q")
        self._join(recent)

    def _join(self, values: NDArray[Any]) -> None:
        """Append numbers to the array; none may wait that came before them."""
        values = narrowed(values)
        wider_type = np.promote_types(self._array.dtype, values.dtype)
        joined = self._array.astype(wider_type, copy=False)
        start = self._length
        stop = start + len(values)
        if stop > len(joined):
            # An eighth is left free, so that few appended numbers seldom need a larger array.
            # `whole` hands the array out only at the end, so nobody else refers to it.
            joined.resize(stop + stop // 8, refcheck=False)
        joined[start:stop] = values
        self._array = joined
        self._length = stop

    def concatenated(self) -> NDArray[Any]:
        """Return all numbers in the smallest type; nothing may be appended any more."""
        self._settle()
        self._array.resize(self._length, refcheck=False)
        return self._array


class GrowingRows:
    """Rows of cells with counts that come one by one, or many at a time, in little memory."""

    def __init__(self) -> None:
        self._lengths = GrowingColumn()
        self._cells = GrowingColumn()
        self._counts = GrowingColumn()

    def append(
        self, cells: Sequence[int] | NDArray[Any], counts: Sequence[int] | NDArray[Any]
    ) -> None:
        """Append a row of (u,) rising cells with the count of each."""
        self._lengths.append(len(cells))
        self._cells.extend(cells)
        self._counts.extend(counts)

    def append_empty(self) -> None:
        """Append a row without counts."""
        self._lengths.append(0)

    def extend(self, rows: SparseCounts) -> None:
        """Append (n,) rows."""
        self._lengths.extend(rows.lengths)
        self._cells.extend(rows.bins)
        self._counts.extend(rows.values)

    def concatenated(self) -> SparseCounts:
        """Return all rows; nothing may be appended any more."""
        return SparseCounts.from_lengths(
            self._lengths.concatenated(), self._cells.concatenated(), self._counts.concatenated()
        )


class RunsOfPositions:
    """Where each row stood among all that arrived: positions that rise one by one almost always.

    Only the first row of each run of consecutive positions is kept, with its position.
    """

    def __init__(self) -> None:
        self._n_rows = 0
        self._next = -1  # the position that would go on with the last run
        self._first_rows: list[int] = []
        self._first_positions: list[int] = []

    def append(self, position: int) -> None:
        """Append the position of the next row."""
        if position != self._next:
            self._first_rows.append(self._n_rows)
            self._first_positions.append(position)
        self._n_rows += 1
        self._next = position + 1

    def extend(self, first: int, is_row: BoolArray) -> None:
        """Append the positions of some of N consecutive arrivals.

        Parameters
        ----------
        first : int
            The position of the first arrival.
        is_row : (N,) ndarray of bool
            Which of the arrivals are rows.
        """
        positions = first + np.flatnonzero(is_row)
        if not len(positions):
            return
        begins_run = np.ones(len(positions), dtype=bool)
        begins_run[1:] = np.diff(positions) != 1
        begins_run[0] = positions[0] != self._next
        self._first_rows.extend((self._n_rows + np.flatnonzero(begins_run)).tolist())
        self._first_positions.extend(positions[begins_run].tolist())
        self._n_rows += len(positions)
        self._next = int(positions[-1]) + 1

    def position_of(self, row: int) -> int:
        """Return the position of a row, both counted from 0."""
        run = bisect_right(self._first_rows, row) - 1
        return self._first_positions[run] + row - self._first_rows[run]


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
        self._last_parts: tuple[object, ...] = ()  # of the report object read last
        self._last_object_header: Header | None = None

        # Counts of the rows that are in memory.
        self._counts = GrowingRows()
        self._strata = GrowingRows()
        self._all_labels = GrowingRows()
        self._class_totals = GrowingRows()

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
                require_expected_binning(item.client, item.binning, self._binning)
            return self._read_object(item)
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

    def _read_object(self, report: Report) -> ReportRow:
        """Return the row of a report object, which was checked when it was made."""
        strata = report.strata
        # Sums over classes without noise are kept too: an object is never taken for the file of the
        # same report, and the two contradict each other.
        counts = None
        if strata is None or report.privacy is None:
            counts = _nonzero_counts(report.counts)
        listed_strata = None
        if strata is not None:
            listed_strata = CellCounts(strata.cells, strata.counts)
        all_labels = None
        if report.all_label_counts is not None:
            all_labels = _nonzero_counts(report.all_label_counts)
        totals = None
        if report.class_totals is not None:
            totals = _nonzero_counts(report.class_totals.totals)
        header = self._header_of_object(report)
        return ReportRow(
            report.client, report.n_samples, header, counts, listed_strata, all_labels, totals
        )

    def _header_of_object(self, report: Report) -> Header:
        """Return the header of a report object.

        Objects of one program share their parts. So the header of the object before is returned
        where the parts are the very same ones.
        """
        binning = report.binning
        strata = None
        stratum_parts: tuple[object, ...] = (None, None)
        if report.strata is not None:
            strata = (report.strata.by, report.strata.names)
            stratum_parts = strata
        class_names = None if report.class_totals is None else report.class_totals.names
        fields = (
            binning,
            report.score,
            report.round,
            report.model,
            report.risk,
            report.privacy,
            report.min_cell_count,
            class_names,
            *stratum_parts,
        )
        if self._last_object_header is not None and all(map(is_, fields, self._last_parts)):
            return self._last_object_header

        header = Header(
            BinningDigest.of(binning),
            report.score,
            report.round,
            report.model,
            report.risk,
            report.privacy,
            strata,
            report.min_cell_count,
            class_names,
        )
        self._last_parts = fields
        self._last_object_header = header
        return header

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
            (self._class_totals, row.class_totals),
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
            for chunk in table.iter_chunks(self._binning):
                position = self._n_read
                self._n_read += len(chunk.is_valid)
                self._add_chunk(chunk, position, table)
                for index, data in chunk.invalid_rows:
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
        are_all_valid = bool(chunk.is_valid.all())
        table.rows.append((self._n_rows, n_rows, None if are_all_valid else chunk.is_valid))
        if not n_rows:
            return

        # Names that came before go first, so that names stay in the order of the rows.
        if self._packed_names is None:
            self._packed_names = table.names_builder([])
        self._pack_names()
        self._packed_names.extend(block.names)

        # The index among all headers of each header of the block; new ones are put last.
        header_indices = [
            self._headers.setdefault(header, len(self._headers)) for header in block.headers
        ]
        self._sizes.extend(block.sizes)
        self._header_index.extend(np.array(header_indices)[block.header_index])
        self._has_all_labels.extend(chunk.has_all_labels)
        self._positions.extend(first_position, chunk.is_valid)

        rows = slice(self._n_rows, self._n_rows + n_rows)
        self._n_rows = rows.stop
        if table.is_out_of_core:
            self._stored_rows.append(rows)
            self._digests.append(chunk.digests)
            return
        self._counts.extend(block.counts)
        self._strata.extend(block.strata)
        self._all_labels.extend(block.all_label_counts)
        self._class_totals.extend(block.class_totals)

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
            clients = self._packed_names.finish()

        self._rejected.sort(key=itemgetter(0))  # a chunk's other rows may come in any order
        rejected = [(f"report #{position + 1}", report) for position, report in self._rejected]
        tables = ReportTables(
            self._counts.concatenated(),
            self._strata.concatenated(),
            self._all_labels.concatenated(),
            self._class_totals.concatenated(),
        )
        no_digests = np.zeros((0, 2), np.uint64)
        return AcceptedReports(
            clients=clients,
            sizes=self._sizes.concatenated(),
            headers=list(self._headers),
            header_index=self._header_index.concatenated(),
            has_all_labels=self._has_all_labels.concatenated().astype(bool),
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


def _nonzero_counts(counts: IntArray) -> CellCounts:
    """Return the counts other than 0 of (H,) counts, with their bins."""
    bins = np.flatnonzero(counts)
    return CellCounts(bins, counts[bins])
