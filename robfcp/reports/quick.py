"""Reports as they usually are, decoded in one pass; what is unusual is left to `wire`, whole.

A server that takes in a million reports cannot build and check an object for each. Here only the
JSON's shape is checked and the numbers' range; sums and bins are checked for many reports at once.
Whatever is not taken here is read again by `wire`, which either takes it or says what is wrong.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Annotated, NamedTuple

import msgspec

from robfcp.grid import Grid
from robfcp.reports.checks import MAX_SAMPLES, check_text
from robfcp.reports.shapes import MAX_WIRE_BINS, WireContext, WireGrid, WireRisk, WireScore
from robfcp.reports.strata import MAX_STRATA, By, Names, check_strata_names
from robfcp.reports.wire import read_grid, read_score
from robfcp.scores import Risk, Score

Natural = Annotated[int, msgspec.Meta(ge=0, le=MAX_SAMPLES)]
Step = Annotated[int, msgspec.Meta(ge=0, le=MAX_STRATA * MAX_WIRE_BINS)]
Unset = msgspec.UnsetType
UNSET = msgspec.UNSET


class QuickCounts(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Bins in use and what is in them."""

    bins: list[Natural]
    counts: list[Natural]


class QuickStrata(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Counts by class or group; the names as they stand."""

    by: By
    names: msgspec.Raw
    steps: list[Step]
    counts: list[Natural]


class QuickReport(
    msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="report", gc=False
):
    """What plain reports of schemas 1 and 3 have; what they share is left as it stands."""

    schema: int
    client: str
    grid: msgspec.Raw
    n_samples: Natural | None = None
    counts: list[Natural] | QuickCounts | Unset = UNSET
    score: msgspec.Raw | Unset = UNSET
    round: str | None = None
    model: str | None = None
    risk: msgspec.Raw | Unset = UNSET
    strata: QuickStrata | Unset = UNSET
    set_sizes: list[Natural] | QuickCounts | Unset = UNSET


class Shared(NamedTuple):
    """What the reports of a round should share, and by what their counts are split."""

    grid: Grid
    score: Score | None
    round: str | None
    model: str | None
    risk: Risk | None
    strata: tuple[By, Names] | None


_DECODER = msgspec.json.Decoder(QuickReport)
_Names = list[str] | int
_BACKSLASH = ord("\\")  # as a number it is found in a sixth of the time
_ESCAPED_KEY = re.compile(rb'\\u00[0-9a-fA-F]{2}[^"]{0,30}"\s*:')
_REFUSED = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)


def quick_report(data: bytes | str) -> QuickReport | None:
    """The report's numbers in order, or None: it is broken, or of a kind that `wire` reads."""
    try:
        data = data.encode() if isinstance(data, str) else data
        found = _DECODER.decode(data)
    except _REFUSED:
        return None
    if found.n_samples is None or _may_repeat(data, found):
        return None
    if found.schema == 1:
        extended = (found.risk, found.strata, found.set_sizes) != (UNSET, UNSET, UNSET)
        return None if extended or found.counts is UNSET else found
    if found.schema != 3 or (found.counts is UNSET) == (found.strata is UNSET):
        return None
    of_scores = (found.strata, found.set_sizes) != (UNSET, UNSET)
    return None if of_scores and found.risk is not UNSET else found


def _may_repeat(data: bytes, found: QuickReport) -> bool:
    """Whether something left as it stands may come twice: of that, only the last would be seen."""
    return (
        data.count(b'"grid"') != 1
        or (found.score is not UNSET and data.count(b'"score"') != 1)
        or (found.risk is not UNSET and data.count(b'"risk"') != 1)
        or (found.strata is not UNSET and data.count(b'"names"') != 1)
        or (_BACKSLASH in data and _ESCAPED_KEY.search(data) is not None)
    )


def shared_key(found: QuickReport) -> tuple[object, ...]:
    """What the report says of all that reports share, byte for byte."""
    if found.schema == 1:
        score = b"" if found.score is UNSET else bytes(found.score)
        return bytes(found.grid), score, found.round, found.model
    parts = (
        b"" if part is UNSET else bytes(part) for part in (found.grid, found.score, found.risk)
    )
    split = None if found.strata is UNSET else (found.strata.by, bytes(found.strata.names))
    return *parts, found.round, found.model, split


def read_shared(found: QuickReport, grid: Grid | None) -> Shared | None:
    """The same understood; None where something of it is refused."""
    try:
        context = WireContext(
            msgspec.json.decode(found.grid, type=WireGrid), round=found.round, model=found.model
        )
        if found.score is not UNSET:
            context.score = msgspec.json.decode(found.score, type=WireScore | None)
        if found.risk is not UNSET:
            context.risk = msgspec.json.decode(found.risk, type=WireRisk)
        if found.strata is not UNSET:
            context.by = found.strata.by
            context.names = msgspec.json.decode(found.strata.names, type=_Names)
    except _REFUSED:
        return None
    return read_context(context, grid)


def read_context(context: WireContext, grid: Grid | None) -> Shared | None:
    """What reports share, as a file states it; None where it is refused, or they hold noise."""
    if not context.exact:
        return None
    try:
        own = read_grid(context.grid, grid)
        score = read_score(context.score)
        risk = None if context.risk is None else Risk(**msgspec.structs.asdict(context.risk))
        split = None
        if context.by is not None:
            names = context.names if isinstance(context.names, int) else tuple(context.names)
            split = context.by, check_strata_names(context.by, names)
        for field in ("round", "model"):
            check_text("report", field, getattr(context, field))
    except _REFUSED:
        return None
    return Shared(own, score, context.round, context.model, risk, split)


def slim_context(context: WireContext, grid: Grid | None) -> tuple[WireContext, Grid | None]:
    """A context that refuses in the same words, and the grid to expect, made once for many reports.

    What is right in it is only named: edges by their digest, strata by their number.
    """
    slim = msgspec.structs.replace(context)
    named = WireGrid(context.grid.name, context.grid.digest)
    try:
        expected: Grid | None = read_grid(context.grid, grid)
        slim.grid = named
    except _REFUSED:
        expected = grid
        slim.grid = context.grid if grid is None else named
    if context.by is not None and not isinstance(context.names, int):
        with suppress(*_REFUSED):
            names = check_strata_names(context.by, context.names)
            number = names if isinstance(names, int) else len(names)
            slim.names = number if context.by == "class" else [str(k) for k in range(number)]
    return slim, expected
