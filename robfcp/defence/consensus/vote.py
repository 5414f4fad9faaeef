"""The threshold of those who stay: a vote in which nobody may vouch for too much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.consensus.constants import Constants
from robfcp.defence.consensus.evidence import ratios
from robfcp.defence.consensus.law import by_bin, usual_spread
from robfcp.defence.consensus.tables import drawn, tables_of
from robfcp.defence.copies import Copies
from robfcp.federation import Federation
from robfcp.guarantees import Exchangeability, FcpThreshold, conformal_rank

OBJECTION = 4.0  # times what a site may vouch for is what it may object with
CLOSER = 0.3  # the quantile of oddities that gives the heterogeneity: liars would widen later ones
LEAST, WIDEST = 1e-6, 0.3  # heterogeneity below and beyond which nothing is learnt
_NORMAL = 300  # samples from which on a share is taken as normal
_SIZES = 32  # sizes of which the law is computed; others lie between them
_CELLS = 2**22  # shares at every edge that are kept

Array = NDArray[np.float64]


class VotedThreshold:
    """FCP's threshold, raised where some vouch for more than their samples can show.

    At an edge t a site's share F_k(t) counts as g_k(F_k(t) - L) - e_k: g_k(x) is x cut off at b_k
    above and at 4 b_k below, b_k = c s_k, s_k^2 = L (1 - L) (1/n_k + phi), and e_k is the mean of
    g_k(X/n_k - L) for X beta-binomial. The edge is the first at or beyond FCP's with
    sum_k w_k [g_k(F_k(t) - L + v) - e_k] >= 0, v the standard deviation of the difference between
    vote and mean when nobody lies, less 1/N. Weights are sizes, at most `cap` times the median
    unless registered; copies speak once, with the least of their shares.
    """

    def __init__(
        self,
        federation: Federation,
        trusted: NDArray[np.bool_],
        exchangeability: Exchangeability,
        copies: Sequence[Copies],
        constants: Constants,
    ) -> None:
        self._plain = FcpThreshold(federation, trusted, exchangeability)
        kept = federation.subset(trusted)
        self._rank = (kept.n_samples, kept.n_clients, exchangeability)
        self._kept, self._constants = kept, constants
        self._sizes = kept.sizes.astype(np.float64)
        self._weights = self._sizes.copy()
        if not federation.registered:
            most = constants.cap * float(np.median(federation.sizes))
            self._weights = np.minimum(self._sizes, most)
        place = {client: k for k, client in enumerate(kept.ids)} if copies else {}
        groups = [[place[c] for c in group.clients if c in place] for group in copies]
        self._groups = [group for group in groups if len(group) > 1]
        for group in self._groups:
            self._weights[group[0]] = self._weights[group].max()
            self._weights[group[1:]] = 0
        self._uneven = bool((self._weights != self._sizes).any())
        self._phi: float | None = None
        few = kept.n_clients * kept.grid.n_bins <= _CELLS
        self._below = kept.cumulative() if few else None

    def index(self, level: Fraction) -> int | None:
        """The threshold's edge; None = infinite."""
        first = self._first(level)
        if first is None or self._kept.n_clients < 3:
            return first
        share, weights = float(level), self._weights
        limits, means, spread = _laws(self._sizes, share, self._heterogeneity(), self._constants)
        total = weights.sum()
        allowed = float(np.sqrt((weights**2 * spread**2).sum()) / total)
        wanted = share - max(allowed - 1 / total, 0.0)

        def accepted(edge: int) -> bool:
            votes = np.clip(self._shares(edge) - wanted, -OBJECTION * limits, limits) - means
            return float(weights @ votes) >= -1e-9 * total

        low, high = first, self._kept.grid.n_bins - 1
        if not accepted(high):
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if accepted(middle) else (middle + 1, high)
        return low

    def _first(self, level: Fraction) -> int | None:
        """FCP's edge with these weights; exact where they are the sizes."""
        if not self._uneven:
            return self._plain.index(level)
        n_samples, n_clients, exchangeability = self._rank
        wanted = conformal_rank(level, n_samples, n_clients, exchangeability) / n_samples
        if wanted > 1:
            return None
        total, last = self._weights.sum(), self._kept.grid.n_bins - 1
        low, high = 0, last
        while low < high:
            middle = (low + high) // 2
            enough = self._weights @ self._shares(middle) >= wanted * total * (1 - 1e-12)
            low, high = (low, middle) if enough else (middle + 1, high)
        return low

    def _shares(self, edge: int) -> Array:
        """(K,) F_k at an edge; of copies the least."""
        if self._below is None:
            found: Array = self._kept.below(edge) / self._sizes
        else:
            found = self._below[:, edge] / self._sizes
        for group in self._groups:
            found[group[0]] = found[group].min()
        return found

    def _heterogeneity(self) -> float:
        """phi such that the closer 30% of those kept are as close as they should be."""
        if self._phi is None:
            kept = replace(self._kept, strata=None)
            some = np.zeros(kept.n_clients, dtype=bool)
            some[drawn(kept.n_clients, kept.pooled())] = True
            pooled = tables_of(kept.subset(some), (), self._constants.cap)
            ratio = ratios(pooled, np.ones(pooled.shape[0], dtype=bool))
            law = self._constants.mixed, by_bin(pooled), self._constants.freedom
            needed = usual_spread(ratio, CLOSER, *law) / pooled.sizes
            phi = min(float(np.quantile(needed, CLOSER)), WIDEST)
            self._phi = float(f"{phi:.1e}") if phi >= LEAST else 0.0
        return self._phi


