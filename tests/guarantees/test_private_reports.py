"""Thresholds and certificates from private reports: by brute force, and simulated with liars."""

from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
import pytest
from effort import thorough
from noises import draw
from scipy.stats import beta as beta_law
from scipy.stats import binom

import robfcp
from robfcp import Privacy
from robfcp.binning import Binning
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, SparseTable, StratifiedTable
from robfcp.guarantees import count_bounds, fcp_bin_index, marginal_threshold_bin
from robfcp.guarantees._certify import certificate_points, coverage_intervals
from robfcp.guarantees._heterogeneity import estimate_heterogeneity
from robfcp.guarantees._marginal import marginal_test
from robfcp.guarantees._tail_bounds import (
    critical_counts,
    kl_lower,
    noisy_size_tail_test,
    pac_threshold,
)
from robfcp.guarantees._worst_case import accepted_bins, min_and_max_coverage

LEVEL = Fraction(9, 10)
EXACT = Privacy(300)  # noise so rare that none is drawn
BINS = 16
GRID = Binning.uniform(BINS)
EVERYWHERE = np.arange(BINS)
EDGES = np.linspace(0, 1, BINS + 1)
CLASSES = np.array([np.diff(beta_law.cdf(EDGES, shape, 3)) for shape in np.linspace(0.5, 3, 6)])


def noisy(rng, counts, privacy, known=True):
    """The counts with noise as a federation; sizes known or hidden."""
    noise = draw(rng, privacy.noise, counts.shape)
    sizes = counts.sum(axis=1) if known else None
    return Federation.from_counts(counts + noise, GRID, privacy=privacy, sample_sizes=sizes)


def private(epsilon, known=True):
    return Privacy(epsilon, neighbours="substitution" if known else "add-remove")


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("m", [0, 1, 2])
def test_the_marginal_threshold_is_the_brute_force_one(known, m):
    rng, fell = np.random.default_rng(m), 0
    for trial in range(30):
        n_clients = int(rng.integers(m + 1, 7))
        truth = rng.dirichlet(np.full(BINS, 2), n_clients)
        sizes = rng.integers(20, 900, n_clients)
        privacy = private((2.0, 0.5, 30.0)[trial % 3], known)
        sent = rng.multinomial(sizes, truth)
        if trial % 3 == 2:  # all below, but for a count that falls and rises again
            sent = np.column_stack([sizes, *np.zeros((BINS - 1, n_clients), dtype=int)])
            sent[:, 12], sent[:, 13] = -sizes // 2, -(-sizes // 2)
        federation = noisy(rng, sent, privacy, known)
        counts = count_bounds(federation)
        beta = counts.noise_delta_of_level(LEVEL)
        target = LEVEL + beta
        # as much noise as in as many bins from below; both sides where sizes are hidden
        left, right = (side.tolist() for side in counts.noise_bounds(EVERYWHERE, float(beta)))
        charge = 1 if n_clients > 1 else target
        expected = BINS
        for edge in reversed(range(BINS)):
            below = [Fraction(h, 2) for h in counts.lower(np.array([edge]))[0].tolist()]
            allowed = ((1 - target) * left[edge] + target * right[edge]) / 2
            gains = [c - target * int(n) for c, n in zip(below, counts.sizes, strict=True)]
            if not all(
                sum(gains[k] for k in kept) >= allowed + charge
                for size in range(n_clients - m, n_clients + 1)
                for kept in combinations(range(n_clients), size)
            ):
                break
            expected = edge
        found = marginal_threshold_bin(federation, LEVEL, m)
        assert found == (None if expected == BINS else expected)
        test, noise_delta = marginal_test(counts, LEVEL)
        alone = accepted_bins(counts, EVERYWHERE, test, m, noise_delta)
        fell += alone[:expected].any()
    assert fell  # somewhere an edge would do by itself which one above it forbids


def test_where_no_noise_is_drawn_thresholds_are_those_of_the_raised_level():
    rng = np.random.default_rng(5)
    counts = rng.multinomial(400, CLASSES.mean(axis=0), size=20)
    plain, marked = Federation.from_counts(counts, GRID), noisy(rng, counts, EXACT)
    raised = LEVEL + Fraction(1, 500)
    assert fcp_bin_index(marked, LEVEL) == fcp_bin_index(plain, LEVEL)
    for m, samples in ((0, None), (3, None), (None, 1500)):
        wanted = marginal_threshold_bin(plain, raised, m, samples)
        assert marginal_threshold_bin(marked, LEVEL, m, samples) == wanted
    marked_bin = pac_threshold(count_bounds(marked), LEVEL, 3, 0.05)
    assert marked_bin == pac_threshold(count_bounds(plain), LEVEL, 3, 0.04)


