"""What the page shows of the states of clients' own monitors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from robfcp._validation import abbreviate
from robfcp.monitoring import MonitorState
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
    Curve,
    CurvesByKind,
    alarm_panel_data,
    assemble_data,
    curve_data,
    log10_or_none,
)


def monitors_data(monitors: Sequence[tuple[str, MonitorState]]) -> dict[str, Any]:
    """Return clients' own monitors: what to do, and a curve for each over its samples."""
    audit = []
    for name, state in monitors:
        audit.append((f"{name}: calibration monitored (SHA-256)", state.calibration))
        audit.append((f"{name}: min_coverage", f"{state.min_coverage:.6g}, {state.source}"))
        audit.append((f"{name}: delta", f"{state.delta:g}"))

    log_thresholds = [state.log_alarm_threshold for _, state in monitors]
    alarm_panel = alarm_panel_data(
        line=monitors[0][1].line if len(monitors) == 1 else "",
        x_unit="sample",
        curves=_monitor_curves(monitors),
        log10_alarm_threshold=min(log_thresholds) / math.log(10),
        rows=[_monitor_row(name, state) for name, state in monitors],
    )
    return assemble_data(_monitors_conclusion(monitors), COMMON_ASSUMPTIONS, audit, alarm_panel)


def _has_coverage_alarm(state: MonitorState) -> bool:
    """Return whether an alarm other than that of drift was raised."""
    return bool(set(state.alarm_steps) - {"drift"})


def _monitors_conclusion(monitors: Sequence[tuple[str, MonitorState]]) -> Conclusion:
    """Return where coverage has fallen, else where scores have drifted."""
    alarming = [name for name, state in monitors if _has_coverage_alarm(state)]
    if alarming:
        claim = f"{COVERAGE_ALARM} at {abbreviate(alarming)}"
        return Conclusion(claim, f"Inform the server. {COVERAGE_ALARM_CAVEAT}", is_alarm=True)

    drifted = [name for name, state in monitors if state.alarm_steps]
    if drifted:
        claim = f"Scores have drifted at {abbreviate(drifted)}; no alarm of coverage"
        return Conclusion(claim, DRIFT_RECOMMENDATION)

    n_samples = sum(state.n_samples for _, state in monitors)
    return Conclusion(f"No alarm after {n_samples:,} fresh samples", f"Nothing. {NO_ALARM_CAVEAT}")


def _monitor_curves(monitors: Sequence[tuple[str, MonitorState]]) -> CurvesByKind:
    """Return the curves of the first monitors that have any."""
    curves: CurvesByKind = {}
    for kind in ALARM_KINDS:
        all_curves = [_monitor_curve(name, state, kind) for name, state in monitors]
        curves[kind] = [curve for curve in all_curves if curve["x"]][:MAX_CURVES]
    return curves


def _monitor_curve(name: str, state: MonitorState, kind: str) -> Curve:
    """Return a monitor's e-values over its samples, thinned; the last one is always there."""
    step = max(1, len(state.points) // MAX_POINTS)
    thinned = state.points[:-1:step] + state.points[-1:]
    points = []
    for point in thinned:
        log_e_value = point.log_e_coverage if kind == "coverage" else point.log_e_exchangeability
        points.append((point.n_samples, log_e_value))
    return curve_data(name, points, "alarm" if kind in state.alarm_steps else "quiet")


def _monitor_row(name: str, state: MonitorState) -> ClientRow:
    """Return the row of one client's monitor."""
    if _has_coverage_alarm(state):
        client_state = "alarm"
        recommendation = "inform the server; recalibrate on fresh samples"
    elif state.alarm_steps:
        client_state = "drift"
        recommendation = "run robfcp evaluate; coverage need not have fallen"
    else:
        client_state = "quiet"
        recommendation = "nothing"

    alarms = sorted(state.alarm_steps.items(), key=lambda alarm: alarm[1])
    alarm_texts = [f"{kind} at sample {n_samples:,}" for kind, n_samples in alarms]
    coverage = None
    if state.n_samples:
        coverage = round(1 - state.n_missed / state.n_samples, 5)
    return ClientRow(
        name=name,
        n_samples=state.n_samples,
        coverage=coverage,
        log10_e_coverage=log10_or_none(state.log_e_coverage),
        log10_e_exchangeability=log10_or_none(state.log_e_exchangeability),
        state=client_state,
        state_text=", ".join(alarm_texts) or "no alarm",
        recommendation=recommendation,
    )
