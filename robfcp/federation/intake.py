"""Untrusted reports in, one table of the valid ones out; the rest is listed with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import le
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import check_client, whole
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation.building import CountsBuilder, PartBuilder
from robfcp.federation.counts import NOTHING, Block, Counts, Ragged, check_extent
from robfcp.federation.faults import Fault, Untrusted, fault_of
from robfcp.federation.majority import (
    Arrivals,
    Header,
    Objection,
    Refusal,
    agreed_noise,
    check_quorum,
    common_strata,
    kept,
    same,
    same_noise,
    same_strata,
    sizes_known,
)
from robfcp.federation.strata import Stratified, stratified
from robfcp.grid import Grid
from robfcp.privacy import Privacy
from robfcp.report import By, Names, Report, wire


class Sent(NamedTuple):
    """A report's JSON with the name that errors give it until its client is known."""

    data: bytes | str
    source: str


Numbers = Sequence[int] | NDArray[np.int64]
Listed = tuple[Numbers, Numbers]  # places and what is in them


class Entry(NamedTuple):
    """One report that waits to be checked with others, or is known to be right."""

    client: str
    size: int
    header: Header
    counts: Listed | None  # by bin; the sums of the strata where there are none
    strata: Listed | None  # by steps from cell to cell
    told: Listed | None  # scores of all labels, by bin
    position: int
    sent: Sent | bytes | str | None  # to be read again; None where nothing can be wrong


def known(report: Report, position: int) -> Entry:
    """A report that was checked when it was made."""
    strata, told = report.strata, report.set_sizes
    kind = None if strata is None else (strata.by, strata.names)
    header = Header(kept(report.grid), *report.context[1:], report.privacy, kind)
    split = None
    if strata is not None:
        steps = strata.cells.copy()
        steps[1:] -= strata.cells[:-1]
        split = steps, strata.counts
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
    bins = bins if bins.size else np.zeros(1, dtype=np.intp)
    return bins, counts[bins]


def entry_of(
    found: wire.QuickReport, header: Header, position: int, sent: Sent | bytes | str
) -> Entry | None:
    """A report's numbers; None where lists that belong together differ in length."""
    counts, told = _listed(found.counts, header), _listed(found.set_sizes, header)
    strata = None if found.strata is wire.UNSET else (found.strata.steps, found.strata.counts)
    for part in (counts, strata, told):
        if part is not None and len(part[0]) != len(part[1]):
            return None
    size = found.n_samples or 0
    return Entry(
        found.client,
        size,
        header,
        counts=counts,
        strata=strata,
        told=told,
        position=position,
        sent=sent,
    )


def _listed(
    counts: list[int] | wire.QuickCounts | msgspec.UnsetType, header: Header
) -> Listed | None:
    """Bins and counts of what a report lists."""
    if isinstance(counts, wire.QuickCounts):
        return counts.bins, counts.counts
    return (range(header.grid.n_bins), counts) if isinstance(counts, list) else None


def block_of(entries: list[Entry]) -> Block:
    """The entries' numbers in columns."""
    columns = zip(*entries, strict=True) if entries else ((),) * len(Entry._fields)
    names, sizes, headers, counts, strata, told, _, sent = map(list, columns)
    own = {id(header): header for header in headers}  # in the order of the first that has it
    numbers = {one: k for k, one in enumerate(own)}
    steps = _ragged(strata)
    return Block(
        names=names,
        sizes=np.array(sizes, dtype=np.int64),
        headers=list(own.values()),
        kinds=np.array([numbers[id(header)] for header in headers], dtype=np.intp),
        known=np.array([one is None for one in sent], dtype=bool),
        counts=_ragged(counts),
        strata=replace(steps, cells=_cells(steps)),
        told=_ragged(told),
    )


def _ragged(parts: list[Listed | None]) -> Ragged:
    used = [part for part in parts if part is not None]
    if not used:
        return NOTHING
    rows = [k for k, part in enumerate(parts) if part is not None]
    places, values = zip(*used, strict=True)
    lengths = np.fromiter(map(len, values), np.int64, len(used))
    number = int(lengths.sum())
    return Ragged(
        np.array(rows, dtype=np.intp), lengths, _joined(places, number), _joined(values, number)
    )


def _joined(parts: Sequence[Numbers], number: int) -> NDArray[np.int64]:
    """Lists of reports' JSON and arrays of report objects, one after another."""
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if len(arrays) == len(parts):
        return np.concatenate(arrays).astype(np.int64, copy=False)
    if arrays:
        parts = [part.tolist() if isinstance(part, np.ndarray) else part for part in parts]
    return np.fromiter(chain.from_iterable(parts), np.int64, number)


