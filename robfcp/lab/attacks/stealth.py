"""Attacks that stay close to honest reports: a little lower, each in its own way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from robfcp.lab.attacks.base import (
    Array,
    Bounds,
    Indices,
    Labelled,
    PairAttack,
    ScoreAttack,
    honest,
)
from robfcp.lab.attacks.mimicry import by_quantile

LEVEL = 0.9


@dataclass(frozen=True)
class Stairs(ScoreAttack):
    """Graded lies: attacker i of m redraws a share `most` i / m of its scores from below t.

    t is the honest `level` quantile; no two attackers lie equally, so that no gap shows.
    """

    most: float = 0.6
    level: float = 0.75
    name: ClassVar[str] = "stairs"

    def forge(
        self, scores: list[Array], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Array]:
        """The clients' scores, ever more of them low."""
        pool = np.concatenate([scores[k] for k in honest(malicious, len(scores))])
        low = pool[pool <= np.quantile(pool, self.level, method="inverted_cdf")]
        forged = []
        for number, k in enumerate(malicious, start=1):
            own = scores[k].copy()
            hit = rng.random(len(own)) < self.most * number / len(malicious)
            own[hit] = rng.choice(low, int(hit.sum()))
            forged.append(own)
        return forged


@dataclass(frozen=True)
class Push(ScoreAttack):
    """Scores above the honest `level` quantile move just below the threshold they would raise.

    They are redrawn from honest scores between the 60% and the 90% quantile.
    """

    level: float = 0.85
    name: ClassVar[str] = "push"

    def forge(
        self, scores: list[Array], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Array]:
        """The clients' scores without their tail."""
        pool = np.concatenate([scores[k] for k in honest(malicious, len(scores))])
        start, low, high = np.quantile(pool, [self.level, 0.6, LEVEL], method="inverted_cdf")
        near = pool[(pool >= low) & (pool <= high)]
        return [
            np.where(scores[k] > start, rng.choice(near, len(scores[k])), scores[k])
            for k in malicious
        ]


@dataclass(frozen=True)
class Ghost(PairAttack):
    """Near copies of the hardest honest clients, tails moved down: the copied look like liars.

    Attacker i takes the pairs of the i-th hardest client; scores above that client's own `level`
    quantile are redrawn from those below. Larger attackers repeat pairs.
    """

    level: float = 0.85
    name: ClassVar[str] = "ghost"

    def forge(
        self, pairs: list[Labelled], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Labelled]:
        """Copies without the upper part."""
        hardest = by_quantile([scores for scores, _ in pairs], malicious, LEVEL)[::-1]
        hardest = hardest[: max(1, min(len(malicious), len(hardest) // 2))]
        forged = []
        for number, k in enumerate(malicious):
            scores, labels = pairs[hardest[number % len(hardest)]]
            order = np.resize(rng.permutation(len(scores)), len(pairs[k][0]))
            scores, labels = scores[order], labels[order]
            limit = np.quantile(scores, self.level, method="inverted_cdf")
            low = scores[scores <= limit]
            moved = np.where(scores > limit, rng.choice(low, len(scores)), scores)
            forged.append((moved, labels))
        return forged
