"""Grids for private reports: few bins, fixed before the round, fine where thresholds lie.

Noise adds up over the bins on the shorter side of a threshold, so bins cost; trees of counts would
multiply the noise by their levels, which pays only beyond some hundred bins.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from robfcp.errors import RobfcpError
from robfcp.grid import Grid
from robfcp.privacy.budget import Privacy

FEWEST, MOST = 8, 256
_FACTOR = 0.4  # measured: bins that give the smallest sets, over (n sqrt(K) / sd)^(2/3)
_LOGITS = 7.0  # the logistic grid resolves scores from 0.1% to 99.9%
_ABOVE = 0.9  # of the share beyond the level that a grid from a prior still resolves


def grid_from_text(text: str) -> Grid:
    """The grid a configuration names: default, extended, open-ended, uniform:N or logistic:N."""
    fixed = {"default": Grid.default, "extended": Grid.extended, "open-ended": Grid.open_ended}
    if text in fixed:
        return fixed[text]()
    kind, _, bins = text.partition(":")
    if bins.isascii() and bins.isdigit() and len(bins) <= 9:
        if kind == "uniform":
            return Grid.uniform(int(bins))
        if kind == "logistic":
            return logistic_grid(int(bins))
    known = ", ".join([*fixed, "uniform:100"])
    raise RobfcpError(f"grid: {text!r} is unknown; use {known} or logistic:32")


def logistic_grid(bins: int) -> Grid:
    """`bins` bins on [0, 1], evenly spaced in log p/(1 - p) between 0.1% and 99.9%."""
    if not FEWEST <= bins <= 10_000:
        raise RobfcpError(f"grid: a logistic grid has {FEWEST} to 10000 bins, not {bins}")
    inner = 1 / (1 + np.exp(-np.linspace(-_LOGITS, _LOGITS, bins - 1)))
    edges = [0.0, *(float(f"{edge:.8g}") for edge in inner), 1.0]
    return Grid(np.array(edges))


def recommend_bins(privacy: Privacy | float, n_samples: int, n_clients: int) -> int:
    """The number of bins that balances noise against rounding: 0.4 (n sqrt(K) / sd)^(2/3).

    sd is the noise on one count; between 8 and 256.
    """
    if n_samples < 1 or n_clients < 1:
        raise RobfcpError("grid: n_samples and n_clients are numbers from 1")
    stated = privacy if isinstance(privacy, Privacy) else Privacy(privacy)
    ratio = n_samples * np.sqrt(n_clients / max(stated.noise.variance, 1e-12))
    return int(np.clip(round(_FACTOR * float(ratio) ** (2 / 3)), FEWEST, MOST))


def recommend_grid(
    privacy: Privacy | float,
    n_samples: int,
    n_clients: int,
    *,
    prior: ArrayLike | None = None,
    confidence_level: float = 0.9,
) -> Grid:
    """A grid for a private round of about n_samples a client; all clients must use the same one.

    Parameters
    ----------
    privacy
        What the reports will have, or just epsilon (one round, single samples).
    n_samples
        About how many samples a client has.
    n_clients
        About how many clients there are.
    prior
        Scores that need no protection (public data, a simulation). The grid then follows their
        quantiles, half of its bins around those at and above the wanted level. Without a prior it
        is logistic, for scores in [0, 1].
    confidence_level
        The wanted level, for grids from a prior.

    Returns
    -------
    Grid
        Of 8 to 256 bins.

    Examples
    --------
    >>> import robfcp
    >>> robfcp.recommend_grid(1.0, n_samples=100, n_clients=20).n_bins
    12
    >>> robfcp.recommend_grid(1.0, n_samples=10_000, n_clients=20).n_bins
    254
    """
    bins = recommend_bins(privacy, n_samples, n_clients)
    if prior is None:
        return logistic_grid(bins)
    scores = np.asarray(prior, dtype=np.float64)
    if scores.ndim != 1 or scores.size < bins or not np.isfinite(scores).all():
        raise RobfcpError(f"grid: a prior needs at least {bins} finite scores in a vector")
    if not 0 < confidence_level < 1:
        raise RobfcpError(f"confidence_level: {confidence_level} is not between 0 and 1")
    body = np.arange(1, bins // 2 + 1) / (bins // 2 + 1) * confidence_level
    beyond = np.linspace(0.02, _ABOVE, bins - 1 - len(body))
    levels = np.concatenate([body, confidence_level + (1 - confidence_level) * beyond])
    inner = np.quantile(scores, levels)
    inside = scores.min() >= 0 and scores.max() <= 1
    ends = (0.0, 1.0) if inside else (-np.inf, np.inf)
    return Grid(np.unique(np.concatenate([[ends[0]], inner, [ends[1]]])))
