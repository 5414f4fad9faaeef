"""The swap lemma and the theorem built on it: as inequalities that always hold, and in coverage."""

from fractions import Fraction
from itertools import combinations
from math import ceil

import numpy as np
import pytest
from effort import cases, thorough

import robfcp
from robfcp.certificate import at_least, at_most
from robfcp.federation import Federation
from robfcp.grid import Grid
from robfcp.guarantees import certify
from robfcp.guarantees.alike import least_liars
from robfcp.guarantees.curve import coverage_curve, curve_budgets, empty_from
from robfcp.guarantees.promises import marginal_threshold, slack

LEVEL = Fraction(9, 10)


def ranked(values, rank):
    """The rank-th smallest along the last axis."""
    return np.partition(values, rank - 1, axis=-1)[..., rank - 1]


def test_swapping_one_score_never_leaves_fewer_than_rank_less_one_covered():
    """#{(k, i): X_ki <= t^ki} >= r - 1, t^ki the r-th smallest with T_k for X_ki; ties included."""
    rng = np.random.default_rng(0)
    for _ in range(3000):
        sizes = rng.integers(1, 6, rng.integers(1, 5))
        owner = np.repeat(np.arange(len(sizes)), sizes)
        scores = rng.integers(0, rng.integers(2, 12), len(owner)).astype(float)
        fresh = rng.integers(0, 12, len(sizes)).astype(float)
        rank = int(rng.integers(1, len(owner) + 1))
        covered = 0
        for place, client in enumerate(owner):
            swapped = scores.copy()
            swapped[place] = fresh[client]
            covered += scores[place] <= ranked(swapped, rank)
        assert covered >= rank - 1
        if len(set(scores) | set(fresh)) == len(scores) + len(fresh):
            assert covered <= rank


def first_good(curves, members, most):
    """The first step at which the members' curves and `most` sum to at most 0; else the last."""
    sums = curves[members].sum(axis=0) + most
    good = np.flatnonzero(sums <= 0)
    return int(good[0]) if good.size else curves.shape[1] - 1


def test_the_theorem_as_an_inequality_over_all_swaps():
    """sum_ki psi(X_ki, l0^ki) <= 0 for falling psi with last value <= 0, whatever is swapped in."""
    rng = np.random.default_rng(1)
    for _ in range(3000):
        steps, number = int(rng.integers(2, 7)), int(rng.integers(1, 8))
        drops = rng.integers(0, 4, (number + 1, steps - 1))
        last = -rng.integers(0, 3, number + 1)
        curves = np.concatenate(
            [last[:, None] + drops[:, ::-1].cumsum(1)[:, ::-1], last[:, None]], 1
        )
        bound = int((curves.max(axis=0) - curves.min(axis=0)).max())
        own, fresh = curves[:-1], curves[-1]
        total = 0
        for place in range(number):
            swapped = own.copy()
            swapped[place] = fresh
            total += own[place, first_good(swapped, np.arange(number), bound)]
        assert total <= 0


