"""Defence: whom to trust. What was found about everybody, and a verdict for a number of liars."""

from robfcp.defence.base import (
    Assessment,
    Defence,
    Finding,
    LooksFirst,
    NoDefence,
    ThresholdRule,
    VotingDefence,
    check_minority,
    threshold_of,
    trust_lowest,
)
from robfcp.defence.consensus import Consensus
from robfcp.defence.copies import Copies, find_copies
from robfcp.defence.evidence import Constants, VotedThreshold
from robfcp.defence.named import (
    CUSTOM,
    DEFAULT,
    DEFENCES,
    NAMES,
    Parameters,
    defence_again,
    named_defence,
    recorded_defence,
)
from robfcp.defence.number_of_liars import estimate_malicious
from robfcp.defence.rob_fcp import Characterisation, Metric, RobFCP, RobFCPReleased

__all__ = [
    "CUSTOM",
    "DEFAULT",
    "DEFENCES",
    "NAMES",
    "Assessment",
    "Characterisation",
    "Consensus",
    "Constants",
    "Copies",
    "Defence",
    "Finding",
    "LooksFirst",
    "Metric",
    "NoDefence",
    "Parameters",
    "RobFCP",
    "RobFCPReleased",
    "ThresholdRule",
    "VotedThreshold",
    "VotingDefence",
    "check_minority",
    "defence_again",
    "estimate_malicious",
    "find_copies",
    "named_defence",
    "recorded_defence",
    "threshold_of",
    "trust_lowest",
]
