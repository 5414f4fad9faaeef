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
from robfcp.federation.marks import Header, agreed_noise, hides_size, same_noise
from robfcp.federation.quorum import check_quorum
from robfcp.grid import Grid
from robfcp.privacy import Privacy
from robfcp.reports import Report, check_client


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
    builder = CountsBuilder()
    arrived, refused = _read_all(reports, expected.get("grid"), builder)
    refused += [Refusal(f"file:{fault.client}", fault) for fault in faults]
    if sizes is not None:
        arrived = _keep(arrived, refused, lambda header: _registered(header, sizes))
    for field, value in expected.items():
        arrived = _keep(arrived, refused, _same(field, value, arrived))
    arrived = _keep(arrived, refused, agreed_noise(arrived, privacy, sizes is not None))
    accepted = _without_conflicts(arrived, refused)
    known = sizes is not None or not any(hides_size(header) for header in accepted)
    if not known:
        accepted = _keep(accepted, refused, same_noise(accepted))
    faulty = _charged(refused, {header.client for header in accepted})
    seen = {header.client for header in accepted} | {fault.client for fault in faulty}
    silent = set(invited) - seen
    received = len(accepted) + len(faulty)
    awaited = received + len(silent) if sizes is None else len(silent | set(sizes))
    check_quorum(len(accepted), awaited, quorum, faulty)
    missing = tuple(sorted(silent | (set(sizes or ()) - seen)))
    accepted.sort(key=lambda header: header.client)
    rows = np.fromiter((header.row for header in accepted), dtype=np.intp, count=len(accepted))
    check_extent(len(accepted), accepted[0].grid.n_bins)
    counts = builder.build(rows, accepted[0].grid.n_bins)
    ordered = tuple(sorted(faulty, key=lambda fault: fault.client))
    return Intake(accepted, counts, ordered, missing, known)


def _read_all(
    reports: Iterable[Untrusted], grid: Grid | None, builder: CountsBuilder
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
        context = (kept(report.grid), *report.context[1:], report.privacy)
        context = shared.setdefault(context, context)
        print_ = (report.client, _fingerprint(report, context))
        if print_ not in seen:
            seen.add(print_)
            row = builder.add(report.counts)
            arrived.append(Header(report.client, report.n_samples, row, *context))
    return arrived, refused


def _fingerprint(report: Report, context: Any) -> int:
    """A number that two reports of one client share only if they are the same."""
    bins = np.flatnonzero(report.counts)
    counts = bins.tobytes() + report.counts[bins].tobytes()
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
    if header.n_samples == expected or hides_size(header):
        return None
    return ReportError(
        header.client,
        "n_samples",
        f"counts sum to {header.n_samples} but {expected} samples were registered",
        "rebuild the report or fix the registry",
    )


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
