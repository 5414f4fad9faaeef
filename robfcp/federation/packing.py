"""Reports become a file of columns; several processes can make a file each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise, repeat
from multiprocessing import get_context
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import whole
from robfcp.errors import RobfcpError
from robfcp.federation._column_file import Column, write_columns
from robfcp.federation.columns import ENDING, KIND, SCHEMA, WireAbout, WireFault
from robfcp.federation.counts import Entries, narrowed
from robfcp.federation.faults import Fault, Untrusted, fault_again
from robfcp.federation.intake import Reception
from robfcp.federation.majority import Arrivals, Header, built, check_quorum
from robfcp.federation.reading import FilePath, Unsigned, is_columns, keys_digest, read_signed_files
from robfcp.grid import Grid
from robfcp.report import WireContext, disclosure_of, read_keys, wire_grid, wire_risk, wire_score


def pack_reports(reports: Iterable[Untrusted], path: FilePath, *, grid: Grid | None = None) -> int:
    """Write reports into one file, column by column; what is refused is listed in it.

    Parameters
    ----------
    reports
        `Report` objects, their JSON, or what JSON decodes to, from anybody, in any number.
    path
        The file; its name should end in `.columns`, by which `read_federation` knows it.
    grid
        Reports on another grid are refused before theirs is built.

    Returns
    -------
    int
        How many reports the file holds.

    Examples
    --------
    >>> import robfcp
    >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.4]) for name in "ab"]
    >>> robfcp.pack_reports([*reports, "{}"], "round.columns")
    2
    >>> federation = robfcp.read_federation(["round.columns"])
    >>> federation.ids, len(federation.faulty)
    (('a', 'b'), 1)
    """
    reception = Reception(grid)
    for item in reports:
        reception.add(item)
    return _write(reception, path)


def pack_files(
    paths: Iterable[FilePath],
    output: FilePath,
    *,
    keys: Mapping[str, str] | FilePath | None = None,
    round: str | None = None,
    revoked: FilePath | None = None,
    grid: Grid | None = None,
    processes: int = 1,
) -> list[Path]:
    """Write report files into files of columns, one a process; signatures are checked on the way.

    Parameters
    ----------
    paths
        Report files, signed or not.
    output
        The file to write; of several processes each writes one, numbered before the ending.
    keys
        By which key each client's report must be signed: a mapping, or the path of a registry.
        Needs `round`. The files then say by which registry they were checked.
    round
        The round that signatures must be for.
    revoked
        A file of public keys that count no more, one a line.
    grid
        Reports on another grid are refused before theirs is built.
    processes
        How many of them read and check, each its part of the files.

    Returns
    -------
    list of Path
        The files written, in the order of their reports: what `read_federation` takes.

    Examples
    --------
    >>> import robfcp
    >>> robfcp.Report.from_scores("a", [0.1, 0.4]).save("a.json")
    >>> [path.name for path in robfcp.pack_files(["a.json"], "round.columns")]
    ['round.columns']
    """
    number = whole("processes", processes, "give 1 or more", 1)
    public: Mapping[str, str] | None = None
    if keys is None and revoked is not None:
        raise RobfcpError("--revoked: goes with --keys, the registry it takes keys from; pass both")
    if keys is not None:
        if round is None:
            raise RobfcpError("--keys: needs --round, or an old report could be used again")
        public = keys if isinstance(keys, Mapping) else read_keys(keys, revoked)
    files = [os.fspath(path) for path in paths]
    if any(is_columns(path) for path in files):
        raise RobfcpError(f"{output}: a file of columns is packed already; pass report files")
    if number == 1:
        _pack(files, os.fspath(output), public, round, grid, least=1)
        return [Path(output)]
    ends = [len(files) * k // number for k in range(number + 1)]
    parts = [files[a:b] for a, b in pairwise(ends)]
    targets = _numbered(Path(output), number)
    with ProcessPoolExecutor(number, mp_context=get_context("spawn")) as pool:
        shared = (repeat(one) for one in (public, round, grid))
        held = list(pool.map(_pack, parts, map(os.fspath, targets), *shared))
    if not any(held):
        for path in targets:
            path.unlink()
        raise RobfcpError(f"{output}: no report is valid; check the files")
    return targets


def _numbered(output: Path, number: int) -> list[Path]:
    """round-1.columns, round-2.columns, ... padded so that they sort."""
    ending = output.suffix or ENDING
    width = len(str(number))
    return [output.with_name(f"{output.stem}-{k:0{width}d}{ending}") for k in range(1, number + 1)]


def _pack(
    files: list[str],
    output: str,
    keys: Mapping[str, str] | None,
    round: str | None,
    grid: Grid | None,
    least: int = 0,
) -> int:
    """One process's part, unless it holds too few reports; how many it holds."""
    reception = Reception(grid)
    if keys is None or round is None:
        unsigned = Unsigned(files, grid)
        for item in unsigned:
            reception.add(item)
        return _write(reception, output, unsigned.signed, least=least)
    reports, refused, unreadable = read_signed_files(files, keys, round)
    for report in reports:
        reception.add(report)
    doubtful = [
        WireFault(client, field, reason, source=source) for source, client, field, reason in refused
    ]
    doubtful += [
        WireFault(fault.client, fault.field, fault.reason, source=fault.client)
        for fault in unreadable
    ]
    return _write(
        reception,
        output,
        signed=len(reports),
        keys=keys_digest(keys),
        doubtful=doubtful,
        least=least,
        invited=keys,
    )


