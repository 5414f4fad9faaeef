"""Reports from files and folders, and whose signatures they bear."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from robfcp.errors import ReportError, RobfcpError
from robfcp.federation.intake import Fault, Sent, Untrusted
from robfcp.files import read_limited
from robfcp.report import Report, signing

FilePath = str | os.PathLike[str]


def read_files(paths: FilePath | Iterable[FilePath]) -> Iterator[Sent | Fault]:
    """What stands in the files, one at a time; a folder stands for its .json files.

    Hidden files and the evidence of calibrations are no reports.
    """
    for path in map(Path, [paths] if isinstance(paths, (str, os.PathLike)) else paths):
        files = [path]
        if path.is_dir():
            files = sorted(path.glob("[!.]*.json"))
            files = [file for file in files if not file.name.endswith(".record.json")]
        for file in files:
            try:
                yield Sent(read_limited(file), f"file:{file}")
            except RobfcpError as error:
                yield Fault(f"file:{file}", "file", str(error))


def verified(
    reports: Iterable[Untrusted], keys: Mapping[str, str], round: str
) -> tuple[list[Untrusted], list[Fault]]:
    """The genuine reports, and the faults of what is not.

    The latter are charged to the client they name only where that client sent no genuine report,
    so that nobody can silence another.
    """
    genuine: list[Untrusted] = []
    refused: list[tuple[str, ReportError]] = []
    heard = set()
    faults = []
    for number, item in enumerate(reports, 1):
        if isinstance(item, Fault):
            faults.append(item)
            continue
        data, source = item if isinstance(item, Sent) else (item, f"report #{number}")
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
        Fault(source, error.field, f"{source.removeprefix('file:')}: {error}")
        if error.client in heard
        else Fault.of(error)
        for source, error in refused
    ] + faults
