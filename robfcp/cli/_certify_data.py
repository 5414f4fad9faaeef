"""What `robfcp certify` finds, for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec

from robfcp.calibration import Budgets
from robfcp.federation import Federation
from robfcp.guarantees import (
    HeterogeneityEstimate,
    liars_no_rule_survives,
)
from robfcp.lab.published import bound_for


def level_data(federation: Federation, outcomes: list[Budgets]) -> list[dict[str, Any]]:
    """The tables for programs."""
    levels = []
    for outcome in outcomes:
        rows = []
        for row in outcome.budgets:
            entry = msgspec.to_builtins(row)
            entry["certificate"]["vacuous"] = row.certificate.vacuous
            entry["certificate"]["statement"] = row.certificate.statement
            paper = bound_for(federation.sizes, float(outcome.level), row.m)
            entry["paper"] = paper and {**asdict(paper), "vacuous": paper.vacuous}
            rows.append(entry)
        levels.append(
            {
                "coverage": float(outcome.level),
                "threshold": outcome.threshold,
                "no_rule_survives": liars_no_rule_survives(federation.sizes, outcome.level),
                "budgets": rows,
                "empty_from": outcome.empty_from,
            }
        )
    return levels


def frame(
    federation: Federation,
    levels: list[dict[str, Any]],
    diagnostics: Mapping[int, HeterogeneityEstimate],
) -> dict[str, Any]:
    """Everything for programs."""
    return {
        "n_clients": federation.n_clients,
        "n_samples": federation.n_samples,
        "levels": levels,
        "heterogeneity_estimate": asdict(diagnostics[max(diagnostics)]),
        "heterogeneity_estimates": {m: asdict(one) for m, one in diagnostics.items()},
    }
