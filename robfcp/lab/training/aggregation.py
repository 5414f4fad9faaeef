"""How a server joins the clients' states: mean, coordinate median, trimmed mean, multi-Krum."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from robfcp.errors import RobfcpError

Rule = Callable[[Tensor, Tensor, int], Tensor]


def mean(states: Tensor, sizes: Tensor, malicious: int) -> Tensor:
    """FedAvg: sum_k n_k w_k / sum_k n_k."""
    weights = sizes.to(states.dtype)
    return (weights / weights.sum()) @ states


def median(states: Tensor, sizes: Tensor, malicious: int) -> Tensor:
    """The median of every coordinate (the mean of the middle two for an even number)."""
    ordered = states.sort(dim=0).values
    n = len(states)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def trimmed_mean(states: Tensor, sizes: Tensor, malicious: int) -> Tensor:
    """Every coordinate's mean without its m largest and m smallest values."""
    n = len(states)
    if 2 * malicious >= n:
        raise RobfcpError(
            f"trimmed-mean: cannot tolerate 2m >= n, got m={malicious}, n={n}; lower m"
        )
    return states.sort(dim=0).values[malicious : n - malicious].mean(0)


def multi_krum(states: Tensor, sizes: Tensor, malicious: int) -> Tensor:
    """The mean of the n - m states with the least sum of squared distances to their n - m - 2
    nearest others."""
    n = len(states)
    neighbours = n - malicious - 2
    if 2 * malicious + 2 >= n:
        raise RobfcpError(
            f"multi-krum: cannot tolerate 2m + 2 >= n, got m={malicious}, n={n}; lower m"
        )
    centred = states - states.mean(0)
    squared = centred.square().sum(1)
    distance = (squared[:, None] + squared[None] - 2 * centred @ centred.T).clamp_min(0)
    distance.fill_diagonal_(float("inf"))
    score = distance.sort(dim=1).values[:, :neighbours].sum(1)
    chosen = score.argsort(stable=True)[: n - malicious]
    return states[chosen].mean(0)


RULES: dict[str, Rule] = {
    "mean": mean,
    "median": median,
    "trimmed-mean": trimmed_mean,
    "multi-krum": multi_krum,
}


def rule(name: str) -> Rule:
    """The aggregation rule of that name."""
    if name not in RULES:
        raise RobfcpError(f"{name}: no such aggregation; choose one of {', '.join(RULES)}")
    return RULES[name]


def poison(states: Tensor, previous: Tensor, malicious: Tensor, strength: float) -> Tensor:
    """The round's states after malicious clients send w - strength (w_k - w) for w_k: the honest
    direction reversed and scaled."""
    reversed_ = previous - strength * (states - previous)
    return torch.where(malicious[:, None], reversed_, states)
