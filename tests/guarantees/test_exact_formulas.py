"""Formulas of the guarantees, each against an independent computation.

Removals are enumerated, intervals are Clopper-Pearson's or roots of the divergence, and the
distribution of a sum of noise is convolved draw by draw.
"""

from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from noises import draw
from scipy.optimize import brentq
from scipy.special import rel_entr
from scipy.stats import beta as beta_distribution

from robfcp import Binning, Federation, Privacy, Report, Risk
from robfcp.guarantees import _tail_bounds, count_bounds, fcp_bin_index
from robfcp.guarantees._heterogeneity import ClientIntervals
from robfcp.guarantees._tail_bounds import critical_counts, noisy_size_tail_test
from robfcp.guarantees._worst_case import min_and_max_coverage

LEVEL = Fraction(9, 10)


def hidden_round(rng, n_clients=6, n=40, bins=12, epsilon=1.0):
    """Return private reports that hide their sizes."""
    binning = Binning.uniform(bins)
    privacy = Privacy(epsilon, neighbors="add-remove")
    counts = rng.multinomial(n, np.full(bins, 1 / bins), n_clients)
    counts += draw(rng, privacy.noise, counts.shape)
    return Federation.from_counts(counts, binning, privacy=privacy)


@pytest.mark.parametrize("sizes", [[10], [9], [10, 10], [5, 15], [6, 6, 7]])
def test_the_threshold_is_finite_up_to_the_rank_of_the_largest_score(sizes):
    """Each client's scores are its own; the pooled scores in order are the bins of one count."""
    n = sum(sizes)
    counts = np.zeros((len(sizes), n), dtype=int)
    client_of_score = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    counts[client_of_score, np.arange(n)] = 1
    federation = Federation.from_counts(counts)
    n_last = 0
    for percent in range(5, 100):
        level = Fraction(percent, 100)
        rank_correction = level if len(sizes) == 1 else 1
        ranks = [rank for rank in range(1, n + 1) if rank >= level * n + rank_correction]
        bin_index = fcp_bin_index(federation, level)
        assert bin_index == (ranks[0] - 1 if ranks else None)
        n_last += ranks == [n]
    assert n_last


@pytest.mark.parametrize("max_totals", [3, 7, 20])
def test_hidden_sizes_require_enough_also_between_the_totals_computed(max_totals, monkeypatch):
    rng = np.random.default_rng(12)
    n_between = 0
    for m in (0, 1, 3):
        bounds = count_bounds(hidden_round(rng))
        of_all_totals = noisy_size_tail_test(bounds, m, LEVEL, 0.04, 0.01).min_excess

        # What the totals that were computed require.
        excesses = []

        def recorded(totals, level, delta, excesses=excesses):
            critical = critical_counts(totals, level, delta)
            for total, count in zip(totals.tolist(), critical.tolist(), strict=True):
                excesses.append(level.denominator * count - level.numerator * total)
            return critical

        with monkeypatch.context() as patch:
            patch.setattr(_tail_bounds, "_MAX_TOTALS", max_totals)
            patch.setattr(_tail_bounds, "critical_counts", recorded)
            of_some_totals = noisy_size_tail_test(bounds, m, LEVEL, 0.04, 0.01).min_excess
        assert of_some_totals >= of_all_totals
        n_between += max(excesses) < of_all_totals
    assert n_between  # the total that requires most is not among those computed


def test_hidden_sizes_require_enough_of_totals_without_clients_of_negative_sizes():
    rng = np.random.default_rng(7)
    n_negative = 0
    for _ in range(20):
        bounds = count_bounds(hidden_round(rng, n=15, epsilon=0.3))
        sizes = bounds.sizes.tolist()
        noise = bounds.noise_model.bound_of_hidden_total(0.0025) / 2
        m = int(rng.integers(0, 4))
        sums = [
            sum(remaining)
            for n_remaining in range(len(sizes) - m, len(sizes) + 1)
            for remaining in combinations(sizes, n_remaining)
        ]
        totals = np.arange(max(1, int(min(sums) - noise)), int(np.ceil(max(sums) + noise)) + 1)
        critical = critical_counts(totals, LEVEL, 0.04).tolist()
        slack = [10 * c - 9 * n for c, n in zip(critical, totals.tolist(), strict=True)]
        test = noisy_size_tail_test(bounds, m, LEVEL, 0.04, 0.01)
        assert test.min_excess >= max(slack)
        n_negative += m > 0 and min(sizes) < 0
    assert n_negative


def test_intervals_of_private_counts_spend_a_quarter_of_delta_on_noise_on_either_side():
    """Half of delta is for noise and half for sampling, each in equal parts for both sides."""
    rng = np.random.default_rng(3)
    n_clients, n_bins, beta = 5, 8, 0.06
    counts = rng.multinomial(80, np.full(n_bins, 1 / n_bins), n_clients)
    counts[0] = [80, *np.zeros(n_bins - 1, dtype=int)]
    privacy = Privacy(1.0)
    federation = Federation.from_counts(
        counts + draw(rng, privacy.noise, counts.shape),
        Binning.uniform(n_bins),
        privacy=privacy,
        sample_sizes=[80] * n_clients,
    )
    bounds = count_bounds(federation)
    bins = np.arange(n_bins - 1)
    delta = beta / (n_clients * len(bins))
    intervals = ClientIntervals(federation, beta)

    # Estimates and noise are in half counts.
    estimates = bounds.estimates(bins)
    noise = bounds.noise_model.bounds_of_clients(bins, delta / 4)
    for e, k in np.ndindex(intervals.low.shape):
        counts_possible = [c for c in range(81) if abs(2 * c - estimates[e, k]) <= noise[e, k]]
        min_count = min(counts_possible)
        max_count = max(counts_possible)
        low = (
            0 if min_count == 0 else beta_distribution.ppf(delta / 4, min_count, 80 - min_count + 1)
        )
        high = (
            1
            if max_count == 80
            else beta_distribution.ppf(1 - delta / 4, max_count + 1, 80 - max_count)
        )
        assert intervals.low[e, k] == pytest.approx(low, abs=1e-9)
        assert intervals.high[e, k] == pytest.approx(high, abs=1e-9)


