"""Guarantees: what is proved about a threshold, whatever at most m clients do."""

from robfcp.guarantees.curve import certify, outside_of
from robfcp.guarantees.promises import LabelShift, Marginal, Pac, Promise, named_promise
from robfcp.guarantees.rank import FcpThreshold, RankRule, conformal_rank, fcp_index, rank_charge

__all__ = [
    "FcpThreshold",
    "LabelShift",
    "Marginal",
    "Pac",
    "Promise",
    "RankRule",
    "certify",
    "conformal_rank",
    "fcp_index",
    "named_promise",
    "outside_of",
    "rank_charge",
]
