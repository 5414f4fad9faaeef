"""Guaranteed thresholds against brute force over all plausible benign sets."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import ceil

import msgspec
import numpy as np
import pytest
from effort import cases

from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import LabelShift, Marginal, Pac, Promise
from robfcp.guarantees.engine import scaled_margins
from robfcp.guarantees.promises import (
    liars_forcing_full_sets,
    liars_no_rule_survives,
    marginal_threshold,
    most_liars,
    slack,
)
from robfcp.guarantees.tails import bounds_of

EIGHT = Federation.from_counts([[5, 5]] * 8)
LEVELS = [Fraction(9, 10), Fraction(1, 2), Fraction(3, 4), Fraction(19, 20), Fraction(1, 3)]


def random_federation(rng: np.random.Generator, largest: int = 40) -> Federation:
    n_clients, bins = int(rng.integers(2, 8)), int(rng.integers(2, 9))
    sizes = rng.integers(1, largest, n_clients)
    shares = rng.dirichlet(np.full(bins, 0.5), n_clients)
    return Federation.from_counts(rng.multinomial(sizes, shares))


def benign_sets(n_clients: int, m: int):
    for number in range(m + 1):
        for removed in combinations(range(n_clients), number):
            yield np.array([k not in removed for k in range(n_clients)])


def fcp(federation: Federation, kept: np.ndarray, level: Fraction) -> float:
    """FCP's threshold on these clients as an edge number, infinity if none.

    A client left alone by removals is charged like the others: who is benign is not known.
    """
    pooled = np.cumsum(federation.counts[kept].sum(axis=0))
    total = int(pooled[-1])
    rank = ceil(level * total) + 1
    if federation.n_clients == 1:
        rank = ceil(level * (total + 1))
    return int(np.searchsorted(pooled, rank)) if rank <= total else np.inf


def slack_at(federation: Federation, edges: np.ndarray, m: int, level: Fraction) -> np.ndarray:
    """(E,) the least sum of c_k - level n_k, times the level's denominator."""
    return slack(scaled_margins(bounds_of(federation), edges, level), m)


def full(sizes: np.ndarray, liars: tuple[int, ...], m: int, level: Fraction) -> bool:
    """Whether liars with everything in the last bin make sets full, the others in the first."""
    below = np.where(np.isin(range(len(sizes)), liars), 0, sizes)
    federation = Federation.from_counts(np.column_stack([below, sizes - below]))
    return bool(slack_at(federation, np.array([0]), m, level)[0] < level.denominator)


def as_number(index: int | None) -> float:
    return np.inf if index is None else index


@pytest.mark.parametrize("number", [300, pytest.param(6000, marks=pytest.mark.slow)])
def test_guaranteed_threshold_is_the_worst_plausible_fcp_threshold(number):
    rng = np.random.default_rng(number)
    finite = 0
    for trial in range(number):
        federation = random_federation(rng)
        level = LEVELS[trial % len(LEVELS)]
        m = int(rng.integers(0, federation.n_clients))
        worst = max(fcp(federation, kept, level) for kept in benign_sets(federation.n_clients, m))
        assert as_number(marginal_threshold(federation, level, m)) == worst
        finite += np.isfinite(worst)
    assert finite > 0.3 * number


@pytest.mark.effort
def test_an_edge_holds_against_the_largest_number_whose_threshold_is_not_higher():
    rng = np.random.default_rng(1)
    for trial in range(cases(150)):
        federation = random_federation(rng)
        level = LEVELS[trial % len(LEVELS)]
        index = int(rng.integers(0, federation.grid.n_bins))
        survived = [
            m
            for m in range(federation.n_clients)
            if as_number(marginal_threshold(federation, level, m=m)) <= index
        ]
        found = most_liars(bounds_of(federation), np.array([index]), level)
        assert found == (max(survived) if survived else -1)


@pytest.mark.effort
def test_a_bound_on_samples_is_at_least_the_worst_fcp_threshold_over_sets_within_it():
    rng = np.random.default_rng(3)
    equal = total = 0
    for trial in range(cases(200)):
        federation = random_federation(rng)
        level = LEVELS[trial % len(LEVELS)]
        budget = int(rng.integers(0, federation.n_samples))
        worst = max(
            fcp(federation, kept, level)
            for kept in benign_sets(federation.n_clients, federation.n_clients - 1)
            if federation.sizes[~kept].sum() <= budget
        )
        found = as_number(marginal_threshold(federation, level, samples=budget))
        assert found >= worst
        equal += found == worst
        total += 1
    assert equal > 0.6 * total


def test_a_bound_on_samples_of_m_equal_clients_is_the_client_budget():
    rng = np.random.default_rng(4)
    for _ in range(200):
        counts = rng.multinomial(20, rng.dirichlet(np.ones(8), 9))
        federation = Federation.from_counts(counts)
        by_clients = marginal_threshold(federation, Fraction(4, 5), m=2)
        by_size = marginal_threshold(federation, Fraction(4, 5), samples=40)
        both = marginal_threshold(federation, Fraction(4, 5), m=2, samples=40)
        assert by_clients == by_size == both


