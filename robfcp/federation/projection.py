"""Noisy counts made into histograms again: what no histogram can be is taken out at the server."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from robfcp.federation.counts import DenseCounts
from robfcp.federation.federation import Federation

Array = NDArray[np.float64]


def onto_simplex(values: Array, totals: Array) -> Array:
    """(K, H) the closest non-negative rows with the given totals: max(v - tau, 0)."""
    falling = -np.sort(-values, axis=1)
    excess = np.cumsum(falling, axis=1) - totals[:, None]
    ranks = np.arange(1, values.shape[1] + 1)
    kept = (falling * ranks > excess).sum(axis=1)
    tau = np.take_along_axis(excess, kept[:, None] - 1, axis=1) / kept[:, None]
    result: Array = np.maximum(values - tau, 0)
    return result


def rising(values: Array) -> Array:
    """(H,) the closest vector that never falls (isotonic regression); itself where it rises."""
    if (np.diff(values) >= 0).all():
        return values
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(values).x, dtype=np.float64)


def projected(federation: Federation) -> Federation:
    """The federation with private counts projected onto histograms of n_k samples.

    Reports without noise stay as they are. Counts are no whole numbers then: for comparing
    clients, never for guarantees, which rest on the counts as they were sent.
    """
    if not federation.noisy:
        return federation
    noisy = federation.variances > 0
    counts = federation.counts.astype(np.float64)
    counts[noisy] = onto_simplex(counts[noisy], federation.masses[noisy].astype(np.float64))
    return replace(federation, table=DenseCounts(counts), privacy=())


def whole(federation: Federation) -> Federation:
    """The projected counts rounded to whole numbers, for showing them."""
    if not federation.noisy:
        return federation
    counts = np.rint(projected(federation).counts).astype(np.int64)
    counts[~counts.any(axis=1), 0] = 1
    table = DenseCounts(counts)
    return replace(federation, table=table, sizes=counts.sum(axis=1), privacy=())


def comparable(federation: Federation) -> Federation:
    """The federation with one count a sample, for comparing clients; itself where it has that.

    Losses are counted in parts: parts below each edge are rounded to samples.
    """
    if federation.unit == 1:
        return federation
    below = np.cumsum(federation.counts, axis=1)
    samples = np.rint(below / federation.unit).astype(np.int64)
    counts = np.diff(np.maximum.accumulate(np.maximum(samples, 0), axis=1), axis=1, prepend=0)
    counts[:, -1] += np.maximum(federation.sizes - counts.sum(axis=1), 0)
    table = DenseCounts(counts)
    return replace(federation, table=table, sizes=counts.sum(axis=1), risk=None, privacy=())


def smoothed_below(federation: Federation) -> NDArray[np.int64]:
    """(K, H) counts at or below every edge, for drawing.

    Private counts need not add up to n_k: what is left over by edge t of H is t/H of it, the best
    unbiased mean of the noisy sum up to t and of n_k less the noisy sum above.
    """
    below = federation.cumulative()
    if not federation.noisy:
        return below
    passed = np.arange(1, below.shape[1] + 1) / below.shape[1]
    leftover = federation.masses - below[:, -1]
    return below + np.rint(leftover[:, None] * passed).astype(np.int64)
