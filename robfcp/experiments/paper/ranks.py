"""The ranks of the Rob-FCP paper, as published: of its text, and of its tables.

Kang, Lin, Sun, Xiao and Li (2024), "Certifiably Byzantine-Robust Federated Conformal Prediction",
ICML. For comparison only.
"""

from __future__ import annotations

from fractions import Fraction

from robfcp._typing import BoolArray
from robfcp.federation import Federation
from robfcp.guarantees import fcp_bin_index


def rank_n_plus_1(level: Fraction, n_clients: int) -> Fraction:
    """Return what is added to level N in the rank ceil(level (N + 1)), as in the paper's tables.

    All clients are taken to share one distribution.
    """
    return level


def rank_n_plus_k(level: Fraction, n_clients: int) -> Fraction:
    """Return what is added to level N in the rank ceil(level (N + K)), as in the paper's text.

    Section 2.2: clients may differ, at the price of one sample each.
    """
    return level * n_clients


def table_bin(
    federation: Federation, level: Fraction, benign_mask: BoolArray | None = None
) -> int | None:
    """Return the bin of FCP's threshold by `rank_n_plus_1`; None where it is infinite.

    Parameters
    ----------
    federation : Federation
        The reports.
    level : Fraction
        The target coverage.
    benign_mask : (K,) array of bool, optional
        The clients whose reports count; all by default.
    """
    return fcp_bin_index(federation, level, benign_mask, rank_n_plus_1)
