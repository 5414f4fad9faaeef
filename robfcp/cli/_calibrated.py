"""A calibration as `robfcp calibrate` tells it: tables for people, one object for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from robfcp.calibration import Calibration, Level
from robfcp.certificate import Certificate, CurvePoint, at_least, at_most
from robfcp.cli._common import Printer
from robfcp.cli._sites import show_sites
from robfcp.diagnosis import Diagnosis
from robfcp.guarantees import outside_of

SHOWN_STRATA = 20


def show(calibration: Calibration, found: Mapping[str, Diagnosis], printer: Printer) -> None:
    """The calibration for people."""
    federation = calibration.federation
    printer.table(
        f"{federation.n_clients} sites, {federation.n_samples} samples, "
        f"defence {calibration.settings.defence}",
        ["level", "threshold", "trusted", "flagged", "faulty", "proved"],
        [
            (
                f"{float(level.coverage):g}",
                float(level.threshold),
                len(calibration.trusted),
                len(calibration.flagged),
                len(calibration.faulty),
                _proved(level.certificate),
            )
            for level in calibration.levels
        ],
    )
    for level in calibration.levels:
        if level.strata:
            _show_strata(level, printer)
        printer.line(f"At {float(level.coverage):g}: {level.certificate.statement}.")
        if len(level.curve) > 1:
            printer.line(f"Proved whatever the liars do: {_curve(level)}.")
    for note in calibration.remarks:
        printer.line(note)
    show_sites(calibration, found, printer)


def _show_strata(level: Level, printer: Printer) -> None:
    """The thresholds by class or group; of many, those that are least protected and worst."""
    worst = sorted(level.strata, key=lambda one: (not one.protection, one.certificate.lower))
    shown = [one for one in level.strata if one in worst[:SHOWN_STRATA]]
    by = level.certificate.by
    more = f", {SHOWN_STRATA} of {len(level.strata)} shown" if len(shown) < len(worst) else ""
    printer.table(
        f"by {by} at {float(level.coverage):g}{more}",
        [by, "threshold", "sites", "samples", "proved", ""],
        [
            (
                one.name,
                float(one.threshold),
                one.holders,
                one.samples,
                _proved(one.certificate),
                one.protection,
            )
            for one in shown
        ],
    )


def _proved(certificate: Certificate | CurvePoint) -> str:
    """What is proved in a few signs."""
    if certificate.vacuous:
        return "nothing"
    if certificate.upper >= 1:
        return f">= {at_least(certificate.lower)}"
    return f"{at_least(certificate.lower)} to {at_most(certificate.upper)}"


def _curve(level: Level) -> str:
    """A few points of the curve: nobody, and 5, 10, 20 and 40% of the clients."""
    n_clients = level.certificate.n_clients
    wanted = [round(n_clients * share) for share in (0, 0.05, 0.1, 0.2, 0.4)]
    numbers = [point.m for point in level.curve]
    chosen = sorted({min(numbers, key=lambda m: abs(m - near)) for near in wanted})
    points = [point for point in level.curve if point.m in chosen]
    return ", ".join(f"{_proved(point)} {_if_so_many(point.m)}" for point in points)


def _if_so_many(m: int) -> str:
    return "if nobody lies" if m == 0 else f"with at most {m} {'liar' if m == 1 else 'liars'}"


def as_data(calibration: Calibration, found: Mapping[str, Diagnosis]) -> dict[str, Any]:
    """The calibration for programs, without the counts."""
    return {
        "levels": [
            {
                "coverage": float(level.coverage),
                "threshold": level.threshold,
                "certificate": {
                    "kind": level.certificate.kind,
                    "lower": level.certificate.lower,
                    "upper": level.certificate.upper,
                    "confidence": level.certificate.confidence,
                    "m": level.certificate.m,
                    "vacuous": level.certificate.vacuous,
                    "statement": level.certificate.statement,
                    "assumptions": [a.text for a in level.certificate.assumptions],
                    "outside": list(outside_of(calibration.federation)),
                    "at_every_site": level.certificate.at_every_site,
                },
                "curve": [
                    {"m": point.m, "lower": point.lower, "upper": point.upper}
                    for point in level.curve
                ],
                "empty_from": level.empty_from,
                "strata": [
                    {
                        "name": one.name,
                        "threshold": one.threshold,
                        "lower": one.certificate.lower,
                        "upper": one.certificate.upper,
                        "holders": one.holders,
                        "samples": one.samples,
                        "protection": one.protection,
                    }
                    for one in level.strata
                ],
            }
            for level in calibration.levels
        ],
        "n_clients": calibration.federation.n_clients,
        "n_samples": calibration.federation.n_samples,
        "liars": calibration.liars,
        "liars_stated": calibration.liars_stated,
        "trusted": list(calibration.trusted),
        "flagged": {c: calibration.reasons.get(c, "") for c in calibration.flagged},
        "diagnoses": {client: asdict(one) for client, one in found.items()},
        "faulty": [
            {"client": f.client, "field": f.field, "reason": f.reason} for f in calibration.faulty
        ],
        "missing": list(calibration.missing),
        "oddness": dict(
            zip(
                calibration.federation.ids,
                np.asarray(calibration.oddness).tolist(),
                strict=True,
            )
        ),
        "remarks": list(calibration.remarks),
    }
