"""What the server does with a federation: calibrate, certify, prune by class, draw the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from intake import CLASSES, SAMPLES, chunks, lines
from measure import Row, in_turns, peak
from numpy.typing import NDArray

import robfcp
from robfcp.binning import Binning
from robfcp.defense import characterization_vectors, mean_neighbor_distances
from robfcp.federation import Federation, SparseTable
from robfcp.guarantees import certify_threshold, fcp_bin_index
from robfcp.guarantees._label_shift_thresholds import (
    ClassCounts,
    fixed_bins,
    pac_threshold_after_pruning,
)
from robfcp.page import PageInfo, page_data, safe_json

BINNING = Binning.default()
LEVEL = Fraction(9, 10)
MALICIOUS = 0.3  # fraction of the clients
DELTA = 0.05  # probability that a guarantee may fail with


def federation(
    n_clients: int,
    n_samples: int = SAMPLES,
    binning: Binning = BINNING,
    malicious_fraction: float = MALICIOUS,
) -> Federation:
    """Return clients with Beta(0.4, 2) scores, a fraction of which reports only zeros."""
    names, *columns = zip(
        *chunks(n_clients, 0, malicious_fraction, binning, n_samples), strict=True
    )
    lengths, bins, values = map(np.concatenate, columns)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    counts = SparseTable.from_entries(starts, bins, values, binning.n_bins)
    clients = tuple(chain.from_iterable(names))
    sample_sizes = np.full(n_clients, n_samples)
    return Federation(clients, counts, sample_sizes, binning, robfcp.LAC())


def calibrate_fresh(reports: Federation, **options: Any) -> None:
    """Calibrate a federation of which nothing was computed before."""
    robfcp.calibrate(replace(reports), **options)


def certify_fresh(reports: Federation, bin_index: int | None, max_malicious: int) -> None:
    """Certify a threshold of a federation of which nothing was computed before."""
    certify_threshold(replace(reports), bin_index, max_malicious)


def find_fcp_bin_fresh(reports: Federation) -> None:
    """Find FCP's threshold on a federation of which nothing was computed before."""
    fcp_bin_index(replace(reports), LEVEL)


def calibrating(sizes: list[int]) -> Iterator[Row]:
    """Yield calibration after intake: the default, by class, and without a defense."""
    for n_clients in sizes:
        pooled = federation(n_clients)
        classes = Federation.from_reports(lines(n_clients, CLASSES))
        works: dict[str, Callable[[], None]] = {
            "calibrate": partial(calibrate_fresh, pooled),
            "calibrate by ten classes": partial(calibrate_fresh, classes, by="class"),
            "calibrate without a defense": partial(calibrate_fresh, pooled, defense="none"),
        }
        times = in_turns(*works.values())
        for (stage, work), seconds in zip(works.items(), times, strict=True):
            yield Row(stage, n_clients, SAMPLES, seconds, peak(work))


def certifying(sizes: list[int]) -> Iterator[Row]:
    """Yield threshold and certificate of all reports; lower bound: one pass over the counts."""
    for n_clients in sizes:
        reports = federation(n_clients)
        bin_index = fcp_bin_index(reports, LEVEL)
        max_malicious = int(MALICIOUS * n_clients)
        _, bins, values = reports.table.entries()

        certify = partial(certify_fresh, reports, bin_index, max_malicious)
        find_threshold = partial(find_fcp_bin_fresh, reports)
        certify_time, threshold_time, lower_bound = in_turns(
            certify, find_threshold, partial(add_up, bins, values)
        )
        yield Row("quantile", n_clients, SAMPLES, threshold_time, peak(find_threshold), lower_bound)
        yield Row("certify", n_clients, SAMPLES, certify_time, peak(certify), lower_bound)


def add_up(bins: NDArray[np.generic], values: NDArray[np.generic]) -> None:
    """Pass over the counts once."""
    bins.sum()
    values.sum()


