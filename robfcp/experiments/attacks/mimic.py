"""Mimic attacks: malicious clients send copies of a benign client's data.

Formulas call a client's scores s, what it sends v, and its labels y. The paper is Kang, Lin, Sun,
Xiao and Li (2024), "Certifiably Byzantine-Robust Federated Conformal Prediction", ICML.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from robfcp._typing import FloatArray, IndexArray
from robfcp.errors import RobfcpError
from robfcp.experiments.attacks.base import AttackContext, Pair

Copy = Literal["exact", "resampled", "jittered"]
LEVEL = 0.9  # of the quantile by which clients are compared: the usual coverage
JITTER = 0.1  # fraction of the scores that a jittered copy redraws


def mimic_attack(context: AttackContext, copy: Copy = "exact") -> list[FloatArray]:
    """Return copies of one benign client b, chosen at random: v_k = v_b.

    The paper's mimic attack.
    """
    source = int(context.rng.choice(context.benign_indices))
    return copies_of(context, context.all_data[source], copy)


def mimic_low(
    context: AttackContext, copy: Copy = "resampled", level: float = LEVEL
) -> list[FloatArray]:
    """Return copies of the benign client with the lowest quantile: b = argmin_b q_level(s_b)."""
    source = context.benign_by_quantile(level)[0]
    return copies_of(context, context.all_data[source], copy)


def mimic_high(
    context: AttackContext, copy: Copy = "resampled", level: float = LEVEL
) -> list[FloatArray]:
    """Return copies of the benign client with the highest quantile: b = argmax_b q_level(s_b)."""
    source = context.benign_by_quantile(level)[-1]
    return copies_of(context, context.all_data[source], copy)


def pair_mimic(context: AttackContext, level: float = LEVEL) -> list[Pair]:
    """Return (score, label) pairs drawn from the benign client with the lowest quantile.

    (s', y') ~ b with replacement: all scores are true, only the label distribution is moved.
    """
    scores, labels = context.all_data[context.benign_by_quantile(level)[0]]
    forged = []
    for old_scores, _ in context.malicious_data:
        drawn_rows = context.rng.integers(0, len(scores), len(old_scores))
        forged.append((scores[drawn_rows], labels[drawn_rows]))
    return forged


def copies_of(context: AttackContext, source: FloatArray, copy: Copy) -> list[FloatArray]:
    """Return scores after a source: its own, drawn from it, or its own with a tenth redrawn.

    An exact copy of another size takes evenly spaced order statistics.
    """
    if copy not in ("exact", "resampled", "jittered"):
        raise RobfcpError(f"copy: {copy!r} is none of 'exact', 'resampled', 'jittered'")
    forged = []
    for client_data in context.malicious_data:
        size = len(client_data)
        if copy == "resampled":
            forged.append(context.rng.choice(source, size))
            continue
        scores = np.sort(source)[evenly_spaced(len(source), size)]
        if copy == "jittered":
            redrawn = context.rng.permutation(size)[: max(1, round(JITTER * size))]
            scores[redrawn] = context.rng.choice(source, len(redrawn))
        forged.append(scores)
    return forged


def evenly_spaced(n: int, size: int) -> IndexArray:
    """Return `size` evenly spaced positions among n."""
    return ((np.arange(size) + 0.5) * n / size).astype(np.intp)
