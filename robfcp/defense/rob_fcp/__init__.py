"""Rob-FCP: clients whose characterization vectors are far from the others' are excluded.

`RobFCP` is Algorithm 1 of the paper, `RobFCPReleased` what the code of its authors does.
"""

from robfcp.defense.rob_fcp._characterization_vectors import (
    CHARACTERIZATIONS,
    Characterization,
    characterization_vectors,
    released_code_vectors,
)
from robfcp.defense.rob_fcp._maliciousness import METRICS, Metric, mean_neighbor_distances
from robfcp.defense.rob_fcp._n_malicious_estimator import (
    estimate_n_malicious_by_likelihood,
    likelihood_contrasts,
)
from robfcp.defense.rob_fcp._rob_fcp import RobFCP, RobFCPReleased

__all__ = [
    "CHARACTERIZATIONS",
    "METRICS",
    "Characterization",
    "Metric",
    "RobFCP",
    "RobFCPReleased",
    "characterization_vectors",
    "estimate_n_malicious_by_likelihood",
    "likelihood_contrasts",
    "mean_neighbor_distances",
    "released_code_vectors",
]