@pytest.mark.parametrize("neighbours", thorough(["substitution", "add-remove"], "add-remove"))
@pytest.mark.parametrize("promise", [None, robfcp.MarginalGuarantee(2), robfcp.PACGuarantee(2)])
def test_noise_too_small_to_matter_changes_nothing(promise, neighbours):
    rng = np.random.default_rng(12)
    counts = rng.multinomial(rng.integers(60, 200, 12), CLASSES[0])
    counts[0] = [0] * (BINS - 1) + [100]
    law, asked = Privacy(1e6, neighbours=neighbours), {"defense": robfcp.Consensus(at_most=2)}
    plain, marked = (
        robfcp.calibrate(
            Federation.from_counts(counts, GRID, privacy=one, sample_sizes=counts.sum(axis=1)),
            [0.8, 0.95],
            guarantee=promise,
            **asked,
        )
        for one in (None, law)
    )
    top = GRID.upper_edges[-1]  # infinite in a private round: what leaves the grid counts there
    assert marked.threshold == tuple(np.inf if t == top else t for t in plain.threshold)
    assert marked.flagged_clients == plain.flagged_clients
    for one, other in zip(marked.certificate, plain.certificate, strict=True):
        assert (one.lower, one.upper, one.m) == (other.lower, other.upper, other.m)
        assert "noise of 12 private reports is allowed for" in one.note


def test_pooled_noise_stays_within_its_allowance_as_often_as_stated():
    rng = np.random.default_rng(1)
    privacy = private(0.5)
    counts = np.tile(np.full(BINS, 40), (30, 1))
    allowance = count_bounds(noisy(rng, counts, privacy)).noise_bounds(EVERYWHERE, 0.05)[0]
    exceeded = np.zeros(BINS)
    for _ in range(600):
        found = count_bounds(noisy(rng, counts, privacy)).lower(EVERYWHERE).sum(axis=1)
        exceeded += found - 60 * np.cumsum(counts[0]) > allowance
    assert (binom.sf(exceeded - 1, 600, 0.05) > 1e-4).all()
    assert exceeded[:-1].mean() > 0.03 * 600  # and no larger than it must be


def test_a_client_that_claims_endless_noise_cannot_drown_the_others():
    rng = np.random.default_rng(2)
    counts = rng.multinomial(500, CLASSES[0], size=20)
    privacy = [Privacy(1e-4), *[private(2.0)] * 19]
    sizes = counts.sum(axis=1)
    forged = counts + draw(rng, private(2.0).noise, counts.shape)
    loud = Federation.from_counts(forged, GRID, privacy=privacy, sample_sizes=sizes)
    top = forged.copy()
    top[0] = [0] * (BINS - 1) + [500]
    liar = Federation.from_counts(top, GRID, privacy=[None, *privacy[1:]], sample_sizes=sizes)
    assert marginal_threshold_bin(loud, LEVEL, 1) == marginal_threshold_bin(liar, LEVEL, 1)
    assert marginal_threshold_bin(loud, LEVEL, 1) < BINS - 1
    silent = count_bounds(loud)  # taken as nothing from below and as everything from above
    assert not silent.lower(EVERYWHERE[:-1])[:, 0].any()
    assert (silent.upper(EVERYWHERE)[:, 0] == 2 * 500).all()


def test_hidden_sizes_refuse_what_needs_them():
    rng = np.random.default_rng(4)
    counts = rng.multinomial(300, CLASSES[0], size=10)
    hidden = noisy(rng, counts, private(1, known=False), known=False)
    for promise in (robfcp.PACGuarantee(1, alike=0.1), robfcp.MarginalGuarantee(samples=100)):
        with pytest.raises(RobfcpError, match="register the sizes or use substitution"):
            promise.threshold(hidden, LEVEL, 0.95)
    assert estimate_heterogeneity(hidden, 1).lower_bound == 0


@pytest.mark.parametrize("known", [True, False])
def test_certificates_spend_the_noise_its_whole_share_and_no_more(known):
    rng = np.random.default_rng(9)
    federation = noisy(rng, rng.multinomial(300, CLASSES[1], size=12), private(0.5, known), known)
    counts, chance = count_bounds(federation), 0.2 * 0.05
    # both ends at every edge; where sizes are hidden both sides of each, and the total once
    one = chance / (2 * BINS) if known else 2 * chance / (4 * BINS + 1)
    (low,), (high,) = min_and_max_coverage(counts, EVERYWHERE, np.array([2]), one)
    total = np.sort(counts.sizes)[:-2].sum()
    if not known:
        total -= counts.noise_bounds(EVERYWHERE[-1:], 2 * chance / (4 * BINS + 1))[0][0] / 2
    radius = np.log(2 * BINS / (0.05 - chance)) / total
    (lower,), (upper,) = coverage_intervals(counts, EVERYWHERE, [2], 0.05)
    np.testing.assert_allclose(lower, kl_lower(low, radius), rtol=1e-9)
    np.testing.assert_allclose(1 - upper, kl_lower(1 - high, radius), rtol=1e-9)


