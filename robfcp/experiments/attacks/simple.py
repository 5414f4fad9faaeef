"""Attacks of each malicious client by itself, and data errors of benign clients.

Formulas call a client's scores s, the forged ones s', the ends of their range low and high, its
probabilities p and its labels y. "The paper" is Kang, Lin, Sun, Xiao and Li (2024), "Certifiably
Byzantine-Robust Federated Conformal Prediction", ICML.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import BoolArray, FloatArray, IndexArray
from robfcp._validation import check_fraction
from robfcp.errors import RobfcpError
from robfcp.experiments.attacks.base import AttackContext, AttackFunction, Pair, quantile
from robfcp.experiments.attacks.paper_attacks import coverage_attack

MIN_PROBABILITY = 1e-12  # keeps logarithms finite; below what a report can tell from 0


def near_coverage(context: AttackContext, step: float = 0.001) -> list[FloatArray]:
    """Return scores a little above the minimum: s' = low + step (high - low).

    A defense that looks for the very ends of the range does not see them.
    """
    low, high = context.bounds
    score = low + step * (high - low)
    return [np.full(len(scores), score) for scores in context.malicious_data]


def gaussian_relative(context: AttackContext, scale: float = 0.5) -> list[FloatArray]:
    """Return scores with noise in units of their own spread.

    s' = clip(s + N(0, (scale sd(s))^2), low, high): milder where scores vary little.
    """
    low, high = context.bounds
    forged = []
    for scores in context.malicious_data:
        noise = context.rng.normal(0, 1, len(scores)) * scale * scores.std()
        forged.append(np.clip(scores + noise, low, high))
    return forged


def truncation(context: AttackContext, level: float = 0.75) -> list[FloatArray]:
    """Return scores without those above t, the benign `level` quantile.

    They are redrawn from the client's own scores at or below t, so that no bin stands out.
    """
    cutoff = quantile(context.benign_scores, level)
    return [
        _redraw(scores, scores <= cutoff, cutoff, context.rng) for scores in context.malicious_data
    ]


def lower_truncation(context: AttackContext, level: float = 0.25) -> list[FloatArray]:
    """Return scores without those up to t, the benign `level` quantile.

    They are redrawn from the client's own scores above t.
    """
    cutoff = quantile(context.benign_scores, level)
    return [
        _redraw(scores, scores > cutoff, cutoff, context.rng) for scores in context.malicious_data
    ]


def _redraw(
    scores: FloatArray, is_kept: BoolArray, cutoff: float, rng: np.random.Generator
) -> FloatArray:
    """Return the scores, all others redrawn from those kept; the cutoff where none is kept."""
    if not is_kept.any():
        return np.full(len(scores), cutoff)
    return np.where(is_kept, scores, rng.choice(scores[is_kept], len(scores)))


def partial_manipulation(
    context: AttackContext, fraction: float = 0.5, attack: AttackFunction = coverage_attack
) -> list[FloatArray]:
    """Return scores of which only a fraction, chosen at random, is forged.

    The paper names partial manipulation among its limitations.

    Parameters
    ----------
    context : AttackContext
        What the malicious clients know.
    fraction : float
        The fraction of each client's scores that is replaced.
    attack : callable
        Makes the scores that replace them.
    """
    check_fraction("fraction", fraction, "give 0.5, say", allow_zero=True, allow_one=True)
    mixed = [scores.copy() for scores in context.malicious_data]
    for scores, forged_scores in zip(mixed, attack(context), strict=True):
        replaced = context.rng.permutation(len(scores))[: round(fraction * len(scores))]
        scores[replaced] = context.rng.choice(forged_scores, len(replaced))
    return mixed


def size_inflation(
    context: AttackContext, factor: int = 20, attack: AttackFunction = coverage_attack
) -> list[FloatArray]:
    """Return forged scores in `factor` times the number of samples there are: n' = factor n."""
    return [np.tile(scores, factor) for scores in attack(context)]


def label_poisoning(context: AttackContext, fraction: float = 1.0) -> list[Pair]:
    """Return samples of which a fraction has another label, drawn evenly from the others."""
    forged = []
    for probabilities, labels in context.malicious_data:
        n_classes = probabilities.shape[1]
        shift = context.rng.integers(1, n_classes, len(labels))
        is_poisoned = context.rng.random(len(labels)) < fraction
        forged_labels = np.where(is_poisoned, (labels + shift) % n_classes, labels)
        forged.append((probabilities, forged_labels))
    return forged


