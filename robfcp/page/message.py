"""The page's first sentence: who was left out or deserves a look, why, and what to do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from robfcp.calibration import Calibration, Diagnosis

NAMED = 4  # sites that the first sentence names with their cause
GROUPS = 4  # diagnoses that the advice spells out
LISTED = 6  # sites that it names of each


@dataclass(frozen=True)
class Message:
    """The first sentence, and what to do about it; both plain text."""

    first: str
    then: str = ""


def message(calibration: Calibration, found: Mapping[str, Diagnosis]) -> Message:
    """Names first: those left out, else those to look at, else that nothing stands out."""
    out = [one for one in found.values() if not one.trusted]
    looks = [one for one in found.values() if one.trusted]
    clients = calibration.federation.n_clients
    used = "The one site was used" if clients == 1 else f"All {clients} sites were used"
    also = f"Also look at {_few(looks)}, which {_was(looks)} used." if looks and out else ""
    verdict = "left out" if calibration.settings.guarantee is None else "flagged"
    if len(out) == 1:
        one = out[0]
        return Message(f"{one.client} was {verdict}: {one.seen}.", f"{_advice(one)} {also}".strip())
    if out:
        head = f"{len(out)} of {clients} sites were {verdict}"
        return Message(f"{head}{_worst(out)}.", f"{_to_do(out)} {also}".strip())
    if len(looks) == 1:
        one = looks[0]
        return Message(f"{used}, but look at {one.client}: {one.seen}.", _advice(one))
    if looks:
        return Message(f"{used}, but look at {_few(looks)}.", _to_do(looks))
    return Message(
        f"{used}; nothing in {'its report' if clients == 1 else 'their reports'} looks wrong."
    )


def diagnoses_data(found: Mapping[str, Diagnosis]) -> dict[str, dict[str, Any]]:
    """What the page shows of each diagnosis."""
    return {
        client: {
            "cause": one.cause if one.cause != "not told" else "cause unclear",
            "short": one.short,
            "fact": _sentence(one.fact),
            "finding": _sentence(one.finding),
            "advice": _advice(one),
            "instead": one.instead,
        }
        for client, one in found.items()
    }


def _advice(one: Diagnosis) -> str:
    return f"{_sentence(one.advice)}."


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _was(sites: Sequence[Diagnosis]) -> str:
    return "was" if len(sites) == 1 else "were"


def _worst(sites: Sequence[Diagnosis]) -> str:
    """Up to four by name with their cause; of more those whose coverage is furthest off."""
    if len(sites) <= NAMED:
        return f": {_listed(_entries(sites))}"
    furthest = sorted(sites, key=lambda one: -_off(one))[: NAMED - 1]
    return f", furthest off {_listed([f'{one.client} ({_off_words(one)})' for one in furthest])}"


def _off(one: Diagnosis) -> float:
    return -1.0 if math.isnan(one.covered) else abs(one.covered - one.wanted)


def _off_words(one: Diagnosis) -> str:
    """Its coverage in two words, else what it looks like."""
    return one.short if math.isnan(one.covered) else f"{one.covered:.0%} covered"


def _to_do(sites: Sequence[Diagnosis]) -> str:
    """What to check, once for all sites of which the same is said; the largest groups first."""
    groups: dict[tuple[str, str], list[Diagnosis]] = {}
    for one in sites:
        groups.setdefault((one.short, one.advice), []).append(one)
    ordered = sorted(groups.values(), key=len, reverse=True)
    told = [_group(group) for group in ordered[:GROUPS]]
    rest = [one.client for group in ordered[GROUPS:] for one in group]
    return " ".join([*told, *([f"{_names(rest)}: see below."] if rest else [])])


def _group(group: Sequence[Diagnosis]) -> str:
    """'4 sites, labels swapped: a, b, c and d. Check how they are coded.'"""
    number = "1 site" if len(group) == 1 else f"{len(group)} sites"
    names = _names([one.client for one in group])
    return f"{number}, {group[0].short}: {names}. {_advice(group[0])}"


def _names(names: Sequence[str]) -> str:
    shown = (
        names if len(names) <= LISTED else [*names[: LISTED - 1], f"{len(names) - LISTED + 1} more"]
    )
    return _listed(shown)


def _few(sites: Sequence[Diagnosis]) -> str:
    """Up to four by name with their cause; of more the first ones, and how many of each cause."""
    if len(sites) <= NAMED:
        return _listed(_entries(sites))
    causes = Counter("cause unclear" if s.cause == "not told" else s.cause for s in sites)
    names = ", ".join(one.client for one in sites[: NAMED - 1])
    kinds = _listed([f"{cause} at {number}" for cause, number in causes.most_common()])
    return f"{names} and {len(sites) - NAMED + 1} more ({kinds})"


def _entries(sites: Sequence[Diagnosis]) -> list[str]:
    """Each site with its cause; two that are each other's copy in one entry."""
    named = {one.client: one for one in sites}
    found, told = [], set()
    for one in sites:
        twin = named.get(one.other)
        if one.client in told:
            continue
        if twin is not None and one.cause == "copy" and twin.other == one.client:
            told.add(twin.client)
            found.append(f"{one.client} with {twin.client} (the same report)")
        else:
            found.append(f"{one.client} ({one.short})")
    return found


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
