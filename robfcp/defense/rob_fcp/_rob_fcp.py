"""Rob-FCP, by its paper's text and by its authors' code: clients far from the others are excluded.

References
----------
Kang, Lin, Sun, Xiao and Li (2024), "Certifiably Byzantine-robust federated conformal prediction",
ICML. Equations and Algorithm 1 are those of this paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from robfcp._validation import check_integer, set_fields
from robfcp.defense._base import (
    Assessment,
    Defense,
    check_benign_majority,
    check_client_number,
    exclude_most_malicious,
)
from robfcp.defense.rob_fcp._characterization_vectors import (
    CHARACTERIZATIONS,
    Characterization,
    characterization_vectors,
    released_code_vectors,
)
from robfcp.defense.rob_fcp._maliciousness import (
    METRICS,
    Metric,
    mean_distance_to_farthest,
    mean_neighbor_distances,
)
from robfcp.defense.rob_fcp._n_malicious_estimator import estimate_n_malicious_by_likelihood
from robfcp.errors import RobfcpError
from robfcp.federation import Federation


@dataclass(frozen=True)
class RobFCP(Defense):
    """Rob-FCP as its paper describes it, with the maliciousness score of Eq. (6).

    Of K clients the K_b with the lowest mean distance to their K_b - 1 nearest neighbors are held
    to be benign (Algorithm 1).

    Parameters
    ----------
    n_malicious : int, optional
        How many clients are excluded, whatever they look like; the paper's estimate if None.
    metric : str
        Between two clients' vectors: "l1", "l2", "linf", "cosine", "kolmogorov" or "wasserstein".
    characterization : str
        A client's vector: "histogram", "gaussian", "k-means", "kernel" or "quantiles".
    n_bins : int
        The number of uniform bins that vectors are made from; the binning of the reports is used
        where these do not nest.

    References
    ----------
    Kang, Lin, Sun, Xiao and Li (2024), "Certifiably Byzantine-robust federated conformal
    prediction", ICML.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[90, 10], [88, 12], [91, 9], [0, 100]])
    >>> robfcp.calibrate(federation, defense=robfcp.RobFCP(n_malicious=1)).flagged_clients
    ('client-3',)
    """

    n_malicious: int | None = None
    metric: Metric = "l2"
    characterization: Characterization = "histogram"
    n_bins: int = 100
    name: ClassVar[str] = "rob-fcp"

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            names = ", ".join(map(repr, METRICS))
            raise RobfcpError(f"metric: {self.metric!r} is unknown; use {names}")
        if self.characterization not in CHARACTERIZATIONS:
            names = ", ".join(map(repr, CHARACTERIZATIONS))
            raise RobfcpError(
                f"characterization: {self.characterization!r} is unknown; use {names}"
            )
        set_fields(
            self,
            n_malicious=check_client_number("n_malicious", self.n_malicious),
            n_bins=check_integer("n_bins", self.n_bins, "give for example 100", 1),
        )

    def assess(self, federation: Federation) -> Assessment:
        """Exclude the clients with the largest mean distances to their nearest neighbors.

        Parameters
        ----------
        federation : Federation
            The reports of one round, one count a sample.
        """
        n_malicious = self.n_malicious
        if n_malicious is None:
            n_malicious = self.estimate_n_malicious(federation)
        n_benign = check_benign_majority(federation, n_malicious)
        vectors = characterization_vectors(federation, self.characterization, self.n_bins)
        maliciousness = mean_neighbor_distances(vectors, self.metric, 1, n_benign - 1)
        return exclude_most_malicious(
            federation,
            n_malicious,
            maliciousness,
            "their neighbors",
            n_malicious_given=self.n_malicious is not None,
        )

    def estimate_n_malicious(self, federation: Federation) -> int:
        """Return the paper's estimate of the number of malicious clients, Eq. (8).

        It is always made from histograms in 100 bins and the metric "l2", as in the paper, whatever
        the parameters of this object are.

        Parameters
        ----------
        federation : Federation
            The reports of one round, at least three.

        Returns
        -------
        int
            K - z for the z of the greatest contrast, where clients are ranked as if ceil(K/2) of
            them were benign. From 1 to under half: never 0, whatever the reports.
        """
        vectors = characterization_vectors(federation)
        n_benign_guess = -(-federation.n_clients // 2)  # ceil(K / 2)
        maliciousness = mean_neighbor_distances(vectors, "l2", 1, n_benign_guess - 1)
        return estimate_n_malicious_by_likelihood(vectors, maliciousness, fit_variances=True)


@dataclass(frozen=True)
class RobFCPReleased(Defense):
    """Rob-FCP as the code released with its paper does it.

    It differs from the paper's text (`RobFCP`) in three things. Conformity scores 1 - s go to the
    bin `int((1 - s) / width) - 1`, so that those in [0, width) and those of exactly 1 share the
    last bin: malicious clients that report s = 0 are apart from benign scores just above it, those
    that report a little more are not. Maliciousness is the mean distance to the K_b - 1 *farthest*
    other clients. And the number of malicious clients comes from the likelihood contrast with the
    covariance left at the identity.

    Reports hold no single scores: those in the first bin of their binning count as exactly 0 where
    that bin is finer than those of the vectors (it ends at 1.1e-7 by default, about the rounding of
    a single precision probability of 1); otherwise no scores do.

    Parameters
    ----------
    n_malicious : int, optional
        How many clients are excluded, whatever they look like; the code's own estimate if None.
    n_bins : int
        The number of uniform bins that vectors are made from; the binning of the reports is used
        where these do not nest.

    References
    ----------
    The code released with Kang, Lin, Sun, Xiao and Li (2024), "Certifiably Byzantine-robust
    federated conformal prediction", ICML; written anew from a description of what it does.

    Examples
    --------
    >>> import robfcp
    >>> federation = robfcp.Federation.from_counts([[90, 10], [88, 12], [91, 9], [0, 100]])
    >>> defense = robfcp.defense.RobFCPReleased(n_malicious=1)
    >>> robfcp.calibrate(federation, defense=defense).flagged_clients
    ('client-3',)
    """

    n_malicious: int | None = None
    n_bins: int = 100
    name: ClassVar[str] = "rob-fcp-released"

    def __post_init__(self) -> None:
        set_fields(
            self,
            n_malicious=check_client_number("n_malicious", self.n_malicious),
            n_bins=check_integer("n_bins", self.n_bins, "give for example 100", 1),
        )

    def assess(self, federation: Federation) -> Assessment:
        """Exclude the clients with the largest mean distances to the farthest others.

        Parameters
        ----------
        federation : Federation
            The reports of one round, one count a sample.
        """
        n_malicious = self.n_malicious
        if n_malicious is None:
            n_malicious = self.estimate_n_malicious(federation)
        n_benign = check_benign_majority(federation, n_malicious)
        vectors = released_code_vectors(federation, self.n_bins)
        return exclude_most_malicious(
            federation,
            n_malicious,
            mean_distance_to_farthest(vectors, n_benign),
            "the others",
            n_malicious_given=self.n_malicious is not None,
        )

    def estimate_n_malicious(self, federation: Federation) -> int:
        """Return the released code's estimate of the number of malicious clients.

        Parameters
        ----------
        federation : Federation
            The reports of one round, at least three.

        Returns
        -------
        int
            K - z for the z of the greatest contrast, where clients are ranked as if ceil(K/2) of
            them were benign. From 1 to under half: never 0, whatever the reports.

        Examples
        --------
        >>> import robfcp
        >>> federation = robfcp.Federation.from_counts([[90, 10], [88, 12], [91, 9], [0, 100]])
        >>> robfcp.defense.RobFCPReleased().estimate_n_malicious(federation)
        1
        """
        vectors = released_code_vectors(federation, self.n_bins)
        n_benign_guess = -(-federation.n_clients // 2)  # ceil(K / 2)
        maliciousness = mean_distance_to_farthest(vectors, n_benign_guess)
        return estimate_n_malicious_by_likelihood(vectors, maliciousness, fit_variances=False)
