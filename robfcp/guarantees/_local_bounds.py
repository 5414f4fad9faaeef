"""Thresholds that trusted samples hold: a client's own for its own mix, and the server's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import msgspec
import numpy as np

from robfcp._typing import FloatArray, IndexArray, IntArray
from robfcp.certificates import Assumption, Certificate
from robfcp.errors import RobfcpError
from robfcp.guarantees import _label_shift_thresholds as shift
from robfcp.guarantees._checks import check_delta, check_heterogeneity
from robfcp.guarantees._label_distributions import LabelDistributions
from robfcp.guarantees._label_shift_thresholds import BinEvidence, ClassCounts
from robfcp.guarantees._tail_bounds import critical_loss_drops, min_count

# The probability that the federation's threshold fails, as a fraction of the target miss rate
# alpha, from which it is taken.
DELTA_FRACTION = 0.05

# The probability that a client's own upper end covers too little.
HIGH_DELTA = 0.025

# The probability that its own lower end raises a threshold that covers.
LOW_DELTA = 0.05


def possible_label_distributions(sizes: IntArray) -> LabelDistributions:
    """Return the mixes that n labels and one more can have: (n_c + 1[c = y]) / (n + 1).

    Parameters
    ----------
    sizes : ndarray of shape (C,)
        n_c, the client's labels of each class.
    """
    n_labels = sizes.sum() + 1  # with the next one
    return LabelDistributions.around(sizes / n_labels, 1 / n_labels)


def client_thresholds(
    counts: ClassCounts,
    alpha: float,
    m: int,
    sigma: float = 0.0,
    clients: Sequence[int] | None = None,
) -> IndexArray:
    """Return each client's bin from the other clients' reports, for any mix that is possible next.

    Rule T at alpha' = alpha (1 - 1/20) - 2 sigma and delta = alpha / 20. So under declared label
    shift, while at most m of the others are malicious, a test point of the client is missed with
    probability at most alpha over everything (docs/theory.md, section 11, theorem T3).

    Parameters
    ----------
    counts : ClassCounts
        Cumulative counts by class.
    alpha : float
        The target miss rate.
    m : int
        The largest number of malicious clients among the others.
    sigma : float, default=0
        The declared heterogeneity within classes.
    clients : sequence of int, optional
        The indices of `counts.clients` that thresholds are computed for; all if None.

    Returns
    -------
    ndarray of shape (K,)
        Bins of the binning, not rows of `counts`. -1 where the threshold is infinite, and for
        clients that are not chosen.
    """
    n_clients = len(counts.clients)
    delta = check_delta(DELTA_FRACTION * alpha)
    # sigma is paid twice: from the others to the common distribution, from there to the client.
    remaining_alpha = alpha - delta - 2 * check_heterogeneity(sigma)
    if clients is None:
        clients = range(n_clients)
    bins = np.full(n_clients, -1, dtype=np.intp)
    if n_clients < 2 or remaining_alpha <= 0 or not clients:
        return bins

    def accepts(evidence: BinEvidence) -> bool:
        """Return whether all mixes are accepted that the client held out can have next."""
        distributions = possible_label_distributions(counts.class_sizes[evidence.held_out])
        accepted = shift.accepts_distributions(evidence, distributions, remaining_alpha)
        return bool(accepted.all())

    results = shift.fixed_sequence_thresholds(counts, m, delta, sigma, accepts, clients)
    for client, result in zip(clients, results, strict=True):
        if result.bin_index is not None:
            bins[client] = result.bin_index
    return bins


def unseen_client_threshold(
    counts: ClassCounts, sizes: IntArray, alpha: float, m: int, sigma: float = 0.0
) -> int | None:
    """Return the bin of a client that sent no report; None for an infinite threshold.

    As `client_thresholds`, with all clients in the place of the others. A bin of the binning.

    Parameters
    ----------
    counts : ClassCounts
        Cumulative counts by class.
    sizes : ndarray of shape (C,)
        The client's labels of each class.
    alpha : float
        The target miss rate.
    m : int
        The largest number of malicious clients.
    sigma : float, default=0
        The declared heterogeneity within classes.
    """
    delta = DELTA_FRACTION * alpha
    remaining_alpha = alpha - delta - check_heterogeneity(sigma)  # rule T pays the other sigma
    distributions = possible_label_distributions(sizes)
    return shift.label_distribution_threshold(
        counts, distributions, remaining_alpha, m, delta, sigma
    ).bin_index


def clipping_ranks(
    n_samples: int, level: float, low_delta: float, high_delta: float
) -> tuple[int, int]:
    """Return a and b of max(X_(a), min(t, X_(b))), the rule for n samples of one's own.

    a is the largest with P(Bin(n, level) <= a - 1) <= low_delta, at least 1: X_(a) covers
    a / (n + 1) on average whoever is malicious, and rarely raises a t that covers the level. b is
    the least with P(Bin(n, level) >= b) <= high_delta, so that X_(b) rarely covers less than the
    level; n + 1 if there is none (docs/theory.md, section 11, "T3: one site").

    Parameters
    ----------
    n_samples : int
        The number of samples.
    level : float
        The target coverage.
    low_delta, high_delta : float
        The probabilities to fail of the lower and of the upper end.

    Returns
    -------
    tuple of int
        a and b, ranks from 1 to n, but b may be n + 1.
    """
    totals = np.array([n_samples], dtype=np.int64)
    lowest = np.zeros(1, dtype=np.int64)
    # P(Bin(n, level) <= a - 1) = P(Bin(n, 1 - level) >= n + 1 - a), whose least n + 1 - a is this.
    n_missed = int(min_count(totals, 1 - level, low_delta, lowest)[0])
    a = max(1, n_samples + 1 - n_missed)
    b = int(min_count(totals, level, high_delta, lowest)[0])
    return a, b


@dataclass(frozen=True)
class LocalThresholdRange:
    """Between which thresholds, scores or lambdas, a client's own samples hold its threshold.

    Attributes
    ----------
    lower : float
        Covers `marginal_lower` on average, whoever is malicious.
    upper : float
        Covers the level with 97.5% confidence (1 - HIGH_DELTA); infinite for too few samples.
    marginal_lower : float
        a / (n + 1), a fraction; under a loss 1 less the mean loss that `lower` costs at most.
    n_samples : int
        The number of samples.
    """

    lower: float
    upper: float
    marginal_lower: float
    n_samples: int


def local_threshold_range(scores: FloatArray, alpha: float) -> LocalThresholdRange:
    """Return X_(a) and X_(b) of a client's own scores.

    Parameters
    ----------
    scores : ndarray of shape (n,)
        The scores, in any order; n is at least 1.
    alpha : float
        The target miss rate.
    """
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    n = len(ordered)
    if n == 0:
        raise RobfcpError("samples: there are none; pass at least one")
    a, b = clipping_ranks(n, 1 - alpha, LOW_DELTA, HIGH_DELTA)
    high = float(ordered[b - 1]) if b <= n else np.inf
    return LocalThresholdRange(float(ordered[a - 1]), high, a / (n + 1), n)


def local_lambda_range(
    loss_drops: IntArray,
    n_samples: int,
    counts_per_sample: int,
    level: Fraction,
    lambdas: FloatArray,
) -> LocalThresholdRange:
    """Return the lambdas between which n losses of a client's own hold its lambda.

    `low` is conformal risk control (Angelopoulos et al. 2024) at a' = alpha + s, at least
    2 / (n + 1): the least lambda whose summed loss R has (R + 1) / (n + 1) <= a'. So a lambda at or
    above it costs at most a' = 1 - marginal_lower on average, whoever is malicious. The slack
    s = sqrt(alpha (1 - alpha) / n) is a deviation of n losses, so that sampling alone seldom raises
    a lambda that keeps alpha. `high` is the least lambda whose summed drop n samples of a mean loss
    above alpha rarely have.

    Parameters
    ----------
    loss_drops : ndarray of shape (H,)
        What the losses, in [0, 1], fall by at each lambda, summed over samples, in parts of
        1 / counts_per_sample. Not cumulative.
    n_samples : int
        The number of samples, at least 1.
    counts_per_sample : int
        How many parts make a loss of 1.
    level : Fraction
        1 - alpha.
    lambdas : ndarray of shape (H,)
        The values of lambda, rising.
    """
    alpha = float(1 - level)
    deviation = (alpha * (1 - alpha) / n_samples) ** 0.5
    max_loss = min(1.0, max(alpha + deviation, 2 / (n_samples + 1)))
    # (R + 1) / (n + 1) <= a' means that R is at most (n + 1) a' - 1, rounded down to a whole number
    # of parts; the drop is n - R.
    min_loss_drop = counts_per_sample * n_samples - int(
        counts_per_sample * ((n_samples + 1) * max_loss - 1)
    )
    totals = np.array([n_samples], dtype=np.int64)
    critical_loss_drop = critical_loss_drops(totals, level, HIGH_DELTA, counts_per_sample)[0]

    # The first lambda of which the cumulative drop reaches each; infinite where none does.
    rows = np.searchsorted(np.cumsum(loss_drops), [min_loss_drop, critical_loss_drop])
    low, high = np.append(lambdas, np.inf)[rows].tolist()
    return LocalThresholdRange(low, high, 1 - max_loss, n_samples)


class TrustedInterval(NamedTuple):
    """Between which bins trusted samples at the server, in no report, hold a threshold.

    Docs/theory.md, section 11, "A trusted sample at the server".

    Attributes
    ----------
    lower : int
        The lower end, a bin.
    upper : int or None
        The upper end, a bin; None where there are too few samples, or where coverage on average
        would not survive it.
    marginal_lower : float or None
        What is covered on average whoever is malicious, a / (n + 1).
    n_samples : int
        The number of samples.
    delta : float
        The probability with which a threshold at `upper` covers less than the level.
    note : str
        What else must be said.
    """

    lower: int
    upper: int | None
    marginal_lower: float | None
    n_samples: int
    delta: float
    note: str = ""

    @staticmethod
    def from_counts(counts: IntArray, level: Fraction, delta: float) -> TrustedInterval:
        """Return what trusted samples allow; a score in a bin counts as the bin's upper edge.

        Parameters
        ----------
        counts : ndarray of shape (H,)
            How many of the n >= 1 trusted samples are in each bin, without noise.
        level : Fraction
            The target coverage.
        delta : float
            The probability to fail, of either end.
        """
        cumulative = np.cumsum(counts)
        n = int(cumulative[-1])
        a, b = clipping_ranks(n, float(level), delta, delta)
        low, high = np.searchsorted(cumulative, [a, b]).tolist()
        return TrustedInterval(low, high if b <= n else None, a / (n + 1), n, delta)

    def lower_only(self) -> TrustedInterval:
        """Return the same without an upper end."""
        return self._replace(upper=None)

    def clip(self, bin_index: int | None) -> int | None:
        """Return the bin clipped to the interval; None for an infinite threshold.

        The lower end comes last: it covers whoever is malicious. An infinite threshold without an
        upper end stays infinite.

        Parameters
        ----------
        bin_index : int or None
            The bin of the threshold; None for an infinite one.
        """
        if self.upper is not None:
            bin_index = self.upper if bin_index is None else min(bin_index, self.upper)
        return None if bin_index is None else max(bin_index, self.lower)

    def annotate(self, certificate: Certificate) -> Certificate:
        """Return a certificate with what the samples prove of the threshold that they hold.

        An upper end takes its probability to fail from the confidence of a guarantee: `upper` may
        then be the threshold. The interval of a given threshold is not touched by it.

        Parameters
        ----------
        certificate : Certificate
            What is certified without them.
        """
        confidence = certificate.confidence
        is_guarantee = certificate.kind != "any-threshold"
        if confidence is not None:
            spent = self.delta if is_guarantee and self.upper is not None else 0.0
            confidence = confidence - spent
        text = (
            f"{self.n_samples} trusted samples, in no report, are like the new cases (exchangeable)"
        )
        assumption = Assumption("trusted_report", self.n_samples, text)
        return msgspec.structs.replace(
            certificate,
            trusted_lower=self.marginal_lower,
            n_trusted_samples=self.n_samples,
            note="; ".join(note for note in (certificate.note, self.note) if note),
            confidence=confidence,
            assumptions=(*certificate.assumptions, assumption),
        )