def test_a_bound_on_samples_of_everything_leaves_only_the_infinite_threshold():
    federation = random_federation(np.random.default_rng(5))
    budget = federation.n_samples
    assert marginal_threshold(federation, Fraction(1, 2), samples=budget) is None


def test_the_condition_once_true_stays_true_along_the_edges():
    rng = np.random.default_rng(6)
    for _ in range(100):
        federation = random_federation(rng)
        m = int(rng.integers(0, federation.n_clients))
        edges = np.arange(federation.grid.n_bins)
        found = slack_at(federation, edges, m, Fraction(9, 10))
        assert (np.diff(found) >= 0).all()


def test_nine_tenths_of_ten_is_nine_and_not_a_rounding_error():
    counts = np.zeros((1, 3), dtype=int)
    counts[0] = [18, 1, 0]
    federation = Federation.from_counts(counts)
    assert marginal_threshold(federation, Fraction(9, 10), m=0) == 0


def test_levels_with_many_digits_and_large_sizes_stay_exact():
    level = Fraction(899_999_999_999, 10**12)
    sizes = np.array([10**8, 10**8 + 7, 10**8 - 3])
    below = np.array([90_000_000, 90_000_009, 90_000_001])
    exact = [int(c) - level * int(n) for c, n in zip(below, sizes, strict=True)]
    wanted = sum(exact) - max(0, max(exact))
    federation = Federation.from_counts(np.column_stack([below, sizes - below]))
    (found,) = slack_at(federation, np.array([0]), 1, level)
    assert int(found) == wanted * level.denominator


@pytest.mark.parametrize(("n", "liars"), [(50, 10), (500, 10), (5000, 10)])
def test_liars_that_force_full_sets_among_a_hundred_clients(n, liars):
    sizes, level = np.full(100, n), Fraction(9, 10)
    assert liars_forcing_full_sets(sizes, level) == liars
    assert liars_no_rule_survives(sizes, level) == 10
    for number, index in [(liars - 1, 0), (liars, 9)]:
        counts = np.zeros((100, 10), dtype=int)
        counts[:number, 9] = counts[number:, 0] = n
        federation = Federation.from_counts(counts)
        assert marginal_threshold(federation, level, m=number) == index


def test_a_rule_told_more_liars_falls_to_fewer():
    sizes, level = np.full(100, 500), Fraction(9, 10)
    assert liars_forcing_full_sets(sizes, level, m=20) == 8
    assert liars_forcing_full_sets(sizes, level, m=0) == 10


@pytest.mark.effort
def test_forcing_liars_are_worst_as_the_largest_clients():
    rng = np.random.default_rng(7)
    for _ in range(cases(15)):
        sizes = rng.integers(5, 60, 7)
        level, m = Fraction(4, 5), int(rng.integers(0, 3))
        forced = [
            number
            for number in range(1, 7)
            for chosen in combinations(range(7), number)
            if full(sizes, chosen, m, level)
        ]
        assert liars_forcing_full_sets(sizes, level, m) == (min(forced) if forced else None)


def test_impossibility_number_by_trying_every_pair_of_groups():
    rng = np.random.default_rng(8)
    for _ in range(100):
        sizes, level = rng.integers(5, 60, 6), Fraction(3, 5)
        weights = sizes
        broken = []
        for m in range(1, 4):
            for top in combinations(range(6), m):
                others = [k for k in range(6) if k not in top]
                for mimics in combinations(others, m):
                    benign = weights.sum() - weights[list(mimics)].sum()
                    if weights[list(top)].sum() > (1 - level) * int(benign):
                        broken.append(m)
        assert liars_no_rule_survives(sizes, level) == (min(broken) if broken else None)


@pytest.mark.parametrize(
    ("promise", "words"),
    [
        (lambda: Marginal(), "liars: state how many"),
        (lambda: Marginal(samples=-1), "samples: -1 is not a whole number"),
        (lambda: Marginal(liars=1.5), "liars: 1.5 is not a whole number"),
        (lambda: Pac(True), "liars: True is not a whole number"),
        (lambda: Pac(None), "liars: None is not a whole number"),
        (lambda: Pac(1, alike=-0.1), "alike: -0.1 is not a number between 0 and 1"),
        (lambda: LabelShift(1, alike=float("nan")), "alike: nan is not"),
        (lambda: Marginal(8).threshold(EIGHT, LEVELS[0], 0.95), "nothing can be guaranteed"),
        (lambda: Pac(8).threshold(EIGHT, LEVELS[0], 0.95), "nothing can be guaranteed"),
    ],
)
def test_a_promise_that_cannot_be_meant_is_refused(promise, words):
    with pytest.raises(RobfcpError, match=words):
        promise()


def test_promises_are_what_their_files_hold():
    made = [Marginal(3), Marginal(samples=np.int64(40)), Pac(2, alike=0.1)]
    made += [LabelShift(1), LabelShift(np.int8(1), 0.5, {"a": 0.25, "b": 0.75})]
    made += [LabelShift(1, mix=["uniform", {"a": np.float32(1)}])]
    for promise in made:
        written = msgspec.json.encode(promise)
        assert msgspec.json.decode(written, type=Promise) == promise
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'{"type":"pac","liars":1,"heterogeneity":0}', type=Promise)
