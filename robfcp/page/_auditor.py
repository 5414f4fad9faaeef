"""The questions of an auditor about a calibration, and the answers."""

from __future__ import annotations

from robfcp.calibration import Calibration
from robfcp.guarantees import breakdown_point_of_any_rule
from robfcp.page._format import pluralize
from robfcp.page._impact import fcp_threshold

MIN_CLIENTS_TO_DETECT = 10  # with fewer, an outlier has too few peers to differ from


def auditor_questions(calibration: Calibration, summary: str) -> dict[str, str]:
    """Return which clients are excluded, what is certified and estimated, and what would change it.

    Parameters
    ----------
    calibration : Calibration
        A calibration with its record.
    summary : str
        The sentence on the excluded clients.
    """
    defense = calibration.require_record().defense
    origin = "estimated from the reports"
    if calibration.max_malicious is not None:
        origin = "given before the round"
    verification = "robfcp verify calibration.json, the record beside it, repeats the computation"
    return {
        "excluded sites": f"{summary} Decided by {defense}; reasons are in the cards above",
        "certified": calibration.levels[0].certificate.statement,
        "estimated": "impact, coverage of reported cases, maliciousness, diagnoses: from reports",
        "number of malicious sites": f"{calibration.n_malicious}, {origin}",
        "threshold": _threshold_answer(calibration),
        "what would change it": _sensitivity_answer(calibration),
        "to verify": f"{verification}; compare the digests below",
    }


def _threshold_answer(calibration: Calibration) -> str:
    """Return how the threshold was computed."""
    text = _threshold_rule_text(calibration)
    if calibration.require_record().trusted_report is not None:
        text += "; kept within the bounds of the server's trusted data"
    return text


def _threshold_rule_text(calibration: Calibration) -> str:
    """Return the threshold rule of the guarantee, else of the defense."""
    record = calibration.require_record()
    federation = calibration.federation
    if calibration.is_guaranteed:
        return "the guarantee's: the smallest that keeps it, whatever malicious sites report"
    if record.defense.startswith("custom:"):
        return "that of the given defense, FCP's if it has none"

    # Of pooled exact counts, one per sample, the clipped vote of Consensus makes the threshold.
    is_pooled_and_exact = calibration.by is None and not federation.has_noise
    if record.defense == "consensus" and is_pooled_and_exact and federation.counts_per_sample == 1:
        level = calibration.levels[0]
        fcp = fcp_threshold(federation, calibration.benign_mask, level)
        decisive = "the vote decides" if level.threshold > fcp else "FCP's threshold decides"
        return (
            "the clipped vote of the included sites, never below FCP's threshold on them; here "
            f"{decisive}"
        )

    text = "FCP's, on the reports of the included sites"
    if calibration.by is not None:
        text += f", for each {calibration.by}"
    return text


def _sensitivity_answer(calibration: Calibration) -> str:
    """Return what would change the result, and from how many malicious clients on."""
    federation = calibration.federation
    level = calibration.levels[0]
    clauses = [
        "another number of malicious sites (robfcp show -m), trusted data (--trusted-data), "
        "corrected reports"
    ]

    if calibration.is_guaranteed:
        clauses.append("nothing is guaranteed if more sites are malicious than given")
    else:
        too_low = [
            point.max_malicious
            for point in level.certificate_points
            if point.lower < level.coverage
        ]
        if too_low:
            n_malicious = pluralize(too_low[0], "malicious site")
            clauses.append(f"the certificate is below the target from {n_malicious} on")

    breakdown_point = breakdown_point_of_any_rule(federation.sample_sizes, level.coverage)
    if breakdown_point is not None:
        clauses.append(
            f"{breakdown_point} or more malicious sites could make every set trivial under a "
            "guarantee, unless the heterogeneity between sites is given (--heterogeneity)"
        )
    if federation.n_clients < MIN_CLIENTS_TO_DETECT:
        clauses.append("more sites: with fewer than ten, detection is weak")
    return "; ".join(clauses)
