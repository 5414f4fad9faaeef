"""Distances between clients' vectors and the mean distance to chosen neighbours, in blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp._util.parallel import blocks, n_cores, on_all_cores
from robfcp.errors import RobfcpError

Metric = Literal["l1", "l2", "linf", "cosine", "kolmogorov", "wasserstein"]
METRICS: tuple[Metric, ...] = ("l1", "l2", "linf", "cosine", "kolmogorov", "wasserstein")
MEMORY = 512 * 2**20  # bytes that distances may take beyond the input
_BLOCK = 2**24  # bytes of one block of distances: a few rows, for the cache
_BYTES = 40  # of one distance at worst: itself, the marks of close pairs and the pair's indices
_FEW = 4  # coordinates up to which plain differences are as fast as a matrix product
_CLOSE = 1e-8  # squared distances below this share of the norms lose digits and are redone

Vectors = NDArray[np.float64]
Indices = NDArray[np.intp]


class RankMeans(NamedTuple):
    """(K,) mean distances and, where neighbours were sampled, their (K,) standard errors."""

    means: Vectors
    errors: Vectors


@dataclass(frozen=True, eq=False)
class Space:
    """Points whose l1, l2, linf, half squared l2 (cosine) or l2 over noise is the distance.

    With `variances` the distance is |x_k - x_l| / sqrt(variance_k + variance_l).
    """

    points: Vectors
    base: str
    variances: Vectors | None = None

    @staticmethod
    def of(vectors: Vectors, metric: Metric) -> Space:
        """The space in which the metric is one of the bases."""
        v = np.ascontiguousarray(vectors, dtype=np.float64)
        if metric in ("l1", "l2", "linf"):
            return Space(v, metric)
        if metric == "cosine":  # 1 - cos = |a - b|^2 / 2 for unit vectors
            norms = np.linalg.norm(v, axis=1, keepdims=True)
            return Space(v / np.where(norms > 0, norms, 1), "cosine")
        if metric in ("kolmogorov", "wasserstein"):
            return Space(np.cumsum(v, axis=1), "linf" if metric == "kolmogorov" else "l1")
        raise RobfcpError(f"distance: {metric!r} is unknown; use one of {', '.join(METRICS)}")

    def keys(self, columns: Indices | slice) -> Callable[[Indices | slice], Vectors]:
        """A function from rows to their (rows, columns) keys: numbers in the order of distances."""
        if self.base in ("l1", "linf"):
            from scipy.spatial.distance import cdist

            others = self.points[columns]
            if self.base == "l1":
                return lambda rows: cdist(self.points[rows], others, "cityblock")
            return lambda rows: cdist(self.points[rows], others, "chebyshev")
        return _Squared(self, columns)

    def distances(self, keys: Vectors) -> Vectors:
        """The distances in place of their keys."""
        if self.base == "l2":
            return np.sqrt(np.maximum(keys, 0, out=keys), out=keys)
        if self.base == "cosine":
            return np.multiply(np.maximum(keys, 0, out=keys), 0.5, out=keys)
        return keys

    @cached_property
    def codes(self) -> NDArray[np.uint64]:
        """(K,) equal numbers for equal points."""
        factors = np.random.default_rng(0).integers(2**63, size=self.points.shape[1]) * 2 + 1
        codes = np.empty(len(self.points), dtype=np.uint64)
        for rows in blocks(len(codes), 8 * self.points.shape[1], _BLOCK):
            whole = (self.points[rows] + 0.0).view(np.uint64)  # -0.0 becomes 0.0
            codes[rows] = (whole * factors.astype(np.uint64)).sum(axis=1, dtype=np.uint64)
        return codes


class _Squared:
    """Squared distances by one matrix product; close pairs are redone by differences.

    |a|^2 + |b|^2 - 2ab loses its digits where a and b are close, and that can decide an order.
    With few coordinates many pairs are close and all are done by differences.
    """

    def __init__(self, space: Space, columns: Indices | slice) -> None:
        self.space, self.columns = space, columns
        self.centre = space.points.mean(axis=0)
        points = space.points[columns] - self.centre
        norms = np.einsum("ij,ij->i", points, points)
        self.right = np.concatenate([-2 * points, np.ones((len(points), 1)), norms[:, None]], 1).T

    def __call__(self, rows: Indices | slice) -> Vectors:
        few = self.space.points.shape[1] <= _FEW
        squared = self._differences(rows) if few else self._product(rows)
        if self.space.variances is not None:
            variances = self.space.variances
            squared /= variances[rows][:, None] + variances[self.columns][None, :]
        return squared

    def _differences(self, rows: Indices | slice) -> Vectors:
        first, second = self.space.points[rows], self.space.points[self.columns]
        squared = np.square(first[:, :1] - second[:, 0])
        for axis in range(1, first.shape[1]):
            squared += np.square(first[:, axis, None] - second[:, axis])
        return squared

    def _product(self, rows: Indices | slice) -> Vectors:
        points = self.space.points[rows] - self.centre
        norms = np.einsum("ij,ij->i", points, points)
        left = np.concatenate([points, norms[:, None], np.ones((len(points), 1))], axis=1)
        squared = left @ self.right
        close = squared < 2 * _CLOSE * norms[:, None]
        if close.any():
            self._redo(squared, rows, *np.nonzero(close))
        return squared

    def _redo(self, squared: Vectors, rows: Indices | slice, left: Indices, right: Indices) -> None:
        codes = self.space.codes
        same = codes[rows][left] == codes[self.columns][right]
        squared[left[same], right[same]] = 0
        left, right = left[~same], right[~same]
        first, second = self.space.points[rows], self.space.points[self.columns]
        for pairs in blocks(len(left), 24 * first.shape[1], _BLOCK // 32):
            difference = first[left[pairs]] - second[right[pairs]]
            squared[left[pairs], right[pairs]] = np.einsum("ij,ij->i", difference, difference)


def pairwise(vectors: Vectors, metric: Metric = "l2") -> Vectors:
    """(K, K) distances.

    l1, l2, linf: the norms of v_k - v_l; cosine: 1 - cos of their angle;
    kolmogorov, wasserstein: linf and l1 of the cumulated vectors.
    """
    space = Space.of(vectors, metric)
    everybody = slice(0, len(space.points))
    return space.distances(space.keys(everybody)(everybody))


def neighbour_means(
    vectors: Vectors, metric: Metric, first: int, last: int, memory: int = MEMORY
) -> Vectors:
    """Each client's mean distance to its neighbours of rank first..last, nearest = 1."""
    return rank_means(Space.of(vectors, metric), first, last, memory=memory).means


