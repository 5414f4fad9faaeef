"""Thresholds and certificates from private reports, by brute force and simulation."""

from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
import pytest
from effort import thorough
from noises import draw
from scipy.stats import beta as beta_distribution
from scipy.stats import binom

import robfcp
from robfcp import Privacy
from robfcp.binning import Binning
from robfcp.errors import RobfcpError
from robfcp.federation import Federation, SparseTable, StratifiedTable
from robfcp.guarantees import count_bounds, fcp_bin_index, marginal_threshold_bin
from robfcp.guarantees._certify import certificate_points, coverage_intervals
from robfcp.guarantees._heterogeneity import estimate_heterogeneity
from robfcp.guarantees._marginal_threshold import marginal_test
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
BINNING = Binning.uniform(BINS)
ALL_BINS = np.arange(BINS)
EDGES = np.linspace(0, 1, BINS + 1)
CLASSES = np.array(
    [np.diff(beta_distribution.cdf(EDGES, shape, 3)) for shape in np.linspace(0.5, 3, 6)]
)


def noisy_federation(rng, counts, privacy, sizes_known=True):
    """Return a federation of counts with noise; sizes are known or hidden."""
    noise = draw(rng, privacy.noise, counts.shape)
    sizes = counts.sum(axis=1) if sizes_known else None
    return Federation.from_counts(counts + noise, BINNING, privacy=privacy, sample_sizes=sizes)


def privacy_of(epsilon, sizes_known=True):
    return Privacy(epsilon, neighbors="substitution" if sizes_known else "add-remove")


@pytest.mark.parametrize("sizes_known", [True, False])
@pytest.mark.parametrize("max_malicious", [0, 1, 2])
def test_the_marginal_threshold_is_that_of_brute_force(sizes_known, max_malicious):
    rng, n_not_monotone = np.random.default_rng(max_malicious), 0
    for trial in range(30):
        n_clients = int(rng.integers(max_malicious + 1, 7))
        probabilities = rng.dirichlet(np.full(BINS, 2), n_clients)
        sizes = rng.integers(20, 900, n_clients)
        privacy = privacy_of((2.0, 0.5, 30.0)[trial % 3], sizes_known)
        counts_of_clients = rng.multinomial(sizes, probabilities)
        if (
            trial % 3 == 2
        ):  # all in the first bin, but for a count that decreases and increases again
            counts_of_clients = np.column_stack(
                [sizes, *np.zeros((BINS - 1, n_clients), dtype=int)]
            )
            counts_of_clients[:, 12], counts_of_clients[:, 13] = -sizes // 2, -(-sizes // 2)
        federation = noisy_federation(rng, counts_of_clients, privacy, sizes_known)
        counts = count_bounds(federation)
        beta = counts.noise_delta_of_level(LEVEL)
        target = LEVEL + beta
        # the noise of the bins up to this one, and of those above it where sizes are hidden
        noise_below, noise_above = (
            side.tolist() for side in counts.noise_bounds(ALL_BINS, float(beta))
        )
        rank_correction = 1 if n_clients > 1 else target
        expected = BINS
        for bin_index in reversed(range(BINS)):
            cumulative = [Fraction(h, 2) for h in counts.lower(np.array([bin_index]))[0].tolist()]
            noise_bound = (
                (1 - target) * noise_below[bin_index] + target * noise_above[bin_index]
            ) / 2
            excesses = [c - target * int(n) for c, n in zip(cumulative, counts.sizes, strict=True)]
            if not all(
                sum(excesses[k] for k in remaining) >= noise_bound + rank_correction
                for size in range(n_clients - max_malicious, n_clients + 1)
                for remaining in combinations(range(n_clients), size)
            ):
                break
            expected = bin_index
        bin_found = marginal_threshold_bin(federation, LEVEL, max_malicious)
        assert bin_found == (None if expected == BINS else expected)
        test, noise_delta = marginal_test(counts, LEVEL)
        is_accepted = accepted_bins(counts, ALL_BINS, test, max_malicious, noise_delta)
        n_not_monotone += is_accepted[:expected].any()
    assert n_not_monotone  # a bin is accepted although one above it is not


