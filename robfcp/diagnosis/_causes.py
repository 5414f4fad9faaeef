"""The causes that a diagnosis can name, each with its likelihood and its words.

Scores are compared by their ranks among the peers' scores of the same class: those of a client
like its peers are uniform on [0, 1], larger ones are nearer to 1. Of a client with a data fault
the ranks have another distribution. Distributions and weights were fitted to clients into which
everyday faults were put (`robfcp.experiments.data_faults`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class RankDistribution(NamedTuple):
    """A distribution of a client's ranks among its peers: Beta(a, b) on [0, 1].

    Attributes
    ----------
    a, b : float
        The parameters of the Beta distribution.
    strength : float
        How close to it the ranks of a client are, as a number of samples seen beforehand.
    lowest : float
        The fraction of the ranks that is at the very bottom instead.
    """

    a: float
    b: float
    strength: float
    lowest: float = 0.0


RANK_DISTRIBUTIONS: Mapping[str, RankDistribution] = {
    "similar": RankDistribution(1, 1, 45),
    "shifted": RankDistribution(1, 1, 15),
    "wrong": RankDistribution(1.1, 0.35, 8),
    "rather wrong": RankDistribution(1.6, 0.75, 25),
    "noisier": RankDistribution(1.5, 0.65, 20, lowest=0.08),
    "duller": RankDistribution(2.3, 1.2, 15),
    "sharper": RankDistribution(0.3, 0.45, 35),
    "easy": RankDistribution(1.2, 3.3, 10),
    "flatter": RankDistribution(3.4, 2, 10),
    "much flatter": RankDistribution(8, 1.6, 10),
    "anything": RankDistribution(0.8, 0.8, 3),
}


class Cause(NamedTuple):
    """A cause: how likely it makes ranks, what it looks like and what to check.

    Attributes
    ----------
    description, recommendation : str
        What it looks like and what to check; words in braces are filled in.
    mixture : tuple of (float, str)
        The mixture of distributions that the ranks of every class have: weights and names. Empty
        if ranks alone do not show the cause.
    regression_name : str
        The name of the cause where numbers are predicted; empty if it is the same.
    """

    description: str
    recommendation: str
    mixture: tuple[tuple[float, str], ...] = ()
    regression_name: str = ""


SHIFTED_CLASS_PRIOR = 0.05  # the fraction of the classes that may be shifted, or anything at all

LABELS_SWAPPED = "labels swapped"
LABELS_PERMUTED = "labels permuted"
SCORES_ALL_EQUAL = "scores all equal"
RESIDUALS_OFF_SCALE = "residuals off scale"
DUPLICATE_REPORT = "duplicate report"
DIFFERENT_LABEL_DISTRIBUTION = "different label distribution"
DIFFERENT_POPULATION = "different population"
UNEXPLAINED = "unexplained"

CAUSES: Mapping[str, Cause] = {
    LABELS_SWAPPED: Cause(
        description="the labels {classes} {look} swapped",
        recommendation="check how {classes} are coded, in the labels and in the columns",
    ),
    LABELS_PERMUTED: Cause(
        description="{mismatch}",
        recommendation="check the label column, the order of the classes and the version of the "
        "model",
        regression_name=RESIDUALS_OFF_SCALE,
    ),
    SCORES_ALL_EQUAL: Cause(
        description="all its scores are equal ({location})",
        recommendation="check that the file holds real probabilities and labels",
        regression_name=RESIDUALS_OFF_SCALE,
    ),
    RESIDUALS_OFF_SCALE: Cause(
        description="its residuals are far {size} than elsewhere",
        recommendation="check the unit of predictions and targets, the target column and the "
        "version of the model",
    ),
    DUPLICATE_REPORT: Cause(
        description="its report is the same as that of {other}",
        recommendation="ask it and {other} which file they sent",
    ),
    "different model": Cause(
        description="its scores look like those of another, less accurate model{or_labels}",
        recommendation="check which version of the model was used, and that its input was prepared "
        "as elsewhere{and_labels}",
        mixture=((0.6, "noisier"), (0.4, "duller")),
    ),
    "overconfident probabilities": Cause(
        description="its probabilities are far more extreme than elsewhere, as with another model "
        "or scaling",
        recommendation="check the version of the model and that probabilities were not rescaled",
        mixture=((1.0, "sharper"),),
        regression_name=RESIDUALS_OFF_SCALE,
    ),
    "scores under-dispersed": Cause(
        description="its scores spread much less than elsewhere, as with another model, score or "
        "scaling",
        recommendation="check the version of the model, the score, and that probabilities were not "
        "rescaled",
        mixture=((0.7, "flatter"), (0.3, "much flatter")),
        regression_name=RESIDUALS_OFF_SCALE,
    ),
    "large scores missing": Cause(
        description="its hard cases are missing: large scores are too rare",
        recommendation="check that the file holds all calibration cases, not a selection",
        mixture=((1.0, "easy"),),
    ),
    DIFFERENT_LABEL_DISTRIBUTION: Cause(
        description="its mix of classes is another: {fraction} {classes} where the others have "
        "{peer_fraction}",
        recommendation="ask whether other cases are seen there; if so, nothing is wrong: consider "
        "thresholds by class, or one of its own",
    ),
    DIFFERENT_POPULATION: Cause(
        description="its scores differ from the others'{location}, as with other cases or another "
        "device",
        recommendation="compare the cases, the model and the labels with another site's",
    ),
    UNEXPLAINED: Cause(
        description="nothing in its report says why",
        recommendation="ask how the file was made, and which cases it holds",
        mixture=((1 - SHIFTED_CLASS_PRIOR, "similar"), (SHIFTED_CLASS_PRIOR, "shifted")),
    ),
}

# Changes of the scores of all classes in the same way.
SCORE_CHANGES = tuple(
    name for name, cause in CAUSES.items() if cause.mixture and name != UNEXPLAINED
)
