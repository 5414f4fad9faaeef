"""Defence: whom to trust. What was found about everybody, and a verdict for a number of liars."""

from robfcp.defence.base import (
    Assessment,
    Defence,
    Finding,
    LooksFirst,
    NoDefence,
    check_minority,
    threshold_of,
    trust_lowest,
)
from robfcp.defence.consensus import Consensus
from robfcp.defence.named import (
    DEFAULT,
    DEFENCES,
    NAMES,
    Parameters,
    defence_again,
    named_defence,
    recorded_defence,
)
from robfcp.defence.number_of_liars import estimate_malicious
from robfcp.defence.rob_fcp import Metric, RobFCP, RobFCPReleased

__all__ = [
    "DEFAULT",
    "DEFENCES",
    "NAMES",
    "Assessment",
    "Consensus",
    "Defence",
    "Finding",
    "LooksFirst",
    "Metric",
    "NoDefence",
    "Parameters",
    "RobFCP",
    "RobFCPReleased",
    "check_minority",
    "defence_again",
    "estimate_malicious",
    "named_defence",
    "recorded_defence",
    "threshold_of",
    "trust_lowest",
]
