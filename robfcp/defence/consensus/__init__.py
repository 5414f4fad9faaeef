"""The default defence, in parts: tables, evidence, core, scan, groups, vote and words."""

from robfcp.defence.consensus.consensus import Consensus, stand_out
from robfcp.defence.consensus.constants import Constants
from robfcp.defence.consensus.vote import VotedThreshold

__all__ = ["Consensus", "Constants", "VotedThreshold", "stand_out"]
