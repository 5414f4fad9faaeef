"""Private reports that copy one another: closer than their noises can be by chance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.copies.links import Copies, components
from robfcp.federation import Federation
from robfcp.privacy import Noise, pooled_mass

_BLOCK = 2**22
_TILTS = np.geomspace(1e-6, 30, 60)

Array = NDArray[np.float64]


def noisy_copies(
    federation: Federation, law: Noise, false_alarm: float, n_pairs: float
) -> list[Copies]:
    """Groups of reports that hold one law of noise.

    Pairs whose squared distance noise alone undercuts with chance <= false_alarm / pairs.
    """
    counts = federation.counts.astype(np.float64)
    tilts, log_laplace = _log_laplace(law)
    exponent = counts.shape[1] * log_laplace + np.log(n_pairs)
    farthest = float(((np.log(false_alarm) - exponent) / tilts).max())
    norms = np.einsum("kb,kb->k", counts, counts)
    left, right, squares = [], [], []
    step = max(1, _BLOCK // len(counts))
    for start in range(0, len(counts), step):
        rows = slice(start, min(start + step, len(counts)))
        squared = norms[rows, None] + norms - 2 * counts[rows] @ counts.T
        first, second = np.nonzero(squared <= farthest)
        later = second > first + start
        left.append(first[later] + start)
        right.append(second[later])
        squares.append(np.maximum(squared[first[later], second[later]], 0))
    pairs = np.concatenate(left), np.concatenate(right)
    p_value = np.exp((np.outer(np.concatenate(squares), tilts) + exponent).min(axis=1))
    groups = components(np.arange(len(counts)), *pairs)
    return [
        Copies(
            tuple(federation.ids[k] for k in group),
            bool((federation.counts[group] == federation.counts[group[0]]).all()),
            float(p_value[np.isin(pairs[0], group)].max()),
        )
        for group in groups
    ]


def _log_laplace(law: Noise) -> tuple[Array, Array]:
    """Tilts t and log E exp(-t N^2), N the difference of two noises.

    The counts differ by N and by whatever the samples differ by; the latter only lengthens the
    distance, so exp(t x) (E exp(-t N^2))^H bounds the chance of a squared distance of at most x.
    """
    mass = pooled_mass(((law, 2),))
    squares = np.arange(-(len(mass) // 2), len(mass) // 2 + 1) ** 2.0
    tilts = _TILTS / max(1.0, 2 * law.variance)
    logs = np.array([np.log(mass @ np.exp(-tilt * squares)) for tilt in tilts])
    return tilts, logs
