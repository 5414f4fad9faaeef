"""Reports come in one by one and are checked many at a time; what is wrong is read once more."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp.errors import ReportError
from robfcp.federation.arrivals import Arrivals
from robfcp.federation.block import NOTHING, Block, Ragged
from robfcp.federation.building import CountsBuilder, PartBuilder
from robfcp.federation.columns import Columns, WireFault
from robfcp.federation.faults import Fault, Untrusted, fault_again
from robfcp.federation.late_grids import kept
from robfcp.federation.marks import Header
from robfcp.grid import Grid
from robfcp.reports import (
    UNSET,
    QuickCounts,
    QuickReport,
    Report,
    Shared,
    WireContext,
    quick_report,
    read_context,
    read_shared,
    shared_key,
)

_REPORTS = 512  # checked at a time: their numbers stay in the cache
_ENTRIES = 2**14
_KEPT_HEADERS = 256
_KEPT_BYTES = 2**16  # of what a report says of its round


class Sent(NamedTuple):
    """A report's JSON with the name that errors give it until its client is known."""

    data: bytes | str
    source: str


Listed = tuple[Sequence[int], Sequence[int]]  # places and what is in them


class Entry(NamedTuple):
    """One report that waits to be checked with others, or is known to be right."""

    client: str
    size: int
    header: Header
    counts: Listed | None  # by bin; the sums of the strata where there are none
    strata: Listed | None  # by steps from cell to cell
    told: Listed | None  # scores of all labels, by bin
    position: int
    sent: Sent | None  # to be read again where something is wrong; None where nothing can be


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
        self._entries = 0
        self._faults: list[tuple[int, Fault]] = []
        self._read: dict[tuple[object, ...], Header] = {}
        self._numbers: dict[Header, int] = {}  # equal headers become one
        self._clients: list[str] = []
        self._sizes: list[NDArray[np.int64]] = []
        self._kinds: list[NDArray[np.int32]] = []

    def add(self, item: Untrusted | Sent | Columns) -> None:
        """Take one thing that should be a report."""
        position = self._position
        self._position += 1
        entry = None
        if isinstance(item, Columns):
            self._position = position
            self.add_columns(item)
        elif isinstance(item, Report):
            entry = _known(item, position)
        elif isinstance(item, Fault):
            self._faults.append((position, item))
        else:
            sent = self._sent(item, position)
            if sent is not None:
                entry = self._quick(sent, position) or self._slow(sent, position)
        if entry is not None:
            self._waiting.append(entry)
            listed = entry.strata if entry.counts is None else entry.counts
            self._entries += 0 if listed is None else len(listed[1])
            if len(self._waiting) >= _REPORTS or self._entries >= _ENTRIES:
                self._flush()

    @property
    def read(self) -> int:
        """How many things have come, right or wrong."""
        return self._position

    def add_columns(self, columns: Columns) -> None:
        """Take all reports of a file, checked as others are, and the faults it lists."""
        first, faults = self._position, deque(columns.faults)
        headers = [self._header_of(context) for context in columns.contexts]
        for here in columns.blocks():
            self._flush()
            positions = columns.positions(here)
            self._refuse(faults, first, positions[0])
            block = columns.block(here, headers)
            if block is not None and block.fine().all():
                self._take(block)
                continue
            for row, position in zip(range(here.start, here.stop), positions, strict=True):
                self._refuse(faults, first, position)
                self._position = first + position
                self.add(columns.json(row))
        self._refuse(faults, first, columns.items)
        self._flush()
        self._position = first + columns.items

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

    def _sent(self, item: Any, position: int) -> Sent | None:
        """The JSON of what came; None, and a fault, where it is none."""
        source = _number(position)
        if isinstance(item, (bytes, str)):
            return Sent(item, source)
        if isinstance(item, Sent):
            return item
        problem = f"{type(item).__name__} is not a report", "pass Report objects or JSON"
        if isinstance(item, Mapping):
            try:
                return Sent(msgspec.json.encode(dict(item)), source)
            except (TypeError, ValueError, OverflowError, RecursionError):
                problem = "is not JSON data", "send a report"
        error = ReportError(source, "report", *problem)
        self._faults.append((position, Fault(error.client, error.field, str(error))))
        return None

    def _quick(self, sent: Sent, position: int) -> Entry | None:
        """The report's numbers, to be checked with others'; None where that cannot be."""
        found = quick_report(sent.data)
        if found is None or found.n_samples is None:
            return None
        header = self._header(found)
        if header is None:
            return None
        n_bins = header.grid.n_bins
        counts, strata, told = found.counts, found.strata, found.set_sizes
        parts = (
            None if counts is UNSET else _listed(counts, n_bins),
            None if strata is UNSET else _same_length(strata.steps, strata.counts),
            None if told is UNSET else _listed(told, n_bins),
        )
        if () in parts:
            return None
        return Entry(found.client, found.n_samples, header, *parts, position, sent)

    def _header(self, found: QuickReport) -> Header | None:
        """What the report shares with others, understood once."""
        key = shared_key(found)
        header = self._read.get(key)
        if header is not None:
            return header
        header = _header(read_shared(found, self._grid))
        if (
            header is not None
            and sum(len(part) for part in key if isinstance(part, bytes)) <= _KEPT_BYTES
        ):
            if len(self._read) >= _KEPT_HEADERS:
                self._read.clear()
            self._read[key] = header
        return header

    def _header_of(self, context: WireContext) -> Header | None:
        """What a context of a file says; None where something of it is refused."""
        return _header(read_context(context, self._grid))

    def _refuse(self, faults: deque[WireFault], first: int, end: int) -> None:
        """Those of a file's faults that stand before a position in it."""
        while faults and faults[0].position < end:
            one = faults.popleft()
            position = first + one.position
            client, reason = one.client, one.reason
            if client == _number(one.position):  # it has no name but its place among all
                client, reason = _number(position), _number(position) + reason[len(client) :]
            self._faults.append((position, fault_again(client, one.field, reason)))

    def _slow(self, sent: Sent, position: int) -> Entry | None:
        """The same by the rules for a single report; None, and a fault, where it is refused."""
        try:
            return _known(Report.from_json(sent.data, sent.source, self._grid), position)
        except ReportError as error:
            self._faults.append((position, Fault(error.client, error.field, str(error))))
            return None

    def _flush(self) -> None:
        """Check what waits, keep what is right."""
        block = _block(self._waiting)
        fine = block.fine()
        if not fine.all():
            again = [
                entry if right or entry.sent is None else self._slow(entry.sent, entry.position)
                for entry, right in zip(self._waiting, fine.tolist(), strict=True)
            ]
            block = _block([entry for entry in again if entry is not None])
        self._waiting, self._entries = [], 0
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


