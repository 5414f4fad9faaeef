"""The attacks of the paper: coverage, efficiency, Gaussian and mimic attack.

Formulas call a client's scores s, the forged ones s', the vector that is sent v, and the ends of
the range of scores low and high. "The paper" is Kang, Lin, Sun, Xiao and Li (2024), "Certifiably
Byzantine-Robust Federated Conformal Prediction", ICML.
"""

from __future__ import annotations

import numpy as np

from robfcp._typing import FloatArray
from robfcp.experiments.attacks.base import AttackContext


def coverage_attack(context: AttackContext) -> list[FloatArray]:
    """Return the minimum for every score: s' = low, so that threshold and coverage fall.

    The paper's coverage attack (CovAttack).
    """
    low, _ = context.bounds
    return [np.full(len(scores), low) for scores in context.malicious_data]


def efficiency_attack(context: AttackContext) -> list[FloatArray]:
    """Return the maximum for every score: s' = high, so that the prediction sets grow.

    The paper's efficiency attack (EffAttack).
    """
    _, high = context.bounds
    return [np.full(len(scores), high) for scores in context.malicious_data]


def gaussian_attack(context: AttackContext, deviation: float = 0.5) -> list[FloatArray]:
    """Return noisy scores: s' = clip(s + N(0, deviation^2), low, high).

    The paper's Gaussian attack (GauAttack); the deviation is in units of the score.
    """
    low, high = context.bounds
    forged = []
    for scores in context.malicious_data:
        noise = context.rng.normal(0, deviation, len(scores))
        forged.append(np.clip(scores + noise, low, high))
    return forged
