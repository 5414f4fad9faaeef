"""The estimator of the number of malicious clients, Eq. (8).

References
----------
Kang, Lin, Sun, Xiao and Li (2024), "Certifiably Byzantine-robust federated conformal prediction",
ICML. Equations are those of this paper.
"""

from __future__ import annotations

import numpy as np

from robfcp._typing import FloatArray, IndexArray
from robfcp.defense._base import MALICIOUSNESS_DECIMALS
from robfcp.errors import RobfcpError

COVARIANCE_RIDGE = 1e-6  # added to variances: those of points on a simplex are singular


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
