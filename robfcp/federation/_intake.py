"""Untrusted reports in, one table of the valid ones out; the rest is listed with the reason."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress, pairwise
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp._typing import BoolArray, IndexArray, IntArray
from robfcp._validation import MAX_SAMPLES, are_client_names, check_client_name, check_integer
from robfcp.binning import Binning
from robfcp.errors import MAX_NAME, ReportError, RobfcpError, printable
from robfcp.federation import _agreement
from robfcp.federation._agreement import RejectionReason
from robfcp.federation._blocks import CountBlock, build_block, pooled_view, stratified_view
from robfcp.federation._rows import GrowingColumns, RowParts, SparseCounts, sum_duplicate_cells
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
    _wire,
    n_strata,
    signing,
)

T = TypeVar("T")
FilePath = str | os.PathLike[str]
Places = Callable[[slice], IndexArray]
Told = tuple[BoolArray, NDArray[np.uint32]]  # which rows tell how large sets are; all rows' digests

MAX_ENTRIES_PER_REPORT = 2**20  # of one report: sums of so many counts stay within 64 bits
MAX_REJECTIONS_LISTED = 2**12  # rows of a table, each told by itself
_REPORTS = 512  # checked at a time: their numbers stay in the cache
_ENTRIES = 2**14
_WAITING_BYTES = 2**23  # of JSON, kept until its numbers are known to be right
_KEPT_HEADERS = 256
_KEPT_BYTES = 2**16  # of a report whose header is kept
POSITION_DTYPE: Any = np.int32  # in which places of many sites are told
_MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)  # odd, with bits in no order


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
        msgspec.structs.force_setattr(self, "client", printable(self.client, MAX_NAME))
        msgspec.structs.force_setattr(self, "reason", printable(self.reason))

    @staticmethod
    def of(error: ReportError) -> RejectedReport:
        """Why a report was refused.

        Parameters
        ----------
        error
            What reading it raised.
        """
        return RejectedReport(error.client, error.field, str(error))


class RawReport(NamedTuple):
    """A report's JSON with the name that errors give it until its client is known."""

    data: bytes | str
    source: str


UntrustedReport = (
    Report | bytes | str | Mapping[str, Any] | RejectedReport | RawReport
)  # a fault: found while reading
IntSequence = Sequence[int] | NDArray[np.int64]
Listed = tuple[IntSequence, IntSequence]  # cells and what is in them


class Entry(NamedTuple):
    """One report that waits to be checked with others, or is known to be right."""

    client: str
    size: int
    header: Header
    position: int
    sent: RawReport | None  # to be read again; None where nothing can be wrong
    parts: tuple[Listed | None, ...]  # counts by bin, by class in steps, of all labels by bin


