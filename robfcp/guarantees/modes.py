"""The guaranteed modes: a threshold together with the certificate that goes with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from robfcp.federation import Federation
from robfcp.guarantees.alike import homogeneous_threshold
from robfcp.guarantees.certificate import (
    FULL,
    Certificate,
    GuaranteeKind,
    guarantee_certificate,
    noise_note,
    pruning_note,
)
from robfcp.guarantees.levels import Exchangeability
from robfcp.guarantees.marginal import marginal_threshold
from robfcp.guarantees.pac import pac_threshold
from robfcp.guarantees.pruning import PRUNING_SHARE, ClientIntervals, prune

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
