"""The guaranteed modes: a threshold together with the certificate that goes with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import a_few
from robfcp.federation import Federation
from robfcp.guarantees.alike import homogeneous_threshold
from robfcp.guarantees.budgets import check_delta, check_sigma
from robfcp.guarantees.certificate import (
    FULL,
    Certificate,
    GuaranteeKind,
    Kind,
    assumptions_of,
    guarantee_certificate,
    noise_note,
    outside_of,
    pruning_note,
)
from robfcp.guarantees.label_shift import (
    Mix,
    Pairs,
    class_counts,
    mix_threshold,
    pruned_pac,
    read_mixes,
)
from robfcp.guarantees.marginal import marginal_threshold
from robfcp.guarantees.pruning import PRUNING_SHARE, ClientIntervals, prune
from robfcp.guarantees.rank import Exchangeability
from robfcp.guarantees.tails import pac_threshold

Guaranteed = tuple[int | None, Certificate]


def guaranteed(
    federation: Federation,
    kind: GuaranteeKind,
    level: Fraction,
    m: int | None,
    *,
    confidence: float = 0.95,
    sigma: float | None = None,
    size_budget: int | None = None,
    exchangeability: Exchangeability = "partial",
    intervals: Callable[[float], ClientIntervals] | None = None,
) -> Guaranteed:
    """The guaranteed threshold's edge (None = infinite) and what it promises: at least `level`.

    `intervals` are those of `prune`, kept by who asks for several thresholds.
    """
    certificate = guarantee_certificate(
        federation,
        kind,
        level,
        m,
        confidence=confidence,
        sigma=sigma,
        size_budget=size_budget,
        exchangeability=exchangeability,
    )
    delta = 1 - confidence
    if kind == "pac-homogeneous":
        index = homogeneous_threshold(federation, level, _stated(m), delta, sigma or 0.0)
    elif sigma is not None and m is not None:
        # pruning's chance of failure is paid from the level, or a fifth of it from delta
        beta = (1 - level) / 10 if kind == "marginal" else Fraction(PRUNING_SHARE * delta)
        pruning = prune(federation, m, sigma, float(beta), intervals)
        kept, remaining = federation.subset(pruning.kept), pruning.m
        if kind == "marginal":
            index = marginal_threshold(
                kept, level + beta, remaining, exchangeability=exchangeability
            )
        else:
            index = pac_threshold(kept, level, remaining, delta - float(beta))
        note = pruning_note(pruning.evidence, m)
        certificate = replace(certificate, note=noise_note(federation, note))
    elif kind == "pac":
        index = pac_threshold(federation, level, _stated(m), delta)
    else:
        index = marginal_threshold(federation, level, m, size_budget, exchangeability)
    if index is None or index == federation.grid.n_bins - 1:
        certificate = replace(certificate, note="; ".join(filter(None, (FULL, certificate.note))))
    return index, certificate


def _stated(m: int | None) -> int:
    """Only the marginal mode can do with a size budget alone."""
    assert m is not None
    return m


_STEPS = 128  # of the least sigma
_EDGES = 48  # at which it is sought

Shifted = tuple[int | None, Certificate]


def shifted_pac(
    federation: Federation, level: Fraction, m: int, confidence: float, sigma: float
) -> Shifted:
    """Rule PC: clients that cannot be honest are pruned by class, then the PAC rule holds."""
    walk = pruned_pac(class_counts(federation), level, m, 1 - confidence, sigma)
    notes = _notes(walk.dropped, walk.contradiction, m, sigma)
    made = _certificate(
        federation,
        clients=walk.clients,
        kind="pac",
        level=level,
        m=m,
        declared=(confidence, sigma),
        notes=notes,
        index=walk.index,
    )
    return walk.index, made


def shifted_mix(
    federation: Federation,
    level: Fraction,
    mix: Mix | Sequence[Mix],
    m: int,
    confidence: float,
    sigma: float,
) -> Shifted:
    """Rule T: one threshold for a stated label mix, or for all mixes of a list at once."""
    counts = class_counts(federation)
    mixes = read_mixes(mix, counts.names)
    walk = mix_threshold(counts, mixes, float(1 - level), m, 1 - confidence, sigma)
    notes = _notes(walk.dropped, walk.contradiction, m, sigma)
    if walk.too_few:
        named = ", ".join(walk.too_few[:5])
        notes.append(f"too few sites hold {named} for a guarantee against {m} liars")
    made = _certificate(
        federation,
        clients=counts.ids,
        kind="mix",
        level=level,
        m=m,
        declared=(confidence, sigma),
        notes=notes,
        index=walk.index,
    )
    return walk.index, made


def least_shift(federation: Federation, m: int, confidence: float = 0.95) -> float:
    """The smallest sigma (to 1/128) at which nobody would be dropped: a diagnostic, not a bound.

    Liars are included, and who agrees too well is not seen: it is no estimate of the true one.
    """
    counts = class_counts(federation)
    beta = PRUNING_SHARE * check_delta(1 - confidence)
    places = np.unique(np.linspace(0, len(counts.edges) - 1, _EDGES).round().astype(int))
    pairs = Pairs(counts.sizes)

    def nobody(sigma: float) -> bool:
        found = (pairs.kept(counts.below[place], m, beta, sigma) for place in places)
        return all(kept is not None and kept.all() for kept in found)

    low, high = 0, _STEPS
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if nobody(middle / _STEPS) else (middle + 1, high)
    return low / _STEPS


def _notes(dropped: tuple[str, ...], contradiction: bool, m: int, sigma: float) -> list[str]:
    notes = []
    if dropped:
        notes.append(
            f"{len(dropped)} sites that cannot be honest were dropped first ({a_few(dropped)})"
        )
    if contradiction:
        notes.append(
            f"more than {m} sites disagree within classes by more than {sigma:g}, so that they "
            "cannot be as declared: nothing is certified; state a larger label_shift or more liars"
        )
    return notes


def _certificate(
    federation: Federation,
    clients: tuple[str, ...],
    kind: Kind,
    level: Fraction,
    m: int,
    declared: tuple[float, float],
    notes: list[str],
    index: int | None,
) -> Certificate:
    confidence, sigma = declared
    compared = set(clients)
    pooled = tuple(name for name in federation.ids if name not in compared)
    seen = federation.subset(np.array([name in compared for name in federation.ids]))
    if pooled:
        notes = [
            *notes,
            f"says nothing of {len(pooled)} sites without counts of all classes ({a_few(pooled)})",
        ]
    full = index is None or index == federation.grid.n_bins - 1
    return Certificate(
        kind=kind,
        lower=float(level),
        upper=1.0,
        confidence=confidence,
        m=m,
        n_clients=seen.n_clients,
        assumptions=assumptions_of(seen, kind, m, label_shift=check_sigma(sigma)),
        outside=(*outside_of(federation), *pooled),
        note="; ".join([FULL] * full + notes),
    )


def mixes_differ(sizes: NDArray[np.int64]) -> float:
    """p-value of the (K, C) label counts if all clients drew labels from one mix: a diagnostic.

    Pearson's test; classes and clients without samples are left out.
    """
    from scipy.special import chdtrc

    kept = sizes[sizes.sum(axis=1) > 0][:, sizes.sum(axis=0) > 0].astype(np.float64)
    df = (kept.shape[0] - 1) * (kept.shape[1] - 1)
    if df < 1:
        return 1.0
    expected = np.outer(kept.sum(axis=1), kept.sum(axis=0)) / kept.sum()
    return float(chdtrc(df, ((kept - expected) ** 2 / expected).sum()))