def test_intervals_of_mean_loss_drops_spend_half_of_delta_on_either_side():
    """exp(-n kl(mean drop, p)) is half of delta at either bound."""
    rng = np.random.default_rng(4)
    n_clients, n_bins, beta = 4, 6, 0.06
    risk = Risk("fnr", resolution=12)
    sizes = rng.integers(20, 200, n_clients)
    counts = rng.multinomial(sizes * risk.resolution, [0.3, 0.1, 0.1, 0.1, 0.1, 0.3])
    federation = Federation.from_reports(
        Report(f"site-{k}", counts[k], Binning.uniform(n_bins), n_samples=int(sizes[k]), risk=risk)
        for k in range(n_clients)
    )
    assert not federation.is_coarsened.any()
    intervals = ClientIntervals(federation, beta)
    log_delta = np.log(beta / (n_clients * (n_bins - 1)) / 2)

    for k in range(n_clients):
        mean_drops = np.cumsum(counts[k])[:-1] / counts[k].sum()
        for e, mean_drop in enumerate(mean_drops.tolist()):

            def excess(p, mean_drop=mean_drop, n=int(sizes[k])):
                kl = rel_entr(mean_drop, p) + rel_entr(1 - mean_drop, 1 - p)
                return -n * kl - log_delta

            low = brentq(excess, 1e-12, mean_drop)
            high = brentq(excess, mean_drop, 1 - 1e-12)
            assert intervals.low[e, k] == pytest.approx(low, abs=1e-8)
            assert intervals.high[e, k] == pytest.approx(high, abs=1e-8)


def test_hidden_sizes_allow_for_noise_below_and_above_a_bin():
    """Coverage is smallest where noise raised the counts below and lowered those above."""
    rng = np.random.default_rng(5)
    bounds = count_bounds(hidden_round(rng, n=300))
    bins = np.arange(bounds.n_bins)
    max_malicious = np.arange(3)
    lowest, highest = min_and_max_coverage(bounds, bins, max_malicious, 0.01)
    noise_below, noise_above = (noise.tolist() for noise in bounds.noise_bounds(bins, 0.01))
    assert noise_below != noise_above

    cumulative = bounds.estimates(bins)
    above = bounds.sizes_in_units - cumulative
    n_clients = len(bounds.sizes)
    for m, e in np.ndindex(lowest.shape):
        lower_fractions = []
        upper_fractions = []
        for n_remaining in range(n_clients - m, n_clients + 1):
            for remaining in combinations(range(n_clients), n_remaining):
                n_below = int(cumulative[e, list(remaining)].sum())
                n_above = int(above[e, list(remaining)].sum())
                min_below = n_below - noise_below[e]
                max_below = n_below + noise_below[e]
                lower_fractions.append(Fraction(min_below, min_below + n_above + noise_above[e]))
                upper_fractions.append(Fraction(max_below, max_below + n_above - noise_above[e]))
        assert lowest[m, e] == pytest.approx(float(min(lower_fractions)), rel=1e-12)
        assert highest[m, e] == pytest.approx(float(max(upper_fractions)), rel=1e-12)


def test_the_noise_of_hidden_sizes_is_that_of_the_bins_below_and_of_those_above():
    """Each side has half of delta: a tail of a sum of draws, convolved draw by draw."""
    federation = hidden_round(np.random.default_rng(6), n_clients=2, bins=5)
    (noise,) = set(federation.noise_models)
    mass = noise.mass(60)
    bounds_below, bounds_above = count_bounds(federation).noise_bounds(np.arange(5), 0.02)

    def bound(n_draws):
        """Return the smallest b with P(sum > b) <= 0.01, in half counts."""
        distribution = np.ones(1)
        for _ in range(n_draws):
            distribution = np.convolve(distribution, mass)
        tails = 1 - np.cumsum(distribution)
        return 2 * max(0, int(np.argmax(tails <= 0.01)) - 60 * n_draws)

    assert bounds_below.tolist() == [bound(2 * n_bins) for n_bins in (1, 2, 3, 4, 5)]
    assert bounds_above.tolist() == [bound(2 * n_bins) for n_bins in (4, 3, 2, 1, 0)]


def test_critical_loss_drops_exceed_the_mean_for_any_delta():
    totals = np.arange(1, 60)
    levels = Fraction(9, 10), Fraction(1, 2), Fraction(99, 100)
    n_lowest = 0
    for level, resolution, delta in product(levels, (2, 12, 36), (0.05, 0.5, 0.99)):
        critical = _tail_bounds.critical_loss_drops(totals, level, delta, resolution)
        for n, drops in zip(totals.tolist(), critical.tolist(), strict=True):
            expected = min(c for c in range(resolution * n + 2) if c >= resolution * level * n + 1)
            assert expected <= drops <= resolution * n + 1
            n_lowest += drops == expected
    assert n_lowest
