"""The worst case over all plausible benign sets, against brute force in exact fractions."""

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
EIGHT_CLIENTS = Federation.from_counts([[5, 5]] * 8)


def random_federation(rng, max_size=40):
    n_clients, bins = int(rng.integers(2, 8)), int(rng.integers(2, 9))
    sizes = rng.integers(1, max_size, n_clients)
    fractions = rng.dirichlet(np.full(bins, 0.5), n_clients)
    return Federation.from_counts(rng.multinomial(sizes, fractions))


def plausible_sets(n_clients, max_malicious):
    """Yield every set of clients that remains when at most m are removed."""
    for n_removed in range(max_malicious + 1):
        for removed in combinations(range(n_clients), n_removed):
            yield [k for k in range(n_clients) if k not in removed]


def bin_or_infinity(index):
    return np.inf if index is None else index


# Sums and coverages


@pytest.mark.parametrize("kind", ["coverage", "class", "weights", "risk"])
@pytest.mark.effort
def test_the_tail_test_is_brute_force_over_all_removals_for_every_kind_of_loss(kind):
    """psi = miss - alpha; 1{y = c}(miss - alpha); w(x)(miss - alpha); loss - alpha, in tenths."""
    rng, n_accepted = np.random.default_rng(7), 0
    max_weight = {"class": 1, "weights": 3}.get(kind)
    for _ in range(cases(150)):
        n_clients, alpha = int(rng.integers(1, 6)), int(rng.integers(1, 6))
        max_malicious = int(rng.integers(0, n_clients))
        curves = np.zeros((7, n_clients), dtype=np.int64)
        for k in range(n_clients):
            for _ in range(int(rng.integers(1, 25))):
                losses = np.where(np.arange(7) < rng.integers(0, 7), 10, 0)
                losses = -np.sort(-rng.integers(0, 11, 7)) if kind == "risk" else losses
                weight = 1 if max_weight is None else int(rng.integers(0, max_weight + 1))
                curves[:, k] += weight * (losses - alpha)
        bound = 10 * (max_weight or 1)
        remaining_sets = list(plausible_sets(n_clients, max_malicious))
        is_accepted = [
            all(row[remaining].sum() + bound <= 0 for remaining in remaining_sets) for row in curves
        ]
        accepted = TailTest(0, 1, np.array([bound])).accepts(
            -curves, np.zeros(n_clients, dtype=int), max_malicious
        )
        assert accepted.tolist() == is_accepted
        n_accepted += any(is_accepted)
    assert n_accepted > 0.05 * cases(150)


@pytest.mark.effort
@pytest.mark.parametrize(
    "max_clients_sorting", [512, 1]
)  # clients are sorted up to this number, and grouped above it
def test_coverages_are_the_smallest_and_largest_over_all_removals(max_clients_sorting, monkeypatch):
    monkeypatch.setattr(_sums, "_MAX_CLIENTS_SORTING", max_clients_sorting)
    rng = np.random.default_rng(1)
    for _ in range(cases(80)):
        federation = random_federation(rng, int(rng.choice([3, 12, 400])))
        federation = Federation.from_counts(federation.counts * int(rng.choice([1, 1, 10**12])))
        edges = np.arange(federation.binning.n_bins)
        numbers_removed = np.arange(federation.n_clients)
        counts, sizes = count_bounds(federation), federation.sample_sizes
        sides = [side.T for side in counts.per_client(edges, 0.0)]  # lower and upper counts
        lowest, highest = min_and_max_coverage(counts, edges, numbers_removed, 0.0)
        for m in numbers_removed.tolist():
            is_remaining = np.array(
                [np.isin(numbers_removed, remaining) for remaining in plausible_sets(len(sizes), m)]
            ).astype(int)
            for side, coverages, extremum in zip(sides, (lowest, highest), (min, max), strict=True):
                totals = (is_remaining @ sizes).tolist()
                coverages_of_sets = [
                    extremum(map(Fraction, sums, totals))
                    for sums in (is_remaining @ side).T.tolist()
                ]
                np.testing.assert_allclose(
                    coverages[m], np.array(coverages_of_sets, float), rtol=1e-15
                )


