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
from robfcp.guarantees.tails import PacCondition, critical_counts, pac_threshold

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


def test_clients_too_small_get_no_threshold():
    tiny = Federation.from_counts(np.ones((10, 4), dtype=int))
    assert pac_threshold(tiny, Fraction(99, 100), 2, 0.01) is None


def test_a_chance_outside_its_range_is_refused():
    federation = Federation.from_counts(np.full((10, 4), 5))
    with pytest.raises(RobfcpError, match="delta"):
        pac_threshold(federation, LEVEL, 1, 0.0)


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
