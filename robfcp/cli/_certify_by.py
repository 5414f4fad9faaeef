"""`robfcp certify` where there is a threshold for each class or group."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from robfcp.calibration import Calibration, StratumBudgets, what_if_by
from robfcp.certificate import at_least, at_most
from robfcp.cli._common import Printer
from robfcp.federation import Federation
from robfcp.guarantees import FcpThreshold

SHOWN = 10


class ByStratum(NamedTuple):
    """What is proved of every class or group at one confidence level."""

    level: Fraction
    by: str
    confidence: float
    strata: tuple[StratumBudgets, ...]


def judged(
    federation: Federation,
    calibration: Calibration | None,
    by: str,
    levels: Sequence[Fraction],
    budgets: Sequence[int],
    printer: Printer,
    *,
    confidence: float,
    alike: float | None,
) -> list[ByStratum]:
    """Each level by class: the calibration's own thresholds, or FCP's of those it trusts."""
    own = calibration if calibration is not None and calibration.by == by else None
    with printer.progress() as progress:
        return [
            ByStratum(
                level,
                by,
                confidence,
                what_if_by(
                    federation,
                    by,
                    level,
                    partial(_edge, federation, calibration, by, level),
                    budgets,
                    confidence=confidence,
                    alike=alike,
                    clusters=None if own is None else own.settings.clusters,
                    track=partial(progress.track, description=f"level {float(level):g}"),
                ),
            )
            for level in levels
        ]


def _edge(
    federation: Federation,
    calibration: Calibration | None,
    by: str,
    level: Fraction,
    members: tuple[str, ...],
    held: Federation,
) -> int | None:
    """The edge of the threshold that these classes share; None where it is infinite."""
    if calibration is None:
        return FcpThreshold(held).index(level)
    for stored in calibration.levels:
        if calibration.by == by and stored.coverage == level:
            limit = next(one.threshold for one in stored.strata if one.name in members)
            return int(held.grid.edge_at(limit)) if np.isfinite(limit) else None
    place = {client: k for k, client in enumerate(federation.ids)}
    trusted = calibration.trusted_mask[[place[client] for client in held.ids]]
    if not trusted.any():
        return None
    return FcpThreshold(held, trusted).index(level)


def show_strata(printer: Printer, found: ByStratum) -> None:
    """One level's table, the classes of which least is proved first; then what it means."""
    rows: list[list[object]] = []
    shown = sorted(found.strata, key=_weakest)[:SHOWN]
    for one in shown:
        if one.outcome is None:
            rows.append([one.name, one.holders, "-", "", "nothing", "", "-", "-"])
            continue
        for number, row in enumerate(one.outcome.budgets):
            bound = row.certificate
            first = [one.name, one.holders, one.outcome.threshold]
            rows.append(
                [
                    *(first if not number else [""] * len(first)),
                    row.m,
                    "nothing" if bound.vacuous else at_least(bound.lower),
                    "" if bound.vacuous else at_most(bound.upper),
                    row.marginal,
                    row.pac,
                ]
            )
    more = f", the {SHOWN} weakest of {len(found.strata)}" if len(found.strata) > SHOWN else ""
    once = " at once" if len(found.strata) > 1 else ""
    printer.table(
        f"by {found.by} at {float(found.level):g}{more}, {found.confidence:.0%} sure{once}",
        [found.by, "sites", "threshold", "m", "from", "to", "marginal", "pac"],
        rows,
    )
    printer.line(
        f"from, to: either more than m of the sites that hold a {found.by} lie or its coverage at "
        "the honest ones among them, with its own threshold, lies there. marginal, pac: thresholds "
        f"that would guarantee the wanted level for that {found.by}. A {found.by} that m or fewer "
        "sites hold cannot be protected from m liars by anybody."
    )


def _weakest(one: StratumBudgets) -> tuple[float, float]:
    """Unheld first, then by what is proved against most liars, then against fewest."""
    if one.outcome is None:
        return (-1.0, -1.0)
    rows = one.outcome.budgets
    return (rows[-1].certificate.lower, rows[0].certificate.lower)


def strata_levels(found: Sequence[ByStratum]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {
            "coverage": float(each.level),
            "by": each.by,
            "strata": [_stratum(one) for one in each.strata],
        }
        for each in found
    ]


def _stratum(one: StratumBudgets) -> dict[str, Any]:
    found: dict[str, Any] = {"name": one.name, "sites": one.holders, "samples": one.samples}
    if one.outcome is None:
        return {**found, "threshold": None, "budgets": []}
    rows = []
    for row in one.outcome.budgets:
        entry = msgspec.to_builtins(row)
        entry["certificate"]["vacuous"] = row.certificate.vacuous
        entry["certificate"]["statement"] = row.certificate.statement
        rows.append(entry)
    return {
        **found,
        "threshold": one.outcome.threshold,
        "empty_from": one.outcome.empty_from,
        "budgets": rows,
    }
