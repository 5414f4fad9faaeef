"""Scores: predictions and targets in, one nonconformity score a sample out; bigger is stranger.

May import `_util`, `errors` and `grid`; `prediction` and `reports` build on it. Randomness comes
only through `rng`. `Score` and `ClassificationScore` are the bases users extend.
"""

from robfcp._moved import old_names
from robfcp.scores.adaptive import APS, RAPS
from robfcp.scores.base import ClassificationScore, Rng, Score, Scores
from robfcp.scores.lac import LAC
from robfcp.scores.named import SCORES, named_score, score_parameters
from robfcp.scores.probabilities import Probabilities, check_labels, check_probabilities
from robfcp.scores.regression import CQR, AbsoluteResidual
from robfcp.scores.risks import (
    RESOLUTION,
    RISKS,
    MultilabelRisk,
    Risk,
    check_multilabel,
    gains_of_losses,
    known_risk,
    lambda_grid,
)
from robfcp.scores.tolerant import scores_or_nan

__all__ = [
    "APS",
    "CQR",
    "LAC",
    "RAPS",
    "RESOLUTION",
    "RISKS",
    "SCORES",
    "AbsoluteResidual",
    "ClassificationScore",
    "MultilabelRisk",
    "Probabilities",
    "Risk",
    "Rng",
    "Score",
    "Scores",
    "check_labels",
    "check_multilabel",
    "check_probabilities",
    "gains_of_losses",
    "known_risk",
    "lambda_grid",
    "named_score",
    "score_parameters",
    "scores_or_nan",
]

__getattr__ = old_names(__name__)
