"""The engine against brute force over all sets that may be honest, in exact fractions."""

from decimal import Decimal
from fractions import Fraction
from itertools import combinations
from math import ceil

import msgspec
import numpy as np
import pytest
from effort import cases

from robfcp._validation import parse_level
from robfcp.binning import Binning
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import (
    Guarantee,
    LabelShiftGuarantee,
    MarginalGuarantee,
    PACGuarantee,
    _sums,
    breakdown_point_of_any_rule,
    certify_threshold,
    count_bounds,
    marginal_threshold_bin,
)
from robfcp.guarantees._sums import ClientGroups, min_coverage_over_removals
from robfcp.guarantees._tail_bounds import marginal_tail_test, pac_tail_test, pac_threshold
from robfcp.guarantees._worst_case import TailTest, min_and_max_coverage
from robfcp.privacy import Privacy

LEVEL = Fraction(9, 10)
LEVELS = [Fraction(9, 10), Fraction(1, 2), Fraction(3, 4), Fraction(19, 20), Fraction(1, 3)]
EIGHT = Federation.from_counts([[5, 5]] * 8)


def random_federation(rng, largest=40):
    n_clients, bins = int(rng.integers(2, 8)), int(rng.integers(2, 9))
    sizes = rng.integers(1, largest, n_clients)
    shares = rng.dirichlet(np.full(bins, 0.5), n_clients)
    return Federation.from_counts(rng.multinomial(sizes, shares))


def plausible(n_clients, m):
    """Every set of clients that may be left when at most m are removed."""
    for number in range(m + 1):
        for removed in combinations(range(n_clients), number):
            yield [k for k in range(n_clients) if k not in removed]


def as_number(index):
    return np.inf if index is None else index


# Sums and shares


@pytest.mark.parametrize("kind", ["coverage", "class", "weights", "risk"])
@pytest.mark.effort
def test_the_one_rule_is_brute_force_over_all_removals_for_every_kind_of_loss(kind):
    """psi = miss - alpha; 1{y = c}(miss - alpha); w(x)(miss - alpha); loss - alpha, in tenths."""
    rng, found = np.random.default_rng(7), 0
    largest = {"class": 1, "weights": 3}.get(kind)
    for _ in range(cases(150)):
        n_clients, alpha = int(rng.integers(1, 6)), int(rng.integers(1, 6))
        m, curves = int(rng.integers(0, n_clients)), np.zeros((7, n_clients), dtype=np.int64)
        for k in range(n_clients):
            for _ in range(int(rng.integers(1, 25))):
                missed = np.where(np.arange(7) < rng.integers(0, 7), 10, 0)
                missed = -np.sort(-rng.integers(0, 11, 7)) if kind == "risk" else missed
                weight = 1 if largest is None else int(rng.integers(0, largest + 1))
                curves[:, k] += weight * (missed - alpha)
        bound, sets = 10 * (largest or 1), list(plausible(n_clients, m))
        good = [all(row[kept].sum() + bound <= 0 for kept in sets) for row in curves]
        holds = TailTest(0, 1, np.array([bound])).accepts(
            -curves, np.zeros(n_clients, dtype=int), m
        )
        assert holds.tolist() == good
        found += any(good)
    assert found > 0.05 * cases(150)


@pytest.mark.effort
@pytest.mark.parametrize("few", [512, 1])  # below so many all are sorted, above alike ones grouped
def test_shares_are_the_least_and_largest_over_all_removals(few, monkeypatch):
    monkeypatch.setattr(_sums, "_MAX_CLIENTS_SORTING", few)
    rng = np.random.default_rng(1)
    for _ in range(cases(80)):
        federation = random_federation(rng, int(rng.choice([3, 12, 400])))
        federation = Federation.from_counts(federation.counts * int(rng.choice([1, 1, 10**12])))
        edges, budgets = np.arange(federation.binning.n_bins), np.arange(federation.n_clients)
        counts, sizes = count_bounds(federation), federation.sample_sizes
        sides = [side.T for side in counts.per_client(edges, 0.0)]  # where all are in fives, apart
        low, high = min_and_max_coverage(counts, edges, budgets, 0.0)
        for m in budgets.tolist():
            kept = np.array([np.isin(budgets, one) for one in plausible(len(sizes), m)]).astype(int)
            for side, ends, best in zip(sides, (low, high), (min, max), strict=True):
                totals = (kept @ sizes).tolist()
                found = [best(map(Fraction, sums, totals)) for sums in (kept @ side).T.tolist()]
                np.testing.assert_allclose(ends[m], np.array(found, float), rtol=1e-15)


@pytest.mark.parametrize("few", [512, 1])
def test_shares_of_very_large_rounds_are_exact(few, monkeypatch):
    """Products of two sums of counts need more than 64 bits here, sums and counts do not."""
    monkeypatch.setattr(_sums, "_MAX_CLIENTS_SORTING", few)
    rng = np.random.default_rng(5)
    for _ in range(40):
        sizes = rng.integers(10**8, 3 * 10**8, 25)
        counts = rng.integers(0, sizes)
        groups = ClientGroups.from_clients(counts[None], sizes)
        share, total = min_coverage_over_removals(groups, np.array([0, 1, 2]))
        for m in range(3):
            wanted = min(
                Fraction(int(counts[kept].sum()), int(sizes[kept].sum()))
                for kept in plausible(len(sizes), m)
            )
            assert Fraction(int(share[0, m]), int(total[0, m])) == wanted


