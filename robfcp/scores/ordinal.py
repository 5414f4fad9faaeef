"""The ordinal score: sets that are ranges of neighbouring classes, for stages and grades."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from robfcp.scores.base import ClassificationScore, Scores, check_randomized
from robfcp.scores.probabilities import Probabilities


@dataclass(frozen=True)
class OrdinalAPS(ClassificationScore):
    """The mass of the range that has grown from the likeliest class until it holds the label.

    The range grows by the likelier of its two neighbours, the lower one where they are equal, so
    that every set is a range without gaps: stages 2 to 3, never 1 and 3. Classes are in the order
    of the columns.

    Parameters
    ----------
    randomized
        Count only u of the label's own probability, which needs `rng`; False takes u = 1.

    References
    ----------
    Lu, Angelopoulos and Pomerantz (2022), "Improving trustworthiness of AI disease severity rating
    in medical imaging with ordinal conformal prediction sets", MICCAI.

    Examples
    --------
    >>> import robfcp
    >>> robfcp.OrdinalAPS(randomized=False).all_labels([[0.125, 0.5, 0.25, 0.125]])
    array([[0.875, 0.5  , 0.75 , 1.   ]])
    """

    randomized: bool = True
    name: ClassVar[str] = "ordinal-aps"

    def __post_init__(self) -> None:
        object.__setattr__(self, "randomized", check_randomized(self, self.randomized))

    def of_all(self, p: Probabilities, u: Scores) -> Scores:
        """The mass of the range before each class joins, and u of its own.

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
        n, n_classes = p.shape
        rows = np.arange(n)
        walled = np.full((n, n_classes + 2), -1.0)  # nothing lies beyond either end
        walled[:, 1:-1] = p
        low = p.argmax(axis=1)
        high = low + 2  # the next classes on both sides, in the columns of `walled`
        scores = np.empty(p.shape)
        mass = walled[rows, low + 1]
        scores[rows, low] = u * mass
        for _ in range(n_classes - 1):
            down = walled[rows, low] >= walled[rows, high]
            joined = np.where(down, low, high)
            own = walled[rows, joined]
            scores[rows, joined - 1] = mass + u * own
            mass = mass + own
            low, high = low - down, high + ~down
        return np.minimum(scores, 1)
