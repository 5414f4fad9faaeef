"""Scores: predictions and targets in, one nonconformity score a sample out; bigger is stranger."""

from robfcp.scores.base import ClassificationScore, Rng, Score, Scores
from robfcp.scores.classification import APS, LAC, RAPS, SAPS, OrdinalAPS
from robfcp.scores.conformance import check_score
from robfcp.scores.inputs import (
    ClassColumns,
    Probabilities,
    check_labels,
    check_probabilities,
    class_columns,
    column_names,
    from_logits,
    label_columns,
    label_numbers,
    places,
    sum_tolerance,
)
from robfcp.scores.named import SCORES, chosen_score, named_score, score_parameters
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
    "SAPS",
    "SCORES",
    "AbsoluteResidual",
    "ClassColumns",
    "ClassificationScore",
    "MultilabelRisk",
    "OrdinalAPS",
    "Probabilities",
    "Risk",
    "Rng",
    "Score",
    "Scores",
    "check_labels",
    "check_multilabel",
    "check_probabilities",
    "check_score",
    "chosen_score",
    "class_columns",
    "column_names",
    "from_logits",
    "gains_of_losses",
    "known_risk",
    "label_columns",
    "label_numbers",
    "lambda_grid",
    "named_score",
    "places",
    "score_parameters",
    "scores_or_nan",
    "sum_tolerance",
]
