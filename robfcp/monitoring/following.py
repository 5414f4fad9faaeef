"""A threshold that follows drift round by round although some sites lie about what they miss.

q <- q + eta (e - alpha), e the mean of the K - m largest miss shares reported. These are at least
the honest sites' mean h, so q rises by at least eta (h - alpha) a round while anything is missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from robfcp.arguments import share, whole
from robfcp.certificate import at_least
from robfcp.errors import RobfcpError


@dataclass(frozen=True)
class Follower:
    """A threshold over time, for any data whatever, while at most so many sites ever lie.

    Parameters
    ----------
    threshold
        Where it begins, that of a calibration for instance.
    n_sites
        How many sites take part, fixed beforehand.
    liars
        The most of them that ever lie.
    most
        The threshold from which on nothing is missed: 1 for `LAC` and `APS`.
    coverage
        The share wanted.
    rate
        eta: how far one round can move it. Large ones follow faster and waver more.
    begun
        The threshold of the first round; `threshold` if None.
    rounds
        How many rounds were counted.

    Examples
    --------
    >>> from robfcp.monitoring import Follower
    >>> follower = Follower(0.6, n_sites=4, liars=1, most=1.0, rate=0.1)
    >>> follower = follower.after({"a": 0.3, "b": 0.2, "c": 0.1, "liar": 0.0})
    >>> round(follower.threshold, 3)
    0.61
    """

    threshold: float
    n_sites: int
    liars: int
    most: float
    coverage: float = 0.9
    rate: float = 0.01
    begun: float | None = None
    rounds: int = 0

    def __post_init__(self) -> None:
        share("coverage", self.coverage, "give 0.9, say")
        if not 0 <= whole("liars", self.liars, "give the most that lie") < self.n_sites:
            words = f"cannot tolerate {self.liars} among {self.n_sites} sites; state fewer"
            raise RobfcpError(f"liars: {words}")
        if not np.isfinite([self.threshold, self.most]).all() or not 0 < self.rate < np.inf:
            raise RobfcpError("threshold, most, rate: need finite numbers, and a rate above 0")

    def after(self, missed: Mapping[str, float]) -> Follower:
        """The threshold of the next round.

        Parameters
        ----------
        missed
            Each site's share of this round's fresh labelled samples that `threshold` missed. A
            site that sends none, or no share, counts as having missed everything.
        """
        if len(missed) > self.n_sites:
            raise RobfcpError(
                f"missed: {len(missed)} sites sent shares but {self.n_sites} take part; check names"
            )
        told = np.ones(self.n_sites)
        told[: len(missed)] = [x if 0 <= x <= 1 else 1.0 for x in missed.values()]
        worst = np.sort(told)[self.liars :].mean()
        moved = self.threshold + self.rate * (worst - (1 - self.coverage))
        first = self.threshold if self.begun is None else self.begun
        kept = float(min(moved, self.most + self.rate))  # above `most` nothing is gained
        return replace(self, threshold=kept, begun=first, rounds=self.rounds + 1)

    @property
    def bound(self) -> float:
        """alpha + (B + eta - q_1) / (eta T), the most that honest sites missed on average."""
        first = self.threshold if self.begun is None else self.begun
        spare = max(self.most + self.rate - first, 0.0) / (self.rate * max(self.rounds, 1))
        return min(1.0, 1 - self.coverage + spare)

    @property
    def statement(self) -> str:
        """What is proved, whatever the data."""
        return (
            f"over {self.rounds} rounds the honest sites covered at least "
            f"{at_least(1 - self.bound)} on average, unless more than {self.liars} of "
            f"{self.n_sites} sites ever lied"
        )
