"""Every stage over its sizes, each next to its floor and to what a user would take instead."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from alternatives import (
    cdist_means,
    digest_quantile,
    kll_quantile,
    loops_calibrate,
    mapie_scores,
    mapie_sets,
    optimised_contrast,
)
from measure import Row, least, once, peak
from numpy.typing import NDArray

import robfcp
from robfcp.defence import stand_out
from robfcp.defence.characterisations import characterise
from robfcp.defence.distances import neighbour_means
from robfcp.defence.likelihood import contrasts
from robfcp.defence.rob_fcp import nearest_means
from robfcp.federation import Federation, numbered, table
from robfcp.grid import Grid
from robfcp.guarantees import certify, fcp_index, tolerance
from robfcp.prediction import iterate_sets
from robfcp.reports import sketch

GRID, LEVEL = Grid.default(), Fraction(9, 10)
MALICIOUS = 0.3


def federation(
    n_clients: int, n_samples: int, grid: Grid = GRID, share: float = MALICIOUS
) -> Federation:
    """Clients with Beta(0.4, 2) scores; a share of them reports only zeros."""
    rng = np.random.default_rng([n_clients, n_samples])
    liars = int(share * n_clients)
    starts, bins, values = [0], [], []
    step = max(1, 500_000 // n_samples)
    for start in range(0, n_clients, step):
        size = min(step, n_clients - start)
        scores = rng.beta(0.4, 2, (size, n_samples))
        scores[: max(0, liars - start)] = 0
        cells = grid.index(scores.ravel()) + np.repeat(np.arange(size), n_samples) * grid.n_bins
        used, counts = np.unique(cells, return_counts=True)
        bins.append((used % grid.n_bins).astype(np.uint16))
        values.append(counts)
        starts += (starts[-1] + np.cumsum(np.bincount(used // grid.n_bins))).tolist()
    counts = table(np.array(starts), np.concatenate(bins), np.concatenate(values), grid.n_bins)
    ids = numbered(n_clients, len(str(n_clients)))
    return Federation(ids, counts, np.full(n_clients, n_samples), grid, robfcp.LAC())


def probabilities(n: int, n_classes: int) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
    """Softmax outputs of a fairly accurate model as float32, with labels."""
    rng = np.random.default_rng(n_classes)
    logits = 3 * rng.standard_normal((n, n_classes), dtype=np.float32)
    labels = rng.integers(0, n_classes, n)
    logits[np.arange(n), labels] += 12
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True), labels


def client_side(n_batches: int = 5) -> Iterator[Row]:
    """Scoring with checks, and sketching, in batches of 20,000 x 1000; floor: one copy."""
    p, labels = probabilities(20_000, 1000)
    copy = np.empty_like(p)
    few = slice(0, 2000)
    for score in (robfcp.LAC(), robfcp.APS(), robfcp.RAPS()):
        grid = score.default_grid()

        def work(score: Any = score, grid: Grid = grid) -> None:
            sketch(score(p, labels, rng=1), grid)

        ours, floor = least(work, lambda: np.copyto(copy, p), repeats=n_batches)
        (theirs,) = least(lambda s=score: mapie_scores(s.name, p[few], labels[few]), repeats=2)
        yield Row(
            f"score and sketch, {score.name}", 1, len(p), ours, peak(work), floor, theirs * 10
        )

    def sets(score: Any, rows: slice) -> None:
        for _ in iterate_sets(score, p[rows], [0.9], rng=1):
            pass

    more = slice(0, 4000)
    for score in (robfcp.LAC(), robfcp.APS()):
        ours, floor = least(lambda s=score: sets(s, more), lambda: np.copyto(copy[more], p[more]))
        theirs = None
        if score.name == "aps":
            theirs = least(lambda: mapie_sets(p[more], 0.9), repeats=1)[0]
        work = peak(lambda s=score: sets(s, more))
        yield Row(f"predict sets, {score.name}", 1, 4000, ours, work, floor, theirs)


def sketching(sizes: list[int]) -> Iterator[Row]:
    """One client's scores to counts; floor: a copy; instead: t-digest."""
    for n in sizes:
        scores = np.random.default_rng(n).beta(0.4, 2, n)
        ours, floor, theirs, kll = least(
            lambda s=scores: sketch(s, GRID),
            lambda s=scores: s.copy(),
            lambda s=scores: digest_quantile(s, 0.9),
            lambda s=scores: kll_quantile(s, 0.9),
            repeats=20,
        )
        memory = peak(lambda s=scores: sketch(s, GRID))
        yield Row("sketch", 1, n, ours, memory, floor, min(theirs, kll))


