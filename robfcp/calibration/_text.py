"""A calibration in words: its thresholds, who was excluded and why, what is certified."""

from __future__ import annotations

from typing import TYPE_CHECKING

from robfcp.calibration._levels import CoverageLevel
from robfcp.certificates import format_loss_upper

if TYPE_CHECKING:
    from robfcp.calibration._calibration import Calibration
    from robfcp.scores import Risk


def target_text(level: CoverageLevel, risk: Risk | None) -> str:
    """Return what was asked for at a level: coverage, or a mean loss in its units.

    Parameters
    ----------
    level : CoverageLevel
        The level.
    risk : Risk or None
        The loss that is controlled in place of coverage, if there is one.
    """
    if risk is None:
        return f"coverage {float(level.coverage):g}"

    # The level of losses is one minus the mean loss accepted, as a fraction of the largest loss.
    max_loss = float(1 - level.coverage) * risk.upper_bound
    return f"a mean {risk.name} of at most {format_loss_upper(max_loss, risk.upper_bound)}"


def threshold_texts(calibration: Calibration) -> list[str]:
    """Return a phrase for the threshold of each level.

    Parameters
    ----------
    calibration : Calibration
        A calibration.
    """
    texts = []
    for level in calibration.levels:
        threshold = f"threshold {level.threshold:.4g}"
        if level.strata:
            threshold = f"{len(level.strata)} thresholds"
        texts.append(f"{threshold} for {target_text(level, calibration.risk)}")
    return texts


def used_clients_text(calibration: Calibration) -> str:
    """Return how many clients the thresholds rest on.

    Parameters
    ----------
    calibration : Calibration
        A calibration.
    """
    summary = calibration.summary
    return f"{summary.n_benign} of {summary.n_clients} sites used"


def summary_lines(calibration: Calibration) -> list[str]:
    """Return thresholds, excluded clients, certificates and notes, a line each.

    Parameters
    ----------
    calibration : Calibration
        A calibration; with its record the lines name clients, else they count them.
    """
    lines = [*threshold_texts(calibration), used_clients_text(calibration)]
    if calibration.record is None:
        lines += _counted_clients_lines(calibration)
    else:
        lines += _named_clients_lines(calibration)
    lines += [f"proved: {level.certificate.statement}" for level in calibration.levels]
    lines += calibration.notes
    return lines


def _counted_clients_lines(calibration: Calibration) -> list[str]:
    """Return how many clients were excluded, rejected or missing, a line for each that some are."""
    summary = calibration.summary
    counts = {
        _exclusion_label(calibration): summary.n_flagged,
        "refused": summary.n_rejected,
        "missing": summary.n_missing,
    }
    return [f"{count} {label}" for label, count in counts.items() if count > 0]


def _named_clients_lines(calibration: Calibration) -> list[str]:
    """Return which clients were excluded, rejected or missing, and why.

    Parameters
    ----------
    calibration : Calibration
        A calibration with its record.
    """
    lines = []
    label = _exclusion_label(calibration)
    if calibration.federation.is_out_of_core:
        # A diagnosis reads whole reports, which are not in memory.
        lines += [f"{label}: {client}: {reason}" for client, reason in calibration.reasons.items()]
    else:
        lines += _diagnosed_clients_lines(calibration, label)
    lines += [f"refused: {rejected.reason}" for rejected in calibration.rejected_reports]
    lines += [f"missing: {client}" for client in calibration.missing_clients]
    return lines


def _diagnosed_clients_lines(calibration: Calibration, label: str) -> list[str]:
    """Return the excluded clients, each with the reason and its likely cause.

    Parameters
    ----------
    calibration : Calibration
        A calibration with its record, whose reports are in memory.
    label : str
        The word for excluded clients, as `_exclusion_label` returns it.
    """
    # Diagnosis stands above calibration in the layers; only printing needs it.
    from robfcp.diagnosis import diagnose

    diagnoses = diagnose(calibration, calibration.flagged_clients)
    lines = []
    for client, reason in calibration.reasons.items():
        explanation = diagnoses[client].with_defense_reason(reason)
        lines.append(f"{label}: {client}: {explanation}")
    if diagnoses:
        lines.append("robfcp.diagnose also tells who else deserves a look")
    return lines


def _exclusion_label(calibration: Calibration) -> str:
    """Return the word for excluded clients: a guaranteed threshold rests on them too."""
    if calibration.is_guaranteed:
        return "flagged"
    return "left out"
