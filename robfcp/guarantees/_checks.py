"""Checks of what guarantees are given, and how their probability to fail is divided."""

from __future__ import annotations

from fractions import Fraction

from robfcp._validation import check_fraction, check_integer
from robfcp.errors import RobfcpError

# Of the probability with which a certificate fails: what is spent on dropping clients that cannot
# be benign, where that is done first, and on privacy noise, where reports hold it. The remaining
# probability is for sampling.
PRUNING_DELTA_FRACTION = 0.2
NOISE_DELTA_FRACTION = 0.2

# The probability with which noise may fool a marginal threshold, as a fraction of the miss rate
# 1 - level. It is paid for by a level that is higher by it. A Fraction, as levels are exact.
LEVEL_DELTA_FRACTION = Fraction(1, 50)


def check_max_malicious(max_malicious: int, n_clients: int) -> int:
    """Return the bound on malicious clients, if it leaves at least one benign client.

    Parameters
    ----------
    max_malicious : int
        m, as passed.
    n_clients : int
        K, the clients that m is of.
    """
    value = check_integer("max_malicious", max_malicious, "give the most sites that may lie")
    if value >= n_clients:
        problem = f"nothing can be guaranteed against {max_malicious} of {n_clients} sites"
        raise RobfcpError(
            f"max_malicious: {problem}; state a smaller bound or wait for more reports"
        )
    return int(max_malicious)


def check_delta(delta: float) -> float:
    """Return a probability to fail, if it lies strictly between 0 and 1."""
    return check_fraction("delta", delta, "give 0.05, say")


def check_heterogeneity(heterogeneity: float) -> float:
    """Return a declared bound on how far benign clients' CDFs differ, if it lies in [0, 1]."""
    return check_fraction(
        "heterogeneity", heterogeneity, "give 0.02, say", allow_zero=True, allow_one=True
    )
