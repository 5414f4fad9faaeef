"""The sentences of the page: who was left out, what is certified, what became of the reports."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from robfcp.calibration import Calibration, CoverageLevel
from robfcp.certificates import format_lower
from robfcp.diagnosis import Diagnosis
from robfcp.page._format import (
    capitalize,
    enumerate_in_words,
    format_mean_loss,
    format_percent,
    pluralize,
)
from robfcp.page._impact import benign_coverages

MAX_NAMED = 4  # sites that the first sentence names with their cause


def summary_text(calibration: Calibration, diagnoses: Mapping[str, Diagnosis]) -> dict[str, str]:
    """Return who was left out, else who deserves a look, else that nothing stands out.

    Of one client also what to do; of more the page has cards.

    Parameters
    ----------
    calibration : Calibration
        For the number of clients and what leaving out is called.
    diagnoses : mapping of str to Diagnosis
        What was diagnosed, by client.

    Returns
    -------
    dict
        "first" and "then", the first sentence and the next.
    """
    excluded = [diagnosis for diagnosis in diagnoses.values() if not diagnosis.trusted]
    suspicious = [diagnosis for diagnosis in diagnoses.values() if diagnosis.trusted]
    if excluded:
        first = _excluded_text(calibration, excluded)
    else:
        first = _all_used_text(calibration.federation.n_clients, suspicious)

    advice = ""
    listed = excluded or suspicious
    if len(listed) == 1:
        advice = f"{capitalize(listed[0].advice)}."
    return {"first": first, "then": advice}


def _excluded_text(calibration: Calibration, excluded: Sequence[Diagnosis]) -> str:
    """Return which clients were excluded, and why."""
    verdict = "flagged" if calibration.is_guaranteed else "left out"
    if len(excluded) == 1:
        return f"{excluded[0].client} was {verdict}: {excluded[0].observation}."
    n_clients = calibration.federation.n_clients
    return f"{len(excluded)} of {n_clients} sites were {verdict}: {_causes_text(excluded)}."


def _all_used_text(n_clients: int, suspicious: Sequence[Diagnosis]) -> str:
    """Return that all clients were used, and which of them deserve a look."""
    all_used = "The one site was used" if n_clients == 1 else f"All {n_clients} sites were used"
    if not suspicious:
        reports = "its report" if n_clients == 1 else "their reports"
        return f"{all_used}; nothing in {reports} looks wrong."

    if len(suspicious) == 1:
        reasons = f"{suspicious[0].client}: {suspicious[0].observation}"
    elif len(suspicious) <= MAX_NAMED:
        reasons = _causes_text(suspicious)
    else:
        reasons = f"{len(suspicious)} of them: {_causes_text(suspicious)}"
    return f"{all_used}, but look at {reasons}."


def _causes_text(diagnoses: Sequence[Diagnosis]) -> str:
    """Return up to four clients with their causes; of more how often each cause is, and the worst.

    The worst is named only where it is covered less than was asked for.
    """
    if len(diagnoses) <= MAX_NAMED:
        names = [f"{diagnosis.client} ({diagnosis.summary})" for diagnosis in diagnoses]
        return enumerate_in_words(names)

    causes = Counter(
        diagnosis.cause.replace("not told", "cause unclear") for diagnosis in diagnoses
    )
    if len(causes) == 1:
        text = f"{next(iter(causes))} at each of them"
    else:
        text = enumerate_in_words([f"{cause} at {count}" for cause, count in causes.most_common()])

    worst = min(diagnoses, key=_coverage_or_infinity)
    if not worst.coverage_text or worst.covered >= worst.wanted:
        return text
    return f"{text}. The worst is {worst.client}: {worst.coverage_text}"


def _coverage_or_infinity(diagnosis: Diagnosis) -> float:
    """Return what a client's own cases are covered; infinity where noise hides it."""
    return math.inf if math.isnan(diagnosis.covered) else diagnosis.covered


def headline_text(calibration: Calibration, level: CoverageLevel) -> dict[str, str]:
    """Return the top of the page for one level.

    Parameters
    ----------
    calibration : Calibration
        A calibration with its record.
    level : CoverageLevel
        One of its levels.

    Returns
    -------
    dict
        "claim" is what is guaranteed or aimed at, "used" what is covered of the benign clients'
        cases, "promise" the exact certificate, "reports" what became of the reports.
    """
    target = _target_text(calibration, level)
    if calibration.is_guaranteed:
        claim = _guaranteed_text(calibration, level, target)
    else:
        claim = _defended_text(calibration, level, target)
    return {
        "claim": claim,
        "used": _covered_text(calibration, level),
        "promise": _certificate_text(calibration, level),
        "reports": _reports_text(calibration),
    }


