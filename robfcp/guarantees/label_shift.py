"""Pruning that cannot expel the honest, and the PAC threshold after it, under label shift.

Honest clients agree within classes, up to a declared sigma: given its label counts a client's
scores of class c come from F_kc with sup |F_kc - F_c| <= sigma. Clients are compared in pairs, at
one edge, over the classes both hold, so that label mixes may differ at will.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees.budgets import check_budget, check_delta, check_sigma
from robfcp.guarantees.pac import PacCondition
from robfcp.guarantees.pairs import Mask, Pairs
from robfcp.reports import OTHER

MOST_COMPARED = 300  # sites that letters and diagnostics compare pair by pair
PRUNING_SHARE = 0.2  # of delta
MOST_EDGES = 256  # looked at, fixed before the counts are: spread over the grid's bins


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """(E, K, C) counts at or below each edge looked at, (K, C) sizes, and the edges' numbers."""

    below: NDArray[np.int64]
    sizes: NDArray[np.int64]
    edges: NDArray[np.intp]
    ids: tuple[str, ...]
    names: tuple[str, ...]


def class_counts(federation: Federation) -> ClassCounts:
    """The counts by class of the clients that report them, at a list of edges fixed beforehand.

    Whoever merged thin classes is left out: what it merged is no class that clients share.
    """
    strata = federation.strata
    if strata is None or strata.by != "class":
        raise RobfcpError("label_shift: needs reports by class; sketch them with labels")
    federation.noise.refuse("label_shift: is not proved for private reports; leave it out")
    n_bins, n_strata = strata.n_bins, strata.n_strata
    edges = fixed_edges(n_bins)
    ends = (np.arange(n_strata)[:, None] * n_bins + np.append(edges, n_bins - 1)[None, :]).ravel()
    ends = np.unique(ends)
    merged = strata.table.merged(ends).reshape(len(strata.rows), n_strata, -1)
    shown = np.array([name != OTHER for name in strata.labels])
    whole = merged[:, ~shown].sum(axis=(1, 2)) == 0
    if whole.sum() < 1:
        raise RobfcpError("label_shift: every site merged classes; sketch without --least")
    below = np.cumsum(merged[whole][:, shown], axis=2)
    looked = below[:, :, : len(edges)]
    return ClassCounts(
        np.ascontiguousarray(looked.transpose(2, 0, 1)),
        below[:, :, -1],
        edges,
        tuple(federation.ids[k] for k in strata.rows[whole]),
        tuple(name for name in strata.labels if name != OTHER),
    )


def fixed_edges(n_bins: int) -> NDArray[np.intp]:
    """At most MOST_EDGES edges spread evenly over the bins; the top edge among them."""
    if n_bins <= MOST_EDGES:
        return np.arange(n_bins)
    return np.unique(np.linspace(0, n_bins - 1, MOST_EDGES).round().astype(np.intp))


@dataclass(frozen=True)
class Walk:
    """Where a walk from the top edge down ended: the last edge accepted, and who was dropped there.

    `contradiction` says that more than m clients would have to be dropped at an edge on the way:
    label shift or m cannot be as declared, and nothing is certified.
    """

    index: int | None
    dropped: tuple[str, ...]
    contradiction: bool = False
    clients: tuple[str, ...] = ()  # who was compared
    too_few: tuple[str, ...] = ()  # classes with too few honest holders


def walk_down(
    counts: ClassCounts,
    m: int,
    beta: float,
    sigma: float,
    accepts: Callable[[int, Mask, int], bool],
) -> Walk:
    """From the top edge down while `accepts(place, kept, left)` of those left by pruning.

    Where acceptance at every fixed edge that covers too little has a chance of at most delta, so
    has a threshold that covers too little; edges are tested afresh, and acceptance need not be
    monotone. A contradiction makes the threshold infinite, which covers everything.
    """
    pairs = Pairs(counts.sizes)
    found: int | None = None
    dropped: tuple[str, ...] = ()
    for place in range(len(counts.edges) - 1, -1, -1):
        kept = pairs.kept(counts.below[place], m, beta, sigma)
        if kept is None:
            return Walk(None, (), True, counts.ids)
        if not accepts(place, kept, m - int((~kept).sum())):
            break
        found = int(counts.edges[place])
        dropped = tuple(counts.ids[k] for k in np.flatnonzero(~kept))
    return Walk(found, dropped, False, counts.ids)


@lru_cache(maxsize=64)
def _condition(sizes: tuple[int, ...], m: int, level: Fraction, delta: float) -> PacCondition:
    """The PAC condition of clients of these sizes: the same at most edges, and in most rounds."""
    return PacCondition(np.array(sizes, dtype=np.int64), m, level, delta)


def pruned_pac(
    counts: ClassCounts, level: Fraction, m: int, delta: float, sigma: float = 0.0
) -> Walk:
    """The threshold of rule PC: prune, then the PAC condition on those kept, edge by edge.

    With probability >= 1 - delta it covers `level` of the honest clients' pool, whatever m of them
    report.
    """
    m = check_budget(m, len(counts.ids))
    beta, rest = PRUNING_SHARE * check_delta(delta), (1 - PRUNING_SHARE) * delta
    check_sigma(sigma)
    totals = counts.sizes.sum(axis=1)

    def accepts(place: int, kept: Mask, left: int) -> bool:
        condition = _condition(tuple(totals[kept].tolist()), left, level, rest)
        covered = counts.below[place].sum(axis=1)[kept]
        return bool(condition.holds(covered[None, :])[0])

    return walk_down(counts, m, beta, sigma, accepts)
