"""Thresholds that cover whatever at most m clients do.

What is computed here needs exchangeable samples within each client and nothing else; the
thresholds with a stated confidence (`robfcp.guarantees.tails`) need independent ones.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.federation import Federation
from robfcp.guarantees.budgets import check_budget
from robfcp.guarantees.engine import (
    CountBounds,
    Edges,
    first_edge,
    integers,
    scaled_margins,
    sum_of_largest,
)
from robfcp.guarantees.rank import RankRule, rank_charge
from robfcp.guarantees.tails import bounds_of


def marginal_threshold(
    federation: Federation,
    level: Fraction,
    m: int | None = None,
    samples: int | None = None,
    rule: RankRule = rank_charge,
) -> int | None:
    """The first edge that covers at `level` whatever <= m clients (or W samples) do; None = inf.

    The first t at which sum_S g_k(t) >= 1 for every S that leaves out at most m clients, where
    g_k = c_k - level n_k: the sum over all without the m largest positive ones. It is the largest
    of FCP's thresholds over all clients that could be the benign ones. Noise is allowed for, with
    a chance that is paid from the level.
    """
    if m is not None:
        m = check_budget(m, federation.n_clients)
    bounds = bounds_of(federation)
    if samples is not None:
        bounds.require_sizes("samples")

    def holds(edges: Edges) -> NDArray[np.bool_]:
        margins, allowance = _needed(bounds, edges, level, rule)
        enough = np.zeros(len(edges), dtype=bool)
        if m is not None:
            enough |= (slack(margins, m) >= allowance).astype(bool)
        if samples is not None and not enough.all():
            enough |= [
                samples_hold(row, bounds.sizes, samples, int(needed))
                for row, needed in zip(margins, allowance, strict=True)
            ]
        return enough

    return bounds.search(holds)


def slack(margins: NDArray[Any], m: int) -> NDArray[Any]:
    """(E,) the least sum of the margins over all S that leave out at most m clients."""
    return np.asarray(margins.sum(axis=1) - sum_of_largest(margins, m))


def robust_step(losses: NDArray[Any], bound: int, m: int) -> int | None:
    """The first step at which sum_S psi + B <= 0 for every S that leaves out at most m clients.

    `losses` (E, K) are each client's summed psi at rising steps: whole numbers that fall with the
    step, psi = loss - alpha for a risk, 1{y = c}(miss - alpha) for a class, weight (miss - alpha)
    for stated weights, all in one fixed-point unit; B bounds how far one sample can move psi. Then
    sum n_k E psi <= 0 over the honest clients, whatever the others report; None where no step does.
    """
    margins = -np.asarray(losses)
    check_budget(m, margins.shape[1])
    holds = slack(margins, m) >= bound
    return int(np.argmax(holds)) if holds.any() else None


def samples_hold(
    margins: NDArray[Any], sizes: NDArray[np.int64], budget: int, allowance: int = 0
) -> bool:
    """Whether every S whose complement has at most `budget` samples keeps its allowance.

    Sound, not exact: the knapsack of removals is relaxed to fractions and bounded by its dual,
    max sum_R g <= lambda W + sum (g_k - lambda n_k)+, lambda = g_j / n_j of the item that breaks.
    """
    if budget >= int(np.sum(sizes)):
        return False
    total = int(margins.sum()) - allowance
    removable = (margins > 0) & (np.asarray(sizes) <= budget)
    gains, weights = margins[removable], np.asarray(sizes)[removable]
    order = np.argsort(-(gains / weights).astype(float), kind="stable")
    filled = np.cumsum(weights[order])
    if not filled.size or filled[-1] <= budget:
        return total - int(gains.sum()) >= 0
    breaking = order[int(np.searchsorted(filled, budget, side="right"))]
    gain, weight = int(gains[breaking]), int(weights[breaking])
    exact = gains.astype(object) * weight - gain * weights.astype(object)
    return total * weight - gain * budget - int(np.maximum(exact, 0).sum()) >= 0


def most_liars(bounds: CountBounds, edges: Edges, level: Fraction) -> NDArray[np.int64]:
    """(E,) the largest m < K for which each edge meets the marginal condition, -1 for none.

    It rises with the edge, so that the thresholds for all m are found by one bisection. Where
    counts may fall the condition must hold at all edges above too.
    """
    places, where = np.unique(edges, return_inverse=True)
    if bounds.falling:
        where = np.asarray(edges) - places[0]
        places = bounds.edges_from(int(places[0]))
    margins, allowance = _needed(bounds, places, level, rank_charge)
    total = margins.sum(axis=1) - allowance
    gains = np.cumsum(-np.sort(-np.maximum(margins, 0), axis=1), axis=1)
    survived = np.minimum((gains <= total[:, None]).sum(axis=1), len(bounds.sizes) - 1)
    survived = np.where((total < 0).astype(bool), -1, survived)
    if bounds.falling:
        survived = np.minimum.accumulate(survived[::-1])[::-1]
    return np.asarray(survived[where], dtype=np.int64)


def _needed(
    bounds: CountBounds, edges: Edges, level: Fraction, rule: RankRule
) -> tuple[NDArray[Any], NDArray[Any]]:
    """(E, K) scaled margins at the level that leaves room for noise, and what they must exceed."""
    beta = bounds.level_share(level)
    wanted = level + beta
    charge = rule(wanted, len(bounds.sizes))
    margins = scaled_margins(bounds, edges, wanted, extra=1 if charge.per_client else 0)
    in_all = bounds.parts * int(charge.in_all * wanted.denominator)
    return margins, bounds.scaled_allowance(edges, wanted, float(beta)) + in_all


def liars_forcing_full_sets(
    sizes: NDArray[np.int64], level: Fraction, m: int | None = None
) -> int | None:
    """The least number of liars that can push the marginal threshold to the top edge.

    Against a rule told `m`; without m, the least j that defeats a rule told j. The liars are the
    j largest clients and put everything into the last bin, the others everything into the first:
    fewer may do on other reports. None where no number below K does.
    """
    sizes = np.sort(np.asarray(sizes, dtype=np.int64))[::-1]
    position = np.arange(len(sizes))
    p, q = level.numerator, level.denominator
    wide = integers(sizes, q * (int(sizes.sum()) + 2 * len(sizes)))
    in_all = int(rank_charge(level, len(sizes)).in_all * q)

    def full(extra: int) -> bool:
        liars = extra + 1
        below = np.where(position < liars, 0, wide)
        margins = q * below - p * wide
        return bool(slack(margins[None, :], liars if m is None else m)[0] < in_all)

    found = first_edge(len(sizes) - 1, full)
    return None if found is None else found + 1


def liars_no_rule_survives(sizes: NDArray[np.int64], level: Fraction) -> int | None:
    """The least m at which no rule that guarantees `level` against m can avoid full sets.

    m clients report all mass at the top; they lie, or they are honest and m others mimic the
    rest: the reports are the same. Sizes n_k, largest first: the least m with
    sum_{k<=m} n_k > (1 - level) (N - sum_{m<k<=2m} n_k), at most K/2.
    """
    weights = np.sort(np.asarray(sizes, dtype=np.int64))[::-1]
    running = np.concatenate([[0], np.cumsum(weights)])
    candidates = np.arange(1, len(weights) // 2 + 1)
    liars = running[candidates]
    rest = running[-1] - (running[2 * candidates] - liars)
    p, q = level.numerator, level.denominator
    exact = [q * int(a) > (q - p) * int(b) for a, b in zip(liars, rest, strict=True)]
    return int(candidates[exact.index(True)]) if any(exact) else None
