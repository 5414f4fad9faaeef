"""FCP: federated conformal prediction without a defense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from robfcp.defense._base import Assessment, Defense
from robfcp.federation import Federation


@dataclass(frozen=True)
class FCP(Defense):
    """FCP: every client is included.

    References
    ----------
    Lu, Yu, Karimireddy, Jordan and Raskar (2023), "Federated conformal predictors for distributed
    uncertainty quantification", ICML.

    Examples
    --------
    >>> import robfcp
    >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.2, 0.4]) for name in "ab"]
    >>> robfcp.calibrate(reports, coverage=0.5, defense=robfcp.defense.FCP()).flagged_clients
    ()
    """

    name: ClassVar[str] = "none"

    def assess(self, federation: Federation) -> Assessment:
        """Return the verdict that every client is benign, with a maliciousness of 0."""
        benign_mask = np.ones(federation.n_clients, dtype=bool)
        return Assessment(np.zeros(federation.n_clients), benign_mask)
