"""A federation from report files: keys, registry, missing sites and unreadable files included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from robfcp.errors import RobfcpError
from robfcp.federation.federation import Federation
from robfcp.federation.senders import (
    FilePath,
    Unsigned,
    charged,
    clients_of,
    doubts,
    is_columns,
    read_packed,
    read_signed_files,
)
from robfcp.grid import Grid
from robfcp.privacy import Privacy
from robfcp.reports import read_keys, read_sizes
from robfcp.scores import Score


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
