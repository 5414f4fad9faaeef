"""Scores: predictions and targets in, one nonconformity score a sample out; bigger is stranger."""

from robfcp.scores import base
from robfcp.scores.base import ClassificationScore, Score
from robfcp.scores.classification import APS, LAC, RAPS, SAPS, OrdinalAPS
from robfcp.scores.conformance import check_score
from robfcp.scores.regression import CQR, AbsoluteResidual
from robfcp.scores.risks import Risk

__all__ = [
    "APS",
    "CQR",
    "LAC",
    "RAPS",
    "SAPS",
    "AbsoluteResidual",
    "ClassificationScore",
    "OrdinalAPS",
    "Risk",
    "Score",
    "base",
    "check_score",
]
