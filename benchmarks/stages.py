"""What a site does, each stage next to its floor and to what one would take instead."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from measure import Row, Seconds, in_turns, peak
from numpy.typing import NDArray
from server import GRID, MALICIOUS, federation

import robfcp
from robfcp.grid import Grid
from robfcp.prediction import iterate_sets

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
            for _ in iterate_sets(score, p, [0.9], rng=1):
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


def against_plain_code() -> Iterator[Row]:
    """Rob-FCP at K = n = 1000 against plain loops."""
    here = federation(1000, 1000, Grid.uniform(100))
    liars = int(MALICIOUS * 1000)

    def work() -> None:
        robfcp.calibrate(here, defence=robfcp.RobFCP(liars=liars))

    (ours,) = in_turns(work)
    rows, counts = 20, here.counts.tolist()
    start = time.perf_counter()
    loops_calibrate(counts, liars, rows)
    loops = Seconds((time.perf_counter() - start) * len(counts) / rows)
    yield Row("calibrate, rob-fcp", 1000, 1000, ours, peak(work), None, loops)


# What a user would take instead: the paper's pseudo-code as loops, other libraries.


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