def _write(
    reception: Reception,
    path: FilePath,
    signed: int = 0,
    keys: str = "",
    doubtful: Sequence[WireFault] = (),
    least: int = 0,
    invited: Iterable[str] = (),
) -> int:
    """What has arrived, as columns, if it is not too little; how many reports that are."""
    arrived = reception.arrivals()
    faults = [
        WireFault(fault.client, fault.field, fault.reason, position)
        for position, fault in reception.refused
    ]
    if len(arrived) < least:
        found = [fault_again(one.client, one.field, one.reason) for one in (*faults, *doubtful)]
        refused: dict[str, Fault] = {}
        for fault in found:
            refused.setdefault(fault.client, fault)
        check_quorum(len(arrived), len({*refused, *invited}), least, [*refused.values()])
    about = WireAbout(len(arrived), reception.read, signed, keys)
    columns = _named(arrived) | _parts(reception, arrived)
    columns["contexts"] = _bytes(msgspec.json.encode([_context(h) for h in arrived.headers]))
    columns["faults"] = _bytes(msgspec.json.encode([*faults, *doubtful]))
    write_columns(path, KIND, SCHEMA, msgspec.json.encode(about), columns)
    return len(arrived)


def _named(arrived: Arrivals) -> dict[str, Column]:
    names = [client.encode() for client in arrived.clients]
    stated = [disclosure_of(header.privacy).stated(1) is not None for header in arrived.headers]
    shown = np.array(stated, dtype=bool)[arrived.kinds]
    return {
        "names": _bytes(b"".join(names)),
        "name_lengths": narrowed(np.array([len(name) for name in names], dtype=np.int64)),
        "sizes": narrowed(np.where(shown, arrived.sizes, 0)),
        "kinds": narrowed(arrived.kinds),
    }


def _parts(reception: Reception, arrived: Arrivals) -> dict[str, Column]:
    """Counts of those without strata, strata of the others, and what some tell of labels."""
    split = np.array([header.strata is not None for header in arrived.headers], dtype=bool)
    plain = np.flatnonzero(~split[arrived.kinds])
    counts = reception.counts.entries(plain)
    strata, told = reception.by_class.entries(), reception.of_labels.entries()
    return {
        "told_rows": narrowed(reception.of_labels.rows),
        **_three(("count_lengths", "count_bins", "count_values"), counts),
        **_three(("cell_lengths", "cells", "cell_values"), strata),
        **_three(("told_lengths", "told_bins", "told_values"), told),
    }


def _three(names: tuple[str, str, str], entries: Entries) -> dict[str, Column]:
    starts, cells, values = entries
    return dict(zip(names, (narrowed(np.diff(starts)), narrowed(cells), values), strict=True))


def _context(header: Header) -> WireContext:
    """What reports share, as a file states it."""
    by, names = (None, 0) if header.strata is None else header.strata
    return WireContext(
        grid=wire_grid(built(header.grid)),
        score=wire_score(header.score),
        round=header.round,
        model=header.model,
        risk=wire_risk(header.risk),
        privacy=disclosure_of(header.privacy).wire(),
        by=by,
        names=names if isinstance(names, int) else list(names),
    )


def _bytes(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)
