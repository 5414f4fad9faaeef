"""Rob-FCP as its authors' code runs it, which is not what their paper says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.base import Assessment, check_minority, without_farthest
from robfcp.defence.characterisations import histogram
from robfcp.defence.distances import Space
from robfcp.defence.large import Estimate, scalable_means
from robfcp.defence.likelihood import contrasts
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, projected


@dataclass(frozen=True)
class RobFCPReleased:
    """What the code released with the paper does: trust those nearest to their *farthest* others.

    It differs from the paper's text (`RobFCP`) in three things. Conformity scores 1 - s go to the
    bin `int((1 - s) / width) - 1`, so that those in [0, width) and those of exactly 1 share the
    last bin: liars who report s = 0 stand apart from honest scores just above it, liars who report
    a little more do not. Maliciousness is the mean distance to the K_b - 1 farthest others. And
    the number of liars comes from the likelihood contrast with the covariance left at the identity.

    Reports hold no single scores: those in the first bin of their grid count as exactly 0 where
    that bin is finer than the view's (it ends at 1.1e-7 by default, about the rounding of a single
    precision probability of 1); otherwise nobody's do.

    Parameters
    ----------
    bins
        The uniform bins vectors are made from; the report's own where these do not nest.
    seed
        What the reference clients of a large federation are drawn from; a secret one if None.

    References
    ----------
    The code released with Kang, Lin, Sun, Xiao and Li (2024), "Certifiably Byzantine-robust
    federated conformal prediction", ICML; written anew from a description of what it does.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[90, 10], [88, 12], [91, 9], [0, 100]])
    >>> robfcp.calibrate(federation, defence="rob-fcp-released", malicious=1).flagged
    ('client-3',)
    """

    bins: int = 100
    seed: int | None = None
    name: ClassVar[str] = "rob-fcp-released"

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
        >>> robfcp.RobFCPReleased()(federation, 1).trusted
        array([ True,  True,  True, False])
        """
        n_benign = check_minority(federation, n_malicious)
        estimate = _farthest(wrapped(federation, self.bins), n_benign, self.seed)
        notes = () if estimate.note is None else (estimate.note,)
        return without_farthest(federation, n_malicious, estimate.means, "the others", notes)

    def estimate(self, federation: Federation) -> int:
        """The number of liars, from 1 to under half: never 0, whoever reports.

        Parameters
        ----------
        federation
            The reports of one round, at least three.

        Returns
        -------
        int
            K - z for the z of the greatest contrast, clients ranked with ceil(K/2) taken as benign.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[90, 10], [88, 12], [91, 9], [0, 100]])
        >>> robfcp.RobFCPReleased().estimate(federation)
        1
        """
        n_clients = federation.n_clients
        if n_clients < 3:
            raise RobfcpError(f"clients: the likelihood contrast needs at least 3, got {n_clients}")
        vectors = wrapped(federation, self.bins)
        number = _farthest(vectors, -(-n_clients // 2), self.seed).means
        order = np.lexsort((np.arange(n_clients), np.round(number, 12)))
        sizes, scores = contrasts(vectors[order], "identity")
        return n_clients - int(sizes[np.argmax(scores)])


def wrapped(federation: Federation, bins: int = 100) -> NDArray[np.float64]:
    """(K, bins) shares with the scores of exactly 0 moved from the first bin to the last.

    The index int((1 - s) / width) - 1 also turns the other bins by one place and reverses them,
    which no distance here sees.
    """
    whole = projected(federation)
    vectors = histogram(whole, bins)
    if vectors.shape[1] < whole.grid.n_bins:
        nothing = whole.below(0) / whole.sizes
        vectors[:, 0] -= nothing
        vectors[:, -1] += nothing
    return vectors


def _farthest(vectors: NDArray[np.float64], n_benign: int, seed: int | None) -> Estimate:
    """Mean distance to the n_benign - 1 farthest others; 0 where there are none."""
    n_clients = len(vectors)
    if n_benign < 2:
        return Estimate(np.zeros(n_clients), np.zeros(n_clients))
    space, first = Space.of(vectors, "l2"), n_clients - n_benign + 1
    return scalable_means(space, first, n_clients - 1, cut=n_benign, seed=seed)
