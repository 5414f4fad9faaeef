"""Reports come in one by one and are checked many at a time; what is wrong is read once more."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp.errors import ReportError
from robfcp.federation.arrivals import Arrivals
from robfcp.federation.block import Block
from robfcp.federation.building import CountsBuilder, PartBuilder
from robfcp.federation.columns import Columns, WireFault
from robfcp.federation.entries import Entry, Sent, block_of, entry_of, known
from robfcp.federation.faults import Fault, Untrusted, fault_again, fault_of
from robfcp.federation.late_grids import kept
from robfcp.federation.marks import Header
from robfcp.federation.wrong_rows import WrongRows
from robfcp.grid import Grid
from robfcp.reports import (
    QuickReport,
    Report,
    Shared,
    check_expected,
    quick_report,
    read_context,
    read_shared,
    shared_key,
)

_REPORTS = 512  # checked at a time: their numbers stay in the cache
_ENTRIES = 2**14
_WAITING_BYTES = 2**23  # of JSON, kept until its numbers are known to be right
_KEPT_HEADERS = 256
_KEPT_BYTES = 2**16  # of what a report says of its round


class Reception:
    """Everything that arrives: tables of counts, and what was refused.

    Parameters
    ----------
    grid
        The round's grid where it is known: a report on another one is refused unbuilt.
    """

    def __init__(self, grid: Grid | None = None) -> None:
        self.counts, self.by_class, self.of_labels = CountsBuilder(), PartBuilder(), PartBuilder()
        self.refused: list[tuple[int, Fault]] = []  # by position among all that came
        self._grid = grid
        self._position = 0
        self._waiting: list[Entry] = []
        self._entries = self._bytes = 0
        self._faults: list[tuple[int, Fault]] = []
        self._read: dict[tuple[object, ...], Header] = {}
        self._numbers: dict[Header, int] = {}  # equal headers become one
        self._clients: list[str] = []
        self._sizes: list[NDArray[np.int64]] = []
        self._kinds: list[NDArray[np.int32]] = []

    def add(self, item: Untrusted | Sent | Columns) -> None:
        """Take one thing that should be a report."""
        if isinstance(item, Columns):
            self.add_columns(item)
            return
        position = self._position
        self._position = position + 1
        if isinstance(item, (bytes, str, Sent)):
            entry = self._quick(item, position) or self._slow(item, position)
        else:
            entry = self._other(item, position)
        if entry is not None:
            self._waiting.append(entry)
            listed = entry.counts or entry.strata
            self._entries += 0 if listed is None else len(listed[1])
            sent = entry.sent
            if sent is not None:
                self._bytes += len(sent.data if isinstance(sent, Sent) else sent)
            if (
                self._entries >= _ENTRIES
                or self._bytes >= _WAITING_BYTES
                or len(self._waiting) >= _REPORTS
            ):
                self._flush()

    @property
    def read(self) -> int:
        """How many things have come, right or wrong."""
        return self._position

    def add_columns(self, columns: Columns) -> None:
        """Take all reports of a file, checked as others are, and the faults it lists."""
        first, faults = self._position, deque(columns.faults)
        headers: dict[int, Header | None] = {}
        wrong = WrongRows(columns, self._grid)
        for here in columns.blocks():
            for kind in columns.used(here):
                if kind not in headers:
                    headers[kind] = _header(read_context(columns.contexts[kind], self._grid))
            positions = columns.positions(here)
            for rows, block in columns.runs(here, headers):
                places = positions[rows.start - here.start : rows.stop - here.start]
                self._refuse(faults, first, places[0])
                if block is not None:
                    self._flush()
                    self._take(block)
                    continue
                for row, place in zip(range(rows.start, rows.stop), places, strict=True):
                    self._refuse(faults, first, place)
                    self._position = first + place
                    self._single(columns, row, wrong)
        self._refuse(faults, first, columns.items)
        self._flush()
        self._position = first + columns.items

    def _single(self, columns: Columns, row: int, wrong: WrongRows) -> None:
        """A row of a file that is wrong, or of a kind that has to be read as a report."""
        fault = wrong.fault(row, _number(self._position))
        if fault is None:
            self.add(columns.json(row))
        else:
            self._faults.append((self._position, fault))

    def finish(self) -> Arrivals:
        """What has arrived; the same report twice is one."""
        arrived = self.arrivals()
        return arrived if arrived.distinct else self._without_repeats(arrived)

    def arrivals(self) -> Arrivals:
        """All that has arrived."""
        self._flush()
        clients = self._clients
        return Arrivals(
            clients,
            sizes=np.concatenate([np.zeros(0, dtype=np.int64), *self._sizes]),
            headers=list(self._numbers),
            kinds=np.concatenate([np.zeros(0, dtype=np.int32), *self._kinds]),
            rows=np.arange(len(clients)),
            numbers=np.arange(len(clients)),
            distinct=len(set(clients)) == len(clients),
        )

    def _without_repeats(self, arrived: Arrivals) -> Arrivals:
        seen: set[tuple[object, ...]] = set()
        first = np.ones(len(arrived), dtype=bool)
        for k in np.flatnonzero(~arrived.alone()).tolist():
            tables = (self.counts, self.by_class, self.of_labels)
            content = tuple(table.content(k) for table in tables)
            print_ = (arrived.clients[k], int(arrived.sizes[k]), int(arrived.kinds[k]), content)
            first[k] = print_ not in seen
            seen.add(print_)
        left = arrived.where(first)
        distinct = len(set(left.clients)) == len(left)
        return replace(left, numbers=np.arange(len(left)), distinct=distinct)

    def _other(self, item: Any, position: int) -> Entry | None:
        """What came in another form than JSON; None, and a fault, where it is no report."""
        if isinstance(item, Report):
            return self._made(item, position)
        if isinstance(item, Fault):
            self._faults.append((position, item))
            return None
        problem = f"{type(item).__name__} is not a report", "pass Report objects or JSON"
        if isinstance(item, Mapping):
            try:
                data = msgspec.json.encode(dict(item))
                return self._quick(data, position) or self._slow(data, position)
            except (TypeError, ValueError, OverflowError, RecursionError):
                problem = "is not JSON data", "send a report"
        error = ReportError(_number(position), "report", *problem)
        self._faults.append((position, fault_of(error)))
        return None

    def _made(self, report: Report, position: int) -> Entry | None:
        """A report that is one already; None, and a fault, where it is on another grid."""
        try:
            if self._grid is not None:
                check_expected(report.client, report.grid, self._grid)
        except ReportError as error:
            self._faults.append((position, fault_of(error)))
            return None
        return known(report, position)

    def _quick(self, item: Sent | bytes | str, position: int) -> Entry | None:
        """The report's numbers, to be checked with others'; None where that cannot be."""
        found = quick_report(item.data if isinstance(item, Sent) else item)
        header = None if found is None else self._header(found)
        if found is None or header is None:
            return None
        return entry_of(found, header, position, item)

    def _header(self, found: QuickReport) -> Header | None:
        """What the report shares with others, understood once."""
        key = shared_key(found)
        header = self._read.get(key)
        if header is not None:
            return header
        header = _header(read_shared(found, self._grid))
        if header is not None and _extent(key) <= _KEPT_BYTES:
            if len(self._read) >= _KEPT_HEADERS:
                self._read.clear()
            self._read[key] = header
        return header

    def _refuse(self, faults: deque[WireFault], first: int, end: int) -> None:
        """Those of a file's faults that stand before a position in it."""
        while faults and faults[0].position < end:
            one = faults.popleft()
            position = first + one.position
            client, reason = one.client, one.reason
            if client == _number(one.position):  # it has no name but its place among all
                client, reason = _number(position), _number(position) + reason[len(client) :]
            self._faults.append((position, fault_again(client, one.field, reason)))

    def _slow(self, item: Sent | bytes | str, position: int) -> Entry | None:
        """The same by the rules for a single report; None, and a fault, where it is refused."""
        data, source = item if isinstance(item, Sent) else (item, _number(position))
        try:
            return known(Report.from_json(data, source, self._grid), position)
        except ReportError as error:
            self._faults.append((position, fault_of(error)))
            return None

    def _flush(self) -> None:
        """Check what waits, keep what is right."""
        block = block_of(self._waiting)
        fine = block.fine()
        if not fine.all():
            again = [
                entry if right or entry.sent is None else self._slow(entry.sent, entry.position)
                for entry, right in zip(self._waiting, fine.tolist(), strict=True)
            ]
            block = block_of([entry for entry in again if entry is not None])
        self._waiting, self._entries, self._bytes = [], 0, 0
        self._take(block)
        self.refused += sorted(self._faults, key=lambda one: one[0])
        self._faults = []

    def _take(self, block: Block) -> None:
        """Keep a block of right reports."""
        if not len(block):
            return
        numbers = [self._numbers.setdefault(one, len(self._numbers)) for one in block.headers]
        first = self.counts.add(block.pooled())
        self.by_class.add(block.strata, first)
        self.of_labels.add(block.told_in_use(), first)
        self._clients += block.names
        self._sizes.append(block.sizes)
        self._kinds.append(np.array(numbers, dtype=np.int32)[block.kinds])


def _header(shared: Shared | None) -> Header | None:
    if shared is None:
        return None
    return Header(kept(shared.grid), *shared[1:5], None, shared.strata)


def _extent(part: object) -> int:
    """How much text there is, strata's names included."""
    if isinstance(part, tuple):
        return sum(map(_extent, part))
    return len(part) if isinstance(part, (bytes, str)) else 0


def _number(position: int) -> str:
    """How a report without a name is called."""
    return f"report #{position + 1}"
