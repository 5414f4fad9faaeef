"""An attacker with the format: what a reader of a default report can and cannot infer.

The attacker knows the format and the report, and nothing else. All data sets of few samples in few
bins are listed, and those that give the same report are what the attacker cannot distinguish. m is
the minimum cell count. Samples are identified by their rank: the r-th lowest score. What is found
here is written in docs/security.md, "What a reader of a report can and cannot infer".
"""

from itertools import combinations, product
from math import lgamma

import numpy as np
import pytest

from robfcp.binning import Binning
from robfcp.experiments import outputs
from robfcp.federation import Federation
from robfcp.reports import DEFAULT_MIN_CELL_COUNT, Cells, Report, coarsen_cells, round_class_totals
from robfcp.reports._coarsening import TOP_BIN_ROUNDING
from robfcp.scores import LAC

M = DEFAULT_MIN_CELL_COUNT
SMALL_WORLDS = [  # samples, bins, minimum cell count
    (4, 4, M),
    (7, 6, M),
    (10, 8, M),
    (14, 6, M),
    (15, 5, M),
    (20, 4, M),
    (10, 7, 4),
    (11, 7, 3),
    (6, 12, 3),
    (6, 12, 2),  # more bins than the end of the highest cell is rounded to
    (8, 7, 2),
]
worlds = pytest.mark.parametrize(("n_samples", "n_bins", "m"), SMALL_WORLDS)


def all_data(n_samples, n_bins):
    """Every way to put samples into bins: (N, H) counts."""
    bars = np.array(list(combinations(range(n_samples + n_bins - 1), n_bins - 1)), dtype=int)
    fence = np.full((len(bars), 1), -1)
    edges = np.hstack([fence, bars.reshape(len(bars), -1), fence + n_samples + n_bins])
    return np.diff(edges, axis=1) - 1


def reports_of(data, m=M):
    """The (N, H) coarsened counts of (N, H) counts."""
    n_data, n_bins = data.shape
    cells = np.flatnonzero(data)
    coarse = coarsen_cells(Cells(cells, data.ravel()[cells]), n_data, n_bins, m)
    counts = np.zeros(data.size, dtype=int)
    counts[coarse.cells] = coarse.counts
    return counts.reshape(data.shape)


def scores_of(counts):
    """The bins of the samples, in rising order."""
    return np.repeat(np.arange(len(counts)), counts)


def consistent_data(data, reports):
    """Every report with all the data sets that give it, or with their numbers."""
    distinct, index = np.unique(reports, axis=0, return_inverse=True)
    order = np.argsort(index.ravel(), kind="stable")
    group_ends = np.cumsum(np.bincount(index.ravel()))
    yield from zip(distinct, np.split(data[order], group_ends[:-1]), strict=True)


def known_bins(report, m=M):
    """Lowest and highest bin that each sample can have, as docs/security.md states them.

    Parameters
    ----------
    report : (H,) ndarray of int
        Coarsened counts.
    m : int
        The minimum cell count.

    Returns
    -------
    lowest, highest : (n,) ndarrays of int
        Of the samples in rising order.
    """
    n_samples = int(report.sum())
    cell_ends = np.flatnonzero(report)
    lowest = np.zeros(n_samples, dtype=int)
    highest = np.zeros(n_samples, dtype=int)
    start = 0
    for i, cell_end in enumerate(cell_ends):
        count = report[cell_end]
        stop = start + count
        has_ties_below = False
        previous_end = 0
        if i > 0:
            previous_end = cell_ends[i - 1]
            has_ties_below = report[previous_end] >= 2 * m

        # A sample of a cell lies neither above its end nor below the end of the cell before.
        lowest[start:stop] = previous_end
        highest[start:stop] = cell_end
        if count >= 2 * m:
            # A bin with so many ties stays where it is, and m - 1 samples may lie below it.
            n_below = m - 1
            if i == 0:
                n_below += count % m
            lowest[start + n_below : stop] = cell_end
        elif i < len(cell_ends) - 1:
            # The end lies half-way to the next cell's lowest sample, which is not above its end.
            lowest[stop - 1] = max(previous_end + (i > 0), 2 * cell_end + 1 - cell_ends[i + 1])
        elif n_samples >= m:
            # The highest score is known to ten bins.
            lowest[stop - 1] = max(
                previous_end + (i > 0), cell_end // TOP_BIN_ROUNDING * TOP_BIN_ROUNDING
            )
        if i > 0 and not has_ties_below:
            highest[start] = min(cell_end, 2 * previous_end + 2 - lowest[start - 1])
        start = stop
    return lowest, highest


