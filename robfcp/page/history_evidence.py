"""What the page shows of the evidence against a calibration: curves and rows by site."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from robfcp._util.names import a_few
from robfcp.calibration import AlarmHistory, Heard, Look, MonitorState, reading_of

MOST_LINES = 60
MOST_SITES = 300
MOST_POINTS = 200
_WORDS = {
    "coverage": (
        "coverage",
        "Evidence that coverage is below its floor",
        "Wealth of bets against “coverage here is at least the floor”: while that is true it "
        "reaches the dashed line with a chance of at most delta, however often one looks.",
    ),
    "drift": (
        "drift",
        "Evidence that scores are no longer like the site's own report",
        "Wealth of bets against “fresh scores are exchangeable with the site's own report”: a "
        "drift shows here before coverage falls, and need not lower it.",
    ),
}
_NOTHING = "nothing"


def drops(state: MonitorState) -> bool:
    """Whether an alarm for lost coverage has rung, not only one for drift."""
    return bool(set(state.alarms) - {"exchangeability"})


def watched(alarms: AlarmHistory) -> dict[str, Any]:
    """The server's looks: a curve a site over the steps, and the merged one."""
    latest: dict[str, tuple[int, Heard]] = {}
    for look in alarms.looks:
        latest |= {name: (look.step, heard) for name, heard in look.sites.items()}
    order = sorted(latest, key=lambda name: (-_most(latest[name][1]), name))
    last = alarms.looks[-1] if alarms.looks else None
    listed, faulty = set(alarms.alarmed), dict(last.faulty) if last else {}
    limit = -math.log10(alarms.delta)
    kinds = []
    for key in ("coverage", "drift"):
        together = [(look.step, getattr(look, key)) for look in alarms.looks]
        lines = [_line("all sites together", together, "together")]
        for name in order[:MOST_LINES]:
            points = [
                (k.step, getattr(k.sites[name], key)) for k in alarms.looks if name in k.sites
            ]
            lines.append(_line(name, points, "alarm" if name in listed else "quiet"))
        kinds.append(_kind(key, [line for line in lines if line["x"]], limit))
    silent = [name for name in faulty if name not in latest]
    sites = [_site(name, *latest[name], last, listed, faulty, limit) for name in order]
    sites += [_absent(name, faulty[name]) for name in silent]
    return {
        "line": alarms.line,
        "axis": "step",
        "unit": "step",
        "kinds": kinds,
        "sites": _worst_first(sites),
        "more": max(0, len(sites) - MOST_SITES),
        "looks": [
            {
                "step": look.step,
                "heard": len(look.sites),
                "refused": len(look.faulty),
                "coverage": _tens(look.coverage),
                "drift": _tens(look.drift),
                "alarmed": a_few(look.alarmed),
            }
            for look in alarms.looks[-MOST_POINTS:]
        ],
    }


def _site(
    name: str,
    when: int,
    heard: Heard,
    last: Look | None,
    listed: set[str],
    faulty: dict[str, str],
    limit: float,
) -> dict[str, Any]:
    """One site's row: where it stands and what to do about it."""
    coverage, drift = _tens(heard.coverage), _tens(heard.drift)
    state, word, todo = "quiet", "no alarm", _NOTHING
    if name in listed:
        state, word = "alarm", "alarms"
        todo = "look here first: fresh labelled samples, robfcp check, then a new report"
    elif coverage is not None and coverage >= limit:
        state, word = "alarm", "rings alone"
        todo = "too little to be listed among so many sites; look here next"
    elif last is not None and when < last.step:
        state, word = "silent", f"silent since step {when}"
        todo = faulty.get(name, "counts as no evidence; ask for its e-report")
    elif drift is not None and drift >= limit:
        state, word = "drift", "scores changed"
        todo = "run robfcp check on fresh labelled samples"
    return {
        "name": name,
        "samples": heard.n,
        "covered": None,
        "coverage": coverage,
        "drift": drift,
        "state": state,
        "word": word,
        "todo": todo,
    }


