"""The threshold of the default defense against its formula, written anew in plain Python."""

from fractions import Fraction

import brute
import numpy as np
import plain_vote
import pytest
from makers import LAC
from scipy.stats import ks_2samp

import robfcp
from robfcp.defense._duplicates import find_duplicate_reports
from robfcp.defense.consensus._consensus import analyze_outliers

LEVELS = (Fraction(8, 10), Fraction(9, 10), Fraction(95, 100))
N_BINS = 25


def plausible_round(seed, *, duplicates=False, harder=0.0, smaller=0.6, n_smaller=2, n_bins=N_BINS):
    """A federation some of whose clients differ so that several references are plausible."""
    rng = np.random.default_rng(seed)
    binning = robfcp.Binning.uniform(n_bins)
    n_classes = 3
    reports = []
    for k in range(14):
        n = int(rng.integers(80, 500))
        labels = rng.choice(n_classes, n, p=rng.dirichlet(np.full(n_classes, 1.5)))
        scores = rng.beta(1.5 + labels, 4)
        if k < n_smaller:
            scores = scores * smaller
        elif k < 6:  # larger scores, by a constant or by a random part
            scores = np.clip(scores + harder + 0.25 * rng.random(n) * (seed % 2), 0, 1)
        reports.append((scores, labels))
    if duplicates:
        reports[9] = reports[8]
        reports[10] = reports[8]
    return [
        robfcp.Report.from_scores(
            f"s{k:02d}",
            scores,
            binning,
            score=LAC,
            labels=labels,
            classes=n_classes,
            min_cell_count=1,
        )
        for k, (scores, labels) in enumerate(reports)
    ]


def formula_bin(federation, level):
    """The threshold's bin by the formula, from the analysis that the defense made."""
    analysis = analyze_outliers(federation)
    counts = federation.counts.tolist()

    def fcp_bin(clients):
        rows = [counts[k] for k in clients]
        uppers = range(federation.binning.n_bins)
        bin_index = brute.threshold(rows, uppers, level)
        return None if bin_index == float("inf") else bin_index

    voter_sets = [np.flatnonzero(~analysis.is_excluded)]
    voter_sets += [np.flatnonzero(~is_excluded) for is_excluded in analysis.alternative_exclusions]
    groups = [group.rows.tolist() for group in find_duplicate_reports(federation)]
    cap = max(1, int(3 * float(np.median(federation.sample_sizes))))
    return plain_vote.consensus_bin(
        counts,
        [voters.tolist() for voters in voter_sets],
        groups,
        analysis.suspected_larger.tolist(),
        analysis.overdispersion,
        level,
        fcp_bin,
        cap,
    ), len(voter_sets)


def assert_formula_holds(reports):
    """The calibrated thresholds are the formula's; the number of voter sets."""
    federation = robfcp.Federation.from_reports(reports)
    calibration = robfcp.calibrate(federation, coverage=list(LEVELS))
    for level, threshold in zip(LEVELS, calibration.threshold, strict=True):
        bin_index, n_voter_sets = formula_bin(federation, level)
        assert threshold == federation.threshold_at(bin_index), level
    return n_voter_sets


@pytest.mark.parametrize("seed", range(12))
def test_the_threshold_is_the_highest_that_a_plausible_set_of_voters_accepts(seed):
    assert_formula_holds(plausible_round(seed, harder=0.1 * (seed % 3)))


@pytest.mark.parametrize("seed", range(8))
def test_voters_that_only_another_reference_excludes_may_raise_the_threshold(seed):
    """Six clients have somewhat smaller scores; the reference decides whether they are benign."""
    reports = plausible_round(seed, smaller=0.8, n_smaller=6)
    assert_formula_holds(reports)


@pytest.mark.parametrize("seed", range(3))
def test_the_threshold_is_the_formulas_to_the_sample(seed):
    """On a fine binning: a vote that is off by one sample's share accepts another bin."""
    assert_formula_holds(plausible_round(seed, harder=0.2, n_bins=2000))


def test_several_voter_sets_are_seen_and_disagree():
    """The test above would be empty if every round had one set of voters, or all agreed."""
    n_disagreements = 0
    for seed in range(12):
        federation = robfcp.Federation.from_reports(plausible_round(seed, harder=0.1 * (seed % 3)))
        analysis = analyze_outliers(federation)
        if not analysis.alternative_exclusions:
            continue
        bins = set()
        for is_excluded in (analysis.is_excluded, *analysis.alternative_exclusions):
            rows = federation.counts[~is_excluded].tolist()
            bins.add(brute.threshold(rows, range(N_BINS), LEVELS[1]))
        n_disagreements += len(bins) > 1
    assert n_disagreements >= 3


@pytest.mark.parametrize("seed", range(6))
def test_one_of_several_clients_with_equal_reports_votes(seed):
    reports = plausible_round(seed, duplicates=True)
    federation = robfcp.Federation.from_reports(reports)
    assert [group.clients for group in find_duplicate_reports(federation)] == [
        ("s08", "s09", "s10")
    ]
    assert_formula_holds(reports)


def two_views(seed=0):
    """A round in which one client has larger scores within classes, another one overall.

    Client 0 has the larger scores in every class but easy classes, so that its scores together
    are as everybody's. Client 1 has everybody's scores in every class but difficult classes.
    """
    rng = np.random.default_rng(seed)
    binning = robfcp.Binning.uniform(N_BINS)
    n = 400

    def scores_of(labels, shift=0.0):
        return np.clip(rng.beta(4, 8, len(labels)) + 0.2 * labels + shift, 0, 1)

    samples = []
    for k in range(16):
        labels = rng.choice(3, n, p=[1 / 3, 1 / 3, 1 / 3])
        if k == 0:
            labels = rng.choice(3, n, p=[0.62, 0.26, 0.12])
            samples.append((scores_of(labels, 0.1), labels))
        elif k == 1:
            labels = rng.choice(3, n, p=[0.22, 0.33, 0.45])
            samples.append((scores_of(labels), labels))
        else:
            samples.append((scores_of(labels), labels))
    reports = [
        robfcp.Report.from_scores(
            f"s{k:02d}", scores, binning, score=LAC, min_cell_count=1, labels=labels, classes=3
        )
        for k, (scores, labels) in enumerate(samples)
    ]
    return samples, robfcp.Federation.from_reports(reports)


def test_larger_scores_in_either_view_make_a_client_suspected():
    """Given its labels or without them: an independent two-sample test says which view shows it."""
    samples, federation = two_views()
    other_clients = np.concatenate([scores for scores, _ in samples[2:]])
    other_labels = np.concatenate([labels for _, labels in samples[2:]])

    def p_value_of_larger(scores, reference):
        return ks_2samp(scores, reference, alternative="less", method="asymp").pvalue

    def p_values_by_class(scores, labels):
        return [
            p_value_of_larger(scores[labels == c], other_clients[other_labels == c])
            for c in range(3)
        ]

    # Client 0: not larger together, larger within each class.
    scores, labels = samples[0]
    assert p_value_of_larger(scores, other_clients) > 0.05
    assert max(p_values_by_class(scores, labels)) < 0.01

    # Client 1: larger together, not larger within any class.
    scores, labels = samples[1]
    assert p_value_of_larger(scores, other_clients) < 0.01
    assert min(p_values_by_class(scores, labels)) > 0.05

    suspected = analyze_outliers(federation).suspected_larger
    assert suspected[:2].all()
    assert not suspected[2:].any()
