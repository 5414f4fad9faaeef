"""The rank of a threshold: which of the pooled scores FCP takes, and the threshold it gives."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil

import numpy as np

from robfcp.federation import Federation
from robfcp.guarantees._worst_case import BoolArray, count_bounds

_ROUNDING = 1e-12


RankRule = Callable[[Fraction, int], Fraction]  # what a count must have beyond level N


def rank_correction(level: Fraction, n_clients: int) -> Fraction:
    """count_S >= level N_S + 1, by the swap lemma, whatever clients differ by.

    For one client alone, who is exchangeable altogether, level (N + 1).
    """
    return level if n_clients == 1 else Fraction(1)


def conformal_rank(
    level: Fraction,
    n_samples: int,
    n_clients: int,
    rule: RankRule = rank_correction,
    counts_per_sample: int = 1,
) -> int:
    """ceil(level N) + 1, or ceil(level (N + 1)) of one client; `unit` counts make a sample."""
    return ceil(counts_per_sample * (level * n_samples + rule(level, n_clients)))


class FCPThreshold:
    """FCP's threshold on the trusted clients, at any level: the one place it is computed."""

    def __init__(
        self,
        federation: Federation,
        trusted: BoolArray | None = None,
        rule: RankRule = rank_correction,
    ) -> None:
        counts, self._rule = count_bounds(federation), rule
        chosen = None if trusted is None or np.all(trusted) else np.asarray(trusted)
        used = np.ones(len(counts.sizes), dtype=bool) if chosen is None else chosen
        n_samples = int(counts.sizes.sum(where=used))
        self._counted = max(1, n_samples), int(used.sum())
        self._pooled, self._unit = counts.pooled_counts(chosen), counts.unit

    def bin_index(self, level: Fraction) -> int | None:
        """The threshold's edge; None = infinite."""
        rank = conformal_rank(level, *self._counted, self._rule, self._unit)
        total = self._unit * self._counted[0]
        found = int(np.searchsorted(self._pooled, rank - _ROUNDING * total))
        return found if rank <= total and found < len(self._pooled) else None


def fcp_bin_index(
    federation: Federation,
    level: Fraction,
    benign_mask: BoolArray | None = None,
    rule: RankRule = rank_correction,
) -> int | None:
    """The edge of FCP's threshold on the trusted clients at one level; None = infinite."""
    return FCPThreshold(federation, benign_mask, rule).bin_index(level)
