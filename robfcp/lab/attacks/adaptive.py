"""The attacker who knows the defence, the number told and the honest reports, and searches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from robfcp.arguments import Rng, exact_level
from robfcp.defence import DEFAULT, Defence, named_defence, threshold_of
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.lab.attacks.base import Array, Indices, ScoreAttack, Stage, attackers, with_counts
from robfcp.lab.attacks.coordinated import Clones, Decoy, Displacement, MimicHigh, MimicLow
from robfcp.lab.attacks.simple import (
    Coverage,
    Efficiency,
    Gaussian,
    GaussianRelative,
    Lift,
    NearCoverage,
    Partial,
    Truncation,
)

Rule = Callable[[Federation], int | None]
FREE_BINS = 12
STEP = 0.7


@dataclass(frozen=True, eq=False)
class Found:
    """The worst reports a search came upon: what they do and how they were made."""

    federation: Federation
    coverage: float
    family: str


@dataclass(frozen=True)
class Adaptive:
    """Searches all families and then freely for the reports with the least or greatest coverage.

    against: a defence, by name or itself, told the true number of attackers; or any rule that
        gives the threshold's bin for a federation.
    direction: "down" seeks the least coverage of the honest clients, "up" the greatest.
    trials: steps of the free search, in which all attackers draw from one distribution
        q ~ p exp(theta) on the honest clients' quantile bins (p their pooled shares), theta moves
        at random and is kept when coverage gets worse; a share of attackers stays honest.
    """

    against: str | Defence | Rule = DEFAULT
    direction: Literal["down", "up"] = "down"
    coverage: float = 0.9
    trials: int = 100
    name: ClassVar[str] = "adaptive"
    on: ClassVar[Stage] = "counts"

    def __call__(self, data: Federation, malicious: ArrayLike, rng: Rng = None) -> Federation:
        """The worst federation found."""
        return self.search(data, malicious, rng).federation

    def search(self, data: Federation, malicious: ArrayLike, rng: Rng = None) -> Found:
        """The worst reports found, with the honest coverage they lead to."""
        if self.direction not in ("down", "up"):
            raise RobfcpError(f"direction: {self.direction!r} is neither 'down' nor 'up'")
        generator = np.random.default_rng(rng)
        bad = attackers(malicious, data.n_clients)
        rule = self._rule(len(bad))
        benign = np.setdiff1d(np.arange(data.n_clients), bad)
        cdf = np.cumsum(data.counts[benign].sum(axis=0)) / data.sizes[benign].sum()
        sign = 1.0 if self.direction == "down" else -1.0

        def judged(federation: Federation, family: str) -> Found:
            index = rule(federation)
            return Found(federation, 1.0 if index is None else float(cdf[index]), family)

        best = judged(data, "honest")
        if not len(bad):
            return best
        for attack, family in families(self.direction):
            found = judged(attack(data, bad, generator), family)
            best = min(best, found, key=lambda one: sign * one.coverage)
        search = _FreeSearch(data, bad, cdf, generator)
        for _ in range(self.trials):
            found = judged(search.proposal(), "free")
            better = search.report(sign * found.coverage)
            if better and sign * found.coverage < sign * best.coverage:
                best = found
        return best

    def _rule(self, n_malicious: int) -> Rule:
        """The bin of the threshold the defence gives when told the number."""
        if callable(self.against) and not hasattr(self.against, "name"):
            return self.against
        defence: Defence = (
            named_defence(self.against, n_malicious)
            if isinstance(self.against, str)
            else self.against  # type: ignore[assignment]
        )
        level = exact_level(self.coverage)

        def rule(federation: Federation) -> int | None:
            return threshold_of(defence, federation, defence(federation).trusted).index(level)

        return rule


def families(direction: str) -> Iterator[tuple[ScoreAttack, str]]:
    """The attacks an adaptive attacker tries first, each in several strengths."""
    down = direction == "down"
    gross: ScoreAttack = Coverage() if down else Efficiency()
    yield gross, gross.name
    yield Decoy(gross), "decoy"
    for scale in (0.5, 1.0, 2.0):
        yield GaussianRelative(scale), f"gaussian-relative {scale:g}"
    yield Gaussian(), "gaussian"
    for step in (0.0005, 0.001, 0.01):
        near = NearCoverage(step if down else 1 - step)
        yield near, f"{near.name} {near.step:g}"
    for level in (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9):
        shift: ScoreAttack = Truncation(level) if down else Lift(1 - level)
        yield shift, f"{shift.name} {level if down else 1 - level:.2g}"
        if down:
            yield Clones(level=level), f"clones {level:g}"
    for share in (0.05, 0.1, 0.15, 0.2, 0.3, 0.5):
        yield Partial(share, gross), f"partial {share:g}"
    for copy in ("exact", "resampled", "jittered"):
        twin: ScoreAttack = MimicLow(copy) if down else MimicHigh(copy)
        yield twin, f"{twin.name} {copy}"
    for share in (0.05, 0.1, 0.2, 0.35, 0.5):
        yield Displacement(share, upwards=not down), f"displacement {share:g}"


class _FreeSearch:
    """A random walk over the distribution the attackers draw from, uphill only."""

    def __init__(
        self, data: Federation, bad: Indices, cdf: Array, rng: np.random.Generator
    ) -> None:
        self.data, self.bad, self.rng = data, bad, rng
        levels = np.arange(1, FREE_BINS) / FREE_BINS
        last = len(cdf) - 1
        reached = np.searchsorted(cdf, levels - 1e-12)
        ends = np.unique(np.append(np.minimum(reached, last), last))
        self.block = np.searchsorted(ends, np.arange(data.grid.n_bins))
        self.shares = np.diff(cdf, prepend=0)
        self.theta = np.zeros(len(ends))
        self.loyal = 0.0
        self.best = np.inf
        self.tried = (self.theta, self.loyal)

    def proposal(self) -> Federation:
        """Counts drawn from a tilted honest distribution by all but a share of the attackers."""
        theta = self.theta + STEP * self.rng.normal(size=len(self.theta))
        loyal = float(np.clip(self.loyal + 0.1 * self.rng.normal(), 0, 0.9))
        self.tried = (theta, loyal)
        weights = self.shares * np.exp(theta)[self.block]
        counts = self.data.counts.copy()
        active = self.bad[round(loyal * len(self.bad)) :]
        counts[active] = self.rng.multinomial(self.data.sizes[active], weights / weights.sum())
        return with_counts(self.data, counts)

    def report(self, value: float) -> bool:
        """Keep the last proposal if it is the best yet."""
        if value >= self.best:
            return False
        self.best = value
        self.theta, self.loyal = self.tried
        return True
