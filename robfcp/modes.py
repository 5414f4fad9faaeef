"""The guaranteed modes: a threshold together with the certificate that goes with it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from robfcp.certificates import (
    FULL,
    PRUNING_SHARE,
    Certificate,
    GuaranteeKind,
    guarantee_certificate,
    noise_note,
    pruning_note,
)
from robfcp.federation import Federation
from robfcp.guarantees import marginal_threshold
from robfcp.pac import homogeneous_threshold, pac_threshold
from robfcp.pruning import prune

Outcome = tuple[int | None, Certificate]


def guaranteed(
    federation: Federation,
    kind: GuaranteeKind,
    level: Fraction,
    m: int | None,
    *,
    confidence: float = 0.95,
    sigma: float | None = None,
    size_budget: int | None = None,
) -> Outcome:
    """The guaranteed threshold's edge (None = infinite) and what it promises: at least `level`."""
    certificate = guarantee_certificate(
        federation, kind, level, m, confidence=confidence, sigma=sigma, size_budget=size_budget
    )
    index, certificate = _outcome(
        federation, kind, level, m, 1 - confidence, sigma, size_budget, certificate
    )
    if index is None or index == federation.grid.n_bins - 1:
        certificate = replace(certificate, note="; ".join(filter(None, (FULL, certificate.note))))
    return index, certificate


def _outcome(
    federation: Federation,
    kind: GuaranteeKind,
    level: Fraction,
    m: int | None,
    delta: float,
    sigma: float | None,
    size_budget: int | None,
    certificate: Certificate,
) -> Outcome:
    if kind == "pac-homogeneous":
        return homogeneous_threshold(
            federation, level, _stated(m), delta, sigma or 0.0
        ), certificate
    if sigma is not None and m is not None:
        return _pruned(federation, kind, level, m, delta, sigma, certificate)
    if kind == "pac":
        return pac_threshold(federation, level, _stated(m), delta), certificate
    return marginal_threshold(federation, level, m, size_budget), certificate


def _pruned(
    federation: Federation,
    kind: GuaranteeKind,
    level: Fraction,
    m: int,
    delta: float,
    sigma: float,
    certificate: Certificate,
) -> Outcome:
    """The same on the clients left after pruning, whose chance of failure is paid from the level.

    marginal: pruning fails with chance beta = (1 - level)/10, so the rest covers level + beta.
    pac: a fifth of delta goes to pruning.
    """
    beta = (1 - level) / 10 if kind == "marginal" else Fraction(PRUNING_SHARE * delta)
    mask, remaining, evidence = prune(federation, m, sigma, float(beta))
    kept = federation.subset(mask)
    if kind == "marginal":
        index = marginal_threshold(kept, level + beta, remaining)
    else:
        index = pac_threshold(kept, level, remaining, delta - float(beta))
    note = pruning_note(len(evidence.exclusions), evidence.refuted, sigma, m)
    return index, replace(certificate, note=noise_note(federation, note))


def _stated(m: int | None) -> int:
    """Only the marginal mode can do with a size budget alone."""
    assert m is not None
    return m
