"""All that can be proved about a round, side by side, for several budgets of liars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from robfcp._exact import check_budget
from robfcp.certificates import Certificate, certify
from robfcp.envelope import envelope
from robfcp.federation import Federation
from robfcp.guarantees import liars_forcing_full_sets, tolerance
from robfcp.modes import guaranteed
from robfcp.private_certificates import private_survived
from robfcp.private_thresholds import private_index
from robfcp.published_bounds import PublishedBound, PublishedSetting, theorem_1
from robfcp.quantiles import conformal_rank, threshold_index

PAPER_BINS = 100


@dataclass(frozen=True)
class Budget:
    """What holds if at most m clients lie, at one confidence level.

    `certificate` speaks of the threshold in use; `survived` is the level that threshold is still
    guaranteed on average; `marginal`, `pac` and `homogeneous` are the thresholds that would be
    guaranteed at the wanted level (infinity: full sets; None: not asked for); `paper` is the
    paper's bound as published, None where it does not apply.
    """

    m: int
    certificate: Certificate
    survived: float
    marginal: float
    pac: float
    homogeneous: float | None
    full_sets_from: int | None
    paper: PublishedBound | None


@dataclass(frozen=True)
class WhatIf:
    """One confidence level: the threshold in use, its tolerance and a row for every budget.

    `curve` holds the level guaranteed on average against 0, 1, 2, ... liars.
    """

    level: Fraction
    threshold: float
    tolerance: int | None
    budgets: tuple[Budget, ...]
    curve: tuple[float, ...]


def what_if(
    federation: Federation,
    level: Fraction,
    index: int | None,
    budgets: Sequence[int],
    *,
    confidence: float = 0.95,
    sigma: float | None = None,
    track: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> WhatIf:
    """Every certificate at one level for each budget, of the threshold at this edge.

    `track` wraps the budgets while they are worked through, for a progress bar.
    """
    curve = survived_levels(federation, index, max(budgets))
    rows = tuple(_budget(federation, level, m, index, curve[m], confidence, sigma) for m in budgets)
    survives = tolerance(federation, index, level)
    return WhatIf(level, _edge(federation, index), survives, rows, curve)


def _budget(
    federation: Federation,
    level: Fraction,
    m: int,
    index: int | None,
    survived: float,
    confidence: float,
    sigma: float | None,
) -> Budget:
    m = check_budget(m, federation.n_clients)

    def threshold(kind: str) -> float:
        found, _ = guaranteed(
            federation,
            kind,  # type: ignore[arg-type]
            level,
            m,
            confidence=confidence,
            sigma=sigma,
        )
        return _edge(federation, found)

    return Budget(
        m,
        certify(federation, index, m, confidence, sigma=sigma),
        survived,
        threshold("marginal"),
        threshold("pac"),
        None if sigma is None else threshold("pac-homogeneous"),
        liars_forcing_full_sets(federation.sizes, level, m) if m else None,
        _published(federation, level, m),
    )


def survived_levels(federation: Federation, index: int | None, most: int) -> tuple[float, ...]:
    """The tolerance curve: the highest level guaranteed on average against 0..most liars.

    min over removals R, |R| <= m, of count_S / (N_S + |S|): the envelope with n_k + 1 for n_k.
    """
    if index is None:
        return (1.0,) * (most + 1)
    if federation.private:
        return private_survived(federation, index, most)
    below, weights = federation.below(index), federation.sizes + 1
    return tuple(float(envelope(below, weights, m)[0]) for m in range(most + 1))


def plain_index(federation: Federation, level: Fraction, trusted: NDArray[np.bool_]) -> int | None:
    """The edge of FCP's threshold on the trusted clients; None = infinite."""
    if federation.private:
        return private_index(federation.subset(trusted), level)
    n_samples = int(federation.sizes[trusted].sum())
    rank = conformal_rank(level, n_samples, int(trusted.sum()))
    return threshold_index(federation.pooled(trusted), rank)


def default_budgets(n_clients: int) -> tuple[int, ...]:
    """Nobody, one, two, and 5, 9, 20 and 40% of the clients."""
    shares = [n_clients * percent // 100 for percent in (5, 9, 20, 40)]
    return tuple(sorted({m for m in (0, 1, 2, *shares) if m < n_clients}))


def _edge(federation: Federation, index: int | None) -> float:
    return np.inf if index is None else float(federation.grid.upper[index])


def _published(federation: Federation, level: Fraction, m: int) -> PublishedBound | None:
    """Theorem 1 with sigma = 0, most favourable to it, if the m largest clients lie."""
    if m >= federation.n_clients - m:
        return None
    ordered = np.sort(federation.sizes)
    liars = int(ordered[len(ordered) - m :].sum())
    return theorem_1(
        PublishedSetting(
            federation.n_clients - m, m, int(ordered[0]), liars, PAPER_BINS, float(level)
        )
    )