@pytest.mark.parametrize("max_clients_sorting", [512, 1])
def test_coverages_of_very_large_rounds_are_exact(max_clients_sorting, monkeypatch):
    """Products of two sums of counts need more than 64 bits here; sums and counts do not."""
    monkeypatch.setattr(_sums, "_MAX_CLIENTS_SORTING", max_clients_sorting)
    rng = np.random.default_rng(5)
    for _ in range(40):
        sizes = rng.integers(10**8, 3 * 10**8, 25)
        counts = rng.integers(0, sizes)
        groups = ClientGroups.from_clients(counts[None], sizes)
        min_count, total = min_coverage_over_removals(groups, np.array([0, 1, 2]))
        for m in range(3):
            expected = min(
                Fraction(int(counts[remaining].sum()), int(sizes[remaining].sum()))
                for remaining in plausible_sets(len(sizes), m)
            )
            assert Fraction(int(min_count[0, m]), int(total[0, m])) == expected


def test_the_smallest_coverage_allows_for_noise_in_its_numerator_and_denominator():
    """min (sum c - noise below) / (sum n + noise of the total) over all removals, in fractions."""
    rng = np.random.default_rng(2)
    for _ in range(200):
        n_clients = int(rng.integers(2, 7))
        sizes = rng.integers(20, 90, n_clients)
        counts, max_malicious = rng.integers(-5, sizes), int(rng.integers(0, n_clients))
        noise_below, noise_of_total = rng.integers(0, 9, 1), rng.integers(-9, 9, 1)
        groups = ClientGroups.from_clients(counts[None], sizes)
        min_count, total = min_coverage_over_removals(
            groups, np.array([max_malicious]), noise_below, noise_of_total
        )
        expected = min(
            Fraction(
                int(counts[remaining].sum() - noise_below[0]),
                int(sizes[remaining].sum() + noise_of_total[0]),
            )
            for remaining in plausible_sets(n_clients, max_malicious)
        )
        assert Fraction(int(min_count[0, 0]), int(total[0, 0])) == expected


def test_grouping_clients_keeps_those_whose_noise_hides_everything_apart(monkeypatch):
    """A client hidden by its noise counts 0 below and 0 above a bin; grouping must keep it."""
    counts = np.tile([10, 0, 0, 2], (600, 1))
    noise = [Privacy(1e-3)] * 150 + [Privacy(3.0)] * 450
    with_huge_noise = Federation.from_counts(
        counts, Binning.uniform(4), privacy=noise, sample_sizes=[12] * 600
    )
    edges, budgets = np.arange(4), np.array([0, 20])
    grouped = min_and_max_coverage(count_bounds(with_huge_noise), edges, budgets, 0.01)
    monkeypatch.setattr(_sums, "_MAX_CLIENTS_SORTING", 10**6)
    ungrouped = min_and_max_coverage(count_bounds(with_huge_noise), edges, budgets, 0.01)
    np.testing.assert_array_equal(grouped, ungrouped)
    assert grouped[1][0, 0] > 0.87 > 10 / 12 > 0.63 > grouped[0][0, 0]


# FCP's rank


def test_levels_are_parsed_as_decimals_and_impossible_ones_refused():
    fraction_of_level = {0.9: "9/10", 1 - 0.7: "3/10", "2/3": "2/3", Decimal("0.8"): "4/5"}
    assert [parse_level(level) for level in fraction_of_level] == [
        Fraction(fraction) for fraction in fraction_of_level.values()
    ]
    for invalid in [0, 1, -0.1, np.nan, np.inf, "x", None, [0.9]]:
        with pytest.raises(RobfcpError, match="coverage"):
            parse_level(invalid)


# Marginal thresholds


