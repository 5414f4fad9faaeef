"""The half of the sites that agrees best, found by concentration from several starts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.consensus.evidence import ratios
from robfcp.defence.consensus.law import by_bin, heterogeneity
from robfcp.defence.consensus.tables import Tables, drawn

STARTS, STEPS = 8, 6
CLASS_STARTS = 4  # of these also given the labels
USUAL = 0.02  # heterogeneity per sample that starts are compared with

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def find_core(tables: Tables) -> Mask:
    """(K,) the more coherent half.

    It is sought in the pooled counts and, from there and afresh, given the labels: pooled, honest
    sites with unlike labels look less alike than liars who agree; given the labels, liars who
    claim a rare class explain each other. The core is the half that does best by both. Being more
    alike than noise allows earns nothing, and a half is judged by the sites just beyond it, so that
    a tight minority does not win.
    """
    few = drawn(tables.shape[0], tables.counts)
    part = tables.subset(few)
    pooled, given = _Halves(part.pooled()), _Halves(part)
    starts = _starts(pooled.tables)
    found = [pooled.concentrated(start) for start in starts]
    views = [pooled]
    if part.shape[1] > 1:
        views, best = [pooled, given], min(found, key=pooled.beyond)
        found = [best, *(given.concentrated(start) for start in (best, *starts[:CLASS_STARTS]))]
    core = min(found, key=lambda half: round(sum(view.beyond(half) for view in views), 9))
    if len(few) == tables.shape[0]:
        return core
    reference = np.zeros(tables.shape[0], dtype=bool)
    reference[few[core]] = True
    return _Halves(tables).nearest(reference)


class _Halves:
    """Halves of the sites, each the one nearest to another; what was compared is remembered."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._ratios: dict[bytes, Array] = {}

    def _compared(self, reference: Mask) -> Array:
        """(K,) everybody's X^2 over its mean."""
        key = reference.tobytes()
        if key not in self._ratios:
            self._ratios[key] = ratios(self.tables, reference)
        return self._ratios[key]

    def nearest(self, reference: Mask) -> Mask:
        """The half closest to the reference."""
        ratio, tables = self._compared(reference), self.tables
        phi = heterogeneity(tables, ratio, reference, by_bin(tables))
        closeness = np.maximum(ratio, 1) / (1 + phi * tables.sizes)
        found = np.zeros(len(ratio), dtype=bool)
        found[np.argsort(closeness, kind="stable")[: len(ratio) // 2 + 1]] = True
        return found

    def concentrated(self, reference: Mask) -> Mask:
        """The half closest to the reference, which becomes the reference, a few times."""
        for _ in range(STEPS):
            before, reference = reference, self.nearest(reference)
            if (before == reference).all():
                break
        return reference

    def beyond(self, half: Mask) -> float:
        """Mean log oddity of the tenth of the sites just beyond the closest half."""
        oddity = np.maximum(self._compared(half), 1) / (1 + USUAL * self.tables.sizes)
        middle = len(oddity) // 2
        return float(np.sort(np.log(oddity))[middle : middle + len(oddity) // 10 + 1].mean())


def _starts(pooled: Tables) -> list[Mask]:
    """Everybody, the half nearest to the median of the shares, and a few by lot."""
    n_sites = pooled.shape[0]
    half = n_sites // 2 + 1
    counts, sizes = pooled.rows(slice(None))[:, 0], pooled.sizes
    below = np.cumsum(counts, axis=1) / sizes[:, None]
    distance = ((below - np.median(below, axis=0)) ** 2).sum(axis=1)
    distance *= sizes / (1 + sizes / np.median(sizes))
    lot = np.random.default_rng(n_sites)
    chosen = [np.arange(n_sites), np.argsort(distance, kind="stable")[:half]]
    for number in range(STARTS - 2):
        size = min(half, max(3, n_sites // (16 if number % 2 else 8)))
        chosen.append(lot.choice(n_sites, size, replace=False))
    return [np.isin(np.arange(n_sites), places) for places in chosen]
