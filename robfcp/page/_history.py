"""What the page shows of a calibration's later life: alarms by site, advice."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from robfcp import __version__
from robfcp._validation import abbreviate
from robfcp.monitoring import AlarmHistory, MonitorState

Lines = dict[str, list[dict[str, Any]]]
MOST_LINES = 60
MOST_SITES = 300
MOST_POINTS = 200
_KINDS = ("coverage", "drift")
_ROW = ("name", "samples", "covered", "coverage", "drift", "state", "word", "todo")
_FALLEN = "Alarm: coverage has fallen below its floor"
_RECALIBRATE = "Recalibrate now on fresh samples."
_UNTIL = "Until then do not rely on the promised coverage."
_DRIFTED = "Run robfcp check on fresh labelled samples: coverage need not have fallen."
_QUIET = "No alarm is no proof: robfcp check says how much coverage is proved."
_RESTS_ON = (
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


def history_data(history: PageHistory | None) -> dict[str, Any] | None:
    """Everything the page shows of it, as JSON values; None where there is nothing."""
    if history is None or not (history.alarms or history.monitors):
        return None
    made_with = ("page made with", f"robfcp {__version__}, Python {platform.python_version()}")
    found: dict[str, Any] = {"alarm": False, "todo": "", "assumptions": [], "audit": [made_with]}
    found["watch"] = None
    if history.alarms is not None:
        _add_alarms(found, history.alarms, history.registered_clients)
    elif history.monitors:
        _add_monitors(found, history.monitors)
    return found


def _add_alarms(found: dict[str, Any], alarms: AlarmHistory, registered: tuple[str, ...]) -> None:
    """The server's looks: what to do, a curve a site over the steps, and that of all together."""
    rang, liars = alarms.alarm_steps, alarms.liars
    looks = f"{len(alarms.looks)} looks at {alarms.n_sites} sites"
    claim, todo = f"No alarm in {looks}", f"Nothing. {_QUIET}"
    if "coverage" in rang:
        claim, todo = f"{_FALLEN} (step {rang['coverage']}; {looks})", f"{_RECALIBRATE} {_UNTIL}"
    elif "drift" in rang:
        claim = f"Scores have drifted (step {rang['drift']}; {looks}); coverage has not rung"
        todo = _DRIFTED
    elif alarms.alarming_clients:
        claim = (
            f"No common alarm in {looks}; by themselves alarm {abbreviate(alarms.alarming_clients)}"
        )
        todo = f"Look there: drift at so few sites ({liars} or less) cannot be told from lies."
    found |= {"claim": claim, "todo": todo, "alarm": "coverage" in rang}
    found["assumptions"] += [
        f"at most {alarms.liars} of the {alarms.n_sites} sites lie; silent and refused ones count "
        "for nothing",
        "who is watched and how many may lie was fixed before the first look",
        "a site does not report only when it has something to say",
        *(["samples of different sites are independent"] if alarms.independent else []),
        *_RESTS_ON,
    ]
    found["audit"] += [
        ("calibration watched (SHA-256)", alarms.calibration),
        ("record of alarms (SHA-256)", alarms.digest),
        ("round", alarms.round or "none"),
        ("delta", f"{alarms.delta:g}"),
    ]
    latest, listed = alarms.latest(), set(alarms.alarming_clients)
    strength = {
        name: max(log for log in (one.log_coverage, one.log_drift) if log is not None)
        for name, one in latest.items()
    }
    order = sorted(latest, key=lambda name: (-strength[name], name))
    both = list(zip(alarms.looks, alarms.merged, strict=True))
    lines: Lines = {}
    for key in _KINDS:
        attribute = "log_e_coverage" if key == "coverage" else "log_drift"
        common = [(look.step, getattr(merged, attribute)) for look, merged in both]
        lines[key] = [_line("all sites together", common, "together")]
        for name in order[:MOST_LINES]:
            sent = [look.sites[name] for look in alarms.looks if name in look.sites]
            points = [(report.step, getattr(report, f"log_{key}")) for report in sent]
            lines[key].append(_line(name, points, "alarm" if name in listed else "quiet"))
    limit, sites = math.log10(2 / alarms.delta), []
    step, faulty = (alarms.looks[-1].step, alarms.looks[-1].faulty) if alarms.looks else (0, {})
    for name, report in latest.items():
        coverage, drift = _log10(report.log_coverage), _log10(report.log_drift)
        if name in listed:
            said = "alarm", "alarms", "look here first: run robfcp check on fresh labelled samples"
        elif coverage is not None and coverage >= limit:
            said = "alarm", "rings alone", "too little to be listed among so many; look here next"
        elif report.step < step:
            todo = faulty.get(name, "counts for nothing; ask for its e-report")
            said = "silent", f"last heard at step {report.step}", todo
        elif drift is not None and drift >= limit:
            said = "drift", "scores changed", "run robfcp check on fresh labelled samples"
        else:
            said = "quiet", "no alarm", "nothing"
        sites.append((name, report.n_samples, None, coverage, drift, *said))
    unheard = dict.fromkeys(sorted({*registered} - {*latest}), "ask for its e-report")
    if (unnamed := alarms.n_sites - len({*registered, *latest})) > 0:
        unheard[f"{unnamed} of {alarms.n_sites} sites"] = "robfcp alarms --keys would name them"
    unheard |= {name: reason for name, reason in faulty.items() if name not in latest}
    for name, todo in unheard.items():
        word = "refused" if name in faulty else "never heard"
        sites.append((name, 0, None, None, None, "silent", word, todo))
    changed = [f"{row[0]} ({row[6]})" for row in sites if row[5] != "quiet"]
    if changed and not alarms.alarm_steps and not alarms.alarming_clients:
        found["todo"] = f"Look at {abbreviate(changed)}. {_QUIET}"
    heard = [
        [look.step, len(look.sites), len(look.faulty)]
        + [_log10(merged.log_e_coverage), _log10(merged.log_drift), abbreviate(merged.alarmed)]
        for look, merged in both[-MOST_POINTS:]
    ]
    found["watch"] = _alarm_panel(alarms.line, "step", lines, limit, sites) | {"looks": heard}


