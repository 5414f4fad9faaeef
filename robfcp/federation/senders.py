"""Report files, signed or not, one by one or many in one; whose they are and what is unreadable."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from robfcp._util.files import MAX_FILE_BYTES, read_limited
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation.columns import ENDING, Columns, open_columns
from robfcp.federation.entries import Sent
from robfcp.federation.faults import Fault, fault_again, fault_of
from robfcp.grid import Grid
from robfcp.reports import Report, check_named_key, may_be_signed, unwrap, verify

FilePath = str | os.PathLike[str]
Doubtful = tuple[str, str, str, str]  # a file that is not genuine: its name, client, field, reason


def is_columns(path: FilePath) -> bool:
    """Whether a file holds many reports, by its name."""
    return os.fspath(path).endswith(ENDING)


def keys_digest(keys: Mapping[str, str]) -> str:
    """Which registry of keys it was: the same for the same keys of the same clients."""
    lines = "".join(f"{client}\n{key}\n" for client, key in sorted(keys.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


class Unsigned:
    """Reports whoever wrote them, one at a time; counts those with a signature that holds."""

    def __init__(self, paths: Iterable[FilePath], grid: Grid | None) -> None:
        self.paths, self.grid = paths, grid
        self.read = self.signed = 0
        self.packed: list[Columns] = []

    @property
    def words(self) -> str:
        """What was checked of signatures, for the record; what a packed file says is no check."""
        found = []
        if self.packed:
            says = "file says" if len(self.packed) == 1 else "files say"
            number = len(clients_of(self.packed))
            found.append(f"not checked here; the packed {says} {number} by registered keys")
        if self.signed:
            found.append(f"{self.signed} of {self.read} valid, by keys that nobody registered")
        return "; ".join(found) or "not checked"

    @property
    def faults(self) -> Iterator[Fault]:
        """What was not genuine when reports were packed; to be asked when all is read."""
        yield from charged(doubts(self.packed), clients_of(self.packed))

    def __iter__(self) -> Iterator[Sent | Report | Fault | Columns]:
        for path in self.paths:
            try:
                if is_columns(path):
                    yield self._columns(path)
                    continue
                self.read += 1
                data, source = read_limited(path), f"file:{path}"
                if not may_be_signed(data):
                    yield Sent(data, source)
                    continue
                signed = check_named_key(data, source)
                yield Report.from_json(unwrap(data), source, self.grid)
                self.signed += signed
            except ReportError as error:
                yield fault_of(error)
            except RobfcpError as error:
                yield Fault(f"file:{path}", "file", str(error))

    def _columns(self, path: FilePath) -> Columns:
        found = open_columns(path)
        self.read += found.items
        if found.about.keys:
            self.packed.append(found)
        else:
            self.signed += found.about.signed
        return found


def read_packed(
    paths: Iterable[FilePath], keys: Mapping[str, str]
) -> tuple[list[Columns], list[Fault]]:
    """Files of reports that were packed by these keys, and the faults of others."""
    found, faults = [], []
    for path in paths:
        try:
            columns = open_columns(path)
            if columns.about.keys != keys_digest(keys):
                raise RobfcpError(
                    f"{path}: its signatures were not checked by these keys when it was packed; "
                    "pack the reports again with --keys"
                )
            found.append(columns)
        except RobfcpError as error:
            faults.append(Fault(f"file:{path}", "file", str(error)))
    return found, faults


def doubts(packed: Iterable[Columns]) -> list[Doubtful]:
    """What was not genuine when reports were packed."""
    return [
        (fault.source, fault.client, fault.field, fault.reason)
        for columns in packed
        for fault in columns.doubtful
    ]


def clients_of(packed: Iterable[Columns]) -> set[str]:
    """Who has a report in a file."""
    return {name for columns in packed for name in columns.clients}


def charged(refused: Iterable[Doubtful], heard: set[str]) -> list[Fault]:
    """The faults of files that are not genuine.

    Each is charged to the client it names only where that client sent no genuine one, so that
    nobody can silence another.
    """
    return [
        Fault(f"file:{source}", field, f"{source}: {reason}")
        if client in heard
        else fault_again(client, field, reason)
        for source, client, field, reason in refused
    ]


def verify_all(
    files: Iterable[tuple[str, bytes]], keys: Mapping[str, str], round: str
) -> tuple[list[Report], list[Fault]]:
    """The genuine reports and the faults of (source, data) pairs.

    The same genuine file twice counts once. A file that is not genuine is charged to the client it
    names only where that client sent no genuine one, so that nobody can silence another.
    """
    reports, refused = _verified(files, keys, round)
    return reports, charged(refused, {report.client for report in reports})


def read_signed(
    paths: Iterable[FilePath], keys: Mapping[str, str], round: str
) -> tuple[list[Report], list[Fault]]:
    """The genuine reports and the faults of files."""
    reports, refused, unreadable = read_signed_files(paths, keys, round)
    return reports, charged(refused, {report.client for report in reports}) + unreadable


def read_signed_files(
    paths: Iterable[FilePath], keys: Mapping[str, str], round: str
) -> tuple[list[Report], list[Doubtful], list[Fault]]:
    """The genuine reports of files, what is not genuine, and what cannot be read."""
    files: list[tuple[str, bytes]] = []
    unreadable: list[Fault] = []
    for path in paths:
        try:
            files.append((str(Path(path)), read_limited(path, MAX_FILE_BYTES)))
        except RobfcpError as error:
            unreadable.append(Fault(f"file:{path}", "file", str(error)))
    return *_verified(files, keys, round), unreadable


def _verified(
    files: Iterable[tuple[str, bytes]], keys: Mapping[str, str], round: str
) -> tuple[list[Report], list[Doubtful]]:
    genuine: dict[bytes, Report] = {}
    refused: list[Doubtful] = []
    for source, data in files:
        try:
            report = verify(data, keys, round, f"file:{source}")
            genuine[report.to_json()] = report
        except ReportError as error:
            refused.append((source, error.client, error.field, str(error)))
    return list(genuine.values()), refused
