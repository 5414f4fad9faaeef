"""Where the benign clients' coverage lies at any threshold, with stated confidence."""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

from robfcp.guarantees.budgets import check_budget, check_delta
from robfcp.guarantees.engine import CountBounds, Edges
from robfcp.guarantees.tails import NOISE_SHARE

Vector = NDArray[np.float64]
STEPS = 50  # of bisection


def coverage_interval(
    bounds: CountBounds, edges: Edges, m: int, delta: float, n_edges: int
) -> tuple[Vector, Vector]:
    """(E,) lower and upper benign coverage, at all n_edges edges at once with chance 1 - delta.

    The p with N_min kl(L_m, p) <= ln(2 H/delta) below L_m, likewise above U_m: never wider than
    L_m - e, U_m + e with e = sqrt(ln(2 H/delta) / (2 N_min)). Where reports hold noise, a fifth
    of delta is shared by the noise at all edges.
    """
    m = check_budget(m, len(bounds.sizes))
    noise, sampling = bounds.split(check_delta(delta), NOISE_SHARE)
    ends = 2 * n_edges + (0 if bounds.sizes_known else 0.5)  # a hidden total counts as half an end
    one_end = noise / ends
    total = bounds.smallest_total(m, one_end / 2)
    if total < 1:
        return np.zeros(len(edges)), np.ones(len(edges))
    low, high = bounds.benign_shares(edges, m, one_end)
    radius = float(np.log(2 * n_edges / sampling) / total)
    return kl_lower(low, radius), 1 - kl_lower(1 - high, radius)


def first_vacuous(bounds: CountBounds, edge: int, delta: float, n_edges: int) -> int | None:
    """A guess of the least number of liars that leaves nothing to say; None where there is none.

    From removals that are nearly the worst where shares are nearly 0 and 1.
    """
    found = bounds.nearly_worst(edge)
    if found is None:
        return None
    low, high, total = found
    _, sampling = bounds.split(delta, NOISE_SHARE)
    radius = np.log(2 * n_edges / sampling) / np.maximum(total, 1)
    empty = (total < 1) | (_reaches_zero(low, radius) & _reaches_zero(1 - high, radius))
    guess = int(empty.argmax()) if empty.any() else None
    if guess is not None:
        bounds.foresee(np.array([edge]), [m for m in (guess - 1, guess) if m >= 0])
    return guess


def _reaches_zero(share: Vector, radius: Vector) -> NDArray[np.bool_]:
    """Whether `kl_lower` is 0, as far as the last step of its bisection tells."""
    rest = np.maximum(1 - share, 1e-300)
    return np.asarray(share * (STEPS * log(2)) + rest * np.log(rest) <= radius)


def kl_lower(share: NDArray[np.float64], radius: float | Vector) -> NDArray[np.float64]:
    """The least p <= share with kl(share, p) <= radius, from below, by bisection."""
    share = np.asarray(share, dtype=float)
    if share.size == 1 and isinstance(
        radius, float
    ):  # what certificates of one threshold ask, often
        return np.full(share.shape, _kl_lower_one(float(share.reshape(())), radius))
    low, high = np.zeros_like(share), share.copy()
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = _xlog(share, share) + _xlog(1 - share, 1 - share)
        for _ in range(STEPS):
            middle = (low + high) / 2
            far = entropy - _xlog(share, middle) - _xlog(1 - share, 1 - middle) > radius
            low, high = np.where(far, middle, low), np.where(far, high, middle)
    return np.asarray(np.where(share > 0, low, 0.0))


def _kl_lower_one(share: float, radius: float) -> float:
    """The same of one number, without arrays."""
    if share <= 0:
        return 0.0
    low, high, rest = 0.0, share, 1 - share
    entropy = share * log(share) + (rest * log(rest) if rest > 0 else 0.0)
    for _ in range(STEPS):
        middle = (low + high) / 2
        if middle <= 0:
            break
        beyond = rest * log(1 - middle) if rest > 0 else 0.0
        if entropy - share * log(middle) - beyond > radius:
            low = middle
        else:
            high = middle
    return low


def _xlog(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.where(x > 0, x * np.log(y), 0.0))
