"""Guarantees on coarsened counts hold for all possible exact counts, by brute force."""

from fractions import Fraction
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from effort import cases

import robfcp
from robfcp.federation import Federation
from robfcp.guarantees import count_bounds, fcp_bin_index, marginal_threshold_bin
from robfcp.reports._coarsening import coarsen_counts

N_BINS = 4
BINNING = robfcp.Binning.uniform(N_BINS)
MAX_COMBINATIONS = 300  # of exact counts of one round; of more, a sample is taken


def histograms(n_samples):
    """Yield all histograms of a number of samples."""
    for bins in combinations_with_replacement(range(N_BINS), n_samples):
        yield tuple(np.bincount(bins, minlength=N_BINS).tolist())


def histograms_by_report(n_samples, min_cell_count):
    """Return the exact histograms that each coarsened one may come from."""
    hidden = {}
    for exact in histograms(n_samples):
        coarse = tuple(coarsen_counts(np.array(exact), min_cell_count).tolist())
        hidden.setdefault(coarse, []).append(exact)
    return hidden


def worst_bin(bins):
    """Return the highest of some bins; None, an infinite threshold, is above all."""
    return N_BINS if None in bins else max(bins)


@pytest.mark.effort
@pytest.mark.parametrize(
    ("n_samples", "min_cell_count", "n_clients"), [(4, 2, 3), (5, 2, 3), (5, 3, 2), (7, 5, 2)]
)
def test_a_guaranteed_threshold_is_at_least_that_of_all_possible_exact_counts(
    n_samples, min_cell_count, n_clients
):
    """Rounds of few clients, whose possible exact counts are enumerated."""
    level = Fraction(1, 2)
    hidden = histograms_by_report(n_samples, min_cell_count)
    rng = np.random.default_rng(n_samples)
    reports = list(hidden)
    n_attained = 0
    for _ in range(cases(12)):
        coarsened = [reports[index] for index in rng.integers(0, len(reports), n_clients)]
        combinations = list(product(*(hidden[report] for report in coarsened)))
        if len(combinations) > MAX_COMBINATIONS:
            combinations = [
                combinations[index]
                for index in rng.integers(0, len(combinations), MAX_COMBINATIONS)
            ]
        coarse = Federation.from_counts(coarsened, BINNING, min_cell_count=min_cell_count)
        guaranteed = marginal_threshold_bin(coarse, level, n_clients - 2)
        possible = [
            marginal_threshold_bin(Federation.from_counts(exact, BINNING), level, n_clients - 2)
            for exact in combinations
        ]
        guaranteed_bin = N_BINS if guaranteed is None else guaranteed
        assert guaranteed_bin >= worst_bin(possible)
        n_attained += guaranteed_bin == worst_bin(possible)
    assert 2 * n_attained > cases(12)


@pytest.mark.parametrize(("n_samples", "min_cell_count"), [(6, 2), (8, 3), (11, 5)])
def test_bounds_hold_for_all_exact_counts_and_are_off_by_one_cell_at_most(
    n_samples, min_cell_count
):
    bins = np.arange(N_BINS)
    for coarse, exact in histograms_by_report(n_samples, min_cell_count).items():
        federation = Federation.from_counts([coarse], BINNING, min_cell_count=min_cell_count)
        bounds = count_bounds(federation)
        lower, upper = bounds.lower(bins)[:, 0], bounds.upper(bins)[:, 0]
        cumulative = np.cumsum(exact, axis=1)
        assert (cumulative >= lower).all()
        assert (cumulative <= upper).all()
        assert (cumulative.min(axis=0) - lower <= min_cell_count).all()
        assert (upper - cumulative.max(axis=0) <= min_cell_count).all()
        midpoints = bounds.pooled_counts(None)
        assert midpoints.tolist() == ((lower + upper) / 2).tolist()


def test_an_fcp_threshold_is_between_those_of_both_bounds():
    rng = np.random.default_rng(0)
    for _ in range(200):
        n_clients = int(rng.integers(1, 5))
        min_cell_count = int(rng.integers(2, 7))
        exact = rng.multinomial(int(rng.integers(4, 40)), rng.dirichlet(np.ones(12)), n_clients)
        binning = robfcp.Binning.uniform(12)
        coarse = [coarsen_counts(row, min_cell_count) for row in exact]
        federation = Federation.from_counts(coarse, binning, min_cell_count=min_cell_count)
        lowest = federation.counts_in_lowest_bins()
        for level in (Fraction(1, 2), Fraction(4, 5), Fraction(9, 10)):
            thresholds = [
                fcp_bin_index(counts, level)
                for counts in (lowest, federation, Federation.from_counts(coarse, binning))
            ]
            bins = [12 if index is None else index for index in thresholds]
            assert bins == sorted(bins)
            # All samples are at or below the last bin, coarsened or not.
            is_infinite = fcp_bin_index(Federation.from_counts(exact, binning), level) is None
            assert (thresholds[1] is None) == is_infinite


def test_thresholds_by_cluster_of_coarsened_classes_have_the_bounds_of_their_classes():
    """Merged cells of two classes do not show where coarsening moved their samples."""
    rng = np.random.default_rng(1)
    reports, exact = [], []
    for k in range(6):
        scores, labels = rng.random(200), rng.integers(0, 4, 200)
        for min_cell_count, collected in ((5, reports), (1, exact)):
            collected.append(
                robfcp.Report.from_scores(
                    f"s{k}",
                    scores,
                    robfcp.Binning.uniform(50),
                    labels=labels,
                    classes=4,
                    stratify_by_class=True,
                    min_cell_count=min_cell_count,
                )
            )
    merged, merged_exact = (
        Federation.from_reports(collected).merge_strata([0, 1, 0, 1], ("a", "b"))
        for collected in (reports, exact)
    )
    classes = Federation.from_reports(reports)
    for index in range(2):
        cluster = merged.select_stratum(index)
        lower = cluster.cumulative_counts()
        upper = cluster.counts_in_lowest_bins().cumulative_counts()
        true = merged_exact.select_stratum(index).cumulative_counts()
        assert (lower <= true).all()
        assert (true <= upper).all()
        members = [classes.select_stratum(c) for c in (index, index + 2)]
        assert (lower == sum(member.cumulative_counts() for member in members)).all()
        highest = sum(member.counts_in_lowest_bins().cumulative_counts() for member in members)
        assert (upper == highest).all()
