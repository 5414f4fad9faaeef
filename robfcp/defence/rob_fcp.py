"""Rob-FCP as its paper defines it: trust the clients nearest to their neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.base import Assessment, check_minority, without_farthest
from robfcp.defence.characterisations import Characterisation, characterise
from robfcp.defence.distances import Metric, Space
from robfcp.defence.gpu import gpu_neighbour_means
from robfcp.defence.large import Estimate, scalable_means
from robfcp.federation import Federation


@dataclass(frozen=True)
class RobFCP:
    """The paper: trust the K_b clients with the lowest mean distance to their K_b - 1 nearest.

    Parameters
    ----------
    distance
        Between two clients' vectors: "l1", "l2", "linf", "cosine", "kolmogorov" or "wasserstein".
    characterisation
        A client's vector: "histogram", "gaussian", "k-means", "kernel" or "quantiles".
    bins
        The uniform bins vectors are made from; the report's own where these do not nest.
    seed
        What the reference clients of a large federation are drawn from; a secret one if None.
    device
        An accelerator ("cuda") that computes all distances, however many clients there are.

    References
    ----------
    Kang, Lin, Sun, Xiao and Li (2024), "Certifiably Byzantine-robust federated conformal
    prediction", ICML.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[90, 10], [88, 12], [91, 9], [0, 100]])
    >>> robfcp.calibrate(federation, defence=robfcp.RobFCP(), malicious=1).flagged
    ('client-3',)
    """

    distance: Metric = "l2"
    characterisation: Characterisation = "histogram"
    bins: int = 100
    seed: int | None = None
    device: str | None = None
    name: ClassVar[str] = "rob-fcp"

    def __call__(self, federation: Federation, n_malicious: int) -> Assessment:
        """Exactly `n_malicious` clients left out, whatever they look like.

        Parameters
        ----------
        federation
            The reports of one round.
        n_malicious
            K_m, fewer than half of the clients.

        Returns
        -------
        Assessment
            Everybody's maliciousness, verdict and reason.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[90, 10], [88, 12], [91, 9], [0, 100]])
        >>> robfcp.RobFCP()(federation, 1).trusted
        array([ True,  True,  True, False])
        """
        n_benign = check_minority(federation, n_malicious)
        vectors = characterise(federation, self.characterisation, self.bins)
        estimate = nearest_means(vectors, n_benign, self.distance, self.seed, self.device)
        notes = () if estimate.note is None else (estimate.note,)
        return without_farthest(federation, n_malicious, estimate.means, "their neighbours", notes)


def maliciousness(
    federation: Federation, n_benign: int, distance: Metric = "l2", bins: int = 100
) -> NDArray[np.float64]:
    """(K,) mean distance of each client's histogram to its n_benign - 1 nearest others.

    Parameters
    ----------
    federation
        The reports of one round.
    n_benign
        K_b, more than half of the clients.
    distance
        Between two histograms: "l1", "l2", "linf", "cosine", "kolmogorov" or "wasserstein".
    bins
        The uniform bins histograms are made of; the report's own where these do not nest.

    Returns
    -------
    (K,) array
        The bigger, the farther from the others.

    References
    ----------
    Kang, Lin, Sun, Xiao and Li (2024), "Certifiably Byzantine-robust federated conformal
    prediction", ICML.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[90, 10], [88, 12], [91, 9], [0, 100]])
    >>> robfcp.maliciousness(federation, n_benign=3).round(2)
    array([0.02, 0.04, 0.03, 1.26])
    """
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
