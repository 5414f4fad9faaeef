"""Lies and mistakes of each client by itself: the paper's attacks, and what happens every day."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robfcp._validation import check_fraction
from robfcp.errors import RobfcpError
from robfcp.experiments.attacks.base import (
    AttackContext,
    AttackFunction,
    FloatArray,
    Pair,
    quantile,
)

_TINY = 1e-12  # below any probability a report can tell from 0


def coverage_attack(scene: AttackContext) -> list[FloatArray]:
    """All scores at the minimum: s' = low. Threshold and coverage fall."""
    return [np.full(len(own), scene.bounds[0]) for own in scene.malicious_data]


def efficiency_attack(scene: AttackContext) -> list[FloatArray]:
    """All scores at the maximum: s' = high. The sets blow up."""
    return [np.full(len(own), scene.bounds[1]) for own in scene.malicious_data]


def near_coverage(scene: AttackContext, step: float = 0.001) -> list[FloatArray]:
    """All scores a little above the minimum: s' = low + step (high - low).

    What a rule that singles out the very ends of the range does not see.
    """
    low, high = scene.bounds
    return [np.full(len(own), low + step * (high - low)) for own in scene.malicious_data]


def gaussian_attack(scene: AttackContext, deviation: float = 0.5) -> list[FloatArray]:
    """The paper's: s' = clip(s + N(0, deviation^2), low, high), in units of the score."""
    draw = scene.rng.normal
    return [
        np.clip(own + draw(0, deviation, len(own)), *scene.bounds) for own in scene.malicious_data
    ]


def gaussian_relative(scene: AttackContext, scale: float = 0.5) -> list[FloatArray]:
    """Milder where scores vary little: s' = clip(s + N(0, (scale sd(s))^2), low, high)."""
    noises = (scene.rng.normal(0, 1, len(own)) * scale * own.std() for own in scene.malicious_data)
    return [
        np.clip(own + z, *scene.bounds) for own, z in zip(scene.malicious_data, noises, strict=True)
    ]


def truncation(scene: AttackContext, level: float = 0.75) -> list[FloatArray]:
    """Scores above the honest `level` quantile t are redrawn from the client's own at or below t.

    The mass is spread as the rest is, so that no bin stands out.
    """
    limit = quantile(scene.benign_scores, level)
    return [_redrawn(own, own <= limit, limit, scene.rng) for own in scene.malicious_data]


def lower_truncation(scene: AttackContext, level: float = 0.25) -> list[FloatArray]:
    """Scores up to the honest `level` quantile t are redrawn from the client's own above t."""
    limit = quantile(scene.benign_scores, level)
    return [_redrawn(own, own > limit, limit, scene.rng) for own in scene.malicious_data]


def _redrawn(
    own: FloatArray, kept: np.ndarray, limit: float, rng: np.random.Generator
) -> FloatArray:
    """The scores with those not kept redrawn from those kept; the limit where none is."""
    if not kept.any():
        return np.full(len(own), limit)
    return np.where(kept, own, rng.choice(own[kept], len(own)))


def partial_manipulation(
    scene: AttackContext, share: float = 0.5, attack: AttackFunction = coverage_attack
) -> list[FloatArray]:
    """Only a share of each attacker's scores is forged, chosen at random; the rest is honest."""
    check_fraction("share", share, "give 0.5, say", allow_zero=True, allow_one=True)
    mixed = [own.copy() for own in scene.malicious_data]
    for own, lies in zip(mixed, attack(scene), strict=True):
        chosen = scene.rng.permutation(len(own))[: round(share * len(own))]
        own[chosen] = scene.rng.choice(lies, len(chosen))
    return mixed


def size_inflation(
    scene: AttackContext, factor: int = 20, attack: AttackFunction = coverage_attack
) -> list[FloatArray]:
    """Each attacker claims `factor` times its samples, forged by `attack`: n' = factor n."""
    return [np.tile(part, factor) for part in attack(scene)]


