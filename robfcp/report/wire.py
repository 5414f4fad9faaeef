"""The JSON forms of reports, grids and scores: strict, versioned, never pickle."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp.errors import ReportError, RobfcpError, plain
from robfcp.files import what_is_wrong
from robfcp.grid import Grid, named
from robfcp.privacy import Privacy
from robfcp.report.by_class import MAX_STRATA, By, Names, Strata, check_strata_names
from robfcp.report.checks import MAX_SAMPLES, check_text
from robfcp.report.private import WirePrivacy, disclosure_of, read_privacy
from robfcp.scores import SCORES, Risk, Score, named_score

MAX_WIRE_BINS = 20_000  # of a report: twenty times the default grid

Parameter = bool | int | float | str


class WireGrid(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A grid by name and parameters, or by its finite edges; always with its digest."""

    name: str
    digest: str
    parameters: dict[str, Parameter] = {}
    edges: list[float] | None = None
    open_below: bool = False
    open_above: bool = False


class WireScore(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A score by name and parameters."""

    name: str
    parameters: dict[str, Parameter] = {}


class WireCounts(msgspec.Struct, forbid_unknown_fields=True):
    """Only the bins that are not empty, in rising order."""

    bins: list[int]
    counts: list[int]


class WireReport(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="report"
):
    """Schema 1 of a report."""

    schema: int
    client: str
    n_samples: int
    grid: WireGrid
    counts: list[int] | WireCounts
    score: WireScore | None = None
    round: str | None = None
    model: str | None = None


class PrivateWireReport(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="report"
):
    """Schema 2 of a report: noisy counts and the privacy they have; n_samples unless hidden."""

    schema: int
    client: str
    grid: WireGrid
    counts: list[int] | WireCounts
    privacy: WirePrivacy
    n_samples: int | None = None
    score: WireScore | None = None
    round: str | None = None
    model: str | None = None


class WireRisk(msgspec.Struct, forbid_unknown_fields=True):
    """A risk by name, bound and parts."""

    name: str
    bound: float
    resolution: int


class WireStrata(msgspec.Struct, forbid_unknown_fields=True):
    """Counts by class or group: the first cell in use, then how far each is from the one before."""

    by: By
    names: list[str] | int
    steps: list[int]
    counts: list[int]


class ExtendedWireReport(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="report"
):
    """Schema 3 of a report: falls of a loss; counts by class, whose sums are the counts; sizes."""

    schema: int
    client: str
    grid: WireGrid
    n_samples: int | None = None
    counts: list[int] | WireCounts | None = None
    risk: WireRisk | None = None
    strata: WireStrata | None = None
    score: WireScore | None = None
    privacy: WirePrivacy | None = None
    round: str | None = None
    model: str | None = None
    set_sizes: list[int] | WireCounts | None = None


class WireContext(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What many reports share, said once for all of them."""

    grid: WireGrid
    score: WireScore | None = None
    round: str | None = None
    model: str | None = None
    risk: WireRisk | None = None
    privacy: WirePrivacy | None = None
    by: By | None = None
    names: list[str] | int = 0

    @property
    def exact(self) -> bool:
        """Whether counts are as they are, without noise."""
        return self.privacy is None


SCHEMA = 3  # losses and counts by class; private ones without are schema 2, plain ones schema 1


class ReportFields(NamedTuple):
    """All that a report holds, in the order of its own fields; not yet checked as a whole."""

    client: str
    counts: Any
    grid: Grid
    score: Score | None
    round: str | None
    model: str | None
    n_samples: Any
    privacy: Privacy | None
    risk: Risk | None = None
    strata: Strata | None = None
    set_sizes: Any = None


class _Header(msgspec.Struct):
    """As much as is read of a file before its schema is known."""

    schema: int
    kind: str = "report"


class _Name(msgspec.Struct):
    """As much as is read of a broken report to say whose it is."""

    client: str


def wire_grid(grid: Grid) -> WireGrid:
    """The grid as it stands in a file."""
    with suppress(RobfcpError):
        if named(grid.name, grid.parameters) == grid:
            return WireGrid(grid.name, grid.digest, dict(grid.parameters))
    finite = np.isfinite(grid.edges)
    return WireGrid(
        grid.name,
        grid.digest,
        edges=grid.edges[finite].tolist(),
        open_below=not finite[0],
        open_above=not finite[-1],
    )


def read_grid(wire: WireGrid, expected: Grid | None = None) -> Grid:
    """The grid a file names, refused when its digest does not fit.

    Where the expected one is known no other is built, whatever size it would have.
    """
    if expected is not None:
        if wire.digest == expected.digest:
            return expected
        raise _other_grid(wire.name, wire.digest, expected)
    bins = wire.parameters.get("bins", 0) if wire.edges is None else len(wire.edges)
    if not isinstance(bins, (int, float)) or bins > MAX_WIRE_BINS:
        raise RobfcpError(f"grid: more than {MAX_WIRE_BINS} bins; use a coarser grid")
    if wire.edges is None:
        grid = _built(wire.name, *wire.parameters.items())
    else:
        edges = [-np.inf] * wire.open_below + wire.edges + [np.inf] * wire.open_above
        grid = Grid(np.array(edges, dtype=np.float64), wire.name)
    if grid.digest != wire.digest:
        raise RobfcpError("grid: the digest does not fit the edges; rebuild the report")
    return grid


def check_expected(client: str, grid: Grid, expected: Grid) -> None:
    """Refuse a report on another grid than the round's, in the words for one in a file."""
    if grid.digest != expected.digest:
        raise _this_round(client, _other_grid(grid.name, grid.digest, expected))


def _other_grid(name: str, digest: str, expected: Grid) -> RobfcpError:
    return RobfcpError(
        f"grid: grid is {plain(name, 40)} {plain(digest[:8])}, not the round's "
        f"{expected}; use this round's grid"
    )


def _this_round(client: str, error: RobfcpError) -> ReportError:
    field = str(error).split(":", 1)[0]
    return ReportError(client, field, str(error), "send a report of this round")


@lru_cache(maxsize=8)  # reports of a round name one grid, hostile ones many large ones
def _built(name: str, *parameters: tuple[str, Parameter]) -> Grid:
    return named(name, dict(parameters))


def wire_score(score: Score | None) -> WireScore | None:
    """The score as it stands in a file."""
    if score is None or type(score) is not SCORES.get(score.name):
        return None  # a score of somebody's own could not be made again from a file
    return WireScore(score.name, asdict(score))  # type: ignore[call-overload]


def read_score(wire: WireScore | None) -> Score | None:
    """The score a file names."""
    return None if wire is None else named_score(wire.name, **wire.parameters)


def wire_risk(risk: Risk | None) -> WireRisk | None:
    """The risk as it stands in a file."""
    return None if risk is None else WireRisk(**asdict(risk))


def wire_counts(counts: NDArray[np.int64]) -> list[int] | WireCounts:
    """Dense or sparse, whichever is shorter."""
    (bins,) = np.nonzero(counts)
    if 2 * bins.size < counts.size:
        return WireCounts(bins.tolist(), counts[bins].tolist())
    return counts.tolist()


def read_counts(wire: list[int] | WireCounts, n_bins: int) -> list[int] | NDArray[np.int64]:
    """Dense counts; what is not a histogram is left for the report to refuse."""
    if isinstance(wire, list):
        return wire
    if len(wire.bins) != len(wire.counts):
        raise RobfcpError("counts: bins and counts differ in length; rebuild the report")
    bins = np.array(wire.bins)
    if bins.size == 0:
        return np.zeros(n_bins, dtype=np.int64)
    within = bins.dtype.kind == "i" and bins.min() >= 0 and bins.max() < n_bins
    if not within or (np.diff(bins) <= 0).any():  # differences of what is within cannot overflow
        raise RobfcpError(f"counts: bins must rise strictly within 0..{n_bins - 1}; rebuild it")
    values = np.array(wire.counts)
    if values.dtype.kind != "i":
        raise RobfcpError("counts: a count exceeds 64 bits; rebuild the report")
    dense = np.zeros(n_bins, dtype=np.int64)
    dense[bins] = values
    return dense


def encode_fields(fields: ReportFields) -> bytes:
    """The report as JSON, in the least schema that can hold it."""
    common: dict[str, Any] = {
        "client": fields.client,
        "grid": wire_grid(fields.grid),
        "counts": wire_counts(fields.counts),
        "score": wire_score(fields.score),
        "round": fields.round,
        "model": fields.model,
    }
    if not (fields.risk is None and fields.strata is None and fields.set_sizes is None):
        return msgspec.json.encode(_extended(fields, common))
    how = disclosure_of(fields.privacy)
    return msgspec.json.encode(
        _SHAPES[how.schema](how.wire(), how.stated(fields.n_samples), common)
    )


def decode_fields(data: bytes | str, source: str, grid: Grid | None = None) -> ReportFields:
    """What a report file holds, whatever its schema, or a line naming client, field and remedy."""
    client = claimed_name(data) or source
    try:
        header = msgspec.json.decode(data, type=_Header)
        schema = header.schema
        if header.kind != "report":
            raise ReportError(
                client,
                "kind",
                f"is of kind {header.kind!r:.40}, not a report",
                "send what robfcp sketch wrote",
            )
        if schema not in READERS:
            raise ReportError(
                client,
                "schema",
                f"schema {schema} is unknown to this version (it reads 1 to {SCHEMA})",
                "update robfcp at the server",
            )
        return READERS[schema](data, grid)
    except ReportError:
        raise
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ReportError(
            client,
            _field(str(error)),
            f"not a valid report ({what_is_wrong(error)})",
            "rebuild the report",
        ) from None
    except (OverflowError, ValueError) as error:
        if not isinstance(error, RobfcpError):
            raise ReportError(
                client, "report", "a number is too large", "rebuild the report"
            ) from None
        raise _this_round(client, error) from None


def claimed_name(data: bytes | str) -> str | None:
    """The client that even a broken report names; None where it names none."""
    try:
        return msgspec.json.decode(data, type=_Name).client
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _read_v1(data: bytes | str, expected: Grid | None) -> ReportFields:
    return _fields(msgspec.json.decode(data, type=WireReport), expected)


def _read_v2(data: bytes | str, expected: Grid | None) -> ReportFields:
    wire = msgspec.json.decode(data, type=PrivateWireReport)
    return _fields(wire, expected, read_privacy(wire.privacy))


def _extended(fields: ReportFields, common: dict[str, Any]) -> ExtendedWireReport:
    how = disclosure_of(fields.privacy)
    found = ExtendedWireReport(
        schema=3,
        n_samples=how.stated(fields.n_samples),
        privacy=how.wire(),
        risk=wire_risk(fields.risk),
        set_sizes=None if fields.set_sizes is None else wire_counts(fields.set_sizes),
        **common,
    )
    if fields.strata is not None:
        strata = fields.strata
        found.counts = None
        found.strata = WireStrata(
            strata.by,
            strata.names if isinstance(strata.names, int) else list(strata.names),
            np.diff(strata.cells, prepend=0).tolist(),
            strata.counts.tolist(),
        )
    return found


def _read_v3(data: bytes | str, expected: Grid | None) -> ReportFields:
    wire = msgspec.json.decode(data, type=ExtendedWireReport)
    privacy = read_privacy(wire.privacy)
    risk = None if wire.risk is None else Risk(**msgspec.structs.asdict(wire.risk))
    if (wire.counts is None) == (wire.strata is None):
        raise RobfcpError("counts: a report has counts or counts by class; rebuild the report")
    return _fields(wire, expected, privacy, risk)


def _fields(
    wire: WireReport | PrivateWireReport | ExtendedWireReport,
    expected: Grid | None,
    privacy: Privacy | None = None,
    risk: Risk | None = None,
) -> ReportFields:
    grid = read_grid(wire.grid, expected)
    strata, set_sizes = None, None
    if isinstance(wire, ExtendedWireReport) and wire.strata is not None:
        strata = _read_strata(wire.strata, grid)
    if isinstance(wire, ExtendedWireReport) and wire.set_sizes is not None:
        set_sizes = read_counts(wire.set_sizes, grid.n_bins)
    return ReportFields(
        client=wire.client,
        counts=None if wire.counts is None else read_counts(wire.counts, grid.n_bins),
        grid=grid,
        score=read_score(wire.score),
        round=wire.round,
        model=wire.model,
        n_samples=wire.n_samples,
        privacy=privacy,
        risk=risk,
        strata=strata,
        set_sizes=set_sizes,
    )


def _read_strata(wire: WireStrata, grid: Grid) -> Strata:
    """Counts by class; what cannot be is refused in words."""
    steps, counts = np.array(wire.steps), np.array(wire.counts)
    if (steps.size and steps.dtype.kind != "i") or (counts.size and counts.dtype.kind != "i"):
        raise RobfcpError("strata: a number exceeds 64 bits; rebuild the report")
    if steps.size and steps.max() > MAX_STRATA * grid.n_bins:
        raise RobfcpError("strata: a cell lies beyond the table; rebuild the report")
    names = wire.names if isinstance(wire.names, int) else tuple(wire.names)
    return Strata(wire.by, names, np.cumsum(steps), counts, grid.n_bins)


def _plain(privacy: Any, n_samples: Any, common: dict[str, Any]) -> WireReport:
    return WireReport(schema=1, n_samples=n_samples, **common)


def _private(privacy: Any, n_samples: Any, common: dict[str, Any]) -> PrivateWireReport:
    return PrivateWireReport(schema=2, privacy=privacy, n_samples=n_samples, **common)


_SHAPES: dict[int, Callable[[Any, Any, dict[str, Any]], msgspec.Struct]] = {1: _plain, 2: _private}
READERS: dict[int, Any] = {1: _read_v1, 2: _read_v2, 3: _read_v3}


def _field(message: str) -> str:
    """The field msgspec complains about: `$.counts[3]` -> counts."""
    path = message.rpartition("`$.")[2].rstrip("`") if "`$." in message else ""
    return path.split(".")[0].split("[")[0] or "report"


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