def label_swap(context: AttackContext) -> list[Pair]:
    """Return samples whose two commonest classes a and b are confused: y' = b for a, a for b."""
    forged = []
    for probabilities, labels in context.malicious_data:
        coding = np.arange(probabilities.shape[1])
        class_counts = np.bincount(labels, minlength=len(coding))
        commonest = np.argsort(-class_counts, kind="stable")[:2]
        coding[commonest] = commonest[::-1]
        forged.append((probabilities, coding[labels]))
    return forged


def degraded_model(context: AttackContext, keep: float = 0.5, noise: float = 1.0) -> list[Pair]:
    """Return the outputs of an earlier, worse model, emulated.

    p' = softmax(keep log p + noise z), z ~ N(0, 1): `keep` below 1 takes back what was learnt
    since, the noise is the errors of that time.
    """
    forged = []
    for probabilities, labels in context.malicious_data:
        errors = context.rng.standard_normal(probabilities.shape)
        logits = keep * _log_probabilities(probabilities) + noise * errors
        forged.append((_softmax(logits), labels))
    return forged


def class_permutation(context: AttackContext) -> list[Pair]:
    """Return samples whose columns are in another order: p'_c = p_pi(c).

    pi is one cycle through all classes, drawn for each client, so that every column moves.
    """
    forged = []
    for probabilities, labels in context.malicious_data:
        cycle = context.rng.permutation(probabilities.shape[1])
        order = np.empty_like(cycle)
        order[cycle] = np.roll(cycle, -1)
        forged.append((probabilities[:, order], labels))
    return forged


def temperature_scaling(context: AttackContext, t: float = 0.5) -> list[Pair]:
    """Return probabilities at another temperature t: p'_c ~ p_c^(1/t).

    They are sharper for t below 1, flatter above.
    """
    return [
        (_softmax(_log_probabilities(probabilities) / t), labels)
        for probabilities, labels in context.malicious_data
    ]


def _log_probabilities(probabilities: NDArray[Any]) -> FloatArray:
    """Return finite logarithms of probabilities."""
    return np.log(np.maximum(np.asarray(probabilities, np.float64), MIN_PROBABILITY))


def _softmax(logits: FloatArray) -> FloatArray:
    """Return (n, C) probabilities proportional to exp(logits)."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    softmax: FloatArray = weights / weights.sum(axis=1, keepdims=True)
    return softmax


def wrong_file(context: AttackContext, fraction: float = 1.0) -> list[Pair]:
    """Return the samples of a benign client, drawn for each malicious one.

    Only a random `fraction` of them is returned, as of an old split of that file.
    """
    forged = []
    for source in context.rng.choice(context.benign_indices, len(context.malicious)):
        probabilities, labels = context.all_data[source]
        order = context.rng.permutation(len(labels))
        forged.append(_select_first(probabilities, labels, order, fraction))
    return forged


def selection_bias(
    context: AttackContext, fraction: float = 0.5, kept_scores: Literal["easy", "any"] = "easy"
) -> list[Pair]:
    """Return only a fraction of the samples: those with the greatest p of their label, or any."""
    if kept_scores not in ("easy", "any"):
        raise RobfcpError(f"kept_scores: {kept_scores!r} is neither 'easy' nor 'any'")
    forged = []
    for probabilities, labels in context.malicious_data:
        order = context.rng.permutation(len(labels))
        if kept_scores == "easy":
            label_probabilities = probabilities[np.arange(len(labels)), labels]
            order = np.argsort(-label_probabilities, kind="stable")
        forged.append(_select_first(probabilities, labels, order, fraction))
    return forged


def _select_first(
    probabilities: NDArray[Any], labels: IndexArray, order: IndexArray, fraction: float
) -> Pair:
    """Return the first fraction of the samples in some order, one at least, in their old order."""
    check_fraction("fraction", fraction, "give 0.5, say", allow_one=True)
    n_selected = max(1, round(fraction * len(labels)))
    selected = np.sort(order[:n_selected])
    return probabilities[selected], labels[selected]