def test_a_clients_own_count_is_bounded_by_the_whole_counts_that_its_noise_leaves():
    """Twice a count lies within the noise of the estimate in half counts, from 0 to its size."""
    rng = np.random.default_rng(11)
    federation = noisy(rng, rng.multinomial(60, CLASSES[1], size=12), private(2.0))
    bounds = count_bounds(federation)
    estimates = bounds.estimates(EVERYWHERE)
    noise = bounds.noise_model.bounds_of_clients(EVERYWHERE, 0.05)
    is_silent = bounds.noise_model.is_silent(EVERYWHERE)
    assert not is_silent.any()
    assert set((estimates % 2).ravel()) == {0, 1}
    lowest, highest = bounds.per_client(EVERYWHERE, 0.05)
    n_inside = 0
    for e, k in np.ndindex(lowest.shape):
        possible = [c for c in range(-200, 300) if abs(2 * c - estimates[e, k]) <= noise[e, k]]
        assert lowest[e, k] == min(max(min(possible), 0), 60)
        assert highest[e, k] == min(max(max(possible), 0), 60)
        n_inside += 0 < lowest[e, k] < highest[e, k] < 60
    assert n_inside > 10


@pytest.mark.parametrize("m", [0, 1, 3])
def test_hidden_sizes_ask_for_the_slack_of_every_total_that_their_noise_leaves(m):
    rng = np.random.default_rng(12)
    federation = noisy(rng, rng.multinomial(40, CLASSES[1], size=8), private(1.0, False), False)
    bounds = count_bounds(federation)
    test = noisy_size_tail_test(bounds, m, LEVEL, 0.04, 0.01)

    # The least and the largest total each have a quarter of what is for noise.
    noise = bounds.noise_model.bound_of_hidden_total(0.0025) / 2
    sizes = sorted(bounds.sizes.tolist())
    assert sizes[0] > 0
    least = max(1, int(sum(sizes[: len(sizes) - m]) - noise))
    largest = int(np.ceil(sum(sizes) + noise))
    totals = np.arange(least, largest + 1)
    slack = [
        LEVEL.denominator * c - LEVEL.numerator * n
        for n, c in zip(totals.tolist(), critical_counts(totals, LEVEL, 0.04).tolist(), strict=True)
    ]
    assert test.min_excess.tolist() == [max(slack)]


@pytest.mark.parametrize("known", [True, False])
def test_certificates_shrink_with_more_budget_and_hold_the_truth(known):
    rng, widths = np.random.default_rng(7), []
    counts = rng.multinomial(500, CLASSES[2], size=30)
    for epsilon in (0.1, 0.5, 2, 300):
        federation = noisy(rng, counts, private(epsilon, known), known)
        curve = certificate_points(count_bounds(federation), 9, range(4))
        assert curve[0].lower <= np.cumsum(CLASSES[2])[9] <= curve[0].upper
        assert all(b.lower <= a.lower and a.upper <= b.upper for a, b in pairwise(curve))
        widths.append(curve[2].upper - curve[2].lower)
    assert widths == sorted(widths, reverse=True)


def test_every_private_reporter_holds_every_class_so_that_no_noise_is_chosen_by_what_it_is():
    """Nobody holds the class: sites whose noise is 0 in all cells must not drop out of the sum."""
    rng, privacy, exceeded, runs = np.random.default_rng(11), private(8.0), 0, 500
    for _ in range(runs):
        sent = draw(rng, privacy.noise, (30, 4))
        sent[:, :2] += 50
        federation = Federation(
            tuple(f"s{k:02d}" for k in range(30)),
            sent[:, :2] + sent[:, 2:],
            np.full(30, 100),
            Binning.uniform(2),
            privacy=(privacy,) * 30,
            strata=StratifiedTable("class", 2, SparseTable.from_dense(sent), np.arange(30), 2),
        )
        held = federation.select_stratum(1)
        assert held.clients == federation.clients
        counts, top = count_bounds(held), np.array([1])
        exceeded += counts.lower(top).sum() > counts.noise_bounds(top, 0.002)[0][0]
    assert binom.sf(exceeded - 1, runs, 0.001) > 1e-3  # 4.4% when they dropped out


def test_reports_in_fives_among_private_ones_hold_no_less_than_their_counts():
    counts = np.array([[9, 12, 8, 11], [10, 10, 15, 5], [11, 7, 12, 10]])
    mixed = Federation.from_counts(
        counts, privacy=[Privacy(1), None, Privacy(1)], sample_sizes=[40] * 3, min_cell_count=5
    )
    assert mixed.is_coarsened.tolist() == [False, True, False]
    held, edges = count_bounds(mixed), np.arange(4)
    assert (held.upper(edges) >= held.lower(edges)).all()
    assert (held.upper(edges) > held.lower(edges))[:, 1].any()
