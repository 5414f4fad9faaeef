"""The JSON form of a calibration: a few kB whatever the number of clients, sealed by a digest."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from msgspec import structs

from robfcp.calibration.by_class import StratumLevel
from robfcp.calibration.checks import check_levels
from robfcp.calibration.evidence import Summary
from robfcp.calibration.levels import Level
from robfcp.calibration.sealed import Envelope, decode_body, envelope_of, seal, unseal
from robfcp.calibration.settings import Settings
from robfcp.certificate import Certificate, CurvePoint
from robfcp.errors import RobfcpError
from robfcp.federation import Checked
from robfcp.guarantees import exact_level
from robfcp.report import Names, check_strata_names, signing, wire
from robfcp.scores import Risk, Score

KIND = "calibration"
SCHEMA = 1
_REMEDY = "pass a file written by robfcp calibrate"


class WireStratum(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One class or group at one level; an infinite threshold is null."""

    name: str
    threshold: float | None
    certificate: Certificate
    holders: int
    samples: int
    protection: str = ""
    curve: list[CurvePoint] = []
    empty_from: int | None = None


class WireLevel(msgspec.Struct, forbid_unknown_fields=True):
    """One confidence level; an infinite threshold is null."""

    coverage: str
    threshold: float | None
    certificate: Certificate
    curve: list[CurvePoint] = []
    empty_from: int | None = None
    strata: list[WireStratum] = []


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """Everything the digest covers."""

    version: str
    settings: Settings
    levels: list[WireLevel]
    several: bool
    liars: int
    liars_stated: bool
    remarks: list[str]
    score: wire.WireScore | None
    checked: Checked
    summary: Summary
    evidence: str
    risk: Risk | None = None
    classes: list[str] | int | None = None


class CalibrationFields(NamedTuple):
    """All that a calibration file holds, read and checked."""

    levels: tuple[Level, ...]
    settings: Settings
    score: Score | None
    risk: Risk | None
    classes: Names | None
    liars: int
    liars_stated: bool
    checked: Checked
    summary: Summary
    public_remarks: tuple[str, ...]
    several: bool
    version: str
    digest: str  # of the evidence


def encode_calibration(found: CalibrationFields) -> bytes:
    """The calibration as sealed JSON."""
    return seal(
        KIND,
        SCHEMA,
        Body(
            version=found.version,
            settings=found.settings,
            levels=[wire_level(level) for level in found.levels],
            several=found.several,
            liars=found.liars,
            liars_stated=found.liars_stated,
            remarks=list(found.public_remarks),
            score=wire.wire_score(found.score),
            checked=found.checked,
            summary=found.summary,
            evidence=found.digest,
            risk=found.risk,
            classes=list(found.classes) if isinstance(found.classes, tuple) else found.classes,
        ),
    )


def decode_calibration(data: bytes | str, source: str) -> CalibrationFields:
    """What a calibration file holds, or one line that says what is wrong with it."""
    _, raw = unseal(data, KIND, SCHEMA, source, _REMEDY)
    try:
        found = _read(decode_body(raw, Body, KIND, source, _REMEDY))
        check_levels(found.levels, found.several, found.liars, found.summary.n_clients)
    except RobfcpError as error:
        if str(error).startswith(f"{source}: "):
            raise
        raise RobfcpError(
            f"{source}: the parts of the file contradict each other ({error}); "
            "calibrate again from the reports"
        ) from None
    return found


def wire_level(level: Level) -> WireLevel:
    """The level as it stands in a file."""
    return WireLevel(
        str(level.coverage),
        threshold=_finite(level.threshold),
        certificate=level.certificate,
        curve=list(level.curve),
        empty_from=level.empty_from,
        strata=[
            WireStratum(
                name=one.name,
                threshold=_finite(one.threshold),
                certificate=_unlike(one.certificate, level.certificate),
                holders=one.holders,
                samples=one.samples,
                protection=one.protection,
                curve=list(one.curve),
                empty_from=one.empty_from,
            )
            for one in level.strata
        ],
    )


def _unlike(own: Certificate, shared: Certificate) -> Certificate:
    """A class's certificate; what all classes share is said once, with the level's own."""
    return structs.replace(own, assumptions=()) if own.assumptions == shared.assumptions else own


def _finite(threshold: float) -> float | None:
    return threshold if np.isfinite(threshold) else None


def _class_names(names: list[str] | int) -> Names:
    return check_strata_names("class", names if isinstance(names, int) else tuple(names))


def _read(body: Body) -> CalibrationFields:
    return CalibrationFields(
        levels=tuple(_level(level) for level in body.levels),
        settings=body.settings,
        score=wire.read_score(body.score),
        risk=body.risk,
        classes=None if body.classes is None else _class_names(body.classes),
        liars=body.liars,
        liars_stated=body.liars_stated,
        checked=body.checked,
        summary=body.summary,
        public_remarks=tuple(body.remarks),
        several=body.several,
        version=body.version,
        digest=body.evidence,
    )


def _level(level: WireLevel) -> Level:
    return Level(
        exact_level(level.coverage),
        threshold=np.inf if level.threshold is None else level.threshold,
        certificate=level.certificate,
        curve=tuple(level.curve),
        empty_from=level.empty_from,
        strata=tuple(
            StratumLevel(
                name=one.name,
                threshold=np.inf if one.threshold is None else one.threshold,
                certificate=one.certificate
                if one.certificate.assumptions
                else structs.replace(one.certificate, assumptions=level.certificate.assumptions),
                holders=one.holders,
                samples=one.samples,
                protection=one.protection,
                curve=tuple(one.curve),
                empty_from=one.empty_from,
            )
            for one in level.strata
        ),
    )


if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def sign_sealed(data: bytes, key: Ed25519PrivateKey) -> bytes:
    """The same sealed file with the key's signature over its kind, schema and body."""
    found = envelope_of(data)
    signature = signing.sign_bytes(key, _domain(found), bytes(found.body))
    return msgspec.json.encode(
        msgspec.structs.replace(found, key=signing.public_text(key), signature=signature)
    )


def check_signer(data: bytes | str, server_key: str, source: str) -> None:
    """Refuse a sealed file that is not signed by this public key."""
    found = envelope_of(data)
    if not found.signature:
        raise RobfcpError(
            f"{source}: is not signed; ask the server for one made with calibrate --sign"
        )
    genuine = signing.valid_signature(
        server_key, found.signature, _domain(found), bytes(found.body)
    )
    if found.key != server_key or not genuine:
        raise RobfcpError(
            f"{source}: is not signed by the pinned key {server_key}; do not use it, and ask the "
            "server over a channel you trust"
        )


def _domain(found: Envelope) -> bytes:
    """What keeps a signature over one kind of file from meaning anything about another."""
    return f"robfcp signed {found.kind} {found.schema}\n".encode()
