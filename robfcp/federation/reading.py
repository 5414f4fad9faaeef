"""A federation from report files: keys, registry, missing sites and unreadable files included."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from robfcp.errors import ReportError, RobfcpError
from robfcp.federation.columns import ENDING, Columns, open_columns
from robfcp.federation.faults import Fault, fault_again, fault_of
from robfcp.federation.federation import Federation
from robfcp.federation.intake import Sent
from robfcp.files import MAX_FILE_BYTES, read_limited
from robfcp.grid import Grid
from robfcp.privacy import Privacy
from robfcp.report import (
    Report,
    check_named_key,
    may_be_signed,
    read_keys,
    read_sizes,
    unwrap,
    verify,
)
from robfcp.scores import Score

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


def read_federation(
    paths: Iterable[FilePath],
    *,
    sizes: Mapping[str, int] | FilePath | None = None,
    keys: Mapping[str, str] | FilePath | None = None,
    quorum: int | float | None = None,
    round: str | None = None,
    grid: Grid | None = None,
    score: Score | None = None,
    model: str | None = None,
    privacy: Privacy | None = None,
    revoked: FilePath | None = None,
) -> Federation:
    """The federation in report files; unreadable ones count as faulty, under their file name.

    Parameters
    ----------
    paths
        Report files, signed or not; files of columns (`.columns`) hold many.
    sizes
        Who may report and with how many samples: a mapping, or the path of a registry.
    keys
        By which key each client's report must be signed: a mapping, or the path of a registry.
        Needs `round`. Without keys a signature must only be by the key its file names. Files of
        columns must have been packed by the same keys.
    quorum
        The least number of valid reports, or their least share of those awaited.
    round
        Reports of another round are refused.
    grid
        Reports on another grid are refused before theirs is built.
    score
        Reports of another score are refused.
    model
        Reports of another model are refused.
    privacy
        Reports with another budget or noise, or none, are refused.
    revoked
        A file of public keys that count no more, one a line.

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
    expected: dict[str, Any] = {
        "round": round,
        "grid": grid,
        "score": score,
        "model": model,
        "privacy": privacy,
    }
    if keys is None and revoked is not None:
        raise RobfcpError("--revoked: goes with --keys, the registry it takes keys from; pass both")
    if keys is None:
        unsigned = Unsigned(paths, grid)
        federation = Federation.from_reports(
            unsigned, faults=unsigned.faults, sizes=registry, quorum=quorum, **expected
        )
        checked = replace(federation.checked, signatures=unsigned.words)
        return replace(federation, checked=checked)
    if round is None:
        raise RobfcpError("--keys: needs --round, or an old report could be used again")
    public = keys if isinstance(keys, Mapping) else read_keys(keys, revoked)
    files = list(paths)
    plain = [path for path in files if not is_columns(path)]
    reports, refused, unreadable = read_signed_files(plain, public, round)
    packed, broken = read_packed((path for path in files if is_columns(path)), public)
    in_packed = clients_of(packed)
    heard = {report.client for report in reports} | in_packed
    when = f", of {len(in_packed)} when packed" if packed else ""
    return Federation.from_reports(
        [*reports, *packed],
        faults=[*charged([*refused, *doubts(packed)], heard), *unreadable, *broken],
        sizes=registry,
        quorum=quorum,
        **expected,
        invited=public,
        signatures=f"by registered keys{when}",
    )
