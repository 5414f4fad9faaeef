"""The JSON form of a calibration: columns, sparse counts and a digest over all of it."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp._calibration_checks import (
    check_calibration,
    check_counts,
    check_names,
    checked_columns,
)
from robfcp._counts import table
from robfcp._wire import WireGrid, WireScore, read_grid, read_score, wire_grid, wire_score
from robfcp.calibration import Calibration, Level, Settings
from robfcp.certificates import Certificate
from robfcp.errors import RobfcpError
from robfcp.federation import Fault, Federation
from robfcp.privacy import Privacy
from robfcp.quantiles import exact_level

SCHEMA = 2  # of private reports; all others are written as schema 1
_PIECE = 2**18  # numbers turned into JSON at a time


class WireLevel(msgspec.Struct, forbid_unknown_fields=True):
    """One confidence level; an infinite threshold is null."""

    confidence_level: str
    threshold: float | None
    tolerance: int | None
    certificate: Certificate


class WireFederation(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The accepted reports in columns; row k's bins are bins[starts[k]:starts[k + 1]].

    The sizes are the sums of the counts and are stated only where these hold noise.
    """

    grid: WireGrid
    score: WireScore | None
    round: str | None
    model: str | None
    registered: bool
    ids: list[str]
    starts: list[int]
    bins: list[int]
    counts: list[int]
    faulty: list[Fault]
    missing: list[str]
    privacy: list[Privacy | None] = []
    sizes: list[int] = []
    sizes_known: bool = True


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """Everything the digest covers."""

    version: str
    settings: Settings
    levels: list[WireLevel]
    several: bool
    n_malicious: int
    flagged: dict[str, str]
    maliciousness: list[float]
    notes: list[str]
    federation: WireFederation
    provenance: dict[str, Any] = {}


class Envelope(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="calibration"):
    """Schema and digest around the body, whose bytes are digested exactly as they stand."""

    schema: int
    digest: str
    body: msgspec.Raw


class _Header(msgspec.Struct):
    schema: int


def encode_calibration(calibration: Calibration) -> bytes:
    """The calibration as sealed JSON."""
    federation = calibration.federation
    starts, bins, values = (_column(column) for column in federation.entries())
    body = msgspec.json.encode(
        Body(
            version=calibration.version,
            settings=calibration.settings,
            levels=[
                WireLevel(
                    str(level.confidence_level),
                    level.threshold if np.isfinite(level.threshold) else None,
                    level.tolerance,
                    level.certificate,
                )
                for level in calibration.levels
            ],
            several=calibration.several,
            n_malicious=calibration.n_malicious,
            flagged={client: calibration.reasons.get(client, "") for client in calibration.flagged},
            maliciousness=calibration.maliciousness.tolist(),
            notes=list(calibration.notes),
            federation=WireFederation(
                grid=wire_grid(federation.grid),
                score=wire_score(federation.score),
                round=federation.round,
                model=federation.model,
                registered=federation.registered,
                ids=list(federation.ids),
                starts=starts,
                bins=bins,
                counts=values,
                faulty=list(federation.faulty),
                missing=list(federation.missing),
                privacy=list(federation.privacy),
                sizes=federation.sizes.tolist() if federation.private else [],
                sizes_known=federation.sizes_known,
            ),
            provenance=dict(calibration.provenance),
        )
    )
    schema = SCHEMA if federation.private else 1
    return msgspec.json.encode(Envelope(schema, _digest(body), msgspec.Raw(body)))


def decode_calibration(data: bytes | str, source: str) -> Calibration:
    """The calibration in a file, or one line that says what is wrong with it."""
    try:
        schema = msgspec.json.decode(data, type=_Header).schema
        if not 1 <= schema <= SCHEMA:
            raise RobfcpError(
                f"{source}: calibration schema {schema} is unknown to this version "
                f"(it reads 1 to {SCHEMA}); update robfcp"
            )
        envelope = msgspec.json.decode(data, type=Envelope)
        if _digest(bytes(envelope.body)) != envelope.digest:
            raise RobfcpError(
                f"{source}: the digest does not fit the contents: the file was altered or damaged; "
                "calibrate again from the reports"
            )
        body = msgspec.json.decode(envelope.body, type=Body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RobfcpError(
            f"{source}: not a calibration ({error}); pass a file written by robfcp calibrate"
        ) from None
    try:
        return _read(body, schema)
    except RobfcpError as error:
        raise RobfcpError(
            f"{source}: the parts of the file contradict each other ({error}); "
            "calibrate again from the reports"
        ) from None


def _read(body: Body, schema: int) -> Calibration:
    wire = body.federation
    private = any(mark is not None for mark in wire.privacy)
    if private != (schema == 2) or (not private and (wire.privacy or wire.sizes)):
        raise RobfcpError("schema 2 is for private reports and no others")
    grid = read_grid(wire.grid)
    check_names(wire.ids, "listed")
    check_names(wire.missing, "missing")
    columns = checked_columns(wire.starts, wire.bins, wire.counts, len(wire.ids), grid)
    check_counts(columns, wire.privacy)
    counts = table(*columns, grid.n_bins)
    federation = Federation(
        tuple(wire.ids),
        counts,
        np.array(wire.sizes, dtype=np.int64) if wire.privacy else counts.below(grid.n_bins - 1),
        grid,
        read_score(wire.score),
        wire.round,
        wire.model,
        tuple(wire.faulty),
        tuple(wire.missing),
        wire.registered,
        tuple(wire.privacy),
        wire.sizes_known,
    )
    levels = tuple(
        Level(
            exact_level(level.confidence_level),
            np.inf if level.threshold is None else level.threshold,
            level.tolerance,
            level.certificate,
        )
        for level in body.levels
    )
    calibration = Calibration(
        levels,
        federation,
        np.array(body.maliciousness, dtype=np.float64),
        np.array([client not in body.flagged for client in wire.ids], dtype=bool),
        body.n_malicious,
        body.settings,
        body.flagged,
        tuple(body.notes),
        body.several,
        body.version,
        body.provenance,
    )
    check_calibration(calibration)
    return calibration


def _column(numbers: NDArray[np.integer[Any]]) -> Any:
    """The numbers as a JSON list, written piece by piece: Python integers take ten times more."""
    pieces = (numbers[start : start + _PIECE] for start in range(0, len(numbers), _PIECE))
    return msgspec.Raw(
        b"[" + b",".join(msgspec.json.encode(piece.tolist())[1:-1] for piece in pieces) + b"]"
    )


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
