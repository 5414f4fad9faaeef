"""LAC: one minus the probability of the label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from robfcp.scores.base import ClassificationScore, Scores
from robfcp.scores.probabilities import Probabilities, accumulator, check_rows


@dataclass(frozen=True)
class LAC(ClassificationScore):
    """1 - p_y, taken as the sum of the other probabilities where p_y > 1/2, to keep its digits.

    With the true probabilities no other score has smaller sets on average.

    References
    ----------
    Sadinle, Lei and Wasserman (2019), "Least ambiguous set-valued classifiers with bounded error
    levels", Journal of the American Statistical Association 114.

    Examples
    --------
    >>> import robfcp
    >>> robfcp.LAC()([[0.75, 0.25], [0.5, 0.5]], [0, 1])
    array([0.25, 0.5 ])
    """

    name: ClassVar[str] = "lac"

    def _of_labels(
        self, p: Probabilities, label: NDArray[np.intp], u: Scores, first: int
    ) -> Scores:
        chosen, others = _label_and_others(p, label)
        check_rows(p, first, chosen + others)
        return np.where(chosen > 0.5, np.minimum(others, 1), 1 - chosen)

    def of_all(self, p: Probabilities, u: Scores) -> Scores:
        """1 - p, the likeliest label's as the sum of the others.

        Parameters
        ----------
        p
            (n, C) probabilities.
        u
            (n,) uniform numbers, or ones.

        Returns
        -------
        (n, C) array
            The score of every label.
        """
        scores = np.maximum(1 - p.astype(np.float64), 0)
        rows, top = np.arange(len(p)), p.argmax(axis=1)
        chosen, others = _label_and_others(p, top)
        scores[rows, top] = np.where(chosen > 0.5, np.minimum(others, 1), 1 - chosen)
        return scores


def _label_and_others(p: Probabilities, label: NDArray[np.intp]) -> tuple[Scores, Scores]:
    """Each row's probability of its label and the sum of the others, before and behind it.

    A sum of positive numbers keeps their digits, so it is taken in their own kind.
    """
    flat, n_classes = p.reshape(-1), p.shape[1]
    cuts = np.arange(len(p))[:, None] * n_classes + np.stack([0 * label, label, label + 1], axis=1)
    cuts = np.minimum(cuts, flat.size - 1).ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.add.reduceat(flat, cuts, dtype=accumulator(p)).reshape(-1, 3).astype(np.float64)
    before, chosen, behind = sums.T
    return chosen, np.where(label > 0, before, 0) + np.where(label < n_classes - 1, behind, 0)
