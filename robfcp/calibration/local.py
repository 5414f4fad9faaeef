"""A site's own threshold: the federation's for its label mix, clipped by what the site trusts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.guarantees import OwnInterval, at_least, own_interval


@dataclass(frozen=True)
class LocalThreshold:
    """One confidence level at one site: three thresholds, what each proves, and the one to use.

    federation: from the other sites' reports, for whatever mix the next patient makes.
    own: the site's own PAC threshold, from its data alone.
    threshold: max(low, min(federation, own)): never above the own one, never below the floor's.
    floor: what `threshold` covers on average whatever anybody does, a/(n+1).
    unclipped: max(low, federation), which keeps the marginal promise under declared label shift.
    """

    confidence_level: float
    federation: float
    own: float
    threshold: float
    unclipped: float
    floor: float
    n: int
    m: int | None
    label_shift: float | None

    @property
    def statements(self) -> tuple[str, ...]:
        """What is proved of the clipped threshold, one sentence each."""
        wanted = at_least(self.confidence_level)
        found = []
        if np.isfinite(self.federation) and self.m is not None:
            found.append(
                f"while at most {self.m} other sites lie and honest sites agree within classes up "
                f"to {self.label_shift:g}, the federation's threshold covers at least {wanted} of "
                f"this site's patients; clipped from above by the site's own it keeps that with "
                f"97.5% of the confidence in the own one"
            )
        found.append(
            f"whatever anybody does, coverage here is at least {at_least(self.floor)} on average"
        )
        found.append(
            "it is never above the threshold that this site's own data prove with 97.5% confidence"
        )
        return tuple(found)


def localised(
    scores: NDArray[np.float64],
    levels: list[tuple[float, float]],
    m: int | None,
    label_shift: float | None,
) -> tuple[LocalThreshold, ...]:
    """The site's threshold at each (confidence level, federation's threshold)."""
    return tuple(_one(scores, level, fed, m, label_shift) for level, fed in levels)


def _one(
    scores: NDArray[np.float64], level: float, fed: float, m: int | None, label_shift: float | None
) -> LocalThreshold:
    own: OwnInterval = own_interval(scores, 1 - level)
    clipped = max(own.low, min(fed, own.high))
    return LocalThreshold(
        confidence_level=level,
        federation=fed,
        own=own.high,
        threshold=clipped,
        unclipped=max(own.low, fed),
        floor=own.floor,
        n=own.n,
        m=m,
        label_shift=label_shift,
    )


def as_rows(local: LocalThreshold) -> list[tuple[str, Any, str]]:
    """Name, threshold and what is proved, for a table."""
    wanted = at_least(local.confidence_level)
    return [
        (
            "federation",
            local.federation,
            f">= {wanted} while at most {local.m} others lie, under label shift"
            if np.isfinite(local.federation)
            else "nothing: too few honest sites hold its classes",
        ),
        ("own data", local.own, f">= {wanted} with 97.5% confidence, whoever lies"),
        ("clipped", local.threshold, f">= {at_least(local.floor)} on average, whoever lies"),
    ]