def fcp_bin(federation, remaining, level):
    """Return the bin of FCP's threshold on these clients, or infinity.

    A single remaining client has the same correction: which clients are benign is unknown.
    """
    pooled = np.cumsum(federation.counts[remaining].sum(axis=0))
    total = int(pooled[-1])
    rank = ceil(level * total) + 1
    if federation.n_clients == 1:
        rank = ceil(level * (total + 1))
    return int(np.searchsorted(pooled, rank)) if rank <= total else np.inf


@pytest.mark.parametrize("n_trials", [150, pytest.param(6000, marks=pytest.mark.slow)])
def test_guaranteed_threshold_is_the_worst_plausible_fcp_threshold(n_trials):
    """For every number of malicious clients."""
    rng = np.random.default_rng(n_trials)
    n_thresholds = 0
    n_finite = 0
    for trial in range(n_trials):
        federation = random_federation(rng)
        level = LEVELS[trial % len(LEVELS)]
        for m in range(federation.n_clients):
            benign_sets = plausible_sets(federation.n_clients, m)
            worst = max(fcp_bin(federation, remaining, level) for remaining in benign_sets)
            assert bin_or_infinity(marginal_threshold_bin(federation, level, m)) == worst
            n_thresholds += 1
            n_finite += np.isfinite(worst)
    assert n_finite > 0.3 * n_thresholds


@pytest.mark.effort
def test_a_bound_on_samples_is_at_least_the_worst_fcp_threshold_over_sets_within_it():
    rng = np.random.default_rng(3)
    n_equal = n_total = 0
    for trial in range(cases(200)):
        federation, level = random_federation(rng), LEVELS[trial % len(LEVELS)]
        max_malicious_samples = int(rng.integers(0, federation.n_samples))
        max_malicious = federation.n_clients - 1
        worst = max(
            fcp_bin(federation, remaining, level)
            for remaining in plausible_sets(federation.n_clients, max_malicious)
            if federation.n_samples - federation.sample_sizes[remaining].sum()
            <= max_malicious_samples
        )
        bin_index = bin_or_infinity(
            marginal_threshold_bin(federation, level, max_malicious_samples=max_malicious_samples)
        )
        assert bin_index >= worst
        n_equal += bin_index == worst
        n_total += 1
    assert n_equal > 0.6 * n_total
    assert (
        marginal_threshold_bin(
            federation, Fraction(1, 2), max_malicious_samples=federation.n_samples
        )
        is None
    )


def test_levels_with_many_digits_and_large_sizes_stay_exact():
    level = Fraction(899_999_999_999, 10**12)
    sizes = np.array([10**8, 10**8 + 7, 10**8 - 3])
    cumulative = np.array([90_000_000, 90_000_009, 90_000_001])
    excesses = [int(c) - level * int(n) for c, n in zip(cumulative, sizes, strict=True)]
    min_excess = int((sum(excesses) - max(0, max(excesses))) * level.denominator)
    for needed, is_accepted in ((min_excess, True), (min_excess + 1, False)):
        tail = TailTest(level.numerator, level.denominator, np.array([needed]))
        assert tail.accepts(cumulative[None], sizes, 1)[0] == is_accepted


@pytest.mark.effort
@pytest.mark.parametrize("kind", ["marginal", "pac"])
def test_the_breakdown_point_is_reached_by_the_largest_clients(kind):
    rng = np.random.default_rng(7)
    for _ in range(cases(15)):
        sizes = rng.integers(5, 60, 7)
        level = Fraction(4, 5)
        max_malicious = int(rng.integers(0, 3))
        tail = (
            marginal_tail_test(level, 7)
            if kind == "marginal"
            else pac_tail_test(sizes, max_malicious, level, 0.1)
        )
        breaking_numbers = [
            len(malicious)
            for n_malicious in range(1, 7)
            for malicious in combinations(range(7), n_malicious)
            if not tail.accepts(
                np.where(np.isin(range(7), malicious), 0, sizes)[None], sizes, max_malicious
            )[0]
        ]
        assert tail.breakdown_point(sizes, max_malicious) == (
            min(breaking_numbers) if breaking_numbers else None
        )