def _laws(
    sizes: Array, level: float, phi: float, constants: Constants
) -> tuple[Array, Array, Array]:
    """(K,) each: b_k, e_k and the standard deviation of the mean less the vote's answer."""
    deviation = np.sqrt(level * (1 - level) * (1 / sizes + phi))
    every = np.unique(np.minimum(sizes, _NORMAL + 1)).astype(np.int64)
    if len(every) > _SIZES:
        every = np.unique(np.round(np.geomspace(every[0], every[-1], _SIZES)).astype(np.int64))
    known = _in_deviations(tuple(every.tolist()), level, phi, constants.vouch)
    means, spread = (np.interp(np.log(sizes), np.log(every), column) for column in known)
    return constants.vouch * deviation, means * deviation, spread * deviation


@lru_cache(maxsize=4096)
def _in_deviations(
    sizes: tuple[int, ...], level: float, phi: float, vouch: float
) -> tuple[Array, Array]:
    """(S,) each: e and the standard deviation, in units of s, for X beta-binomial.

    Variance n^2 s^2; beyond 300 samples a normal X, for which these are the same for all sizes.
    """
    n = np.array(sizes)[:, None]
    hits = np.arange(n.max() + 1)
    rest = np.maximum(n - hits, 0)
    deviation = np.sqrt(level * (1 - level) * (1 / n + phi))
    logs = np.where(hits <= n, _log_chances(hits, rest, level, phi), -np.inf)
    mean, spread = _mean_and_spread((hits / n - level) / deviation, logs, vouch)
    if sizes[-1] > _NORMAL:
        values = np.linspace(-6, 6, 1201)[None]
        (mean[-1],), (spread[-1],) = _mean_and_spread(values, -(values**2) / 2, vouch)
    return mean, spread


def _log_chances(
    hits: NDArray[np.int64], rest: NDArray[np.int64], level: float, phi: float
) -> Array:
    """(S, n + 1) logarithms of the chances of so many hits, up to a constant for each size."""
    from scipy.special import gammaln

    def risen(start: float) -> Array:
        return np.asarray(gammaln(np.arange(len(hits)) + start), dtype=np.float64)

    ways = -risen(1.0)
    if phi < LEAST:
        below, above = hits * np.log(level), rest * np.log1p(-level)
    else:
        strength = 1 / phi - 1
        below, above = risen(level * strength)[hits], risen((1 - level) * strength)[rest]
    found: Array = ways[hits] + ways[rest] + below + above
    return found


def _mean_and_spread(values: Array, logs: Array, vouch: float) -> tuple[Array, Array]:
    """(S,) the mean of the cut values, and how far the uncut are from what the vote answers."""
    masses = np.exp(logs - logs.max(axis=1, keepdims=True))
    masses /= masses.sum(axis=1, keepdims=True)
    votes = np.clip(values, -OBJECTION * vouch, vouch)
    mean = (masses * votes).sum(axis=1)
    inside = (masses * ((values < vouch) & (values > -OBJECTION * vouch))).sum(axis=1)
    answer = (votes - mean[:, None]) / np.maximum(inside, 0.05)[:, None]
    return mean, np.sqrt((masses * (values - answer) ** 2).sum(axis=1))
