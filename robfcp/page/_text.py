"""The sentences of the page: excluded clients, certificate, and the status of the reports."""

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

MAX_NAMED = 4  # clients that the first sentence names with their cause


def summary_text(calibration: Calibration, diagnoses: Mapping[str, Diagnosis]) -> dict[str, str]:
    """Return which clients were excluded, else which are suspicious, else that none is unusual.

    For a single client also what to do; for more the page has cards.

    Parameters
    ----------
    calibration : Calibration
        For the number of clients and the verdict of the excluded ones.
    diagnoses : mapping of str to Diagnosis
        The diagnoses, by client.

    Returns
    -------
    dict
        "sentence" and "recommendation".
    """
    excluded = [diagnosis for diagnosis in diagnoses.values() if not diagnosis.is_benign]
    suspicious = [diagnosis for diagnosis in diagnoses.values() if diagnosis.is_benign]
    if excluded:
        sentence = _excluded_text(calibration, excluded)
    else:
        sentence = _all_included_text(calibration.federation.n_clients, suspicious)

    recommendation = ""
    listed = excluded or suspicious
    if len(listed) == 1:
        recommendation = f"{capitalize(listed[0].recommendation)}."
    return {"sentence": sentence, "recommendation": recommendation}


def _excluded_text(calibration: Calibration, excluded: Sequence[Diagnosis]) -> str:
    """Return which clients were excluded, and why."""
    verdict = "flagged" if calibration.is_guaranteed else "excluded"
    if len(excluded) == 1:
        return f"{excluded[0].client} was {verdict}: {excluded[0].observation}."
    n_clients = calibration.federation.n_clients
    return f"{len(excluded)} of {n_clients} sites were {verdict}: {_causes_text(excluded)}."


def _all_included_text(n_clients: int, suspicious: Sequence[Diagnosis]) -> str:
    """Return that all clients were included, and which of them are suspicious."""
    all_included = f"All {n_clients} sites were included"
    if n_clients == 1:
        all_included = "The only site was included"
    if not suspicious:
        reports = "its report" if n_clients == 1 else "their reports"
        return f"{all_included}; nothing in {reports} is suspicious."

    if len(suspicious) == 1:
        reasons = f"{suspicious[0].client} is suspicious: {suspicious[0].observation}"
    elif len(suspicious) <= MAX_NAMED:
        reasons = f"{_causes_text(suspicious)} are suspicious"
    else:
        reasons = f"{len(suspicious)} of them are suspicious: {_causes_text(suspicious)}"
    return f"{all_included}, but {reasons}."


def _causes_text(diagnoses: Sequence[Diagnosis]) -> str:
    """Return up to four clients with their causes; for more the count of each cause, and the worst.

    The worst is named only if its coverage is below the target.
    """
    if len(diagnoses) <= MAX_NAMED:
        names = [f"{diagnosis.client} ({diagnosis.summary})" for diagnosis in diagnoses]
        return enumerate_in_words(names)

    causes = Counter(
        diagnosis.cause.replace("unexplained", "cause unclear") for diagnosis in diagnoses
    )
    if len(causes) == 1:
        text = f"{next(iter(causes))} at each of them"
    else:
        text = enumerate_in_words([f"{cause} at {count}" for cause, count in causes.most_common()])

    worst = min(diagnoses, key=_coverage_or_infinity)
    if not worst.coverage_text or worst.coverage >= worst.target_coverage:
        return text
    return f"{text}. The worst is {worst.client}: {worst.coverage_text}"


