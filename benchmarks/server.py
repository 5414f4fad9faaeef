"""What the server does with a federation: calibrate, certify, prune by class, draw the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
from intake import CLASSES, SAMPLES, chunks, lines
from measure import Row, in_turns, peak

import robfcp
from robfcp.binning import Binning
from robfcp.defense._rob_fcp import characterization_vectors, mean_neighbor_distances
from robfcp.federation import Federation, SparseTable
from robfcp.guarantees import certify_threshold, fcp_bin_index
from robfcp.guarantees._label_shift import ClassCounts, fixed_bins, pac_threshold_after_pruning
from robfcp.page import PageInfo, page_data, safe_json

GRID, LEVEL = Binning.default(), Fraction(9, 10)
MALICIOUS = 0.3


def federation(
    n_clients: int, n_samples: int = SAMPLES, grid: Binning = GRID, share: float = MALICIOUS
) -> Federation:
    """Clients with Beta(0.4, 2) scores; a share of them reports only zeros."""
    names, *columns = zip(*chunks(n_clients, 0, share, grid, n_samples), strict=True)
    lengths, bins, values = map(np.concatenate, columns)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    counts = SparseTable.from_entries(starts, bins, values, grid.n_bins)
    ids = tuple(chain.from_iterable(names))
    return Federation(ids, counts, np.full(n_clients, n_samples), grid, robfcp.LAC())


def calibrating(sizes: list[int]) -> Iterator[Row]:
    """calibrate after intake: the default, by class, and without a defence."""
    for n_clients in sizes:
        pooled = federation(n_clients)
        classes = Federation.from_reports(lines(n_clients, CLASSES))
        ways: dict[str, Callable[[], Any]] = {
            "calibrate": lambda f=pooled: robfcp.calibrate(replace(f)),
            "calibrate by ten classes": lambda f=classes: robfcp.calibrate(replace(f), by="class"),
            "calibrate without a defence": lambda f=pooled: robfcp.calibrate(
                replace(f), defense="none"
            ),
        }
        for (stage, work), spent in zip(ways.items(), in_turns(*ways.values()), strict=True):
            yield Row(stage, n_clients, SAMPLES, spent, peak(work))


def certifying(sizes: list[int]) -> Iterator[Row]:
    """Threshold and certificate of everybody's reports; floor: one pass over the counts."""
    for n_clients in sizes:
        here = federation(n_clients)
        index, m = fcp_bin_index(here, LEVEL), int(MALICIOUS * n_clients)

        def certified(h: Federation = here, i: Any = index, m: int = m) -> None:
            fresh = replace(h)  # nothing that was found out before
            certify_threshold(fresh, i, m)

        def quantile(h: Federation = here) -> None:
            fcp_bin_index(replace(h), LEVEL)

        _, bins, values = here.table.entries()
        ours, edge, one_pass = in_turns(
            certified, quantile, lambda b=bins, v=values: (b.sum(), v.sum())
        )
        yield Row("quantile", n_clients, SAMPLES, edge, peak(quantile), one_pass)
        yield Row("certify", n_clients, SAMPLES, ours, peak(certified), one_pass)


def paging(sizes: list[int]) -> Iterator[Row]:
    """The calibration's page as JSON, of a round in which two in a hundred lie."""
    for n_clients in sizes:
        calibration = robfcp.calibrate(federation(n_clients, share=0.02))

        def work(c: robfcp.Calibration = calibration) -> None:
            safe_json(page_data(c, PageInfo()))

        (spent,) = in_turns(work, repeats=3)
        yield Row("page", n_clients, SAMPLES, spent, peak(work))


def exact_distances(sizes: list[int]) -> Iterator[Row]:
    """Rob-FCP's distances of all to all; floor: their matrix product and a partition of it."""
    for n_clients in sizes:
        vectors = characterization_vectors(
            federation(n_clients, grid=Binning.uniform(100), share=0.0), "histogram"
        )
        last = n_clients - int(MALICIOUS * n_clients) - 1

        def floor(v: Any = vectors, last: int = last) -> None:
            (v @ v.T).partition(last, axis=1)

        def work(v: Any = vectors, last: int = last) -> None:
            mean_neighbor_distances(v, "l2", 1, last)

        ours, least_possible = in_turns(work, floor, repeats=3)
        yield Row("exact distances", n_clients, SAMPLES, ours, peak(work), least_possible)


def reporting_by_class(sizes: list[int]) -> Iterator[Row]:
    """One client's report from scores and labels; floor: its pooled report."""
    for n in sizes:
        rng = np.random.default_rng(n)
        scores, labels = rng.beta(0.4, 2, n), rng.integers(0, CLASSES, n)

        def work(s: object = scores, y: object = labels) -> None:
            robfcp.Report.from_scores("a", s, GRID, labels=y, classes=CLASSES)  # type: ignore[arg-type]

        ours, pooled = in_turns(
            work, lambda s=scores: robfcp.Report.from_scores("a", s, GRID), repeats=20
        )
        yield Row("report, ten classes", 1, n, ours, peak(work), pooled)


def pruning(sizes: list[int]) -> Iterator[Row]:
    """Rule PC with a fifth of liars at the top, fifty samples and ten classes a client."""
    edges = fixed_bins(GRID.n_bins)
    for n_clients in sizes:
        rng = np.random.default_rng(n_clients)
        counts = rng.multinomial(50, rng.dirichlet(np.full(CLASSES, 0.3), n_clients))
        labels = np.repeat(np.tile(np.arange(CLASSES), n_clients), counts.ravel())
        owner = np.repeat(np.repeat(np.arange(n_clients), CLASSES), counts.ravel())
        scores = rng.beta(0.4, 2, len(labels))
        scores[owner < n_clients // 5] = 1
        place = np.searchsorted(edges, GRID.bin_indices(scores))
        tables = np.zeros((len(edges), n_clients, CLASSES), dtype=np.int64)
        np.add.at(tables, (place, owner, labels), 1)
        ids = tuple(map(str, range(n_clients)))
        names = tuple(map(str, range(CLASSES)))
        told = ClassCounts(np.cumsum(tables, axis=0), counts, edges, ids, names)

        def work(told: ClassCounts = told, m: int = n_clients // 5) -> None:
            pac_threshold_after_pruning(told, LEVEL, m, 0.05)

        (spent,) = in_turns(work, repeats=2)
        yield Row("guarantee PC by ten classes", n_clients, 50, spent, peak(work))