def test_noise_moves_the_least_share_by_what_it_may_add_to_either_side():
    """min (sum c - lost) / (sum n + more) over all removals, in fractions."""
    rng = np.random.default_rng(2)
    for _ in range(200):
        n_clients = int(rng.integers(2, 7))
        sizes = rng.integers(20, 90, n_clients)
        counts, m = rng.integers(-5, sizes), int(rng.integers(0, n_clients))
        lost, more = rng.integers(0, 9, 1), rng.integers(-9, 9, 1)
        groups = ClientGroups.from_clients(counts[None], sizes)
        share, total = min_coverage_over_removals(groups, np.array([m]), lost, more)
        wanted = min(
            Fraction(int(counts[kept].sum() - lost[0]), int(sizes[kept].sum() + more[0]))
            for kept in plausible(n_clients, m)
        )
        assert Fraction(int(share[0, 0]), int(total[0, 0])) == wanted


def test_many_clients_of_whom_some_are_silent_are_not_taken_for_their_likes(monkeypatch):
    """A silent client has 0 below and 0 above an edge; grouping clients must not forget it."""
    counts = np.tile([10, 0, 0, 2], (600, 1))
    noise = [Privacy(1e-3)] * 150 + [Privacy(3.0)] * 450
    loud = Federation.from_counts(
        counts, Binning.uniform(4), privacy=noise, sample_sizes=[12] * 600
    )
    edges, budgets = np.arange(4), np.array([0, 20])
    found = min_and_max_coverage(count_bounds(loud), edges, budgets, 0.01)
    monkeypatch.setattr(_sums, "_MAX_CLIENTS_SORTING", 10**6)
    one_by_one = min_and_max_coverage(count_bounds(loud), edges, budgets, 0.01)
    np.testing.assert_array_equal(found, one_by_one)
    assert found[1][0, 0] > 0.87 > 10 / 12 > 0.63 > found[0][0, 0]


# FCP's rank


def test_levels_are_read_as_people_mean_them_and_impossible_ones_refused():
    meant = {0.9: "9/10", 1 - 0.7: "3/10", "2/3": "2/3", Decimal("0.8"): "4/5"}
    assert [parse_level(level) for level in meant] == [Fraction(one) for one in meant.values()]
    for wrong in [0, 1, -0.1, np.nan, np.inf, "x", None, [0.9]]:
        with pytest.raises(RobfcpError, match="coverage"):
            parse_level(wrong)


# Marginal thresholds


def fcp(federation, kept, level):
    """FCP's threshold on these clients as an edge number, infinity if none.

    A client left alone by removals is charged like the others: who is benign is not known.
    """
    pooled = np.cumsum(federation.counts[kept].sum(axis=0))
    total = int(pooled[-1])
    rank = ceil(level * total) + 1
    if federation.n_clients == 1:
        rank = ceil(level * (total + 1))
    return int(np.searchsorted(pooled, rank)) if rank <= total else np.inf


@pytest.mark.parametrize("number", [150, pytest.param(6000, marks=pytest.mark.slow)])
def test_guaranteed_threshold_is_the_worst_plausible_fcp_threshold(number):
    """For every number of malicious clients."""
    rng = np.random.default_rng(number)
    n_thresholds = 0
    n_finite = 0
    for trial in range(number):
        federation = random_federation(rng)
        level = LEVELS[trial % len(LEVELS)]
        for m in range(federation.n_clients):
            benign_sets = plausible(federation.n_clients, m)
            worst = max(fcp(federation, kept, level) for kept in benign_sets)
            assert as_number(marginal_threshold_bin(federation, level, m)) == worst
            n_thresholds += 1
            n_finite += np.isfinite(worst)
    assert n_finite > 0.3 * n_thresholds


@pytest.mark.effort
def test_a_bound_on_samples_is_at_least_the_worst_fcp_threshold_over_sets_within_it():
    rng = np.random.default_rng(3)
    equal = total = 0
    for trial in range(cases(200)):
        federation, level = random_federation(rng), LEVELS[trial % len(LEVELS)]
        budget, everybody = int(rng.integers(0, federation.n_samples)), federation.n_clients - 1
        worst = max(
            fcp(federation, kept, level)
            for kept in plausible(federation.n_clients, everybody)
            if federation.n_samples - federation.sample_sizes[kept].sum() <= budget
        )
        found = as_number(marginal_threshold_bin(federation, level, max_malicious_samples=budget))
        assert found >= worst
        equal += found == worst
        total += 1
    assert equal > 0.6 * total
    assert (
        marginal_threshold_bin(
            federation, Fraction(1, 2), max_malicious_samples=federation.n_samples
        )
        is None
    )