def _coverage_or_infinity(diagnosis: Diagnosis) -> float:
    """Return the coverage of a client's reported samples; infinity if noise hides it."""
    return math.inf if math.isnan(diagnosis.coverage) else diagnosis.coverage


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
        "claim" is what is guaranteed or aimed at, "coverage" that of the benign clients' reported
        cases, "certificate" its exact statement, "reports" the number of reports by status.
    """
    target = _target_text(calibration, level)
    if calibration.is_guaranteed:
        claim = _guaranteed_text(calibration, level, target)
    else:
        claim = _defended_text(calibration, level, target)
    return {
        "claim": claim,
        "coverage": _coverage_text(calibration, level),
        "certificate": _certificate_text(calibration, level),
        "reports": _reports_text(calibration),
    }


def _target_text(calibration: Calibration, level: CoverageLevel) -> str:
    """Return the target: coverage, of every class or group, or a mean loss."""
    if calibration.risk is not None:
        return calibration.target_text(level)
    target = f"{format_percent(float(level.coverage))} coverage"
    if calibration.by is not None:
        target += f" of every {calibration.by}"
    return target


def _guaranteed_text(calibration: Calibration, level: CoverageLevel, target: str) -> str:
    """Return what is guaranteed, and against whom."""
    certificate = level.certificate
    if certificate.max_malicious_samples is not None:
        samples = f"at most {certificate.max_malicious_samples} samples together"
        condition = f"even if any sites that hold {samples} are malicious"
    elif certificate.max_malicious == 0:
        condition = "if all sites are benign"
    else:
        sites = f"any {certificate.max_malicious} of {certificate.n_clients} sites"
        condition = f"even if {sites} are malicious"

    confidence = ""
    if certificate.confidence is not None:
        confidence = f" with {format_lower(certificate.confidence)} confidence"
    claim = f"{capitalize(target)} is guaranteed{confidence} {condition}"
    if level.is_trivial:
        return f"{claim}, but only because every prediction set is trivial (contains all labels)"

    n_flagged = len(calibration.flagged_clients)
    flagged = pluralize(n_flagged, "site") if n_flagged else "no site"
    return f"{claim}; {flagged} flagged"


def _defended_text(calibration: Calibration, level: CoverageLevel, target: str) -> str:
    """Return what the threshold aims at, and from how many clients."""
    if level.is_trivial:
        return f"Too few samples for {target}: every prediction set contains all labels"

    n_flagged = len(calibration.flagged_clients)
    n_clients = calibration.federation.n_clients
    if n_flagged > 0:
        clients = f"the {n_clients - n_flagged} of {n_clients} sites that were included"
    elif n_clients > 1:
        clients = f"all {n_clients} sites"
    else:
        clients = "the only site"
    aim = "The thresholds aim" if calibration.by else "The threshold aims"
    return f"{aim} at {target}, from {clients}"


def _coverage_text(calibration: Calibration, level: CoverageLevel) -> str:
    """Return the coverage of the benign clients' reported cases."""
    coverage = benign_coverages(calibration, level).item()
    if calibration.risk is None:
        text = f"{format_percent(coverage)} are covered"
    else:
        loss = format_mean_loss(calibration.risk, coverage)
        text = f"the mean {calibration.risk.name} is {loss}"
    kind = "unflagged" if calibration.is_guaranteed else "included"
    sites = pluralize(len(calibration.benign_clients), f"{kind} site")
    return f"Of the cases that the {sites} reported, {text}."


def _certificate_text(calibration: Calibration, level: CoverageLevel) -> str:
    """Return the certificate's statement, and from where on it certifies too little."""
    text = f"{capitalize(level.certificate.statement)}."
    if calibration.is_guaranteed:
        return text
    if level.vacuous_from is not None:
        n_malicious = pluralize(level.vacuous_from, "malicious site")
        text += f" From {n_malicious} on the certificate is vacuous."
    if level.certificate.lower < level.coverage:
        text += " The target itself is not certified."
    return text


def _reports_text(calibration: Calibration) -> str:
    """Return the number of valid reports and samples, and that of all reports by status."""
    federation = calibration.federation
    n_benign = len(calibration.benign_clients)
    n_flagged = len(calibration.flagged_clients)
    n_rejected = len(calibration.rejected_reports)
    n_missing = len(calibration.missing_clients)

    counts = [f"{n_benign} included", f"{n_flagged} excluded"]
    if calibration.is_guaranteed:
        counts = [f"{n_benign} unflagged", f"{n_flagged} flagged"]
    if n_rejected:
        counts.append(f"{n_rejected} rejected")
    if n_missing:
        counts.append(f"{n_missing} missing")

    reports = pluralize(federation.n_clients, "valid report")
    return f"{reports} with {federation.n_samples:,} samples; {', '.join(counts)}."


def reading_notes(calibration: Calibration) -> Iterator[str]:
    """Yield notes on a page of losses, of class totals, or with a threshold per class."""
    risk = calibration.risk
    if risk is not None:
        divisor = "" if risk.upper_bound == 1 else f" / {risk.upper_bound:g}"
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
            "class: the page has no results by class for these sites. Reports made with "
            "--stratify-by-class (stratify_by_class=True) allow them."
        )
