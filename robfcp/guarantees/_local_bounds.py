"""Thresholds held by samples of one's own: a site's, for its own mix, and the server's anchor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from robfcp.certificates import Assumption, Certificate
from robfcp.errors import RobfcpError
from robfcp.guarantees import _label_shift
from robfcp.guarantees._label_shift import ClassCounts, LabelDistributions
from robfcp.guarantees._tail_bounds import critical_loss_drops, min_count
from robfcp.guarantees._worst_case import IntArray, check_delta, check_heterogeneity

DELTA_FRACTION = 0.05  # of alpha: the chance that the federation's threshold fails, paid from it
HIGH_DELTA = 0.025  # of the site's own upper end
LOW_DELTA = 0.05  # that the site's own lower end raises a threshold that covers


def possible_label_distributions(sizes: IntArray) -> LabelDistributions:
    """The mixes that n labels and one more can have: (n_c + 1[c = y]) / (n + 1)."""
    return LabelDistributions.around(sizes / (sizes.sum() + 1), 1 / (sizes.sum() + 1))


def client_thresholds(
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
    n_sites, delta = len(counts.clients), check_delta(DELTA_FRACTION * alpha)
    room = (
        alpha - delta - 2 * check_heterogeneity(sigma)
    )  # from the others to the common, from it to here
    found = np.full(n_sites, -1, dtype=np.intp)
    active = list(range(n_sites)) if sites is None else list(sites)
    if n_sites < 2 or room <= 0 or not active:
        return found

    def accepts(below: IntArray, held: IntArray, left: int, rest: float, site: int | None) -> bool:
        mixes = possible_label_distributions(counts.class_sizes[site])
        return bool(_label_shift.accepts_distributions(below, held, left, mixes, room, rest).all())

    walks = _label_shift.fixed_sequence_thresholds(counts, m, delta, sigma, accepts, active)
    found[active] = [-1 if walk.bin_index is None else walk.bin_index for walk in walks]
    return found


def unseen_client_threshold(
    counts: ClassCounts, sizes: IntArray, alpha: float, m: int, sigma: float = 0.0
) -> int | None:
    """The edge for a site that sent no report and holds `sizes` labels; None where infinite.

    As `client_thresholds`, with everybody who reported in the place of the others.
    """
    delta = DELTA_FRACTION * alpha
    room = alpha - delta - check_heterogeneity(sigma)  # the rule itself pays the other one
    return _label_shift.label_distribution_threshold(
        counts, possible_label_distributions(sizes), room, m, delta, sigma
    ).bin_index


def clipping_ranks(n: int, level: float, low: float, high: float) -> tuple[int, int]:
    """a and b of max(X_(a), min(t, X_(b))), the rule for n samples of one's own.

    a: the largest with P(Bin(n, level) <= a - 1) <= low, at least 1: X_(a) covers a/(n+1) on
    average whatever anybody does, and rarely raises a t that covers the level. b: the least with
    P(Bin(n, level) >= b) <= high, so that X_(b) rarely covers less than it; n + 1 if there is none.
    """
    one, zero = np.array([n], dtype=np.int64), np.zeros(1, dtype=np.int64)
    missed = int(min_count(one, 1 - level, low, zero)[0])
    return max(1, n + 1 - missed), int(min_count(one, level, high, zero)[0])


@dataclass(frozen=True)
class LocalThresholdRange:
    """A site's own order statistics: low covers a/(n+1) whatever anybody does, high is PAC."""

    low: float
    high: float
    marginal_lower: float
    n: int


def local_threshold_range(scores: NDArray[np.float64], alpha: float) -> LocalThresholdRange:
    """X_(a) and X_(b) of the site's n own scores; X_(b) covers 1-alpha with 97.5% confidence."""
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    n = len(ordered)
    if not n:
        raise RobfcpError("samples: there are none; pass at least one")
    a, b = clipping_ranks(n, 1 - alpha, LOW_DELTA, HIGH_DELTA)
    high = float(ordered[b - 1]) if b <= n else np.inf
    return LocalThresholdRange(float(ordered[a - 1]), high, a / (n + 1), n)


def local_lambda_range(
    gains: IntArray, n: int, unit: int, level: Fraction, lambdas: NDArray[np.float64]
) -> LocalThresholdRange:
    """The same of n losses of one's own, from what they fall by at each lambda, in parts of 1/unit.

    low: conformal risk control at a' = alpha + sqrt(alpha (1 - alpha) / n), 2/(n+1) at least: the
    least lambda whose summed loss R has (R + 1)/(n + 1) <= a', so that any lambda held at or above
    it costs at most a' = 1 - floor on average, whatever anybody does. The slack is a deviation of
    n losses, so that chance alone seldom raises a lambda that keeps alpha here. high: the least
    whose summed gain n samples of a mean loss above alpha rarely have (97.5%).
    """
    alpha, kept = float(1 - level), np.cumsum(gains)
    held = min(1.0, max(alpha + (alpha * (1 - alpha) / n) ** 0.5, 2 / (n + 1)))
    least = unit * n - int(unit * ((n + 1) * held - 1))
    needed = critical_loss_drops(np.array([n], dtype=np.int64), level, HIGH_DELTA, unit)[0]
    low, high = np.append(lambdas, np.inf)[np.searchsorted(kept, [least, needed])].tolist()
    return LocalThresholdRange(low, high, 1 - held, n)


class TrustedInterval(NamedTuple):
    """Trusted samples at the server, in no report: between which edges the threshold is held.

    `floor`: what is covered on average whoever lies, a/(n+1). `high` is None where there are too
    few samples, or where a promise on average would not survive it. `delta`: the chance with which
    a threshold at `high` covers less than the level.
    """

    low: int
    high: int | None
    marginal_lower: float | None
    n: int
    delta: float
    note: str = ""

    @staticmethod
    def from_counts(counts: IntArray, level: Fraction, delta: float) -> TrustedInterval:
        """Of the trusted samples' (H,) counts: a score in a bin counts as the bin's upper edge."""
        running = np.cumsum(counts)
        n = int(running[-1])
        a, b = clipping_ranks(n, float(level), delta, delta)
        low, high = np.searchsorted(running, [a, b]).tolist()
        return TrustedInterval(low, high if b <= n else None, a / (n + 1), n, delta)

    def lower_only(self) -> TrustedInterval:
        """The same without an upper end."""
        return self._replace(high=None)

    def clip(self, edge: int | None) -> int | None:
        """The edge held between the two; None = infinite."""
        if self.high is not None:
            edge = self.high if edge is None else min(edge, self.high)
        return None if edge is None else max(edge, self.low)

    def annotate(self, certificate: Certificate) -> Certificate:
        """With what the samples prove: the floor, and their part of the confidence if they cut."""
        promised = certificate.kind != "any-threshold" and certificate.confidence is not None
        text = f"{self.n} trusted samples, in no report, are like the new cases (exchangeable)"
        spent = self.delta if promised and self.high is not None else 0.0
        return msgspec.structs.replace(
            certificate,
            floor=self.marginal_lower,
            trusted=self.n,
            note="; ".join(filter(None, [certificate.note, self.note])),
            confidence=None if certificate.confidence is None else certificate.confidence - spent,
            assumptions=(*certificate.assumptions, Assumption("anchor", self.n, text)),
        )