def test_levels_with_many_digits_and_large_sizes_stay_exact():
    level = Fraction(899_999_999_999, 10**12)
    sizes = np.array([10**8, 10**8 + 7, 10**8 - 3])
    below = np.array([90_000_000, 90_000_009, 90_000_001])
    exact = [int(c) - level * int(n) for c, n in zip(below, sizes, strict=True)]
    wanted = int((sum(exact) - max(0, max(exact))) * level.denominator)
    for needed, holds in ((wanted, True), (wanted + 1, False)):
        tail = TailTest(level.numerator, level.denominator, np.array([needed]))
        assert tail.accepts(below[None], sizes, 1)[0] == holds


@pytest.mark.effort
@pytest.mark.parametrize("kind", ["marginal", "pac"])
def test_forcing_liars_are_worst_as_the_largest_clients(kind):
    rng = np.random.default_rng(7)
    for _ in range(cases(15)):
        sizes, level, m = rng.integers(5, 60, 7), Fraction(4, 5), int(rng.integers(0, 3))
        tail = (
            marginal_tail_test(level, 7)
            if kind == "marginal"
            else pac_tail_test(sizes, m, level, 0.1)
        )
        forced = [
            len(liars)
            for number in range(1, 7)
            for liars in combinations(range(7), number)
            if not tail.accepts(np.where(np.isin(range(7), liars), 0, sizes)[None], sizes, m)[0]
        ]
        assert tail.breakdown_point(sizes, m) == (min(forced) if forced else None)


def test_impossibility_number_by_trying_every_pair_of_groups():
    assert breakdown_point_of_any_rule(np.full(100, 50), LEVEL) == 10
    rng = np.random.default_rng(8)
    for _ in range(100):
        sizes, level = rng.integers(5, 60, 6), Fraction(3, 5)
        broken = [
            m
            for m in range(1, 4)
            for top in combinations(range(6), m)
            for mimics in combinations([k for k in range(6) if k not in top], m)
            if sizes[list(top)].sum() > (1 - level) * int(sizes.sum() - sizes[list(mimics)].sum())
        ]
        assert breakdown_point_of_any_rule(sizes, level) == (min(broken) if broken else None)


@pytest.mark.parametrize(
    ("promise", "words"),
    [
        (lambda: MarginalGuarantee(), "liars: state how many"),
        (lambda: MarginalGuarantee(samples=-1), "samples: -1 is not a whole number"),
        (lambda: PACGuarantee(True), "liars: True is not a whole number"),
        (lambda: PACGuarantee(None), "liars: None is not a whole number"),
        (lambda: LabelShiftGuarantee(1, alike=float("nan")), "alike: nan is not"),
        (lambda: PACGuarantee(8).threshold(EIGHT, LEVEL, 0.95), "nothing can be guaranteed"),
        (lambda: certify_threshold(EIGHT, 0, 8), "nothing can be guaranteed against 8 of 8"),
        (lambda: certify_threshold(EIGHT, 0, -1), "liars: -1 is not a whole number"),
        (
            lambda: pac_threshold(count_bounds(EIGHT), LEVEL, 1, 0.0),
            "delta: 0.0 is not a number between",
        ),
    ],
)
def test_a_promise_that_cannot_be_meant_is_refused(promise, words):
    with pytest.raises(RobfcpError, match=words):
        promise()


def test_promises_are_what_their_files_hold():
    made = [
        MarginalGuarantee(3),
        MarginalGuarantee(samples=np.int64(40)),
        PACGuarantee(2, alike=0.1),
        LabelShiftGuarantee(1),
    ]
    made += [LabelShiftGuarantee(np.int8(1), 0.5, ["uniform", {"a": np.float32(0.25), "b": 0.75}])]
    for promise in made:
        assert msgspec.json.decode(msgspec.json.encode(promise), type=Guarantee) == promise
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'{"type":"pac","liars":1,"heterogeneity":0}', type=Guarantee)


# Theorem S


def first_good(curves, most):
    """The first step at which the curves and `most` sum to at most 0; else the last."""
    good = np.flatnonzero(curves.sum(axis=0) + most <= 0)
    return int(good[0]) if good.size else curves.shape[1] - 1


def test_the_theorem_as_an_inequality_over_all_swaps():
    """sum_ki psi(X_ki, l0^ki) <= 0 for falling psi with last value <= 0, whatever is swapped in."""
    rng = np.random.default_rng(1)
    for _ in range(3000):
        steps, number = int(rng.integers(2, 7)), int(rng.integers(1, 8))
        drops = rng.integers(0, 4, (number + 1, steps - 1))
        last = -rng.integers(0, 3, number + 1)
        falls = last[:, None] + drops[:, ::-1].cumsum(1)[:, ::-1]
        curves = np.concatenate([falls, last[:, None]], 1)
        bound = int((curves.max(axis=0) - curves.min(axis=0)).max())
        own, fresh = curves[:-1], curves[-1]
        total = 0
        for place in range(number):
            swapped = own.copy()
            swapped[place] = fresh
            total += own[place, first_good(swapped, bound)]
        assert total <= 0