def test_without_actual_noise_thresholds_are_those_of_the_raised_level():
    rng = np.random.default_rng(5)
    counts = rng.multinomial(400, CLASSES.mean(axis=0), size=20)
    exact = Federation.from_counts(counts, BINNING)
    noisy = noisy_federation(rng, counts, EXACT)
    raised_level = LEVEL + Fraction(1, 500)
    assert fcp_bin_index(noisy, LEVEL) == fcp_bin_index(exact, LEVEL)
    for max_malicious, max_malicious_samples in ((0, None), (3, None), (None, 1500)):
        expected = marginal_threshold_bin(exact, raised_level, max_malicious, max_malicious_samples)
        assert (
            marginal_threshold_bin(noisy, LEVEL, max_malicious, max_malicious_samples) == expected
        )
    marked_bin = pac_threshold(count_bounds(noisy), LEVEL, 3, 0.05)
    assert marked_bin == pac_threshold(count_bounds(exact), LEVEL, 3, 0.04)


@pytest.mark.parametrize("neighbors", thorough(["substitution", "add-remove"], "add-remove"))
@pytest.mark.parametrize("guarantee", [None, robfcp.MarginalGuarantee(2), robfcp.PACGuarantee(2)])
def test_negligible_noise_changes_nothing(guarantee, neighbors):
    rng = np.random.default_rng(12)
    counts = rng.multinomial(rng.integers(60, 200, 12), CLASSES[0])
    counts[0] = [0] * (BINS - 1) + [100]
    privacy = Privacy(1e6, neighbors=neighbors)
    options = {"defense": robfcp.Consensus(max_malicious=2)}
    exact, noisy = (
        robfcp.calibrate(
            Federation.from_counts(
                counts, BINNING, privacy=certificate, sample_sizes=counts.sum(axis=1)
            ),
            coverage=[0.8, 0.95],
            guarantee=guarantee,
            **options,
        )
        for certificate in (None, privacy)
    )
    top = BINNING.upper_edges[-1]  # infinite in a private round: what leaves the grid counts there
    assert noisy.threshold == tuple(np.inf if t == top else t for t in exact.threshold)
    assert noisy.flagged_clients == exact.flagged_clients
    for certificate, exact_certificate in zip(noisy.certificate, exact.certificate, strict=True):
        assert certificate.lower == exact_certificate.lower
        assert certificate.upper == exact_certificate.upper
        assert certificate.max_malicious == exact_certificate.max_malicious
        assert "noise of 12 private reports is allowed for" in certificate.note


def test_pooled_noise_exceeds_its_bound_as_rarely_as_stated():
    rng = np.random.default_rng(1)
    privacy = privacy_of(0.5)
    counts = np.tile(np.full(BINS, 40), (30, 1))
    bounds = count_bounds(noisy_federation(rng, counts, privacy)).noise_bounds(ALL_BINS, 0.05)[0]
    exceeded = np.zeros(BINS)
    for _ in range(600):
        cumulative = (
            count_bounds(noisy_federation(rng, counts, privacy)).lower(ALL_BINS).sum(axis=1)
        )
        exceeded += cumulative - 60 * np.cumsum(counts[0]) > bounds
    assert (binom.sf(exceeded - 1, 600, 0.05) > 1e-4).all()
    assert exceeded[:-1].mean() > 0.03 * 600  # and no larger than necessary


