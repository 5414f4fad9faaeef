"""What a user would take instead: the paper's pseudo-code as loops, scipy, other libraries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def loops_calibrate(counts: list[list[int]], n_malicious: int, rows: int) -> float:
    """Rob-FCP as the paper writes it, maliciousness of the first `rows` clients only."""
    vectors = [[count / sum(row) for count in row] for row in counts]
    n_benign = len(vectors) - n_malicious
    numbers = []
    for own in vectors[:rows]:
        distances = sorted(
            math.sqrt(sum((a - b) ** 2 for a, b in zip(own, other, strict=True)))
            for other in vectors
        )
        numbers.append(sum(distances[1:n_benign]) / (n_benign - 1))
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    pooled = [sum(counts[k][h] for k in order[:n_benign]) for h in range(len(counts[0]))]
    total, rank = 0, math.ceil(0.9 * (sum(pooled) + n_benign))
    for edge, count in enumerate(pooled):
        total += count
        if total >= rank:
            return (edge + 1) / len(pooled)
    return math.inf


def cdist_means(vectors: Array, last: int) -> Array:
    """The nearest-neighbour means from scipy's full distance matrix, sorted."""
    from scipy.spatial.distance import cdist

    distances = np.sort(cdist(vectors, vectors), axis=1)
    return np.asarray(distances[:, 1 : last + 1].mean(axis=1))


def optimised_contrast(ranked: Array, z: int) -> float:
    """The likelihood contrast at one z, mean and diagonal covariance by numerical optimisation."""
    from scipy.optimize import minimize

    best = ranked[:z]
    n_bins = ranked.shape[1]

    def loss(parameters: Array) -> tuple[float, Array]:
        mean, log_variance = parameters[:n_bins], parameters[n_bins:]
        difference, scale = best - mean, np.exp(-log_variance)
        squares = (difference**2).mean(axis=0) * scale
        gradient = np.concatenate([-difference.mean(axis=0) * scale, 0.5 * (1 - squares)])
        return 0.5 * float((log_variance + squares).sum()), gradient

    start = np.concatenate([best.mean(axis=0) + 1e-3, np.full(n_bins, -5.0)])
    found = minimize(loss, start, jac=True, bounds=[(None, None)] * n_bins + [(-14, 2)] * n_bins)
    mean, variance = found.x[:n_bins], np.exp(found.x[n_bins:])
    squares = ((ranked - mean) ** 2 / variance).sum(axis=1)
    return float(0.5 * (squares[z:].mean() - squares[:z].mean()))


def digest_quantile(scores: Array, level: float) -> float:
    """The quantile from a t-digest."""
    from datasketches import tdigest_double

    digest = tdigest_double(200)
    digest.update(scores)
    return float(digest.get_quantile(level))


def kll_quantile(scores: Array, level: float) -> float:
    """The quantile from a KLL sketch."""
    from datasketches import kll_doubles_sketch

    sketch = kll_doubles_sketch(200)
    sketch.update(scores)
    return float(sketch.get_quantile(level))


def mapie_scores(kind: str, p: NDArray[Any], labels: NDArray[np.intp]) -> NDArray[Any]:
    """MAPIE's conformity scores (APS and RAPS share them)."""
    from mapie.conformity_scores import APSConformityScore, LACConformityScore

    rule = LACConformityScore() if kind == "lac" else APSConformityScore()
    rule.set_external_attributes(classes=np.arange(p.shape[1]), random_state=0)
    return np.asarray(rule.get_conformity_scores(labels, p, y_enc=labels))


def mapie_sets(p: NDArray[Any], threshold: float) -> NDArray[np.bool_]:
    """MAPIE's randomised APS sets at a threshold."""
    from mapie.conformity_scores import APSConformityScore

    rule = APSConformityScore()
    rule.set_external_attributes(classes=np.arange(p.shape[1]), random_state=0)
    rule.quantiles_ = np.array([threshold])
    return np.asarray(
        rule.get_prediction_sets(
            p[:, :, None].copy(),
            conformity_scores=np.zeros(1),
            alpha_np=np.array([0.1]),
            cv="prefit",
            include_last_label="randomized",
        )
    )
