"""What the page shows of a calibration's later life: alarms by client, advice.

A server shows its inspections of the clients' e-value reports, a client the states of its own
monitors. Both come to the same data, which history.js and history-page.js read.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from robfcp import __version__
from robfcp._validation import abbreviate
from robfcp.monitoring import AlarmHistory, EValueReport, MonitorState

MAX_CURVES = 60  # drawn of clients, those with the largest e-values
MAX_CLIENT_ROWS = 300
MAX_POINTS = 200  # of a curve over samples, and rows of the table of inspections

_KINDS = ("coverage", "drift")
_STATES = ("alarm", "drift", "silent", "quiet")  # of a client, what to look at first comes first
_FALLEN = "Alarm: coverage has fallen below its floor"
_RECALIBRATE = "Recalibrate now on fresh samples."
_UNTIL_THEN = "Until then do not rely on the promised coverage."
_DRIFTED = "Run robfcp check on fresh labelled samples: coverage need not have fallen."
_QUIET = "No alarm is no proof: robfcp check says how much coverage is proved."
_COMMON_ASSUMPTIONS = (
    "while nothing is wrong, the chance of a miss given everything before is at most one minus the "
    "floor: independent samples of a site that holds its floor",
    "labels arrive in an order that does not depend on whether they were covered",
)


@dataclass(frozen=True)
class PageHistory:
    """What is known since a calibration: the server's looks, or sites' own monitors.

    Parameters
    ----------
    alarms
        The server's record.
    monitors
        The states of sites' own monitors, each under a name to show.
    registered_clients
        The names of all sites that are watched, where they are known.
    """

    alarms: AlarmHistory | None = None
    monitors: tuple[tuple[str, MonitorState], ...] = ()
    registered_clients: tuple[str, ...] = ()


class _Conclusion(NamedTuple):
    """What a history comes to: one sentence, what to do, and whether coverage has fallen."""

    claim: str
    todo: str
    is_alarm: bool = False


class _Status(NamedTuple):
    """Where one client stands: one of _STATES, the words for it, and what to do."""

    state: str
    word: str
    todo: str


class _ClientRow(NamedTuple):
    """A row of the table of clients; the fields are the keys of its data.

    `covered` is the fraction of a monitor's samples that are covered, `coverage` and `drift` are
    log10 of e-values; None where they are not known.
    """

    name: str
    samples: int
    covered: float | None
    coverage: float | None
    drift: float | None
    state: str
    word: str
    todo: str


Curve = dict[str, Any]
CurvesByKind = dict[str, list[Curve]]


def history_data(history: PageHistory | None) -> dict[str, Any] | None:
    """Return everything the page shows of a history, as JSON values; None where there is nothing.

    Parameters
    ----------
    history : PageHistory or None
        What is known; the server's record comes first.
    """
    if history is None:
        return None
    if history.alarms is not None:
        return _inspections_data(history.alarms, history.registered_clients)
    if history.monitors:
        return _monitors_data(history.monitors)
    return None


def _assemble_data(
    conclusion: _Conclusion,
    assumptions: Iterable[str],
    audit: Iterable[tuple[str, str]],
    watch: dict[str, Any],
) -> dict[str, Any]:
    """Return the data of a history from its sections."""
    made_with = f"robfcp {__version__}, Python {platform.python_version()}"
    return {
        "alarm": conclusion.is_alarm,
        "todo": conclusion.todo,
        "assumptions": list(assumptions),
        "audit": [("page made with", made_with), *audit],
        "watch": watch,
        "claim": conclusion.claim,
    }


# The server's inspections


def _inspections_data(history: AlarmHistory, registered: Sequence[str]) -> dict[str, Any]:
    """Return the server's inspections: what to do, and a curve for each client over the steps."""
    rows = [*_heard_rows(history), *_unheard_rows(history, registered)]
    conclusion = _inspections_conclusion(history)
    changed = [f"{row.name} ({row.word})" for row in rows if row.state != "quiet"]
    if changed and not history.alarm_steps and not history.alarming_clients:
        todo = f"Look at {abbreviate(changed)}. {_QUIET}"
        conclusion = conclusion._replace(todo=todo)

    audit = [
        ("calibration watched (SHA-256)", history.calibration),
        ("record of alarms (SHA-256)", history.digest),
        ("round", history.round or "none"),
        ("delta", f"{history.delta:g}"),
    ]
    watch = _watch_data(
        line=history.line,
        unit="step",
        curves=_inspection_curves(history),
        alarm_line=_alarm_line(history),
        rows=rows,
    )
    watch["looks"] = _inspection_table(history)
    return _assemble_data(conclusion, _inspections_assumptions(history), audit, watch)


