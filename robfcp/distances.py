"""Distances between clients' vectors and the mean distance to chosen neighbours, in blocks."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError

Metric = Literal["l1", "l2", "linf", "cosine", "kolmogorov", "wasserstein"]
METRICS: tuple[Metric, ...] = ("l1", "l2", "linf", "cosine", "kolmogorov", "wasserstein")
MEMORY = 512 * 2**20  # bytes a block of distances may take beyond the input
_CLOSE = 1e-6  # squared distances below this share of the norms lose digits and are redone

Vectors = NDArray[np.float64]


def pairwise(vectors: Vectors, metric: Metric = "l2") -> Vectors:
    """(K, K) distances.

    l1, l2, linf: the norms of v_k - v_l; cosine: 1 - cos of their angle;
    kolmogorov, wasserstein: linf and l1 of the cumulated vectors.
    """
    prepared, base = _prepare(vectors, metric)
    return _rows(prepared, slice(0, len(prepared)), base)


def neighbour_means(
    vectors: Vectors, metric: Metric, first: int, last: int, memory: int = MEMORY
) -> Vectors:
    """Each client's mean distance to its neighbours of rank first..last, nearest = 1."""
    prepared, base = _prepare(vectors, metric)
    n_clients = len(prepared)
    if not 1 <= first <= last < max(n_clients, 2):
        raise RobfcpError(f"neighbours {first}..{last} do not exist among {n_clients} clients")
    if n_clients < 2:
        return np.zeros(n_clients)
    means = np.empty(n_clients)
    step = max(1, memory // (24 * n_clients))
    for start in range(0, n_clients, step):
        rows = slice(start, min(start + step, n_clients))
        distances = _rows(prepared, rows, base)
        own = np.arange(rows.start, rows.stop)
        distances[own - rows.start, own] = -1.0  # sorts before every neighbour
        distances.partition(sorted({first, last}), axis=1)
        means[rows] = distances[:, first : last + 1].mean(axis=1)
    return means


def _prepare(vectors: Vectors, metric: Metric) -> tuple[Vectors, str]:
    """The vectors whose l1, l2, linf or squared l2 is the wanted distance."""
    v = np.ascontiguousarray(vectors, dtype=np.float64)
    if metric in ("l1", "l2", "linf"):
        return v, metric
    if metric == "cosine":
        norms = np.linalg.norm(v, axis=1, keepdims=True)
        return v / np.where(norms > 0, norms, 1), "cosine"
    if metric == "kolmogorov":
        return np.cumsum(v, axis=1), "linf"
    if metric == "wasserstein":
        return np.cumsum(v, axis=1), "l1"
    raise RobfcpError(f"distance: {metric!r} is unknown; use one of {', '.join(METRICS)}")


def _rows(v: Vectors, rows: slice, base: str) -> Vectors:
    """(rows, K) distances from a block of clients to all."""
    if base == "l2":
        return np.sqrt(_squared(v, rows))
    if base == "cosine":  # 1 - cos = |a - b|^2 / 2 for unit vectors
        return _squared(v, rows) / 2
    from scipy.spatial.distance import cdist

    return cdist(v[rows], v, "cityblock" if base == "l1" else "chebyshev")


def _squared(v: Vectors, rows: slice) -> Vectors:
    """Squared l2 distances by one matrix product; close pairs are redone by differences.

    |a|^2 + |b|^2 - 2ab loses its digits where a and b are close, and that can decide an order.
    """
    block = v[rows]
    norms = np.einsum("ij,ij->i", v, v)
    scale = norms[rows, None] + norms[None, :]
    squared = scale - 2 * (block @ v.T)
    left, right = np.nonzero(squared < _CLOSE * scale)
    step = max(1, 2**22 // max(1, v.shape[1]))
    for start in range(0, len(left), step):
        pairs = slice(start, start + step)
        difference = block[left[pairs]] - v[right[pairs]]
        squared[left[pairs], right[pairs]] = np.einsum("ij,ij->i", difference, difference)
    return squared
