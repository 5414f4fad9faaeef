"""Attacks that forge each client's scores by themselves: the paper's, and their building blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from robfcp.errors import RobfcpError
from robfcp.lab.attacks.base import Array, Bounds, Indices, ScoreAttack, honest


@dataclass(frozen=True)
class Coverage(ScoreAttack):
    """All scores at the minimum: s' = low. Threshold and coverage fall."""

    name: ClassVar[str] = "coverage"

    def forge(
        self, scores: list[Array], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Array]:
        """As many minimal scores as the client had."""
        return [np.full(len(scores[k]), bounds[0]) for k in malicious]


@dataclass(frozen=True)
class Efficiency(ScoreAttack):
    """All scores at the maximum: s' = high. The sets blow up."""

    name: ClassVar[str] = "efficiency"

    def forge(
        self, scores: list[Array], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Array]:
        """As many maximal scores as the client had."""
        return [np.full(len(scores[k]), bounds[1]) for k in malicious]


@dataclass(frozen=True)
class NearCoverage(ScoreAttack):
    """All scores a little above the minimum: s' = low + step (high - low).

    What a rule that singles out the very ends of the range does not see.
    """

    step: float = 0.001
    name: ClassVar[str] = "near-coverage"

    def forge(
        self, scores: list[Array], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Array]:
        """As many equal scores as the client had."""
        value = bounds[0] + self.step * (bounds[1] - bounds[0])
        return [np.full(len(scores[k]), value) for k in malicious]


@dataclass(frozen=True)
class Gaussian(ScoreAttack):
    """The paper's: s' = clip(s + N(0, deviation^2), low, high), in units of the score."""

    deviation: float = 0.5
    name: ClassVar[str] = "gaussian"

    def forge(
        self, scores: list[Array], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Array]:
        """The client's own scores with noise."""
        return [
            np.clip(scores[k] + rng.normal(0, self.deviation, len(scores[k])), *bounds)
            for k in malicious
        ]


@dataclass(frozen=True)
class GaussianRelative(ScoreAttack):
    """Milder where scores vary little: s' = clip(s + N(0, (scale sd(s))^2), low, high)."""

    scale: float = 0.5
    name: ClassVar[str] = "gaussian-relative"

    def forge(
        self, scores: list[Array], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Array]:
        """The client's own scores with noise."""
        return [
            np.clip(
                scores[k] + rng.normal(0, 1, len(scores[k])) * self.scale * scores[k].std(), *bounds
            )
            for k in malicious
        ]


@dataclass(frozen=True)
class Truncation(ScoreAttack):
    """Scores above the honest `level` quantile t are redrawn from the client's own at or below t.

    The mass is spread as the rest is, so that no bin stands out.
    """

    level: float = 0.75
    name: ClassVar[str] = "truncation"

    def forge(
        self, scores: list[Array], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Array]:
        """The client's scores without their upper part."""
        pool = np.concatenate([scores[k] for k in honest(malicious, len(scores))])
        limit = float(np.quantile(pool, self.level, method="inverted_cdf"))
        return [_redrawn(scores[k], scores[k] <= limit, limit, rng) for k in malicious]


@dataclass(frozen=True)
class Lift(ScoreAttack):
    """Scores up to the honest `level` quantile t are redrawn from the client's own above t."""

    level: float = 0.25
    name: ClassVar[str] = "lift"

    def forge(
        self, scores: list[Array], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Array]:
        """The client's scores without their lower part."""
        pool = np.concatenate([scores[k] for k in honest(malicious, len(scores))])
        limit = float(np.quantile(pool, self.level, method="inverted_cdf"))
        return [_redrawn(scores[k], scores[k] > limit, limit, rng) for k in malicious]


@dataclass(frozen=True)
class Partial(ScoreAttack):
    """Only a share of each attacker's scores is forged, chosen at random; the rest is honest."""

    share: float = 0.5
    attack: ScoreAttack = field(default_factory=Coverage)
    name: ClassVar[str] = "partial"

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise RobfcpError(f"share: {self.share} is not between 0 and 1; give 0.5, say")

    def forge(
        self, scores: list[Array], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Array]:
        """The client's scores, a share of them replaced."""
        mixed = []
        forged = self.attack.forge(scores, malicious, bounds, rng)
        for k, lies in zip(malicious, forged, strict=True):
            own = scores[k].copy()
            chosen = rng.permutation(len(own))[: round(self.share * len(own))]
            own[chosen] = rng.choice(lies, len(chosen))
            mixed.append(own)
        return mixed


def _redrawn(own: Array, kept: np.ndarray, limit: float, rng: np.random.Generator) -> Array:
    """The scores with those not kept redrawn from those kept; the limit where none is."""
    if not kept.any():
        return np.full(len(own), limit)
    return np.where(kept, own, rng.choice(own[kept], len(own)))
