"""Lies and mistakes of each client by itself: the paper's attacks, and what happens every day."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import share
from robfcp.errors import RobfcpError
from robfcp.lab.attacks.base import Array, Pair, SampleAttack, Scene, ScoreAttack, quantile

_TINY = 1e-12  # below any probability a report can tell from 0


@dataclass(frozen=True)
class Coverage(ScoreAttack):
    """All scores at the minimum: s' = low. Threshold and coverage fall."""

    name = "coverage"

    def lie(self, own: Array, scene: Scene) -> Array:
        return np.full(len(own), scene.bounds[0])


@dataclass(frozen=True)
class Efficiency(ScoreAttack):
    """All scores at the maximum: s' = high. The sets blow up."""

    name = "efficiency"

    def lie(self, own: Array, scene: Scene) -> Array:
        return np.full(len(own), scene.bounds[1])


@dataclass(frozen=True)
class NearCoverage(ScoreAttack):
    """All scores a little above the minimum: s' = low + step (high - low).

    What a rule that singles out the very ends of the range does not see.
    """

    step: float = 0.001
    name = "near-coverage"

    def lie(self, own: Array, scene: Scene) -> Array:
        low, high = scene.bounds
        return np.full(len(own), low + self.step * (high - low))


@dataclass(frozen=True)
class Gaussian(ScoreAttack):
    """The paper's: s' = clip(s + N(0, deviation^2), low, high), in units of the score."""

    deviation: float = 0.5
    name = "gaussian"

    def lie(self, own: Array, scene: Scene) -> Array:
        return np.clip(own + scene.rng.normal(0, self.deviation, len(own)), *scene.bounds)


@dataclass(frozen=True)
class GaussianRelative(ScoreAttack):
    """Milder where scores vary little: s' = clip(s + N(0, (scale sd(s))^2), low, high)."""

    scale: float = 0.5
    name = "gaussian-relative"

    def lie(self, own: Array, scene: Scene) -> Array:
        noise = scene.rng.normal(0, 1, len(own)) * self.scale * own.std()
        return np.clip(own + noise, *scene.bounds)


@dataclass(frozen=True)
class Truncation(ScoreAttack):
    """Scores above the honest `level` quantile t are redrawn from the client's own at or below t.

    The mass is spread as the rest is, so that no bin stands out.
    """

    level: float = 0.75
    name = "truncation"

    def forge(self, scene: Scene) -> list[Array]:
        limit = quantile(scene.pool, self.level)
        return [_redrawn(own, own <= limit, limit, scene.rng) for own in scene.own]


@dataclass(frozen=True)
class Lift(ScoreAttack):
    """Scores up to the honest `level` quantile t are redrawn from the client's own above t."""

    level: float = 0.25
    name = "lift"

    def forge(self, scene: Scene) -> list[Array]:
        limit = quantile(scene.pool, self.level)
        return [_redrawn(own, own > limit, limit, scene.rng) for own in scene.own]


def _redrawn(own: Array, kept: np.ndarray, limit: float, rng: np.random.Generator) -> Array:
    """The scores with those not kept redrawn from those kept; the limit where none is."""
    if not kept.any():
        return np.full(len(own), limit)
    return np.where(kept, own, rng.choice(own[kept], len(own)))


@dataclass(frozen=True)
class Partial(ScoreAttack):
    """Only a share of each attacker's scores is forged, chosen at random; the rest is honest."""

    share: float = 0.5
    attack: ScoreAttack = field(default_factory=Coverage)
    name = "partial"

    def __post_init__(self) -> None:
        share("share", self.share, "give 0.5, say", zero=True, one=True)

    def forge(self, scene: Scene) -> list[Array]:
        mixed = [own.copy() for own in scene.own]
        for own, lies in zip(mixed, self.attack.forge(scene), strict=True):
            chosen = scene.rng.permutation(len(own))[: round(self.share * len(own))]
            own[chosen] = scene.rng.choice(lies, len(chosen))
        return mixed


@dataclass(frozen=True)
class SizeInflation(ScoreAttack):
    """Each attacker claims `factor` times its samples, forged by `attack`: n' = factor n."""

    factor: int = 20
    attack: ScoreAttack = field(default_factory=Coverage)
    name = "size-inflation"

    def forge(self, scene: Scene) -> list[Array]:
        return [np.tile(part, self.factor) for part in self.attack.forge(scene)]


