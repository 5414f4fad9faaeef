"""Attacks that hide among honest clients by copying some of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from robfcp.errors import RobfcpError
from robfcp.lab.attacks.base import Array, Bounds, Indices, ScoreAttack, honest
from robfcp.lab.attacks.simple import Truncation

Copy = Literal["exact", "resampled", "jittered"]
JITTER = 0.1


@dataclass(frozen=True)
class Mimic(ScoreAttack):
    """All attackers copy one honest client, chosen at random: v_k = v_b."""

    copy: Copy = "exact"
    name: ClassVar[str] = "mimic"

    def forge(
        self, scores: list[Array], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Array]:
        """Copies of one client's scores."""
        source = scores[int(rng.choice(honest(malicious, len(scores))))]
        return [copied(source, len(scores[k]), self.copy, rng) for k in malicious]


@dataclass(frozen=True)
class MimicLow(ScoreAttack):
    """All copy the honest client with the lowest `level` quantile: b = argmin_b q_level(s_b)."""

    copy: Copy = "resampled"
    level: float = 0.9
    name: ClassVar[str] = "mimic-low"

    def forge(
        self, scores: list[Array], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Array]:
        """Copies of the lowest client's scores."""
        source = scores[by_quantile(scores, malicious, self.level)[0]]
        return [copied(source, len(scores[k]), self.copy, rng) for k in malicious]


@dataclass(frozen=True)
class MimicHigh(ScoreAttack):
    """All copy the honest client with the highest `level` quantile: b = argmax_b q_level(s_b)."""

    copy: Copy = "resampled"
    level: float = 0.9
    name: ClassVar[str] = "mimic-high"

    def forge(
        self, scores: list[Array], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Array]:
        """Copies of the highest client's scores."""
        source = scores[by_quantile(scores, malicious, self.level)[-1]]
        return [copied(source, len(scores[k]), self.copy, rng) for k in malicious]


@dataclass(frozen=True)
class Displacement(ScoreAttack):
    """Each resamples a random client of the lowest `share` of honest ones, to have others expelled.

    With `upwards` they side with the highest instead.
    """

    share: float = 0.5
    level: float = 0.9
    upwards: bool = False
    name: ClassVar[str] = "displacement"

    def forge(
        self, scores: list[Array], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Array]:
        """Resampled scores of a subgroup."""
        ranked = by_quantile(scores, malicious, self.level)
        ranked = ranked[::-1] if self.upwards else ranked
        subgroup = ranked[: max(1, round(self.share * len(ranked)))]
        return [rng.choice(scores[int(rng.choice(subgroup))], len(scores[k])) for k in malicious]


@dataclass(frozen=True)
class Clones(ScoreAttack):
    """Tight collusion: all send the first attacker's truncated scores, so they look most alike."""

    level: float = 0.75
    copy: Copy = "exact"
    name: ClassVar[str] = "clones"

    def forge(
        self, scores: list[Array], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Array]:
        """Copies of one forged sample."""
        source = Truncation(self.level).forge(scores, malicious, bounds, rng)[0]
        return [copied(source, len(scores[k]), self.copy, rng) for k in malicious]


def by_quantile(scores: list[Array], malicious: Indices, level: float) -> Indices:
    """The honest clients from the lowest to the highest `level` quantile."""
    others = honest(malicious, len(scores))
    quantiles = [np.quantile(scores[k], level, method="inverted_cdf") for k in others]
    return others[np.argsort(quantiles, kind="stable")]


def copied(source: Array, size: int, copy: Copy, rng: np.random.Generator) -> Array:
    """`size` scores after the source: its own, drawn from it, or its own with a tenth redrawn.

    An exact copy of another size takes evenly spaced order statistics.
    """
    if copy == "resampled":
        return rng.choice(source, size)
    if copy not in ("exact", "jittered"):
        raise RobfcpError(f"copy: {copy!r} is none of 'exact', 'resampled', 'jittered'")
    positions = ((np.arange(size) + 0.5) * len(source) / size).astype(np.intp)
    same: Array = np.sort(source)[positions]
    if copy == "jittered":
        moved = rng.permutation(size)[: max(1, round(JITTER * size))]
        same[moved] = rng.choice(source, len(moved))
    return same
