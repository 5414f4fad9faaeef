"""What may be said of a site over rounds, and the error that each round spends on it."""

from __future__ import annotations

from math import pi

import numpy as np
from numpy.typing import NDArray

from robfcp.federation import Federation
from robfcp.guarantees import ClientIntervals

LEAST = 30  # samples of a report that does not come twice by chance


class FixedIntervals(ClientIntervals):
    """Clopper-Pearson ends at edges fixed before the reports; all hold with chance 1 - beta."""

    def __init__(self, federation: Federation, beta: float, edges: NDArray[np.intp]) -> None:
        from scipy.special import betaincinv

        self.ids, self.beta, self.edges = federation.ids, beta, edges
        tail = beta / (2 * federation.n_clients * len(edges))
        below = federation.cumulative(edges).T.astype(np.float64)
        size = federation.sizes[None, :].astype(np.float64)
        low = betaincinv(np.maximum(below, 1), size - below + 1, tail)
        high = betaincinv(below + 1, np.maximum(size - below, 1), 1 - tail)
        self.low = np.ascontiguousarray(np.where(below > 0, low, 0.0))
        self.high = np.ascontiguousarray(np.where(below < size, high, 1.0))


def spent(number: int, delta: float) -> float:
    """6 delta / (pi^2 r^2): summed over all rounds r it is delta."""
    return 6 * delta / (pi * number) ** 2


def drifted(before: Federation, now: Federation, error: float) -> dict[str, float]:
    """Sites whose two reports differ by more than chance in Kolmogorov distance, and by how much.

    More than e_1 + e_2, e_i = sqrt(ln(4 K / error) / (2 n_i)): with a chance of at most `error` is
    any site named whose samples were drawn alike (Dvoretzky, Kiefer, Wolfowitz, Massart).
    """
    if before.exact_digest is None or before.exact_digest != now.exact_digest:
        return {}
    common = sorted(set(before.ids) & set(now.ids))
    shares, slack = [], np.zeros(len(common))
    for federation in (before, now):
        place = {name: k for k, name in enumerate(federation.ids)}
        rows = np.array([place[name] for name in common], dtype=np.intp)
        size = federation.sizes[rows]
        shares.append(federation.cumulative()[rows] / size[:, None])
        slack += np.sqrt(np.log(4 * max(1, len(common)) / error) / (2 * size))
    distance = np.abs(shares[0] - shares[1]).max(axis=1, initial=0)
    return {
        name: float(d) for name, d, most in zip(common, distance, slack, strict=True) if d > most
    }


def repeated(before: Federation, now: Federation) -> list[str]:
    """Sites whose two reports are equal to the last count: no fresh samples went into the later.

    Fewer than 30 samples may fall alike by chance, and are not named.
    """
    if before.grid != now.grid:
        return []
    place = {name: k for k, name in enumerate(before.ids)}
    both = [(place[name], k) for k, name in enumerate(now.ids) if name in place]
    if not both:
        return []
    old, new = (np.array(rows, dtype=np.intp) for rows in zip(*both, strict=True))
    every = np.arange(now.grid.n_bins)
    same = (before.cumulative(every)[old] == now.cumulative(every)[new]).all(axis=1)
    same &= now.sizes[new] >= LEAST
    return [now.ids[k] for k in new[same]]
