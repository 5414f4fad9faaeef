"""Rob-FCP, by its paper's text and by its authors' code: clients far from the others are excluded.

References
----------
Kang, Lin, Sun, Xiao and Li (2024), "Certifiably Byzantine-robust federated conformal prediction",
ICML. Equations and Algorithm 1 are those of this paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from robfcp._typing import FloatArray, IndexArray, IntArray
from robfcp._validation import set_fields
from robfcp.binning import Binning
from robfcp.defense._base import (
    MALICIOUSNESS_DECIMALS,
    Assessment,
    Defense,
    check_benign_majority,
    check_client_number,
    exclude_most_malicious,
)
from robfcp.errors import RobfcpError
from robfcp.federation import Federation

Characterization = Literal["histogram", "gaussian", "k-means", "kernel", "quantiles"]
Metric = Literal["l1", "l2", "linf", "cosine", "kolmogorov", "wasserstein"]
CHARACTERIZATIONS: tuple[Characterization, ...] = get_args(Characterization)
METRICS: tuple[Metric, ...] = get_args(Metric)
_SCIPY_METRICS: Mapping[Metric, Literal["cityblock", "euclidean", "chebyshev", "sqeuclidean"]] = {
    "l1": "cityblock",
    "l2": "euclidean",
    "linf": "chebyshev",
    "cosine": "sqeuclidean",
    "kolmogorov": "chebyshev",
    "wasserstein": "cityblock",
}
QUANTILE_LEVELS = np.arange(1, 20, 2) / 20  # 1/20, 3/20, ..., 19/20
CDF_TOLERANCE = 1e-12  # up to which a CDF that is computed in floating point reaches a level
MAX_LLOYD_STEPS = 25  # of k-means in one dimension, which settles in a few
MIN_KERNEL_WIDTH = 1e-12  # in units of the score; it is a divisor
MAX_CLIENTS_ALL_PAIRS = 200_000  # of which all pairs are compared
COVARIANCE_RIDGE = 1e-6  # added to variances: those of points on a simplex are singular
_MAX_DISTANCES_PER_BLOCK = 2**21  # in memory at a time in one thread
_N_THREADS = 4


def characterization_vectors(
    federation: Federation, characterization: Characterization = "histogram", n_bins: int = 100
) -> FloatArray:
    """Return (K, d) the characterization vector of every client, Eq. (4) of the paper.

    A bin counts as its midpoint, an open-ended one as its finite edge.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    characterization : str
        "histogram": shares of samples in uniform bins. "gaussian": mean and standard deviation.
        "k-means": ten sorted weighted centers. "kernel": the histogram smoothed by a Gaussian of
        Scott's width. "quantiles": those of the levels 1/20, 3/20, ..., 19/20.
    n_bins : int
        The number of uniform bins; the binning of the reports is used where these do not nest.

    Returns
    -------
    ndarray of shape (K, d)
        Shares of a client's samples for "histogram" and "kernel", where d is the number of bins H;
        scores for "gaussian" (d = 2), "k-means" and "quantiles" (d = 10). A new array.
    """
    if characterization not in CHARACTERIZATIONS:
        names = ", ".join(CHARACTERIZATIONS)
        raise RobfcpError(f"characterisation: {characterization!r} is unknown; use one of {names}")

    federation = federation.projected_to_simplex()
    counts, edges = _uniform_counts(federation, n_bins)
    sizes = federation.sample_sizes[:, None]
    histograms: FloatArray = counts / sizes
    if characterization == "histogram":
        return histograms

    midpoints = _bin_midpoints(edges)
    if characterization == "gaussian":
        return _means_and_deviations(histograms, midpoints)
    if characterization == "kernel":
        pooled = counts.sum(axis=0) / counts.sum()
        median_size = float(np.median(federation.sample_sizes))
        return _smoothed(histograms, midpoints, pooled, median_size)

    cdfs = np.cumsum(counts, axis=1) / sizes
    quantiles = _quantiles(cdfs, midpoints)
    if characterization == "quantiles":
        return quantiles
    return _kmeans_centers(counts, midpoints, quantiles)


def _uniform_counts(federation: Federation, n_bins: int) -> tuple[IntArray, FloatArray]:
    """Return counts in uniform bins, and the edges of these bins.

    Where uniform bins do not nest in those of the reports, the bins of the reports are returned.

    Parameters
    ----------
    federation : Federation
        The reports of K clients.
    n_bins : int
        How many uniform bins there are between the outer edges of the reports' binning.

    Returns
    -------
    counts : ndarray of shape (K, H)
        The counts; no whole numbers where noisy counts were projected, and where reports are
        coarsened: their samples are spread over the bins where they may lie.
    edges : ndarray of shape (H + 1,)
        In the unit of the score; infinite at open ends.
    """
    binning = federation.binning
    if np.isfinite(binning.edges[[0, -1]]).all():
        uniform = Binning.uniform(n_bins, binning.edges[0], binning.edges[-1])
        bin_ends = binning.merged_bin_ends(uniform)
        if bin_ends is not None:
            return federation.spread_counts(bin_ends), uniform.edges
    return federation.spread_counts(np.arange(binning.n_bins)), binning.edges


def _bin_midpoints(edges: FloatArray) -> FloatArray:
    """Return (H,) the midpoint of each bin; of an open-ended bin its finite edge, or 0.

    Parameters
    ----------
    edges : ndarray of shape (H + 1,)
        The edges of the bins, in the unit of the score; the outer ones may be infinite.
    """
    low = np.where(np.isfinite(edges[:-1]), edges[:-1], edges[1:])
    high = np.where(np.isfinite(edges[1:]), edges[1:], low)
    return np.nan_to_num(low / 2 + high / 2, posinf=0.0, neginf=0.0)


def _means_and_deviations(histograms: FloatArray, midpoints: FloatArray) -> FloatArray:
    """Return (K, 2) the mean and the standard deviation of each client's scores.

    Parameters
    ----------
    histograms : ndarray of shape (K, H)
        Shares of each client's samples; rows sum to 1.
    midpoints : ndarray of shape (H,)
        Of the bins, in the unit of the score.
    """
    mean = histograms @ midpoints
    variance = np.maximum(histograms @ midpoints**2 - mean**2, 0)  # rounding may make it negative
    return np.stack([mean, np.sqrt(variance)], axis=1)


def _smoothed(
    histograms: FloatArray, midpoints: FloatArray, pooled: FloatArray, median_size: float
) -> FloatArray:
    """Return (K, H) histograms smoothed by a Gaussian kernel of Scott's width.

    The width is s n^(-1/5), where s is the standard deviation of the pooled scores and n the median
    size of a client, but at least the least distance of two midpoints.

    Parameters
    ----------
    histograms : ndarray of shape (K, H)
        Shares of each client's samples; rows sum to 1.
    midpoints : ndarray of shape (H,)
        Of the bins, ascending, in the unit of the score.
    pooled : ndarray of shape (H,)
        Shares of the samples of all clients together; they sum to 1.
    median_size : float
        n, in samples.
    """
    pooled_variance = float(pooled @ midpoints**2 - (pooled @ midpoints) ** 2)
    pooled_deviation = np.sqrt(max(pooled_variance, 0.0))
    least_distance = float(np.diff(midpoints).min(initial=np.inf))
    width = max(pooled_deviation * median_size**-0.2, least_distance, MIN_KERNEL_WIDTH)

    # Row h spreads the share of bin h. It is scaled to sum to 1, so that shares still sum to 1.
    kernel = np.exp(-0.5 * ((midpoints[:, None] - midpoints) / width) ** 2)
    smoothed: FloatArray = histograms @ (kernel / kernel.sum(axis=1, keepdims=True))
    return smoothed


def _quantiles(cdfs: FloatArray, midpoints: FloatArray) -> FloatArray:
    """Return (K, 10) the midpoint of the bin in which each CDF reaches each quantile level.

    Parameters
    ----------
    cdfs : ndarray of shape (K, H)
        Shares of each client's samples up to the end of each bin; the last one is 1.
    midpoints : ndarray of shape (H,)
        Of the bins, ascending.
    """
    reaches_level = cdfs[:, None, :] >= QUANTILE_LEVELS[:, None] - CDF_TOLERANCE
    return np.asarray(midpoints[reaches_level.argmax(axis=2)])


def _kmeans_centers(counts: IntArray, midpoints: FloatArray, centers: FloatArray) -> FloatArray:
    """Return (K, 10) sorted centers of one-dimensional k-means, by Lloyd's steps.

    Parameters
    ----------
    counts : ndarray of shape (K, H)
        The clients' counts, not negative.
    midpoints : ndarray of shape (H,)
        Of the bins, ascending.
    centers : ndarray of shape (K, 10)
        The sorted centers to begin with, in the unit of the score; not changed.
    """
    # Cumulative counts and sums of scores: those between two bins are differences of two entries.
    zeros = np.zeros((len(counts), 1), dtype=np.int64)
    cumulative_count = np.concatenate([zeros, np.cumsum(counts, axis=1)], axis=1)
    cumulative_sum = np.concatenate(
        [zeros.astype(float), np.cumsum(counts * midpoints, axis=1)], axis=1
    )

    for _ in range(MAX_LLOYD_STEPS):
        # Sorted centers own intervals of sorted values, so cuts between them are enough: the bins
        # of center c are bounds[c] to bounds[c + 1] - 1, where bounds are (K, 11).
        cuts = np.searchsorted(midpoints, (centers[:, 1:] + centers[:, :-1]) / 2)
        bounds = np.concatenate([zeros, cuts, np.full_like(zeros, midpoints.size)], axis=1)
        weights = np.diff(np.take_along_axis(cumulative_count, bounds, axis=1), axis=1)
        sums = np.diff(np.take_along_axis(cumulative_sum, bounds, axis=1), axis=1)

        # A center without samples stays where it is.
        means = sums / np.maximum(weights, 1)
        updated = np.sort(np.where(weights > 0, means, centers), axis=1)
        if np.array_equal(updated, centers):
            break
        centers = updated
    return centers


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
        raise RobfcpError(f"distance: {metric!r} is unknown; use one of {', '.join(METRICS)}")
    if n_clients > MAX_CLIENTS_ALL_PAIRS:
        raise RobfcpError(f"defence: all pairs of {n_clients:,} sites are too many; use consensus")
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


@dataclass(frozen=True)
class RobFCP(Defense):
    """Rob-FCP as its paper describes it, with the maliciousness score of Eq. (6).

    Of K clients the K_b with the lowest mean distance to their K_b - 1 nearest neighbors are held
    to be benign (Algorithm 1).

    Parameters
    ----------
    liars : int, optional
        How many clients are excluded, whatever they look like; the paper's estimate if None.
    distance : str
        Between two clients' vectors: "l1", "l2", "linf", "cosine", "kolmogorov" or "wasserstein".
    characterisation : str
        A client's vector: "histogram", "gaussian", "k-means", "kernel" or "quantiles".
    bins : int
        The number of uniform bins that vectors are made from; the binning of the reports is used
        where these do not nest.

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
            names = ", ".join(map(repr, METRICS))
            raise RobfcpError(f"distance: {self.distance!r} is unknown; use {names}")
        set_fields(self, liars=check_client_number("liars", self.liars))

    def assess(self, federation: Federation) -> Assessment:
        """Exclude the clients with the largest mean distances to their nearest neighbors.

        Parameters
        ----------
        federation : Federation
            The reports of one round, one count a sample.
        """
        n_malicious = self.liars
        if n_malicious is None:
            n_malicious = self.estimate_n_malicious(federation)
        n_benign = check_benign_majority(federation, n_malicious)
        vectors = characterization_vectors(federation, self.characterisation, self.bins)
        maliciousness = mean_neighbor_distances(vectors, self.distance, 1, n_benign - 1)
        return exclude_most_malicious(
            federation,
            n_malicious,
            maliciousness,
            "their neighbours",
            n_malicious_given=self.liars is not None,
        )

    def estimate_n_malicious(self, federation: Federation) -> int:
        """Return the paper's estimate of the number of malicious clients, Eq. (8).

        It is always made from histograms in 100 bins and the metric "l2", as in the paper, whatever
        the parameters of this object are.

        Parameters
        ----------
        federation : Federation
            The reports of one round, at least three.

        Returns
        -------
        int
            K - z for the z of the greatest contrast, where clients are ranked as if ceil(K/2) of
            them were benign. From 1 to under half: never 0, whatever the reports.
        """
        vectors = characterization_vectors(federation)
        n_benign_guess = -(-federation.n_clients // 2)  # ceil(K / 2)
        maliciousness = mean_neighbor_distances(vectors, "l2", 1, n_benign_guess - 1)
        return estimate_n_malicious_by_likelihood(vectors, maliciousness, fit_variances=True)


@dataclass(frozen=True)
class RobFCPReleased(Defense):
    """Rob-FCP as the code released with its paper does it.

    It differs from the paper's text (`RobFCP`) in three things. Conformity scores 1 - s go to the
    bin `int((1 - s) / width) - 1`, so that those in [0, width) and those of exactly 1 share the
    last bin: malicious clients that report s = 0 are apart from benign scores just above it, those
    that report a little more are not. Maliciousness is the mean distance to the K_b - 1 *farthest*
    other clients. And the number of malicious clients comes from the likelihood contrast with the
    covariance left at the identity.

    Reports hold no single scores: those in the first bin of their binning count as exactly 0 where
    that bin is finer than those of the vectors (it ends at 1.1e-7 by default, about the rounding of
    a single precision probability of 1); otherwise no scores do.

    Parameters
    ----------
    liars : int, optional
        How many clients are excluded, whatever they look like; the code's own estimate if None.
    bins : int
        The number of uniform bins that vectors are made from; the binning of the reports is used
        where these do not nest.

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
        set_fields(self, liars=check_client_number("liars", self.liars))

    def assess(self, federation: Federation) -> Assessment:
        """Exclude the clients with the largest mean distances to the farthest others.

        Parameters
        ----------
        federation : Federation
            The reports of one round, one count a sample.
        """
        n_malicious = self.liars
        if n_malicious is None:
            n_malicious = self.estimate_n_malicious(federation)
        n_benign = check_benign_majority(federation, n_malicious)
        vectors = released_code_vectors(federation, self.bins)
        return exclude_most_malicious(
            federation,
            n_malicious,
            _mean_distance_to_farthest(vectors, n_benign),
            "the others",
            n_malicious_given=self.liars is not None,
        )

    def estimate_n_malicious(self, federation: Federation) -> int:
        """Return the released code's estimate of the number of malicious clients.

        Parameters
        ----------
        federation : Federation
            The reports of one round, at least three.

        Returns
        -------
        int
            K - z for the z of the greatest contrast, where clients are ranked as if ceil(K/2) of
            them were benign. From 1 to under half: never 0, whatever the reports.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[90, 10], [88, 12], [91, 9], [0, 100]])
        >>> robfcp.defense.RobFCPReleased().estimate_n_malicious(federation)
        1
        """
        vectors = released_code_vectors(federation, self.bins)
        n_benign_guess = -(-federation.n_clients // 2)  # ceil(K / 2)
        maliciousness = _mean_distance_to_farthest(vectors, n_benign_guess)
        return estimate_n_malicious_by_likelihood(vectors, maliciousness, fit_variances=False)


def released_code_vectors(federation: Federation, n_bins: int = 100) -> FloatArray:
    """Return (K, H) histograms with the scores of exactly 0 moved from the first bin to the last.

    The index int((1 - s) / width) - 1 also turns the other bins by one place and reverses them,
    which no distance here sees.

    Parameters
    ----------
    federation : Federation
        The reports of one round.
    n_bins : int
        As in `characterization_vectors`.

    Returns
    -------
    ndarray of shape (K, H)
        Shares of each client's samples; rows sum to 1.
    """
    federation = federation.projected_to_simplex()
    vectors = characterization_vectors(federation, n_bins=n_bins)

    # The first bin of the reports counts as scores of exactly 0 where it is finer than the first
    # one of the vectors.
    bins_were_merged = vectors.shape[1] < federation.binning.n_bins
    if bins_were_merged:
        zero_shares = federation.cumulative_count(0) / federation.sample_sizes
        vectors[:, 0] -= zero_shares
        vectors[:, -1] += zero_shares
    return vectors


def _mean_distance_to_farthest(vectors: FloatArray, n_benign: int) -> FloatArray:
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


def estimate_n_malicious_by_likelihood(
    vectors: FloatArray, maliciousness: FloatArray, *, fit_variances: bool
) -> int:
    """Return K - z for the z in (K/2, K) of the greatest contrast, Eq. (8) of the paper.

    The contrast is mean_{k<=z} log p(v_k) - mean_{k>z} log p(v_k), clients ranked by maliciousness
    and p the normal density with mean and variances of the first z, or with unit variances. The
    paper fits the full covariance matrix and recommends iterating; here it is diagonal and there is
    one pass.

    Faults of the published method: z = K is undefined, so it never answers 0; its first term is
    constant for fitted variances, so that one far client decides; duplicate reports escape it.

    Parameters
    ----------
    vectors : ndarray of shape (K, d)
        The clients' vectors.
    maliciousness : ndarray of shape (K,)
        By which they are ranked; compared to twelve decimals.
    fit_variances : bool
        Whether the variances of p are fitted.

    Returns
    -------
    int
        The estimated number of malicious clients, from 1 to under half of K. Of equal contrasts the
        first counts, which means the most malicious clients.
    """
    n_clients = len(vectors)
    if n_clients < 3:
        raise RobfcpError(f"clients: the likelihood contrast needs at least 3, got {n_clients}")
    order = np.argsort(np.round(maliciousness, MALICIOUSNESS_DECIMALS), kind="stable")
    n_benign_values, contrasts = likelihood_contrasts(vectors[order], fit_variances)
    return n_clients - int(n_benign_values[np.argmax(contrasts)])


def likelihood_contrasts(ranked: FloatArray, fit_variances: bool) -> tuple[IndexArray, FloatArray]:
    """Return every z in (K/2, K) and its contrast, all at once in O(K d) by prefix sums.

    Up to constants the contrast is a sum over the coordinates of

        [mean_{k>z} (v_k - mu)^2 - mean_{k<=z} (v_k - mu)^2] / (2 s),

    where mu and s are mean and variance of the coordinate over the first z clients. A sum of
    (v_k - mu)^2 over n clients is Q - 2 mu L + n mu^2, with L and Q their sums of v_k and v_k^2.
    One coordinate is computed at a time, so that little is held beside the vectors.

    Parameters
    ----------
    ranked : ndarray of shape (K, d)
        The vectors of all clients, the least malicious first.
    fit_variances : bool
        Whether s is fitted, with `COVARIANCE_RIDGE` added; else it is 1.

    Returns
    -------
    n_benign_values : ndarray of int, shape (Z,)
        The values of z, ascending from floor(K / 2) + 1 to K - 1.
    contrasts : ndarray of float, shape (Z,)
        Their contrasts, in natural units of log likelihood.
    """
    n_first = np.arange(len(ranked) // 2 + 1, len(ranked))  # z
    n_last = len(ranked) - n_first  # K - z, at least 1
    contrasts = np.zeros(len(n_first))
    for column in ranked.T:
        centered = column - column.mean()  # keeps the digits of the variances
        sums = np.cumsum(centered)
        square_sums = np.cumsum(centered**2)
        first_sum = sums[n_first - 1]
        first_square_sum = square_sums[n_first - 1]
        last_sum = sums[-1] - first_sum
        last_square_sum = square_sums[-1] - first_square_sum

        # Sums of (v_k - mu)^2; in the first one Q - 2 mu L + n mu^2 is Q - n mu^2, as L is n mu.
        mean = first_sum / n_first
        first_deviations = first_square_sum - n_first * mean**2
        last_deviations = last_square_sum - 2 * mean * last_sum + n_last * mean**2
        difference = 0.5 * (last_deviations / n_last - first_deviations / n_first)
        if fit_variances:
            variance = np.maximum(first_square_sum / n_first - mean**2, 0) + COVARIANCE_RIDGE
            difference = difference / variance
        contrasts += difference
    return n_first, contrasts