def test_the_attacked_format_is_that_of_reports():
    rng = np.random.default_rng(0)
    scores = rng.beta(0.5, 2, (30, 60)).round(2)
    binning = Binning.uniform(40)
    reported = [Report.from_scores("a", row, binning, min_cell_count=M).counts for row in scores]
    data = np.array([binning.counts(row) for row in scores])
    np.testing.assert_array_equal(reported, reports_of(data))


@pytest.mark.parametrize(("n_samples", "n_bins", "m"), [*SMALL_WORLDS, (6, 11, M), (4, 11, 2)])
def test_a_report_fixes_the_bins_of_a_sample_to_the_stated_range_and_no_further(
    n_samples, n_bins, m
):
    data = all_data(n_samples, n_bins)
    for report, candidates in consistent_data(data, reports_of(data, m)):
        scores = np.array([scores_of(counts) for counts in candidates])
        lowest, highest = known_bins(report, m)
        np.testing.assert_array_equal(scores.min(axis=0), lowest)
        np.testing.assert_array_equal(scores.max(axis=0), highest)


@worlds
def test_a_bin_holds_for_certain_no_sample_or_one_or_as_many_as_a_cell(n_samples, n_bins, m):
    """A single one only where two neighboring cells end in neighboring bins.

    In a binning of 11, 21, ... bins the last bin may hold one for certain, too: see `known_bins`.
    """
    data = all_data(n_samples, n_bins)
    for report, candidates in consistent_data(data, reports_of(data, m)):
        certain = candidates.min(axis=0)
        assert not ((certain > 1) & (certain < m)).any()
        has_neighbor = np.zeros(n_bins, dtype=bool)
        has_neighbor[:-1] |= report[1:] > 0
        has_neighbor[1:] |= report[:-1] > 0
        single = certain == 1
        assert has_neighbor[single].all()
        assert (report[single] > 0).all()


@worlds
def test_of_a_cell_without_neighbors_no_sample_has_a_certain_bin(n_samples, n_bins, m):
    """Cells of fewer than 2 m samples, but for one in the first bin, below which nothing lies."""
    data = all_data(n_samples, n_bins)
    for report, candidates in consistent_data(data, reports_of(data, m)):
        scores = np.array([scores_of(counts) for counts in candidates])
        is_certain = scores.min(axis=0) == scores.max(axis=0)
        cell_ends = scores_of(report)
        counts = report[cell_ends]
        gaps_above = np.append(report, 0)[cell_ends + 1] == 0
        gaps_below = np.append(0, report)[cell_ends] == 0
        is_free = gaps_above & gaps_below & (counts < 2 * m) & (cell_ends > 0)
        assert not is_certain[is_free].any()


@pytest.mark.parametrize(
    ("n_samples", "max_fraction"), [(60, 0.0001), (100, 0.001), (300, 0.002), (1000, 0.06)]
)
def test_of_real_outputs_few_samples_have_a_bin_of_their_own_for_certain(n_samples, max_fraction):
    """CIFAR-10, LAC, the default bins: many samples crowd into few bins only where n is large."""
    shipped = outputs.load("cifar10", "iid")
    probabilities = np.asarray(shipped.probabilities, dtype=float)
    score = LAC()
    scores = score(probabilities / probabilities.sum(axis=1, keepdims=True), shipped.labels)
    rng = np.random.default_rng(0)
    fractions = []
    for _ in range(100):
        counts = score.default_binning().counts(rng.choice(scores, n_samples))
        lowest, highest = known_bins(reports_of(counts[None])[0])
        true = scores_of(counts)
        assert ((lowest <= true) & (true <= highest)).all()
        n_certain = np.bincount(lowest[lowest == highest], minlength=len(counts))
        assert not ((n_certain > 1) & (n_certain < M)).any()
        fractions.append(np.count_nonzero(n_certain == 1) / n_samples)
    assert np.mean(fractions) <= max_fraction


