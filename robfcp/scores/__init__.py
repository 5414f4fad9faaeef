"""Scores: predictions and targets in, one nonconformity score a sample out; bigger is stranger.

May import `_util`, `errors` and `grid`; `prediction` and `reports` build on it. Randomness comes
only through `rng`. `Score` and `ClassificationScore` are the bases users extend.
"""

from robfcp.scores.adaptive import APS, RAPS
from robfcp.scores.base import ClassificationScore, Rng, Score, Scores
from robfcp.scores.checking import check_score
from robfcp.scores.columns import (
    ClassColumns,
    class_columns,
    column_names,
    label_columns,
    label_numbers,
    places,
)
from robfcp.scores.lac import LAC
from robfcp.scores.named import SCORES, chosen_score, named_score, score_parameters
from robfcp.scores.ordinal import OrdinalAPS
from robfcp.scores.probabilities import (
    Probabilities,
    check_labels,
    check_probabilities,
    from_logits,
    sum_tolerance,
)
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
from robfcp.scores.saps import SAPS
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
