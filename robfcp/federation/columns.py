"""Many reports in one file, column by column, checked a block at a time.

The file says what reports share once, then holds the clients' names, their numbers of samples and
their counts as bare numbers. It is believed no more than a report is: every row is checked by the
rules of a report, whoever wrote it. What was refused when the file was made is listed in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.federation._column_file import Column, read_columns
from robfcp.federation.counts import NOTHING, Block, Ragged
from robfcp.federation.majority import Header
from robfcp.report import WireContext

KIND = "robfcp reports"
SCHEMA = 1
ENDING = ".columns"
_ROWS = 4096  # checked at a time
_PARTS = {
    "counts": ("count_lengths", "count_bins", "count_values"),
    "strata": ("cell_lengths", "cells", "cell_values"),
    "told": ("told_lengths", "told_bins", "told_values"),
}
_PLACES = ("name_lengths", "kinds", "sizes", "told_rows", *(part[0] for part in _PARTS.values()))
NAMES = ("names", "name_lengths", "sizes", "kinds", "told_rows", "contexts", "faults")
COLUMNS = (*NAMES, *(name for part in _PARTS.values() for name in part))

Whole = NDArray[np.int64]
Run = tuple[slice, Block | None]  # rows, and what they hold where all of it is right
Number = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
Place = Annotated[int, msgspec.Meta(ge=-1, lt=2**62)]


class WireFault(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What was refused when the file was made: which of all that came, and why.

    `source` is the file of a report whose signature did not hold: it stands beside the others,
    since only all reports together tell whom it is charged to.
    """

    client: str
    field: str
    reason: str
    position: Place = -1
    source: str = ""


class WireAbout(msgspec.Struct, forbid_unknown_fields=True):
    """How many reports a file holds, of how many that came; which signatures were checked.

    `signed` of them had a signature that held, by the key it names; `keys` is the digest of the
    registry by whose keys all of them are signed, empty where that was not asked for.
    """

    reports: Number
    items: Number
    signed: Number
    keys: str


