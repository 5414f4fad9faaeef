"""What the page shows of a server's inspections of its clients' e-value reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from robfcp._validation import abbreviate
from robfcp.monitoring import AlarmHistory, EValueReport
from robfcp.page._alarm_panel import (
    ALARM_KINDS,
    COMMON_ASSUMPTIONS,
    COVERAGE_ALARM,
    COVERAGE_ALARM_CAVEAT,
    DRIFT_RECOMMENDATION,
    MAX_CURVES,
    MAX_POINTS,
    NO_ALARM_CAVEAT,
    ClientRow,
    Conclusion,
    CurvesByKind,
    alarm_panel_data,
    assemble_data,
    curve_data,
    log10_or_none,
)
from robfcp.page._format import pluralize

_RECALIBRATE = "Recalibrate now on fresh samples."
_REQUEST_OF_SILENT = "counts for nothing; request its e-value report"


class _Status(NamedTuple):
    """The state of one client: one of STATES, its description, and what to do."""

    state: str
    state_text: str
    recommendation: str


def inspections_data(history: AlarmHistory, registered: Sequence[str]) -> dict[str, Any]:
    """Return the server's inspections: what to do, and a curve for each client over the steps."""
    rows = [*_reporting_rows(history), *_silent_rows(history, registered)]
    conclusion = _inspections_conclusion(history)
    changed = [f"{row.name} ({row.state_text})" for row in rows if row.state != "quiet"]
    if changed and not history.alarm_steps and not history.alarming_clients:
        recommendation = f"Check {abbreviate(changed)}. {NO_ALARM_CAVEAT}"
        conclusion = conclusion._replace(recommendation=recommendation)

    audit = [
        ("calibration monitored (SHA-256)", history.calibration),
        ("alarm history (SHA-256)", history.digest),
        ("round", history.round or "none"),
        ("delta", f"{history.delta:g}"),
    ]
    alarm_panel = alarm_panel_data(
        line=history.line,
        x_unit="step",
        curves=_inspection_curves(history),
        log10_alarm_threshold=_log10_alarm_threshold(history),
        rows=rows,
        inspections=_inspection_table(history),
    )
    return assemble_data(conclusion, _inspections_assumptions(history), audit, alarm_panel)


def _log10_alarm_threshold(history: AlarmHistory) -> float:
    """Return log10 of the e-value at which an alarm is raised: each of two has half of delta."""
    return math.log10(2 / history.delta)


def _inspections_conclusion(history: AlarmHistory) -> Conclusion:
    """Return whether a common alarm was raised, else which clients alarm by themselves."""
    alarm_steps = history.alarm_steps
    n_inspections = pluralize(len(history.inspections), "inspection")
    inspections = f"{n_inspections} of {history.n_clients} sites"
    if "coverage" in alarm_steps:
        claim = f"{COVERAGE_ALARM} (step {alarm_steps['coverage']}; {inspections})"
        return Conclusion(claim, f"{_RECALIBRATE} {COVERAGE_ALARM_CAVEAT}", is_alarm=True)
    if "drift" in alarm_steps:
        step = alarm_steps["drift"]
        claim = f"Scores have drifted (step {step}; {inspections}); no alarm of coverage"
        return Conclusion(claim, DRIFT_RECOMMENDATION)
    if history.alarming_clients:
        names = abbreviate(history.alarming_clients)
        return Conclusion(
            f"No common alarm in {inspections}; by themselves alarm {names}",
            f"Check them: drift at so few sites ({history.max_malicious} or fewer) cannot be "
            "distinguished from malicious reports.",
        )
    return Conclusion(f"No alarm in {inspections}", f"Nothing. {NO_ALARM_CAVEAT}")


