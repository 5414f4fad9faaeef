"""What the page shows of a calibration's later life: evidence by site, alarms, rounds, advice."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from robfcp._util.names import a_few
from robfcp._version import __version__
from robfcp.calibration import AlarmHistory, Chain, MonitorState
from robfcp.page.history_evidence import drops, monitored, watched
from robfcp.page.history_rounds import rounds_data


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