def _absent(name: str, reason: str) -> dict[str, Any]:
    return {
        "name": name, "samples": 0, "covered": None, "coverage": None, "drift": None,
        "state": "silent", "word": "refused", "todo": reason,
    }  # fmt: skip


def monitored(monitors: tuple[tuple[str, MonitorState], ...]) -> dict[str, Any]:
    """Sites' own monitors: a curve each over the samples."""
    lines: dict[str, list[dict[str, Any]]] = {"coverage": [], "drift": []}
    sites = []
    limit = min(-math.log10(state.delta) for _, state in monitors)
    for name, state in monitors:
        step = max(1, len(state.curve) // MOST_POINTS)
        curve = [*state.curve[:-1][::step], *state.curve[-1:]]
        rang = state.alarms
        for key, field, alarm in (
            ("coverage", "coverage", "coverage"),
            ("drift", "exchangeability", "exchangeability"),
        ):
            points = [(point.n, getattr(point, field)) for point in curve]
            line = _line(name, points, "alarm" if alarm in rang else "quiet")
            if line["x"] and len(lines[key]) < MOST_LINES:
                lines[key].append(line)
        reading = reading_of(state)
        drift_only = bool(rang) and not drops(state)
        since = ", ".join(
            f"{'drift' if word == 'exchangeability' else word} at sample {step:,}"
            for word, step in sorted(rang.items(), key=lambda pair: pair[1])
        )
        sites.append(
            {
                "name": name,
                "samples": state.n,
                "covered": round(1 - state.misses / state.n, 5) if state.n else None,
                "coverage": _tens(reading.log_coverage),
                "drift": _tens(reading.log_exchangeability),
                "state": "drift" if drift_only else "alarm" if rang else "quiet",
                "word": since or "no alarm",
                "todo": (
                    "run robfcp check; coverage need not have fallen"
                    if drift_only
                    else "tell the server; recalibrate on fresh samples"
                    if rang
                    else _NOTHING
                ),
            }
        )
    return {
        "line": reading_of(monitors[0][1]).line if len(monitors) == 1 else "",
        "axis": "fresh samples",
        "unit": "sample",
        "kinds": [_kind(key, found, limit) for key, found in lines.items()],
        "sites": _worst_first(sites),
        "more": max(0, len(sites) - MOST_SITES),
        "looks": [],
    }


def _worst_first(sites: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many rows as are shown: alarms first, then drift, silence and the rest by evidence."""
    order = ("alarm", "drift", "silent", "quiet")

    def place(site: dict[str, Any]) -> tuple[int, float, str]:
        evidence = -math.inf if site["coverage"] is None else site["coverage"]
        return order.index(site["state"]), -evidence, site["name"]

    return sorted(sites, key=place)[:MOST_SITES]


def _line(name: str, points: Iterable[tuple[int, float | None]], state: str) -> dict[str, Any]:
    known = [(x, _tens(y)) for x, y in points if y is not None]
    return {
        "name": name,
        "state": state,
        "x": [x for x, _ in known],
        "y": [y for _, y in known],
    }


def _kind(key: str, lines: list[dict[str, Any]], limit: float) -> dict[str, Any]:
    word, title, words = _WORDS[key]
    alone = [line for line in lines if line["state"] != "together"]
    return {
        "key": key,
        "word": word,
        "title": title,
        "words": words,
        "limit": round(limit, 5),
        "lines": lines if alone else [],
    }


def _tens(log: float | None) -> float | None:
    """log10 to three digits; None where the wealth is 0 or not kept."""
    if log is None or not math.isfinite(log):
        return None
    return round(log / math.log(10), 3)


def _most(heard: Heard) -> float:
    return max(heard.coverage, -math.inf if heard.drift is None else heard.drift)
