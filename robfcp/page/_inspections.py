"""What the page shows of a server's inspections of its clients' e-value reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from robfcp._validation import abbreviate
from robfcp.monitoring import AlarmHistory, EValueReport
from robfcp.page._watch import (
    COMMON_ASSUMPTIONS,
    DRIFTED,
    FALLEN,
    KINDS,
    MAX_CURVES,
    MAX_POINTS,
    QUIET,
    UNTIL_THEN,
    ClientRow,
    Conclusion,
    CurvesByKind,
    assemble_data,
    curve_data,
    log10_or_none,
    watch_data,
)

_RECALIBRATE = "Recalibrate now on fresh samples."


class _Status(NamedTuple):
    """Where one client stands: one of STATES, the words for it, and what to do."""

    state: str
    word: str
    todo: str


def inspections_data(history: AlarmHistory, registered: Sequence[str]) -> dict[str, Any]:
    """Return the server's inspections: what to do, and a curve for each client over the steps."""
    rows = [*_heard_rows(history), *_unheard_rows(history, registered)]
    conclusion = _inspections_conclusion(history)
    changed = [f"{row.name} ({row.word})" for row in rows if row.state != "quiet"]
    if changed and not history.alarm_steps and not history.alarming_clients:
        todo = f"Look at {abbreviate(changed)}. {QUIET}"
        conclusion = conclusion._replace(todo=todo)

    audit = [
        ("calibration watched (SHA-256)", history.calibration),
        ("record of alarms (SHA-256)", history.digest),
        ("round", history.round or "none"),
        ("delta", f"{history.delta:g}"),
    ]
    watch = watch_data(
        line=history.line,
        unit="step",
        curves=_inspection_curves(history),
        alarm_line=_alarm_line(history),
        rows=rows,
        inspections=_inspection_table(history),
    )
    return assemble_data(conclusion, _inspections_assumptions(history), audit, watch)


def _alarm_line(history: AlarmHistory) -> float:
    """Return log10 of the e-value at which an alarm rings: two alarms have half of delta each."""
    return math.log10(2 / history.delta)


def _inspections_conclusion(history: AlarmHistory) -> Conclusion:
    """Return whether a common alarm rang, else which clients alarm by themselves."""
    alarm_steps = history.alarm_steps
    inspections = f"{len(history.looks)} looks at {history.n_sites} sites"
    if "coverage" in alarm_steps:
        claim = f"{FALLEN} (step {alarm_steps['coverage']}; {inspections})"
        return Conclusion(claim, f"{_RECALIBRATE} {UNTIL_THEN}", is_alarm=True)
    if "drift" in alarm_steps:
        step = alarm_steps["drift"]
        claim = f"Scores have drifted (step {step}; {inspections}); coverage has not rung"
        return Conclusion(claim, DRIFTED)
    if history.alarming_clients:
        names = abbreviate(history.alarming_clients)
        return Conclusion(
            f"No common alarm in {inspections}; by themselves alarm {names}",
            f"Look there: drift at so few sites ({history.liars} or less) cannot be told from "
            "lies.",
        )
    return Conclusion(f"No alarm in {inspections}", f"Nothing. {QUIET}")


def _inspections_assumptions(history: AlarmHistory) -> list[str]:
    """Return what the common alarm assumes."""
    assumptions = [
        f"at most {history.liars} of the {history.n_sites} sites lie; silent and refused ones "
        "count for nothing",
        "who is watched and how many may lie was fixed before the first look",
        "a site does not report only when it has something to say",
    ]
    if history.independent:
        assumptions.append("samples of different sites are independent")
    assumptions.extend(COMMON_ASSUMPTIONS)
    return assumptions


