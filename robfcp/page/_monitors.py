"""What the page shows of the states of clients' own monitors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from robfcp._validation import abbreviate
from robfcp.monitoring import MonitorState
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
    Curve,
    CurvesByKind,
    assemble_data,
    curve_data,
    log10_or_none,
    watch_data,
)


def monitors_data(monitors: Sequence[tuple[str, MonitorState]]) -> dict[str, Any]:
    """Return clients' own monitors: what to do, and a curve for each over its samples."""
    audit = []
    for name, state in monitors:
        audit.append((f"{name}: calibration watched (SHA-256)", state.calibration))
        audit.append((f"{name}: floor", f"{state.floor:.6g}, {state.source}"))
        audit.append((f"{name}: delta", f"{state.delta:g}"))

    log_thresholds = [state.log_alarm_threshold for _, state in monitors]
    watch = watch_data(
        line=monitors[0][1].line if len(monitors) == 1 else "",
        unit="sample",
        curves=_monitor_curves(monitors),
        alarm_line=min(log_thresholds) / math.log(10),
        rows=[_monitor_row(name, state) for name, state in monitors],
    )
    return assemble_data(_monitors_conclusion(monitors), COMMON_ASSUMPTIONS, audit, watch)


def _has_coverage_alarm(state: MonitorState) -> bool:
    """Return whether another alarm than that of drift rang."""
    return bool(set(state.alarms) - {"drift"})


def _monitors_conclusion(monitors: Sequence[tuple[str, MonitorState]]) -> Conclusion:
    """Return where coverage has fallen, else where scores have drifted."""
    fallen = [name for name, state in monitors if _has_coverage_alarm(state)]
    if fallen:
        claim = f"{FALLEN} at {abbreviate(fallen)}"
        return Conclusion(claim, f"Tell the server. {UNTIL_THEN}", is_alarm=True)

    drifted = [name for name, state in monitors if state.alarms]
    if drifted:
        claim = f"Scores have drifted at {abbreviate(drifted)}; coverage has not rung"
        return Conclusion(claim, DRIFTED)

    n_samples = sum(state.n for _, state in monitors)
    return Conclusion(f"No alarm after {n_samples:,} fresh samples", f"Nothing. {QUIET}")


def _monitor_curves(monitors: Sequence[tuple[str, MonitorState]]) -> CurvesByKind:
    """Return the curves of the first monitors that have any."""
    curves: CurvesByKind = {}
    for kind in KINDS:
        all_curves = [_monitor_curve(name, state, kind) for name, state in monitors]
        curves[kind] = [curve for curve in all_curves if curve["x"]][:MAX_CURVES]
    return curves


def _monitor_curve(name: str, state: MonitorState, kind: str) -> Curve:
    """Return a monitor's e-values over its samples, thinned; the last one is always there."""
    step = max(1, len(state.curve) // MAX_POINTS)
    thinned = state.curve[:-1:step] + state.curve[-1:]
    points = []
    for point in thinned:
        log_e_value = point.coverage if kind == "coverage" else point.drift
        points.append((point.n, log_e_value))
    return curve_data(name, points, "alarm" if kind in state.alarms else "quiet")


def _monitor_row(name: str, state: MonitorState) -> ClientRow:
    """Return where one client's monitor stands."""
    if _has_coverage_alarm(state):
        condition = "alarm"
        todo = "tell the server; recalibrate on fresh samples"
    elif state.alarms:
        condition = "drift"
        todo = "run robfcp check; coverage need not have fallen"
    else:
        condition = "quiet"
        todo = "nothing"

    alarms = sorted(state.alarms.items(), key=lambda alarm: alarm[1])
    alarm_texts = [f"{kind} at sample {n_samples:,}" for kind, n_samples in alarms]
    covered = None
    if state.n:
        covered = round(1 - state.misses / state.n, 5)
    return ClientRow(
        name=name,
        samples=state.n,
        covered=covered,
        coverage=log10_or_none(state.log_e_coverage),
        drift=log10_or_none(state.log_e_exchangeability),
        state=condition,
        word=", ".join(alarm_texts) or "no alarm",
        todo=todo,
    )