def _number(position: int) -> str:
    """How a report without a name is called."""
    return f"report #{position + 1}"


def _known(report: Report, position: int) -> Entry:
    """A report that was checked when it was made."""
    strata, told = report.strata, report.set_sizes
    kind = None if strata is None else (strata.by, strata.names)
    header = Header(kept(report.grid), *report.context[1:], report.privacy, kind)
    split = None
    if strata is not None:
        split = np.diff(strata.cells, prepend=0).tolist(), strata.counts.tolist()
    return Entry(
        report.client,
        report.n_samples,
        header,
        counts=_in_use(report.counts),
        strata=split,
        told=None if told is None else _in_use(told),
        position=position,
        sent=None,
    )


def _in_use(counts: NDArray[np.int64]) -> Listed:
    """The bins that are not empty; one at least, since noise can leave nothing."""
    bins = np.flatnonzero(counts)
    return (bins.tolist(), counts[bins].tolist()) if bins.size else ([0], [0])


def _listed(counts: list[int] | QuickCounts, n_bins: int) -> Any:
    """Bins and counts of what a report lists; empty where these do not fit each other."""
    if isinstance(counts, list):
        return (range(n_bins), counts) if len(counts) == n_bins else ()
    return _same_length(counts.bins, counts.counts)


def _same_length(places: list[int], values: list[int]) -> Any:
    return (places, values) if len(places) == len(values) else ()


def _block(entries: list[Entry]) -> Block:
    """The entries' numbers in columns."""
    kinds: dict[int, int] = {}
    headers: list[Header] = []
    for entry in entries:
        if id(entry.header) not in kinds:
            kinds[id(entry.header)] = len(headers)
            headers.append(entry.header)
    strata = _ragged([entry.strata for entry in entries])
    return Block(
        names=[entry.client for entry in entries],
        sizes=np.array([entry.size for entry in entries], dtype=np.int64),
        headers=headers,
        kinds=np.array([kinds[id(entry.header)] for entry in entries], dtype=np.intp),
        known=np.array([entry.sent is None for entry in entries], dtype=bool),
        counts=_ragged([entry.counts for entry in entries]),
        strata=replace(strata, cells=_cells(strata)),
        told=_ragged([entry.told for entry in entries]),
    )


def _ragged(parts: list[Listed | None]) -> Ragged:
    rows = [k for k, part in enumerate(parts) if part is not None]
    if not rows:
        return NOTHING
    used = [part for part in parts if part is not None]
    lengths = np.array([len(part[1]) for part in used], dtype=np.int64)
    number = int(lengths.sum())
    cells, values = (
        np.fromiter(chain.from_iterable([part[side] for part in used]), np.int64, number)
        for side in (0, 1)
    )
    return Ragged(np.array(rows, dtype=np.intp), lengths, cells, values)


def _cells(steps: Ragged) -> NDArray[np.int64]:
    """Where the steps of each row lead to."""
    ends = np.cumsum(steps.lengths)
    reached = np.cumsum(steps.cells)
    before = np.concatenate([[0], reached])[ends - steps.lengths]
    return reached - np.repeat(before, steps.lengths)
