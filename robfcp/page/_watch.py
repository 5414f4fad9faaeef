"""What the histories of inspections and of monitors have in common: curves, clients, advice."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from robfcp import __version__

MAX_CURVES = 60  # drawn of clients, those with the largest e-values
MAX_CLIENT_ROWS = 300
MAX_POINTS = 200  # of a curve over samples, and rows of the table of inspections

KINDS = ("coverage", "drift")
STATES = ("alarm", "drift", "silent", "quiet")  # of a client; what to look at first comes first
FALLEN = "Alarm: coverage has fallen below its floor"
UNTIL_THEN = "Until then do not rely on the promised coverage."
DRIFTED = "Run robfcp check on fresh labelled samples: coverage need not have fallen."
QUIET = "No alarm is no proof: robfcp check says how much coverage is proved."
COMMON_ASSUMPTIONS = (
    "while nothing is wrong, the chance of a miss given everything before is at most one minus the "
    "floor: independent samples of a site that holds its floor",
    "labels arrive in an order that does not depend on whether they were covered",
)


class Conclusion(NamedTuple):
    """What a history comes to: one sentence, what to do, and whether coverage has fallen."""

    claim: str
    todo: str
    is_alarm: bool = False


class ClientRow(NamedTuple):
    """A row of the table of clients; the fields are the keys of its data.

    `state` is one of STATES, `word` says it in words and `todo` what to do. `covered` is the
    fraction of a monitor's samples that are covered, `coverage` and `drift` are log10 of e-values;
    None where they are not known.
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


def assemble_data(
    conclusion: Conclusion,
    assumptions: Iterable[str],
    audit: Iterable[tuple[str, str]],
    watch: dict[str, Any],
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
    watch : dict
        The charts and tables, from `watch_data`.
    """
    made_with = f"robfcp {__version__}, Python {platform.python_version()}"
    return {
        "alarm": conclusion.is_alarm,
        "todo": conclusion.todo,
        "assumptions": list(assumptions),
        "audit": [("page made with", made_with), *audit],
        "watch": watch,
        "claim": conclusion.claim,
    }


def watch_data(
    *,
    line: str,
    unit: str,
    curves: CurvesByKind,
    alarm_line: float,
    rows: Sequence[ClientRow],
    inspections: Sequence[Sequence[Any]] = (),
) -> dict[str, Any]:
    """Return the chart of each kind of alarm, and the tables below it (history.js).

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
    rows : sequence of ClientRow
        The table of clients, in any order.
    inspections : sequence of rows
        The table of inspections, where there are any.
    """
    charts = []
    for kind in KINDS:
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
        "looks": list(inspections),
    }


def _row_order(row: ClientRow) -> tuple[int, bool, float, str]:
    """Return what rows are sorted by: what to look at first, then the largest e-value."""
    is_unknown = row.coverage is None
    return STATES.index(row.state), is_unknown, -(row.coverage or 0), row.name


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
