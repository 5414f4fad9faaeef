"""The half of the sites that agrees best, found by concentration from several starts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.consensus.evidence import heterogeneity, ratios
from robfcp.defence.consensus.tables import Tables, drawn

STARTS, STEPS = 8, 6
USUAL = 0.02  # heterogeneity per sample that starts are compared with

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def find_core(tables: Tables) -> Mask:
    """(K,) the more coherent half.

    It is sought in the pooled counts, because classes are claims: liars who claim a rare class
    would explain everybody who holds it. Being more alike than noise allows earns nothing, and
    starts are judged by the sites just beyond the half, so that a tight minority does not win.
    """
    few = drawn(tables.shape[0], tables.counts)
    pooled = tables.subset(few).pooled()
    best, core = np.inf, np.ones(len(few), dtype=bool)
    for start in _starts(pooled):
        found = _concentrated(pooled, start)
        oddity = np.maximum(ratios(pooled, found), 1) / (1 + USUAL * pooled.sizes)
        half, more = len(few) // 2, len(few) // 2 + len(few) // 10
        beyond = float(np.sort(np.log(oddity))[half : more + 1].mean())
        if beyond < best - 1e-9:
            best, core = beyond, found
    reference = np.zeros(tables.shape[0], dtype=bool)
    reference[few[core]] = True
    if tables.shape[1] == 1 and len(few) == tables.shape[0]:
        return reference
    return _concentrated(tables, reference)


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