def _target_text(calibration: Calibration, level: CoverageLevel) -> str:
    """Return what was asked for: coverage, of every class or group, or a mean loss."""
    if calibration.risk is not None:
        return calibration.target_text(level)
    target = f"{format_percent(float(level.coverage))} coverage"
    if calibration.by is not None:
        target += f" of every {calibration.by}"
    return target


def _guaranteed_text(calibration: Calibration, level: CoverageLevel, target: str) -> str:
    """Return what is guaranteed, and against whom."""
    certificate = level.certificate
    if certificate.samples is not None:
        samples = f"at most {certificate.samples} samples together"
        condition = f"even if any sites that hold {samples} lie"
    elif certificate.m == 0:
        condition = "if nobody lies"
    else:
        condition = f"even if any {certificate.m} of {certificate.n_clients} sites lie"

    confidence = ""
    if certificate.confidence is not None:
        confidence = f" with {format_lower(certificate.confidence)} confidence"
    claim = f"{capitalize(target)} is guaranteed{confidence} {condition}"
    if level.is_trivial:
        return f"{claim}, but only because every prediction set is full"

    n_flagged = len(calibration.flagged_clients)
    flagged = pluralize(n_flagged, "site") if n_flagged else "no site"
    return f"{claim}; {flagged} flagged"


def _defended_text(calibration: Calibration, level: CoverageLevel, target: str) -> str:
    """Return what the threshold aims at, and from how many clients."""
    if level.is_trivial:
        return f"Too few samples for {target}: every prediction set is full"

    n_flagged = len(calibration.flagged_clients)
    n_clients = calibration.federation.n_clients
    if n_flagged > 0:
        clients = f"the {n_clients - n_flagged} of {n_clients} sites that were used"
    elif n_clients > 1:
        clients = f"all {n_clients} sites"
    else:
        clients = "the one site"
    aim = "The thresholds aim" if calibration.by else "The threshold aims"
    return f"{aim} at {target}, from {clients}"


def _covered_text(calibration: Calibration, level: CoverageLevel) -> str:
    """Return how much of the benign clients' reported cases is covered."""
    coverage = benign_coverages(calibration, level).item()
    if calibration.risk is None:
        covered = f"{format_percent(coverage)} are covered"
    else:
        loss = format_mean_loss(calibration.risk, coverage)
        covered = f"the mean {calibration.risk.name} is {loss}"
    kind = "unflagged" if calibration.is_guaranteed else "used"
    sites = pluralize(len(calibration.benign_clients), f"{kind} site")
    return f"Of the cases that the {sites} reported, {covered}."


def _certificate_text(calibration: Calibration, level: CoverageLevel) -> str:
    """Return the certificate's statement, and where a defense's threshold certifies too little."""
    text = f"{capitalize(level.certificate.statement)}."
    if calibration.is_guaranteed:
        return text
    if level.vacuous_from is not None:
        text += f" From {pluralize(level.vacuous_from, 'liar')} on nothing is proved."
    if level.certificate.lower < level.coverage:
        text += " The wanted level itself is not proved."
    return text


def _reports_text(calibration: Calibration) -> str:
    """Return how many valid reports and samples there are, and what became of all reports."""
    federation = calibration.federation
    n_used = len(calibration.benign_clients)
    n_excluded = len(calibration.flagged_clients)
    n_rejected = len(calibration.rejected_reports)
    n_missing = len(calibration.missing_clients)

    counts = [f"{n_used} used", f"{n_excluded} left out"]
    if calibration.is_guaranteed:
        counts = [f"{n_used} unflagged", f"{n_excluded} flagged"]
    if n_rejected:
        counts.append(f"{n_rejected} refused as faulty")
    if n_missing:
        counts.append(f"{n_missing} missing")

    reports = pluralize(federation.n_clients, "valid report")
    return f"{reports} with {federation.n_samples:,} samples; {', '.join(counts)}."


def reading_notes(calibration: Calibration) -> Iterator[str]:
    """Yield what to know of a page of losses, of class totals, or with a threshold a class."""
    risk = calibration.risk
    if risk is not None:
        divisor = "" if risk.bound == 1 else f" / {risk.bound:g}"
        yield (
            "These reports hold losses: what charts call the share of scores at or below a "
            f"threshold is 1 - mean {risk.name}{divisor} there."
        )
    if calibration.by is not None:
        yield (
            f"There is a threshold for each {calibration.by}; the charts above the table show the "
            "largest of them."
        )
    if calibration.federation.class_totals is not None and calibration.by is None:
        yield (
            "Reports state how many samples of each class a site has, rounded, and no counts by "
            "class: nothing is said by class of these sites. Reports made with --by-class "
            "(stratify_by_class=True) allow it."
        )
