"""The JSON forms of reports, grids and scores: strict, versioned, never pickle."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp.errors import ReportError, RobfcpError
from robfcp.grid import Grid, named
from robfcp.noise import Mechanism
from robfcp.privacy import Neighbours, Privacy
from robfcp.reports import Report
from robfcp.scores import Score, named_score, score_parameters

SCHEMA = 2  # private reports; all others are written as schema 1

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


class SparseCounts(msgspec.Struct, forbid_unknown_fields=True):
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
    counts: list[int] | SparseCounts
    score: WireScore | None = None
    round: str | None = None
    model: str | None = None


class WirePrivacy(msgspec.Struct, forbid_unknown_fields=True):
    """All of a report's privacy, nothing left to defaults."""

    epsilon: float
    delta: float
    neighbours: Neighbours
    samples_per_patient: int
    rounds: int
    mechanism: Mechanism
    scale: float


class PrivateWireReport(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="report"
):
    """Schema 2 of a report: noisy counts and the privacy they have; n_samples unless hidden."""

    schema: int
    client: str
    grid: WireGrid
    counts: list[int] | SparseCounts
    privacy: WirePrivacy
    n_samples: int | None = None
    score: WireScore | None = None
    round: str | None = None
    model: str | None = None


class _Header(msgspec.Struct):
    """As much as is read of a file before its schema is known."""

    schema: int


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


def read_grid(wire: WireGrid) -> Grid:
    """The grid a file names, refused when its digest does not fit."""
    if wire.edges is None:
        grid = named(wire.name, wire.parameters)
    else:
        edges = [-np.inf] * wire.open_below + wire.edges + [np.inf] * wire.open_above
        grid = Grid(np.array(edges, dtype=np.float64), wire.name)
    if grid.digest != wire.digest:
        raise RobfcpError("grid: the digest does not fit the edges; rebuild the report")
    return grid


def wire_score(score: Score | None) -> WireScore | None:
    """The score as it stands in a file."""
    return None if score is None else WireScore(score.name, score_parameters(score))


def read_score(wire: WireScore | None) -> Score | None:
    """The score a file names."""
    return None if wire is None else named_score(wire.name, wire.parameters)


def wire_counts(counts: NDArray[np.int64]) -> list[int] | SparseCounts:
    """Dense or sparse, whichever is shorter."""
    (bins,) = np.nonzero(counts)
    if 2 * bins.size < counts.size:
        return SparseCounts(bins.tolist(), counts[bins].tolist())
    return counts.tolist()


def read_counts(wire: list[int] | SparseCounts, n_bins: int) -> list[int] | NDArray[np.int64]:
    """Dense counts; what is not a histogram is left for the report to refuse."""
    if isinstance(wire, list):
        return wire
    if len(wire.bins) != len(wire.counts):
        raise RobfcpError("counts: bins and counts differ in length; rebuild the report")
    bins = np.array(wire.bins)
    if bins.size == 0:
        return np.zeros(n_bins, dtype=np.int64)
    if bins.dtype.kind != "i" or bins[0] < 0 or bins[-1] >= n_bins or (np.diff(bins) <= 0).any():
        raise RobfcpError(f"counts: bins must rise strictly within 0..{n_bins - 1}; rebuild it")
    values = np.array(wire.counts)
    if values.dtype.kind != "i":
        raise RobfcpError("counts: a count exceeds 64 bits; rebuild the report")
    dense = np.zeros(n_bins, dtype=np.int64)
    dense[bins] = values
    return dense


def encode_report(report: Report) -> bytes:
    """The report as JSON."""
    if report.privacy is not None:
        return msgspec.json.encode(
            PrivateWireReport(
                SCHEMA,
                report.client,
                wire_grid(report.grid),
                wire_counts(report.counts),
                WirePrivacy(**asdict(report.privacy)),
                None if report.privacy.hides_size else report.n_samples,
                wire_score(report.score),
                report.round,
                report.model,
            )
        )
    return msgspec.json.encode(
        WireReport(
            1,
            report.client,
            report.n_samples,
            wire_grid(report.grid),
            wire_counts(report.counts),
            wire_score(report.score),
            report.round,
            report.model,
        )
    )


def decode_report(data: bytes | str, source: str) -> Report:
    """A validated report, whatever its schema, or one line that names client, field and remedy."""
    client = source
    with suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
        client = msgspec.json.decode(data, type=_Name).client or source
    try:
        schema = msgspec.json.decode(data, type=_Header).schema
        if schema not in READERS:
            raise ReportError(
                client,
                "schema",
                f"schema {schema} is unknown to this version (it reads 1 to {SCHEMA})",
                "update robfcp at the server",
            )
        return READERS[schema](data)
    except ReportError:
        raise
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ReportError(
            client, _field(str(error)), f"not a valid report ({error})", "rebuild the report"
        ) from None
    except RobfcpError as error:
        field = str(error).split(":", 1)[0]
        raise ReportError(client, field, str(error), "send a report of this round") from None


def _read_v1(data: bytes | str) -> Report:
    return _report(msgspec.json.decode(data, type=WireReport))


def _read_v2(data: bytes | str) -> Report:
    wire = msgspec.json.decode(data, type=PrivateWireReport)
    return _report(wire, Privacy(**msgspec.structs.asdict(wire.privacy)))


def _report(wire: WireReport | PrivateWireReport, privacy: Privacy | None = None) -> Report:
    grid = read_grid(wire.grid)
    return Report(
        wire.client,
        read_counts(wire.counts, grid.n_bins),  # type: ignore[arg-type]
        grid,
        read_score(wire.score),
        wire.round,
        wire.model,
        wire.n_samples,  # type: ignore[arg-type]
        privacy,
    )


READERS: dict[int, Any] = {1: _read_v1, 2: _read_v2}


def _field(message: str) -> str:
    """The field msgspec complains about: `$.counts[3]` -> counts."""
    path = message.rpartition("`$.")[2].rstrip("`") if "`$." in message else ""
    return path.split(".")[0].split("[")[0] or "report"
