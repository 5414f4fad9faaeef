"""Rob-FCP as its paper defines it: trust the clients nearest to their neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.base import Assessment, check_minority, trust_lowest
from robfcp.defence.characterisations import Characterisation, characterise
from robfcp.defence.distances import Metric, Space
from robfcp.defence.gpu import gpu_neighbour_means
from robfcp.defence.large import Estimate, scalable_means
from robfcp.federation import Federation


@dataclass(frozen=True)
class RobFCP:
    """The paper: trust the K_b clients with the lowest mean distance to their K_b - 1 nearest.

    seed: what the reference clients of a large federation are drawn from; a secret one if None.
    device: an accelerator ("cuda") that computes all distances, however many clients there are.
    """

    distance: Metric = "l2"
    characterisation: Characterisation = "histogram"
    bins: int = 100
    seed: int | None = None
    device: str | None = None
    name: ClassVar[str] = "rob-fcp"

    def __call__(self, federation: Federation, n_malicious: int) -> Assessment:
        """Exactly `n_malicious` clients left out, whatever they look like."""
        n_benign = check_minority(federation, n_malicious)
        vectors = characterise(federation, self.characterisation, self.bins)
        estimate = nearest_means(vectors, n_benign, self.distance, self.seed, self.device)
        trusted = trust_lowest(estimate.means, federation.ids, n_benign)
        reasons = {
            federation.ids[k]: f"among the {n_malicious} clients farthest from their neighbours"
            for k in np.flatnonzero(~trusted)
        }
        notes = () if estimate.note is None else (estimate.note,)
        return Assessment(estimate.means, trusted, reasons, notes)


def maliciousness(
    federation: Federation, n_benign: int, distance: Metric = "l2", bins: int = 100
) -> NDArray[np.float64]:
    """(K,) mean distance of each client's histogram to its n_benign - 1 nearest others."""
    check_minority(federation, federation.n_clients - n_benign)
    return nearest_mean(characterise(federation, "histogram", bins), n_benign, distance)


def nearest_mean(
    vectors: NDArray[np.float64], n_benign: int, distance: Metric
) -> NDArray[np.float64]:
    """Mean distance to the n_benign - 1 nearest others; 0 where there are none."""
    return nearest_means(vectors, n_benign, distance).means


def nearest_means(
    vectors: NDArray[np.float64],
    n_benign: int,
    distance: Metric,
    seed: int | None = None,
    device: str | None = None,
) -> Estimate:
    """The same with its standard errors: exact up to 20,000 clients or on an accelerator."""
    exact = np.zeros(len(vectors))
    if n_benign < 2:
        return Estimate(np.zeros(len(vectors)), exact)
    if device is not None:
        return Estimate(gpu_neighbour_means(vectors, distance, 1, n_benign - 1, device), exact)
    return scalable_means(Space.of(vectors, distance), 1, n_benign - 1, cut=n_benign, seed=seed)
