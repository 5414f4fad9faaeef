"""Whether a calibration is what its evidence gives: everything is computed again and compared."""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose
from typing import Any

import msgspec
import numpy as np

from robfcp.calibration.calibrating import calibrate
from robfcp.calibration.calibration import Calibration
from robfcp.calibration.document import wire_level
from robfcp.defence import defence_again
from robfcp.reports import Report

TOLERANCE = 1e-9  # relative; another platform's last digits


@dataclass(frozen=True)
class Difference:
    """One thing that is not as its evidence says."""

    what: str
    stated: Any
    recomputed: Any

    @property
    def line(self) -> str:
        """The difference in words."""
        return f"{self.what} is stated as {self.stated} but its evidence gives {self.recomputed}"


def verify_calibration(calibration: Calibration) -> list[Difference]:
    """What differs between a calibration and what its evidence gives; nothing where it is right.

    Thresholds, tolerances, certificates, verdicts and numbers are computed again from the reports
    in the evidence, with the settings the calibration states.

    Parameters
    ----------
    calibration
        With its evidence.

    Returns
    -------
    list of Difference
        Empty where everything is as stated.

    Raises
    ------
    RobfcpError
        Where the evidence is missing, is another's or contradicts itself, or where the defence was
        an object that no record can make again.

    Examples
    --------
    >>> import robfcp
    >>> from robfcp.calibration import verify_calibration
    >>> federation = robfcp.Federation.from_counts([[9, 1]] * 3)
    >>> verify_calibration(robfcp.calibrate(federation, malicious=0))
    []
    """
    again = _again(calibration)
    found = _compared("", _facts(calibration), _facts(again))
    for number, (own, other) in enumerate(zip(calibration.levels, again.levels, strict=True)):
        name = f"level {float(own.confidence_level):g}" if number or calibration.several else ""
        stated, computed = (msgspec.to_builtins(wire_level(level)) for level in (own, other))
        found += _compared(name, stated, computed)
    stated_scores, computed_scores = calibration.maliciousness, again.maliciousness
    if not np.allclose(stated_scores, computed_scores, rtol=1e-6, equal_nan=True):
        place = int(np.argmax(~np.isclose(stated_scores, computed_scores, rtol=1e-6)))
        name = f"the maliciousness of {calibration.federation.ids[place]}"
        found.append(Difference(name, stated_scores[place], computed_scores[place]))
    return found


def check_own_report(calibration: Calibration, report: Report) -> list[Difference]:
    """What the evidence says otherwise than a site's own report; nothing where it holds it."""
    federation = calibration.federation
    if report.client not in federation.ids:
        outside = {fault.client: fault.reason for fault in federation.faulty}
        said = outside.get(report.client, "no report")
        return [Difference(f"the report of {report.client}", said, "the one given")]
    place = federation.ids.index(report.client)
    found = next(other for k, other in enumerate(federation) if k == place)
    if found == report:
        return []
    return [Difference(f"the report of {report.client}", "another one", "the one given")]


def _again(calibration: Calibration) -> Calibration:
    """The calibration that the evidence's reports give under the stated settings."""
    settings, evidence = calibration.settings, calibration.evidence
    for _ in evidence.federation:  # every report is valid by itself
        pass
    return calibrate(
        evidence.federation,
        confidence_level=[level.confidence_level for level in calibration.levels],
        defence=defence_again(settings.defence, settings.parameters),
        malicious=settings.malicious,
        guarantee=settings.guarantee,
        heterogeneity=settings.heterogeneity,
        exchangeability=settings.exchangeability,
        certificate_confidence=settings.certificate_confidence,
        size_budget=settings.size_budget,  # max_share has left its mark on the evidence
        by=settings.by,
        joint=settings.joint,
        clusters=settings.clusters,
        label_shift=settings.label_shift,
        mix=settings.mix,
    )


def _facts(calibration: Calibration) -> dict[str, Any]:
    """What a calibration says besides its levels."""
    return {
        "n_malicious": calibration.n_malicious,
        "score": repr(calibration.score),
        "summary": msgspec.to_builtins(calibration.summary),
        "flagged": list(calibration.flagged),
    }


def _compared(name: str, stated: Any, computed: Any) -> list[Difference]:
    """The places where two JSON values differ."""
    if isinstance(stated, dict) and isinstance(computed, dict):
        return [
            difference
            for key in sorted({*stated, *computed})
            for difference in _compared(
                f"{name} {key}".strip().replace("_", " "), stated.get(key), computed.get(key)
            )
        ]
    numbers = isinstance(stated, (int, float)) and isinstance(computed, (int, float))
    same = stated == computed or (
        numbers and isclose(stated, computed, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    )
    return [] if same else [Difference(name, stated, computed)]