@dataclass(frozen=True)
class LabelPoisoning(SampleAttack):
    """Before scoring: a share of each attacker's labels becomes another label, drawn evenly."""

    share: float = 1.0
    name = "label-poisoning"

    def lie(self, own: Pair, scene: Scene) -> Pair:
        (probabilities, labels), n_classes = own, own[0].shape[1]
        shift = scene.rng.integers(1, n_classes, len(labels))
        chosen = scene.rng.random(len(labels)) < self.share
        return probabilities, np.where(chosen, (labels + shift) % n_classes, labels)


@dataclass(frozen=True)
class SwappedLabels(SampleAttack):
    """Each client's two commonest classes are coded the wrong way round: y' = b where y = a, a
    where y = b."""

    name = "swapped-labels"

    def lie(self, own: Pair, scene: Scene) -> Pair:
        (probabilities, labels), coding = own, np.arange(own[0].shape[1])
        commonest = np.argsort(-np.bincount(labels, minlength=len(coding)), kind="stable")
        coding[commonest[:2]] = commonest[1::-1]
        return probabilities, coding[labels]


@dataclass(frozen=True)
class OldModel(SampleAttack):
    """An earlier, worse model, emulated: p' = softmax(keep log p + noise z), z ~ N(0, 1).

    keep below 1 takes back what was learnt since; the noise is the errors made then.
    """

    keep: float = 0.5
    noise: float = 1.0
    name = "old-model"

    def lie(self, own: Pair, scene: Scene) -> Pair:
        noise = self.noise * scene.rng.standard_normal(own[0].shape)
        return _softmax(self.keep * _logs(own[0]) + noise), own[1]


@dataclass(frozen=True)
class OtherClassOrder(SampleAttack):
    """Columns in another order: p'_c = p_pi(c), pi one cycle through all classes, drawn for each
    client, so that no column is where it belongs."""

    name = "other-class-order"

    def lie(self, own: Pair, scene: Scene) -> Pair:
        cycle = scene.rng.permutation(own[0].shape[1])
        order = np.empty_like(cycle)
        order[cycle] = np.roll(cycle, -1)
        return own[0][:, order], own[1]


@dataclass(frozen=True)
class Temperature(SampleAttack):
    """Probabilities at another temperature t: p'_c ~ p_c^(1/t); below 1 sharper, above flatter."""

    temperature: float = 0.5
    name = "temperature"

    def lie(self, own: Pair, scene: Scene) -> Pair:
        return _softmax(_logs(own[0]) / self.temperature), own[1]


def _logs(probabilities: NDArray[Any]) -> Array:
    return np.log(np.maximum(np.asarray(probabilities, np.float64), _TINY))


def _softmax(logits: Array) -> Array:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    softmax: Array = weights / weights.sum(axis=1, keepdims=True)
    return softmax


@dataclass(frozen=True)
class StaleFile(SampleAttack):
    """The wrong file is sent: that of another site, drawn among the honest ones for each client,
    whole, or as an old split of it that holds only a `share`."""

    share: float = 1.0
    name = "stale-file"

    def __post_init__(self) -> None:
        share("share", self.share, "give 0.5, say", one=True)

    def forge(self, scene: Scene) -> list[Pair]:
        forged = []
        for source in scene.rng.choice(scene.honest, len(scene.malicious)):
            p, y = scene.everybody[source]
            forged.append(_first(p, y, scene.rng.permutation(len(y)), self.share))
        return forged


@dataclass(frozen=True)
class Subset(SampleAttack):
    """Only a share of the samples is sent: the easy ones (greatest p of the label), or any."""

    share: float = 0.5
    which: Literal["easy", "any"] = "easy"
    name = "subset"

    def __post_init__(self) -> None:
        share("share", self.share, "give 0.5, say", one=True)
        if self.which not in ("easy", "any"):
            raise RobfcpError(f"which: {self.which!r} is neither 'easy' nor 'any'")

    def lie(self, own: Pair, scene: Scene) -> Pair:
        (p, y), order = own, scene.rng.permutation(len(own[1]))
        if self.which == "easy":
            order = np.argsort(-p[np.arange(len(y)), y], kind="stable")
        return _first(p, y, order, self.share)


def _first(p: NDArray[Any], y: NDArray[np.intp], order: NDArray[np.intp], part: float) -> Pair:
    """The first share of the samples in some order, one at least, as they stood."""
    kept = np.sort(order[: max(1, round(part * len(y)))])
    return p[kept], y[kept]
