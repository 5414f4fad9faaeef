"""What a client does, each stage next to its lower bound and to what one would take instead."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from measure import Row, in_turns, peak
from numpy.typing import NDArray
from server import BINNING

import robfcp

ROWS = 20_000
CLASSES = 1000
MAPIE_FRACTION = 10  # MAPIE is measured on a tenth of the rows and scaled up
FEW_SAMPLES = 10_000  # with fewer, sketches are timed more often


def probabilities(n: int, n_classes: int) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Return softmax outputs of a fairly accurate model as float32, with labels."""
    rng = np.random.default_rng(n_classes)
    logits = 3 * rng.standard_normal((n, n_classes), dtype=np.float32)
    labels = rng.integers(0, n_classes, n)
    logits[np.arange(n), labels] += 12
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True), labels


def client_side() -> Iterator[Row]:
    """Yield scores with their checks, and sets, of 20,000 x 1000 outputs; lower bound: one copy."""
    outputs, labels = probabilities(ROWS, CLASSES)
    target = np.empty_like(outputs)
    np.copyto(target, outputs)
    copy_outputs = partial(np.copyto, target, outputs)
    mapie_rows = slice(0, ROWS // MAPIE_FRACTION)

    for score in (robfcp.LAC(), robfcp.APS(), robfcp.RAPS()):
        make_scores = partial(score, outputs, labels, rng=1)
        seconds, lower_bound = in_turns(make_scores, copy_outputs)
        make_mapie_scores = partial(
            mapie_scores, score.name, outputs[mapie_rows], labels[mapie_rows]
        )
        (mapie,) = in_turns(make_mapie_scores, repeats=3)
        stage = f"scores, {score.name}"
        yield Row(
            stage, 1, ROWS, seconds, peak(make_scores), lower_bound, mapie.times(MAPIE_FRACTION)
        )
    for score in (robfcp.LAC(), robfcp.APS(), robfcp.RAPS(), robfcp.SAPS()):
        make_sets = partial(make_all_sets, score, outputs)
        seconds, lower_bound = in_turns(make_sets, copy_outputs)
        yield Row(f"sets, {score.name}", 1, ROWS, seconds, peak(make_sets), lower_bound)


def make_all_sets(score: Any, outputs: NDArray[np.float32]) -> None:
    """Make the sets of all outputs, block by block."""
    for _ in score.iter_prediction_sets(outputs, [0.9], rng=1):
        pass


def sketching(sizes: list[int]) -> Iterator[Row]:
    """Yield one client's scores to counts; lower bound: a copy; alternative: a KLL sketch."""
    for n in sizes:
        scores = np.random.default_rng(n).beta(0.4, 2, n)
        count = partial(BINNING.counts, scores)
        repeats = 101 if n < FEW_SAMPLES else 21
        seconds, lower_bound, kll = in_turns(
            count, scores.copy, partial(kll_quantile, scores, 0.9), repeats=repeats
        )
        yield Row("sketch", 1, n, seconds, peak(count), lower_bound, kll)


# What a user would take instead: other libraries.


def kll_quantile(scores: NDArray[np.float64], level: float) -> float:
    """Return the quantile from a KLL sketch."""
    from datasketches import kll_doubles_sketch

    sketch = kll_doubles_sketch(200)
    sketch.update(scores)
    return float(sketch.get_quantile(level))


def mapie_scores(kind: str, outputs: NDArray[Any], labels: NDArray[np.intp]) -> NDArray[Any]:
    """Return MAPIE's conformity scores (APS and RAPS share them)."""
    from mapie.conformity_scores import APSConformityScore, LACConformityScore

    score = LACConformityScore() if kind == "lac" else APSConformityScore()
    score.set_external_attributes(classes=np.arange(outputs.shape[1]), random_state=0)
    return np.asarray(score.get_conformity_scores(labels, outputs, y_enc=labels))
