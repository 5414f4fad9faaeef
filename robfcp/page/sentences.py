"""The page's first sentence: who was left out or deserves a look, why, and what to do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from robfcp.calibration import Calibration, Level
from robfcp.certificate import at_least
from robfcp.diagnosis import Diagnosis

NAMED = 4  # sites that the first sentence names with their cause
GROUPS = 4  # diagnoses that the advice spells out
LISTED = 6  # sites that it names of each


def message(calibration: Calibration, found: Mapping[str, Diagnosis]) -> dict[str, str]:
    """The first sentence, and what to do about it, a line for each thing.

    Names first: those left out, else those to look at, else that nothing stands out.
    """
    out = [one for one in found.values() if not one.trusted]
    looks = [one for one in found.values() if one.trusted]
    clients, then = calibration.federation.n_clients, ""
    used = "The one site was used" if clients == 1 else f"All {clients} sites were used"
    verdict = "flagged" if calibration.promised else "left out"
    if out:
        first = f"{len(out)} of {clients} sites were {verdict}: {_worst(out)}."
        if len(out) == 1:
            first = f"{out[0].client} was {verdict}: {out[0].seen}."
    elif looks:
        whom = "" if len(looks) <= NAMED else f"{len(looks)} of them: "
        whom = f"{looks[0].client}: {looks[0].seen}" if len(looks) == 1 else whom + _worst(looks)
        first = f"{used}, but look at {whom}."
    else:
        report = "its report" if clients == 1 else "their reports"
        first = f"{used}; nothing in {report} looks wrong."
    if told := out or looks:
        then = _advice(told[0]) if len(told) == 1 else _to_do(told)
    if looks and out:
        was = "was" if len(looks) == 1 else "were"
        then += " " if len(out) == 1 else "\n"
        then += f"Also look at {_names(looks)}, which {was} used."
    return {"first": first, "then": then}


def diagnoses_data(found: Mapping[str, Diagnosis]) -> dict[str, dict[str, Any]]:
    """What the page shows of each diagnosis."""
    return {
        client: {
            "cause": _cause(one),
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


def _worst(sites: Sequence[Diagnosis]) -> str:
    """Up to four by name with their cause; of more what was found how often, and the worst."""
    if len(sites) <= NAMED:
        return _listed([f"{one.client} ({one.short})" for one in sites])
    kinds = _kinds(sites)
    if len({*map(_cause, sites)}) == 1:
        kinds = f"{_cause(sites[0])} at each of them"
    low = min(sites, key=lambda one: math.inf if math.isnan(one.covered) else one.covered)
    if not low.fact or low.covered >= low.wanted:
        return kinds
    return f"{kinds}. The worst is {low.client}: {low.fact}"


def _cause(one: Diagnosis) -> str:
    return "cause unclear" if one.cause == "not told" else one.cause


def _to_do(sites: Sequence[Diagnosis]) -> str:
    """What to check, once for all sites of which the same is said; the largest groups first."""
    groups: dict[tuple[str, str], list[Diagnosis]] = {}
    for one in sites:
        groups.setdefault((one.short, one.advice), []).append(one)
    ordered = sorted(groups.values(), key=len, reverse=True)
    told = [f"{_names(group)} ({group[0].short}): {group[0].advice}." for group in ordered[:GROUPS]]
    rest = [one for group in ordered[GROUPS:] for one in group]
    return "\n".join([*told, *([f"{_names(rest)}: see below."] if rest else [])])


def _names(sites: Sequence[Diagnosis]) -> str:
    names = [one.client for one in sites]
    if len(names) > LISTED:
        names[LISTED - 1 :] = [f"{len(names) - LISTED + 1} more"]
    return _listed(names)


def _kinds(sites: Sequence[Diagnosis]) -> str:
    """What was found, and at how many."""
    causes = Counter(map(_cause, sites)).most_common()
    return _listed([f"{cause} at {number}" for cause, number in causes])


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def headline(calibration: Calibration, level: Level) -> dict[str, str]:
    """The top of the page for one level: what was promised, or how much is proved up to where; the
    exact promise; and what became of the reports."""
    promise = f"{_sentence(level.certificate.statement)}."
    if calibration.promised:
        claim = _guaranteed(calibration, level)
    else:
        claim = _defended(calibration, level)
        if level.empty_from is not None:
            promise += f" From {count(level.empty_from, 'liar')} on nothing is proved."
    return {"claim": claim, "promise": promise, "reports": _reports(calibration)}


def percent(share: float) -> str:
    """A share as a percentage of at most four digits; not for what is proved."""
    return f"{100 * share:.4g}%"


def _wanted(calibration: Calibration, level: Level) -> str:
    """What was asked for: coverage, or a mean loss."""
    if calibration.risk is not None:
        return calibration.wanted(level)
    every = f" of every {calibration.by}" if calibration.by else ""
    return f"{percent(float(level.coverage))} coverage{every}"


def how_to_read(calibration: Calibration) -> Iterator[str]:
    """What to know of a page of losses, or with a threshold for each class."""
    if calibration.risk is not None:
        bound = "" if calibration.risk.bound == 1 else f" / {calibration.risk.bound:g}"
        yield (
            "These reports hold losses: what charts call the share of scores at or below a "
            f"threshold is 1 - mean {calibration.risk.name}{bound} there."
        )
    if calibration.by is not None:
        yield (
            f"There is a threshold for each {calibration.by}; the sliders and charts above the "
            "table speak of one threshold for all of them."
        )


def count(number: int, word: str) -> str:
    """'1 site', '2 sites'."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _guaranteed(calibration: Calibration, level: Level) -> str:
    certificate = level.certificate
    condition = f"even if any {certificate.m} of {certificate.n_clients} sites lie"
    if certificate.samples is not None:
        held = f"at most {certificate.samples} samples together"
        condition = f"even if any sites that hold {held} lie"
    elif certificate.m == 0:
        condition = "if nobody lies"
    sure = ""
    if certificate.confidence is not None:
        sure = f" with {at_least(certificate.confidence)} confidence"
    promised = _sentence(_wanted(calibration, level))
    claim, flagged = f"{promised} is guaranteed{sure} {condition}", len(calibration.flagged)
    if level.full:
        return f"{claim}, but only because every prediction set is full"
    return f"{claim}; {count(flagged, 'site') if flagged else 'no site'} flagged"


def _defended(calibration: Calibration, level: Level) -> str:
    wanted = _wanted(calibration, level)
    flagged, clients = len(calibration.flagged), calibration.federation.n_clients
    if level.full:
        return f"Too few samples for {wanted}: every prediction set is full"
    if flagged == 0:
        whom = f"all {clients} sites" if clients > 1 else "the one site"
    else:
        whom = f"the {clients - flagged} of {clients} sites that were kept"
    aim = "The thresholds aim" if calibration.by else "The threshold aims"
    return f"{aim} at {wanted}, from {whom}"


def _reports(calibration: Calibration) -> str:
    """Who reported, and who did not."""
    federation = calibration.federation
    out = "flagged" if calibration.promised else "left out"
    numbers = {"used": len(calibration.trusted), out: len(calibration.flagged)}
    gone = {"refused as faulty": len(calibration.faulty), "missing": len(calibration.missing)}
    numbers |= {word: number for word, number in gone.items() if number}
    words = ", ".join(f"{number} {word}" for word, number in numbers.items())
    valid = count(federation.n_clients, "valid report")
    return f"{valid} with {federation.n_samples:,} samples; {words}."