def paging(sizes: list[int]) -> Iterator[Row]:
    """Yield the calibration's page as JSON, of a round in which 2% are malicious."""
    for n_clients in sizes:
        calibration = robfcp.calibrate(federation(n_clients, malicious_fraction=0.02))
        work = partial(make_page, calibration)
        (seconds,) = in_turns(work, repeats=3)
        yield Row("page", n_clients, SAMPLES, seconds, peak(work))


def make_page(calibration: robfcp.Calibration) -> None:
    """Make the data of a calibration's page."""
    safe_json(page_data(calibration, PageInfo()))


def exact_distances(sizes: list[int]) -> Iterator[Row]:
    """Yield Rob-FCP's distances of all to all; lower bound: matrix product and partition."""
    for n_clients in sizes:
        reports = federation(n_clients, binning=Binning.uniform(100), malicious_fraction=0.0)
        vectors = characterization_vectors(reports, "histogram")
        last_rank = n_clients - int(MALICIOUS * n_clients) - 1
        work = partial(mean_neighbor_distances, vectors, "l2", 1, last_rank)
        seconds, lower_bound = in_turns(
            work, partial(partition_products, vectors, last_rank), repeats=3
        )
        yield Row("exact distances", n_clients, SAMPLES, seconds, peak(work), lower_bound)


def partition_products(vectors: NDArray[np.float64], last_rank: int) -> None:
    """Multiply all vectors with each other and partition the products of each."""
    (vectors @ vectors.T).partition(last_rank, axis=1)


def reporting_by_class(sizes: list[int]) -> Iterator[Row]:
    """Yield one client's report from scores and labels; lower bound: its pooled report."""
    for n in sizes:
        rng = np.random.default_rng(n)
        scores = rng.beta(0.4, 2, n)
        labels = rng.integers(0, CLASSES, n)
        make_pooled = partial(robfcp.Report.from_scores, "a", scores, BINNING)
        make_by_class = partial(make_pooled, labels=labels, classes=CLASSES)
        seconds, lower_bound = in_turns(make_by_class, make_pooled, repeats=20)
        yield Row("report, ten classes", 1, n, seconds, peak(make_by_class), lower_bound)


def pruning(sizes: list[int]) -> Iterator[Row]:
    """Yield rule PC with a fifth of malicious clients at the top, fifty samples, ten classes."""
    for n_clients in sizes:
        max_malicious = n_clients // 5
        counts = _class_counts(n_clients, max_malicious)
        work = partial(pac_threshold_after_pruning, counts, LEVEL, max_malicious, DELTA)
        (seconds,) = in_turns(work, repeats=2)
        yield Row("guarantee PC by ten classes", n_clients, 50, seconds, peak(work))


def _class_counts(n_clients: int, n_malicious: int) -> ClassCounts:
    """Return cumulative counts by class of fifty samples a client; malicious scores are 1."""
    rng = np.random.default_rng(n_clients)
    distributions = rng.dirichlet(np.full(CLASSES, 0.3), n_clients)
    sizes = rng.multinomial(50, distributions)
    label = np.repeat(np.tile(np.arange(CLASSES), n_clients), sizes.ravel())
    client = np.repeat(np.repeat(np.arange(n_clients), CLASSES), sizes.ravel())
    scores = rng.beta(0.4, 2, len(label))
    scores[client < n_malicious] = 1

    edges = fixed_bins(BINNING.n_bins)
    edge_index = np.searchsorted(edges, BINNING.bin_indices(scores))
    counts = np.zeros((len(edges), n_clients, CLASSES), dtype=np.int64)
    np.add.at(counts, (edge_index, client, label), 1)
    clients = tuple(str(k) for k in range(n_clients))
    classes = tuple(str(c) for c in range(CLASSES))
    return ClassCounts(np.cumsum(counts, axis=0), sizes, edges, clients, classes)
