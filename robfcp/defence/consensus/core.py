"""The half of the sites that agrees best, found by concentration from several starts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.consensus.evidence import heterogeneity, ratios
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
    pooled = part.pooled()
    found = [_concentrated(pooled, start) for start in _starts(pooled)]
    if part.shape[1] > 1:
        afresh = _starts(pooled)[:CLASS_STARTS]
        best = min(found, key=lambda half: _beyond(pooled, half))
        found = [best, *(_concentrated(part, start) for start in (best, *afresh))]
    views = (pooled, part) if part.shape[1] > 1 else (pooled,)
    core = min(found, key=lambda half: round(sum(_beyond(view, half) for view in views), 9))
    reference = np.zeros(tables.shape[0], dtype=bool)
    reference[few[core]] = True
    if len(few) == tables.shape[0]:
        return reference
    return _concentrated(tables, reference)


def _beyond(tables: Tables, half: Mask) -> float:
    """Mean log oddity of the tenth of the sites just beyond the closest half."""
    n_sites = tables.shape[0]
    oddity = np.maximum(ratios(tables, half), 1) / (1 + USUAL * tables.sizes)
    return float(np.sort(np.log(oddity))[n_sites // 2 : n_sites // 2 + n_sites // 10 + 1].mean())


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


def _concentrated(tables: Tables, reference: Mask) -> Mask:
    """The half closest to the reference, which becomes the reference, a few times."""
    half = tables.shape[0] // 2 + 1
    for _ in range(STEPS):
        ratio = ratios(tables, reference)
        phi = heterogeneity(ratio, tables.sizes, reference)
        closeness = np.maximum(ratio, 1) / (1 + phi * tables.sizes)
        nearest = np.zeros(len(ratio), dtype=bool)
        nearest[np.argsort(closeness, kind="stable")[:half]] = True
        if (nearest == reference).all():
            break
        reference = nearest
    return reference
