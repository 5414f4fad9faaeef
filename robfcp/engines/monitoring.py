"""The monitor as a task of an engine: what the server asks, and what it makes of the answers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from robfcp.calibration import Calibration, Merged, merge, record_look
from robfcp.engines.outcomes import Outcome
from robfcp.engines.requests import PROTOCOL
from robfcp.errors import ReportError
from robfcp.federation import Fault
from robfcp.reports import EReport


class MonitorRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Count your fresh samples against this calibration and report your wealth."""

    client: str
    round: str
    step: int
    calibration: msgspec.Raw
    level: int = 0
    floor: float | None = None
    delta: float = 0.05
    protocol: int = PROTOCOL


def monitor_request(
    client: str, calibration: Calibration, *, round: str, step: int, floor: float | None,
    delta: float, level: int = 0,
) -> MonitorRequest:  # fmt: skip
    """The request to one client."""
    body = msgspec.Raw(calibration.to_json())
    return MonitorRequest(
        client, round=round, step=step, calibration=body, level=level, floor=floor, delta=delta
    )


def read_e_reply(body: bytes, client: str, *, round: str, step: int, calibration: str) -> EReport:
    """The e-report of this client, round, step and calibration (its digest), or why not."""
    report = EReport.from_json(body, client)
    expected = {"client": client, "round": round, "step": step, "calibration": calibration}
    for field, value in expected.items():
        if getattr(report, field) != value:
            raise ReportError(
                client,
                field,
                f"{field} is {getattr(report, field)}, not {value}",
                "answer as asked",
            )
    return report


def merged_replies(
    outcomes: Iterable[Outcome[EReport]],
    m: int,
    *,
    delta: float,
    independent: bool = False,
    history: str | os.PathLike[str] | None = None,
    round: str | None = None,
    step: int = 0,
) -> Merged:
    """The evidence of all nodes asked; those without a valid answer count as no evidence.

    history: a file that keeps every look, as `robfcp alarms --history` does; the nodes asked at the
        first one are how many are watched.
    """
    reports, faults, total = [], [], 0
    for outcome in outcomes:
        total += 1
        if outcome.answer is not None:
            reports.append(outcome.answer)
        else:
            faults.append(Fault(outcome.participant.client, outcome.status, outcome.line))
    if history is None or not reports:
        return merge(reports, m, n_sites=total, delta=delta, independent=independent, faulty=faults)
    merged, _ = record_look(
        history,
        reports,
        m,
        step=step,
        round=round,
        n_sites=None if Path(history).exists() else total,
        delta=delta,
        independent=independent,
        faulty=faults,
    )
    return merged