def _cells(steps: Ragged) -> NDArray[np.int64]:
    """Where the steps of each row lead to."""
    ends = np.cumsum(steps.lengths)
    reached = np.cumsum(steps.cells)
    before = np.concatenate([[0], reached])[ends - steps.lengths]
    return reached - np.repeat(before, steps.lengths)


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

    def add(self, item: Untrusted | Sent) -> None:
        """Take one thing that should be a report."""
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
                wire.check_expected(report.client, report.grid, self._grid)
        except ReportError as error:
            self._faults.append((position, fault_of(error)))
            return None
        return known(report, position)

    def _quick(self, item: Sent | bytes | str, position: int) -> Entry | None:
        """The report's numbers, to be checked with others'; None where that cannot be."""
        found = wire.quick_report(item.data if isinstance(item, Sent) else item)
        header = None if found is None else self._header(found)
        if found is None or header is None:
            return None
        return entry_of(found, header, position, item)

    def _header(self, found: wire.QuickReport) -> Header | None:
        """What the report shares with others, understood once."""
        key = wire.shared_key(found)
        header = self._read.get(key)
        if header is not None:
            return header
        header = _header(wire.read_shared(found, self._grid))
        if header is not None and _extent(key) <= _KEPT_BYTES:
            if len(self._read) >= _KEPT_HEADERS:
                self._read.clear()
            self._read[key] = header
        return header

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


def _header(shared: wire.Shared | None) -> Header | None:
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


@dataclass(frozen=True)
class Intake:
    """The valid reports in the order of their clients' names, their counts, and the rest.

    Parameters
    ----------
    arrived
        Who they are from and what they share.
    sizes
        n_k: as reported, or as registered where the report hides it.
    counts
        Their counts, row by row.
    faulty, missing
        Who is left out, and who is silent.
    sizes_known
        Whether sizes are exact.
    strata, set_sizes
        Counts by class and scores of all labels, of those that have them.
    """

    arrived: Arrivals
    sizes: NDArray[np.int64]
    counts: Counts
    faulty: tuple[Fault, ...]
    missing: tuple[str, ...]
    sizes_known: bool
    strata: Stratified | None
    set_sizes: Stratified | None

    @property
    def first(self) -> Header:
        """What all of them share is what the first has."""
        return self.arrived.headers[self.arrived.kinds[0]]

    @property
    def privacy(self) -> list[Privacy | None]:
        """(K,) what noise each holds."""
        return [self.arrived.headers[kind].privacy for kind in self.arrived.kinds.tolist()]


def take_in(
    reports: Iterable[Untrusted | Sent],
    expected: Mapping[str, Any],
    sizes: Mapping[str, int] | None,
    quorum: int | float | None,
    faults: Iterable[Fault],
    invited: Iterable[str],
    privacy: Privacy | None = None,
) -> Intake:
    """Read every report once, keep the valid ones; see `Federation.from_reports`."""
    registered = sizes is not None
    sizes = None if sizes is None else _checked_sizes(sizes)
    reception = Reception(expected.get("grid"))
    if isinstance(reports, (Report, bytes, str, Mapping)) or not isinstance(reports, Iterable):
        raise RobfcpError("reports: pass a list of them, also where there is only one")
    for item in reports:
        reception.add(item)
    arrived = reception.finish()
    refused = [Refusal(f"report #{position + 1}", fault) for position, fault in reception.refused]
    refused += [Refusal(f"file:{fault.client}", fault) for fault in faults]
    if sizes is not None:
        arrived = arrived.without(refused, _unregistered(arrived, sizes))
    for field, value in expected.items():
        arrived = arrived.keep(refused, same(field, value, arrived))
    by, names = common_strata(arrived.votes())
    if by is not None:
        arrived = arrived.keep(refused, same_strata(by, names))
    arrived = arrived.keep(refused, agreed_noise(arrived.votes(), privacy, registered))
    accepted = _without_conflicts(arrived, refused)
    alike = same_noise(accepted.votes(), registered)
    if alike is not None:
        accepted = accepted.keep(refused, alike)
    awaits = {*invited, *(sizes or ())}
    heard = set(accepted.clients) if refused or awaits else set()  # of no use without any
    faulty = _charged(refused, heard)
    seen = {fault.client for fault in faulty}
    silent = {client for client in invited if client not in heard and client not in seen}
    received = len(accepted) + len(faulty)
    awaited = received + len(silent) if sizes is None else len(silent | set(sizes))
    check_quorum(len(accepted), awaited, quorum, faulty)
    unheard = {client for client in sizes or () if client not in heard and client not in seen}
    accepted = _by_name(accepted)
    n_bins = accepted.headers[accepted.kinds[0]].grid.n_bins
    check_extent(len(accepted), n_bins)
    return Intake(
        accepted,
        sizes=_sizes(accepted, sizes),
        counts=reception.counts.build(accepted.rows, n_bins),
        faulty=tuple(sorted(faulty, key=lambda fault: fault.client)),
        missing=tuple(sorted(silent | unheard)),
        sizes_known=sizes_known(accepted.votes(), registered),
        strata=None if by is None else _strata(reception, accepted, by, names, n_bins),
        set_sizes=_set_sizes(reception, accepted, n_bins),
    )


