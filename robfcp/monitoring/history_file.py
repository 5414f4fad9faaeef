"""How the record of alarms is written down, and what is refused of a file."""

from __future__ import annotations

import math

import msgspec

from robfcp.calibration.sealed import decode_body, seal, unseal
from robfcp.errors import RobfcpError
from robfcp.report import MAX_SAMPLES, EReport, check_client

KIND = "alarms"
SCHEMA = 1
RINGS = ("coverage", "drift")
_REMEDY = "pass the file that robfcp alarms --history wrote"


class Heard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """What one site reported at one look: floor, samples, natural logarithms of its wealths."""

    floor: float
    n: int
    coverage: float
    change: float | None = None
    drift: float | None = None

    def e_report(self, name: str, calibration: str, round: str | None, step: int) -> EReport:
        """The e-report this was kept of."""
        return EReport(
            client=name,
            calibration=calibration,
            floor=self.floor,
            n_samples=self.n,
            log_wealth=self.coverage,
            round=round,
            step=step,
            log_change=self.change,
            log_exchangeability=self.drift,
        )


class Look(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One reporting date: the merged evidence (None for ln 0) and what every site reported."""

    step: int
    coverage: float | None
    product: float
    drift: float | None
    alarmed: list[str]
    sites: dict[str, Heard]
    faulty: dict[str, str] = {}


class HistoryBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything the digest covers."""

    calibration: str
    round: str | None
    n_sites: int
    m: int
    delta: float
    independent: bool
    rang: dict[str, int]
    looks: list[Look]


def heard_of(report: EReport) -> Heard:
    """What is kept of an e-report."""
    return Heard(
        report.floor,
        report.n_samples,
        report.log_wealth,
        report.log_change,
        report.log_exchangeability,
    )


def _body_problem(body: HistoryBody) -> str:
    """What is wrong with a history beyond its types; empty where nothing is."""
    hexadecimal = len(body.calibration) == 64 and not set(body.calibration) - set(
        "0123456789abcdef"
    )
    if not hexadecimal or not 0 < body.delta < 1 or not 0 <= body.m < body.n_sites <= MAX_SAMPLES:
        return "calibration, delta, m or n_sites make no sense"
    steps = [look.step for look in body.looks]
    if steps != sorted(set(steps)) or (steps and not 0 <= steps[0] <= steps[-1] <= MAX_SAMPLES):
        return "steps do not rise"
    if not set(body.rang) <= set(RINGS) or not set(body.rang.values()) <= set(steps):
        return "an alarm rang at no step"
    for look in body.looks:
        if len(look.sites) > body.n_sites or set(look.alarmed) - set(look.sites):
            return f"step {look.step}: more sites than are watched, or one that sent nothing alarms"
        merged = (look.coverage, look.product, look.drift)
        if not all(value is None or math.isfinite(value) for value in merged):
            return f"step {look.step}: evidence is no finite number"
        for name, heard in look.sites.items():
            try:
                check_client(name)
                heard.e_report(name, body.calibration, body.round, look.step)
            except RobfcpError as error:
                return f"step {look.step}: {error}"
    return ""


def encode_history(body: HistoryBody) -> bytes:
    """The record as sealed JSON."""
    return seal(KIND, SCHEMA, body)


def decode_history(data: bytes | str, source: str) -> HistoryBody:
    """A record from JSON, or one line that says what is wrong with it."""
    _, raw = unseal(data, KIND, SCHEMA, source, _REMEDY)
    body = decode_body(raw, HistoryBody, KIND, source, _REMEDY)
    problem = _body_problem(body)
    if problem:
        raise RobfcpError(f"{source}: {problem}; {_REMEDY}")
    return body
