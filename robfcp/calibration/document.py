"""The JSON form of a calibration: a few kB whatever the number of clients, sealed by a digest.

Schema 3 names the digest of the evidence, which lies in a file of its own. Schemas 1 and 2, of
version 0.1, held the reports inside and are still read.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from robfcp.calibration.by_class import StratumLevel
from robfcp.calibration.checks import check_evidence, check_levels, check_together
from robfcp.calibration.evidence import Evidence, Summary
from robfcp.calibration.levels import Level
from robfcp.calibration.record import WireFederation, read_federation_columns
from robfcp.calibration.sealed import Envelope, decode_body, envelope_of, seal, unseal
from robfcp.calibration.settings import Guarantee, Settings
from robfcp.defence import Exclude, Metric
from robfcp.errors import RobfcpError
from robfcp.federation import Checked
from robfcp.guarantees import Assumption, Certificate, CurvePoint, exact_level
from robfcp.report import Names, check_strata_names, signing, wire
from robfcp.scores import Risk, Score

KIND = "calibration"
SCHEMA = 3
_REMEDY = "pass a file written by robfcp calibrate"


class WireCertificate(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A certificate without the names of the clients outside it."""

    kind: str
    lower: float
    upper: float
    confidence: float | None
    m: int
    n_clients: int
    estimated: bool = False
    assumptions: list[Assumption] = []
    n_outside: int = 0
    full_sets_from: int | None = None
    note: str = ""
    size_budget: int | None = None
    risk: str = ""
    bound: float = 1.0
    by: str = ""


