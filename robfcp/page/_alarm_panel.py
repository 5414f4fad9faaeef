"""What histories of inspections and of monitors have in common: curves, clients, what to do."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from robfcp import __version__

MAX_CURVES = 60  # of clients, those with the largest e-values
MAX_CLIENT_ROWS = 300
MAX_POINTS = 200  # of a curve over samples, and rows of the table of inspections

ALARM_KINDS = ("coverage", "drift")
STATES = ("alarm", "drift", "silent", "quiet")  # of a client, the most urgent first
COVERAGE_ALARM = "Alarm: coverage has fallen below its minimum"
COVERAGE_ALARM_CAVEAT = "Until then do not rely on the certified coverage."
DRIFT_RECOMMENDATION = (
    "Run robfcp evaluate on fresh labeled samples: coverage need not have fallen."
)
NO_ALARM_CAVEAT = "No alarm is no proof: robfcp evaluate gives the certified coverage."
COMMON_ASSUMPTIONS = (
    "while nothing is wrong, the probability of a miss, given everything before, is at most one "
    "minus the minimum coverage, as for independent samples of a site that reaches it",
    "labels arrive in an order that does not depend on whether they were covered",
)


class Conclusion(NamedTuple):
    """What a history comes to: one sentence, what to do, and whether coverage has fallen."""

    claim: str
    recommendation: str
    is_alarm: bool = False


class ClientRow(NamedTuple):
    """A row of the table of clients; the fields are the keys of its data.

    `state` is one of STATES, `state_text` describes it and `recommendation` is what to do.
    `coverage` is the fraction of a monitor's samples that are covered. None where a value is not
    known.
    """

    name: str
    n_samples: int
    coverage: float | None
    log10_e_coverage: float | None
    log10_e_exchangeability: float | None
    state: str
    state_text: str
    recommendation: str


Curve = dict[str, Any]
CurvesByKind = dict[str, list[Curve]]


def assemble_data(
    conclusion: Conclusion,
    assumptions: Iterable[str],
    audit: Iterable[tuple[str, str]],
    alarm_panel: dict[str, Any],
) -> dict[str, Any]:
    """Return the data of a history from its sections (page.js, history-page.js).

    Parameters
    ----------
    conclusion : Conclusion
        What the history comes to.
    assumptions : iterable of str
        What its alarms assume.
    audit : iterable of (str, str)
        Names and values that an auditor needs.
    alarm_panel : dict
        The charts and tables, from `alarm_panel_data`.
    """
    made_with = f"robfcp {__version__}, Python {platform.python_version()}"
    return {
        "is_alarm": conclusion.is_alarm,
        "recommendation": conclusion.recommendation,
        "assumptions": list(assumptions),
        "audit": [("page made with", made_with), *audit],
        "alarm_panel": alarm_panel,
        "claim": conclusion.claim,
    }


def alarm_panel_data(
    *,
    line: str,
    x_unit: str,
    curves: CurvesByKind,
    log10_alarm_threshold: float,
    rows: Sequence[ClientRow],
    inspections: Sequence[Sequence[Any]] = (),
) -> dict[str, Any]:
    """Return the chart of each kind of alarm, and the tables below it (history.js).

    A chart with no other curve than that of all clients together is left empty.

    Parameters
    ----------
    line : str
        The alarms and what to do, in one line.
    x_unit : str
        What the horizontal axis counts.
    curves : dict
        The curves of each kind of alarm.
    log10_alarm_threshold : float
        log10 of the e-value at which an alarm is raised.
    rows : sequence of ClientRow
        The table of clients, in any order.
    inspections : sequence of rows
        The table of inspections, where there are any.
    """
    charts = []
    for kind in ALARM_KINDS:
        curves_with_points = [curve for curve in curves[kind] if curve["x"]]
        has_clients = any(curve["state"] != "together" for curve in curves_with_points)
        chart = {
            "kind": kind,
            "log10_alarm_threshold": round(log10_alarm_threshold, 5),
            "curves": curves_with_points if has_clients else [],
        }
        charts.append(chart)

    in_order = sorted(rows, key=_row_order)
    return {
        "line": line,
        "x_unit": x_unit,
        "charts": charts,
        "clients": [row._asdict() for row in in_order[:MAX_CLIENT_ROWS]],
        "n_clients_not_shown": max(0, len(rows) - MAX_CLIENT_ROWS),
        "inspections": list(inspections),
    }


def _row_order(row: ClientRow) -> tuple[int, bool, float, str]:
    """Return what rows are sorted by: the most urgent state first, then the largest e-value."""
    log10_e_value = row.log10_e_coverage
    return STATES.index(row.state), log10_e_value is None, -(log10_e_value or 0), row.name


def curve_data(name: str, points: Iterable[tuple[int, float | None]], state: str) -> Curve:
    """Return a curve of log10 of e-values, without the points where there is none."""
    xs = []
    ys = []
    for x, log_e_value in points:
        y = log10_or_none(log_e_value)
        if y is not None:
            xs.append(x)
            ys.append(y)
    return {"name": name, "state": state, "x": xs, "y": ys}


def log10_or_none(log: float | None) -> float | None:
    """Return log10 to three digits of what ln is given; None where it is 0 or not known."""
    if log is None or not math.isfinite(log):
        return None
    return round(log / math.log(10), 3)