def _inspection_curves(history: AlarmHistory) -> CurvesByKind:
    """Return the curves over the steps: that of all clients together, then those of the largest."""
    alarming = set(history.alarming_clients)
    latest = history.latest()
    clients = sorted(latest, key=lambda client: (-_max_log_e_value(latest[client]), client))
    common_points: dict[str, list[tuple[int, float | None]]] = {"coverage": [], "drift": []}
    for inspection, merged in zip(history.looks, history.merged, strict=True):
        common_points["coverage"].append((inspection.step, merged.log_e_coverage))
        common_points["drift"].append((inspection.step, merged.log_drift))

    curves: CurvesByKind = {}
    for kind in KINDS:
        curves[kind] = [curve_data("all sites together", common_points[kind], "together")]
        for client in clients[:MAX_CURVES]:
            points = []
            for inspection in history.looks:
                if client in inspection.sites:
                    report = inspection.sites[client]
                    points.append((report.step, _log_e_value(report, kind)))
            state = "alarm" if client in alarming else "quiet"
            curves[kind].append(curve_data(client, points, state))
    return curves


def _log_e_value(report: EValueReport, kind: str) -> float | None:
    """Return ln of a client's e-value of one kind; None where it keeps none."""
    return report.log_coverage if kind == "coverage" else report.log_drift


def _max_log_e_value(report: EValueReport) -> float:
    """Return ln of a client's largest e-value."""
    if report.log_drift is None:
        return report.log_coverage
    return max(report.log_coverage, report.log_drift)


def _heard_rows(history: AlarmHistory) -> list[ClientRow]:
    """Return a row for each client whose e-value report was ever accepted."""
    alarming = set(history.alarming_clients)
    rows = []
    for client, report in history.latest().items():
        if client in alarming:
            todo = "look here first: run robfcp check on fresh labelled samples"
            status = _Status("alarm", "alarms", todo)
        else:
            status = _status_of_other_client(history, client, report)
        row = ClientRow(
            name=client,
            samples=report.n_samples,
            covered=None,
            coverage=log10_or_none(report.log_coverage),
            drift=log10_or_none(report.log_drift),
            state=status.state,
            word=status.word,
            todo=status.todo,
        )
        rows.append(row)
    return rows


def _status_of_other_client(history: AlarmHistory, client: str, report: EValueReport) -> _Status:
    """Return where a client stands that does not alarm by itself among all clients."""
    alarm_line = _alarm_line(history)
    last_inspection = history.looks[-1]
    coverage = log10_or_none(report.log_coverage)
    drift = log10_or_none(report.log_drift)
    if coverage is not None and coverage >= alarm_line:
        todo = "too little to be listed among so many; look here next"
        return _Status("alarm", "rings alone", todo)
    if report.step < last_inspection.step:
        todo = last_inspection.faulty.get(client, "counts for nothing; ask for its e-report")
        return _Status("silent", f"last heard at step {report.step}", todo)
    if drift is not None and drift >= alarm_line:
        todo = "run robfcp check on fresh labelled samples"
        return _Status("drift", "scores changed", todo)
    return _Status("quiet", "no alarm", "nothing")


def _unheard_rows(history: AlarmHistory, registered: Sequence[str]) -> list[ClientRow]:
    """Return a row for each client never heard, and one for all those without a name."""
    latest = history.latest()
    reasons: Mapping[str, str] = history.looks[-1].faulty if history.looks else {}
    todos = {}
    for client in sorted(set(registered) - set(latest)):
        todos[client] = "ask for its e-report"
    n_unnamed = history.n_sites - len(set(registered) | set(latest))
    if n_unnamed > 0:
        unnamed = f"{n_unnamed} of {history.n_sites} sites"
        todos[unnamed] = "robfcp alarms --keys would name them"
    for client, reason in reasons.items():
        if client not in latest:
            todos[client] = reason

    rows = []
    for client, todo in todos.items():
        word = "refused" if client in reasons else "never heard"
        rows.append(ClientRow(client, 0, None, None, None, "silent", word, todo))
    return rows


def _inspection_table(history: AlarmHistory) -> list[list[Any]]:
    """Return a row for each of the last inspections.

    The step, how many reports were heard and refused, log10 of both e-values of all clients
    together, and who alarmed.
    """
    inspections = list(zip(history.looks, history.merged, strict=True))
    table = []
    for inspection, merged in inspections[-MAX_POINTS:]:
        row = [
            inspection.step,
            len(inspection.sites),
            len(inspection.faulty),
            log10_or_none(merged.log_e_coverage),
            log10_or_none(merged.log_drift),
            abbreviate(merged.alarmed),
        ]
        table.append(row)
    return table