def rank_means(
    space: Space,
    first: int,
    last: int,
    *,
    rows: Indices | None = None,
    references: Indices | None = None,
    memory: int = MEMORY,
) -> RankMeans:
    """Mean distances of the rows to their neighbours of rank first..last among all K clients.

    With R references (sorted) in place of all clients, ranks shrink by (R - 1)/(K - 1), fractions
    of a neighbour count as such, and the error is that of a trimmed mean: the deviation of the
    distances winsorised at both ranks, over share sqrt(R - 1), times sqrt(1 - (R - 1)/(K - 1)).
    """
    n_clients = len(space.points)
    if not 1 <= first <= last < max(n_clients, 2):
        raise RobfcpError(f"neighbours {first}..{last} do not exist among {n_clients} clients")
    chosen = np.arange(n_clients) if rows is None else rows
    result = RankMeans(np.zeros(len(chosen)), np.zeros(len(chosen)))
    if n_clients < 2:
        return result
    columns = slice(0, n_clients) if references is None else references
    n_others = (n_clients if references is None else len(references)) - 1
    shrink = n_others / (n_clients - 1)
    ends = ((first - 1) * shrink, last * shrink)
    own = _own_columns(space, chosen, references)
    keys = space.keys(columns)

    def work(part: slice) -> None:
        block = keys(chosen[part])
        block[np.arange(len(block)), own[part]] = 0.0  # sorts before every neighbour
        result.means[part], result.errors[part] = _between(space, block, *ends)

    block_bytes = min(_BLOCK, memory * 8 // (_BYTES * n_cores()))
    on_all_cores(work, blocks(len(chosen), 8 * (n_others + 1), block_bytes))
    result.errors[:] *= np.sqrt(max(0.0, 1 - shrink))
    return result


def _own_columns(space: Space, rows: Indices, references: Indices | None) -> Indices:
    """The column that stands for the row itself: a reference equal to it, else any one.

    Chosen by the point alone, so that equal clients stay equal.
    """
    if references is None:
        return rows
    codes, order = space.codes[rows], np.argsort(space.codes[references], kind="stable")
    known = space.codes[references][order]
    place = np.minimum(np.searchsorted(known, codes), len(known) - 1)
    anyone = (codes % np.uint64(len(known))).astype(np.intp)
    return np.where(known[place] == codes, order[place], anyone)


def _between(space: Space, keys: Vectors, low: float, high: float) -> tuple[Vectors, Vectors]:
    """Means of the sorted distances between two fractional ranks, and their standard errors.

    The row itself is rank 0 with key 0; the distance of rank i fills the ranks from i - 1 to i.
    """
    n_others = keys.shape[1] - 1
    below, top = int(low), min(int(np.ceil(high - 1e-9)), n_others)
    keys.partition(top, axis=1)
    if low == 0:
        values = space.distances(keys[:, : top + 1])
        lowest = np.zeros(len(keys))
    else:
        if below + 1 < top:
            keys[:, :top].partition(below + 1, axis=1)
        values = space.distances(keys[:, below + 1 : top + 1])
        lowest = values[:, 0]
    highest = values[:, -1]
    sums = values.sum(axis=1) - (low - below) * lowest - (top - high) * highest
    squares = np.einsum("ij,ij->i", values, values)
    mean = (sums + low * lowest + (n_others - high) * highest) / n_others
    square = (squares + below * lowest**2 + (n_others - top) * highest**2) / n_others
    deviation = np.sqrt(np.maximum(square - mean**2, 0))
    return sums / (high - low), deviation * np.sqrt(n_others) / (high - low)
