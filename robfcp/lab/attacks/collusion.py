"""Attacks on how clients are counted and weighed, and on the reports' format."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from robfcp.arguments import Rng
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.lab.attacks.base import (
    Array,
    Bounds,
    Indices,
    Pair,
    SampleAttack,
    ScoreAttack,
    Stage,
    attackers,
)
from robfcp.lab.attacks.simple import Coverage


@dataclass(frozen=True)
class Decoy(ScoreAttack):
    """The first attacker sends only maximal scores to draw attention; the others do `attack`."""

    attack: ScoreAttack = field(default_factory=Coverage)
    name: ClassVar[str] = "decoy"

    def forge(
        self, scores: list[Array], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Array]:
        """One far client, and the attack it hides."""
        forged = self.attack.forge(scores, malicious, bounds, rng)
        return [np.full(len(scores[malicious[0]]), bounds[1]), *forged[1:]]


@dataclass(frozen=True)
class SizeInflation(ScoreAttack):
    """Each attacker claims `factor` times its samples, forged by `attack`: n' = factor n."""

    factor: int = 20
    attack: ScoreAttack = field(default_factory=Coverage)
    name: ClassVar[str] = "size-inflation"

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise RobfcpError(f"factor: {self.factor} is below 1; give 20, say")

    def forge(
        self, scores: list[Array], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Array]:
        """The forged scores, repeated."""
        forged = self.attack.forge(scores, malicious, bounds, rng)
        return [np.tile(part, self.factor) for part in forged]


@dataclass(frozen=True)
class LabelPoisoning(SampleAttack):
    """Before scoring: a share of each attacker's labels becomes another label, drawn evenly."""

    share: float = 1.0
    name: ClassVar[str] = "label-poisoning"

    def forge(
        self, samples: list[Pair], malicious: Indices, rng: np.random.Generator
    ) -> list[Pair]:
        """The client's samples with labels poisoned."""
        forged = []
        for k in malicious:
            probabilities, labels = samples[k]
            n_classes = probabilities.shape[1]
            shift = rng.integers(1, n_classes, len(labels))
            chosen = rng.random(len(labels)) < self.share
            forged.append((probabilities, np.where(chosen, (labels + shift) % n_classes, labels)))
        return forged


@dataclass(frozen=True)
class Malformed:
    """Reports that break the format, a different fault for each attacker.

    Works on a federation and gives the raw reports the server would receive.
    """

    name: ClassVar[str] = "malformed"
    on: ClassVar[Stage] = "reports"

    def __call__(self, data: Federation, malicious: ArrayLike, rng: Rng = None) -> list[bytes]:
        """JSON reports, those of malicious clients broken."""
        generator = np.random.default_rng(rng)
        raw = [report.to_json() for report in data]
        bad = attackers(malicious, data.n_clients)
        faults = generator.permuted(np.arange(len(bad)) % len(_FAULTS))
        for k, fault in zip(bad, faults, strict=True):
            raw[k] = _FAULTS[fault](raw[k])
        return raw


def _edited(**changes: Any) -> Callable[[bytes], bytes]:
    def edit(raw: bytes) -> bytes:
        return json.dumps({**json.loads(raw), **changes}).encode()

    return edit


_FAULTS: tuple[Callable[[bytes], bytes], ...] = (
    lambda raw: raw[: len(raw) // 2],
    lambda raw: b"\xff\xfe" + raw,
    lambda raw: b"[]",
    _edited(client="", n_samples=1),
    _edited(n_samples=10**9),
    _edited(n_samples=-5),
    _edited(counts=[-1, 1e308, "x"]),
    _edited(grid={"name": "uniform", "parameters": {"bins": 10**12}}),
    _edited(strata={"by": "class", "names": 10**6, "steps": [0], "counts": [1]}),
)
