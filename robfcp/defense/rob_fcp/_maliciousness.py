"""Maliciousness scores: mean distances between the vectors of clients, Eq. (5) and (6).

References
----------
Kang, Lin, Sun, Xiao and Li (2024), "Certifiably Byzantine-robust federated conformal prediction",
ICML. Equations are those of this paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, get_args

import numpy as np

from robfcp._typing import FloatArray
from robfcp.errors import RobfcpError

Metric = Literal["l1", "l2", "linf", "cosine", "kolmogorov", "wasserstein"]
METRICS: tuple[Metric, ...] = get_args(Metric)
_SCIPY_METRICS: Mapping[Metric, Literal["cityblock", "euclidean", "chebyshev", "sqeuclidean"]] = {
    "l1": "cityblock",
    "l2": "euclidean",
    "linf": "chebyshev",
    "cosine": "sqeuclidean",
    "kolmogorov": "chebyshev",
    "wasserstein": "cityblock",
}
MAX_CLIENTS_ALL_PAIRS = 200_000  # of which all pairs are compared
_MAX_DISTANCES_PER_BLOCK = 2**21  # in memory at a time in one thread
_N_THREADS = 4


def mean_neighbor_distances(
    vectors: FloatArray, metric: Metric, first_rank: int, last_rank: int
) -> FloatArray:
    """Return (K,) the mean distance of each client to its neighbors of some ranks.

    Parameters
    ----------
    vectors : ndarray of shape (K, d)
        The clients' vectors.
    metric : str
        "l1", "l2", "linf": the norms of v_k - v_l. "cosine": 1 - cos of their angle. "kolmogorov",
        "wasserstein": linf and l1 of the cumulated vectors.
    first_rank, last_rank : int
        The ranks, both included, from 1 for the nearest neighbor to K - 1 for the farthest. All
        distances are 0 where `last_rank` is less than `first_rank`.
    """
    from scipy.spatial.distance import cdist

    n_clients = len(vectors)
    if metric not in METRICS:
        raise RobfcpError(f"metric: {metric!r} is unknown; use one of {', '.join(METRICS)}")
    if n_clients > MAX_CLIENTS_ALL_PAIRS:
        raise RobfcpError(f"defense: all pairs of {n_clients:,} sites are too many; use consensus")
    means = np.zeros(n_clients)
    if last_rank < first_rank:
        return means

    points = _points_of_metric(vectors, metric)
    block_size = max(1, _MAX_DISTANCES_PER_BLOCK // n_clients)

    def fill_block(start: int) -> None:
        """Write the means of the clients from `start` on into their places of `means`."""
        distances = cdist(points[start : start + block_size], points, _SCIPY_METRICS[metric])
        rows = np.arange(len(distances))
        distances[rows, start + rows] = -1  # itself, before every neighbor: so it has rank 0

        # Partition: columns first_rank to last_rank then hold the neighbors of these ranks.
        distances.partition((first_rank, last_rank), axis=1)
        neighbor_distances = distances[:, first_rank : last_rank + 1]
        means[start : start + block_size] = neighbor_distances.mean(axis=1)

    # Blocks are disjoint, so threads may write at once. The loop makes errors of threads rise here.
    with ThreadPoolExecutor(_N_THREADS) as pool:
        for _ in pool.map(fill_block, range(0, n_clients, block_size)):
            pass

    # For the cosine distances are squared: |a - b|^2 / 2 is 1 - cos of the angle of unit vectors.
    if metric == "cosine":
        return means / 2
    return means


def _points_of_metric(vectors: FloatArray, metric: Metric) -> FloatArray:
    """Return points whose distance by `_SCIPY_METRICS` is that of the vectors by the metric.

    For the cosine it is twice that distance; a zero vector stays zero.

    Parameters
    ----------
    vectors : ndarray of shape (K, d)
        The clients' vectors; not changed.
    metric : str
        One of `METRICS`.

    Returns
    -------
    ndarray of shape (K, d)
    """
    if metric == "cosine":
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit_vectors: FloatArray = vectors / np.where(norms > 0, norms, 1)
        return unit_vectors
    if metric in ("kolmogorov", "wasserstein"):
        return np.cumsum(vectors, axis=1)
    return vectors


def mean_distance_to_farthest(vectors: FloatArray, n_benign: int) -> FloatArray:
    """Return (K,) the mean distance of each client to the n_benign - 1 farthest others.

    Parameters
    ----------
    vectors : ndarray of shape (K, d)
        The clients' vectors.
    n_benign : int
        From 1 to K; with 1 all distances are 0.
    """
    # The farthest of the K - 1 others has rank K - 1.
    n_clients = len(vectors)
    return mean_neighbor_distances(vectors, "l2", n_clients - n_benign + 1, n_clients - 1)
