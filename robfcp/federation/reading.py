"""A federation from report files: keys, registry, missing sites and unreadable files included."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from robfcp.errors import ReportError, RobfcpError
from robfcp.federation.faults import Fault, fault_of
from robfcp.federation.federation import Federation
from robfcp.federation.intake import Sent
from robfcp.files import MAX_FILE_BYTES, read_limited
from robfcp.grid import Grid
from robfcp.privacy import Privacy
from robfcp.report import Report, agreement, signing
from robfcp.scores import Score

FilePath = str | os.PathLike[str]


class Unsigned:
    """Reports whoever wrote them, one at a time; counts those with a signature that holds."""

    def __init__(self, paths: Iterable[FilePath], grid: Grid | None) -> None:
        self.paths, self.grid = paths, grid
        self.read = self.signed = 0

    @property
    def words(self) -> str:
        """What was checked of signatures, for the record."""
        if not self.signed:
            return "not checked"
        return f"{self.signed} of {self.read} valid, by keys that nobody registered"

    def __iter__(self) -> Iterator[Sent | Report | Fault]:
        for path in self.paths:
            try:
                self.read += 1
                data, source = read_limited(path), f"file:{path}"
                if not signing.may_be_signed(data):
                    yield Sent(data, source)
                    continue
                signed = signing.check_named_key(data, source)
                yield Report.from_json(signing.unwrap(data), source, self.grid)
                self.signed += signed
            except ReportError as error:
                yield fault_of(error)
            except RobfcpError as error:
                yield Fault(f"file:{path}", "file", str(error))


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
            report = signing.verify(data, Report, keys, round, f"file:{source}")
            genuine[report.to_json()] = report
        except ReportError as error:
            refused.append((source, error))
    reports = list(genuine.values())
    heard = {report.client for report in reports}
    faults = [
        Fault(f"file:{source}", error.field, f"{source}: {error}")
        if error.client in heard
        else fault_of(error)
        for source, error in refused
    ]
    return reports, faults


def read_signed(
    paths: Iterable[FilePath], keys: Mapping[str, str], round: str
) -> tuple[list[Report], list[Fault]]:
    """The genuine reports and the faults of files."""
    files: list[tuple[str, bytes]] = []
    unreadable: list[Fault] = []
    for path in paths:
        try:
            files.append((str(Path(path)), read_limited(path, MAX_FILE_BYTES)))
        except RobfcpError as error:
            unreadable.append(Fault(f"file:{path}", "file", str(error)))
    reports, faults = verify_all(files, keys, round)
    return reports, faults + unreadable


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
        Report files, signed or not.
    sizes
        Who may report and with how many samples: a mapping, or the path of a registry.
    keys
        By which key each client's report must be signed: a mapping, or the path of a registry.
        Needs `round`. Without keys a signature must only be by the key its file names.
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
    registry = sizes if sizes is None or isinstance(sizes, Mapping) else agreement.read_sizes(sizes)
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
        federation = Federation.from_reports(unsigned, sizes=registry, quorum=quorum, **expected)
        checked = replace(federation.checked, signatures=unsigned.words)
        return replace(federation, checked=checked)
    if round is None:
        raise RobfcpError("--keys: needs --round, or an old report could be used again")
    public = keys if isinstance(keys, Mapping) else agreement.read_keys(keys, revoked)
    reports, faults = read_signed(paths, public, round)
    return Federation.from_reports(
        reports,
        faults=faults,
        sizes=registry,
        quorum=quorum,
        **expected,
        invited=public,
        signatures="by registered keys",
    )
