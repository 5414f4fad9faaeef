"""A report that waits to be checked with others, and how their numbers become columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp.federation.block import NOTHING, Block, Ragged
from robfcp.federation.late_grids import kept
from robfcp.federation.marks import Header
from robfcp.reports import UNSET, QuickCounts, QuickReport, Report


class Sent(NamedTuple):
    """A report's JSON with the name that errors give it until its client is known."""

    data: bytes | str
    source: str


Numbers = Sequence[int] | NDArray[np.int64]
Listed = tuple[Numbers, Numbers]  # places and what is in them


class Entry(NamedTuple):
    """One report that waits to be checked with others, or is known to be right."""

    client: str
    size: int
    header: Header
    counts: Listed | None  # by bin; the sums of the strata where there are none
    strata: Listed | None  # by steps from cell to cell
    told: Listed | None  # scores of all labels, by bin
    position: int
    sent: Sent | bytes | str | None  # to be read again; None where nothing can be wrong


def known(report: Report, position: int) -> Entry:
    """A report that was checked when it was made."""
    strata, told = report.strata, report.set_sizes
    kind = None if strata is None else (strata.by, strata.names)
    header = Header(kept(report.grid), *report.context[1:], report.privacy, kind)
    split = None
    if strata is not None:
        steps = strata.cells.copy()
        steps[1:] -= strata.cells[:-1]
        split = steps, strata.counts
    return Entry(
        report.client,
        report.n_samples,
        header,
        counts=_in_use(report.counts),
        strata=split,
        told=None if told is None else _in_use(told),
        position=position,
        sent=None,
    )


def _in_use(counts: NDArray[np.int64]) -> Listed:
    """The bins that are not empty; one at least, since noise can leave nothing."""
    bins = np.flatnonzero(counts)
    bins = bins if bins.size else np.zeros(1, dtype=np.intp)
    return bins, counts[bins]


def entry_of(
    found: QuickReport, header: Header, position: int, sent: Sent | bytes | str
) -> Entry | None:
    """A report's numbers; None where lists that belong together differ in length."""
    told, strata = None, None
    counts = _listed(found.counts, header)
    if found.schema > 1:
        told = _listed(found.set_sizes, header)
        if found.strata is not UNSET:
            strata = found.strata.steps, found.strata.counts
    for part in (counts, strata, told):
        if part is not None and len(part[0]) != len(part[1]):
            return None
    size = found.n_samples or 0
    return Entry(
        found.client,
        size,
        header,
        counts=counts,
        strata=strata,
        told=told,
        position=position,
        sent=sent,
    )


def _listed(counts: list[int] | QuickCounts | msgspec.UnsetType, header: Header) -> Listed | None:
    """Bins and counts of what a report lists."""
    if isinstance(counts, QuickCounts):
        return counts.bins, counts.counts
    return (range(header.grid.n_bins), counts) if isinstance(counts, list) else None


def block_of(entries: list[Entry]) -> Block:
    """The entries' numbers in columns."""
    columns = zip(*entries, strict=True) if entries else ((),) * len(Entry._fields)
    names, sizes, headers, counts, strata, told, _, sent = map(list, columns)
    own = {id(header): header for header in headers}  # in the order of the first that has it
    numbers = {one: k for k, one in enumerate(own)}
    steps = _ragged(strata)
    return Block(
        names=names,
        sizes=np.array(sizes, dtype=np.int64),
        headers=list(own.values()),
        kinds=np.array([numbers[id(header)] for header in headers], dtype=np.intp),
        known=np.array([one is None for one in sent], dtype=bool),
        counts=_ragged(counts),
        strata=replace(steps, cells=_cells(steps)),
        told=_ragged(told),
    )


def _ragged(parts: list[Listed | None]) -> Ragged:
    used = [part for part in parts if part is not None]
    if not used:
        return NOTHING
    rows = [k for k, part in enumerate(parts) if part is not None]
    places, values = zip(*used, strict=True)
    lengths = np.fromiter(map(len, values), np.int64, len(used))
    number = int(lengths.sum())
    return Ragged(
        np.array(rows, dtype=np.intp), lengths, _joined(places, number), _joined(values, number)
    )


def _joined(parts: Sequence[Numbers], number: int) -> NDArray[np.int64]:
    """Lists of reports' JSON and arrays of report objects, one after another."""
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if len(arrays) == len(parts):
        return np.concatenate(arrays).astype(np.int64, copy=False)
    if arrays:
        parts = [part.tolist() if isinstance(part, np.ndarray) else part for part in parts]
    return np.fromiter(chain.from_iterable(parts), np.int64, number)


def _cells(steps: Ragged) -> NDArray[np.int64]:
    """Where the steps of each row lead to."""
    ends = np.cumsum(steps.lengths)
    reached = np.cumsum(steps.cells)
    before = np.concatenate([[0], reached])[ends - steps.lengths]
    return reached - np.repeat(before, steps.lengths)
