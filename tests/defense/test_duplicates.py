"""Duplicates are reported as such; independent samples never are, private ones neither."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from noises import draw

from robfcp import Binning, Federation, Privacy, Report
from robfcp.defense._duplicates import find_duplicate_reports
from robfcp.defense.consensus._consensus import analyze_outliers
from robfcp.experiments.attacks import ScoreAttack
from robfcp.experiments.attacks.mimic import mimic_attack


def independent(n_clients, n, seed, skew=None):
    rng = np.random.default_rng(seed)
    binning = Binning.default()
    counts = []
    for k in range(n_clients):
        scores = rng.beta(0.3 if skew is None else 0.2 + skew * k, 4, n)
        counts.append(np.bincount(binning.bin_indices(scores), minlength=binning.n_bins))
    return Federation.from_counts(np.array(counts), binning)


@pytest.mark.parametrize("n", [20, 50, 500, 5000])
def test_independent_samples_are_never_called_duplicates(n):
    for seed in range(5):
        assert find_duplicate_reports(independent(20, n, seed)) == ()
        assert find_duplicate_reports(independent(20, n, seed, skew=0.05)) == ()


@pytest.mark.parametrize("n", [50, 500])
def test_copies_are_grouped_with_their_original(n):
    attacked = ScoreAttack(mimic_attack, "exact")(independent(20, n, 1), [2, 5, 7], 3)
    (group,) = find_duplicate_reports(attacked)
    assert len(group.clients) == 4
    assert {"client-02", "client-05", "client-07"} < set(group.clients)
    assert group.p_value <= 1e-3


def test_resampled_mimics_are_not_duplicates():
    attack = ScoreAttack(mimic_attack, "resampled")
    attacked = attack(independent(20, 200, 1), [2, 5, 7], 3)
    assert find_duplicate_reports(attacked) == ()


@pytest.mark.parametrize(("n_bins", "is_duplicate"), [(11, False), (12, True)])
def test_equal_reports_are_duplicates_up_to_the_stated_probability(n_bins, is_duplicate):
    """Two single scores fall into one bin with probability 1/2, and there are three pairs."""
    counts = np.zeros((3, 2 * n_bins), dtype=int)
    counts[:2, :n_bins] = counts[2, n_bins:] = 1
    assert (3 * 0.5**n_bins <= 1e-3) == is_duplicate
    groups = find_duplicate_reports(Federation.from_counts(counts))
    assert [group.p_value for group in groups] == pytest.approx([3 * 0.5**n_bins] * is_duplicate)
    assert len(find_duplicate_reports(Federation.from_counts(counts), 0.5)) == 1


def test_equal_reports_that_chance_explains_are_no_duplicates():
    one_bin = np.zeros((4, 50), dtype=int)
    one_bin[:, 0] = 80
    assert find_duplicate_reports(Federation.from_counts(one_bin)) == ()
    assert find_duplicate_reports(Federation.from_counts([[1, 0], [1, 0], [0, 1]])) == ()


def test_two_groups_of_duplicates_are_distinguished():
    federation = independent(12, 200, 4)
    counts = federation.counts.copy()
    counts[[3, 8]] = counts[0]
    counts[[5, 6]] = counts[11]
    groups = find_duplicate_reports(Federation.from_counts(counts, federation.binning))
    assert [group.clients for group in groups] == [
        ("client-00", "client-03", "client-08"),
        ("client-05", "client-06", "client-11"),
    ]


def private_round(rng, privacies, n=500):
    """Clients of one law with the given privacy, one for each client."""
    counts = rng.multinomial(n, np.full(24, 1 / 24), len(privacies))
    for row, privacy in zip(counts, privacies, strict=True):
        row += 0 if privacy is None else draw(rng, privacy.noise, (24,))
    sizes = np.full(len(privacies), n)
    return Federation.from_counts(counts, privacy=privacies, sample_sizes=sizes)


def test_only_equal_private_reports_are_duplicates():
    rng, privacies = np.random.default_rng(4), [Privacy(1)] * 40
    for _ in range(10):
        assert not find_duplicate_reports(private_round(rng, privacies))
    noisy = private_round(rng, privacies)
    counts = noisy.counts.copy()
    counts[1:3] = counts[0]
    counts[2, 5] += 1
    (group,) = find_duplicate_reports(
        Federation.from_counts(counts, privacy=privacies, sample_sizes=noisy.sample_sizes)
    )
    assert group.clients == noisy.clients[:2]


def test_means_of_benign_reports_are_no_duplicates_and_exclude_no_client():
    rng = np.random.default_rng(5)
    counts = rng.multinomial(20_000, np.full(200, 1 / 200), 20)
    for hub in range(16, 20):
        counts[hub] = np.round(counts[4 * (hub - 16) : 4 * (hub - 16) + 4].mean(axis=0))
    assert not find_duplicate_reports(Federation.from_counts(counts))
    assert not analyze_outliers(Federation.from_counts(counts)).is_excluded.any()


def coincidence_probability(counts, counts_per_sample):
    """P(a second sample equals the first | the sums of both), exactly: C(2a, a) / 4^a a bin."""
    probability = Fraction(1)
    for count in counts:
        a = count // counts_per_sample
        probability *= Fraction(comb(2 * a, a), 4**a)
    return probability


@pytest.mark.parametrize("n_cells", [8, 10, 14])
def test_the_probability_of_equal_coarse_reports_counts_cells_of_five_as_one(n_cells):
    """A coarse cell of five samples is one draw of its place, not five."""
    rng = np.random.default_rng(n_cells)
    binning = Binning.uniform(100)
    positions = np.linspace(0.02, 0.98, n_cells)
    for counts_per_sample in (5, 1):
        scores = np.repeat(positions, counts_per_sample)
        federation = Federation.from_reports(
            Report.from_scores(
                name,
                scores if name in "ab" else rng.random(len(scores)),
                binning,
                min_cell_count=counts_per_sample,
            )
            for name in "abcd"
        )
        assert federation.is_coarsened[:2].all() == (counts_per_sample == 5)
        n_pairs = 6
        counts = federation.counts[0].tolist()
        p_value = n_pairs * coincidence_probability(counts, counts_per_sample)
        groups = find_duplicate_reports(federation)
        assert bool(groups) == (p_value <= Fraction(1, 1000))
        for group in groups:
            assert group.p_value == pytest.approx(float(p_value))


@pytest.mark.parametrize("n_cells", [10, 14])
def test_the_chance_of_equal_coarse_losses_counts_cells_of_five_samples_as_one(n_cells):
    """A sample's loss is counted in many parts, which fall together: a cell of five is one draw."""
    rng = np.random.default_rng(n_cells)
    scores = np.repeat(np.linspace(0.02, 0.98, n_cells), 5)
    scores_of = {name: rng.random(len(scores)) for name in "cd"} | {"a": scores, "b": scores}
    labels = np.ones((len(scores), 1), dtype=int)
    federation = Federation.from_reports(
        Report.from_multilabel(
            name, 1 - values[:, None], labels, Binning.uniform(100), min_cell_count=5
        )
        for name, values in scores_of.items()
    )
    n_parts = federation.risk.resolution
    assert n_parts > 1
    assert federation.is_coarsened[:2].all()
    n_pairs = 6
    p_value = n_pairs * coincidence_probability(federation.counts[0].tolist(), 5 * n_parts)
    groups = find_duplicate_reports(federation)
    assert [group.clients for group in groups] == [("a", "b")] * (p_value <= Fraction(1, 1000))
    for group in groups:
        assert group.p_value == pytest.approx(float(p_value))