def test_a_client_that_claims_huge_noise_does_not_affect_the_others():
    rng = np.random.default_rng(2)
    counts = rng.multinomial(500, CLASSES[0], size=20)
    privacy = [Privacy(1e-4), *[privacy_of(2.0)] * 19]
    sizes = counts.sum(axis=1)
    forged = counts + draw(rng, privacy_of(2.0).noise, counts.shape)
    with_huge_noise = Federation.from_counts(forged, BINNING, privacy=privacy, sample_sizes=sizes)
    top_counts = forged.copy()
    top_counts[0] = [0] * (BINS - 1) + [500]
    exact_forgery = Federation.from_counts(
        top_counts, BINNING, privacy=[None, *privacy[1:]], sample_sizes=sizes
    )
    assert marginal_threshold_bin(with_huge_noise, LEVEL, 1) == marginal_threshold_bin(
        exact_forgery, LEVEL, 1
    )
    assert marginal_threshold_bin(with_huge_noise, LEVEL, 1) < BINS - 1
    silent_counts = count_bounds(with_huge_noise)  # bounded by 0 and by its size
    assert not silent_counts.lower(ALL_BINS[:-1])[:, 0].any()
    assert (silent_counts.upper(ALL_BINS)[:, 0] == 2 * 500).all()


def test_guarantees_that_need_sizes_are_refused_where_they_are_hidden():
    rng = np.random.default_rng(4)
    counts = rng.multinomial(300, CLASSES[0], size=10)
    hidden = noisy_federation(rng, counts, privacy_of(1, sizes_known=False), sizes_known=False)
    for guarantee in (
        robfcp.PACGuarantee(1, heterogeneity=0.1),
        robfcp.MarginalGuarantee(max_malicious_samples=100),
    ):
        with pytest.raises(RobfcpError, match="register the sizes or use substitution"):
            guarantee.threshold(hidden, LEVEL, 0.95)
    assert estimate_heterogeneity(hidden, 1).lower_bound == 0


@pytest.mark.parametrize("sizes_known", [True, False])
def test_certificates_spend_exactly_their_fraction_of_delta_on_noise(sizes_known):
    rng = np.random.default_rng(9)
    federation = noisy_federation(
        rng, rng.multinomial(300, CLASSES[1], size=12), privacy_of(0.5, sizes_known), sizes_known
    )
    counts, noise_delta = count_bounds(federation), 0.2 * 0.05
    # both bounds at every bin; where sizes are hidden both sides of each, and the total once
    delta_of_bound = noise_delta / (2 * BINS) if sizes_known else 2 * noise_delta / (4 * BINS + 1)
    (low,), (high,) = min_and_max_coverage(counts, ALL_BINS, np.array([2]), delta_of_bound)
    total = np.sort(counts.sizes)[:-2].sum()
    if not sizes_known:
        total -= counts.noise_bounds(ALL_BINS[-1:], 2 * noise_delta / (4 * BINS + 1))[0][0] / 2
    radius = np.log(2 * BINS / (0.05 - noise_delta)) / total
    (lower,), (upper,) = coverage_intervals(counts, ALL_BINS, [2], 0.05)
    np.testing.assert_allclose(lower, kl_lower(low, radius), rtol=1e-9)
    np.testing.assert_allclose(1 - upper, kl_lower(1 - high, radius), rtol=1e-9)


def test_the_count_of_a_client_is_bounded_by_the_integers_that_its_noise_allows():
    """Twice a count is within the noise of the estimate in half counts, from 0 to its size."""
    rng = np.random.default_rng(11)
    federation = noisy_federation(rng, rng.multinomial(60, CLASSES[1], size=12), privacy_of(2.0))
    bounds = count_bounds(federation)
    estimates = bounds.estimates(ALL_BINS)
    noise = bounds.noise_model.bounds_of_clients(ALL_BINS, 0.05)
    is_silent = bounds.noise_model.is_silent(ALL_BINS)
    assert not is_silent.any()
    assert set((estimates % 2).ravel()) == {0, 1}
    lowest, highest = bounds.per_client(ALL_BINS, 0.05)
    n_inside = 0
    for e, k in np.ndindex(lowest.shape):
        possible = [c for c in range(-200, 300) if abs(2 * c - estimates[e, k]) <= noise[e, k]]
        assert lowest[e, k] == min(max(min(possible), 0), 60)
        assert highest[e, k] == min(max(max(possible), 0), 60)
        n_inside += 0 < lowest[e, k] < highest[e, k] < 60
    assert n_inside > 10


