"""Characterization vectors: what Rob-FCP compares clients by, Eq. (4).

References
----------
Kang, Lin, Sun, Xiao and Li (2024), "Certifiably Byzantine-robust federated conformal prediction",
ICML. Equations are those of this paper.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from robfcp._typing import FloatArray, IntArray
from robfcp.binning import Binning
from robfcp.errors import RobfcpError
from robfcp.federation import Federation

Characterization = Literal["histogram", "gaussian", "k-means", "kernel", "quantiles"]
CHARACTERIZATIONS: tuple[Characterization, ...] = get_args(Characterization)
QUANTILE_LEVELS = np.arange(1, 20, 2) / 20  # 1/20, 3/20, ..., 19/20
CDF_TOLERANCE = 1e-12  # up to which a CDF that is computed in floating point reaches a level
MAX_LLOYD_STEPS = 25  # of k-means in one dimension, which settles in a few
MIN_KERNEL_WIDTH = 1e-12  # in units of the score; it is a divisor


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
        raise RobfcpError(f"characterization: {characterization!r} is unknown; use one of {names}")

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