def _alarm_line(history: AlarmHistory) -> float:
    """Return log10 of the e-value at which an alarm rings: two alarms have half of delta each."""
    return math.log10(2 / history.delta)


def _inspections_conclusion(history: AlarmHistory) -> _Conclusion:
    """Return whether a common alarm rang, else which clients alarm by themselves."""
    alarm_steps = history.alarm_steps
    inspections = f"{len(history.looks)} looks at {history.n_sites} sites"
    if "coverage" in alarm_steps:
        claim = f"{_FALLEN} (step {alarm_steps['coverage']}; {inspections})"
        return _Conclusion(claim, f"{_RECALIBRATE} {_UNTIL_THEN}", is_alarm=True)
    if "drift" in alarm_steps:
        step = alarm_steps["drift"]
        claim = f"Scores have drifted (step {step}; {inspections}); coverage has not rung"
        return _Conclusion(claim, _DRIFTED)
    if history.alarming_clients:
        names = abbreviate(history.alarming_clients)
        return _Conclusion(
            f"No common alarm in {inspections}; by themselves alarm {names}",
            f"Look there: drift at so few sites ({history.liars} or less) cannot be told from "
            "lies.",
        )
    return _Conclusion(f"No alarm in {inspections}", f"Nothing. {_QUIET}")


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
    assumptions.extend(_COMMON_ASSUMPTIONS)
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
    for kind in _KINDS:
        curves[kind] = [_curve("all sites together", common_points[kind], "together")]
        for client in clients[:MAX_CURVES]:
            points = []
            for inspection in history.looks:
                if client in inspection.sites:
                    report = inspection.sites[client]
                    points.append((report.step, _log_e_value(report, kind)))
            state = "alarm" if client in alarming else "quiet"
            curves[kind].append(_curve(client, points, state))
    return curves


def _log_e_value(report: EValueReport, kind: str) -> float | None:
    """Return ln of a client's e-value of one kind; None where it keeps none."""
    return report.log_coverage if kind == "coverage" else report.log_drift


def _max_log_e_value(report: EValueReport) -> float:
    """Return ln of a client's largest e-value."""
    if report.log_drift is None:
        return report.log_coverage
    return max(report.log_coverage, report.log_drift)


def _heard_rows(history: AlarmHistory) -> list[_ClientRow]:
    """Return a row for each client whose e-value report was ever accepted."""
    alarming = set(history.alarming_clients)
    rows = []
    for client, report in history.latest().items():
        if client in alarming:
            todo = "look here first: run robfcp check on fresh labelled samples"
            status = _Status("alarm", "alarms", todo)
        else:
            status = _status_of_other_client(history, client, report)
        row = _ClientRow(
            name=client,
            samples=report.n_samples,
            covered=None,
            coverage=_log10(report.log_coverage),
            drift=_log10(report.log_drift),
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
    coverage = _log10(report.log_coverage)
    drift = _log10(report.log_drift)
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


def _unheard_rows(history: AlarmHistory, registered: Sequence[str]) -> list[_ClientRow]:
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
        rows.append(_ClientRow(client, 0, None, None, None, "silent", word, todo))
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
            _log10(merged.log_e_coverage),
            _log10(merged.log_drift),
            abbreviate(merged.alarmed),
        ]
        table.append(row)
    return table


# Monitors of single clients


def _monitors_data(monitors: Sequence[tuple[str, MonitorState]]) -> dict[str, Any]:
    """Return clients' own monitors: what to do, and a curve for each over its samples."""
    audit = []
    for name, state in monitors:
        audit.append((f"{name}: calibration watched (SHA-256)", state.calibration))
        audit.append((f"{name}: floor", f"{state.floor:.6g}, {state.source}"))
        audit.append((f"{name}: delta", f"{state.delta:g}"))

    log_thresholds = [state.log_alarm_threshold for _, state in monitors]
    watch = _watch_data(
        line=monitors[0][1].line if len(monitors) == 1 else "",
        unit="sample",
        curves=_monitor_curves(monitors),
        alarm_line=min(log_thresholds) / math.log(10),
        rows=[_monitor_row(name, state) for name, state in monitors],
    )
    watch["looks"] = []
    return _assemble_data(_monitors_conclusion(monitors), _COMMON_ASSUMPTIONS, audit, watch)