def _inspections_assumptions(history: AlarmHistory) -> list[str]:
    """Return what the common alarm assumes."""
    assumptions = [
        f"at most {history.max_malicious} of the {history.n_clients} sites are malicious; "
        "silent and rejected ones count for nothing",
        "which sites are monitored and how many may be malicious was fixed before the first "
        "inspection",
        "no site reports only when its e-value is large",
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
    for inspection, merged in zip(history.inspections, history.merged, strict=True):
        common_points["coverage"].append((inspection.step, merged.log_e_coverage))
        common_points["drift"].append((inspection.step, merged.log_e_exchangeability))

    curves: CurvesByKind = {}
    for kind in ALARM_KINDS:
        curves[kind] = [curve_data("all sites together", common_points[kind], "together")]
        for client in clients[:MAX_CURVES]:
            points = []
            for inspection in history.inspections:
                if client in inspection.e_value_reports:
                    report = inspection.e_value_reports[client]
                    points.append((report.step, _log_e_value(report, kind)))
            state = "alarm" if client in alarming else "quiet"
            curves[kind].append(curve_data(client, points, state))
    return curves


def _log_e_value(report: EValueReport, kind: str) -> float | None:
    """Return ln of a client's e-value of one kind; None where it keeps none."""
    return report.log_e_coverage if kind == "coverage" else report.log_e_exchangeability


def _max_log_e_value(report: EValueReport) -> float:
    """Return ln of a client's largest e-value."""
    if report.log_e_exchangeability is None:
        return report.log_e_coverage
    return max(report.log_e_coverage, report.log_e_exchangeability)


def _reporting_rows(history: AlarmHistory) -> list[ClientRow]:
    """Return a row for each client whose e-value report was ever accepted."""
    alarming = set(history.alarming_clients)
    rows = []
    for client, report in history.latest().items():
        if client in alarming:
            recommendation = "check first: run robfcp evaluate on fresh labeled samples"
            status = _Status("alarm", "alarms", recommendation)
        else:
            status = _status_of_other_client(history, client, report)
        row = ClientRow(
            name=client,
            n_samples=report.n_samples,
            coverage=None,
            log10_e_coverage=log10_or_none(report.log_e_coverage),
            log10_e_exchangeability=log10_or_none(report.log_e_exchangeability),
            state=status.state,
            state_text=status.state_text,
            recommendation=status.recommendation,
        )
        rows.append(row)
    return rows


def _status_of_other_client(history: AlarmHistory, client: str, report: EValueReport) -> _Status:
    """Return the state of a client that is not among those that alarm by themselves."""
    threshold = _log10_alarm_threshold(history)
    last_inspection = history.inspections[-1]
    log10_e_coverage = log10_or_none(report.log_e_coverage)
    log10_e_exchangeability = log10_or_none(report.log_e_exchangeability)
    if log10_e_coverage is not None and log10_e_coverage >= threshold:
        recommendation = "too small an e-value to be listed among so many sites; check it next"
        return _Status("alarm", "alarms alone", recommendation)
    if report.step < last_inspection.step:
        recommendation = last_inspection.rejections.get(client, _REQUEST_OF_SILENT)
        return _Status("silent", f"last report at step {report.step}", recommendation)
    if log10_e_exchangeability is not None and log10_e_exchangeability >= threshold:
        recommendation = "run robfcp evaluate on fresh labeled samples"
        return _Status("drift", "scores changed", recommendation)
    return _Status("quiet", "no alarm", "nothing")


def _silent_rows(history: AlarmHistory, registered: Sequence[str]) -> list[ClientRow]:
    """Return a row for each client that never reported, and one for all those without a name."""
    latest = history.latest()
    reasons: Mapping[str, str] = history.inspections[-1].rejections if history.inspections else {}
    recommendations = {}
    for client in sorted(set(registered) - set(latest)):
        recommendations[client] = "request its e-value report"
    n_unnamed = history.n_clients - len(set(registered) | set(latest))
    if n_unnamed > 0:
        unnamed = f"{n_unnamed} of {history.n_clients} sites"
        recommendations[unnamed] = "robfcp merge-alarms --keys would name them"
    for client, reason in reasons.items():
        if client not in latest:
            recommendations[client] = reason

    rows = []
    for client, recommendation in recommendations.items():
        state_text = "rejected" if client in reasons else "no report yet"
        rows.append(ClientRow(client, 0, None, None, None, "silent", state_text, recommendation))
    return rows


def _inspection_table(history: AlarmHistory) -> list[list[Any]]:
    """Return a row for each of the last inspections.

    The step, how many reports were accepted and rejected, log10 of both e-values of all clients
    together, and which clients alarmed.
    """
    inspections = list(zip(history.inspections, history.merged, strict=True))
    table = []
    for inspection, merged in inspections[-MAX_POINTS:]:
        row = [
            inspection.step,
            len(inspection.e_value_reports),
            len(inspection.rejections),
            log10_or_none(merged.log_e_coverage),
            log10_or_none(merged.log_e_exchangeability),
            abbreviate(merged.alarming_clients),
        ]
        table.append(row)
    return table