@dataclass(frozen=True, eq=False)
class Columns:
    """A file of reports, open; see `open_columns`.

    Parameters
    ----------
    path
        The file.
    about
        How many reports it holds and what of them was checked.
    contexts
        What reports share, each kind once.
    faults
        What was refused when it was made, in the order in which it came.
    doubtful
        Files whose signatures did not hold.
    arrays
        The columns.
    """

    path: str
    about: WireAbout
    contexts: list[WireContext]
    faults: list[WireFault]
    doubtful: list[WireFault]
    arrays: dict[str, Column]

    @property
    def n_reports(self) -> int:
        """How many reports the file holds."""
        return self.about.reports

    @property
    def items(self) -> int:
        """How many things had come when it was made, right or wrong."""
        return self.about.items

    @property
    def clients(self) -> list[str]:
        """Whose reports they are, row by row."""
        return self._names(slice(0, self.n_reports))

    def blocks(self) -> Iterator[slice]:
        """Rows that are checked at a time."""
        for start in range(0, self.n_reports, _ROWS):
            yield slice(start, min(start + _ROWS, self.n_reports))

    def positions(self, rows: slice) -> list[int]:
        """As which of all that came the rows are known."""
        own = np.arange(rows.start, rows.stop)
        if not self.faults:
            return own.tolist()
        wrong = np.array([fault.position for fault in self.faults])
        before = wrong - np.arange(len(wrong))  # rows that came before each fault
        return (own + np.searchsorted(before, own, side="right")).tolist()

    def used(self, rows: slice) -> list[int]:
        """Which contexts some rows have."""
        return np.unique(self.arrays["kinds"][rows]).tolist()

    def runs(self, rows: slice, headers: Mapping[int, Header | None]) -> Iterator[Run]:
        """The rows in order, those that are right as blocks; the others are to be read singly."""
        used = self.used(rows)
        known = np.array([headers[kind] is not None for kind in used], dtype=bool)
        kinds = self.arrays["kinds"][rows].astype(np.int64)
        for run, has_header in _runs(known[np.searchsorted(used, kinds)], rows.start):
            if not has_header:
                yield run, None
                continue
            block = self.block(run, headers)
            fine = block.fine()
            if fine.all():
                yield run, block
                continue
            for part, right in _runs(fine, run.start):
                again = self.block(part, headers) if right else None
                yield part, again if again is not None and again.fine().all() else None

    def block(self, rows: slice, headers: Mapping[int, Header | None]) -> Block:
        """Some rows whose headers are known, copied out of the file."""
        kinds = self.arrays["kinds"][rows].astype(np.intp)
        used, first, own = np.unique(kinds, return_index=True, return_inverse=True)
        order = np.argsort(first)  # headers come in the order of the first row that has them
        place = np.empty(len(used), dtype=np.intp)
        place[order] = np.arange(len(used))
        found = [header for k in used[order].tolist() if (header := headers[k]) is not None]
        return Block(
            names=self._names(rows),
            sizes=self.arrays["sizes"][rows].astype(np.int64),
            headers=found,
            kinds=place[own],
            known=np.zeros(rows.stop - rows.start, dtype=bool),
            counts=self._part("counts", self._plain, rows),
            strata=self._part("strata", self._split, rows),
            told=self._part("told", self._told, rows),
        )

    def kind(self, row: int) -> int:
        """Which of the contexts a row has."""
        return int(self.arrays["kinds"][row])

    def json(self, row: int, context: WireContext | None = None) -> bytes:
        """One row as the report it was, or with another context in place of its own."""
        here = slice(row, row + 1)
        context = context or self.contexts[self.kind(row)]
        report: dict[str, Any] = {"kind": "report", "client": self._names(here)[0]}
        for name in ("grid", "score", "round", "model", "risk", "privacy"):
            value = getattr(context, name)
            report |= {} if value is None else {name: value}
        size = int(self.arrays["sizes"][row])
        if size:  # 0 where the report hides it
            report["n_samples"] = size
        told = self._part("told", self._told, here)
        extended = context.risk is not None or context.by is not None or len(told.rows)
        report["schema"] = 3 if extended else 1 if context.exact else 2
        report |= {"set_sizes": _listed(told)} if len(told.rows) else {}
        if context.by is None:
            report["counts"] = _listed(self._part("counts", self._plain, here))
        else:
            strata = self._part("strata", self._split, here)
            report["strata"] = {
                "by": context.by,
                "names": context.names,
                "steps": np.diff(strata.cells, prepend=0).tolist(),
                "counts": strata.values.tolist(),
            }
        return msgspec.json.encode(report)

    def _names(self, rows: slice) -> list[str]:
        ends = self._name_ends
        first, last = int(ends[rows.start]), int(ends[rows.stop])
        text = self.arrays["names"][first:last].tobytes()
        places = (ends[rows.start : rows.stop + 1] - first).tolist()
        if text.isascii():
            plain = text.decode("ascii")
            return [plain[a:b] for a, b in pairwise(places)]
        return [_text(text[a:b]) for a, b in pairwise(places)]

    def _part(self, name: str, owners: Whole, rows: slice) -> Ragged:
        """What some rows have of a part."""
        first, last = np.searchsorted(owners, [rows.start, rows.stop])
        if first == last:
            return NOTHING
        starts = self._starts[name]
        here = slice(int(starts[first]), int(starts[last]))
        lengths, cells, values = (self.arrays[column] for column in _PARTS[name])
        return Ragged(
            owners[first:last] - rows.start,
            lengths[first:last].astype(np.int64),
            cells[here].astype(np.int64),
            values[here].astype(np.int64),
        )

    @cached_property
    def _name_ends(self) -> Whole:
        return _ends(self.arrays["name_lengths"])

    @cached_property
    def _starts(self) -> dict[str, Whole]:
        return {name: _ends(self.arrays[lengths]) for name, (lengths, *_) in _PARTS.items()}

    @cached_property
    def _is_split(self) -> NDArray[np.bool_]:
        split = np.array([context.by is not None for context in self.contexts], dtype=bool)
        return split[self.arrays["kinds"]]

    @cached_property
    def _split(self) -> Whole:
        """The rows with counts by class or group."""
        return np.flatnonzero(self._is_split)

    @cached_property
    def _plain(self) -> Whole:
        """The others."""
        return np.flatnonzero(~self._is_split)

    @cached_property
    def _told(self) -> Whole:
        """The rows that tell sizes of sets."""
        return self.arrays["told_rows"].astype(np.int64)

    def check(self) -> None:
        """Refuse columns that do not fit each other."""
        arrays, n = self.arrays, self.n_reports
        if set(arrays) != set(COLUMNS):
            raise self._broken("it has not the columns of this schema")
        if {len(arrays[name]) for name in ("name_lengths", "sizes", "kinds")} != {n}:
            raise self._broken("its columns differ in length")
        kinds, told = arrays["kinds"], self._told
        if n and not 0 <= int(kinds.min()) <= int(kinds.max()) < len(self.contexts):
            raise self._broken("a row has a context that is not there")
        falls = (told[1:] <= told[:-1]).any()  # differences could wrap
        if len(told) and (told[0] < 0 or told[-1] >= n or falls):
            raise self._broken("its columns do not fit each other")
        self._check_lengths("name_lengths", n, ("names",))
        owners = {"counts": self._plain, "strata": self._split, "told": told}
        for name, (lengths, *columns) in _PARTS.items():
            self._check_lengths(lengths, len(owners[name]), columns)
        places = np.array([fault.position for fault in self.faults], dtype=np.int64)
        rising = (np.diff(places, prepend=-1) > 0).all()
        if not rising or places.max(initial=-1) >= self.items or n + len(places) != self.items:
            raise self._broken("its faults do not fit its rows")

    def _check_lengths(self, name: str, number: int, columns: Sequence[str]) -> None:
        lengths = self.arrays[name]
        total = {len(self.arrays[column]) for column in columns}
        most = min(total)
        within = len(lengths) == number and len(total) == 1
        if not within or (number and not 0 <= int(lengths.min()) <= int(lengths.max()) <= most):
            raise self._broken("its columns do not fit each other")
        if int(lengths.sum(dtype=np.float64)) != most:  # whole numbers this small are exact
            raise self._broken("its columns do not fit each other")

    def _broken(self, problem: str) -> RobfcpError:
        return RobfcpError(f"{self.path}: {problem}; make it again with robfcp pack")