def _has_coverage_alarm(state: MonitorState) -> bool:
    """Return whether another alarm than that of drift rang."""
    return bool(set(state.alarms) - {"drift"})


def _monitors_conclusion(monitors: Sequence[tuple[str, MonitorState]]) -> _Conclusion:
    """Return where coverage has fallen, else where scores have drifted."""
    fallen = [name for name, state in monitors if _has_coverage_alarm(state)]
    if fallen:
        claim = f"{_FALLEN} at {abbreviate(fallen)}"
        return _Conclusion(claim, f"Tell the server. {_UNTIL_THEN}", is_alarm=True)

    drifted = [name for name, state in monitors if state.alarms]
    if drifted:
        claim = f"Scores have drifted at {abbreviate(drifted)}; coverage has not rung"
        return _Conclusion(claim, _DRIFTED)

    n_samples = sum(state.n for _, state in monitors)
    return _Conclusion(f"No alarm after {n_samples:,} fresh samples", f"Nothing. {_QUIET}")


def _monitor_curves(monitors: Sequence[tuple[str, MonitorState]]) -> CurvesByKind:
    """Return the curves of the first monitors that have any."""
    curves: CurvesByKind = {}
    for kind in _KINDS:
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
    return _curve(name, points, "alarm" if kind in state.alarms else "quiet")


def _monitor_row(name: str, state: MonitorState) -> _ClientRow:
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
    return _ClientRow(
        name=name,
        samples=state.n,
        covered=covered,
        coverage=_log10(state.log_e_coverage),
        drift=_log10(state.log_e_exchangeability),
        state=condition,
        word=", ".join(alarm_texts) or "no alarm",
        todo=todo,
    )


# What both have in common


def _watch_data(
    *,
    line: str,
    unit: str,
    curves: CurvesByKind,
    alarm_line: float,
    rows: Sequence[_ClientRow],
) -> dict[str, Any]:
    """Return the chart of each kind of alarm, and the table of clients (history.js).

    A chart with no other curve than that of all clients together is left empty.

    Parameters
    ----------
    line : str
        Where clients stand and what to do, in one line.
    unit : str
        What the horizontal axis counts.
    curves : dict
        The curves of each kind of alarm.
    alarm_line : float
        log10 of the e-value at which an alarm rings.
    rows : sequence of _ClientRow
        The table of clients, in any order.
    """
    charts = []
    for kind in _KINDS:
        curves_with_points = [curve for curve in curves[kind] if curve["x"]]
        has_clients = any(curve["state"] != "together" for curve in curves_with_points)
        chart = {
            "key": kind,
            "limit": round(alarm_line, 5),
            "lines": curves_with_points if has_clients else [],
        }
        charts.append(chart)

    in_order = sorted(rows, key=_row_order)
    return {
        "line": line,
        "unit": unit,
        "kinds": charts,
        "sites": [row._asdict() for row in in_order[:MAX_CLIENT_ROWS]],
        "more": max(0, len(rows) - MAX_CLIENT_ROWS),
    }


def _row_order(row: _ClientRow) -> tuple[int, bool, float, str]:
    """Return what rows are sorted by: what to look at first, then the largest e-value."""
    is_unknown = row.coverage is None
    return _STATES.index(row.state), is_unknown, -(row.coverage or 0), row.name


def _curve(name: str, points: Iterable[tuple[int, float | None]], state: str) -> Curve:
    """Return a curve of log10 of e-values, without the points where there is none."""
    xs = []
    ys = []
    for x, log_e_value in points:
        y = _log10(log_e_value)
        if y is not None:
            xs.append(x)
            ys.append(y)
    return {"name": name, "state": state, "x": xs, "y": ys}


def _log10(log: float | None) -> float | None:
    """Return log10 to three digits of what ln is given; None where it is 0 or not known."""
    if log is None or not math.isfinite(log):
        return None
    return round(log / math.log(10), 3)