def test_the_breakdown_point_of_any_defense_by_trying_all_pairs_of_groups():
    assert breakdown_point_of_any_rule(np.full(100, 50), LEVEL) == 10
    rng = np.random.default_rng(8)
    for _ in range(100):
        sizes, level = rng.integers(5, 60, 6), Fraction(3, 5)
        breaking_numbers = [
            m
            for m in range(1, 4)
            for malicious in combinations(range(6), m)
            for mimicked in combinations([k for k in range(6) if k not in malicious], m)
            if sizes[list(malicious)].sum()
            > (1 - level) * int(sizes.sum() - sizes[list(mimicked)].sum())
        ]
        assert breakdown_point_of_any_rule(sizes, level) == (
            min(breaking_numbers) if breaking_numbers else None
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MarginalGuarantee(), "max_malicious: give how many clients"),
        (
            lambda: MarginalGuarantee(max_malicious_samples=-1),
            "max_malicious_samples: -1 is not a whole number",
        ),
        (lambda: PACGuarantee(True), "max_malicious: True is not a whole number"),
        (lambda: PACGuarantee(None), "max_malicious: None is not a whole number"),
        (lambda: LabelShiftGuarantee(1, heterogeneity=float("nan")), "heterogeneity: nan is not"),
        (
            lambda: PACGuarantee(8).threshold(EIGHT_CLIENTS, LEVEL, 0.95),
            "nothing can be guaranteed",
        ),
        (
            lambda: certify_threshold(EIGHT_CLIENTS, 0, 8),
            "nothing can be guaranteed against 8 of 8",
        ),
        (
            lambda: certify_threshold(EIGHT_CLIENTS, 0, -1),
            "max_malicious: -1 is not a whole number",
        ),
        (
            lambda: pac_threshold(count_bounds(EIGHT_CLIENTS), LEVEL, 1, 0.0),
            "delta: 0.0 is not a number between",
        ),
    ],
)
def test_an_impossible_guarantee_is_refused(call, message):
    with pytest.raises(RobfcpError, match=message):
        call()


def test_guarantees_survive_encoding_and_decoding():
    guarantees = [
        MarginalGuarantee(3),
        MarginalGuarantee(max_malicious_samples=np.int64(40)),
        PACGuarantee(2, heterogeneity=0.1),
        LabelShiftGuarantee(1),
    ]
    guarantees += [
        LabelShiftGuarantee(np.int8(1), 0.5, ["uniform", {"a": np.float32(0.25), "b": 0.75}])
    ]
    for guarantee in guarantees:
        assert msgspec.json.decode(msgspec.json.encode(guarantee), type=Guarantee) == guarantee
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(
            b'{"type":"pac","max_malicious":1,"heterogeneity":0,"liars":1}', type=Guarantee
        )


# Theorem S


def first_accepted_step(curves, bound):
    """Return the first step at which the curves and the bound sum to at most 0, else the last."""
    accepted = np.flatnonzero(curves.sum(axis=0) + bound <= 0)
    return int(accepted[0]) if accepted.size else curves.shape[1] - 1


def test_the_theorem_as_an_inequality_over_all_swaps():
    """sum_ki psi(X_ki, l0^ki) <= 0 for falling psi with last value <= 0, for any swapped sample."""
    rng = np.random.default_rng(1)
    for _ in range(3000):
        steps, n_samples = int(rng.integers(2, 7)), int(rng.integers(1, 8))
        drops = rng.integers(0, 4, (n_samples + 1, steps - 1))
        last_values = -rng.integers(0, 3, n_samples + 1)
        falling = last_values[:, None] + drops[:, ::-1].cumsum(1)[:, ::-1]
        curves = np.concatenate([falling, last_values[:, None]], 1)
        range_of_curves = int((curves.max(axis=0) - curves.min(axis=0)).max())
        calibration_curves, fresh = curves[:-1], curves[-1]
        total = 0
        for index in range(n_samples):
            swapped = calibration_curves.copy()
            swapped[index] = fresh
            total += calibration_curves[index, first_accepted_step(swapped, range_of_curves)]
        assert total <= 0
