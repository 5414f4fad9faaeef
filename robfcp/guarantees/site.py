"""Coverage at one site: the federation's threshold for its own mix, clipped by its own data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, sqrt

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.guarantees.engine import check_budget, check_delta, check_sigma
from robfcp.guarantees.label_shift import (
    PRUNING_SHARE,
    ClassCounts,
    LabelMixes,
    accepted,
    mix_threshold,
    walks_down,
)
from robfcp.guarantees.tails import least_count

DELTA_SHARE = 0.05  # of alpha: the chance that the federation's threshold fails, paid from it
HIGH_DELTA = 0.025  # of the site's own upper end
STEPS = 1.645  # standard deviations below the level at which the site's own lower end lies


def own_mixes(sizes: NDArray[np.int64]) -> LabelMixes:
    """The mixes that n labels and one more can have: (n_c + 1[c = y]) / (n + 1)."""
    return LabelMixes.around(sizes / (sizes.sum() + 1), 1 / (sizes.sum() + 1))


def site_thresholds(
    counts: ClassCounts,
    alpha: float,
    m: int,
    sigma: float = 0.0,
    sites: Sequence[int] | None = None,
) -> NDArray[np.intp]:
    """(R,) each site's edge from the other sites' reports, for any mix its next patient can make.

    Rule T at alpha' = alpha (1 - 1/20) and delta = alpha/20, so that under declared label shift,
    while at most m of the others lie, a test point of the site is missed with probability at most
    alpha over everything; -1 where that is infinite, and for those not among `sites`.
    """
    n_sites = len(counts.ids)
    delta = check_delta(DELTA_SHARE * alpha)
    room = alpha - delta - 2 * check_sigma(sigma)  # from the others to the common, from it to here
    found = np.full(n_sites, -1, dtype=np.intp)
    active = list(range(n_sites)) if sites is None else list(sites)
    if n_sites < 2 or room <= 0 or not active:
        return found
    m = check_budget(m, n_sites - 1)
    beta, rest = PRUNING_SHARE * delta, (1 - PRUNING_SHARE) * delta

    def accepts(place: int, kept: NDArray[np.bool_], left: int, site: int | None) -> bool:
        below, sizes, mixes = (
            counts.below[place][kept],
            counts.sizes[kept],
            own_mixes(counts.sizes[site]),
        )
        return bool(accepted(below, sizes, left, mixes, room, rest).all())

    walks = walks_down(counts, m, beta, sigma, accepts, active)
    found[active] = [-1 if walk.index is None else walk.index for walk in walks]
    return found


def stranger_threshold(
    counts: ClassCounts, sizes: NDArray[np.int64], alpha: float, m: int, sigma: float = 0.0
) -> int | None:
    """The edge for a site that sent no report and holds `sizes` labels; None where infinite.

    As `site_thresholds`, with everybody who reported in the place of the others.
    """
    delta = DELTA_SHARE * alpha
    room = alpha - delta - check_sigma(sigma)  # the rule itself pays the other one
    return mix_threshold(counts, own_mixes(sizes), room, m, delta, sigma).index


@dataclass(frozen=True)
class OwnInterval:
    """A site's own order statistics: low covers a/(n+1) whatever anybody does, high is PAC."""

    low: float
    high: float
    floor: float
    n: int


def own_interval(scores: NDArray[np.float64], alpha: float) -> OwnInterval:
    """X_(a) and X_(b) of the site's n own scores.

    a = floor((1-alpha)(n+1) - 1.645 sqrt(n alpha (1-alpha))), at least 1; b least with
    P(Bin(n, 1-alpha) >= b) <= 0.025, infinite if there is none.
    """
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    n = len(ordered)
    if not n:
        raise RobfcpError("samples: there are none; pass at least one")
    a = max(1, floor((1 - alpha) * (n + 1) - STEPS * sqrt(n * alpha * (1 - alpha))))
    one = np.array([n], dtype=np.int64)
    b = int(least_count(one, 1 - alpha, HIGH_DELTA, np.zeros(1, dtype=np.int64))[0])
    high = float(ordered[b - 1]) if 1 <= b <= n else np.inf
    return OwnInterval(float(ordered[a - 1]), high, a / (n + 1), n)
