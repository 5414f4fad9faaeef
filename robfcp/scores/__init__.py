"""Scores: predictions and targets in, one nonconformity score a sample out; bigger is stranger."""

from robfcp.scores._base import (
    BUILTIN_SCORES,
    ClassificationScore,
    Score,
    get_score,
    scores_with_nan,
)
from robfcp.scores._classification import APS, LAC, RAPS, SAPS, OrdinalAPS
from robfcp.scores._conformance import check_score
from robfcp.scores._regression import CQR, AbsoluteResidual
from robfcp.scores._risks import Risk

__all__ = [
    "APS",
    "BUILTIN_SCORES",
    "CQR",
    "LAC",
    "RAPS",
    "SAPS",
    "AbsoluteResidual",
    "ClassificationScore",
    "OrdinalAPS",
    "Risk",
    "Score",
    "check_score",
    "get_score",
    "scores_with_nan",
]