@dataclass(eq=False)
class Block:
    """Reports in columns: names, sizes, headers (each kind once) and counts, in use or claimed.

    Counts by class make the counts of those that state no others. Those `known` were checked
    before: they hold noise, or came as objects.
    """

    names: Any
    sizes: IntArray
    headers: list[Header]
    kinds: IndexArray
    known: BoolArray
    counts: SparseCounts
    strata: SparseCounts
    told: SparseCounts

    @staticmethod
    def of(entries: list[Entry]) -> Block:
        """The reports that came one by one."""
        columns = zip(*entries, strict=True) if entries else ((),) * len(Entry._fields)
        names, sizes, headers, _, sent, parts = map(list, columns)
        counts, strata, told = zip(*parts, strict=True) if parts else ((), (), ())
        own = {id(header): header for header in headers}  # in the order of the first that has it
        number = {one: k for k, one in enumerate(own)}
        held, labels, steps = map(_rows, (counts, told, strata))
        reached = np.concatenate([[0], np.cumsum(steps.bins)])
        cells = reached[1:] - np.repeat(reached[steps.starts[:-1]], steps.lengths)
        return Block(
            names=names,
            sizes=np.array(sizes, dtype=np.int64),
            headers=list(own.values()),
            kinds=np.array([number[id(header)] for header in headers], dtype=np.intp),
            known=np.array([one is None for one in sent], dtype=bool),
            counts=held,
            strata=SparseCounts(steps.starts, cells, steps.values),
            told=labels,
        )

    @property
    def bins(self) -> IntArray:
        """(kinds,) how many bins each header's grid has."""
        return np.array([header.binning.n_bins for header in self.headers], dtype=np.int64)

    def fine(self, named: BoolArray) -> BoolArray:
        """(n,) which reports are right, by the rules of `robfcp.reports`; `named`: so far."""
        units = np.array([1 if h.risk is None else h.risk.resolution for h in self.headers])
        bins = self.bins
        cells = bins * np.array([h.n_strata for h in self.headers])
        fine = named & (self.sizes >= 1) & (self.sizes <= MAX_SAMPLES)
        fine &= _fit(self.strata, cells[self.kinds], 1) & _fit(self.counts, bins[self.kinds])
        totals = self.strata.sums(self.strata.values) + self.counts.sums(self.counts.values)
        fine &= (totals <= MAX_SAMPLES) & (totals == self.sizes * units[self.kinds])
        if len(self.told.bins):
            labels, samples = self.told.sums(self.told.values), np.maximum(self.sizes, 1)
            right = (labels <= MAX_SAMPLES) & (labels >= samples) & (labels % samples == 0)
            right &= _fit(self.told, bins[self.kinds])
            fine &= right | (self.told.lengths == 0)
        return fine | self.known

    def digests(self) -> NDArray[np.uint32]:
        """(n,) numbers equal for rows of the same content; of others hardly ever."""
        found = np.zeros(len(self.sizes), dtype=np.uint64)
        for number, part in enumerate((self.counts, self.strata, self.told)):
            code = (part.bins.astype(np.uint64) * np.uint64(3) + np.uint64(number)) * _MIX[0]
            code = (code ^ (code >> np.uint64(29))) * _MIX[1] | np.uint64(1)
            code *= part.values.astype(np.uint64)
            found += np.diff(np.concatenate([np.zeros(1, np.uint64), np.cumsum(code)])[part.starts])
        return (found >> np.uint64(32)).astype(np.uint32)

    def pooled(self) -> RowParts:
        """Every row's counts on the grid, without empty bins."""
        lengths, bins, values = _in_use(self.counts, ~self.known)  # noise can leave nothing
        if lengths.all():
            return lengths, bins, values
        derived = lengths == 0
        owners, cells, sums = self.strata.owners, self.strata.bins, self.strata.values
        if not derived.all():
            inside = derived[owners]
            owners, cells, sums = owners[inside], cells[inside], sums[inside]
        width = self.bins
        width = width[0] if (width == width[0]).all() else width[self.kinds[owners]]
        return sum_duplicate_cells(
            np.concatenate([np.repeat(np.arange(len(lengths)), lengths), owners]),
            np.concatenate([bins, cells - cells // width * width]),  # faster than % by one number
            np.concatenate([values, sums]),
            len(lengths),
        )


def _rows(parts: Sequence[Listed | None]) -> SparseCounts:
    """The lists of some reports one after another, on a grid to be told; others have none."""
    used = [part for part in parts if part is not None]
    cells, values = zip(*used, strict=True) if used else ((), ())
    lengths = np.zeros(len(parts), dtype=np.int64)
    own = np.fromiter(map(len, values), np.int64, len(used))
    lengths[slice(None) if len(used) == len(parts) else [p is not None for p in parts]] = own
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return SparseCounts(starts, _chained(cells, starts[-1]), _chained(values, starts[-1]))


def _chained(parts: Sequence[IntSequence], number: int) -> IntArray:
    """Lists of reports' JSON and arrays of report objects, one after another."""
    if parts and all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts).astype(np.int64, copy=False)
    return np.fromiter(chain.from_iterable(parts), np.int64, number)


def _fit(part: SparseCounts, limits: IntArray, lowest: int = 0) -> BoolArray:
    """(n,) of which rows the cells rise within 0..limit - 1 and the values are counts."""
    wrong = (part.values < lowest) | (part.values > MAX_SAMPLES)
    lengths = part.lengths
    some = lengths > 0
    firsts, lasts = part.starts[:-1][some], part.starts[1:][some] - 1
    falls = np.zeros(len(part.bins), dtype=bool)
    np.less_equal(part.bins[1:], part.bins[:-1], out=falls[1:])
    falls[firsts] = part.bins[firsts] < 0
    falls[lasts] |= part.bins[lasts] >= limits[some]
    wrong |= falls
    fine = lengths <= MAX_ENTRIES_PER_REPORT
    return fine & (part.sums(wrong) == 0) if wrong.any() else fine


def _in_use(part: SparseCounts, rows: BoolArray) -> RowParts:
    """Lengths, cells and values without those of 0 in the chosen rows."""
    empty = part.values == 0
    if empty.any():
        kept = ~(empty & rows[part.owners])
        return part.sums(kept), part.bins[kept], part.values[kept]
    return part.lengths, part.bins, part.values


class TableChunk(NamedTuple):
    """A part of a table: which rows are right, these, and the JSON of the others by their rows."""

    right: BoolArray
    block: Block
    told: Told
    others: Iterable[tuple[int, bytes]]


class StoredTable:
    """A table of reports; where it `stays` its counts are left where they are.

    `pieces(grid)` are its rows, checked; `each(work)` is what work makes of its portions; `packed`
    makes names that take little memory of a list. `rows` are of every piece where its right rows
    begin among all reports, how many and which they are; `places` where its rows are among the
    valid ones, -1 where they are not; `common` are the round's classes.
    """

    name: Any
    is_out_of_core: bool
    rows: list[tuple[int, int, BoolArray | None]]  # the first, how many, which if not all
    places: list[IndexArray | range]
    common: tuple[StratumKind, StratumNames] | None
    pieces: Any
    iter_blocks: Any
    packed: Any

    def kept(self, places: Places, common: tuple[StratumKind, StratumNames] | None) -> StoredTable:
        """The same with the final places, and the classes of the round."""
        self.places, self.common = [], common
        for first, number, right in self.rows:
            own: Any = places(slice(first, first + number))
            if right is not None:
                found = np.full(len(right), -1, dtype=POSITION_DTYPE)
                found[right], own = own, found
            elif len(own) and own[0] >= 0 and (own[1:] == own[:-1] + 1).all():
                own = range(own[0], own[-1] + 1)
            self.places.append(own)
        return self


@dataclass(frozen=True, eq=False)
class BlockSource:
    """All that a round holds: what lies in tables, and what is in memory."""

    shards: Sequence[StoredTable]
    memory: CountBlock

    def iter_blocks(self, work: Callable[[CountBlock], T]) -> Iterator[T]:
        """What `work` makes of every block."""
        if len(self.memory.positions) or not self.shards:
            yield work(self.memory)
        for shard in self.shards:
            yield from shard.iter_blocks(work)


class Intake:
    """Everything that arrived: from whom, in which context, with what counts; what was refused.

    Parameters
    ----------
    grid
        The round's grid where it is known: a report on another one is refused unbuilt.

    Rows of tables that stay where they are have names, sizes and headers here, but no counts.
    """

    def __init__(self, grid: Binning | None = None) -> None:
        self.refused: list[tuple[str, RejectedReport]] = []  # each with where it came from
        self.clients: Any = []  # a list, or packed where there are tables
        self.headers: dict[Header, int] = {}  # equal headers are one; in the order of the first
        self._grid = grid
        self.signed = self.read = self._entries = self._bytes = 0
        self._waiting: list[Entry] = []
        self._faults: list[tuple[int, RejectedReport]] = []  # by position among all that came
        self._known_headers: dict[tuple[object, ...], Header] = {}
        self._columns = GrowingColumns(4)  # sizes, headers, who tells how large sets are, digests
        self._firsts: list[int] = []  # of every block that was kept, the first report's place
        self._positions: list[Sequence[int]] = []  # and where all of its reports stood
        self._parts = [GrowingColumns(3) for _ in range(3)]
        self._shards: list[StoredTable] = []
        self._kept = 0
        self._lost: list[slice] = []
        self._memory: list[slice] = []  # places of those whose counts are held here

    def add(self, item: UntrustedReport | StoredTable) -> None:
        """Take one thing that should be a report, or a table of them."""
        position = self.read
        if isinstance(item, StoredTable):
            return self._add_rows(item)
        self.read = position + 1
        if isinstance(item, (bytes, str)):
            item = RawReport(item, f"report #{position + 1}")
        read: Any = self._entry if isinstance(item, RawReport) else self._other
        self._wait(read(item, position))

    def _add_rows(self, shard: StoredTable) -> None:
        """What is right of a table is kept, each other row is read again by itself."""
        self._flush()
        first, began, before = self._kept, self.read, len(self._faults)
        try:
            for piece in shard.pieces(self._grid):
                position, self.read = self.read, self.read + len(piece.right)
                own, whole = np.flatnonzero(piece.right), piece.right.all()
                shard.rows.append((self._kept, len(own), None if whole else piece.right))
                positions = range(position, self.read) if whole else (position + own).tolist()
                self._keep(piece.block, positions, piece.told, shard)
                for row, data in piece.others:
                    sent = RawReport(data, f"{shard.name} row {position - began + row + 1}")
                    self._wait(self._entry(sent, position + row))
                self._flush()
                wrong = len(self._faults) - before
                if wrong > max(MAX_REJECTIONS_LISTED, self._kept - first):
                    raise RobfcpError(f"{shard.name}: most of its rows are no reports; make others")
        except RobfcpError as error:
            self._flush()
            del self._faults[before:]
            self._lost.append(slice(first, self._kept))
            fault = RejectedReport(f"file:{shard.name}", "file", str(error))
            self._faults.append((self.read, fault))
            self.read += 1
        else:
            if shard.is_out_of_core:
                self._shards.append(shard)

    def _wait(self, entry: Entry | None) -> None:
        """Keep it until there are enough to be checked together."""
        if entry is None:
            return
        self._waiting.append(entry)
        numbers = entry.parts[0] or entry.parts[1]
        self._entries += 0 if numbers is None else len(numbers[1])
        many = self._entries >= _ENTRIES or self._bytes >= _WAITING_BYTES
        if many or len(self._waiting) >= _REPORTS:
            self._flush()

    def _other(self, item: Any, position: int) -> Entry | None:
        """What came in another form than JSON; None, and a fault, where it is no report."""
        problem = f"{type(item).__name__} is not a report", "pass Report objects or JSON"
        fault = item if isinstance(item, RejectedReport) else None
        try:
            if isinstance(item, Report):
                if self._grid is not None:
                    _wire.require_expected_binning(item.client, item.grid, self._grid)
                return self._known(item, position)
            if isinstance(item, Mapping):
                problem = "is not JSON data", "send a report"
                data = msgspec.json.encode(dict(item))
                return self._entry(RawReport(data, f"report #{position + 1}"), position)
        except ReportError as error:
            fault = RejectedReport.of(error)
        except (TypeError, ValueError, OverflowError, RecursionError):
            pass
        fault = fault or RejectedReport.of(
            ReportError(f"report #{position + 1}", "report", *problem)
        )
        self._faults.append((position, fault))
        return None

    def _entry(self, sent: RawReport, position: int) -> Entry | None:
        """The report's numbers; None, and a fault, where it is refused."""
        entry, data = self._fast(sent, position), sent.data
        if entry is not None:
            return entry
        try:
            if isinstance(data, bytes) and signing.looks_signed(data):
                sent = RawReport(signing.unwrap(data), sent.source)
                self.signed += signing.check_embedded_key(data, sent.source)
                entry = self._fast(sent, position)
            return entry or self._strictly(sent, position)
        except ReportError as error:
            self._faults.append((position, RejectedReport.of(error)))
            return None

    def _fast(self, sent: RawReport, position: int) -> Entry | None:
        """The report, to be checked with others; None where it has to be read by itself."""
        data = sent.data
        found = _wire.fast_report(data)
        if found is None:
            return None
        header = self._known_headers.get(found.shared)
        if header is None:
            shared = _wire.read_shared(found, self._grid)
            if shared is None:
                return None
            header = Header(BinningDigest.of(shared[0]), *shared[1:])
            if len(data) <= _KEPT_BYTES:
                self._remember(found.shared, header)
        counts, told = _listed(found.counts, header), _listed(found.set_sizes, header)
        strata = None if found.strata is _wire.UNSET else (found.strata.steps, found.strata.counts)
        parts = counts, strata, told
        for part in parts:
            if part is not None and len(part[0]) != len(part[1]):
                return None
        self._bytes += len(data)
        return Entry(found.client, found.n_samples, header, position, sent, parts=parts)

    def _remember(self, key: tuple[object, ...], header: Header) -> Header:
        if len(self._known_headers) >= _KEPT_HEADERS:
            self._known_headers.clear()
        self._known_headers[key] = header
        return header

    def _strictly(self, sent: RawReport, position: int) -> Entry:
        """The same by the rules for a single report, whose words a refusal has."""
        return self._known(Report.from_json(*sent, self._grid), position)

    def _known(self, report: Report, position: int) -> Entry:
        """A report that was checked when it was made."""
        strata, told = report.strata, report.set_sizes
        kind = None if strata is None else (strata.by, strata.names)
        said = report.round, report.model, report.risk, report.privacy, kind
        key = report.grid.digest, id(report.score), *said  # the header keeps the score alive
        header = self._known_headers.get(key)
        if header is None:
            header = self._remember(key, Header(BinningDigest.of(report.grid), report.score, *said))
        split = None
        if strata is not None:
            steps = strata.cells.copy()
            steps[1:] -= strata.cells[:-1]
            split = steps, strata.counts
        bins = np.flatnonzero(report.counts)
        bins = bins if bins.size else np.zeros(1, dtype=np.intp)  # noise can leave nothing
        counts = bins, report.counts[bins]
        labels = None if told is None else ((used := np.flatnonzero(told)), told[used])
        parts = counts, split, labels
        return Entry(report.client, report.n_samples, header, position, None, parts=parts)

    def _flush(self) -> None:
        """Check what waits, keep what is right, read again what is not."""
        entries, self._waiting, self._entries, self._bytes = self._waiting, [], 0, 0
        block = Block.of(entries)
        fine, again = block.fine(are_client_names(block.names)), entries
        if not fine.all():
            again = []
            for entry, right in zip(entries, fine.tolist(), strict=True):
                try:
                    sent = None if right else entry.sent
                    again.append(entry if sent is None else self._strictly(sent, entry.position))
                except ReportError as error:
                    self._faults.append((entry.position, RejectedReport.of(error)))
            block = Block.of(again)
        positions = [entry.position for entry in again]
        self._keep(block, positions, (block.told.lengths > 0, block.digests()))

    def _keep(
        self, block: Block, positions: Sequence[int], told: Told, shard: StoredTable | None = None
    ) -> None:
        """Right reports, with their counts unless these stay in a table."""
        if not len(block.sizes):
            return
        numbers = [self.headers.setdefault(one, len(self.headers)) for one in block.headers]
        if shard is not None and isinstance(self.clients, list):
            self.clients = shard.packed(self.clients)
        self.clients.extend(block.names)
        self._firsts.append(self._kept)
        self._positions.append(positions)
        self._columns.extend(block.sizes, np.array(numbers)[block.kinds], *told)
        here = slice(self._kept, self._kept + len(positions))
        self._kept = here.stop
        if shard is not None and shard.is_out_of_core:
            return
        self._memory.append(here)
        everybody = np.ones(len(positions), dtype=bool)
        labels = _in_use(block.told, everybody)
        split = block.strata.lengths, block.strata.bins, block.strata.values
        for columns, part in zip(self._parts, (block.pooled(), split, labels), strict=True):
            columns.extend(*part)

    def finish(self) -> None:
        """Nothing comes any more: columns are joined, the same report twice is one."""
        self._flush()
        self.sizes, self.kinds, tells, digests = self._columns.whole()
        self._tells = tells.view(bool)
        self._tables = [SparseCounts.from_lengths(*columns.whole()) for columns in self._parts]
        self._columns, self._parts = GrowingColumns(0), []
        self._faults.sort(key=itemgetter(0))
        self.refused = [(f"report #{place + 1}", fault) for place, fault in self._faults]
        self.valid = np.ones(len(self.sizes), dtype=bool)
        for lost in self._lost:
            self.valid[lost] = False
        self._repeated = self._names_twice()
        seen: Counter[Any] = Counter()
        for k in self._repeated[self.valid[self._repeated]].tolist():
            report = self.clients[k], int(self.sizes[k]), int(self.kinds[k]), int(digests[k])
            self.valid[k] = report not in seen
            seen[report] += 1
        self.repeated = tuple(sorted({one[0] for one, times in seen.items() if times > 1}))

    def _names_twice(self) -> IndexArray:
        """The places of names that come more than once."""
        if not isinstance(self.clients, list):
            self.clients = self.clients.whole()
            found: IndexArray = self.clients.repeated()
            return found
        times = Counter(self.clients)
        return np.flatnonzero([times[name] > 1 for name in self.clients])

    def alone(self) -> BoolArray:
        """(n,) which of the valid reports are the only ones of their clients."""
        found = self.valid.copy()
        names = {k: self.clients[k] for k in self._repeated[found[self._repeated]].tolist()}
        times = Counter(names.values())
        found[[k for k, name in names.items() if times[name] > 1]] = False
        return found

    def ballot(self) -> _agreement.HeaderCounts:
        """The votes of those who sent one report; of all where nobody did."""
        alone = self.alone()
        return self.votes(alone if alone.any() else None)

    def votes(self, mask: BoolArray | None = None) -> _agreement.HeaderCounts:
        """How many valid reports have each header."""
        kinds = self.kinds[self.valid if mask is None else mask]
        number = np.bincount(kinds, minlength=len(self.headers)).tolist()
        return [vote for vote in zip(self.headers, number, strict=True) if vote[1]]

    def refuse(self, k: int, objection: RejectionReason) -> None:
        """One report is not valid, in words."""
        fault = RejectedReport.of(ReportError(self.clients[k], *objection))
        block = bisect_right(self._firsts, k) - 1
        position = self._positions[block][k - self._firsts[block]]
        self.refused.append((f"report #{position + 1}", fault))
        self.valid[k] = False

    def keep(self, check: _agreement.HeaderCheck) -> None:
        """Those are valid whose header has no objection."""
        objections = [check(header) for header in self.headers]
        wrong = np.array([one is not None for one in objections], dtype=bool)
        if wrong.any():
            for k in np.flatnonzero(self.valid & wrong[self.kinds]).tolist():
                self.refuse(k, objections[self.kinds[k]])

    def check_sizes(self, sizes: Mapping[str, int]) -> None:
        """Refuse reports of strangers, and those of another size than the registered one."""
        hidden = [header.protects_sample_size for header in self.headers]
        claims = zip(self.clients, self.sizes.tolist(), self.kinds.tolist(), strict=True)
        for k, (client, claimed, kind) in enumerate(claims):
            expected = sizes.get(client)
            if not self.valid[k] or (expected is not None and hidden[kind]):
                continue
            if expected is None:
                remedy = "add it to the registry"
                self.refuse(k, RejectionReason("client", "is not registered", remedy))
            elif claimed != expected:
                problem = f"counts sum to {claimed} but {expected} samples were registered"
                remedy = "rebuild the report or fix the registry"
                self.refuse(k, RejectionReason("n_samples", problem, remedy))

    def check_conflicts(self) -> None:
        """Refuse the reports of clients that sent several: they contradict each other."""
        alone = self.alone()
        twice = [self.clients[k] for k in np.flatnonzero(self.valid & ~alone).tolist()]
        for client, number in Counter(twice).items():
            reason = f"{client}: sent {number} different reports for this round; send one"
            self.refused.insert(0, (client, RejectedReport(client, "client", reason)))
        self.valid = alone

    def faulty(self, heard: set[str]) -> dict[str, RejectedReport]:
        """One fault a client not heard; what bears a heard one's name is its source's fault."""
        found: dict[str, RejectedReport] = {}
        for source, fault in self.refused:
            if fault.client in heard:
                fault = RejectedReport(source, fault.field, f"{source}: {fault.reason}")
            found.setdefault(fault.client, fault)
        return found

    def heard(self, names: set[str]) -> set[str]:
        """Which of the names have a valid report."""
        return names and names.intersection(compress(self.clients, self.valid))

    def fields(
        self, sizes: Mapping[str, int] | None, common: tuple[StratumKind, StratumNames] | None
    ) -> dict[str, Any]:
        """What a federation holds of the valid reports, in the order of their clients' names."""
        if isinstance(self.clients, list):
            rows = np.flatnonzero(self.valid)
            ids: Any = tuple(map(self.clients.__getitem__, rows.tolist()))
            if (ordered := tuple(sorted(ids))) != ids:
                rows = rows[sorted(range(len(ids)), key=ids.__getitem__)]
        else:
            rows, ordered = self.clients.ordered(self.valid)
        kinds, headers, own = self.kinds[rows], list(self.headers), self.sizes[rows]
        first = headers[kinds[0]]
        n_bins = first.binning.n_bins
        check_table_size(len(ordered), n_bins)
        hidden = np.array([header.protects_sample_size for header in headers], dtype=bool)
        if sizes is not None and hidden.any():
            own = own.astype(np.int64)
            for k in np.flatnonzero(hidden[kinds]).tolist():
                own[k] = sizes.get(ordered[k], own[k])
        privacy: tuple[Privacy | None, ...] = ()
        if any(header.privacy for header in headers):
            privacy = tuple(headers[kind].privacy for kind in kinds.tolist())
        place: Any = None
        if not isinstance(rows, slice):
            place = np.full(len(self.sizes), -1, dtype=POSITION_DTYPE)
            place[rows] = np.arange(len(rows), dtype=POSITION_DTYPE)

        def places(part: slice) -> IndexArray:
            """Where some of all that came are among the valid, in order of the names."""
            return np.arange(part.start, part.stop) if place is None else np.asarray(place[part])

        held = self._held(places, n_bins, common)
        found: dict[str, Any] = {"table": held.counts, "strata": held.strata}
        found["all_label_counts"] = held.all_label_counts
        if self._shards:
            source = BlockSource([shard.kept(places, common) for shard in self._shards], held)
            split, tells = self._by_class[kinds], self._tells[rows]
            found["table"] = StoredCountTable(source, pooled_view, len(ordered), n_bins)
            kinds_of: Any = (("strata", common, split), ("all_label_counts", ("class", 1), tells))
            for name, kind, mask in kinds_of:
                if kind is not None and len(at := np.flatnonzero(mask).astype(POSITION_DTYPE)):
                    n_cells, view = n_strata(kind[1]) * n_bins, partial(stratified_view, name)
                    counts = StoredCountTable(source, view, len(at), n_cells, at)
                    found[name] = StratifiedTable(kind[0], kind[1], counts, at, n_bins)
        return {
            "clients": ordered if self._shards else tuple(ordered),
            "sample_sizes": own,
            "binning": first.binning.binning(),
            **{name: getattr(first, name) for name in ("score", "round", "model", "risk")},
            "privacy": privacy,
            **found,
        }

    @property
    def _by_class(self) -> BoolArray:
        """(headers,) which of them keep counts by class."""
        return np.array([header.strata is not None for header in self.headers], dtype=bool)

    def _held(
        self, places: Places, n_bins: int, common: tuple[StratumKind, StratumNames] | None
    ) -> CountBlock:
        """The valid reports in memory, by their places among all."""
        memory = np.concatenate([places(slice(0, 0)), *map(places, self._memory)])
        here = np.argsort(memory, kind="stable")
        here = here[np.searchsorted(memory[here], 0) :]
        tables, self._tables = self._tables, []
        rows = np.concatenate([here[:0], *(np.arange(p.start, p.stop) for p in self._memory)])[here]
        classes = [one.strata and one.strata[1] for one in self.headers], self.kinds[rows]
        return build_block(memory[here], tables, here, classes, common, n_bins)


def _listed(
    counts: list[int] | _wire.WireCounts | msgspec.UnsetType, header: Header
) -> Listed | None:
    """Bins and counts of what a report lists."""
    if isinstance(counts, _wire.WireCounts):
        return counts.bins, counts.counts
    return (range(header.binning.n_bins), counts) if isinstance(counts, list) else None


def json_counts(counts: Any, rows: NDArray[np.intp], n_clients: int) -> Iterator[Any]:
    """Each client's bins and counts, as a report lists them; unset without a row."""
    starts, bins, values = counts.entries()
    held, ends = np.zeros(n_clients, dtype=bool), pairwise(starts.tolist())
    held[rows] = True
    for one in held.tolist():
        here = slice(*next(ends)) if one else slice(0)
        yield _wire.WireCounts(bins[here].tolist(), values[here].tolist()) if one else _wire.UNSET


def verify_signatures(
    reports: Iterable[UntrustedReport], keys: Mapping[str, str], round: str
) -> tuple[list[UntrustedReport], list[RejectedReport]]:
    """The genuine reports, and the faults of what is not.

    The latter are charged to the client they name only where that client sent no genuine report,
    so that nobody can silence another.
    """
    genuine: list[UntrustedReport] = []
    refused: list[tuple[str, ReportError]] = []
    heard = set()
    faults = []
    for number, item in enumerate(reports, 1):
        if isinstance(item, StoredTable):
            reason = (
                f"{item.name}: a collected table has no signatures; calibrate it without --keys"
            )
            item = RejectedReport(f"file:{item.name}", "file", reason)
        if isinstance(item, RejectedReport):
            faults.append(item)
            continue
        data, source = item if isinstance(item, RawReport) else (item, f"report #{number}")
        try:
            data = data.to_json() if isinstance(data, Report) else data
            data = data.encode() if isinstance(data, str) else data
            report = signing.verify(
                data if isinstance(data, bytes) else b"", Report, keys, round, source
            )
            genuine.append(report)
            heard.add(report.client)
        except ReportError as error:
            refused.append((source, error))
    return genuine, [
        RejectedReport(source, error.field, f"{source.removeprefix('file:')}: {error}")
        if error.client in heard
        else RejectedReport.of(error)
        for source, error in refused
    ] + faults


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
    """Read every report once, keep the valid ones: the fields of `Federation`.

    `signatures` says what was checked of them without registered keys.
    """
    registered_sizes = (
        None if registered_sizes is None else _check_registered_sizes(registered_sizes)
    )
    intake = Intake(expected.get("grid"))
    for item in reports:
        intake.add(item)
    intake.finish()
    intake.refused += [(f"file:{fault.client}", fault) for fault in rejected]
    if registered_sizes is not None:
        intake.check_sizes(registered_sizes)
    for name, value in expected.items():
        value = BinningDigest.of(value) if isinstance(value, Binning) else value
        intake.keep(_agreement.require_equal(name, value, intake.ballot()))
    common = _agreement.most_common_strata(intake.ballot())
    intake.keep(_agreement.require_same_strata(common))
    intake.keep(
        _agreement.require_agreed_noise(intake.ballot(), privacy, registered_sizes is not None)
    )
    intake.check_conflicts()
    votes = intake.votes()
    known = registered_sizes is not None or not any(
        header.protects_sample_size for header, _ in votes
    )
    if not known or any(header.privacy and header.strata for header, _ in votes):
        intake.keep(
            _agreement.require_same_noise(votes)
        )  # sizes, of all or in a class, are not exact
    awaits = {*expected_clients, *(registered_sizes or ())}
    valid = int(intake.valid.sum())
    heard = intake.heard({*awaits, *(fault.client for _, fault in intake.refused)})
    faulty = intake.faulty(heard)
    missing = awaits - heard - set(faulty)
    awaited = valid + len(faulty) + len(missing)
    if registered_sizes is not None:
        awaited = len(set(registered_sizes) | missing)
    first = next(iter(faulty.values()), None)
    _agreement.check_quorum(valid, awaited, quorum, None if first is None else first.reason)
    return {
        **intake.fields(registered_sizes, common),
        "rejected_reports": tuple(sorted(faulty.values(), key=lambda fault: fault.client)),
        "missing_clients": tuple(sorted(missing)),
        "resubmitted_clients": intake.repeated,
        "sizes_registered": registered_sizes is not None,
        "signatures": f"{intake.signed} of {intake.read} valid, by keys that nobody registered"
        if intake.signed
        else "not checked",
        "sizes_known": known,
    }


def rebuild_from_record(
    reports: Iterable[bytes],
    sizes: Mapping[str, int],
    common: tuple[StratumKind, StratumNames] | None,
) -> dict[str, Any]:
    """What a federation holds of reports that were valid together: nobody votes again."""
    intake = Intake()
    for item in reports:
        intake.add(item)
    intake.finish()
    intake.keep(_agreement.require_same_strata(common))
    intake.check_conflicts()
    if intake.refused:
        raise RobfcpError(intake.refused[0][1].reason)
    if len({header[:5] for header in intake.headers}) != 1:
        raise RobfcpError("the reports are not of one round")
    return intake.fields(sizes, common)


def _check_registered_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """The registry with whole numbers for plain names."""
    if not isinstance(sizes, Mapping) or not sizes:
        raise RobfcpError("sizes: registers nobody; map site names to numbers of samples")
    for client in sizes:
        check_client_name(client)
    return {
        str(client): check_integer(f"sizes: {client}", size, "register its number of samples", 1)
        for client, size in sizes.items()
    }
