"""The bets: closed forms, exact means by enumeration, and p-values against their definition."""

from itertools import permutations, product

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import kstest

from robfcp.monitoring import _betting as betting

FLOORS = [0.5, 0.8, 0.9, 0.99]
NOTHING = np.full(betting.N_BETS, -np.inf)


def bets(floor):
    """The lambdas behind the mixture, (q - a) / (a (1 - a))."""
    return betting.BET_FRACTIONS / (1 - floor)


def wealth(floor, missed):
    """(T,) ln W after each sample."""
    factors = betting.log_bet_factors(floor, np.asarray(missed))
    return betting.log_wealth(betting.log_mixture_wealth(NOTHING, 0, factors), 0)


@pytest.mark.parametrize("floor", FLOORS)
def test_wealth_is_the_mean_over_bets_and_starts_of_plain_products(floor):
    assert ((bets(floor) > 0) & (bets(floor) < 1 / (1 - floor))).all()  # wealth stays positive
    missed = np.random.default_rng(0).random(40) < 0.3
    factors = 1 + np.outer(missed - (1 - floor), bets(floor))
    logs = wealth(floor, missed)
    for t in range(1, 41):
        plain = 1 / (t + 1) + sum(
            np.prod(factors[s - 1 : t], axis=0).mean() / (s * (s + 1)) for s in range(1, t + 1)
        )
        np.testing.assert_allclose(np.exp(logs[t - 1]), plain, rtol=1e-9)


@pytest.mark.parametrize("floor", FLOORS)
def test_mean_wealth_is_one_at_the_floor_and_less_above_it(floor):
    """Over all 2^9 sequences, no simulation. R_t - t is a martingale."""
    at = above = change = 0.0
    for sequence in product([False, True], repeat=9):
        found, chance = np.exp(wealth(floor, sequence)[-1]), np.where(sequence, 1 - floor, floor)
        logs = betting.log_shiryaev_roberts(
            NOTHING, betting.log_bet_factors(floor, np.array(sequence))
        )
        at += found * np.prod(chance)
        change += np.exp(betting.log_mean(logs)[-1]) * np.prod(chance)
        less = 0.7 * (1 - floor)
        above += found * np.prod(np.where(sequence, less, 1 - less))
    assert (at, change) == pytest.approx((1, 9), rel=1e-9)
    assert above < 1


def test_change_is_the_plain_recursion():
    missed = np.random.default_rng(1).random(50) < 0.2
    plain, rows = np.zeros(betting.N_BETS), []
    for miss in missed:
        plain = (1 + plain) * (1 + bets(0.9) * (miss - 0.1))
        rows.append(plain)
    logs = betting.log_shiryaev_roberts(NOTHING, betting.log_bet_factors(0.9, missed))
    np.testing.assert_allclose(np.exp(logs), rows, rtol=1e-9)


def brute_p_values(report, fresh, u):
    bag, found = list(report), []
    for score, draw in zip(fresh, u, strict=True):
        larger, same = sum(b > score for b in bag), sum(b == score for b in bag)
        found.append((larger + draw * (same + 1)) / (len(bag) + 1))
        bag.append(score)
    return found


@pytest.mark.parametrize("n", [5, 300, 700])
def test_p_values_are_those_of_the_definition_whatever_the_blocks(n):
    rng = np.random.default_rng(n)
    report, fresh, u = rng.integers(0, 12, 40), rng.integers(0, 12, n), rng.random(n)
    bag = np.bincount(report, minlength=12)
    found = betting.conformal_p_values(bag, fresh, u)
    np.testing.assert_allclose(found, brute_p_values(report, fresh, u))
    np.testing.assert_array_equal(bag, np.bincount(np.concatenate([report, fresh]), minlength=12))


def test_p_values_are_uniform_over_all_orders_of_any_bag():
    """Six scores in every order, three of them reported: each cell of (p_4, p_5, p_6) is equal.

    With u on a fine lattice the joint distribution is summed exactly, not simulated.
    """
    scores = [0, 0, 1, 1, 1, 2]
    u = (np.arange(6) + 0.5) / 6
    counts = np.zeros((2, 2, 2))
    for order in set(permutations(scores)):
        for draws in product(u, repeat=3):
            bag = np.bincount(order[:3], minlength=3)
            p = betting.conformal_p_values(bag, np.array(order[3:]), np.array(draws))
            counts[tuple((p >= 0.5).astype(int))] += 1
    np.testing.assert_allclose(counts / counts.sum(), 1 / 8, atol=0.008)


def test_every_bet_is_fair_whatever_was_seen():
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