def label_poisoning(scene: AttackContext, share: float = 1.0) -> list[Pair]:
    """Before scoring: a share of each attacker's labels becomes another label, drawn evenly."""
    forged = []
    for probabilities, labels in scene.malicious_data:
        n_classes = probabilities.shape[1]
        shift = scene.rng.integers(1, n_classes, len(labels))
        chosen = scene.rng.random(len(labels)) < share
        forged.append((probabilities, np.where(chosen, (labels + shift) % n_classes, labels)))
    return forged


def label_swap(scene: AttackContext) -> list[Pair]:
    """Each client's two commonest classes are coded the wrong way round: y' = b where y = a, a
    where y = b."""
    forged = []
    for probabilities, labels in scene.malicious_data:
        coding = np.arange(probabilities.shape[1])
        commonest = np.argsort(-np.bincount(labels, minlength=len(coding)), kind="stable")
        coding[commonest[:2]] = commonest[1::-1]
        forged.append((probabilities, coding[labels]))
    return forged


def degraded_model(scene: AttackContext, keep: float = 0.5, noise: float = 1.0) -> list[Pair]:
    """An earlier, worse model, emulated: p' = softmax(keep log p + noise z), z ~ N(0, 1).

    keep below 1 takes back what was learnt since; the noise is the errors made then.
    """
    draw = scene.rng.standard_normal
    return [(_softmax(keep * _logs(p) + noise * draw(p.shape)), y) for p, y in scene.malicious_data]


def class_permutation(scene: AttackContext) -> list[Pair]:
    """Columns in another order: p'_c = p_pi(c), pi one cycle through all classes, drawn for each
    client, so that no column is where it belongs."""
    forged = []
    for p, y in scene.malicious_data:
        cycle = scene.rng.permutation(p.shape[1])
        order = np.empty_like(cycle)
        order[cycle] = np.roll(cycle, -1)
        forged.append((p[:, order], y))
    return forged


def temperature_scaling(scene: AttackContext, t: float = 0.5) -> list[Pair]:
    """Probabilities at another temperature t: p'_c ~ p_c^(1/t); below 1 sharper, above flatter."""
    return [(_softmax(_logs(p) / t), y) for p, y in scene.malicious_data]


def _logs(probabilities: NDArray[Any]) -> FloatArray:
    return np.log(np.maximum(np.asarray(probabilities, np.float64), _TINY))


def _softmax(logits: FloatArray) -> FloatArray:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    softmax: FloatArray = weights / weights.sum(axis=1, keepdims=True)
    return softmax


def wrong_file(scene: AttackContext, share: float = 1.0) -> list[Pair]:
    """The wrong file is sent: that of another site, drawn among the honest ones for each client,
    whole, or as an old split of it that holds only a `share`."""
    forged = []
    for source in scene.rng.choice(scene.benign_indices, len(scene.malicious)):
        p, y = scene.all_data[source]
        forged.append(_first(p, y, scene.rng.permutation(len(y)), share))
    return forged


def selection_bias(
    scene: AttackContext, share: float = 0.5, which: Literal["easy", "any"] = "easy"
) -> list[Pair]:
    """Only a share of the samples is sent: the easy ones (greatest p of the label), or any."""
    if which not in ("easy", "any"):
        raise RobfcpError(f"which: {which!r} is neither 'easy' nor 'any'")
    forged = []
    for p, y in scene.malicious_data:
        order = scene.rng.permutation(len(y))
        if which == "easy":
            order = np.argsort(-p[np.arange(len(y)), y], kind="stable")
        forged.append(_first(p, y, order, share))
    return forged


def _first(p: NDArray[Any], y: NDArray[np.intp], order: NDArray[np.intp], part: float) -> Pair:
    """The first share of the samples in some order, one at least, as they stood."""
    check_fraction("share", part, "give 0.5, say", allow_one=True)
    kept = np.sort(order[: max(1, round(part * len(y)))])
    return p[kept], y[kept]
