"""Rob-FCP, by its paper's text and by its authors' code: who is far from the others is left out."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from robfcp.binning import Binning
from robfcp.defense._base import (
    Assessment,
    Defense,
    check_benign_majority,
    exclude_most_malicious,
    normalize_client_numbers,
)
from robfcp.errors import RobfcpError
from robfcp.federation import Federation

Characterization = Literal["histogram", "gaussian", "k-means", "kernel", "quantiles"]
Metric = Literal["l1", "l2", "linf", "cosine", "kolmogorov", "wasserstein"]
CHARACTERIZATIONS: tuple[Characterization, ...] = get_args(Characterization)
METRICS: tuple[Metric, ...] = get_args(Metric)
_SCIPY: Mapping[Metric, Literal["cityblock", "euclidean", "chebyshev", "sqeuclidean"]] = {
    "l1": "cityblock",
    "l2": "euclidean",
    "linf": "chebyshev",
    "cosine": "sqeuclidean",
    "kolmogorov": "chebyshev",
    "wasserstein": "cityblock",
}
MAX_CLIENTS_ALL_PAIRS = 200_000  # of which all pairs are compared
COVARIANCE_RIDGE = 1e-6  # added to variances: those of points on a simplex are singular
_CELLS = 2**21  # distances held at a time by one thread

Vectors = NDArray[np.float64]


def characterization_vectors(
    federation: Federation, characterization: Characterization = "histogram", n_bins: int = 100
) -> Vectors:
    """(K, d) vectors, one a client.

    histogram: shares of `bins` uniform bins (of the report's own where these do not nest);
    gaussian: mean and standard deviation; k-means: ten sorted weighted centres;
    kernel: the histogram smoothed by a Gaussian of Scott's width; quantiles: the deciles
    1/20, 3/20, ..., 19/20. A bin counts as its middle, an open-ended one as its finite edge.
    """
    if characterization not in CHARACTERIZATIONS:
        known = ", ".join(CHARACTERIZATIONS)
        raise RobfcpError(f"characterisation: {characterization!r} is unknown; use one of {known}")
    federation = federation.projected_to_simplex()
    edges, ends = federation.binning.edges, None
    if np.isfinite(edges[[0, -1]]).all():
        uniform = Binning.uniform(n_bins, edges[0], edges[-1])
        ends = federation.binning.merged_bin_ends(uniform)
    if ends is None:
        counts = federation.counts
    else:
        counts, edges = federation.merge_bins(ends), uniform.edges
    sizes = federation.sample_sizes[:, None]
    shares: Vectors = counts / sizes
    if characterization == "histogram":
        return shares
    low = np.where(np.isfinite(edges[:-1]), edges[:-1], edges[1:])
    high = np.where(np.isfinite(edges[1:]), edges[1:], low)
    x = np.nan_to_num(low / 2 + high / 2, posinf=0.0, neginf=0.0)
    if characterization == "gaussian":
        mean = shares @ x
        return np.stack([mean, np.sqrt(np.maximum(shares @ x**2 - mean**2, 0))], axis=1)
    if characterization == "kernel":
        pooled = counts.sum(axis=0) / counts.sum()
        spread = np.sqrt(max(float(pooled @ x**2 - (pooled @ x) ** 2), 0.0))
        width = spread * float(np.median(federation.sample_sizes)) ** -0.2
        width = max(width, float(np.diff(x).min(initial=np.inf)), 1e-12)
        kernel = np.exp(-0.5 * ((x[:, None] - x) / width) ** 2)
        smoothed: Vectors = shares @ (kernel / kernel.sum(axis=1, keepdims=True))
        return smoothed
    below, levels = np.cumsum(counts, axis=1) / sizes, np.arange(1, 20, 2) / 20
    quantiles: Vectors = x[(below[:, None, :] >= levels[:, None] - 1e-12).argmax(axis=2)]
    return quantiles if characterization == "quantiles" else _kmeans_centers(counts, x, quantiles)


def _kmeans_centers(counts: NDArray[np.int64], x: Vectors, centres: Vectors) -> Vectors:
    """Sorted centres of one-dimensional k-means (Lloyd) from those given."""
    zero = np.zeros((len(counts), 1), dtype=np.int64)
    mass = np.concatenate([zero, np.cumsum(counts, axis=1)], axis=1)
    moment = np.concatenate([zero.astype(float), np.cumsum(counts * x, axis=1)], axis=1)
    for _ in range(25):
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


def mean_neighbor_distances(
    vectors: Vectors, metric: Metric, first_rank: int, last_rank: int
) -> Vectors:
    """(K,) mean distance of each client to its neighbours of rank first..last, nearest = 1.

    l1, l2, linf: the norms of v_k - v_l; cosine: 1 - cos of their angle, |a - b|^2 / 2 for unit
    vectors; kolmogorov, wasserstein: linf and l1 of the cumulated vectors. 0 where last < first.
    """
    from scipy.spatial.distance import cdist

    if metric not in METRICS:
        raise RobfcpError(f"distance: {metric!r} is unknown; use one of {', '.join(METRICS)}")
    n_clients, means = len(vectors), np.zeros(len(vectors))
    if n_clients > MAX_CLIENTS_ALL_PAIRS:
        raise RobfcpError(f"defence: all pairs of {n_clients:,} sites are too many; use consensus")
    if last_rank < first_rank:
        return means
    points = vectors
    if metric == "cosine":
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        points = vectors / np.where(norms > 0, norms, 1)
    elif metric in ("kolmogorov", "wasserstein"):
        points = np.cumsum(vectors, axis=1)
    step = max(1, _CELLS // n_clients)

    def work(start: int) -> None:
        block = cdist(points[start : start + step], points, _SCIPY[metric])
        rows = np.arange(len(block))
        block[rows, start + rows] = -1  # itself, before every neighbour
        block.partition((first_rank, last_rank), axis=1)
        means[start : start + step] = block[:, first_rank : last_rank + 1].mean(axis=1)

    with ThreadPoolExecutor(4) as pool:  # each holds a block
        for _ in pool.map(work, range(0, n_clients, step)):
            pass
    return means / 2 if metric == "cosine" else means


@dataclass(frozen=True)
class RobFCP(Defense):
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

    References
    ----------
    Kang, Lin, Sun, Xiao and Li (2024), "Certifiably Byzantine-robust federated conformal
    prediction", ICML.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[90, 10], [88, 12], [91, 9], [0, 100]])
    >>> robfcp.calibrate(federation, defense=robfcp.RobFCP(liars=1)).flagged_clients
    ('client-3',)
    """

    liars: int | None = None
    distance: Metric = "l2"
    characterisation: Characterization = "histogram"
    bins: int = 100
    name: ClassVar[str] = "rob-fcp"

    def __post_init__(self) -> None:
        if self.distance not in METRICS:
            known = ", ".join(map(repr, METRICS))
            raise RobfcpError(f"distance: {self.distance!r} is unknown; use {known}")
        normalize_client_numbers(self, "liars")

    def assess(self, federation: Federation) -> Assessment:
        liars, stated = self.liars, self.liars is not None
        if liars is None:
            liars = self.estimate_n_malicious(federation)
        n_benign = check_benign_majority(federation, liars)
        vectors = characterization_vectors(federation, self.characterisation, self.bins)
        number = mean_neighbor_distances(vectors, self.distance, 1, n_benign - 1)
        return exclude_most_malicious(
            federation, liars, number, "their neighbours", n_malicious_given=stated
        )

    def estimate_n_malicious(self, federation: Federation) -> int:
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
        vectors = characterization_vectors(federation)
        number = mean_neighbor_distances(vectors, "l2", 1, -(-federation.n_clients // 2) - 1)
        return estimate_n_malicious_by_likelihood(vectors, number, fit_variances=True)


@dataclass(frozen=True)
class RobFCPReleased(Defense):
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

    References
    ----------
    The code released with Kang, Lin, Sun, Xiao and Li (2024), "Certifiably Byzantine-robust
    federated conformal prediction", ICML; written anew from a description of what it does.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[90, 10], [88, 12], [91, 9], [0, 100]])
    >>> robfcp.calibrate(federation, defense=robfcp.defense.RobFCPReleased(liars=1)).flagged_clients
    ('client-3',)
    """

    liars: int | None = None
    bins: int = 100
    name: ClassVar[str] = "rob-fcp-released"

    def __post_init__(self) -> None:
        normalize_client_numbers(self, "liars")

    def assess(self, federation: Federation) -> Assessment:
        liars = self.estimate_n_malicious(federation) if self.liars is None else self.liars
        n_benign = check_benign_majority(federation, liars)
        number = _mean_distance_to_farthest(released_code_vectors(federation, self.bins), n_benign)
        stated = self.liars is not None
        return exclude_most_malicious(
            federation, liars, number, "the others", n_malicious_given=stated
        )

    def estimate_n_malicious(self, federation: Federation) -> int:
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
        >>> robfcp.defense.RobFCPReleased().estimate_n_malicious(federation)
        1
        """
        vectors = released_code_vectors(federation, self.bins)
        number = _mean_distance_to_farthest(vectors, -(-federation.n_clients // 2))
        return estimate_n_malicious_by_likelihood(vectors, number, fit_variances=False)


def released_code_vectors(federation: Federation, bins: int = 100) -> Vectors:
    """(K, bins) shares with the scores of exactly 0 moved from the first bin to the last.

    The index int((1 - s) / width) - 1 also turns the other bins by one place and reverses them,
    which no distance here sees.
    """
    whole = federation.projected_to_simplex()
    vectors = characterization_vectors(whole, n_bins=bins)
    if vectors.shape[1] < whole.binning.n_bins:
        nothing = whole.cumulative_count(0) / whole.sample_sizes
        vectors[:, 0] -= nothing
        vectors[:, -1] += nothing
    return vectors


def _mean_distance_to_farthest(vectors: Vectors, n_benign: int) -> Vectors:
    """Mean distance to the n_benign - 1 farthest others."""
    return mean_neighbor_distances(vectors, "l2", len(vectors) - n_benign + 1, len(vectors) - 1)


def estimate_n_malicious_by_likelihood(
    vectors: NDArray[np.float64], maliciousness: NDArray[np.float64], *, fit_variances: bool
) -> int:
    """K - z for the z in (K/2, K) of the greatest contrast, as the paper estimates it.

    The contrast is mean_{k<=z} log p(v_k) - mean_{k>z} log p(v_k), sites ranked by oddness and p
    the normal density with mean and variances of the z best (`scaled`), or with unit variances.
    Faults of the published method: z = K is undefined, so it never answers 0; its first term is
    constant for fitted variances, so that one far site decides; exact copies escape it.
    """
    n_clients = len(vectors)
    if n_clients < 3:
        raise RobfcpError(f"clients: the likelihood contrast needs at least 3, got {n_clients}")
    sizes, values = likelihood_contrasts(
        vectors[np.argsort(np.round(maliciousness, 12), kind="stable")], fit_variances
    )
    return n_clients - int(sizes[np.argmax(values)])


def likelihood_contrasts(
    ranked: NDArray[np.float64], scaled: bool
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Every z in (K/2, K) and its contrast, all at once in O(K H) by prefix sums.

    sum_k (v_k - mu)^2 / s = (Q - 2 mu L + count mu^2) / s, with L and Q the sums of v and v^2;
    one coordinate at a time, so that little is held beside the vectors.
    """
    sizes = np.arange(len(ranked) // 2 + 1, len(ranked))
    above, found = len(ranked) - sizes, np.zeros(len(sizes))
    for column in ranked.T:
        centred = column - column.mean()  # keeps the digits of the variances
        linear, squares = np.cumsum(centred), np.cumsum(centred**2)
        mean = linear[sizes - 1] / sizes
        variance = np.maximum(squares[sizes - 1] / sizes - mean**2, 0) + COVARIANCE_RIDGE
        inside = squares[sizes - 1] - sizes * mean**2
        outside = (
            (squares[-1] - squares[sizes - 1])
            - 2 * mean * (linear[-1] - linear[sizes - 1])
            + above * mean**2
        )
        found += 0.5 * (outside / above - inside / sizes) / (variance if scaled else 1.0)
    return sizes, found
