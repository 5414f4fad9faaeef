"""Threshold, tolerance and certificate at every level: each rule of the guarantees in its case."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, cast

from robfcp.calibration.evidence import Evidence
from robfcp.calibration.levels import Level
from robfcp.calibration.settings import Settings
from robfcp.calibration.strata import stratum_levels, worst_of
from robfcp.defence import Defence, threshold_of
from robfcp.errors import RobfcpError
from robfcp.guarantees import (
    certify,
    coverage_curve,
    curve_budgets,
    empty_from,
    foresee,
    guaranteed,
    shifted_mix,
    shifted_pac,
    tolerance,
)


def outcomes_of(
    evidence: Evidence,
    levels: list[Fraction],
    n_malicious: int,
    settings: Settings,
    rule: Defence,
) -> tuple[Level, ...]:
    """Threshold, tolerance and certificate at every confidence level."""
    federation = evidence.federation
    if settings.by is not None:
        return tuple(_by_stratum(evidence, level, n_malicious, settings) for level in levels)
    if settings.clusters is not None:
        raise RobfcpError("clusters: only by='class' and by='group' have strata to cluster")
    trusted, rank = evidence.trusted_mask, settings.exchangeability
    own = None
    if settings.guarantee is None and settings.mix is None and settings.label_shift is None:
        own = threshold_of(rule, federation, trusted, rank)
    budgets = curve_budgets(federation.n_clients, n_malicious)
    found = []
    for level in levels:
        if settings.mix is not None:
            index, certificate = shifted_mix(
                federation,
                level,
                cast(Any, settings.mix),
                n_malicious,
                settings.certificate_confidence,
                settings.label_shift or 0.0,
            )
        elif settings.label_shift is not None:
            index, certificate = shifted_pac(
                federation,
                level,
                n_malicious,
                settings.certificate_confidence,
                settings.label_shift,
            )
        elif own is not None:
            index = own.index(level)
            if settings.heterogeneity is None:
                foresee(federation, index, (n_malicious, *budgets))
            certificate = certify(
                federation,
                index,
                n_malicious,
                settings.certificate_confidence,
                sigma=settings.heterogeneity,
                estimated=settings.malicious == "estimate",
            )
        else:
            index, certificate = guaranteed(
                federation,
                cast(Any, settings.guarantee),
                level,
                None if settings.malicious == "estimate" else n_malicious,
                confidence=settings.certificate_confidence,
                sigma=settings.heterogeneity,
                size_budget=settings.size_budget,
                exchangeability=settings.exchangeability,
            )
        threshold = federation.threshold_at(index)
        sure = {"confidence": settings.certificate_confidence, "sigma": settings.heterogeneity}
        found.append(
            Level(
                level,
                threshold,
                tolerance(federation, index, level),
                certificate,
                coverage_curve(federation, index, budgets, **sure),  # type: ignore[arg-type]
                empty_from(federation, index, **sure),  # type: ignore[arg-type]
            )
        )
    return tuple(found)


def _by_stratum(
    evidence: Evidence,
    level: Fraction,
    n_malicious: int,
    settings: Settings,
) -> Level:
    """The thresholds of all classes or groups at one level."""
    found = stratum_levels(evidence.federation, evidence.trusted_mask, level, n_malicious, settings)
    survived = [one.tolerance for one in found]
    return Level(
        level,
        max(one.threshold for one in found),
        None if None in survived else min(number for number in survived if number is not None),
        worst_of(found, settings, evidence.federation),
        strata=found,
    )