class WireStratum(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One class or group at one level; an infinite threshold is null."""

    name: str
    threshold: float | None
    tolerance: int | None
    certificate: WireCertificate
    holders: int
    samples: int
    protection: str = ""
    curve: list[CurvePoint] = []
    empty_from: int | None = None


class WireLevel(msgspec.Struct, forbid_unknown_fields=True):
    """One confidence level; an infinite threshold is null."""

    confidence_level: str
    threshold: float | None
    tolerance: int | None
    certificate: WireCertificate
    curve: list[CurvePoint] = []
    empty_from: int | None = None
    strata: list[WireStratum] = []


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """Everything the digest covers."""

    version: str
    settings: Settings
    levels: list[WireLevel]
    several: bool
    n_malicious: int
    notes: list[str]
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
    n_malicious: int
    checked: Checked
    summary: Summary
    notes: tuple[str, ...]
    several: bool
    version: str
    digest: str  # of the evidence; empty where it stood inside
    evidence: Evidence | None


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
            n_malicious=found.n_malicious,
            notes=list(found.notes),
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
    schema, raw = unseal(data, KIND, SCHEMA, source, _REMEDY)
    try:
        if schema < SCHEMA:
            legacy = decode_body(raw, LegacyBody, KIND, source, _REMEDY)
            found = _read_legacy(legacy, schema)
        else:
            found = _read(decode_body(raw, Body, KIND, source, _REMEDY))
        check_levels(found.levels, found.several, found.n_malicious, found.summary.n_clients)
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
        str(level.confidence_level),
        threshold=_finite(level.threshold),
        tolerance=level.tolerance,
        certificate=_wire_certificate(level.certificate),
        curve=list(level.curve),
        empty_from=level.empty_from,
        strata=[
            WireStratum(
                name=one.name,
                threshold=_finite(one.threshold),
                tolerance=one.tolerance,
                certificate=_wire_certificate(_unlike(one.certificate, level.certificate)),
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
    return replace(own, assumptions=()) if own.assumptions == shared.assumptions else own


def _wire_certificate(certificate: Certificate) -> WireCertificate:
    kept = {name: getattr(certificate, name) for name in WireCertificate.__struct_fields__}
    return WireCertificate(**{**kept, "assumptions": list(certificate.assumptions)})


def _finite(threshold: float) -> float | None:
    return threshold if np.isfinite(threshold) else None


def _class_names(names: list[str] | int) -> Names:
    return check_strata_names("class", names if isinstance(names, int) else tuple(names))


def _read(body: Body) -> CalibrationFields:
    return CalibrationFields(
        levels=tuple(_level(level, _certificate(level.certificate)) for level in body.levels),
        settings=body.settings,
        score=wire.read_score(body.score),
        risk=body.risk,
        classes=None if body.classes is None else _class_names(body.classes),
        n_malicious=body.n_malicious,
        checked=body.checked,
        summary=body.summary,
        notes=tuple(body.notes),
        several=body.several,
        version=body.version,
        digest=body.evidence,
        evidence=None,
    )


def _level(level: Any, certificate: Certificate) -> Level:
    return Level(
        exact_level(level.confidence_level),
        threshold=np.inf if level.threshold is None else level.threshold,
        tolerance=level.tolerance,
        certificate=certificate,
        curve=tuple(getattr(level, "curve", ())),
        empty_from=getattr(level, "empty_from", None),
        strata=tuple(
            StratumLevel(
                name=one.name,
                threshold=np.inf if one.threshold is None else one.threshold,
                tolerance=one.tolerance,
                certificate=_certificate(one.certificate)
                if one.certificate.assumptions
                else replace(_certificate(one.certificate), assumptions=certificate.assumptions),
                holders=one.holders,
                samples=one.samples,
                protection=one.protection,
                curve=tuple(one.curve),
                empty_from=one.empty_from,
            )
            for one in getattr(level, "strata", ())
        ),
    )


def _certificate(wire: WireCertificate) -> Certificate:
    kept: dict[str, Any] = msgspec.structs.asdict(wire)
    return Certificate(**{**kept, "assumptions": tuple(wire.assumptions)})


# What follows reads the files of version 0.1.


class LegacySettings(msgspec.Struct, forbid_unknown_fields=True):
    """Settings that knew a defence by its name alone."""

    defence: str = "consensus"
    malicious: int | str = "estimate"
    exclude: Exclude = "outstanding"
    distance: Metric = "l2"
    exchangeability: str = "partial"
    guarantee: Guarantee | None = None
    heterogeneity: float | None = None
    certificate_confidence: float = 0.95
    max_share: float | None = None
    size_budget: int | None = None


class LegacyCertificate(WireCertificate, forbid_unknown_fields=True, kw_only=True):
    """A certificate with the names of the clients outside it."""

    outside: list[str] = []


class LegacyLevel(msgspec.Struct, forbid_unknown_fields=True):
    """One confidence level with such a certificate."""

    confidence_level: str
    threshold: float | None
    tolerance: int | None
    certificate: LegacyCertificate


class LegacyBody(msgspec.Struct, forbid_unknown_fields=True):
    """A calibration with its reports inside."""

    version: str
    settings: LegacySettings
    levels: list[LegacyLevel]
    several: bool
    n_malicious: int
    flagged: dict[str, str]
    maliciousness: list[float]
    notes: list[str]
    federation: WireFederation
    provenance: dict[str, Any] = {}


def _read_legacy(body: LegacyBody, schema: int) -> CalibrationFields:
    if any(body.federation.privacy) != (schema == 2):
        raise RobfcpError("schema 2 is for private reports and no others")
    evidence = Evidence(
        federation=read_federation_columns(body.federation),
        maliciousness=np.array(body.maliciousness, dtype=np.float64),
        trusted_mask=np.array([c not in body.flagged for c in body.federation.ids], dtype=bool),
        reasons=body.flagged,
        provenance=body.provenance,
    )
    stated = "registered" if evidence.federation.registered else "claimed"
    levels = tuple(_level(level, _legacy_certificate(level.certificate)) for level in body.levels)
    check_evidence(evidence)
    check_together(levels, Summary.of(evidence), evidence)
    return CalibrationFields(
        levels=levels,
        settings=_legacy_settings(body.settings),
        score=evidence.federation.score,
        risk=None,
        classes=None,
        n_malicious=body.n_malicious,
        checked=Checked("not recorded", stated, *("not recorded",) * 4),
        summary=Summary.of(evidence),
        notes=tuple(body.notes),
        several=body.several,
        version=body.version,
        digest="",
        evidence=evidence,
    )


def _legacy_certificate(wire: LegacyCertificate) -> Certificate:
    kept: dict[str, Any] = msgspec.structs.asdict(wire)
    lists = {"assumptions": tuple(wire.assumptions), "outside": tuple(wire.outside)}
    return Certificate(**{**kept, **lists})


def _legacy_settings(old: LegacySettings) -> Settings:
    """The same settings; what the old record left out is what the first release had."""
    parameters = {
        "rob-fcp": {"distance": old.distance},
    }
    shared = {field.name for field in fields(Settings)} & set(LegacySettings.__struct_fields__)
    kept: dict[str, Any] = {name: getattr(old, name) for name in shared}
    ranks = {"partial": "published"}  # version 0.1 called the published rank N + K so
    kept["exchangeability"] = ranks.get(old.exchangeability, old.exchangeability)
    return Settings(**{**kept, "parameters": parameters.get(old.defence, {})})


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
