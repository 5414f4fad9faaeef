"""What a site does, each stage next to its floor and to what one would take instead."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from alternatives import (
    digest_quantile,
    kll_quantile,
    loops_calibrate,
    mapie_scores,
    mapie_sets,
    optimised_contrast,
)
from measure import Row, Seconds, in_turns, peak
from numpy.typing import NDArray
from server import GRID, MALICIOUS, federation

import robfcp
from robfcp.defence.number_of_liars import contrasts
from robfcp.defence.rob_fcp import characterise
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
        instead = None
        if score.name == "aps":
            instead = in_turns(lambda: mapie_sets(p[few], 0.9), repeats=1)[0].times(10)
        yield Row(f"sets, {score.name}", 1, ROWS, ours, peak(in_sets), least, instead)


def sketching(sizes: list[int]) -> Iterator[Row]:
    """One client's scores to counts; floor: a copy; instead: a KLL sketch, a t-digest."""
    for n in sizes:
        scores = np.random.default_rng(n).beta(0.4, 2, n)

        def work(s: NDArray[np.float64] = scores) -> None:
            GRID.counts(s)

        ours, floor, kll, digest = in_turns(
            work,
            lambda s=scores: s.copy(),
            lambda s=scores: kll_quantile(s, 0.9),
            lambda s=scores: digest_quantile(s, 0.9),
            repeats=101 if n < 10_000 else 21,
        )
        yield Row("sketch, beside KLL", 1, n, ours, peak(work), floor, kll)
        yield Row("sketch, beside t-digest", 1, n, ours, peak(work), floor, digest)


def against_plain_code() -> Iterator[Row]:
    """calibrate at K = n = 1000 against plain loops; counting at K = H = 100 against optimisers."""
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
    ranked = characterise(federation(100, 500, Grid.uniform(100)), "histogram")
    sizes = (51, 75, 99)
    (ours,) = in_turns(lambda: contrasts(ranked, True))
    (three,) = in_turns(lambda: [optimised_contrast(ranked, z) for z in sizes], repeats=1)
    memory = peak(lambda: contrasts(ranked, True))
    instead = three.times(49 / len(sizes))
    yield Row("count, likelihood", 100, 500, ours, memory, None, instead)
