"""Thresholds by class or group: each one the rule of a whole round, on the clients that hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import a_few
from robfcp.calibration.settings import Settings
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, Stratified
from robfcp.guarantees import (
    Certificate,
    CurvePoint,
    FcpThreshold,
    certify,
    coverage_curve,
    curve_assumptions,
    curve_budgets,
    empty_from,
    foresee,
    guaranteed,
    liars_assumption,
    tolerance,
)
from robfcp.report import OTHER, Names

UNPROTECTED, HARDLY = "unprotected", "hardly protected"
FEW_STRATA = 25  # whose curves have all their points; those of more have the first few
FIRST = 5


@dataclass(frozen=True)
class StratumLevel:
    """One class or group at one confidence level.

    `holders` is the number of clients that hold it. With at most m of them lying it is
    "unprotected" where m or fewer hold it, which nobody can protect, and "hardly protected" where
    2m or fewer do. `curve` says where its coverage lies for each number of liars among them, all of
    it true at once; `empty_from` is the number from which on nothing is proved, None where
    something always is.
    """

    name: str
    threshold: float
    tolerance: int | None
    certificate: Certificate
    holders: int
    samples: int
    protection: str = ""
    curve: tuple[CurvePoint, ...] = ()
    empty_from: int | None = None


def strata_of(federation: Federation, by: str) -> Stratified:
    """The counts by class or group that are asked for, refused where the reports lack them."""
    found = federation.strata
    if found is None:
        raise RobfcpError(
            f"by: no report keeps counts by {by}; make them with labels, or sketch without --pooled"
        )
    if found.by != by:
        raise RobfcpError(f"by: the reports keep counts by {found.by}, not by {by}; use that")
    return found


def clusters_of(
    strata: Stratified, clusters: Mapping[str, str] | Sequence[str] | None
) -> tuple[list[int], tuple[str, ...]]:
    """Each stratum's cluster and the clusters' names: themselves where none are given."""
    labels = strata.labels
    if clusters is None:
        return list(range(len(labels))), labels
    if isinstance(clusters, Mapping):
        missing = [name for name in labels if name not in clusters and name != OTHER]
        if missing:
            raise RobfcpError(f"clusters: {missing[0]!r} has none; give every class one")
        unknown = sorted(set(map(str, clusters)) - set(labels) - {OTHER})
        if unknown:
            raise RobfcpError(f"clusters: {unknown[0]!r:.60} is none of the {strata.by} names")
        wanted = [str(clusters.get(name, OTHER)) for name in labels]
    else:
        wanted = [str(name) for name in clusters]
        shown = [name for name in labels if name != OTHER]
        if len(wanted) != len(shown):
            raise RobfcpError(f"clusters: {len(wanted)} of them for {len(shown)} classes")
        given = dict(zip(shown, wanted, strict=True))
        wanted = [given.get(name, OTHER) for name in labels]
    names = tuple(dict.fromkeys(wanted))
    return [names.index(name) for name in wanted], names


def class_names(federation: Federation) -> Names | None:
    """The classes the reports name, "(other)" left out; None where they do not."""
    strata = federation.strata
    if strata is None or strata.by != "class":
        return None
    if isinstance(strata.names, int) or OTHER not in strata.names:
        return strata.names
    return tuple(name for name in strata.names if name != OTHER)


class Held(NamedTuple):
    """One class, group or cluster of them, and the names of its members."""

    name: str
    members: tuple[str, ...]
    number: int
    every: Federation

    def federation(self) -> Federation:
        """A round of those who hold it; made when asked for, since there may be thousands."""
        return self.every.stratum(self.number)


def held_strata(
    federation: Federation, by: str, clusters: Mapping[str, str] | Sequence[str] | None = None
) -> tuple[Held, ...]:
    """Every class or group, or every cluster of them; "(other)" left out."""
    strata = strata_of(federation, by)
    cluster, names = clusters_of(strata, clusters)
    private = federation.noisy and any(federation.privacy[k] for k in strata.rows)
    if private and len(names) < len(cluster):
        raise RobfcpError(
            "clusters: private reports hold noise for every class; let the sites report by cluster"
        )
    members: dict[int, list[str]] = {}
    for c, name in zip(cluster, strata.labels, strict=True):
        if name != OTHER:
            members.setdefault(c, []).append(name)
    if not members:
        raise RobfcpError(f"by: no {by} has a name; every site merged all of them")
    joined = federation
    if clusters is not None:
        joined = replace(federation, strata=strata.clustered(cluster, names))
    return tuple(Held(names[c], tuple(members[c]), c, joined) for c in sorted(members))


def confidence_of_each(confidence: float, parts: int, joint: bool) -> float:
    """Of every one of so many certificates, where all are to hold at once."""
    return 1 - (1 - confidence) / parts if joint else confidence


def stratum_levels(
    federation: Federation,
    trusted: NDArray[np.bool_],
    level: Fraction,
    m: int,
    settings: Settings,
) -> tuple[StratumLevel, ...]:
    """Threshold, tolerance and certificate of every class or group, "(other)" left out.

    The certificates hold all at once with the stated confidence where `joint`, each by itself
    otherwise; thresholds that cover on average hold for all of them anyway.
    """
    if settings.size_budget is not None:
        raise RobfcpError("size_budget: is not for thresholds by class or group; state malicious=m")
    every = held_strata(federation, str(settings.by), settings.clusters)
    confidence = confidence_of_each(settings.certificate_confidence, len(every), settings.joint)
    place = {client: k for k, client in enumerate(federation.ids)}
    found = {
        held.name: _one(
            held.federation(),
            held.name,
            trusted,
            place,
            level=level,
            m=m,
            settings=settings,
            confidence=confidence,
            points=None if len(every) <= FEW_STRATA else FIRST,
        )
        for held in every
    }
    own = {name: replace(found[held.name], name=name) for held in every for name in held.members}
    order = strata_of(federation, str(settings.by)).labels
    return tuple(own[name] for name in order if name != OTHER)


def _one(
    held: Federation,
    name: str,
    trusted: NDArray[np.bool_],
    place: Mapping[str, int],
    *,
    level: Fraction,
    m: int,
    settings: Settings,
    confidence: float,
    points: int | None,
) -> StratumLevel:
    """One stratum from the clients that hold it, its curve with so many points."""
    holders, samples = held.n_clients, int(held.sizes.sum())
    protection = UNPROTECTED if holders <= m else HARDLY if m and holders <= 2 * m else ""
    if not holders or (holders <= m and settings.guarantee is not None):
        nothing = _nothing(held, m, confidence, settings)
        full = coverage_curve(held, None, curve_budgets(holders, m)[:points]) if holders else ()
        return StratumLevel(
            name,
            threshold=np.inf,
            tolerance=None,
            certificate=nothing,
            holders=holders,
            samples=samples,
            protection=UNPROTECTED,
            curve=full,
        )
    curve = curve_budgets(holders, m)[:points]
    mask = trusted[np.fromiter(map(place.__getitem__, held.ids), dtype=np.intp, count=holders)]
    if settings.guarantee is None:
        index = None
        if mask.any():
            index = FcpThreshold(held, mask, settings.exchangeability).index(level)
        foresee(held, index, (m, *curve))
        certificate = (
            _nothing(held, m, confidence, settings)
            if holders <= m
            else certify(held, index, m, confidence, estimated=settings.malicious == "estimate")
        )
    else:
        index, certificate = guaranteed(
            held,
            settings.guarantee,
            level,
            m,
            confidence=confidence,
            sigma=settings.heterogeneity,
            exchangeability=settings.exchangeability,
        )
    threshold = np.inf if index is None else float(held.grid.upper[index])
    return StratumLevel(
        name,
        threshold=threshold,
        tolerance=tolerance(held, index, level),
        certificate=certificate,
        holders=holders,
        samples=samples,
        protection=protection,
        curve=coverage_curve(held, index, curve, confidence),
        empty_from=empty_from(held, index, confidence),
    )


def _nothing(held: Federation, m: int, confidence: float, settings: Settings) -> Certificate:
    """A certificate that proves nothing: nobody can protect what at most m clients hold."""
    n_clients = max(held.n_clients, 1)
    stated = certify(held, None, 0, confidence).assumptions if held.n_clients else ()
    return Certificate(
        kind="any-threshold" if settings.guarantee is None else settings.guarantee,
        lower=0.0,
        upper=1.0,
        confidence=None if settings.guarantee == "marginal" else confidence,
        m=m,
        n_clients=n_clients,
        assumptions=curve_assumptions(stated, m, n_clients) if stated else (),
        note=f"held by {held.n_clients} sites, so that {m} liars decide it",
    )


def worst_of(
    found: Sequence[StratumLevel], settings: Settings, federation: Federation
) -> Certificate:
    """What holds of every stratum at once: the widest of their certificates."""
    n_clients = len(strata_of(federation, str(settings.by)).rows)
    weakest = min(found, key=lambda one: one.certificate.lower).certificate
    confidence = weakest.confidence
    if confidence is not None and settings.joint:
        confidence = settings.certificate_confidence
    return replace(
        weakest,
        upper=max(one.certificate.upper for one in found),
        confidence=confidence,
        by=str(settings.by) if settings.clusters is None else "cluster",
        n_clients=n_clients,
        assumptions=tuple(
            liars_assumption(weakest.m, n_clients, estimated=settings.malicious == "estimate")
            if one.name == "liars" and weakest.m is not None
            else one
            for one in weakest.assumptions
        ),
        outside=(),
        note=_names(found),
    )


def _names(found: Sequence[StratumLevel]) -> str:
    words = []
    for kind in (UNPROTECTED, HARDLY):
        named = [one.name for one in found if one.protection == kind]
        if named:
            words.append(f"{kind}: {a_few(named)}")
    return "; ".join(words)