# Two reports on nearly the same samples


def determined_fraction(n_samples, n_bins):
    """How often two reports, the second with one sample more, determine the bin of that sample.

    Returns
    -------
    of_pairs : float
        Of all data sets and added bins.
    of_uniform : float
        The probability where every sample's bin is drawn uniformly.
    """
    data = all_data(n_samples, n_bins)
    log_ways = [lgamma(n_samples + 1) - sum(lgamma(c + 1) for c in row) for row in data]
    probabilities = np.exp(log_ways) / n_bins ** (n_samples + 1)

    first = np.tile(reports_of(data), (n_bins, 1))
    added = np.repeat(np.arange(n_bins), len(data))
    second = reports_of(np.tile(data, (n_bins, 1)) + np.eye(n_bins, dtype=int)[added])
    pairs = np.unique(np.hstack([first, second]), axis=0, return_inverse=True)[1].ravel()
    lowest = np.full(pairs.max() + 1, n_bins)
    highest = np.zeros(pairs.max() + 1, dtype=int)
    np.minimum.at(lowest, pairs, added)
    np.maximum.at(highest, pairs, added)
    is_determined = (lowest == highest)[pairs]
    return is_determined.mean(), np.tile(probabilities, n_bins)[is_determined].sum()


@pytest.mark.parametrize(
    ("n_samples", "n_bins", "most_of_pairs", "most_of_uniform"),
    [(9, 8, 0.0001, 0.0001), (10, 8, 0.01, 0.001), (14, 6, 0.025, 0.0125), (15, 6, 0.025, 0.0125)],
)
def test_the_difference_of_two_reports_rarely_determines_the_bin_of_an_added_sample(
    n_samples, n_bins, most_of_pairs, most_of_uniform
):
    of_pairs, of_uniform = determined_fraction(n_samples, n_bins)
    assert 0 < of_pairs <= most_of_pairs
    assert 0 < of_uniform <= most_of_uniform