def intake(sizes: list[int]) -> Iterator[Row]:
    """Validation of reports from JSON; no floor but the decoding itself."""
    import msgspec

    for n_clients in sizes:
        lines = [report.to_json() for report in federation(n_clients, 50)]
        ours, floor = least(
            lambda lines=lines: Federation.from_reports(iter(lines)),
            lambda lines=lines: [msgspec.json.decode(line) for line in lines],
        )
        memory = peak(lambda lines=lines: Federation.from_reports(iter(lines)))
        yield Row("validate", n_clients, 50, ours, memory, floor)


def exact_distances(sizes: list[int]) -> Iterator[Row]:
    """Rob-FCP's maliciousness by all distances; floor: GEMM and partition; instead: cdist, sort."""
    for n_clients in sizes:
        vectors = characterise(federation(n_clients, 50, Grid.uniform(100), 0.0), "histogram")
        last = n_clients - int(MALICIOUS * n_clients) - 1

        def floor(v: NDArray[np.float64] = vectors, last: int = last) -> None:
            (v @ v.T).partition(last, axis=1)

        def work(v: NDArray[np.float64] = vectors, last: int = last) -> None:
            neighbour_means(v, "l2", 1, last)

        if n_clients > 20_000:  # the floor's matrix would not fit into memory
            yield Row("exact distances", n_clients, 50, *once(work))
            continue
        ours, least_possible = least(work, floor, repeats=3)
        theirs = None
        if n_clients <= 3000:
            (theirs,) = least(lambda v=vectors, last=last: cdist_means(v, last), repeats=2)
        yield Row("exact distances", n_clients, 50, ours, peak(work), least_possible, theirs)


def server_side(sizes: list[int]) -> Iterator[Row]:
    """What the server does with a federation, stage by stage."""
    for n_clients in sizes:
        here = federation(n_clients, 50)
        liars = int(MALICIOUS * n_clients)
        index = fcp_index(here, LEVEL)
        assert index is not None

        stages: dict[str, tuple[Callable[[], Any], Callable[[], Any] | None]] = {
            "characterise": (lambda h=here: characterise(h, "histogram"), None),
            "rob-fcp's maliciousness": (
                lambda h=here, m=liars: nearest_means(
                    characterise(h, "histogram"), h.n_clients - m, "l2", seed=0
                ),
                None,
            ),
            "band: who stands out": (lambda h=here: stand_out(h, seed=0), None),
            "quantile": (
                lambda h=here: fcp_index(h, LEVEL),
                lambda h=here: [column.sum() for column in h.entries()[1:]],
            ),
            "certify": (
                lambda h=here, i=index, m=liars: (certify(h, i, m), tolerance(h, i, LEVEL)),
                lambda h=here: [column.sum() for column in h.entries()[1:]],
            ),
        }
        for stage, (work, floor) in stages.items():
            least_possible = None if floor is None else least(floor)[0]
            ours, memory = once(work)
            if n_clients < 100_000:
                ours = least(work)[0]
            yield Row(stage, n_clients, 50, ours, memory, least_possible)


def against_plain_code() -> Iterator[Row]:
    """calibrate at K = n = 1000 against plain loops; counting at K = H = 100 against optimisers."""
    here = federation(1000, 1000, Grid.uniform(100))
    liars = int(MALICIOUS * 1000)
    options = {"defence": "rob-fcp", "malicious": liars}
    (ours,) = least(lambda: robfcp.calibrate(here, **options), repeats=5)
    rows, counts = 20, here.counts.tolist()
    start = time.perf_counter()
    loops_calibrate(counts, liars, rows)
    loops = (time.perf_counter() - start) * len(counts) / rows
    memory = peak(lambda: robfcp.calibrate(here, **options))
    yield Row("calibrate, rob-fcp", 1000, 1000, ours, memory, None, loops)
    ranked = characterise(federation(100, 500, Grid.uniform(100)), "histogram")
    (ours,) = least(lambda: contrasts(ranked, "diagonal"), repeats=10)
    sizes = (51, 75, 99)
    (three,) = least(lambda: [optimised_contrast(ranked, z) for z in sizes], repeats=1)
    memory = peak(lambda: contrasts(ranked, "diagonal"))
    yield Row("count, likelihood", 100, 500, ours, memory, None, three / len(sizes) * 49)
