"""Defence: whom to trust, for the number of liars that a defence is told or finds out."""

from robfcp.defence.base import (
    Assessment,
    Defence,
    NoDefence,
    threshold_of,
    without_farthest,
)
from robfcp.defence.consensus import Consensus
from robfcp.defence.named import (
    DEFAULT,
    DEFENCES,
    defence_again,
    named_defence,
    recorded_defence,
)
from robfcp.defence.number_of_liars import estimate_malicious
from robfcp.defence.rob_fcp import RobFCP, RobFCPReleased

__all__ = [
    "DEFAULT",
    "DEFENCES",
    "Assessment",
    "Consensus",
    "Defence",
    "NoDefence",
    "RobFCP",
    "RobFCPReleased",
    "defence_again",
    "estimate_malicious",
    "named_defence",
    "recorded_defence",
    "threshold_of",
    "without_farthest",
]