def open_columns(path: str | os.PathLike[str]) -> Columns:
    """A file of reports that `pack_reports` or `pack_files` wrote; a large one is mapped.

    Parameters
    ----------
    path
        The file, from anybody. One of 64 MiB or more must not be cut while it is in use; packing
        again is safe, since a new file takes its place.

    Returns
    -------
    Columns
        To be passed among other reports to `Federation.from_reports`, which checks every row.

    Raises
    ------
    RobfcpError
        Where it is no such file, or parts of it do not fit each other.

    Examples
    --------
    >>> import robfcp
    >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.4]) for name in "ab"]
    >>> robfcp.pack_reports(reports, "round.columns")
    2
    >>> robfcp.Federation.from_reports([robfcp.open_columns("round.columns")]).ids
    ('a', 'b')
    """
    about, arrays = read_columns(path, KIND, SCHEMA)
    for name in arrays.keys() & set(_PLACES):  # what was checked stays, whatever the file becomes
        arrays[name] = arrays[name].copy()
    try:
        faults = _decoded(arrays, "faults", list[WireFault])
        found = Columns(
            path=os.fspath(path),
            about=msgspec.json.decode(about, type=WireAbout),
            contexts=_decoded(arrays, "contexts", list[WireContext]),
            faults=[fault for fault in faults if not fault.source],
            doubtful=[fault for fault in faults if fault.source],
            arrays=arrays,
        )
    except (msgspec.MsgspecError, UnicodeError, RecursionError, KeyError):
        raise RobfcpError(f"{path}: cannot be read; make it again with robfcp pack") from None
    found.check()
    return found


def _decoded(arrays: dict[str, Column], name: str, kind: Any) -> Any:
    return msgspec.json.decode(arrays[name].tobytes() or b"[]", type=kind)


def _runs(mask: NDArray[np.bool_], start: int) -> Iterator[tuple[slice, bool]]:
    """Rows next to each other that are alike."""
    turns = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    for a, b in pairwise([0, *turns.tolist(), len(mask)]):
        yield slice(start + a, start + b), bool(mask[a])


def _text(name: bytes) -> str:
    """The name; one that no name can be where it is no UTF-8 text."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return "\x00" + name.decode("ascii", "backslashreplace")


def _ends(lengths: Column) -> Whole:
    ends = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends


def _listed(part: Ragged) -> dict[str, list[int]]:
    return {"bins": part.cells.tolist(), "counts": part.values.tolist()}
