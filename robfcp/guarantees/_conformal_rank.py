"""The rank of a threshold: which of the pooled scores FCP takes, and the threshold it gives."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil

import numpy as np

from robfcp._typing import BoolArray
from robfcp.federation import Federation
from robfcp.guarantees._count_bounds import CountBounds, count_bounds

# By how much pooled estimates, which are no whole numbers, may be off by rounding, as a fraction of
# all counts.
_ROUNDING = 1e-12

# From the level and the number of clients: by how many samples a count must exceed level N.
RankRule = Callable[[Fraction, int], Fraction]


def rank_correction(level: Fraction, n_clients: int) -> Fraction:
    """Return by how many samples the count of N pooled scores must exceed level N.

    1 by the swap lemma, whatever clients differ by (docs/theory.md, section 2). The level itself
    for one client, who is exchangeable altogether: the count must reach level (N + 1).

    Parameters
    ----------
    level : Fraction
        The target coverage.
    n_clients : int
        How many clients are pooled.
    """
    return level if n_clients == 1 else Fraction(1)


def conformal_rank(
    level: Fraction,
    n_samples: int,
    n_clients: int,
    rank_rule: RankRule = rank_correction,
    counts_per_sample: int = 1,
) -> int:
    """Return the rank, a number of counts that the threshold's cumulative count must reach.

    With one count a sample and the default rule it is ceil(level N) + 1, or ceil(level (N + 1))
    for one client. Under a loss it is rounded up to a part of a loss, not to a sample. It may be
    larger than the number of counts; then the threshold is infinite.

    Parameters
    ----------
    level : Fraction
        The target coverage.
    n_samples : int
        N.
    n_clients : int
        How many clients are pooled.
    rank_rule : RankRule
        By how many samples a count must exceed level N.
    counts_per_sample : int, default=1
        How many counts make a sample.
    """
    return ceil(counts_per_sample * (level * n_samples + rank_rule(level, n_clients)))


class FCPThreshold:
    """FCP's threshold on the benign clients, at any level: the one place where it is computed.

    Parameters
    ----------
    federation : Federation
        The reports.
    benign_mask : ndarray of shape (K,), optional
        The benign clients; all clients if None.
    rank_rule : RankRule
        By how much a count must exceed level N.
    """

    def __init__(
        self,
        federation: Federation,
        benign_mask: BoolArray | None = None,
        rank_rule: RankRule = rank_correction,
    ) -> None:
        bounds: CountBounds = count_bounds(federation)
        self._rank_rule = rank_rule
        self._counts_per_sample = bounds.counts_per_sample
        if benign_mask is None or np.all(benign_mask):
            benign_mask = None
            self._n_clients = len(bounds.sizes)
            n_samples = int(bounds.sizes.sum())
        else:
            benign_mask = np.asarray(benign_mask)
            self._n_clients = int(benign_mask.sum())
            n_samples = int(bounds.sizes.sum(where=benign_mask))
        # Noisy sizes may sum to 0 or less.
        self._n_samples = max(1, n_samples)
        self._pooled_counts = bounds.pooled_counts(benign_mask)

    def bin_index(self, level: Fraction) -> int | None:
        """Return the first bin whose pooled count reaches the rank; None for an infinite threshold.

        Parameters
        ----------
        level : Fraction
            The target coverage.
        """
        rank = conformal_rank(
            level, self._n_samples, self._n_clients, self._rank_rule, self._counts_per_sample
        )
        n_counts = self._counts_per_sample * self._n_samples
        bin_index = int(np.searchsorted(self._pooled_counts, rank - _ROUNDING * n_counts))
        if rank > n_counts or bin_index >= len(self._pooled_counts):
            return None
        return bin_index


def fcp_bin_index(
    federation: Federation,
    level: Fraction,
    benign_mask: BoolArray | None = None,
    rank_rule: RankRule = rank_correction,
) -> int | None:
    """Return the bin of FCP's threshold on the benign clients; None for an infinite one.

    Parameters
    ----------
    federation : Federation
        The reports.
    level : Fraction
        The target coverage.
    benign_mask : ndarray of shape (K,), optional
        The benign clients; all clients if None.
    rank_rule : RankRule
        By how much a count must exceed level N.
    """
    return FCPThreshold(federation, benign_mask, rank_rule).bin_index(level)
