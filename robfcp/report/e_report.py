"""What a monitored site tells the server: its wealth, its context, nothing of its data."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import msgspec

from robfcp.errors import ReportError
from robfcp.files import read_limited, what_is_wrong, write_atomically
from robfcp.report.checks import MAX_SAMPLES, check_client, check_text, is_whole
from robfcp.report.signed import inside, sign_raw, verify_raw
from robfcp.report.wire import claimed_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SCHEMA = 1
DOMAIN = b"robfcp signed e-report 1\n"  # no report can pass for an e-report, nor the reverse
MAX_E_REPORT_BYTES = 16_384
MAX_LOG = 1e15


class WireEReport(
    msgspec.Struct,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
    tag="e-report",
):
    """Schema 1 of an e-report."""

    schema: int
    client: str
    calibration: str
    floor: float
    n_samples: int
    log_wealth: float
    round: str | None = None
    step: int = 0
    log_change: float | None = None
    log_exchangeability: float | None = None


@dataclass(frozen=True)
class EReport:
    """One site's evidence that its calibration no longer holds, checked on construction.

    `calibration` is the SHA-256 of the calibration watched, `step` the number of the reporting
    date, `log_wealth` ln of the e-value against "coverage is at least the floor", `log_change`
    ln R_t and `log_exchangeability` ln of the e-value against exchangeability, where kept.
    """

    client: str
    calibration: str
    floor: float
    n_samples: int
    log_wealth: float
    round: str | None = None
    step: int = 0
    log_change: float | None = None
    log_exchangeability: float | None = None

    def __post_init__(self) -> None:
        check_client(self.client)
        check_text(self.client, "round", self.round)
        hexadecimal = isinstance(self.calibration, str) and len(self.calibration) == 64
        if not hexadecimal or set(self.calibration) - set("0123456789abcdef"):
            raise self._refused("calibration", "calibration is no SHA-256 digest")
        if not (isinstance(self.floor, float) and 0 < self.floor < 1):
            raise self._refused("floor", f"floor is {self.floor!r}, not between 0 and 1")
        for name in ("n_samples", "step"):
            value = getattr(self, name)
            if not is_whole(value) or not 0 <= value <= MAX_SAMPLES:
                raise self._refused(name, f"{name} is {value!r}, not a whole number from 0")
        for name in ("log_wealth", "log_change", "log_exchangeability"):
            value = getattr(self, name)
            if value is None and name != "log_wealth":
                continue
            if not isinstance(value, float) or not math.isfinite(value) or abs(value) > MAX_LOG:
                raise self._refused(name, f"{name} is {value!r}, not a finite number")
        most = -self.n_samples * math.log(1 - self.floor)  # every sample missed, all put on it
        if self.log_wealth > most * (1 + 1e-9):
            raise self._refused("log_wealth", "log_wealth is more than the samples can earn")

    def _refused(self, field: str, problem: str) -> ReportError:
        return ReportError(self.client, field, problem, "make it again with robfcp monitor")

    def to_json(self) -> bytes:
        """The e-report as one JSON object."""
        return msgspec.json.encode(WireEReport(schema=SCHEMA, **asdict(self)))

    @staticmethod
    def from_json(data: bytes | str, source: str = "e-report") -> EReport:
        """An e-report from JSON, or one line naming client, field and remedy."""
        client = claimed_name(data) or source
        try:
            wire = msgspec.json.decode(data, type=WireEReport)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise ReportError(
                client,
                "e-report",
                f"not a valid e-report ({what_is_wrong(error)})",
                "make it with robfcp monitor",
            ) from None
        if wire.schema != SCHEMA:
            raise ReportError(
                client, "schema", f"schema {wire.schema} is unknown", "update robfcp at the server"
            )
        return EReport(**{k: v for k, v in msgspec.structs.asdict(wire).items() if k != "schema"})

    def save(self, path: str | os.PathLike[str], key: Ed25519PrivateKey | None = None) -> None:
        """Write it, signed where a key is given, whole or not at all."""
        write_atomically(path, self.to_json() if key is None else sign_e_report(self, key))


def sign_e_report(report: EReport, key: Ed25519PrivateKey) -> bytes:
    """The signed e-report as JSON; it must name its round, or it could be used again."""
    if report.round is None:
        raise ReportError(
            report.client, "round", "a signed e-report must name its round", "give --round"
        )
    return sign_raw(report.to_json(), key, DOMAIN, "signed-e-report")


def read_e_report(
    path: str | os.PathLike[str], keys: Mapping[str, str] | None = None, round: str | None = None
) -> EReport:
    """The e-report in a file; with keys only a signed one of this round."""
    data, source = read_limited(path, MAX_E_REPORT_BYTES), os.fspath(path)
    if keys is None:
        return EReport.from_json(inside(data, "signed-e-report"), source)
    raw = verify_raw(data, keys, DOMAIN, "signed-e-report", source)
    report = EReport.from_json(raw, source)
    if report.round != round:
        raise ReportError(
            report.client,
            "round",
            f"signed for round {report.round}, not {round}: a replay",
            "make an e-report of this round",
        )
    return report
