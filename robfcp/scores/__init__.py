"""Scores: predictions and targets in, one nonconformity score a sample out; bigger is stranger."""

from robfcp.scores.base import SCORES, ClassificationScore, Score, named_score, scores_or_nan
from robfcp.scores.classification import APS, LAC, RAPS, SAPS, OrdinalAPS
from robfcp.scores.conformance import check_score
from robfcp.scores.inputs import (
    ClassColumns,
    check_labels,
    check_probabilities,
    from_logits,
    sum_tolerance,
)
from robfcp.scores.regression import CQR, AbsoluteResidual
from robfcp.scores.risks import Risk

__all__ = [
    "APS",
    "CQR",
    "LAC",
    "RAPS",
    "SAPS",
    "SCORES",
    "AbsoluteResidual",
    "ClassColumns",
    "ClassificationScore",
    "OrdinalAPS",
    "Risk",
    "Score",
    "check_labels",
    "check_probabilities",
    "check_score",
    "from_logits",
    "named_score",
    "scores_or_nan",
    "sum_tolerance",
]
