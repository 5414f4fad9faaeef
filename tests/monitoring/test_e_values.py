"""The bets: closed forms, exact means by enumeration, and p-values against their definition."""

from itertools import permutations, product

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import kstest

from robfcp.monitoring import _e_values as betting

MIN_COVERAGES = [0.5, 0.8, 0.9, 0.99]
NO_WEALTHS = np.full(betting.N_BETS, -np.inf)


def bets(min_coverage):
    """Return the lambdas of the mixture, (q - a) / (a (1 - a))."""
    return betting.BET_FRACTIONS / (1 - min_coverage)


def wealth(min_coverage, missed):
    """Return (T,) ln W after each sample."""
    factors = betting.log_bet_factors(min_coverage, np.asarray(missed))
    return betting.log_wealth(betting.log_mixture_wealth(NO_WEALTHS, 0, factors), 0)


@pytest.mark.parametrize("min_coverage", MIN_COVERAGES)
def test_wealth_is_the_mean_of_products_over_bets_and_starts(min_coverage):
    assert (
        (bets(min_coverage) > 0) & (bets(min_coverage) < 1 / (1 - min_coverage))
    ).all()  # wealth stays positive
    missed = np.random.default_rng(0).random(40) < 0.3
    factors = 1 + np.outer(missed - (1 - min_coverage), bets(min_coverage))
    logs = wealth(min_coverage, missed)
    for t in range(1, 41):
        expected = 1 / (t + 1) + sum(
            np.prod(factors[s - 1 : t], axis=0).mean() / (s * (s + 1)) for s in range(1, t + 1)
        )
        np.testing.assert_allclose(np.exp(logs[t - 1]), expected, rtol=1e-9)


@pytest.mark.parametrize("min_coverage", MIN_COVERAGES)
def test_mean_wealth_is_1_at_the_minimum_coverage_and_less_above_it(min_coverage):
    """Over all 2^9 sequences, no simulation. R_t - t is a martingale."""
    mean_at_minimum = mean_above = mean_statistic = 0.0
    for sequence in product([False, True], repeat=9):
        wealth_ = np.exp(wealth(min_coverage, sequence)[-1])
        probabilities = np.where(sequence, 1 - min_coverage, min_coverage)
        logs = betting.log_shiryaev_roberts(
            NO_WEALTHS, betting.log_bet_factors(min_coverage, np.array(sequence))
        )
        mean_at_minimum += wealth_ * np.prod(probabilities)
        mean_statistic += np.exp(betting.log_mean(logs)[-1]) * np.prod(probabilities)
        lower_miss_rate = 0.7 * (1 - min_coverage)
        mean_above += wealth_ * np.prod(np.where(sequence, lower_miss_rate, 1 - lower_miss_rate))
    assert (mean_at_minimum, mean_statistic) == pytest.approx((1, 9), rel=1e-9)
    assert mean_above < 1


def test_shiryaev_roberts_is_its_recursion():
    missed = np.random.default_rng(1).random(50) < 0.2
    statistics, expected = np.zeros(betting.N_BETS), []
    for is_missed in missed:
        statistics = (1 + statistics) * (1 + bets(0.9) * (is_missed - 0.1))
        expected.append(statistics)
    logs = betting.log_shiryaev_roberts(NO_WEALTHS, betting.log_bet_factors(0.9, missed))
    np.testing.assert_allclose(np.exp(logs), expected, rtol=1e-9)


def brute_p_values(report, fresh, uniforms):
    previous_scores, p_values = list(report), []
    for score, draw in zip(fresh, uniforms, strict=True):
        n_larger = sum(b > score for b in previous_scores)
        n_equal = sum(b == score for b in previous_scores)
        p_values.append((n_larger + draw * (n_equal + 1)) / (len(previous_scores) + 1))
        previous_scores.append(score)
    return p_values


@pytest.mark.parametrize("n", [5, 300, 700])
def test_p_values_are_those_of_the_definition_for_all_sizes_of_blocks(n):
    rng = np.random.default_rng(n)
    report, fresh, uniforms = rng.integers(0, 12, 40), rng.integers(0, 12, n), rng.random(n)
    histogram = np.bincount(report, minlength=12)
    p_values = betting.conformal_p_values(histogram, fresh, uniforms)
    np.testing.assert_allclose(p_values, brute_p_values(report, fresh, uniforms))
    np.testing.assert_array_equal(
        histogram, np.bincount(np.concatenate([report, fresh]), minlength=12)
    )


def test_p_values_are_uniform_over_all_orders_of_the_scores():
    """Six scores in every order, three of them reported: each cell of (p_4, p_5, p_6) is equal.

    With u on a fine lattice the joint distribution is summed exactly, not simulated.
    """
    scores = [0, 0, 1, 1, 1, 2]
    uniforms = (np.arange(6) + 0.5) / 6
    counts = np.zeros((2, 2, 2))
    for order in set(permutations(scores)):
        for draws in product(uniforms, repeat=3):
            histogram = np.bincount(order[:3], minlength=3)
            p = betting.conformal_p_values(histogram, np.array(order[3:]), np.array(draws))
            counts[tuple((p >= 0.5).astype(int))] += 1
    np.testing.assert_allclose(counts / counts.sum(), 1 / 8, atol=0.008)


def test_every_bet_is_fair_for_any_earlier_p_values():
    """Each factor integrates to 1 over a uniform p-value."""
    cells = np.array([5, 0, 0, 9, 1, 0, 0, 0, 2, 40])
    edges = np.arange(1, 10) / 10
    for j in range(betting.N_EXCHANGE_BETS):

        def factor(p, j=j):
            return np.exp(betting.log_p_value_bets(np.array([p]), cells.copy())[0, j])

        area, _ = quad(factor, 0, 1, points=edges, limit=500)
        assert area == pytest.approx(1, abs=1e-5)


def test_tie_breaking_draws_are_uniform():
    assert kstest(betting.philox_uniforms(7, 0, 1000), "uniform").pvalue > 0.01
