"""Counts as they are compared between clients: without noise, and with one count a sample.

The results are for comparing and for showing clients. Guarantees rest on the counts as they were
sent.
"""

from __future__ import annotations

import numpy as np

from robfcp._typing import BoolArray, FloatArray, IntArray


def project_noisy_rows(counts: IntArray, totals: IntArray, is_noisy: BoolArray) -> FloatArray:
    """Return the counts with the rows that hold noise projected onto histograms.

    Parameters
    ----------
    counts : (K, H) ndarray of int
        The counts as they were sent.
    totals : (K,) ndarray of int
        What each client's counts add up to without noise, at least 1: n_k times the counts of a
        sample.
    is_noisy : (K,) ndarray of bool
        Which rows hold noise; the others stay as they are.

    Returns
    -------
    (K, H) ndarray of float
        The projected rows are not negative, and hold numbers that are not whole.
    """
    projected = counts.astype(np.float64)
    noisy_totals = totals[is_noisy].astype(np.float64)
    projected[is_noisy] = project_to_simplex(projected[is_noisy], noisy_totals)
    return projected


def round_counts(counts: FloatArray) -> IntArray:
    """Return (K, H) counts rounded to whole numbers; a client without any has one in bin 0.

    Rounding may leave nothing of a few samples spread over many bins. A federation has no client
    without samples.
    """
    rounded = np.rint(counts).astype(np.int64)
    is_empty = ~rounded.any(axis=1)
    rounded[is_empty, 0] = 1
    return rounded


def losses_as_samples(
    cumulative_counts: IntArray, sample_sizes: IntArray, counts_per_sample: int
) -> IntArray:
    """Return the counts of losses as counts of samples.

    Parameters
    ----------
    cumulative_counts : (K, H) ndarray of int or float
        The counts up to each edge, in fractions of a sample: `counts_per_sample` of them are one
        sample.
    sample_sizes : (K,) ndarray of int
        How many samples each client has.
    counts_per_sample : int
        How many counts one sample has.

    Returns
    -------
    (K, H) ndarray of int
        Counts of samples, never negative. Each row sums to n_k at least; to more where noise has
        raised its counts.
    """
    # What lies up to each edge is rounded, not each count: so the errors of bins do not add up.
    samples = np.rint(cumulative_counts / counts_per_sample).astype(np.int64)

    # Noise may make the sums fall from edge to edge, or negative.
    rising = np.maximum.accumulate(np.maximum(samples, 0), axis=1)
    counts = np.diff(rising, axis=1, prepend=0)

    # Samples that noise has taken away are put in the last bin.
    n_missing = np.maximum(sample_sizes - counts.sum(axis=1), 0)
    counts[:, -1] += n_missing
    return counts


def project_to_simplex(values: FloatArray, totals: FloatArray) -> FloatArray:
    """Return the closest non-negative rows with the given totals.

    The projection of a row v onto the simplex of total s is max(v - tau, 0), with the tau that
    makes its sum s (Duchi, Shalev-Shwartz, Singer and Chandra 2008, figure 1).

    Parameters
    ----------
    values : (K, H) ndarray of float
        The rows.
    totals : (K,) ndarray of float
        What each row adds up to afterwards; above 0, or there would be no largest value to keep.

    Returns
    -------
    (K, H) ndarray of float
        The projected rows.
    """
    # The n-th largest value stays positive where n * value > (sum of the n largest) - total.
    falling = -np.sort(-values, axis=1)
    excess = np.cumsum(falling, axis=1) - totals[:, None]
    ranks = np.arange(1, values.shape[1] + 1)
    n_positive = (falling * ranks > excess).sum(axis=1)

    # The positive values lose tau each, which together is their excess.
    tau = np.take_along_axis(excess, n_positive[:, None] - 1, axis=1) / n_positive[:, None]
    projected: FloatArray = np.maximum(values - tau, 0)
    return projected
