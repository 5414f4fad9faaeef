"""The page's first sentence: who was left out or deserves a look, why, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from robfcp.calibration import Calibration, Diagnosis

NAMED = 4  # sites that the first sentence names with their cause


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
        return Message(
            f"{one.client} was {verdict}: {_seen(one)}.", f"{_advice(one)} {also}".strip()
        )
    if out:
        head = f"{len(out)} of {clients} sites were {verdict}: "
        return Message(
            f"{head}{_few(out)}.", f"Ask each of them to check what stands below. {also}"
        )
    if len(looks) == 1:
        one = looks[0]
        return Message(f"{used}, but look at {one.client}: {_seen(one)}.", _advice(one))
    if looks:
        return Message(
            f"{used}, but look at {_few(looks)}.", "Ask each of them to check what stands below."
        )
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


def _seen(one: Diagnosis) -> str:
    return "; ".join(part for part in (one.fact, one.finding) if part)


def _advice(one: Diagnosis) -> str:
    return f"{_sentence(one.advice)}."


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _was(sites: Sequence[Diagnosis]) -> str:
    return "was" if len(sites) == 1 else "were"


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
