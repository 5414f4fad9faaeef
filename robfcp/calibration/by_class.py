"""Thresholds by class or group: each one the rule of a whole round, on the clients that hold it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from robfcp.arguments import a_few
from robfcp.calibration.calibration import Level, Part
from robfcp.calibration.record import Record
from robfcp.certificate import Certificate, CurvePoint, liars_assumption
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, Stratified
from robfcp.guarantees import FcpThreshold, Marginal, certify, curve, site
from robfcp.report import OTHER, Report, listed

FEW = 25  # classes, whose curves have all their points; those of more have the first few
FIRST = 5


def strata_of(federation: Federation, by: str | None) -> Stratified:
    """The counts by class or group that are asked for, refused where the reports lack them."""
    if by not in (None, "class", "group"):
        raise RobfcpError(f"by: {by!r} is unknown; use 'class', 'group' or {{class: cluster}}")
    found = federation.strata
    if found is None:
        raise RobfcpError(
            f"by: the reports keep no counts by {by or 'class'}; make them with --by-class or "
            "--group (by_class=True, groups=)"
        )
    if by is not None and found.by != by:
        raise RobfcpError(f"by: the reports keep counts by {found.by}, not by {by}; use that")
    return found


class Held(NamedTuple):
    """One class, group or cluster of them, the names of its members, and who holds it."""

    name: str
    members: tuple[str, ...]
    federation: Callable[[], Federation]  # made when asked for, since there may be thousands


def held_strata(record: Record, by: str) -> tuple[Held, ...]:
    """Every class or group, or every cluster of them; "(other)" left out."""
    federation, clusters = record.federation, record.clusters
    strata = strata_of(federation, by)
    labels = wanted = strata.labels
    if clusters is not None:
        missing = [name for name in labels if name not in clusters and name != OTHER]
        if missing:
            raise RobfcpError(f"by: {missing[0]!r} has no cluster; give every class one")
        unknown = sorted(set(map(str, clusters)) - (set(labels) - {OTHER}))
        if unknown:
            raise RobfcpError(f"by: {unknown[0]!r:.60} is none of the {strata.by} names")
        if OTHER in clusters.values():
            raise RobfcpError(f"by: {OTHER!r} is kept for what sites merge; rename that cluster")
        wanted = tuple(str(clusters.get(name, OTHER)) for name in labels)
    names = tuple(dict.fromkeys(wanted))
    private = federation.noisy and any(federation.privacy[k] for k in strata.rows)
    if private and len(names) < len(labels):
        raise RobfcpError("by: private reports hold noise a class; let sites report by cluster")
    place = {name: c for c, name in enumerate(names)}
    cluster = [place[name] for name in wanted]
    members: dict[int, list[str]] = {}
    for c, name in zip(cluster, labels, strict=True):
        if name != OTHER:
            members.setdefault(c, []).append(name)
    if not members:
        raise RobfcpError(f"by: no {by} has a name; every site merged all of them")
    if clusters is not None:
        federation = replace(federation, strata=strata.clustered(cluster, names))
    stratum = federation.stratum
    return tuple(Held(names[c], tuple(members[c]), partial(stratum, c)) for c in sorted(members))


def level_by_class(
    record: Record, level: Fraction, by: str, confidence: float, liars: int, stated: bool
) -> Level:
    """Threshold and certificate of every class or group, "(other)" left out, and the widest.

    The certificates hold all at once with the stated confidence; thresholds that cover on average
    hold for all of them anyway.
    """
    federation, promise, anchor = record.federation, record.promise, record.trusted_samples
    every, m, strata = held_strata(record, by), liars, strata_of(federation, by)
    merged = record.clusters is not None and OTHER in strata.labels
    sure = 1 - (1 - confidence) / len(every)
    points = None if len(every) <= FEW else FIRST
    anchors = {} if anchor is None else _anchors(anchor, by, every, level, 1 - sure)

    def part(name: str, held: Federation) -> Part:
        """One of them from the clients that hold it."""
        holders = held.n_clients
        budgets = curve.curve_budgets(holders, m)[:points]
        own = anchors.get(name)
        if promise is not None and m < holders:
            edge, certificate = promise.threshold(held, level, sure, own)
        else:
            mask = record.trusted_mask[held.rows]
            fcp = promise is None and mask.any()
            edge = FcpThreshold(held, mask).index(level) if fcp else None
            if own is not None:
                own = own.from_below() if isinstance(promise, Marginal) else own
                edge = own.clipped(edge)
            certificate = _decided_by_liars(held, m, sure, edge)
            if promise is None and m < holders:
                curve.coverage_curve(held, edge, {*budgets, m}, sure)  # together is faster
                certificate = certify(held, edge, m, sure, estimated=not stated)
            certificate = certificate if own is None else own.stated(certificate)
        return Part(
            name=name,
            threshold=held.threshold_at(edge),
            certificate=certificate.of_shown() if merged else certificate,
            holders=holders,
            samples=int(held.sizes.sum()),
            curve=curve.coverage_curve(held, edge, budgets, sure) if holders else (),
        )

    own: dict[str, Part] = {}
    for held in every:
        found = part(held.name, held.federation())
        own |= {name: msgspec.structs.replace(found, name=name) for name in held.members}
    parts = tuple(own[name] for name in strata.labels if name != OTHER)
    weakest = min(parts, key=lambda one: one.certificate.lower).certificate
    n_clients, few = len(strata.rows), {}
    for kind in ("always covered", "unprotected", "hardly protected"):
        few[kind] = [one.name for one in parts if one.protection == kind]
    floors = [one.certificate.floor for one in parts if one.certificate.floor is not None]
    cut = anchor is not None and promise is not None  # which took as much of the confidence again
    certificate = msgspec.structs.replace(
        weakest,
        floor=min(floors) if len(floors) == len(parts) else None,
        trusted=0 if anchor is None else int(anchor.counts.sum()),
        upper=max(one.certificate.upper for one in parts),
        confidence=None if weakest.confidence is None else confidence - (1 - confidence) * cut,
        by=by if record.clusters is None else "cluster",
        n_clients=n_clients,
        assumptions=tuple(
            liars_assumption(liars, n_clients, estimated=not stated) if one.name == "liars" else one
            for one in weakest.assumptions
        ),
        n_outside=0,
        note="; ".join(f"{kind}: {a_few(names)}" for kind, names in few.items() if names),
    )
    threshold = max(one.threshold for one in parts)
    return Level(coverage=level, threshold=threshold, certificate=certificate, parts=parts)


def _anchors(
    anchor: Report, by: str, every: Sequence[Held], level: Fraction, delta: float
) -> dict[str, site.Anchor]:
    """What the trusted samples of each class allow; together, from below, where one has too few."""
    strata, few, found = anchor.strata, anchor.counts, {}
    if strata is not None and strata.by == by:
        place = {name: c for c, name in enumerate(listed(strata.names))}
        table, few = strata.dense(), np.zeros_like(few)
        for held in every:
            counts = table[[place[name] for name in held.members if name in place]].sum(axis=0)
            own = site.Anchor.of(counts, level, delta)
            if own.high is None:
                few = few + counts
            else:
                found[held.name] = own
    if few.any():
        together = site.Anchor.of(few, level, delta).from_below()
        words = f"held from below by {together.n} trusted samples, with those of other classes"
        together = together._replace(floor=None, note=words)
        found |= {held.name: together for held in every if held.name not in found}
    return found


def _decided_by_liars(held: Federation, m: int, confidence: float, edge: int | None) -> Certificate:
    """Of what at most m clients hold: a finite threshold proves nothing, an infinite one covers."""
    lower = 1.0 if edge is None else 0.0
    found = Certificate("any-threshold", lower, 1.0, confidence, m, max(held.n_clients, 1))
    if held.n_clients:
        found = certify(held, None, 0, confidence).for_liars(CurvePoint(m, lower, 1.0), confidence)
    return msgspec.structs.replace(
        found, note=f"held by {held.n_clients} sites, so that {m} liars decide it"
    )