@pytest.mark.parametrize("max_malicious", [0, 1, 3])
def test_hidden_sizes_require_the_slack_of_every_total_that_their_noise_allows(max_malicious):
    rng = np.random.default_rng(12)
    federation = noisy_federation(
        rng, rng.multinomial(40, CLASSES[1], size=8), privacy_of(1.0, False), False
    )
    bounds = count_bounds(federation)
    test = noisy_size_tail_test(bounds, max_malicious, LEVEL, 0.04, 0.01)

    # The smallest and the largest total each have a quarter of the delta of noise.
    noise = bounds.noise_model.bound_of_hidden_total(0.0025) / 2
    sizes = sorted(bounds.sizes.tolist())
    assert sizes[0] > 0
    smallest = max(1, int(sum(sizes[: len(sizes) - max_malicious]) - noise))
    largest = int(np.ceil(sum(sizes) + noise))
    totals = np.arange(smallest, largest + 1)
    slack = [
        LEVEL.denominator * c - LEVEL.numerator * n
        for n, c in zip(totals.tolist(), critical_counts(totals, LEVEL, 0.04).tolist(), strict=True)
    ]
    assert test.min_excess.tolist() == [max(slack)]


@pytest.mark.parametrize("sizes_known", [True, False])
def test_certificates_narrow_with_epsilon_and_contain_the_true_coverage(sizes_known):
    rng, widths = np.random.default_rng(7), []
    counts = rng.multinomial(500, CLASSES[2], size=30)
    for epsilon in (0.1, 0.5, 2, 300):
        federation = noisy_federation(rng, counts, privacy_of(epsilon, sizes_known), sizes_known)
        points = certificate_points(count_bounds(federation), 9, range(4))
        assert points[0].lower <= np.cumsum(CLASSES[2])[9] <= points[0].upper
        assert all(b.lower <= a.lower and a.upper <= b.upper for a, b in pairwise(points))
        widths.append(points[2].upper - points[2].lower)
    assert widths == sorted(widths, reverse=True)


def test_every_private_client_holds_every_class_so_that_noise_does_not_select_clients():
    """No client holds the class: clients whose noise is 0 in all cells must stay in the sum."""
    rng, privacy, exceeded, n_runs = np.random.default_rng(11), privacy_of(8.0), 0, 500
    for _ in range(n_runs):
        counts_of_classes = draw(rng, privacy.noise, (30, 4))
        counts_of_classes[:, :2] += 50
        federation = Federation(
            tuple(f"s{k:02d}" for k in range(30)),
            counts_of_classes[:, :2] + counts_of_classes[:, 2:],
            np.full(30, 100),
            Binning.uniform(2),
            privacy=(privacy,) * 30,
            strata=StratifiedTable(
                "class", 2, SparseTable.from_dense(counts_of_classes), np.arange(30), 2
            ),
        )
        stratum = federation.select_stratum(1)
        assert stratum.clients == federation.clients
        counts, top = count_bounds(stratum), np.array([1])
        exceeded += counts.lower(top).sum() > counts.noise_bounds(top, 0.002)[0][0]
    assert binom.sf(exceeded - 1, n_runs, 0.001) > 1e-3  # 4.4% without them


def test_coarsened_reports_among_private_ones_keep_their_bounds():
    counts = np.array([[9, 12, 8, 11], [10, 10, 15, 5], [11, 7, 12, 10]])
    mixed = Federation.from_counts(
        counts, privacy=[Privacy(1), None, Privacy(1)], sample_sizes=[40] * 3, min_cell_count=5
    )
    assert mixed.is_coarsened.tolist() == [False, True, False]
    bounds, bins = count_bounds(mixed), np.arange(4)
    assert (bounds.upper(bins) >= bounds.lower(bins)).all()
    assert (bounds.upper(bins) > bounds.lower(bins))[:, 1].any()
