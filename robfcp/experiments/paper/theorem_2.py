"""Theorem 2 of the Rob-FCP paper, as published: the precision of its estimator.

Kang, Lin, Sun, Xiao and Li (2024), "Certifiably Byzantine-Robust Federated Conformal Prediction",
ICML. Nothing is certified with it: the docstring says what is wrong with the formula.
"""

from __future__ import annotations

from robfcp.errors import RobfcpError


def theorem_2(
    n_clients: int,
    n_malicious: int,
    initial_guess: int,
    trace: float,
    distance: float,
    largest: float = 1.0,
    smallest: float = 1.0,
) -> float:
    """Return the lower bound of Theorem 2, Eq. (9), on the probability that K_m is estimated right.

    P[K_m-hat = K_m] >= 1 - (3 K~ - K_m - 2)^2 Tr / ((K~ - K_m)^2 d^2)
                          - 2 (K + K_b) Tr s1^2 / (s0^2 d^2).

    What is wrong: the first term misses a factor K_b, and the bound is false under a decoy: one far
    client hides all other malicious ones from the estimator while the bound approaches 1.

    Parameters
    ----------
    n_clients, n_malicious : int
        K and K_m; K_b is K - K_m.
    initial_guess : int
        K~, with K_m < K~ <= K_b.
    trace : float
        Tr, of the benign clients' covariance matrix S.
    distance : float
        d, the least distance of a malicious vector to the benign mean.
    largest, smallest : float
        s1 and s0, the extreme eigenvalues of S^-1/2.
    """
    n_benign = n_clients - n_malicious
    if not n_malicious < initial_guess <= n_benign:
        raise RobfcpError("published bound: the initial guess must lie in K_m + 1 .. K_b")
    if min(trace, distance, largest, smallest) <= 0:
        raise RobfcpError("published bound: trace, distance and eigenvalues must be positive")

    gap = initial_guess - n_malicious
    relative_variance = trace / distance**2
    first_term = (3 * initial_guess - n_malicious - 2) ** 2 / gap**2 * relative_variance
    second_term = 2 * (n_clients + n_benign) * relative_variance * largest**2 / smallest**2
    return 1 - first_term - second_term
