"""The JSON forms of what reports hold, and their reading: strict, versioned, never pickle."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp._files import decode_error_reason
from robfcp._validation import MAX_SAMPLES
from robfcp.binning import Binning, named_binning
from robfcp.errors import ReportError, RobfcpError, printable
from robfcp.privacy import Privacy
from robfcp.reports._class_totals import ClassTotals
from robfcp.reports._strata import MAX_STRATA, StratifiedCounts, StratumKind
from robfcp.scores import BUILTIN_SCORES, Risk, Score, get_score

MAX_WIRE_BINS = 20_000  # of a report: twenty times the default binning
REPORT_SCHEMA = 2  # 1 did not state the minimum cell count

Parameter = bool | int | float | str
T = TypeVar("T", bound=msgspec.Struct)


class WireBinning(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A binning by name and parameters, or by its finite edges; always with its digest."""

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


Natural = Annotated[int, msgspec.Meta(ge=0, le=MAX_SAMPLES)]
Count = Annotated[int, msgspec.Meta(ge=-MAX_SAMPLES, le=MAX_SAMPLES)]  # with noise
Step = Annotated[int, msgspec.Meta(ge=0, le=MAX_STRATA * MAX_WIRE_BINS)]


class WireCounts(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Only the bins that are not empty, in rising order."""

    bins: list[Natural]
    counts: list[Count]


class WireStratifiedCounts(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Counts by class or group: the first cell in use, then how far each is from the one before.

    Names, or their number, are left as they stand: all reports of a round have the same.
    """

    by: StratumKind
    names: msgspec.Raw
    cell_steps: list[Step]
    counts: list[Count]


class WireClassTotals(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The rounded number of samples of each class, of all classes in order."""

    names: msgspec.Raw
    totals: list[Natural]


class WireReport(
    msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="report", gc=False
):
    """A report as it stands in a file, each field of the right type and nothing else checked.

    Attributes
    ----------
    schema : int
        The version of the format.
    client : str
        The name of the client.
    binning : WireBinning
        The binning of the scores, the same for all clients of a round.
    min_cell_count : int
        Every cell but the last bin's holds at least so many samples, or none; 1 for exact counts.
    n_samples : int, optional
        The number of calibration samples; not stated where noise protects it.
    counts : list of int, or WireCounts
        The number of scores in each bin, or in the non-empty bins. Not with `strata`.
    score : WireScore, optional
        The nonconformity score.
    round, model : str, optional
        The name of the round, and the name or digest of the model.
    risk : Risk, optional
        The loss whose drops are counted in place of scores.
    strata : WireStratifiedCounts, optional
        The counts by class or by group, in place of `counts`.
    class_totals : WireClassTotals, optional
        The number of samples of each class, rounded to multiples of `min_cell_count`.
    all_label_counts : list of int, or WireCounts, optional
        The counts of the scores of all labels, from which mean set sizes follow.
    privacy : Privacy, optional
        The budget whose noise the counts hold.
    """

    schema: Literal[2]
    client: str
    binning: WireBinning
    min_cell_count: int | msgspec.UnsetType = msgspec.UNSET
    n_samples: int | None = None
    counts: list[int] | WireCounts | msgspec.UnsetType = msgspec.UNSET
    score: WireScore | None = None
    round: str | None = None
    model: str | None = None
    risk: Risk | None = None
    strata: WireStratifiedCounts | None = None
    class_totals: WireClassTotals | None = None
    all_label_counts: list[int] | WireCounts | None = None
    privacy: Privacy | None = None


class _MessageHeader(msgspec.Struct):
    """As much as is read of what may be broken: whose it is, what it is, on which binning."""

    client: Any = None
    kind: Any = None
    schema: Any = None
    binning: Any = None
    privacy: Any = None


_UNREADABLE = (UnicodeError, RecursionError, OverflowError, ValueError)  # msgspec's among them
_REPORT_DECODER = msgspec.json.Decoder(WireReport)
_REPORT_HINT = "send what robfcp report wrote"


def parse_report(data: bytes | str, source: str, expected: Binning | None = None) -> WireReport:
    """Return what a client sent as its report; refuse what is no report, or of another binning.

    Parameters
    ----------
    data : bytes or str
        JSON from anybody.
    source : str
        How errors name the report until its client is known.
    expected : Binning, optional
        The round's binning where it is known.

    Raises
    ------
    ReportError
        Naming client, field and remedy.
    """
    try:
        report = _REPORT_DECODER.decode(data)
    except _UNREADABLE:
        # Decoding it once more, step by step, finds the words.
        return decode_message(WireReport, data, source, _REPORT_HINT, expected, REPORT_SCHEMA)
    if report.privacy is not None:
        # What must be stated of noise cannot be told from defaults any more.
        return decode_message(WireReport, data, source, _REPORT_HINT, expected, REPORT_SCHEMA)
    if expected is not None:
        require_expected_binning(report.client, report.binning, expected)
    return report


def decode_message(
    message_type: type[T],
    data: bytes | str,
    source: str,
    remedy: str,
    expected: Binning | None = None,
    schema: int = 1,
) -> T:
    """Return what a client sent, or refuse it in a line naming client, field and remedy.

    Parameters
    ----------
    message_type : type
        A tagged msgspec struct.
    data : bytes or str
        JSON from anybody.
    source : str
        How errors name the message until its client is known.
    remedy : str
        What errors advise.
    expected : Binning, optional
        The round's binning where it is known: nothing is built for another one, however large.
    schema : int
        The version of the message that is read.
    """
    kind = message_type.__struct_config__.tag
    client = source
    try:
        header = msgspec.json.decode(data, type=_MessageHeader)
        if isinstance(header.client, str):
            client = header.client
        needs_binning = "binning" in message_type.__struct_fields__
        _check_message_header(header, client, str(kind), schema, needs_binning, remedy)
        if expected is not None:
            declared = msgspec.convert({"binning": header.binning}, dict[str, WireBinning])[
                "binning"
            ]
            require_expected_binning(client, declared, expected)
        return msgspec.json.decode(data, type=message_type)
    except _UNREADABLE as error:
        cause = error.__cause__ if isinstance(error, msgspec.ValidationError) else error
        if isinstance(cause, ReportError):
            raise cause from None
        if isinstance(cause, RobfcpError):
            raise as_report_error(client, cause) from None
        field = re.search(r"`\$\.(\w+)", str(error))
        structs = (message_type, Privacy, WireStratifiedCounts, WireClassTotals)
        known_keys = [key for struct in structs for key in struct.__struct_encode_fields__]
        problem = f"not a valid {kind} ({decode_error_reason(error, known_keys)})"
        raise ReportError(client, field[1] if field else str(kind), problem, remedy) from None


def _check_message_header(
    header: _MessageHeader, client: str, kind: str, schema: int, needs_binning: bool, remedy: str
) -> None:
    """Refuse a message of another kind or version, and privacy that is half stated."""
    if header.kind not in (kind, None):
        problem = f"is of kind {header.kind!r:.40}, not a {kind}"
        raise ReportError(client, "kind", problem, remedy)
    if needs_binning and header.binning is None:
        raise ReportError(client, "binning", "'binning' is missing", remedy)
    is_number = isinstance(header.schema, int) and not isinstance(header.schema, bool)
    if is_number and 1 <= header.schema < schema:
        problem = f"schema {header.schema} is of an older robfcp (this one reads {schema})"
        raise ReportError(client, "schema", problem, "update robfcp at the client and send again")
    if not is_number or header.schema != schema:
        problem = f"schema {header.schema!r:.40} is unknown to this version (it reads {schema})"
        raise ReportError(client, "schema", problem, "update robfcp at the server")

    if isinstance(header.privacy, dict):
        # A report must not leave to the reader what follows from the rest.
        derived = {"mechanism": "auto", "scale": 0}
        missing = [
            name
            for name in Privacy.__struct_fields__
            if header.privacy.get(name) in (None, derived.get(name))
        ]
        if missing:
            problem = f"privacy leaves out {', '.join(missing)}"
            raise ReportError(client, "privacy", problem, remedy)


def as_report_error(client: str, error: RobfcpError) -> ReportError:
    """Return the refusal of something that a report names as one of the report."""
    field = str(error).split(":", 1)[0]
    return ReportError(client, field, str(error), "send a report of this round")


def claimed_client(data: bytes | str) -> str | None:
    """Return the client that even a broken report names; None where it names none."""
    with suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
        client = msgspec.json.decode(data, type=_MessageHeader).client
        return client if isinstance(client, str) else None
    return None


def to_wire_binning(binning: Binning) -> WireBinning:
    """Return a binning as it stands in a file."""
    if _is_made_by_its_name(binning):
        return WireBinning(binning.name, binning.digest, dict(binning.parameters))
    is_finite = np.isfinite(binning.edges)
    return WireBinning(
        binning.name,
        binning.digest,
        edges=binning.edges[is_finite].tolist(),
        open_below=not is_finite[0],
        open_above=not is_finite[-1],
    )


def _is_made_by_its_name(binning: Binning) -> bool:
    """Whether name and parameters are enough to build the binning again."""
    try:
        return named_binning(binning.name, binning.parameters) == binning
    except RobfcpError:
        return False


def from_wire_binning(wire: WireBinning) -> Binning:
    """Return the binning that a file names; refuse it when its digest does not fit."""
    n_edges = wire.parameters.get("bins", 0) if wire.edges is None else len(wire.edges)
    if not isinstance(n_edges, (int, float)) or n_edges > MAX_WIRE_BINS:
        raise RobfcpError(f"binning: more than {MAX_WIRE_BINS} bins; use a coarser binning")
    if wire.edges is None:
        binning = _built(wire.name, *wire.parameters.items())
    else:
        edges = [-np.inf] * wire.open_below + wire.edges + [np.inf] * wire.open_above
        binning = Binning(np.array(edges, dtype=np.float64), wire.name)
    if binning.digest != wire.digest:
        raise RobfcpError("binning: the digest does not fit the edges; rebuild the report")
    return binning


def require_expected_binning(
    client: str, binning: Binning | WireBinning, expected: Binning
) -> None:
    """Refuse a report on another binning than the round's before that is built, however large."""
    if binning.digest != expected.digest:
        declared = f"{printable(binning.name, 40)} {printable(binning.digest[:8])}"
        problem = f"binning: is {declared}, not the round's {expected}; use this round's binning"
        raise as_report_error(client, RobfcpError(problem))


@lru_cache(maxsize=8)  # reports of a round name one binning, hostile ones many large ones
def _built(name: str, *parameters: tuple[str, Parameter]) -> Binning:
    return named_binning(name, dict(parameters))


def to_wire_score(score: Score | None) -> WireScore | None:
    """Return a score as it stands in a file; None where it could not be made again from one."""
    if score is None or type(score) is not BUILTIN_SCORES.get(score.name):
        return None
    return WireScore(score.name, asdict(score))  # type: ignore[call-overload]


def from_wire_score(wire: WireScore | None) -> Score | None:
    """Return the score that a file names."""
    return None if wire is None else get_score(wire.name, **wire.parameters)


def to_wire_counts(counts: NDArray[np.int64]) -> list[int] | WireCounts:
    """Return counts as they stand in a file: dense or sparse, whichever is shorter."""
    (bins,) = np.nonzero(counts)
    if 2 * bins.size < counts.size:
        return WireCounts(bins.tolist(), counts[bins].tolist())
    return counts.tolist()


def to_wire_class_totals(class_totals: ClassTotals) -> WireClassTotals:
    """Return class totals as they stand in a file."""
    names = msgspec.Raw(msgspec.json.encode(class_totals.names))
    return WireClassTotals(names, class_totals.totals.tolist())


def to_wire_strata(strata: StratifiedCounts) -> WireStratifiedCounts:
    """Return counts by class as they stand in a file."""
    names = msgspec.Raw(msgspec.json.encode(strata.names))
    steps = np.diff(strata.cells, prepend=0).tolist()
    return WireStratifiedCounts(strata.by, names, steps, strata.counts.tolist())
