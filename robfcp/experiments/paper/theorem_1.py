"""Theorem 1 of the Rob-FCP paper, and the bounds of Theorems 5 and 6, as published.

Kang, Lin, Sun, Xiao and Li (2024), "Certifiably Byzantine-Robust Federated Conformal Prediction",
ICML. Nothing is certified with them: each docstring says what is wrong with the formula. Values are
not clipped: a bound below 0 or above 1 says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log, sqrt

from robfcp.errors import RobfcpError


@dataclass(frozen=True)
class TheoremSetting:
    """What the paper's bounds depend on.

    Attributes
    ----------
    n_benign_clients : int
        K_b.
    n_malicious : int
        K_m.
    n_b : int
        n_b, the least number of samples of a benign client.
    n_malicious_samples : int
        N_m, the samples of all malicious clients.
    n_bins : int
        H, the length of a characterization vector.
    level : float
        1 - alpha.
    beta : float
        The probability that the benign clients' vectors deviate more than the radius r(beta).
    sigma : float
        The largest l1 distance of the benign clients' mean vectors. With 0, Theorem 1 is the
        paper's Lemma C.1 for homogeneous clients.
    sketch_error : float
        epsilon, of the data sketch.
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
        """Return the bounds of Eq. (7) on the coverage of the quantile at rank ceil(level (N + K)).

        They are level - penalty - (epsilon n_b + 1) / (n_b + K_b) and
        level + penalty + epsilon + K_b / (n_b + K_b).

        Parameters
        ----------
        penalty : float
            What malicious clients and the differences between benign ones cost.
        """
        n_b = self.n_b
        k_b = self.n_benign_clients
        epsilon = self.sketch_error
        lower = self.level - penalty - (epsilon * n_b + 1) / (n_b + k_b)
        upper = self.level + penalty + epsilon + k_b / (n_b + k_b)
        return lower, upper


def normal_radius(theorem_setting: TheoremSetting) -> float:
    """Return the paper's radius r(beta) = H z / (2 sqrt(n_b)), z = Phi^-1(1 - beta / (2 H K_b)).

    What is wrong: a normal approximation of the multinomial stands for a finite-sample bound.
    """
    from scipy.special import ndtri

    tail = theorem_setting.beta / (2 * theorem_setting.n_bins * theorem_setting.n_benign_clients)
    z = -float(ndtri(tail))
    return theorem_setting.n_bins * z / (2 * sqrt(theorem_setting.n_b))


def dkw_radius(theorem_setting: TheoremSetting) -> float:
    """Return the radius of Theorems 5 and 6, r = H sqrt(ln(2 K_b / beta) / (2 n_b)).

    What is wrong: the DKW inequality is about CDFs and is applied to the masses of bins, which are
    differences of CDFs and can be off by twice as much.
    """
    log_term = log(2 * theorem_setting.n_benign_clients / theorem_setting.beta)
    return theorem_setting.n_bins * sqrt(log_term / (2 * theorem_setting.n_b))


def theorem_1(
    theorem_setting: TheoremSetting, radius: Callable[[TheoremSetting], float] = normal_radius
) -> tuple[float, float]:
    """Return the lower and the upper bound on coverage of Theorem 1, Eq. (7).

    Coverage is within 1 - alpha -+ (P_byz + N_m sigma / (n_b (1 - tau))) and the finite-sample
    terms of `TheoremSetting.bound`, with P_byz = r (1 + (N_m / n_b) 2 / (1 - tau)).

    What is wrong: it is vacuous at K = 100, K_m = 10..40, n_b = 50..25000, H = 10, 100 (not at
    K = 6, K_m = 1, H = 2, n_b = 80000: [0.868, 0.932]). It is false for heterogeneous clients,
    since benign clients expelled by a majority close together are not paid for: it can claim 0.881
    where coverage is 0.600.

    Parameters
    ----------
    theorem_setting : TheoremSetting
        The symbols.
    radius : callable
        Gives r: `normal_radius`, or `dkw_radius` for Theorems 5 and 6.
    """
    ratio = theorem_setting.n_malicious_samples / theorem_setting.n_b / (1 - theorem_setting.tau)
    return theorem_setting.bound(
        radius(theorem_setting) * (1 + 2 * ratio) + ratio * theorem_setting.sigma
    )


def released_code_bound(theorem_setting: TheoremSetting) -> tuple[float, float]:
    """Return Theorem 1's bounds with tau in place of N_m / n_b, as in the authors' released code.

    It is no theorem, and only draws the paper's figure of bounds: with equal sizes N_m / n_b is
    K_m, so this is smaller than the published bound by about a factor K_b.
    """
    ratio = theorem_setting.tau / (1 - theorem_setting.tau)
    return theorem_setting.bound(
        normal_radius(theorem_setting) * (1 + 2 * ratio) + ratio * theorem_setting.sigma
    )
