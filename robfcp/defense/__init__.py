"""Defenses: which clients of a round are excluded, and the threshold that follows from it.

`Consensus` is the default; `RobFCP` is the paper's defense and `FCP` excludes nobody. Anything with
a name and a method `assess` that returns an `Assessment` is a `Defense`. May import `guarantees`,
`federation` and what lies below them.
"""

from robfcp.defense._base import (
    Assessment,
    Defense,
    Note,
    ThresholdRule,
    exclude_most_malicious,
)
from robfcp.defense._duplicates import find_duplicate_reports
from robfcp.defense._fcp import FCP
from robfcp.defense._registry import (
    DEFENSES,
    get_defense,
    prepare_defense,
    rebuild_defense,
    recorded_parameters,
    resolve_defense,
)
from robfcp.defense.consensus import Consensus, estimate_n_malicious
from robfcp.defense.rob_fcp import (
    Characterization,
    Metric,
    RobFCP,
    RobFCPReleased,
    characterization_vectors,
    mean_neighbor_distances,
)

__all__ = [
    "DEFENSES",
    "FCP",
    "Assessment",
    "Characterization",
    "Consensus",
    "Defense",
    "Metric",
    "Note",
    "RobFCP",
    "RobFCPReleased",
    "ThresholdRule",
    "characterization_vectors",
    "estimate_n_malicious",
    "exclude_most_malicious",
    "find_duplicate_reports",
    "get_defense",
    "mean_neighbor_distances",
    "prepare_defense",
    "rebuild_defense",
    "recorded_parameters",
    "resolve_defense",
]
