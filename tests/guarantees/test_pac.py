"""PAC thresholds against brute force over benign sets and against scipy's binomial tails."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from effort import cases, thorough
from scipy.special import rel_entr
from scipy.stats import binom

from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import homogeneous_threshold, pac_threshold
from robfcp.guarantees.alike import homogeneous_votes
from robfcp.guarantees.tails import PacCondition, critical_counts

LEVEL = Fraction(4, 5)


def brute_force(below: np.ndarray, sizes: np.ndarray, m: int, level: Fraction, delta: float):
    """Whether every set that leaves out at most m clients reaches its own critical count."""
    for number in range(m + 1):
        for removed in combinations(range(len(sizes)), number):
            kept = [k for k in range(len(sizes)) if k not in removed]
            needed = critical_counts(np.array([sizes[kept].sum()]), level, delta)[0]
            if below[kept].sum() < needed:
                return False
    return True


@pytest.mark.parametrize("level", [Fraction(9, 10), Fraction(1, 2), Fraction(99, 100)])
@pytest.mark.parametrize("delta", thorough([0.05, 0.4, 1e-6], 0.05))
def test_critical_count_is_the_least_rare_count_beyond_the_mean(level, delta):
    totals = np.arange(1, 400, 7)
    for total, found in zip(totals, critical_counts(totals, level, delta), strict=True):
        candidates = [
            c
            for c in range(int(total) + 2)
            if c >= level * int(total) + 1 and binom.sf(c - 1, total, float(level)) <= delta
        ]
        assert found == min(candidates)


@pytest.mark.effort
def test_pac_condition_is_exact_for_equal_sizes():
    rng = np.random.default_rng(0)
    outcomes = []
    for _ in range(cases(100)):
        n, n_clients = int(rng.integers(5, 60)), int(rng.integers(2, 8))
        m = int(rng.integers(0, n_clients))
        below = rng.binomial(n, rng.uniform(0.75, 1), n_clients)
        sizes = np.full(n_clients, n)
        wanted = brute_force(below, sizes, m, LEVEL, 0.1)
        assert bool(PacCondition(sizes, m, LEVEL, 0.1).holds(below[None, :])[0]) == wanted
        outcomes.append(wanted)
    assert 0.125 < np.mean(outcomes) < 0.875


@pytest.mark.effort
def test_pac_condition_implies_the_critical_count_of_every_benign_set_for_unequal_sizes():
    rng = np.random.default_rng(1)
    passed = agreed = 0
    for _ in range(cases(150)):
        n_clients = int(rng.integers(2, 8))
        m = int(rng.integers(0, n_clients))
        sizes = rng.integers(3, 200, n_clients)
        below = rng.binomial(sizes, rng.uniform(0.75, 1))
        wanted = brute_force(below, sizes, m, LEVEL, 0.1)
        found = bool(PacCondition(sizes, m, LEVEL, 0.1).holds(below[None, :])[0])
        assert wanted or not found
        passed += found
        agreed += found == wanted
    assert passed > 0.1 * cases(150)
    assert agreed > 0.95 * cases(150)


@pytest.mark.effort
def test_skipping_totals_between_the_ones_looked_at_stays_sound():
    rng = np.random.default_rng(2)
    for _ in range(cases(8)):
        sizes = rng.integers(1000, 9000, 6)
        below = rng.binomial(sizes, rng.uniform(0.79, 0.83))
        found = bool(PacCondition(sizes, 2, LEVEL, 0.05).holds(below[None, :])[0])
        assert brute_force(below, sizes, 2, LEVEL, 0.05) or not found


def test_all_edges_at_once_equal_one_edge_at_a_time():
    rng = np.random.default_rng(3)
    sizes = rng.integers(20, 200, 12)
    below = np.sort(rng.binomial(sizes[:, None], 0.85, (12, 25)), axis=1).T
    condition = PacCondition(sizes, 2, LEVEL, 0.1)
    singles = [bool(condition.holds(counts[None, :])[0]) for counts in below]
    assert condition.holds(below).tolist() == singles
    assert set(singles) == {True, False}


def test_pac_threshold_is_the_first_edge_at_which_the_condition_holds():
    rng = np.random.default_rng(4)
    for _ in range(50):
        federation = Federation.from_counts(rng.multinomial(60, np.full(12, 1 / 12), 9))
        holds = PacCondition(federation.sizes, 1, LEVEL, 0.1).holds(federation.cumulative().T)
        wanted = int(np.argmax(holds)) if holds.any() else None
        assert pac_threshold(federation, LEVEL, 1, 0.1) == wanted


@pytest.mark.parametrize("m", [0, 5, 20, 45])
def test_more_than_v_errors_among_the_benign_are_rarer_than_delta(m):
    gamma, votes = homogeneous_votes(100, m, 0.05)
    assert binom.sf(votes, 100 - m, gamma) == pytest.approx(0.05)
    assert m + votes + 1 <= 100 - m


def test_homogeneous_threshold_needs_enough_clients_with_rare_counts():
    rng = np.random.default_rng(5)
    level = 0.8
    for sigma in (0.0, 0.03):
        federation = Federation.from_counts(rng.multinomial(80, np.full(20, 0.05), 30))
        gamma, votes = homogeneous_votes(30, 6, 0.1)
        tails = binom.sf(federation.cumulative() - 1, 80, level + 2 * sigma) <= gamma
        attained = binom.sf(np.arange(82) - 1, 80, level + 2 * sigma)
        attained = attained[attained <= gamma].max()
        allowed = min(votes, int(binom.isf(0.1, 24, attained)))
        index = int(np.argmax(tails.sum(axis=0) >= 6 + allowed + 1))
        assert homogeneous_threshold(federation, LEVEL, 6, 0.1, sigma) == index


def test_homogeneous_threshold_withstands_almost_half_the_clients_reporting_the_top():
    rng = np.random.default_rng(6)
    counts = rng.multinomial(500, np.full(50, 0.02), 100)
    counts[:40] = 0
    counts[:40, -1] = 500
    federation = Federation.from_counts(counts)
    index = homogeneous_threshold(federation, Fraction(9, 10), 40, 0.05)
    assert index is not None
    assert 0.9 <= federation.grid.upper[index] < 0.96


def test_clients_too_different_or_too_small_get_no_threshold():
    federation = Federation.from_counts(np.full((10, 4), 5))
    assert homogeneous_threshold(federation, Fraction(9, 10), 2, 0.05, sigma=0.06) is None
    tiny = Federation.from_counts(np.ones((10, 4), dtype=int))
    assert pac_threshold(tiny, Fraction(99, 100), 2, 0.01) is None
    assert homogeneous_threshold(tiny, Fraction(99, 100), 2, 0.01) is None


def test_a_chance_or_a_heterogeneity_outside_its_range_is_refused():
    federation = Federation.from_counts(np.full((10, 4), 5))
    with pytest.raises(RobfcpError, match="delta"):
        pac_threshold(federation, LEVEL, 1, 0.0)
    with pytest.raises(RobfcpError, match="heterogeneity"):
        homogeneous_threshold(federation, LEVEL, 1, 0.1, sigma=-0.1)


def test_sums_of_unlike_indicators_have_lighter_tails_than_the_binomial_beyond_the_mean():
    """Hoeffding's theorem of 1956 and the kl form of Chernoff's bound, which the proofs rest on."""
    rng = np.random.default_rng(7)
    for _ in range(200):
        chances = rng.beta(*rng.uniform(0.1, 5, 2), size=int(rng.integers(2, 40)))
        law = np.ones(1)
        for chance in chances:
            law = np.convolve(law, [1 - chance, chance])
        n, mean = len(chances), chances.mean()
        for count in range(int(np.ceil(n * mean)) + 1, n + 1):
            tail = law[count:].sum()
            assert tail <= binom.sf(count - 1, n, mean) + 1e-12
            share = count / n
            divergence = rel_entr(share, mean) + rel_entr(1 - share, 1 - mean)
            assert tail <= np.exp(-n * divergence) + 1e-12
