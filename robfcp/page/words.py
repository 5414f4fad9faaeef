"""The page's sentences: what is guaranteed, what is not, in plain words."""

from __future__ import annotations

import math
from dataclasses import dataclass

from robfcp.calibration import Calibration, Level
from robfcp.guarantees import at_least, loss_at_most, tolerance_statement


@dataclass(frozen=True)
class Headline:
    """What holds, the exact promise, and what became of the reports."""

    claim: str
    promise: str
    reports: str


def headline(calibration: Calibration, level: Level) -> Headline:
    """The top of the page for one confidence level."""
    if calibration.settings.guarantee is None:
        promise = f"{_sentence(level.certificate.statement)}."
        return Headline(_defended(calibration, level), promise, _reports(calibration))
    promise = f"{_sentence(tolerance_statement(level.tolerance, level.confidence_level))}."
    return Headline(_guaranteed(calibration, level), promise, _reports(calibration))


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]


def percent(share: float) -> str:
    """A share as a percentage of at most four digits; not for what is proved."""
    return f"{100 * share:.4g}%"


def _wanted(calibration: Calibration, level: Level) -> str:
    """What was asked for: coverage, or a mean loss."""
    if calibration.risk is None:
        every = f" of every {calibration.by}" if calibration.by else ""
        return f"{percent(float(level.confidence_level))} coverage{every}"
    bound = calibration.risk.bound
    most = loss_at_most(float(1 - level.confidence_level) * bound, bound)
    return f"a mean {calibration.risk.name} of at most {most}"


def loss_notes(calibration: Calibration) -> tuple[str, ...]:
    """How to read a page of losses, which speaks of coverage throughout."""
    if calibration.risk is None:
        return ()
    bound = "" if calibration.risk.bound == 1 else f" / {calibration.risk.bound:g}"
    return (f"These reports hold losses: coverage is 1 - {calibration.risk.name}{bound}.",)


def count(number: int, word: str) -> str:
    """'1 site', '2 sites'."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _guaranteed(calibration: Calibration, level: Level) -> str:
    settings, certificate = calibration.settings, level.certificate
    sure = "" if certificate.confidence is None else f" with {at_least(certificate.confidence)}"
    sure += " confidence" if sure else ""
    if settings.malicious == "estimate":
        whom = f"any sites that hold at most {settings.size_budget} samples together lie"
    elif certificate.m == 0:
        whom = ""
    else:
        whom = f"any {certificate.m} of {certificate.n_clients} sites lie"
    condition = f"even if {whom}" if whom else "if nobody lies"
    every = f" of every {certificate.by}" if certificate.by else ""
    promised = f"{at_least(certificate.lower)} coverage{every}"
    if certificate.risk:
        promised = f"A mean {certificate.risk} of at most "
        promised += loss_at_most((1 - certificate.lower) * certificate.bound, certificate.bound)
    claim = f"{promised} is guaranteed{sure} {condition}"
    if math.isinf(level.threshold):
        return f"{claim}, but only because every prediction set is full"
    flagged = len(calibration.flagged)
    if not flagged:
        return f"{claim}; no site was flagged"
    return f"{claim}; {count(flagged, 'site')} {'was' if flagged == 1 else 'were'} flagged"


def _defended(calibration: Calibration, level: Level) -> str:
    wanted = _wanted(calibration, level)
    flagged, clients = len(calibration.flagged), calibration.federation.n_clients
    if math.isinf(level.threshold):
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
    out = "left out" if calibration.settings.guarantee is None else "flagged"
    words = (
        f"{count(federation.n_clients, 'valid report')} with {federation.n_samples:,} samples; "
        f"{len(calibration.trusted)} used, {len(calibration.flagged)} {out}"
    )
    if calibration.faulty:
        words += f", {len(calibration.faulty)} refused as faulty"
    if calibration.missing:
        words += f", {len(calibration.missing)} missing"
    return words + "."