def test_m_reports_that_differ_by_high_scores_show_the_midpoints_of_all_neighbors():
    """So that any known score then gives all others."""
    rng = np.random.default_rng(3)
    n_bins = 1000
    n_samples = 40
    bins = np.sort(rng.choice(np.arange(0, 900, 4), n_samples, replace=False))
    data = np.zeros((M, n_bins), dtype=int)
    for n_added in range(M):
        data[n_added, bins] = 1
        data[n_added, n_bins - 1] = n_added
    visible_bins = set(np.flatnonzero(reports_of(data).sum(axis=0)).tolist())
    midpoints = set(((bins[:-1] + bins[1:] - 1) // 2).tolist())

    # The lowest cell holds m samples or more: those below its end have no ends between them.
    assert len(midpoints & visible_bins) >= n_samples - 1 - M
    one_report = np.flatnonzero(reports_of(data[:1])[0])
    assert len(midpoints & set(one_report.tolist())) == n_samples // M - 1


# Class totals


def sizes_by_report(n_classes, n_sizes):
    """The sizes of classes that give the same number of samples and the same class totals."""
    groups = {}
    for sizes in product(range(n_sizes), repeat=n_classes):
        totals = round_class_totals(np.array(sizes), M)
        groups.setdefault((sum(sizes), *totals.tolist()), []).append(sizes)
    return groups


def test_two_class_totals_fix_both_sizes_for_2_of_25_combinations_of_remainders():
    fixed = {
        tuple(size % M for size in sizes[0])
        for sizes in sizes_by_report(2, 60).values()
        if len(sizes) == 1 and min(sizes[0]) >= M and max(sizes[0]) < 55
    }
    assert fixed == {(2, 2), (3, 3)}


@pytest.mark.parametrize(("n_classes", "n_sizes"), [(2, 42), (3, 27)])
def test_class_totals_fix_sizes_only_where_all_are_rounded_the_same_way(n_classes, n_sizes):
    """One size is never inferred without all, so a class of one to four samples stays hidden."""
    is_large = n_sizes - M - 2  # beyond it the list of sizes is not complete
    n_fixed = 0
    for sizes in sizes_by_report(n_classes, n_sizes).values():
        group = np.array(sizes)
        if group.max() >= is_large:
            continue
        is_fixed = group.min(axis=0) == group.max(axis=0)
        remainders = group[0] % M
        all_up = ((remainders == 3) | (group[0] == 0)).all()
        all_down = (remainders == 2).all()
        assert is_fixed.all() == is_fixed.any() == (all_up or all_down)
        n_fixed += is_fixed.all()
    assert n_fixed > 0


@pytest.mark.parametrize(("n_samples", "n_classes", "n_bins"), [(10, 2, 3), (6, 3, 3), (11, 2, 2)])
def test_counts_of_all_classes_add_nothing_to_what_class_totals_show(n_samples, n_classes, n_bins):
    tables = all_data(n_samples, n_classes * n_bins).reshape(-1, n_classes, n_bins)
    pooled = reports_of(tables.sum(axis=1))
    sizes = tables.sum(axis=2)
    totals = round_class_totals(sizes, M)
    for _, rows in consistent_data(np.arange(len(tables)), totals):
        possible = {tuple(row) for row in sizes[rows].tolist()}
        for report, candidates in consistent_data(sizes[rows], pooled[rows]):
            assert {tuple(row) for row in candidates.tolist()} == possible, report


# What is shown on request


def test_labels_of_one_sample_may_fill_a_cell_of_set_sizes():
    probabilities = [[0.18] * 5 + [0.02] * 5]
    report = Report.from_predictions("a", probabilities, [0], include_all_labels=True)
    assert report.n_samples == 1
    assert report.all_label_counts[report.all_label_counts > 0].tolist() == [M, M]


def test_exact_counts_show_every_score_with_its_label():
    rng = np.random.default_rng(1)
    scores = rng.random(20)
    labels = rng.integers(0, 3, 20)
    binning = Binning.uniform(50)
    report = Report.from_scores("a", scores, binning, labels=labels, classes=3)
    for name in range(3):
        expected = binning.counts(scores[labels == name])
        np.testing.assert_array_equal(report.strata.dense()[name], expected)


# How large cells may be


@pytest.mark.parametrize(
    ("cell_counts", "min_cell_count", "n_accepted"),
    [
        ([1, 1, 1, 5], None, 4),  # up to the default, whatever most reports have
        ([1, 1, 1, 6], None, 3),
        ([8, 8, 8, 1], None, 4),  # as large as most reports have
        ([8, 8, 9, 1], None, 3),
        ([5, 5, 8, 8], None, 4),  # the upper median
        ([5, 5, 5, 8], 8, 4),
        ([8, 8, 8, 5], 5, 1),
    ],
)
def test_reports_with_larger_cells_than_those_of_the_round_are_rejected(
    cell_counts, min_cell_count, n_accepted
):
    rng = np.random.default_rng(0)
    reports = [
        Report.from_scores(f"client-{k}", rng.random(40), min_cell_count=count)
        for k, count in enumerate(cell_counts)
    ]
    options = {} if min_cell_count is None else {"min_cell_count": min_cell_count}
    federation = Federation.from_reports(reports, quorum=1, **options)
    assert federation.n_clients == n_accepted
    assert all(rejected.field == "min_cell_count" for rejected in federation.rejected_reports)
