"""The paper's count of malicious clients: the best contrast of log-likelihoods."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.characterisations import characterise
from robfcp.defence.rob_fcp import nearest_mean
from robfcp.errors import RobfcpError
from robfcp.federation import Federation

Covariance = Literal["diagonal", "ridge", "pseudo-inverse", "identity"]
COVARIANCES: tuple[Covariance, ...] = ("diagonal", "ridge", "pseudo-inverse", "identity")
RIDGE = 1e-6

Array = NDArray[np.float64]


def likelihood_count(
    federation: Federation,
    covariance: Covariance = "diagonal",
    bins: int = 100,
    iterations: int = 1,
) -> tuple[int, tuple[str, ...]]:
    """K - K_b-hat and the clients ranked last, as the paper estimates them.

    Clients are ranked by maliciousness with ceil(K/2) taken as benign; K_b-hat is the z in
    (K/2, K) with the greatest mean_{k<=z} log p(v_k) - mean_{k>z} log p(v_k), p the normal density
    with the mean and covariance of the z best. `iterations` ranks anew with the last answer.

    Faults of the published method: z = K is undefined, so it never answers 0; the covariance of z
    points on a simplex is singular, hence the four choices; its first term is constant for a fitted
    covariance, so that one far client decides the answer; exact copies escape it.
    """
    if covariance not in COVARIANCES:
        raise RobfcpError(f"covariance: {covariance!r} is none of {', '.join(COVARIANCES)}")
    n_clients = federation.n_clients
    if n_clients < 3:
        raise RobfcpError(f"clients: the likelihood contrast needs at least 3, got {n_clients}")
    vectors = characterise(federation, "histogram", bins)
    n_benign = -(-n_clients // 2)
    order = np.arange(n_clients)
    for _ in range(max(1, iterations)):
        number = nearest_mean(vectors, n_benign, "l2")
        order = np.lexsort((np.arange(n_clients), np.round(number, 12)))
        sizes, scores = contrasts(vectors[order], covariance)
        best = int(sizes[np.argmax(scores)])
        if best == n_benign:
            break
        n_benign = best
    return n_clients - n_benign, tuple(federation.ids[k] for k in sorted(order[n_benign:]))


def contrasts(ranked: Array, covariance: Covariance) -> tuple[NDArray[np.intp], Array]:
    """Every z in (K/2, K) and its contrast, for vectors ranked from most to least benign."""
    sizes = np.arange(len(ranked) // 2 + 1, len(ranked))
    if covariance in ("diagonal", "identity"):
        return sizes, _separable(ranked, sizes, covariance == "diagonal")
    return sizes, np.array([_full(ranked, int(z), covariance) for z in sizes])


def _separable(ranked: Array, sizes: NDArray[np.intp], scaled: bool) -> Array:
    """The contrasts for diagonal or identity covariance, all z at once in O(K H) by prefix sums.

    sum_k (v_k - mu)^2 / s = (Q - 2 mu L + count mu^2) / s, with L and Q the sums of v and v^2;
    one coordinate at a time, so that little is held beside the vectors.
    """
    result: Array = np.zeros(len(sizes))
    above = len(ranked) - sizes
    for column in ranked.T:
        centred = column - column.mean()  # keeps the digits of the variances
        linear, squares = np.cumsum(centred), np.cumsum(centred**2)
        mean = linear[sizes - 1] / sizes
        variance = np.maximum(squares[sizes - 1] / sizes - mean**2, 0) + RIDGE
        inside = squares[sizes - 1] - sizes * mean**2
        outside = (
            (squares[-1] - squares[sizes - 1])
            - 2 * mean * (linear[-1] - linear[sizes - 1])
            + above * mean**2
        )
        result += 0.5 * (outside / above - inside / sizes) / (variance if scaled else 1.0)
    return result


def _full(ranked: Array, z: int, covariance: Covariance) -> float:
    """The contrast at one z by one singular value decomposition of the z best vectors.

    Half the difference of mean squared Mahalanobis distances: the log-determinants cancel.
    """
    mean = ranked[:z].mean(axis=0)
    _, singular, directions = np.linalg.svd((ranked[:z] - mean) / np.sqrt(z), full_matrices=False)
    centred = ranked - mean
    along = centred @ directions.T
    if covariance == "ridge":
        squared = (along**2 / (singular**2 + RIDGE)).sum(axis=1)
        squared += np.maximum((centred**2).sum(axis=1) - (along**2).sum(axis=1), 0) / RIDGE
    else:
        kept = singular > singular[0] * 1e-10
        squared = (along[:, kept] ** 2 / singular[kept] ** 2).sum(axis=1)
    return float(0.5 * (squared[z:].mean() - squared[:z].mean()))
