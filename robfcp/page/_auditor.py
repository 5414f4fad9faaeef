"""What an auditor asks of a calibration, and the answers."""

from __future__ import annotations

from robfcp.calibration import Calibration
from robfcp.guarantees import breakdown_point_of_any_rule
from robfcp.page._impact import fcp_threshold

MIN_CLIENTS_TO_DETECT = 10  # with fewer, an outlier has too few peers to stand out from


def auditor_questions(calibration: Calibration, summary: str) -> dict[str, str]:
    """Return who is left out, what is certified and estimated, how, and what would change it.

    Parameters
    ----------
    calibration : Calibration
        A calibration with its record.
    summary : str
        The sentence that says who is left out.
    """
    defense = calibration.require_record().defense
    origin = "read off the reports"
    if calibration.n_malicious_given:
        origin = "stated before the reports"
    verification = "robfcp verify calibration.json, the record beside it, computes it all again"
    return {
        "who is left out": f"{summary} Decided by {defense}; reasons are in the cards above",
        "proved": calibration.levels[0].certificate.statement,
        "estimated": "the harm averted, the shares covered, oddness and diagnosis: from reports",
        "number of liars": f"{calibration.n_malicious}, {origin}",
        "threshold": _threshold_answer(calibration),
        "what would change it": _sensitivity_answer(calibration),
        "to verify": f"{verification}; compare the digests below",
    }


def _threshold_answer(calibration: Calibration) -> str:
    """Return which rule made the threshold."""
    text = _threshold_rule_text(calibration)
    if calibration.require_record().trusted_report is not None:
        text += "; held within what the server's own sample allows"
    return text


def _threshold_rule_text(calibration: Calibration) -> str:
    """Return the rule of the guarantee, else of the defense."""
    record = calibration.require_record()
    federation = calibration.federation
    if calibration.is_guaranteed:
        return "the promise's: the least that keeps it, whatever the liars report"
    if record.defense.startswith("custom:"):
        return "that of the defence that was passed, FCP's where it has none"

    # Without strata, noise and losses in parts, the clipped vote of Consensus makes the threshold.
    is_pooled_and_exact = calibration.by is None and not federation.has_noise
    if record.defense == "consensus" and is_pooled_and_exact and federation.counts_per_sample == 1:
        level = calibration.levels[0]
        fcp = fcp_threshold(federation, calibration.benign_mask, level)
        decisive = "the vote decides" if level.threshold > fcp else "FCP's decides"
        return (
            "the vote of the sites that were used, never below FCP's threshold on them; here "
            f"{decisive}"
        )

    text = "FCP's, on the reports of the sites that were used"
    if calibration.by is not None:
        text += f", for each {calibration.by}"
    return text


def _sensitivity_answer(calibration: Calibration) -> str:
    """Return what would change the result, and from how many malicious clients on."""
    federation = calibration.federation
    level = calibration.levels[0]
    clauses = [
        "another number of liars (robfcp show -m), a trusted sample (--anchor), corrected reports"
    ]

    if calibration.is_guaranteed:
        clauses.append("nothing is promised if more lie than stated")
    else:
        too_low = [point.m for point in level.certificate_points if point.lower < level.coverage]
        if too_low:
            clauses.append(f"what is proved is below the level from {too_low[0]} liars on")

    breakdown_point = breakdown_point_of_any_rule(federation.sample_sizes, level.coverage)
    if breakdown_point is not None:
        clauses.append(
            f"{breakdown_point} or more liars could fill every set under a promise, unless how "
            "alike sites are is stated (--alike)"
        )
    if federation.n_clients < MIN_CLIENTS_TO_DETECT:
        clauses.append("more sites: below ten detection is weak")
    return "; ".join(clauses)
