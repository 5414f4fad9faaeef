"""A federation from report files: keys, registry, missing sites and unreadable files included."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from robfcp._util.files import MAX_FILE_BYTES, read_limited
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation.faults import Fault
from robfcp.federation.federation import Federation
from robfcp.reports import Report, read_keys, read_sizes, unwrap, verify

FilePath = str | os.PathLike[str]


def read_federation(
    paths: Iterable[FilePath],
    *,
    sizes: Mapping[str, int] | FilePath | None = None,
    keys: Mapping[str, str] | FilePath | None = None,
    quorum: int | float | None = None,
    round: str | None = None,
) -> Federation:
    """The federation in report files; unreadable ones count as faulty, under their file name.

    Parameters
    ----------
    paths
        Report files, signed or not.
    sizes
        Who may report and with how many samples: a mapping, or the path of a registry.
    keys
        By which key each client's report must be signed: a mapping, or the path of a registry.
        Needs `round`. Without keys signatures are not looked at.
    quorum
        The least number of valid reports, or their least share of those awaited.
    round
        Reports of another round are refused.

    Returns
    -------
    Federation
        The valid reports; the others are listed as faulty, silent registered sites as missing.

    Examples
    --------
    >>> import robfcp
    >>> robfcp.Report.from_scores("a", [0.1, 0.4]).save("a.json")
    >>> robfcp.read_federation(["a.json", "nobody.json"]).faulty[0].reason
    'nobody.json: no such file; check the path'
    """
    registry = sizes if sizes is None or isinstance(sizes, Mapping) else read_sizes(sizes)
    if keys is None:
        return Federation.from_reports(
            _read_unsigned(paths), sizes=registry, quorum=quorum, round=round
        )
    if round is None:
        raise RobfcpError("--keys: needs --round, or an old report could be used again")
    public = keys if isinstance(keys, Mapping) else read_keys(keys)
    reports, faults = read_signed(paths, public, round)
    return Federation.from_reports(
        reports,
        faults=faults,
        sizes=registry,
        quorum=quorum,
        round=round,
        invited=public,
        signatures="by registered keys",
    )


def _read_unsigned(paths: Iterable[FilePath]) -> Iterator[Report | Fault]:
    """Reports whoever wrote them, one at a time; signatures are not looked at."""
    for path in paths:
        try:
            yield Report.from_json(unwrap(read_limited(path)), source=str(path))
        except ReportError as error:
            yield Fault(error.client, error.field, str(error))
        except RobfcpError as error:
            yield Fault(str(path), "file", str(error))


def verify_all(
    files: Iterable[tuple[str, bytes]], keys: Mapping[str, str], round: str
) -> tuple[list[Report], list[Fault]]:
    """The genuine reports and the faults of (source, data) pairs.

    The same genuine file twice counts once. A file that is not genuine is charged to the client it
    names only where that client sent no genuine one, so that nobody can silence another.
    """
    genuine: dict[bytes, Report] = {}
    refused: list[tuple[str, ReportError]] = []
    for source, data in files:
        try:
            report = verify(data, keys, round, source)
            genuine[report.to_json()] = report
        except ReportError as error:
            refused.append((source, error))
    reports = list(genuine.values())
    heard = {report.client for report in reports}
    faults = [
        Fault(source, error.field, f"{source}: {error}")
        if error.client in heard
        else Fault(error.client, error.field, str(error))
        for source, error in refused
    ]
    return reports, faults


def read_signed(
    paths: Iterable[str | os.PathLike[str]], keys: Mapping[str, str], round: str
) -> tuple[list[Report], list[Fault]]:
    """The genuine reports and the faults of files."""
    files: list[tuple[str, bytes]] = []
    unreadable: list[Fault] = []
    for path in paths:
        try:
            files.append((str(Path(path)), read_limited(path, MAX_FILE_BYTES)))
        except RobfcpError as error:
            unreadable.append(Fault(str(path), "file", str(error)))
    reports, faults = verify_all(files, keys, round)
    return reports, faults + unreadable
