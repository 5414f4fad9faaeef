"""Vectors a defence compares clients by, all computed from the reported counts."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.federation import Federation, projected
from robfcp.grid import Grid

Characterisation = Literal["histogram", "gaussian", "k-means", "kernel", "quantiles"]
CHARACTERISATIONS: tuple[Characterisation, ...] = (
    "histogram",
    "gaussian",
    "k-means",
    "kernel",
    "quantiles",
)
Vectors = NDArray[np.float64]


def characterise(federation: Federation, how: Characterisation, bins: int = 100) -> Vectors:
    """(K, d) vectors, one a client.

    histogram: shares of `bins` uniform bins (of the report's own where these do not nest);
    gaussian: mean and standard deviation; k-means: ten sorted weighted centres;
    kernel: the histogram smoothed by a Gaussian of Scott's width; quantiles: the deciles.
    """
    functions = {
        "histogram": histogram,
        "gaussian": _gaussian,
        "k-means": _centres,
        "kernel": _kernel,
        "quantiles": _quantiles,
    }
    if how not in functions:
        known = ", ".join(CHARACTERISATIONS)
        raise RobfcpError(f"characterisation: {how!r} is unknown; use one of {known}")
    return functions[how](projected(federation), bins)


def histogram(federation: Federation, bins: int = 100) -> Vectors:
    """Shares of `bins` uniform bins over the grid's range, or of the report's own bins."""
    counts = _view(federation, bins)[0]
    return counts / federation.sizes[:, None]


def _view(federation: Federation, bins: int) -> tuple[NDArray[np.int64], Vectors]:
    """Counts of the merged bins and the edges between them."""
    grid = federation.grid
    if np.isfinite(grid.edges[[0, -1]]).all():
        uniform = Grid.uniform(bins, grid.edges[0], grid.edges[-1])
        ends = grid.merge_ends(uniform)
        if ends is not None:
            return federation.merged(ends), uniform.edges
    return federation.counts, grid.edges


def _middles(edges: Vectors) -> Vectors:
    """A value for each bin: its middle, or its finite edge where it is open-ended."""
    low, high = edges[:-1].copy(), edges[1:].copy()
    low[~np.isfinite(low)] = high[~np.isfinite(low)]
    high[~np.isfinite(high)] = low[~np.isfinite(high)]
    return np.nan_to_num(low / 2 + high / 2, posinf=0.0, neginf=0.0)


def _gaussian(federation: Federation, bins: int) -> Vectors:
    counts, edges = _view(federation, bins)
    x = _middles(edges)
    shares = counts / federation.sizes[:, None]
    mean = shares @ x
    variance = np.maximum(shares @ x**2 - mean**2, 0)
    return np.stack([mean, np.sqrt(variance)], axis=1)


def _kernel(federation: Federation, bins: int) -> Vectors:
    counts, edges = _view(federation, bins)
    x = _middles(edges)
    pooled = counts.sum(axis=0) / counts.sum()
    spread = np.sqrt(max(float(pooled @ x**2 - (pooled @ x) ** 2), 0.0))
    width = spread * float(np.median(federation.sizes)) ** -0.2
    width = max(width, float(np.diff(x).min(initial=np.inf)), 1e-12)
    kernel = np.exp(-0.5 * ((x[:, None] - x) / width) ** 2)
    kernel /= kernel.sum(axis=1, keepdims=True)
    return (counts / federation.sizes[:, None]) @ kernel


def _quantiles(federation: Federation, bins: int) -> Vectors:
    """The upper edges at which each client's counts reach its deciles 1/20, 3/20, ..., 19/20."""
    counts, edges = _view(federation, bins)
    values = _middles(edges)
    shares = np.cumsum(counts, axis=1) / federation.sizes[:, None]
    levels = np.arange(1, 20, 2) / 20
    reached = (shares[:, None, :] >= levels[None, :, None] - 1e-12).argmax(axis=2)
    return values[reached]


def _centres(federation: Federation, bins: int, n_centres: int = 10, steps: int = 25) -> Vectors:
    """Sorted centres of one-dimensional k-means (Lloyd), started at the deciles."""
    counts, edges = _view(federation, bins)
    x = _middles(edges)
    centres = _quantiles(federation, bins)[:, :n_centres]
    zero = np.zeros((len(counts), 1), dtype=np.int64)
    mass = np.concatenate([zero, np.cumsum(counts, axis=1)], axis=1)
    moment = np.concatenate([zero.astype(float), np.cumsum(counts * x, axis=1)], axis=1)
    for _ in range(steps):
        # Sorted centres own intervals of sorted values, so cuts between them are enough.
        cuts = np.searchsorted(x, (centres[:, 1:] + centres[:, :-1]) / 2)
        ends = np.concatenate([zero, cuts, np.full_like(zero, x.size)], axis=1)
        weight = np.diff(np.take_along_axis(mass, ends, axis=1), axis=1)
        total = np.diff(np.take_along_axis(moment, ends, axis=1), axis=1)
        moved = np.sort(np.where(weight > 0, total / np.maximum(weight, 1), centres), axis=1)
        if np.array_equal(moved, centres):
            break
        centres = moved
    return centres
