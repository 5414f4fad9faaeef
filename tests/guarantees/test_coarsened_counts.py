"""Guarantees on coarsened counts: sound whatever exact counts are behind them, by brute force."""

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
MAX_COMBINATIONS = 300  # of exact counts behind the reports of a round; of more some are drawn


def histograms(n_samples):
    """All histograms of so many samples."""
    for bins in combinations_with_replacement(range(N_BINS), n_samples):
        yield tuple(np.bincount(bins, minlength=N_BINS).tolist())


def histograms_by_report(n_samples, min_cell_count):
    """Each coarsened histogram, with all exact ones that it may come from."""
    hidden = {}
    for exact in histograms(n_samples):
        coarse = tuple(coarsen_counts(np.array(exact), min_cell_count).tolist())
        hidden.setdefault(coarse, []).append(exact)
    return hidden


def worst_bin(bins):
    """The highest of some bins; None, an infinite threshold, is above all."""
    return N_BINS if None in bins else max(bins)


@pytest.mark.effort
@pytest.mark.parametrize(
    ("n_samples", "min_cell_count", "n_clients"), [(4, 2, 3), (5, 2, 3), (5, 3, 2), (7, 5, 2)]
)
def test_a_guaranteed_threshold_is_not_below_that_of_any_counts_behind_the_reports(
    n_samples, min_cell_count, n_clients
):
    """Of rounds of few clients, by trying exact counts that they may have coarsened."""
    level = Fraction(1, 2)
    hidden = histograms_by_report(n_samples, min_cell_count)
    rng = np.random.default_rng(n_samples)
    reports = list(hidden)
    n_attained = 0
    for _ in range(cases(12)):
        sent = [reports[index] for index in rng.integers(0, len(reports), n_clients)]
        combinations = list(product(*(hidden[report] for report in sent)))
        if len(combinations) > MAX_COMBINATIONS:
            combinations = [
                combinations[index]
                for index in rng.integers(0, len(combinations), MAX_COMBINATIONS)
            ]
        coarse = Federation.from_counts(sent, BINNING, min_cell_count=min_cell_count)
        found = marginal_threshold_bin(coarse, level, n_clients - 2)
        possible = [
            marginal_threshold_bin(Federation.from_counts(exact, BINNING), level, n_clients - 2)
            for exact in combinations
        ]
        found_bin = N_BINS if found is None else found
        assert found_bin >= worst_bin(possible)
        n_attained += found_bin == worst_bin(possible)
    assert 2 * n_attained > cases(12)


@pytest.mark.parametrize(("n_samples", "min_cell_count"), [(6, 2), (8, 3), (11, 5)])
def test_bounds_hold_every_exact_count_and_are_off_by_one_cell_at_most(n_samples, min_cell_count):
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


def test_a_threshold_without_a_guarantee_lies_between_those_of_both_bounds():
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
                fcp_bin_index(one, level)
                for one in (lowest, federation, Federation.from_counts(coarse, binning))
            ]
            found = [12 if index is None else index for index in thresholds]
            assert found == sorted(found)
            # All samples are at or below the last bin, whatever coarsening did to them.
            is_infinite = fcp_bin_index(Federation.from_counts(exact, binning), level) is None
            assert (thresholds[1] is None) == is_infinite


def test_thresholds_by_cluster_of_coarsened_classes_have_the_bounds_of_their_classes():
    """Merged cells of two classes do not tell where coarsening moved their samples."""
    rng = np.random.default_rng(1)
    reports, exact = [], []
    for k in range(6):
        scores, labels = rng.random(200), rng.integers(0, 4, 200)
        for least, some in ((5, reports), (1, exact)):
            some.append(
                robfcp.Report.from_scores(
                    f"s{k}",
                    scores,
                    robfcp.Binning.uniform(50),
                    labels=labels,
                    classes=4,
                    stratify_by_class=True,
                    min_cell_count=least,
                )
            )
    merged, merged_exact = (
        Federation.from_reports(some).merge_strata([0, 1, 0, 1], ("a", "b"))
        for some in (reports, exact)
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
        assert (lower == sum(one.cumulative_counts() for one in members)).all()
        highest = sum(one.counts_in_lowest_bins().cumulative_counts() for one in members)
        assert (upper == highest).all()
