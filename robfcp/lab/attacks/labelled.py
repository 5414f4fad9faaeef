"""Attacks that forge labels together with scores: what reports by class must withstand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from robfcp.errors import RobfcpError
from robfcp.lab.attacks.base import Bounds, Indices, Labelled, PairAttack, honest
from robfcp.lab.attacks.mimicry import by_quantile


@dataclass(frozen=True)
class ClassCapture(PairAttack):
    """All samples go into one class, at one end of the range: y' = c, s' = high (or low).

    target: the class c; if None the one that the fewest honest clients hold, of those that any do:
        c = argmin_c #{k honest: n_kc > 0}, of equals the one with the fewest honest samples.
    scores: "top" makes the class's sets blow up, "bottom" its coverage fall.
    """

    target: int | None = None
    scores: Literal["top", "bottom"] = "top"
    name: ClassVar[str] = "class-capture"

    def __post_init__(self) -> None:
        if self.scores not in ("top", "bottom"):
            raise RobfcpError(f"scores: {self.scores!r} is neither 'top' nor 'bottom'")

    def forge(
        self, pairs: list[Labelled], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Labelled]:
        """As many samples of one class as the client had."""
        label = rarest_class(pairs, malicious) if self.target is None else self.target
        score = bounds[self.scores == "top"]
        sizes = [len(pairs[k][1]) for k in malicious]
        return [(np.full(size, score), np.full(size, label, np.intp)) for size in sizes]


@dataclass(frozen=True)
class PairMimic(PairAttack):
    """All draw (score, label) pairs from the easiest honest client: (s', y') ~ b with replacement.

    b = argmin_b q_level(s_b), the lowest `level` quantile: given the label all scores are honest,
    and only the mix of labels is moved.
    """

    level: float = 0.9
    name: ClassVar[str] = "pair-mimic"

    def forge(
        self, pairs: list[Labelled], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Labelled]:
        """Resampled pairs of one client, as many as the liar had."""
        scores = [part for part, _ in pairs]
        source, labels = pairs[by_quantile(scores, malicious, self.level)[0]]
        drawn = [rng.integers(0, len(source), len(scores[k])) for k in malicious]
        return [(source[chosen], labels[chosen]) for chosen in drawn]


def rarest_class(pairs: list[Labelled], malicious: Indices) -> int:
    """argmin over the classes that occur of (#honest holders, #honest samples), the first one."""
    kept = [pairs[k][1] for k in honest(malicious, len(pairs))]
    n_classes = 1 + max(int(labels.max()) for labels in kept)
    sizes = np.array([np.bincount(labels, minlength=n_classes) for labels in kept])
    holders, samples = (sizes > 0).sum(axis=0), sizes.sum(axis=0)
    found = np.lexsort((samples, np.where(holders > 0, holders, len(kept) + 1)))
    return int(found[0])
