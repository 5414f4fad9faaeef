"""What the page shows of a calibration's later life: evidence by site, alarms, rounds, advice."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from robfcp._version import __version__
from robfcp.arguments import a_few
from robfcp.monitoring import AlarmHistory, Chain, Heard, Link, Look, MonitorState, reading_of

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


def rounds_data(chain: Chain) -> dict[str, Any]:
    """The chain, the newest round first, and the sites it says something of."""
    found = chain.reputations()
    spoken = {
        name: one
        for name, one in found.items()
        if one.flagged or one.drifted or one.alarmed or one.out_since is not None
    }
    order = sorted(spoken, key=lambda name: (-_weight(spoken[name]), name))[:MOST_SITES]
    return {
        "links": [_link(link) for link in reversed(chain.links[-MOST_POINTS:])],
        "words": (
            f"Every round holds the digest of the one before. Over all rounds at most "
            f"{chain.delta:g} is spent on leaving sites out and as much on naming drift. "
            f"{len(found) - len(spoken)} of {len(found)} sites were never flagged, left out or "
            "named. Being flagged proves nothing; being left out does, under the stated sigma."
        ),
        "reputations": [
            {
                "name": name,
                "reported": spoken[name].reported,
                "flagged": spoken[name].flagged,
                "drifted": spoken[name].drifted,
                "alarmed": spoken[name].alarmed,
                "out": spoken[name].out_since,
            }
            for name in order
        ],
    }


def _weight(one: Any) -> int:
    return int(one.flagged + one.drifted + one.alarmed + 1000 * (one.out_since is not None))


def _link(link: Link) -> dict[str, Any]:
    rang = [f"{name} at step {step}" for name, step in link.rang.items()]
    alarms = "–" if link.alarms is None else ", ".join(rang) or "none"
    return {
        "name": f"{link.number}" + (f" ({link.round})" if link.round else ""),
        "thresholds": link.thresholds,
        "lowers": link.lowers,
        "sites": len(link.clients),
        "flagged": a_few(link.flagged, 3) or "–",
        "out": a_few(list(link.left_out), 3) or "–",
        "drifted": a_few(list(link.drifted), 3) or "–",
        "alarms": alarms,
        "digest": link.calibration,
    }


@dataclass(frozen=True)
class History:
    """What is known since a calibration: the server's looks, sites' own monitors, the rounds.

    Parameters
    ----------
    alarms
        The server's record.
    monitors
        The states of sites' own monitors, each under a name to show.
    chain
        The rounds.
    """

    alarms: AlarmHistory | None = None
    monitors: tuple[tuple[str, MonitorState], ...] = ()
    chain: Chain | None = None


def history_data(history: History | None) -> dict[str, Any] | None:
    """Everything the page shows of it, as JSON values; None where there is nothing."""
    if history is None or not (history.alarms or history.monitors or history.chain):
        return None
    evidence = None
    if history.alarms is not None:
        evidence = watched(history.alarms)
    elif history.monitors:
        evidence = monitored(history.monitors)
    return {
        "alarm": _rung(history),
        "claim": _claim(history),
        "todo": _todo(history),
        "assumptions": _assumptions(history),
        "audit": list(_audit(history)),
        "evidence": evidence,
        "rounds": None if history.chain is None else rounds_data(history.chain),
    }


def _rung(history: History) -> bool:
    """Whether coverage is known to have fallen."""
    if history.alarms is not None:
        return history.alarms.alarm
    return any(drops(state) for _, state in history.monitors)


def _claim(history: History) -> str:
    """The page's first line."""
    if history.alarms is not None:
        rang = history.alarms.rang or {}
        looks = f"{len(history.alarms.looks)} looks at {history.alarms.n_sites} sites"
        if "coverage" in rang:
            return f"Alarm: coverage has fallen below its floor (step {rang['coverage']}; {looks})"
        if "drift" in rang:
            return f"Scores have drifted (step {rang['drift']}; {looks}); coverage has not rung"
        if history.alarms.alarmed:
            names = a_few(history.alarms.alarmed)
            return f"No common alarm in {looks}; by themselves alarm {names}"
        return f"No alarm in {looks}"
    if history.monitors:
        rung = [name for name, state in history.monitors if drops(state)]
        moved = [name for name, state in history.monitors if state.alarms]
        if rung:
            return f"Alarm: coverage has fallen below its floor at {a_few(rung)}"
        if moved:
            return f"Scores have drifted at {a_few(moved)}; coverage has not rung"
        samples = sum(state.n for _, state in history.monitors)
        return f"No alarm after {samples:,} fresh samples"
    assert history.chain is not None
    return f"{len(history.chain.links)} rounds of calibration"


def _todo(history: History) -> str:
    """What to do, in one sentence or two."""
    if history.alarms is not None:
        if history.alarms.alarm:
            return (
                "Recalibrate now on fresh samples: robfcp calibrate --previous with --alarms keeps "
                "the record. Until then do not rely on the promised coverage."
            )
        if history.alarms.drift:
            return "Run robfcp check at the sites on fresh labelled samples; prepare a new round."
        if history.alarms.alarmed:
            return (
                "Look at the sites listed: drift at no more than m sites cannot be told from m "
                "liars, so no common alarm can ring for them."
            )
        return "Nothing. No alarm is no proof: robfcp check says how much coverage is proved."
    if any(drops(state) for _, state in history.monitors):
        return "Tell the server; recalibrate on fresh samples, with --previous to keep the record."
    if any(state.alarms for _, state in history.monitors):
        return "Run robfcp check on fresh labelled samples: coverage need not have fallen."
    if history.monitors:
        return "Nothing. No alarm is no proof: robfcp check says how much coverage is proved."
    return ""


def _assumptions(history: History) -> list[str]:
    """What the alarms rest on."""
    found = []
    if history.alarms is not None:
        one = history.alarms
        found += [
            f"at most {one.m} of the {one.n_sites} sites lie; silent and refused ones count as no "
            "evidence",
            "who is watched and how many may lie was fixed before the first look",
            "a site does not report only when it has something to say",
        ]
        if one.independent:
            found.append("samples of different sites are independent")
    if history.alarms is not None or history.monitors:
        found += [
            "while nothing is wrong, the chance of a miss given everything before is at most one "
            "minus the floor: independent samples of a site that holds its floor",
            "labels arrive in an order that does not depend on whether they were covered",
        ]
    if history.chain is not None:
        found.append(
            f"exclusions over all rounds fail with a chance of at most {history.chain.delta:g}, "
            "beside each round's own"
        )
    return found


def _audit(history: History) -> Iterable[tuple[str, str]]:
    """Names and values an auditor needs."""
    yield "page made with", f"robfcp {__version__}, Python {platform.python_version()}"
    if history.alarms is not None:
        one = history.alarms
        yield "calibration watched (SHA-256)", one.calibration
        yield "record of alarms (SHA-256)", one.digest
        yield "round", "none" if one.round is None else one.round
        yield "sites, liars allowed", f"{one.n_sites}, {one.m}"
        yield "delta", f"{one.delta:g}"
        yield "sites stated independent", "yes" if one.independent else "no"
    for name, state in history.monitors:
        yield f"{name}: calibration watched (SHA-256)", state.calibration
        yield f"{name}: floor", f"{state.floor:.6g}, {state.source}"
        yield f"{name}: delta", f"{state.delta:g}"
    if history.chain is not None:
        yield "first calibration of the chain (SHA-256)", history.chain.links[0].calibration
        yield "last calibration of the chain (SHA-256)", history.chain.links[-1].calibration
