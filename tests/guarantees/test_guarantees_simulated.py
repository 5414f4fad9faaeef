"""All guarantees over 2,000 rounds against malicious clients that know all benign data.

Each case samples a number for each round whose mean is guaranteed to be at most `bound`: whether
the round failed, or the miscoverage at benign clients. It must hold for m malicious clients, and
fail where the guarantee is for m - 1. Coverage is computed from the true distributions, so that
only calibration data are random. Where larger cumulative counts only help a bin to be accepted,
the worst report has all samples in the lowest bin.
With `pytest -s -m ""` it prints the table in docs/certificates.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import label_shift as shift
from noises import draw

from robfcp import PACGuarantee, Privacy
from robfcp.binning import Binning
from robfcp.federation import Federation
from robfcp.guarantees import CountBounds, count_bounds, marginal_threshold_bin
from robfcp.guarantees._certify import coverage_intervals
from robfcp.guarantees._label_shift_thresholds import ClassCounts
from robfcp.guarantees._local_bounds import TrustedInterval, client_thresholds, clipping_ranks
from robfcp.guarantees._tail_bounds import marginal_tail_test, pac_tail_test, pac_threshold
from robfcp.monitoring import _e_values as betting
from robfcp.monitoring._merge import log_mean_of_smallest

N_RUNS, LEVEL, ALPHA, DELTA = 2000, Fraction(9, 10), 0.1, 0.1
EDGES = np.linspace(0.86, 0.94, 60)
UNEQUAL = 4 * np.array([20, 30, 35, 40, 40, 50, 55, 60, 80, 25, 40, 60])
EQUAL = np.full(12, 200)


class Rounds(NamedTuple):
    """(R, E, K) cumulative counts, the last clients malicious; (K,) sizes, (E,) coverage."""

    cumulative: np.ndarray
    sizes: np.ndarray
    true_cdf: np.ndarray

    def miscoverage(self, accepted):
        """Return (R,) miscoverage at the first accepted bin; 0 where the threshold is infinite."""
        first = np.where(accepted.any(axis=1), accepted.argmax(axis=1), accepted.shape[1])
        return 1 - np.append(self.true_cdf, 1)[first]

    def accepted_bins(self, tail, max_malicious, counts_per_sample=1):
        cumulative = self.cumulative.reshape(-1, len(self.sizes))
        return tail.accepts(cumulative, counts_per_sample * self.sizes, max_malicious).reshape(
            self.cumulative.shape[:2]
        )


@lru_cache(maxsize=3)  # for m, then for m - 1
def sample_rounds(seed, sizes, n_malicious, spread=0.5, counts_per_sample=1, edges=tuple(EDGES)):
    """Sample rounds of clients with scores U^(1/p), p from e^-spread to e^spread."""
    sizes, edges = np.array(sizes), np.array(edges)
    rng, n_benign = np.random.default_rng(seed), len(sizes) - n_malicious
    cdf = edges ** np.exp(rng.uniform(-spread, spread, len(sizes)))[:, None]
    probabilities = np.diff(cdf, prepend=0, append=1, axis=1)
    cumulative = rng.multinomial(
        counts_per_sample * sizes, probabilities, (N_RUNS, len(sizes))
    ).cumsum(axis=2)[:, :, :-1]
    cumulative[:, n_benign:] = counts_per_sample * sizes[n_benign:, None]
    true_cdf = sizes[:n_benign] @ cdf[:n_benign] / sizes[:n_benign].sum()
    return Rounds(np.ascontiguousarray(cumulative.transpose(0, 2, 1)), sizes, true_cdf)


def marginal_miscoverage(max_malicious, sizes=UNEQUAL, counts_per_sample=1):
    sampled = sample_rounds(1, tuple(sizes), 2, counts_per_sample=counts_per_sample)
    tail = marginal_tail_test(LEVEL, len(sizes), counts_per_sample)
    accepted = sampled.accepted_bins(tail, max_malicious, counts_per_sample)
    return sampled.miscoverage(accepted)


def pac_fails(max_malicious, sizes=UNEQUAL, counts_per_sample=1, spread=0.5):
    sampled = sample_rounds(2, tuple(sizes), 2, spread, counts_per_sample)
    tail = pac_tail_test(sizes, max_malicious, LEVEL, DELTA, counts_per_sample)
    accepted = sampled.accepted_bins(tail, max_malicious, counts_per_sample)
    return sampled.miscoverage(accepted) > ALPHA


def pac_by_class_fails(max_malicious):
    """Return which rounds fail: three classes share delta, and any of them may fail."""
    is_failed = np.zeros(N_RUNS, dtype=bool)
    for c in range(3):
        sampled = sample_rounds((3, c), tuple(EQUAL), 2)
        tail = pac_tail_test(EQUAL, max_malicious, LEVEL, DELTA / 3)
        is_failed |= sampled.miscoverage(sampled.accepted_bins(tail, max_malicious)) > ALPHA
    return is_failed


class ConcatenatedRounds(CountBounds):
    """Many rounds as one, with the bins of all of them."""

    def __init__(self, sampled):
        self.counts = sampled.cumulative.reshape(-1, len(sampled.sizes))
        self.sizes = sampled.sizes
        self.n_bins, self.counts_per_sample = sampled.cumulative.shape[1] + 1, 1
        self.noise_model = None

    def lower_and_upper(self, bins):
        return self.counts[bins], self.counts[bins]


def certificate_points_fail(max_malicious):
    """Return which rounds fail: any interval of a bin for the true m or more that is wrong."""
    sampled = sample_rounds(4, tuple(10 * UNEQUAL), 2, edges=(0.3, 0.9))
    all_bins = np.arange(N_RUNS * len(sampled.true_cdf))
    numbers_malicious = [max_malicious, max_malicious + 1]
    low, high = coverage_intervals(ConcatenatedRounds(sampled), all_bins, numbers_malicious, DELTA)
    true_cdf = np.tile(sampled.true_cdf, N_RUNS)
    is_outside = ((low > true_cdf) | (high < true_cdf)).any(axis=0)
    return is_outside.reshape(N_RUNS, -1).any(axis=1)


def forged_counts(rng, counts, shifted_fraction):
    """Return (K, H) counts whose last four rows are the pooled benign ones, shifted downwards."""
    benign_mean = counts[:-4].mean(axis=0)
    shifted_pool = np.round(np.cumsum(benign_mean * (1 - shifted_fraction))).astype(int)
    attacked = counts.copy()
    attacked[-4:] = np.diff(shifted_pool, prepend=0)
    attacked[-4:, 0] += counts[0].sum() - attacked[-1].sum()
    return attacked


def pac_with_heterogeneity_fails(max_malicious, sigma=0.0):
    """Return which rounds fail: four of nine clients are malicious, more or less visibly."""
    rng = np.random.default_rng(5)
    binning = Binning.uniform(61)
    is_failed = np.zeros(N_RUNS, dtype=bool)
    for run in range(N_RUNS):
        cdf = EDGES + rng.uniform(-sigma, sigma, (9, 1)) * (1 - EDGES) / (1 - EDGES[0])
        counts = rng.multinomial(500, np.diff(cdf, prepend=0, append=1, axis=1))
        for shifted_fraction in (1, 1 / 8, 1 / 16):
            federation = Federation.from_counts(
                forged_counts(rng, counts, shifted_fraction), binning
            )
            bin_index, _ = PACGuarantee(max_malicious, sigma).threshold(
                federation, LEVEL, 1 - DELTA
            )
            is_failed[run] |= (
                bin_index is not None and bin_index < 60 and cdf[:5, bin_index].mean() < 0.9
            )
    return is_failed


def private_miscoverage(max_malicious, sizes_known=True):
    """Return miscoverage of a marginal threshold of noisy counts, or failures of PAC."""
    rng, binning, results = np.random.default_rng(6), Binning.uniform(21), []
    privacy = Privacy(2.0, neighbors="substitution" if sizes_known else "add-remove")
    sampled = sample_rounds(7, tuple(10 * EQUAL), 2, edges=tuple(EDGES[::3]))
    counts = np.diff(sampled.cumulative, prepend=0, axis=1).transpose(0, 2, 1)
    for round_counts in counts if sizes_known else counts[:250]:
        histograms = np.column_stack([round_counts, sampled.sizes - round_counts.sum(axis=1)])
        noisy = histograms + draw(rng, privacy.noise, histograms.shape)
        noisy[-2:] = histograms[-2:]
        federation = Federation.from_counts(
            noisy, binning, privacy=privacy, sample_sizes=sampled.sizes if sizes_known else None
        )
        if sizes_known:
            bin_index = marginal_threshold_bin(federation, LEVEL, max_malicious)
        else:
            bin_index = pac_threshold(count_bounds(federation), LEVEL, max_malicious, DELTA)
        results.append(0 if bin_index is None else 1 - np.append(sampled.true_cdf, 1)[bin_index])
    return np.array(results) if sizes_known else np.array(results) > ALPHA


def label_shift_threshold(guarantee_rule, attack):
    """Return a function of m that returns failures of label-shift rules against an attack."""
    scenario = shift.World(9, 20_000, 2, 5.0, 3)
    return lambda max_malicious: (
        np.arange(N_RUNS)
        < shift.failures(scenario, attack, guarantee_rule, [max_malicious], N_RUNS)[0]
    )


def local_threshold(max_malicious):
    """Return the miscoverage of local thresholds (T3): a malicious client claims 20 times its
    samples, all in the lowest bin, or hides half of its misses, whichever is worse."""
    rng, results = np.random.default_rng(8), np.empty(N_RUNS)
    edges, label_distribution, class_names = np.arange(9), np.array([0.7, 0.3]), ("a", "b")
    cdfs = 1 - np.outer([0.7, 1.6], [0.4, 0.2, 0.13, 0.1, 0.09, 0.08, 0.07, 0.06, 0])
    for run in range(N_RUNS):
        sizes = rng.multinomial(1000, rng.dirichlet([3, 3], 10))
        sizes[0] = rng.multinomial(30, label_distribution)
        cumulative = rng.multinomial(sizes, np.diff(cdfs, prepend=0, axis=1)).cumsum(axis=2)
        bins = []
        for factor, hidden_fraction in ((20, 1), (1, 0.5)):
            claimed_sizes, claimed = sizes.copy(), cumulative.copy()
            claimed_sizes[-1] *= factor
            claimed[-1] = claimed_sizes[-1][:, None] - np.floor(
                (1 - hidden_fraction) * factor * (sizes[:, :, None] - cumulative)[-1]
            )
            claimed_counts = ClassCounts(
                claimed.transpose(2, 0, 1), claimed_sizes, edges, tuple("abcdefghij"), class_names
            )
            bins.append(client_thresholds(claimed_counts, ALPHA, max_malicious, clients=[0])[0])
        miss_rates = [1 - cdfs[:, bin_index] for bin_index in bins]  # -1, infinite, misses nothing
        results[run] = label_distribution @ np.max(miss_rates, axis=0)
    return results


def trusted_lower_bound(rank_error):
    """Return miscoverage of the lower bound of 29 trusted samples above 1 - a/(n+1)."""
    a, _ = clipping_ranks(29, 0.9, DELTA, DELTA)
    sorted_scores = np.sort(np.random.default_rng(10).random((N_RUNS, 29)), axis=1)
    binning = Binning.uniform(2000)
    intervals = [
        TrustedInterval.from_counts(binning.counts(row), LEVEL, DELTA)
        for row in sorted_scores[:200]
    ]
    assert (
        binning.upper_edges[[interval.clip(0) for interval in intervals]]
        >= sorted_scores[:200, a - 1]
    ).all()
    return 1 - sorted_scores[:, a - 1] - (1 - (a + 1 - rank_error) / 30)


@cache
def trusted_intervals():
    """Return the interval of 100 trusted samples of each round."""
    probabilities, rng = np.diff(EDGES, prepend=0, append=1), np.random.default_rng(9)
    return [
        TrustedInterval.from_counts(counts, LEVEL, DELTA)
        for counts in rng.multinomial(100, probabilities, N_RUNS)
    ]


def trusted_pac(max_malicious):
    """Return failures of a PAC threshold clipped to the interval of 100 trusted samples."""
    sampled = sample_rounds(11, tuple(EQUAL), 2, spread=0)
    is_accepted = sampled.accepted_bins(
        pac_tail_test(EQUAL, max_malicious, LEVEL, DELTA), max_malicious
    )
    first_bins = np.where(is_accepted.any(axis=1), is_accepted.argmax(axis=1), len(EDGES)).tolist()
    bins = [
        interval.clip(bin_index)
        for interval, bin_index in zip(trusted_intervals(), first_bins, strict=True)
    ]
    return np.append(EDGES, 1)[bins] < 0.9


def merged_alarm(max_malicious):
    """Return alarms: 50 inspections of seven clients at the minimum coverage, two report e^27."""
    n_benign, steps = 5, 50
    is_missed = np.random.default_rng(12).random((steps, N_RUNS * n_benign)) < 0.1
    factors = betting.log_bet_factors(0.9, is_missed.ravel()).reshape(steps, -1)
    wealths = betting.log_mixture_wealth(np.full(factors.shape[1], -np.inf), 0, factors)
    means = betting.log_mean(wealths.reshape(steps, N_RUNS, n_benign, betting.N_BETS))
    log_unbet = -np.log1p(np.arange(1, steps + 1))[:, None, None]
    log_e_values = np.logaddexp(means, log_unbet)
    peak_steps = np.logaddexp.reduce(log_e_values, axis=2).argmax(axis=0)
    log_means = [
        log_mean_of_smallest([*log_e_values[peak_steps[r], r], 27.0, 27.0], max_malicious, 7)
        for r in range(N_RUNS)
    ]
    return np.array(log_means) >= np.log(1 / DELTA)


class Case(NamedTuple):
    """A function of m that samples results, the true m, and the guaranteed bound of their mean."""

    sample: Callable
    m: int
    bound: float


QUICK = {
    "marginal": Case(marginal_miscoverage, 2, ALPHA),
    "marginal, losses": Case(
        lambda max_malicious: marginal_miscoverage(max_malicious, counts_per_sample=2), 2, ALPHA
    ),
    "pac": Case(pac_fails, 2, DELTA),
    "pac, homogeneous clients of one size": Case(
        lambda max_malicious: pac_fails(max_malicious, EQUAL, spread=0), 2, DELTA
    ),
    "pac, losses": Case(
        lambda max_malicious: pac_fails(max_malicious, EQUAL, counts_per_sample=2), 2, DELTA
    ),
    "by class": Case(pac_by_class_fails, 2, DELTA),
    "any threshold, every m": Case(certificate_points_fail, 2, DELTA),
    "trusted data, lower bound": Case(trusted_lower_bound, 1, 0.0),
    "trusted data, pac": Case(trusted_pac, 2, 2 * DELTA),
    "merged alarm": Case(merged_alarm, 2, DELTA),
}
SLOW = {
    "pac, heterogeneity 0": Case(pac_with_heterogeneity_fails, 4, DELTA),
    "pac, heterogeneity 0.02": Case(
        lambda max_malicious: pac_with_heterogeneity_fails(max_malicious, 0.02), 4, DELTA
    ),
    "marginal, private": Case(private_miscoverage, 2, ALPHA),
    "pac, private, sizes hidden": Case(
        lambda max_malicious: private_miscoverage(max_malicious, sizes_known=False), 2, DELTA
    ),
    "label shift, PC": Case(label_shift_threshold("PC", shift.best_copied), 3, shift.DELTA),
    "label shift, T": Case(label_shift_threshold("T", shift.just_unseen), 3, shift.DELTA),
    "local threshold, T3": Case(local_threshold, 1, ALPHA),
}


def n_standard_errors_above(results, bound):
    """Return by how many standard errors the mean is above the bound."""
    standard_deviation = (bound * (1 - bound)) ** 0.5 if results.dtype == bool else np.std(results)
    standard_error = max(standard_deviation, 1e-9) / len(results) ** 0.5
    return (np.mean(results) - bound) / standard_error


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_a_guarantee_holds_for_m_malicious_clients_and_fails_for_a_smaller_m(name):
    case = (QUICK | SLOW)[name]
    results, results_of_smaller_m = case.sample(case.m), case.sample(case.m - 1)
    print(f"| {name} | {case.bound:g} | {results.mean():.4f} | {results_of_smaller_m.mean():.4f} |")
    assert (
        n_standard_errors_above(results, case.bound)
        < 3
        < n_standard_errors_above(results_of_smaller_m, case.bound)
    )


@pytest.mark.parametrize("guarantee_rule", ["PC", "T"])
@pytest.mark.parametrize("attack", shift.ATTACKS)
@pytest.mark.parametrize("runs", [5, pytest.param(N_RUNS, marks=pytest.mark.slow)])
def test_label_shift_holds_against_every_attack(attack, guarantee_rule, runs):
    n_failed = shift.failures(shift.World(16, 200, 4, 1.0, 4), attack, guarantee_rule, [4], runs)[0]
    assert n_standard_errors_above(np.arange(runs) < n_failed, shift.DELTA) < (
        3 if runs == N_RUNS else 15
    )