def _by_name(accepted: Arrivals) -> Arrivals:
    """In the order of their names; most often that is how they come."""
    clients = accepted.clients
    if all(map(le, clients, islice(clients, 1, None))):
        return accepted
    order = sorted(range(len(clients)), key=clients.__getitem__)
    return accepted.taken(np.array(order, dtype=np.intp))


def _sizes(accepted: Arrivals, sizes: Mapping[str, int] | None) -> NDArray[np.int64]:
    """n_k: as reported, or as registered where the report hides it."""
    hidden = np.array([header.hides_size for header in accepted.headers], dtype=bool)
    found = accepted.sizes.copy()
    if sizes is not None:
        for k in np.flatnonzero(hidden[accepted.kinds]).tolist():
            found[k] = sizes[accepted.clients[k]]
    return found


def _strata(
    reception: Reception, accepted: Arrivals, by: By, names: Names, n_bins: int
) -> Stratified | None:
    """The counts by class of those that have them."""
    split = np.array([header.strata is not None for header in accepted.headers], dtype=bool)
    places = np.flatnonzero(split[accepted.kinds])
    if not len(places):
        return None
    n_strata = names if isinstance(names, int) else len(names)
    return stratified(
        reception.by_class.build(accepted.rows[places], n_strata * n_bins),
        places,
        by=by,
        names=names,
        n_bins=n_bins,
        owns=[0 if header.strata is None else header.strata[1] for header in accepted.headers],
        kinds=accepted.kinds[places],
    )


def _set_sizes(reception: Reception, accepted: Arrivals, n_bins: int) -> Stratified | None:
    """The scores of all labels, of those that tell them."""
    places = np.flatnonzero(np.isin(accepted.rows, reception.of_labels.rows))
    if not len(places):
        return None
    counts = reception.of_labels.build(accepted.rows[places], n_bins)
    return Stratified("class", 1, counts, places, n_bins)


def _without_conflicts(arrived: Arrivals, refused: list[Refusal]) -> Arrivals:
    """The reports of clients that sent one; several different ones contradict each other."""
    if arrived.distinct:
        return arrived
    for client, number in Counter(arrived.clients).items():
        if number > 1:
            reason = f"{client}: sent {number} different reports for this round; send one"
            refused.insert(0, Refusal(client, Fault(client, "client", reason)))
    return arrived.where(arrived.alone())


def _charged(refused: list[Refusal], heard: set[str]) -> list[Fault]:
    """One fault a client that is not heard; what bears a heard one's name is its source's fault."""
    faulty: dict[str, Fault] = {}
    for source, fault in refused:
        if fault.client in heard:
            fault = Fault(source, fault.field, f"{source}: {fault.reason}")
        faulty.setdefault(fault.client, fault)
    return list(faulty.values())


def _checked_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """The registry with whole numbers for plain names."""
    if not isinstance(sizes, Mapping) or not sizes:
        raise RobfcpError("sizes: registers nobody; map site names to numbers of samples")
    for client in sizes:
        check_client(client)
    return {
        str(client): whole(f"sizes: {client}", size, "register its number of samples", 1)
        for client, size in sizes.items()
    }


def _unregistered(
    arrived: Arrivals, sizes: Mapping[str, int]
) -> Iterator[tuple[int, Objection | None]]:
    """The reports of strangers, and those of another size than the registered one."""
    hidden = [header.hides_size for header in arrived.headers]
    claims = zip(arrived.clients, arrived.sizes.tolist(), arrived.kinds.tolist(), strict=True)
    for k, (client, claimed, kind) in enumerate(claims):
        expected = sizes.get(client)
        if expected is None:
            yield k, Objection("client", "is not registered", "add it to the registry")
        elif claimed != expected and not hidden[kind]:
            problem = f"counts sum to {claimed} but {expected} samples were registered"
            yield k, Objection("n_samples", problem, "rebuild the report or fix the registry")
