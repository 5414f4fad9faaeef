"""Rob-FCP as its paper defines it: trust the clients nearest to their neighbours."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import whole
from robfcp.defence.base import Assessment, Defence, check_minority, without_farthest
from robfcp.defence.number_of_liars import likelihood_count
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


def n_cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def blocks(length: int, row_bytes: int, block_bytes: int) -> list[slice]:
    """Slices of so many rows as fit into a block."""
    step = max(1, block_bytes // max(1, row_bytes))
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def on_all_cores(work: Callable[[slice], None], parts: list[slice]) -> None:
    """Do the work on every part; the first part's error, in their order, is raised."""
    if len(parts) < 2 or n_cores() < 2:
        for part in parts:
            work(part)
        return
    with ThreadPoolExecutor(n_cores()) as pool:
        for _ in pool.map(work, parts):
            pass


Metric = Literal["l1", "l2", "linf", "cosine", "kolmogorov", "wasserstein"]
METRICS: tuple[Metric, ...] = ("l1", "l2", "linf", "cosine", "kolmogorov", "wasserstein")
MEMORY = 512 * 2**20  # bytes that distances may take beyond the input
_BLOCK = 2**24  # bytes of one block of distances: a few rows, for the cache
_BYTES = 40  # of one distance at worst: itself, the marks of close pairs and the pair's indices
_FEW = 4  # coordinates up to which plain differences are as fast as a matrix product
_CLOSE = 1e-8  # squared distances below this share of the norms lose digits and are redone

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


LARGE = 20_000  # beyond so many clients distances to all others give way to references
REFERENCES = 2048
CUT_SHARE = 5  # the K / 5 clients nearest to the cut see five times as many references


@dataclass(frozen=True, eq=False)
class Estimate:
    """Mean distances, their standard errors (0 where exact) and what they were drawn from."""

    means: NDArray[np.float64]
    errors: NDArray[np.float64]
    seed: int | None = None
    n_references: int | None = None

    @property
    def note(self) -> str | None:
        """The approximation in words; None where there is none."""
        if self.n_references is None:
            return None
        error = float(np.median(self.errors / np.maximum(self.means, np.finfo(float).tiny)))
        return (
            f"maliciousness estimated from {self.n_references} reference clients drawn after the "
            f"reports were in (seed {self.seed}); standard error {error:.2%} of a typical one"
        )


def scalable_means(
    space: Space,
    first: int,
    last: int,
    *,
    cut: int | None = None,
    number: int | None = None,
    seed: int | None = None,
    memory: int = MEMORY,
) -> Estimate:
    """Mean distances to the neighbours of rank first..last, exact up to LARGE clients.

    Beyond, everybody is measured against the same `number` clients, drawn from `seed` (a secret
    one if None), so that errors are shared and hardly change an order; they are one of each of as
    many strata along the clients' leading direction, so that every group has its share, and the
    stated errors, those of a plain sample, are on the safe side. `cut` is the number of clients
    the ranking will keep: those next to it are measured again with the same effort, against more
    references, and everybody else moves by their mean correction.
    """
    n_clients = len(space.points)
    if n_clients <= LARGE:
        exact = rank_means(space, first, last, memory=memory)
        return Estimate(exact.means, np.zeros(n_clients))
    number = REFERENCES if number is None else number
    seed = secret_seed() if seed is None else seed
    rng = np.random.default_rng(seed)
    line = np.argsort(_along_leading_direction(space.points), kind="stable")
    few = _one_of_each_stratum(line, number, rng)
    means, errors = rank_means(space, first, last, references=few, memory=memory)
    if cut is not None:
        near = _nearest_to_cut(means, cut)
        codes, place = np.unique(space.codes[near], return_index=True)
        near = near[place]
        more = _one_of_each_stratum(line, CUT_SHARE * number, rng)
        better = rank_means(space, first, last, rows=near, references=more, memory=memory)
        means += (better.means - means[near]).mean()
        twin = np.minimum(np.searchsorted(codes, space.codes), len(codes) - 1)
        again = codes[twin] == space.codes  # equal clients stay equal
        means[again], errors[again] = better.means[twin[again]], better.errors[twin[again]]
    return Estimate(means, errors, seed, len(few))