@pytest.mark.parametrize("kind", ["alike", "shifted", "two groups"])
@pytest.mark.parametrize(("n_clients", "n"), [(20, 5), (5, 20), (2, 50)])
def test_coverage_of_the_mixture_lies_between_the_ranks_whatever_clients_differ_by(
    kind, n_clients, n
):
    rng = np.random.default_rng(2)
    shift = {
        "alike": np.zeros(n_clients),
        "shifted": np.linspace(0, 3, n_clients),
        "two groups": np.where(np.arange(n_clients) < n_clients // 3, 4.0, 0.0),
    }[kind]
    total, rank = n_clients * n, ceil(LEVEL * n_clients * n) + 1
    trials = 4000
    scores = rng.normal(size=(trials, n_clients, n)) + shift[:, None]
    threshold = ranked(scores.reshape(trials, -1), rank)
    fresh = rng.normal(size=(trials, n_clients)) + shift
    covered = (fresh <= threshold[:, None]).mean()
    error = 4 * np.sqrt(0.09 / (trials * n_clients))
    assert (rank - 1) / total - error <= covered <= rank / total + error


@pytest.mark.effort
@pytest.mark.parametrize(
    ("n_clients", "n", "m", "most"), [(20, 50, 1, 0.906), (20, 5, 1, 0.93), (100, 50, 9, 0.911)]
)
def test_no_penalty_for_the_number_of_clients(n_clients, n, m, most):
    """With nobody lying the guaranteed threshold covers little more than asked, and is finite."""
    rng = np.random.default_rng(3)
    grid, found = Grid.uniform(2000), []
    for _ in range(cases(60)):
        counts = [np.bincount(grid.index(rng.random(n)), minlength=2000) for _ in range(n_clients)]
        index = marginal_threshold(Federation.from_counts(np.array(counts), grid), LEVEL, m)
        assert index is not None
        found.append(grid.upper[index])  # uniform scores: the threshold is its own coverage
    assert 0.9 <= np.mean(found) <= most


def worst_case(rng, n_clients, n, liars, told, level=LEVEL):
    """The exact coverage of honest clients that differ when liars choose the worst of three."""
    grid = Grid.uniform(400)
    shapes = rng.uniform(0.6, 1.6, n_clients - liars)
    honest = [rng.random(n) ** (1 / a) for a in shapes]
    cdf = np.mean([grid.upper**a for a in shapes], axis=0)
    worst = 1.0
    for forged in (np.zeros(n), np.ones(n), np.sort(rng.random(n)) * 0.8):
        counts = [np.bincount(grid.index(s), minlength=400) for s in [*honest, *[forged] * liars]]
        index = marginal_threshold(Federation.from_counts(np.array(counts), grid), level, told)
        worst = min(worst, 1.0 if index is None else float(cdf[index]))
    return worst


@pytest.mark.slow
@pytest.mark.parametrize(("n_clients", "n", "liars"), [(20, 50, 1), (40, 20, 3), (100, 50, 9)])
def test_the_guarantee_holds_against_the_worst_liars_and_one_too_few_is_caught(n_clients, n, liars):
    rng = np.random.default_rng(4)
    told = [worst_case(rng, n_clients, n, liars, liars) for _ in range(400)]
    assert np.mean(told) >= 0.9 - 3 * np.std(told) / 20
    rng = np.random.default_rng(4)
    lied_to = [worst_case(rng, n_clients, n, liars, 0) for _ in range(400)]
    assert np.mean(lied_to) < 0.9 - 3 * np.std(lied_to) / 20


def federation(seed=0, n_clients=20, n=100, truncated=0):
    """Uniform scores; the first clients move theirs above 0.75 below it."""
    rng = np.random.default_rng(seed)
    scores = rng.random((n_clients, n))
    scores[:truncated] *= 0.75
    grid = Grid.uniform(100)
    counts = [np.bincount(grid.index(row), minlength=100) for row in scores]
    return Federation.from_counts(np.array(counts), grid)


@pytest.mark.effort
def test_the_interval_for_more_liars_holds_the_interval_for_fewer():
    for seed in range(cases(6)):
        here = federation(seed, n_clients=9, n=60, truncated=seed % 4)
        curve = coverage_curve(here, 80, range(9))
        lower, upper = [p.lower for p in curve], [p.upper for p in curve]
        assert lower == sorted(lower, reverse=True)
        assert upper == sorted(upper)
        for m in (0, 2, 5):
            one = certify(here, 80, m)
            assert (one.lower, one.upper) == (lower[m], upper[m])
        vacuous = [p.m for p in curve if p.vacuous]
        assert empty_from(here, 80) == (vacuous[0] if vacuous else None)


@pytest.mark.slow
def test_the_default_statement_is_true_also_where_the_estimate_is_too_low():
    """Four of twenty truncate unseen; "either more lie or coverage is in the interval" holds."""
    wrong = missed_alone = too_low = 0
    runs = 300
    for seed in range(runs):
        calibration = robfcp.calibrate(federation(seed, truncated=4), defence="none")
        index = int(np.searchsorted(calibration.federation.grid.upper, calibration.threshold))
        coverage = float(calibration.federation.grid.upper[index])  # uniform honest scores
        certificate = calibration.certificate
        outside = not certificate.lower <= coverage <= certificate.upper
        too_low += calibration.liars < 4
        missed_alone += outside and calibration.liars < 4
        wrong += outside and calibration.liars >= 4
        for point in calibration.levels[0].curve:
            if point.m >= 4:
                assert point.lower <= coverage <= point.upper or seed < 0.05 * runs
    assert wrong <= 0.05 * runs
    assert too_low
    assert missed_alone > 0.2 * too_low  # the old wording, "if at most m lie", missed here


def test_curves_are_short_whatever_the_number_of_clients():
    assert curve_budgets(5) == (0, 1, 2)
    assert curve_budgets(5, 4) == (0, 1, 2, 4)
    assert curve_budgets(1) == (0,)
    assert curve_budgets(100)[-1] == 49
    assert len(curve_budgets(10**6, 12345)) <= 12


@pytest.mark.parametrize("apart", [0, 1, 3])
def test_clients_that_are_not_as_alike_as_stated_are_counted_from_below(apart):
    here = federation(1, n_clients=12, n=2000, truncated=apart)
    assert least_liars(here, 0.02) == apart
    assert least_liars(here, 0.5) == 0


@pytest.mark.slow
def test_the_count_from_below_exceeds_the_truth_rarely():
    over = sum(least_liars(federation(seed, 15, 80, truncated=2), 0.0) > 2 for seed in range(300))
    assert over <= 0.05 * 300


@pytest.mark.parametrize(
    ("share", "down", "up"),
    [
        (0.899951, "89.99%", "90%"),
        (0.9, "90%", "90%"),
        (0.57, "57%", "57%"),
        (0.123456, "12.34%", "12.35%"),
        (0.0, "0%", "0%"),
        (1.0, "100%", "100%"),
        (0.99999, "99.99%", "100%"),
        (1e-9, "0%", "0.01%"),
    ],
)
def test_lower_ends_round_down_and_upper_ends_up(share, down, up):
    assert at_least(share) == down
    assert at_most(share) == up


def test_sites_declared_alike_are_each_covered_at_the_level_less_twice_their_distance():
    here = federation(2, n_clients=30, n=400)
    alike = robfcp.calibrate(here, promise=robfcp.Pac(6, alike=0.03)).certificate
    assert alike.at_every_site == pytest.approx(0.84)
    assert "at least 90%, and at every honest site at least 84%" in alike.statement
    assert robfcp.calibrate(here, promise=robfcp.Pac(2)).certificate.at_every_site is None


def test_one_client_alone_keeps_the_rank_that_other_libraries_have():
    scores = np.random.default_rng(5).random(19)
    report = robfcp.Report.from_scores("a", scores, Grid.uniform(10_000))
    for level in (0.5, 0.9, 0.95):
        for promise in (None, robfcp.Marginal(0)):
            found = robfcp.calibrate([report], level, promise=promise).threshold
            rank = ceil(Fraction(str(level)) * 20)
            assert found == pytest.approx(np.sort(scores)[rank - 1], abs=1e-4)


@pytest.mark.parametrize("kind", ["coverage", "class", "weights", "risk"])
@pytest.mark.parametrize("number", thorough([150, 3000], 150))
def test_the_one_rule_is_brute_force_over_all_removals_for_every_kind_of_loss(kind, number):
    """psi = miss - alpha; 1{y = c}(miss - alpha); w(x)(miss - alpha); loss - alpha, in tenths."""
    rng = np.random.default_rng(7)
    found = 0
    for _ in range(number):
        n_clients, steps = int(rng.integers(1, 6)), 7
        alpha, m = int(rng.integers(1, 6)), int(rng.integers(0, n_clients))
        curves = np.zeros((steps, n_clients), dtype=np.int64)
        most = 10
        for k in range(n_clients):
            for _ in range(int(rng.integers(1, 25))):
                falls = int(rng.integers(0, steps))
                missed = np.where(np.arange(steps) < falls, 10, 0)
                weight = {"class": int(rng.integers(0, 2)), "weights": int(rng.integers(0, 4))}
                if kind == "risk":
                    missed = -np.sort(-rng.integers(0, 11, steps))
                curves[:, k] += weight.get(kind, 1) * (missed - alpha)
        bound = most * (3 if kind == "weights" else 1)
        expected = None
        for step in range(steps):
            sums = [
                curves[step, list(kept)].sum() + bound
                for size in range(n_clients - m, n_clients + 1)
                for kept in combinations(range(n_clients), size)
                if kept
            ]
            if all(total <= 0 for total in sums):
                expected = step
                break
        holds = slack(-curves, m) >= bound
        assert (int(np.argmax(holds)) if holds.any() else None) == expected
        found += expected is not None
    assert found > 0.05 * number


def test_all_removals_of_the_worst_case_are_what_the_rule_looks_at():
    """The sum over all without the m largest positive margins is the least over all removals."""
    rng = np.random.default_rng(6)
    for _ in range(500):
        margins = rng.integers(-9, 9, (1, 6))
        m = int(rng.integers(0, 6))
        least = min(
            margins[0, [k for k in range(6) if k not in out]].sum()
            for size in range(m + 1)
            for out in combinations(range(6), size)
        )
        assert slack(margins, m)[0] == least
