"""Defence: whom to trust. What was found about everybody, and a verdict for a number of liars.

May import the rooms from `_util` to `guarantees`; `calibration` and the rooms after it build on it.
Nothing here proves anything: guarantees hold whatever a defence decides.
"""

from robfcp.defence.band import Band, outside_band
from robfcp.defence.base import (
    Assessment,
    Defence,
    Exclude,
    Finding,
    LookingDefence,
    NoDefence,
    ThresholdRule,
    VotingDefence,
    check_minority,
    threshold_of,
    trust_lowest,
)
from robfcp.defence.characterisations import Characterisation
from robfcp.defence.consensus import Consensus, Constants, VotedThreshold
from robfcp.defence.copies import Copies, find_copies
from robfcp.defence.counting import MaliciousCount, Method, estimate_malicious
from robfcp.defence.distances import Metric
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
from robfcp.defence.released import RobFCPReleased
from robfcp.defence.rob_fcp import RobFCP, maliciousness

__all__ = [
    "CUSTOM",
    "DEFAULT",
    "DEFENCES",
    "NAMES",
    "Assessment",
    "Band",
    "Characterisation",
    "Consensus",
    "Constants",
    "Copies",
    "Defence",
    "Exclude",
    "Finding",
    "LookingDefence",
    "MaliciousCount",
    "Method",
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
    "maliciousness",
    "named_defence",
    "outside_band",
    "recorded_defence",
    "threshold_of",
    "trust_lowest",
]