def _nearest_to_cut(means: NDArray[np.float64], cut: int) -> Indices:
    """The K / CUT_SHARE clients whose places are nearest to the cut, half on each side."""
    reach = max(1, len(means) // (2 * CUT_SHARE))
    order = np.argsort(means, kind="stable")
    return np.sort(order[max(0, cut - reach) : cut + reach])


def _along_leading_direction(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """(K,) places of the points along the direction in which they differ most."""
    mean = points.mean(axis=0)
    covariance = points.T @ points / len(points) - np.outer(mean, mean)
    return np.asarray(points @ np.linalg.eigh(covariance)[1][:, -1])


def _one_of_each_stratum(line: Indices, number: int, rng: np.random.Generator) -> Indices:
    """Sorted clients, one at random from each of `number` equal stretches of the line."""
    ends = np.arange(min(number, len(line)) + 1) * len(line) // min(number, len(line))
    return np.sort(line[rng.integers(ends[:-1], ends[1:])])


def references(n_clients: int, number: int, seed: int | None = None) -> Indices:
    """Sorted clients drawn at random, from a secret seed if None is given."""
    rng = np.random.default_rng(secret_seed() if seed is None else seed)
    return np.sort(rng.choice(n_clients, min(number, n_clients), replace=False))


def secret_seed() -> int:
    """A seed nobody can foresee, drawn only when the reports are in."""
    return secrets.randbits(63)


if TYPE_CHECKING:
    import torch

_GPU_BYTES = 32  # of one distance: itself, its copies and what the selection needs
_SAME = 1e-13  # squared distances below this share of the largest norm are rounding: 0


def gpu_neighbour_means(
    vectors: NDArray[np.float64],
    metric: Metric,
    first: int,
    last: int,
    device: str = "cuda",
    memory: int | None = None,
) -> NDArray[np.float64]:
    """Each client's mean distance to its neighbours of rank first..last, nearest = 1.

    Distances are float64 products; a float32 copy selects, and what it cannot tell apart lies
    within 1e-7 of the same distance. `memory` in bytes bounds a block: by default 40% of what is
    free on the device.
    """
    torch = _torch()
    space = Space.of(vectors, metric)
    n_clients = len(space.points)
    if not 1 <= first <= last < n_clients:
        raise RobfcpError(f"neighbours {first}..{last} do not exist among {n_clients} clients")
    points = torch.from_numpy(space.points).to(device)
    points = points - points.mean(dim=0)
    means = torch.empty(n_clients, dtype=torch.float64, device=device)
    step = max(1, (memory or _free(device)) // (_GPU_BYTES * n_clients))
    right = _right(points) if space.base in ("l2", "cosine") else None
    for start in range(0, n_clients, step):
        rows = slice(start, min(start + step, n_clients))
        block = _distances(points, rows, right, space.base)
        own = torch.arange(rows.start, rows.stop, device=device)
        block[own - rows.start, own] = 0.0  # sorts before every neighbour
        coarse = block.to(torch.float32)
        nearer = _sum_of_lowest(block.clone(), coarse, first) if first > 1 else 0.0
        means[rows] = (_sum_of_lowest(block, coarse, last + 1) - nearer) / (last - first + 1)
    return np.asarray(means.cpu().numpy())


def _right(points: torch.Tensor) -> torch.Tensor:
    """(d + 2, K) so that [a, |a|^2, 1] times a column [-2b, 1, |b|^2] is |a - b|^2."""
    torch = _torch()
    norms = (points * points).sum(dim=1, keepdim=True)
    return torch.cat([-2 * points, torch.ones_like(norms), norms], dim=1).T.contiguous()


def _distances(
    points: torch.Tensor, rows: slice, right: torch.Tensor | None, base: str
) -> torch.Tensor:
    """(rows, K) distances from a block of clients to all."""
    torch = _torch()
    if right is None:
        return torch.cdist(points[rows], points, p=1.0 if base == "l1" else float("inf"))
    norms = right[-1, rows, None]
    block = torch.cat([points[rows], norms, torch.ones_like(norms)], dim=1) @ right
    torch.nn.functional.threshold_(block, _SAME * float(right[-1].max()), 0.0)
    return block.sqrt_() if base == "l2" else block.div_(2)


def _sum_of_lowest(block: torch.Tensor, coarse: torch.Tensor, count: int) -> torch.Tensor:
    """(rows,) sums of the `count` smallest distances; the others are set to 0 in the block.

    The distances below the count-th smallest, and that one as often as it is needed.
    """
    limit, where = coarse.kthvalue(count, dim=1, keepdim=True)
    highest = block.gather(1, where)[:, 0]
    outside = coarse >= limit
    block.masked_fill_(outside, 0.0)
    return block.sum(dim=1) + (count - block.shape[1] + outside.sum(dim=1)) * highest


def _free(device: str) -> int:
    torch = _torch()
    if not device.startswith("cuda"):
        return MEMORY
    return int(0.4 * torch.cuda.mem_get_info(device)[0])


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise RobfcpError(
            "device: exact distances on an accelerator need PyTorch; install robfcp[train]"
        ) from None
    return torch


@dataclass(frozen=True)
class RobFCP(Defence):
    """The paper: trust the K_b clients with the lowest mean distance to their K_b - 1 nearest.

    Parameters
    ----------
    liars
        How many are left out, whatever they look like; the paper's estimate if None.
    distance
        Between two clients' vectors: "l1", "l2", "linf", "cosine", "kolmogorov" or "wasserstein".
    characterisation
        A client's vector: "histogram", "gaussian", "k-means", "kernel" or "quantiles".
    bins
        The uniform bins vectors are made from; the report's own where these do not nest.
    seed
        What the reference clients of a large federation are drawn from; a secret one if None.
    device
        An accelerator ("cuda") that computes all distances, however many clients there are.

    References
    ----------
    Kang, Lin, Sun, Xiao and Li (2024), "Certifiably Byzantine-robust federated conformal
    prediction", ICML.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[90, 10], [88, 12], [91, 9], [0, 100]])
    >>> robfcp.calibrate(federation, defence=robfcp.RobFCP(liars=1)).flagged
    ('client-3',)
    """

    liars: int | None = None
    distance: Metric = "l2"
    characterisation: Characterisation = "histogram"
    bins: int = 100
    seed: int | None = None
    device: str | None = None
    name: ClassVar[str] = "rob-fcp"

    def __post_init__(self) -> None:
        if self.distance not in METRICS:
            known = ", ".join(map(repr, METRICS))
            raise RobfcpError(f"distance: {self.distance!r} is unknown; use {known}")
        told(self)

    def __call__(self, federation: Federation) -> Assessment:
        liars, stated = self.liars, self.liars is not None
        if liars is None:
            liars = self.estimate(federation)
        n_benign = check_minority(federation, liars)
        vectors = characterise(federation, self.characterisation, self.bins)
        estimate = nearest_means(vectors, n_benign, self.distance, self.seed, self.device)
        notes = () if estimate.note is None else (estimate.note,)
        return without_farthest(
            federation, liars, estimate.means, "their neighbours", notes, stated=stated
        )

    def estimate(self, federation: Federation) -> int:
        """The paper's number of liars, from 1 to under half: never 0, whoever reports.

        Parameters
        ----------
        federation
            The reports of one round, at least three.

        Returns
        -------
        int
            K - z for the z of the greatest contrast, clients ranked with ceil(K/2) taken as benign.
        """
        vectors = characterise(federation, "histogram")
        number = nearest_mean(vectors, -(-federation.n_clients // 2), "l2")
        return likelihood_count(vectors, number, scaled=True)


def told(rule: RobFCP | RobFCPReleased) -> None:
    """The number a defence was told as a plain one, refused where it is none."""
    if rule.liars is not None:
        liars = whole("liars", rule.liars, "give the number of sites that lie")
        object.__setattr__(rule, "liars", liars)


def nearest_mean(
    vectors: NDArray[np.float64], n_benign: int, distance: Metric
) -> NDArray[np.float64]:
    """Mean distance to the n_benign - 1 nearest others; 0 where there are none."""
    return nearest_means(vectors, n_benign, distance).means


def nearest_means(
    vectors: NDArray[np.float64],
    n_benign: int,
    distance: Metric,
    seed: int | None = None,
    device: str | None = None,
) -> Estimate:
    """The same with its standard errors: exact up to 20,000 clients or on an accelerator."""
    exact = np.zeros(len(vectors))
    if n_benign < 2:
        return Estimate(np.zeros(len(vectors)), exact)
    if device is not None:
        return Estimate(gpu_neighbour_means(vectors, distance, 1, n_benign - 1, device), exact)
    return scalable_means(Space.of(vectors, distance), 1, n_benign - 1, cut=n_benign, seed=seed)


@dataclass(frozen=True)
class RobFCPReleased(Defence):
    """What the code released with the paper does: trust those nearest to their *farthest* others.

    It differs from the paper's text (`RobFCP`) in three things. Conformity scores 1 - s go to the
    bin `int((1 - s) / width) - 1`, so that those in [0, width) and those of exactly 1 share the
    last bin: liars who report s = 0 stand apart from honest scores just above it, liars who report
    a little more do not. Maliciousness is the mean distance to the K_b - 1 farthest others. And
    the number of liars comes from the likelihood contrast with the covariance left at the identity.

    Reports hold no single scores: those in the first bin of their grid count as exactly 0 where
    that bin is finer than the view's (it ends at 1.1e-7 by default, about the rounding of a single
    precision probability of 1); otherwise nobody's do.

    Parameters
    ----------
    liars
        How many are left out, whatever they look like; the code's own estimate if None.
    bins
        The uniform bins vectors are made from; the report's own where these do not nest.
    seed
        What the reference clients of a large federation are drawn from; a secret one if None.

    References
    ----------
    The code released with Kang, Lin, Sun, Xiao and Li (2024), "Certifiably Byzantine-robust
    federated conformal prediction", ICML; written anew from a description of what it does.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[90, 10], [88, 12], [91, 9], [0, 100]])
    >>> robfcp.calibrate(federation, defence=robfcp.RobFCPReleased(liars=1)).flagged
    ('client-3',)
    """

    liars: int | None = None
    bins: int = 100
    seed: int | None = None
    name: ClassVar[str] = "rob-fcp-released"

    def __post_init__(self) -> None:
        told(self)

    def __call__(self, federation: Federation) -> Assessment:
        liars = self.estimate(federation) if self.liars is None else self.liars
        n_benign = check_minority(federation, liars)
        estimate = _farthest(wrapped(federation, self.bins), n_benign, self.seed)
        notes = () if estimate.note is None else (estimate.note,)
        return without_farthest(
            federation, liars, estimate.means, "the others", notes, stated=self.liars is not None
        )

    def estimate(self, federation: Federation) -> int:
        """The number of liars, from 1 to under half: never 0, whoever reports.

        Parameters
        ----------
        federation
            The reports of one round, at least three.

        Returns
        -------
        int
            K - z for the z of the greatest contrast, clients ranked with ceil(K/2) taken as benign.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[90, 10], [88, 12], [91, 9], [0, 100]])
        >>> robfcp.RobFCPReleased().estimate(federation)
        1
        """
        vectors = wrapped(federation, self.bins)
        number = _farthest(vectors, -(-federation.n_clients // 2), self.seed).means
        return likelihood_count(vectors, number, scaled=False)


def wrapped(federation: Federation, bins: int = 100) -> NDArray[np.float64]:
    """(K, bins) shares with the scores of exactly 0 moved from the first bin to the last.

    The index int((1 - s) / width) - 1 also turns the other bins by one place and reverses them,
    which no distance here sees.
    """
    whole = projected(federation)
    vectors = histogram(whole, bins)
    if vectors.shape[1] < whole.grid.n_bins:
        nothing = whole.below(0) / whole.sizes
        vectors[:, 0] -= nothing
        vectors[:, -1] += nothing
    return vectors


def _farthest(vectors: NDArray[np.float64], n_benign: int, seed: int | None) -> Estimate:
    """Mean distance to the n_benign - 1 farthest others; 0 where there are none."""
    n_clients = len(vectors)
    if n_benign < 2:
        return Estimate(np.zeros(n_clients), np.zeros(n_clients))
    space, first = Space.of(vectors, "l2"), n_clients - n_benign + 1
    return scalable_means(space, first, n_clients - 1, cut=n_benign, seed=seed)
