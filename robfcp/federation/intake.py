"""Reports come in one by one: each is checked and reduced to a header and the bins in use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from robfcp._util.numbers import whole
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation.counts import Counts, CountsBuilder, check_extent
from robfcp.federation.faults import Fault, Untrusted
from robfcp.federation.late_grids import kept
from robfcp.federation.marks import Header, agreed_noise, same_noise, size_of, sizes_known
from robfcp.federation.quorum import check_quorum
from robfcp.federation.strata import StrataBuilder, Stratified
from robfcp.grid import Grid
from robfcp.privacy import Privacy
from robfcp.reports import MAX_STRATA, OTHER, By, Names, Report, check_client


class Refusal(NamedTuple):
    """A fault with where it came from: a file or a place in the list."""

    source: str
    fault: Fault


@dataclass(frozen=True)
class Intake:
    """The headers of the valid reports in the order of their names, their counts, and the rest."""

    headers: list[Header]
    counts: Counts
    faulty: tuple[Fault, ...]
    missing: tuple[str, ...]
    sizes_known: bool
    strata: Stratified | None
    set_sizes: Stratified | None


def take_in(
    reports: Iterable[Untrusted],
    expected: Mapping[str, Any],
    sizes: Mapping[str, int] | None,
    quorum: int | float | None,
    faults: Iterable[Fault],
    invited: Iterable[str],
    privacy: Privacy | None = None,
) -> Intake:
    """Read every report once, keep the valid ones; see `Federation.from_reports`."""
    sizes = None if sizes is None else _checked_sizes(sizes)
    builder, by_class, of_labels = CountsBuilder(), StrataBuilder(), StrataBuilder()
    arrived, refused = _read_all(reports, expected.get("grid"), builder, by_class, of_labels)
    refused += [Refusal(f"file:{fault.client}", fault) for fault in faults]
    if sizes is not None:
        arrived = _keep(arrived, refused, lambda header: _registered(header, sizes))
    for field, value in expected.items():
        arrived = _keep(arrived, refused, _same(field, value, arrived))
    by, names = _common_strata(arrived)
    if by is not None:
        arrived = _keep(arrived, refused, _same_strata(by, names))
    arrived = _keep(arrived, refused, agreed_noise(arrived, privacy, sizes is not None))
    accepted = _without_conflicts(arrived, refused)
    alike = same_noise(accepted, sizes is not None)
    if alike is not None:
        accepted = _keep(accepted, refused, alike)
    faulty = _charged(refused, {header.client for header in accepted})
    seen = {header.client for header in accepted} | {fault.client for fault in faulty}
    silent = set(invited) - seen
    received = len(accepted) + len(faulty)
    awaited = received + len(silent) if sizes is None else len(silent | set(sizes))
    check_quorum(len(accepted), awaited, quorum, faulty)
    missing = tuple(sorted(silent | (set(sizes or ()) - seen)))
    accepted.sort(key=lambda header: header.client)
    rows = np.fromiter((header.row for header in accepted), dtype=np.intp, count=len(accepted))
    n_bins = accepted[0].grid.n_bins
    check_extent(len(accepted), n_bins)
    counts = builder.build(rows, n_bins)
    strata = None
    if by is not None:
        held = [(k, h.row, h.strata[1]) for k, h in enumerate(accepted) if h.strata is not None]
        strata = by_class.build(held, by, names, n_bins)
    told = [(k, h.row, 1) for k, h in enumerate(accepted) if h.row in of_labels]
    set_sizes = of_labels.build(told, "class", 1, n_bins)
    ordered = tuple(sorted(faulty, key=lambda fault: fault.client))
    known = sizes_known(accepted, sizes is not None)
    return Intake(accepted, counts, ordered, missing, known, strata=strata, set_sizes=set_sizes)


def _read_all(
    reports: Iterable[Untrusted],
    grid: Grid | None,
    builder: CountsBuilder,
    by_class: StrataBuilder,
    of_labels: StrataBuilder,
) -> tuple[list[Header], list[Refusal]]:
    """Decode what is not yet a report; the same report twice is one."""
    if isinstance(reports, (Report, bytes, str, Mapping)) or not isinstance(reports, Iterable):
        raise RobfcpError("reports: pass a list of them, also where there is only one")
    arrived: list[Header] = []
    refused: list[Refusal] = []
    shared: dict[Any, Any] = {}  # equal contexts become one object
    seen: set[tuple[str, int]] = set()
    for position, item in enumerate(reports):
        source = f"report #{position + 1}"
        report = _read(item, source, grid)
        if isinstance(report, Fault):
            refused.append(Refusal(source, report))
            continue
        strata = report.strata
        kind = None if strata is None else (strata.by, strata.names)
        context = (kept(report.grid), *report.context[1:], report.privacy, kind)
        context = shared.setdefault(context, context)
        print_ = (report.client, _fingerprint(report, context))
        if print_ not in seen:
            seen.add(print_)
            row = builder.add(report.counts)
            if strata is not None:
                by_class.add(row, strata.cells, strata.counts)
            if report.set_sizes is not None:
                bins = np.flatnonzero(report.set_sizes)
                of_labels.add(row, bins, report.set_sizes[bins])
            arrived.append(Header(report.client, report.n_samples, row, *context))
    return arrived, refused


def _fingerprint(report: Report, context: Any) -> int:
    """A number that two reports of one client share only if they are the same."""
    bins = np.flatnonzero(report.counts)
    counts = bins.tobytes() + report.counts[bins].tobytes()
    if report.strata is not None:
        counts = report.strata.cells.tobytes() + report.strata.counts.tobytes()
    if report.set_sizes is not None:
        counts += report.set_sizes.tobytes()
    return hash((counts, report.n_samples, context))


def _without_conflicts(arrived: list[Header], refused: list[Refusal]) -> list[Header]:
    """The reports of clients that sent one; several different ones contradict each other."""
    times = Counter(header.client for header in arrived)
    for client, number in times.items():
        if number > 1:
            reason = f"{client}: sent {number} different reports for this round; send one"
            refused.insert(0, Refusal(client, Fault(client, "client", reason)))
    return [header for header in arrived if times[header.client] == 1]


def _charged(refused: list[Refusal], heard: set[str]) -> list[Fault]:
    """One fault a client that is not heard; what bears a heard one's name is its source's fault."""
    faulty: dict[str, Fault] = {}
    for source, fault in refused:
        if fault.client in heard:
            fault = Fault(source, fault.field, f"{source}: {fault.reason}")
        faulty.setdefault(fault.client, fault)
    return list(faulty.values())


def _read(item: Untrusted, source: str, grid: Grid | None) -> Report | Fault:
    try:
        return item if isinstance(item, Fault) else _decode(item, source, grid)
    except ReportError as error:
        return Fault(error.client, error.field, str(error))


def _decode(
    item: Report | bytes | str | Mapping[str, Any], source: str, grid: Grid | None
) -> Report:
    if isinstance(item, Report):
        return item
    if isinstance(item, (bytes, str)):
        return Report.from_json(item, source, grid)
    if isinstance(item, Mapping):
        import msgspec

        try:
            return Report.from_json(msgspec.json.encode(dict(item)), source, grid)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            if isinstance(error, ReportError):
                raise
            raise ReportError(source, "report", "is not JSON data", "send a report") from None
    kind = type(item).__name__
    raise ReportError(source, "report", f"{kind} is not a report", "pass Report objects or JSON")


def _keep(
    headers: list[Header], refused: list[Refusal], check: Callable[[Header], ReportError | None]
) -> list[Header]:
    """The reports without objection; the others join the refused."""
    fine = []
    for header in headers:
        error = check(header)
        if error is None:
            fine.append(header)
        else:
            fault = Fault(header.client, error.field, str(error))
            refused.append(Refusal(f"report #{header.row + 1}", fault))
    return fine


def _checked_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """The registry with whole numbers for plain names."""
    if not isinstance(sizes, Mapping) or not sizes:
        raise RobfcpError("sizes: registers nobody; map client names to numbers of samples")
    for client in sizes:
        check_client(client)
    return {
        str(client): whole(f"sizes: {client}", size, "register its number of samples", 1)
        for client, size in sizes.items()
    }


def _registered(header: Header, sizes: Mapping[str, int]) -> ReportError | None:
    if header.client not in sizes:
        return ReportError(header.client, "client", "is not registered", "add it to the registry")
    expected = sizes[header.client]
    if size_of(header, sizes) == expected:
        return None
    return ReportError(
        header.client,
        "n_samples",
        f"counts sum to {header.n_samples} but {expected} samples were registered",
        "rebuild the report or fix the registry",
    )


def _common_strata(headers: list[Header]) -> tuple[By | None, Names]:
    """What most reports by class agree on: the grouping, and its names; groups join theirs."""
    kinds = Counter(header.strata for header in headers if header.strata is not None)
    if not kinds:
        return None, 0
    groupings: Counter[By] = Counter()
    for (grouping, _), number in kinds.items():
        groupings[grouping] += number
    by: By = max(groupings, key=lambda one: (groupings[one], str(one)))
    own = {names: number for (one, names), number in kinds.items() if one == by}
    return by, _common_groups(own) if by == "group" else _common_classes(own)


def _common_classes(own: Mapping[Names, int]) -> Names:
    """The classes most reports have, in any order; a number backs all names of that number.

    Whether a site merged its thin classes makes no difference to its vote.
    """
    numbers: Counter[int] = Counter()
    sets: Counter[frozenset[str]] = Counter()
    orders: Counter[tuple[str, ...]] = Counter()
    merged = set()
    for names, number in own.items():
        if isinstance(names, int):
            numbers[names] += number
            continue
        order = tuple(name for name in names if name != OTHER)
        sets[frozenset(order)] += number
        orders[order] += number
        if OTHER in names:
            merged.add(frozenset(order))
    backed = {one: votes + numbers[len(one)] for one, votes in sets.items()}
    if numbers:
        most = max(numbers, key=lambda one: (numbers[one], one))
        if numbers[most] > max(backed.values(), default=0):
            return most
    chosen = max(backed, key=lambda one: (backed[one], sets[one], sorted(one)))
    fitting = [order for order in orders if frozenset(order) == chosen]
    order = max(fitting, key=lambda one: (orders[one], one))
    return (*order, OTHER) if chosen in merged else order


def _common_groups(own: Mapping[Names, int]) -> Names:
    """All groups; where that is more than a round can have, those that most reports name."""
    votes: Counter[str] = Counter()
    for names, number in own.items():
        for name in _listed(names):
            votes[name] += number
    return tuple(sorted(sorted(votes, key=lambda name: (-votes[name], name))[:MAX_STRATA]))


def _listed(names: Names) -> tuple[str, ...]:
    return tuple(str(c) for c in range(names)) if isinstance(names, int) else names


def _same_strata(by: By, names: Names) -> Callable[[Header], ReportError | None]:
    """A check that a report by class has the round's classes, in any order, or none at all."""
    wanted = set(_listed(names))

    def check(header: Header) -> ReportError | None:
        if header.strata is None or header.strata == (by, names):
            return None
        own_by, own = header.strata
        if own_by != by:
            problem = f"counts are by {own_by}, not by {by} as most reports'"
        elif isinstance(own, int) and own == len(wanted - {OTHER}):
            return None
        elif by == "class" and set(_listed(own)) - {OTHER} != wanted - {OTHER}:
            number = len(set(_listed(own)) - {OTHER})
            problem = f"its {number} classes are not the round's {len(wanted - {OTHER})}"
        elif by == "group" and not wanted.issuperset(_listed(own)):
            problem = f"with its {len(_listed(own))} groups there are more than {MAX_STRATA}"
        else:
            return None
        return ReportError(header.client, "classes", problem, "use this round's classes")

    return check


def _votes(field: str, headers: list[Header]) -> list[Any]:
    """One vote a client; who sent several reports has none, unless all have."""
    times = Counter(header.client for header in headers)
    single = [getattr(h, field) for h in headers if times[h.client] == 1]
    return single or [getattr(h, field) for h in headers]


def _same(
    field: str, expected: Any, headers: list[Header]
) -> Callable[[Header], ReportError | None]:
    """A check that the field is the expected one, or the majority's where none is given."""
    if expected is None and headers:
        (expected, votes), *others = Counter(_votes(field, headers)).most_common(2)
        if others and others[0][1] == votes:
            raise RobfcpError(
                f"{field}: the reports are split evenly between {expected} and {others[0][0]}; "
                f"pass the expected {field}"
            )

    def check(header: Header) -> ReportError | None:
        found = getattr(header, field)
        if found is expected or found == expected:
            return None
        return ReportError(
            header.client, field, f"{field} is {found}, not {expected}", f"use this round's {field}"
        )

    return check
