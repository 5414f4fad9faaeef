"""Stages of reports by class: sketches beside pooled ones, and rule PC over the clients."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from measure import Row, in_turns, peak

from robfcp import Grid, Report
from robfcp.guarantees.label_shift import ClassCounts, fixed_edges, pruned_pac

GRID, CLASSES = Grid.default(), 10


def reporting_by_class(sizes: list[int]) -> Iterator[Row]:
    """One client's report from scores and labels; floor: its pooled report."""
    for n in sizes:
        rng = np.random.default_rng(n)
        scores, labels = rng.beta(0.4, 2, n), rng.integers(0, CLASSES, n)

        def work(s: object = scores, y: object = labels) -> None:
            Report.from_scores("a", s, GRID, labels=y, classes=CLASSES)  # type: ignore[arg-type]

        ours, pooled = in_turns(work, lambda s=scores: Report.from_scores("a", s, GRID), repeats=20)
        yield Row("report, ten classes", 1, n, ours, peak(work), pooled)


def pruning(sizes: list[int]) -> Iterator[Row]:
    """Rule PC with a fifth of liars at the top, fifty samples and ten classes a client."""
    edges = fixed_edges(GRID.n_bins)
    for n_clients in sizes:
        rng = np.random.default_rng(n_clients)
        counts = rng.multinomial(50, rng.dirichlet(np.full(CLASSES, 0.3), n_clients))
        labels = np.repeat(np.tile(np.arange(CLASSES), n_clients), counts.ravel())
        owner = np.repeat(np.repeat(np.arange(n_clients), CLASSES), counts.ravel())
        scores = rng.beta(0.4, 2, len(labels))
        scores[owner < n_clients // 5] = 1
        place = np.searchsorted(edges, GRID.index(scores))
        tables = np.zeros((len(edges), n_clients, CLASSES), dtype=np.int64)
        np.add.at(tables, (place, owner, labels), 1)
        ids = tuple(map(str, range(n_clients)))
        names = tuple(map(str, range(CLASSES)))
        told = ClassCounts(np.cumsum(tables, axis=0), counts, edges, ids, names)

        def work(told: ClassCounts = told, m: int = n_clients // 5) -> None:
            pruned_pac(told, Fraction(9, 10), m, 0.05)

        (spent,) = in_turns(work, repeats=2)
        yield Row("guarantee PC by ten classes", n_clients, 50, spent, peak(work))
