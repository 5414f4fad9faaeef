"""Pruning that cannot expel the honest, and thresholds for a stated mix, under label shift.

Honest clients agree within classes, up to a declared sigma: given its label counts a client's
scores of class c come from F_kc with sup |F_kc - F_c| <= sigma. Clients are compared in pairs, at
one edge, over the classes both hold, so that label mixes may differ at will.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees.budgets import check_budget, check_delta, check_sigma
from robfcp.guarantees.pac import PacCondition
from robfcp.reports import OTHER

MOST_COMPARED = 300  # sites that letters and diagnostics compare pair by pair
PRUNING_SHARE = 0.2  # of delta
MOST_EDGES = 256  # looked at, fixed before the counts are: spread over the grid's bins
_PAIRS = 2**21  # client pairs times classes worked on at a time

Shares = NDArray[np.float64]
Table = NDArray[np.float64]  # (K, C)
Mask = NDArray[np.bool_]


def kl_divergence(a: Shares, p: Shares) -> Shares:
    """a ln(a/p) + (1-a) ln((1-a)/(1-p)), 0 where a is 0 or 1 as it should be."""
    a, p = np.clip(a, 0, 1), np.clip(p, 1e-15, 1 - 1e-15)
    with np.errstate(divide="ignore", invalid="ignore"):
        low = np.where(a > 0, a * np.log(a / p), 0.0)
        high = np.where(a < 1, (1 - a) * np.log((1 - a) / (1 - p)), 0.0)
    return np.maximum(low + high, 0.0)


def pair_p_values(below: Table, sizes: Table, sigma: float = 0.0) -> Shares:
    """(K, K) p-values for "both are honest" at one edge; 1 where two share no class.

    sigma = 0: given each class's pooled count, a client's counts are independent hypergeometric
    variables with mean mu and variance V in all, and 2 min(exp(-n kl(x/n, mu/n)),
    exp(-V h(|D|/V))), h(u) = (1+u) ln(1+u) - u, bounds the chance of a difference D as large
    (Hoeffding 1963; Bennett). sigma > 0: Hoeffding's 2 exp(-2 (|D| - 2 sigma H)+^2 / H),
    H = sum_c n_kc n_lc / (n_kc + n_lc).
    """
    n_clients, n_classes = sizes.shape
    found = np.ones((n_clients, n_clients))
    step = max(1, _PAIRS // max(1, n_clients * n_classes))
    for start in range(0, n_clients, step):
        rows = slice(start, min(start + step, n_clients))
        found[rows] = _p_block(below, sizes, rows, sigma)
    np.fill_diagonal(found, 1.0)
    return found


def _p_block(below: Table, sizes: Table, rows: slice, sigma: float) -> Shares:
    own, other = sizes[rows, None, :], sizes[None, :, :]
    both = (own > 0) & (other > 0)
    n_own = np.where(both, own, 0.0)
    total = np.where(both, own + other, 1.0)
    pool = np.where(both, below[rows, None, :] + below[None, :, :], 0.0) / total
    harmonic = np.where(both, own * other / total, 0.0)
    x = np.where(both, below[rows, None, :], 0.0).sum(axis=2)
    n, mean = n_own.sum(axis=2), (n_own * pool).sum(axis=2)
    if sigma > 0:
        weight = harmonic.sum(axis=2)
        excess = np.maximum(np.abs(x - mean) - 2 * sigma * weight, 0)
        p = 2 * np.exp(-2 * excess**2 / np.maximum(weight, 1e-12))
        return np.where(weight > 0, np.minimum(p, 1.0), 1.0)
    spread = harmonic * total / np.maximum(total - 1, 1)
    variance = (spread * pool * (1 - pool)).sum(axis=2)
    ratio = np.abs(x - mean) / np.maximum(variance, 1e-12)
    size = np.maximum(n, 1)
    chernoff = np.exp(-n * kl_divergence(x / size, mean / size))
    bennett = np.exp(-variance * ((1 + ratio) * np.log1p(ratio) - ratio))
    p = 2 * np.minimum(chernoff, bennett)
    return np.where((n == 0) | (variance <= 0), 1.0, np.minimum(p, 1.0))


def witnesses(n_clients: int, m: int) -> int:
    """j: how many honest witnesses beyond m must speak against a client; from K and m alone."""
    return max(1, (n_clients - 2 * m) // 4)


def prune_at(below: Table, sizes: Table, m: int, beta: float, sigma: float = 0.0) -> Mask | None:
    """Who is kept at one edge; None where more than m would have to be dropped.

    With probability >= 1 - beta no honest client is dropped, whatever m others report: a client
    is dropped when its (m' + j)-th smallest p-value p against those present has
    p (K - 1 - m) / j <= beta / K; m' falls by the number dropped, and the passes cost nothing.
    """
    n_clients = len(sizes)
    j = witnesses(n_clients, m)
    if m == 0 or m + j > n_clients - 1:
        return np.ones(n_clients, dtype=bool)
    p = pair_p_values(below, sizes, sigma)
    np.fill_diagonal(p, 9.0)
    return prune_from(p, m, beta, j)


def prune_from(p: Shares, m: int, beta: float, j: int) -> Mask | None:
    """The same from the p-values, a client's own set beyond 1."""
    n_clients = len(p)
    kept, left = np.ones(n_clients, dtype=bool), m
    while True:
        present = np.flatnonzero(kept)
        place = left + j - 1
        rank = np.partition(p[np.ix_(present, present)], place, axis=1)[:, place]
        odd = rank * (n_clients - 1 - m) / j <= beta / n_clients
        if not odd.any():
            return kept
        if odd.sum() > left:
            return None
        kept[present[odd]] = False
        left -= int(odd.sum())


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
    if federation.n_private:
        raise RobfcpError("label_shift: is not proved for private reports; leave it out")
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

    `contradiction` says that it ended where more clients than m disagree.
    """

    index: int | None
    dropped: tuple[str, ...]
    contradiction: bool = False
    clients: tuple[str, ...] = ()  # who was compared


def pruned_pac(
    federation: Federation, level: Fraction, m: int, delta: float, sigma: float = 0.0
) -> Walk:
    """The threshold of rule PC: prune, then the PAC condition on those kept, edge by edge.

    With probability >= 1 - delta it covers `level` of the honest clients' pool, whatever m of them
    report: acceptance is tested afresh at every edge of a list fixed beforehand, from the top down,
    and the threshold is the last edge before the first refusal.
    """
    counts = class_counts(federation)
    m = check_budget(m, len(counts.ids))
    beta, rest = PRUNING_SHARE * check_delta(delta), (1 - PRUNING_SHARE) * delta
    check_sigma(sigma)
    conditions: dict[bytes, PacCondition] = {}
    found: int | None = None
    dropped: tuple[str, ...] = ()
    contradiction = False
    totals = counts.sizes.sum(axis=1)
    for place in range(len(counts.edges) - 1, -1, -1):
        below = counts.below[place]
        kept = prune_at(below.astype(float), counts.sizes.astype(float), m, beta, sigma)
        if kept is None:
            contradiction = True
            break
        key = kept.tobytes()
        if key not in conditions:
            left = m - int((~kept).sum())
            conditions[key] = PacCondition(totals[kept], left, level, rest)
        if not conditions[key].holds(below.sum(axis=1)[kept][None, :])[0]:
            break
        found = int(counts.edges[place])
        dropped = tuple(counts.ids[k] for k in np.flatnonzero(~kept))
    return Walk(found, dropped, contradiction, counts.ids)