def _add_monitors(found: dict[str, Any], monitors: tuple[tuple[str, MonitorState], ...]) -> None:
    """Sites' own monitors: what to do, and a curve each over the samples."""
    fallen = [name for name, state in monitors if set(state.alarms) - {"drift"}]
    moved = [name for name, state in monitors if state.alarms]
    samples = sum(state.n for _, state in monitors)
    claim, todo = f"No alarm after {samples:,} fresh samples", f"Nothing. {_QUIET}"
    if fallen:
        claim, todo = f"{_FALLEN} at {abbreviate(fallen)}", f"Tell the server. {_UNTIL}"
    elif moved:
        claim, todo = f"Scores have drifted at {abbreviate(moved)}; coverage has not rung", _DRIFTED
    found |= {"claim": claim, "todo": todo, "alarm": bool(fallen)}
    found["assumptions"] += _RESTS_ON
    lines: Lines = {key: [] for key in _KINDS}
    sites = []
    for name, state in monitors:
        found["audit"] += [
            (f"{name}: calibration watched (SHA-256)", state.calibration),
            (f"{name}: floor", f"{state.floor:.6g}, {state.source}"),
            (f"{name}: delta", f"{state.delta:g}"),
        ]
        curve = state.curve[:-1][:: max(1, len(state.curve) // MOST_POINTS)] + state.curve[-1:]
        for key, drawn in lines.items():
            points = [(point.n, getattr(point, key)) for point in curve]
            drawn.append(_line(name, points, "alarm" if key in state.alarms else "quiet"))
        since = sorted(state.alarms.items(), key=lambda pair: pair[1])
        word = ", ".join(f"{key} at sample {step:,}" for key, step in since) or "no alarm"
        kind, todo = "quiet", "nothing"
        if name in moved:
            kind, todo = "drift", "run robfcp check; coverage need not have fallen"
        if name in fallen:
            kind, todo = "alarm", "tell the server; recalibrate on fresh samples"
        covered = round(1 - state.misses / state.n, 5) if state.n else None
        logs = _log10(state.log_e_coverage), _log10(state.log_e_exchangeability)
        sites.append((name, state.n, covered, *logs, kind, word, todo))
    limit = min(state.log_alarm_threshold for _, state in monitors) / math.log(10)
    line = monitors[0][1].line if len(monitors) == 1 else ""
    kept = {key: [one for one in drawn if one["x"]][:MOST_LINES] for key, drawn in lines.items()}
    found["watch"] = _alarm_panel(line, "sample", kept, limit, sites) | {"looks": []}


def _alarm_panel(
    line: str, unit: str, lines: Lines, limit: float, sites: list[tuple[Any, ...]]
) -> dict[str, Any]:
    """The curves of each kind of alarm, and the sites: alarms first, then drift, then silence."""
    states, kinds = ("alarm", "drift", "silent", "quiet"), []
    rows = [dict(zip(_ROW, site, strict=True)) for site in sites]
    rows.sort(key=lambda row: (row["coverage"] is None, -(row["coverage"] or 0), row["name"]))
    rows.sort(key=lambda row: states.index(row["state"]))
    for key in _KINDS:
        drawn = [one for one in lines[key] if one["x"]]
        alone = any(one["state"] != "together" for one in drawn)
        kinds.append({"key": key, "limit": round(limit, 5), "lines": drawn if alone else []})
    more = max(0, len(sites) - MOST_SITES)
    return {"line": line, "unit": unit, "kinds": kinds, "sites": rows[:MOST_SITES], "more": more}


def _line(name: str, points: Iterable[tuple[int, float | None]], state: str) -> dict[str, Any]:
    known = [(x, tens) for x, log in points if (tens := _log10(log)) is not None]
    return {"name": name, "state": state, "x": [x for x, _ in known], "y": [y for _, y in known]}


def _log10(log: float | None) -> float | None:
    """log10 to three digits; None where the strength is 0 or not kept."""
    return None if log is None or not math.isfinite(log) else round(log / math.log(10), 3)
