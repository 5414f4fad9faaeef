"""What a site does, each stage next to its floor and to what one would take instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from measure import Row, in_turns, peak
from numpy.typing import NDArray
from server import GRID

import robfcp

ROWS, CLASSES = 20_000, 1000


def probabilities(n: int, n_classes: int) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Softmax outputs of a fairly accurate model as float32, with labels."""
    rng = np.random.default_rng(n_classes)
    logits = 3 * rng.standard_normal((n, n_classes), dtype=np.float32)
    labels = rng.integers(0, n_classes, n)
    logits[np.arange(n), labels] += 12
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True), labels


def client_side() -> Iterator[Row]:
    """Scores with their checks, and sets, of 20,000 x 1000 outputs; floor: one copy of them."""
    p, labels = probabilities(ROWS, CLASSES)
    copy, few = np.empty_like(p), slice(0, ROWS // 10)
    np.copyto(copy, p)

    def floor() -> None:
        np.copyto(copy, p)

    for score in (robfcp.LAC(), robfcp.APS(), robfcp.RAPS()):

        def scored(score: Any = score) -> None:
            score(p, labels, rng=1)

        ours, least = in_turns(scored, floor)
        (theirs,) = in_turns(lambda s=score: mapie_scores(s.name, p[few], labels[few]), repeats=3)
        yield Row(f"scores, {score.name}", 1, ROWS, ours, peak(scored), least, theirs.times(10))
    for score in (robfcp.LAC(), robfcp.APS(), robfcp.RAPS(), robfcp.SAPS()):

        def in_sets(score: Any = score) -> None:
            for _ in score.iterate_sets(p, [0.9], rng=1):
                pass

        ours, least = in_turns(in_sets, floor)
        yield Row(f"sets, {score.name}", 1, ROWS, ours, peak(in_sets), least)


def sketching(sizes: list[int]) -> Iterator[Row]:
    """One client's scores to counts; floor: a copy; instead: a KLL sketch."""
    for n in sizes:
        scores = np.random.default_rng(n).beta(0.4, 2, n)

        def work(s: NDArray[np.float64] = scores) -> None:
            GRID.counts(s)

        ours, floor, kll = in_turns(
            work,
            lambda s=scores: s.copy(),
            lambda s=scores: kll_quantile(s, 0.9),
            repeats=101 if n < 10_000 else 21,
        )
        yield Row("sketch", 1, n, ours, peak(work), floor, kll)


# What a user would take instead: other libraries.


def kll_quantile(scores: NDArray[np.float64], level: float) -> float:
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
