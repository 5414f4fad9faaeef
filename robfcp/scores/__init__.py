"""Nonconformity scores: predictions and targets in, one score per sample out; larger is stranger.

`LAC`, `APS`, `RAPS`, `SAPS` and `OrdinalAPS` score class probabilities, `AbsoluteResidual` and
`CQR` score regression outputs, and `Risk` is a loss of label sets. `check_score` tries a score of a
user's own. May import `binning`, `errors` and the shared private modules.
"""

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
