"""Thresholds by class or group: each one the rule of a whole round, on the clients that hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import a_few
from robfcp.calibration.settings import Settings
from robfcp.certificate import Certificate, CurvePoint, liars_assumption
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, Stratified
from robfcp.guarantees import (
    FcpThreshold,
    RankRule,
    certify,
    coverage_curve,
    curve_budgets,
    empty_from,
    foresee,
)
from robfcp.report import OTHER, Names

UNPROTECTED, HARDLY = "unprotected", "hardly protected"
FEW_STRATA = 25  # whose curves have all their points; those of more have the first few
FIRST = 5


@dataclass(frozen=True)
class StratumLevel:
    """One class or group at one level.

    `holders` is the number of clients that hold it. With at most m of them lying it is
    "unprotected" where m or fewer hold it, which nobody can protect, and "hardly protected" where
    2m or fewer do. `curve` says where its coverage lies for each number of liars among them, all of
    it true at once; `empty_from` is the number from which on nothing is proved, None where
    something always is.
    """

    name: str
    threshold: float
    certificate: Certificate
    holders: int
    samples: int
    protection: str = ""
    curve: tuple[CurvePoint, ...] = ()
    empty_from: int | None = None


def strata_of(federation: Federation, by: str | None) -> Stratified:
    """The counts by class or group that are asked for, refused where the reports lack them."""
    if by not in (None, "class", "group"):
        raise RobfcpError(f"by: {by!r} is unknown; use 'class', 'group' or {{class: cluster}}")
    found = federation.strata
    if found is None:
        raise RobfcpError(
            f"by: no report keeps counts by {by or 'class'}; make them with labels, not pooled"
        )
    if by is not None and found.by != by:
        raise RobfcpError(f"by: the reports keep counts by {found.by}, not by {by}; use that")
    return found


def clusters_of(
    strata: Stratified, clusters: Mapping[str, str] | None
) -> tuple[list[int], tuple[str, ...]]:
    """Each stratum's cluster and the clusters' names: themselves where none are given."""
    labels = strata.labels
    if clusters is None:
        return list(range(len(labels))), labels
    missing = [name for name in labels if name not in clusters and name != OTHER]
    if missing:
        raise RobfcpError(f"by: {missing[0]!r} has no cluster; give every class one")
    unknown = sorted(set(map(str, clusters)) - set(labels) - {OTHER})
    if unknown:
        raise RobfcpError(f"by: {unknown[0]!r:.60} is none of the {strata.by} names")
    wanted = [str(clusters.get(name, OTHER)) for name in labels]
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
    federation: Federation, by: str, clusters: Mapping[str, str] | None = None
) -> tuple[Held, ...]:
    """Every class or group, or every cluster of them; "(other)" left out."""
    strata = strata_of(federation, by)
    cluster, names = clusters_of(strata, clusters)
    private = federation.noisy and any(federation.privacy[k] for k in strata.rows)
    if private and len(names) < len(cluster):
        raise RobfcpError(
            "by: private reports hold noise for every class; let the sites report by cluster"
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


def confidence_of_each(confidence: float, parts: int) -> float:
    """Of every one of so many certificates, where all are to hold at once."""
    return 1 - (1 - confidence) / parts


def stratum_levels(
    federation: Federation,
    trusted: NDArray[np.bool_],
    level: Fraction,
    m: int,
    settings: Settings,
    *,
    stated: bool,
    rank: RankRule,
) -> tuple[StratumLevel, ...]:
    """Threshold and certificate of every class or group, "(other)" left out.

    The certificates hold all at once with the stated confidence; thresholds that cover on average
    hold for all of them anyway.
    """
    every = held_strata(federation, str(settings.by), settings.clusters)
    confidence = confidence_of_each(settings.confidence, len(every))
    place = {client: k for k, client in enumerate(federation.ids)}
    points = None if len(every) <= FEW_STRATA else FIRST

    def one(name: str, held: Federation) -> StratumLevel:
        """One stratum from the clients that hold it."""
        holders = held.n_clients
        protection = UNPROTECTED if holders <= m else HARDLY if m and holders <= 2 * m else ""
        budgets = curve_budgets(holders, m)[:points]
        edge, certificate = None, None
        if settings.promise is not None and m < holders:
            edge, certificate = settings.promise.threshold(held, level, confidence)
        elif settings.promise is None and holders:
            mask = trusted[[place[client] for client in held.ids]]
            if mask.any():
                edge = FcpThreshold(held, mask, rank).index(level)
            foresee(held, edge, (m, *budgets))
            if m < holders:
                certificate = certify(held, edge, m, confidence, estimated=not stated)
        if certificate is None:
            certificate = _nothing(held, m, confidence, settings)
        return StratumLevel(
            name,
            threshold=held.threshold_at(edge),
            certificate=certificate,
            holders=holders,
            samples=int(held.sizes.sum()),
            protection=protection,
            curve=coverage_curve(held, edge, budgets, confidence) if holders else (),
            empty_from=empty_from(held, edge, confidence),
        )

    found = {held.name: one(held.name, held.federation()) for held in every}
    own = {name: replace(found[held.name], name=name) for held in every for name in held.members}
    order = strata_of(federation, settings.by).labels
    return tuple(own[name] for name in order if name != OTHER)


def _nothing(held: Federation, m: int, confidence: float, settings: Settings) -> Certificate:
    """A certificate that proves nothing: nobody can protect what at most m clients hold."""
    found = Certificate("any-threshold", 0.0, 1.0, confidence, m, max(held.n_clients, 1))
    if held.n_clients:
        stated = msgspec.structs.replace(
            certify(held, None, 0, confidence), lower=0.0, upper=1.0, m=m
        )
        found = stated.for_liars(CurvePoint(m, 0.0, 1.0), confidence)
    return msgspec.structs.replace(
        found, note=f"held by {held.n_clients} sites, so that {m} liars decide it"
    )


def worst_of(
    found: Sequence[StratumLevel],
    settings: Settings,
    federation: Federation,
    m: int,
    *,
    stated: bool,
) -> Certificate:
    """What holds of every stratum at once: the widest of their certificates."""
    n_clients = len(strata_of(federation, settings.by).rows)
    weakest = min(found, key=lambda one: one.certificate.lower).certificate
    return msgspec.structs.replace(
        weakest,
        upper=max(one.certificate.upper for one in found),
        confidence=None if weakest.confidence is None else settings.confidence,
        by=str(settings.by) if settings.clusters is None else "cluster",
        n_clients=n_clients,
        assumptions=tuple(
            liars_assumption(m, n_clients, estimated=not stated) if one.name == "liars" else one
            for one in weakest.assumptions
        ),
        n_outside=0,
        note=_names(found),
    )


def _names(found: Sequence[StratumLevel]) -> str:
    words = []
    for kind in (UNPROTECTED, HARDLY):
        named = [one.name for one in found if one.protection == kind]
        if named:
            words.append(f"{kind}: {a_few(named)}")
    return "; ".join(words)
