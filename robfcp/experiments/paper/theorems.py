"""The Rob-FCP paper's ranks and bounds exactly as published, for comparison only.

None of them is used to certify anything: each docstring says what is wrong with it. Numbers are not
clipped: a bound below 0 or above 1 says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import fcp_bin_index


def rank_n_plus_1(level: Fraction, n_clients: int) -> Fraction:
    """ceil(level (N + 1)): all clients share one distribution, as the paper's tables have it."""
    return level


def rank_n_plus_k(level: Fraction, n_clients: int) -> Fraction:
    """ceil(level (N + K)): clients may differ, at the price of one sample each, as in its text."""
    return level * n_clients


def table_bin(
    federation: Federation, level: Fraction, trusted: NDArray[np.bool_] | None = None
) -> int | None:
    """The bin of FCP's threshold on the trusted clients by `rank_n_plus_1`; None where infinite."""
    return fcp_bin_index(federation, level, trusted, rank_n_plus_1)


@dataclass(frozen=True)
class TheoremSetting:
    """What the paper's bounds depend on.

    n_benign_clients K_b, n_malicious K_m, least_benign n_b = min benign n_k, malicious_samples
    N_m, bins H, level 1 - alpha, beta, sigma = largest l1 distance of benign mean vectors,
    sketch_error epsilon. With sigma = 0 theorem 1 is the paper's lemma for homogeneous clients.
    """

    n_benign_clients: int
    n_malicious: int
    n_b: int
    n_malicious_samples: int
    n_bins: int
    level: float = 0.9
    beta: float = 0.1
    sigma: float = 0.0
    sketch_error: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.n_malicious < self.n_benign_clients:
            raise RobfcpError(
                f"published bound: needs fewer malicious than benign clients, not "
                f"{self.n_malicious} and {self.n_benign_clients}"
            )
        if self.n_b < 1 or self.n_malicious_samples < 0 or self.n_bins < 1:
            raise RobfcpError("published bound: sizes and bins must be positive")

    @property
    def tau(self) -> float:
        """K_m / K_b."""
        return self.n_malicious / self.n_benign_clients

    def bound(self, penalty: float) -> tuple[float, float]:
        """level - penalty - (eps n_b + 1)/(n_b + K_b), level + penalty + eps + K_b/(n_b + K_b).

        The coverage of the quantile at the rank of `rank_n_plus_k`.
        """
        n, k, epsilon = self.n_b, self.n_benign_clients, self.sketch_error
        lower = self.level - penalty - (epsilon * n + 1) / (n + k)
        upper = self.level + penalty + epsilon + k / (n + k)
        return lower, upper


def normal_radius(setting: TheoremSetting) -> float:
    """r(beta) = H z / (2 sqrt(n_b)), z = Phi^-1(1 - beta/(2 H K_b)).

    Fault: a normal approximation of the multinomial stands for a finite-sample bound.
    """
    from scipy.special import ndtri

    s = setting
    z = -float(ndtri(s.beta / (2 * s.n_bins * s.n_benign_clients)))
    return s.n_bins * z / (2 * sqrt(s.n_b))


def dkw_radius(setting: TheoremSetting) -> float:
    """r = H sqrt(ln(2 K_b/beta) / (2 n_b)).

    Fault: the DKW inequality is about CDFs and is applied to the masses of bins, which are
    differences of CDFs and can be off by twice as much.
    """
    s = setting
    return s.n_bins * sqrt(log(2 * s.n_benign_clients / s.beta) / (2 * s.n_b))


def theorem_1(
    setting: TheoremSetting, radius: Callable[[TheoremSetting], float] = normal_radius
) -> tuple[float, float]:
    """coverage within 1-alpha -+ (P_byz + N_m sigma/(n_b(1-tau))) and the finite-sample terms.

    P_byz = r (1 + (N_m/n_b) 2/(1-tau)); r by `normal_radius`, or `dkw_radius` in the variant.
    Faults: vacuous at K = 100, K_m = 10..40, n_b = 50..25000, H = 10, 100 (not at K = 6, K_m = 1,
    H = 2, n_b = 80000: [0.868, 0.932]); false for heterogeneous clients, since benign clients
    expelled by a tight majority are not paid for: it can promise 0.881 where coverage is 0.600.
    """
    ratio = setting.n_malicious_samples / setting.n_b / (1 - setting.tau)
    return setting.bound(radius(setting) * (1 + 2 * ratio) + ratio * setting.sigma)


def released_code_bound(setting: TheoremSetting) -> tuple[float, float]:
    """Theorem 1 with tau in place of N_m/n_b, as in the authors' released code; not a theorem.

    Offered only to draw the paper's bound figure: with equal sizes N_m/n_b is K_m, so this is
    smaller than the published bound by about a factor K_b.
    """
    ratio = setting.tau / (1 - setting.tau)
    return setting.bound(normal_radius(setting) * (1 + 2 * ratio) + ratio * setting.sigma)


def theorem_2(
    n_clients: int,
    n_malicious: int,
    initial_guess: int,
    trace: float,
    distance: float,
    largest: float = 1.0,
    smallest: float = 1.0,
) -> float:
    """P[K_m-hat = K_m] >= 1 - (3K~-K_m-2)^2 Tr/((K~-K_m)^2 d^2) - 2(K+K_b) Tr s1^2/(s0^2 d^2).

    K~ the initial guess, K_m < K~ <= K_b; Tr the trace of the benign covariance S; d the least
    distance of a malicious vector to the benign mean; s1, s0 the extreme eigenvalues of S^-1/2.
    Faults: the first term misses a factor K_b, and the bound is false under a decoy: one far
    client hides all other liars from the estimator while the bound approaches 1.
    """
    benign = n_clients - n_malicious
    if not n_malicious < initial_guess <= benign:
        raise RobfcpError("published bound: the initial guess must lie in K_m + 1 .. K_b")
    if min(trace, distance, largest, smallest) <= 0:
        raise RobfcpError("published bound: trace, distance and eigenvalues must be positive")
    gap = initial_guess - n_malicious
    spread = trace / distance**2
    first = (3 * initial_guess - n_malicious - 2) ** 2 / gap**2 * spread
    return 1 - first - 2 * (n_clients + benign) * spread * largest**2 / smallest**2
