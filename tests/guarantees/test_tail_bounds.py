"""Tail bounds against scipy, PAC over all plausible sets, and the parts of delta."""

from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from effort import cases, thorough
from plain_shift import class_cdfs, draw_clients, federation_by_class, label_counts
from scipy.stats import binom

import robfcp
from robfcp.binning import Binning
from robfcp.federation import Federation
from robfcp.guarantees import (
    MarginalGuarantee,
    _heterogeneity,
    _label_shift_thresholds,
    _noise_model,
    _pac_guarantee,
    _tail_bounds,
    count_bounds,
)
from robfcp.guarantees._certify import coverage_intervals
from robfcp.privacy import Privacy

LEVEL = Fraction(4, 5)


def brute_force(cumulative, sizes, max_malicious, level, delta):
    """Return whether every set without at most m clients reaches its critical count."""
    for n_removed in range(max_malicious + 1):
        for removed in combinations(range(len(sizes)), n_removed):
            remaining = [k for k in range(len(sizes)) if k not in removed]
            needed = _tail_bounds.critical_counts(np.array([sizes[remaining].sum()]), level, delta)[
                0
            ]
            if cumulative[remaining].sum() < needed:
                return False
    return True


@pytest.mark.parametrize("level", [Fraction(9, 10), Fraction(1, 2), Fraction(99, 100)])
@pytest.mark.parametrize("delta", thorough([0.05, 0.4, 1e-6], 0.05, 0.4))
def test_the_critical_count_is_the_smallest_rare_one_above_the_mean(level, delta):
    totals = np.arange(1, 400, 7)
    for total, critical_count in zip(
        totals, _tail_bounds.critical_counts(totals, level, delta), strict=True
    ):
        candidates = [
            c
            for c in range(int(total) + 2)
            if c >= level * int(total) + 1 and binom.sf(c - 1, total, float(level)) <= delta
        ]
        assert critical_count == min(candidates)


def test_the_critical_loss_drop_is_the_smallest_rare_one_by_hoeffding_or_bentkus():
    """0/1 losses, the worst case, reach it with a probability of at most delta."""
    for n in (20, 100, 400):
        for level in (Fraction(9, 10), Fraction(4, 5)):
            (critical_drop,) = _tail_bounds.critical_loss_drops(np.array([n]), level, 0.05, 36)
            summed_losses, miss_rate = np.arange(36 * n) / 36, float(1 - level)
            summed_losses = summed_losses[summed_losses <= n * miss_rate]
            hoeffding = np.exp(
                -n
                * _tail_bounds.kl_divergence(
                    summed_losses / n, np.full(len(summed_losses), miss_rate)
                )
            )
            bentkus = np.e * binom.cdf(np.ceil(summed_losses), n, miss_rate)
            rare = summed_losses[np.minimum(hoeffding, bentkus) <= 0.05]
            assert critical_drop == (36 * n - round(36 * rare[-1]) if rare.size else 36 * n + 1)
            assert binom.sf(np.ceil(critical_drop / 36) - 1, n, float(level)) <= 0.05


@pytest.mark.effort
@pytest.mark.parametrize("sizes", ["equal", "unequal", "totals in steps"])
def test_pac_requires_the_critical_count_of_every_plausible_set(sizes, monkeypatch):
    """Exactly for equal sizes, conservatively for unequal ones, also between the totals tried."""
    if sizes == "totals in steps":
        monkeypatch.setattr(_tail_bounds, "_MAX_TOTALS", 3)
    rng = np.random.default_rng(len(sizes))
    accepted, agreed = [], []
    for _ in range(cases(60)):
        n_clients = int(rng.integers(2, 8))
        max_malicious = int(rng.integers(0, n_clients))
        client_sizes = rng.integers(3, 200, n_clients)
        client_sizes = np.full(n_clients, rng.integers(5, 60)) if sizes == "equal" else client_sizes
        cumulative = rng.binomial(client_sizes, rng.uniform(0.75, 1))
        expected = brute_force(cumulative, client_sizes, max_malicious, LEVEL, 0.1)
        tail = _tail_bounds.pac_tail_test(client_sizes, max_malicious, LEVEL, 0.1)
        for j in range(max_malicious + 1):  # the line is above the critical count of every total
            totals = np.unique(
                [sum(remaining) for remaining in combinations(client_sizes, n_clients - j)]
            )
            line = tail.min_excess[j] + tail.p * totals
            assert (line >= tail.q * _tail_bounds.critical_counts(totals, LEVEL, 0.1)).all()
        is_accepted = bool(tail.accepts(cumulative[None, :], client_sizes, max_malicious)[0])
        assert is_accepted == expected if sizes == "equal" else expected or not is_accepted
        accepted.append(is_accepted)
        agreed.append(is_accepted == expected)
    assert 0.1 < np.mean(accepted) < 0.9
    assert np.mean(agreed) > (0.9 if sizes != "totals in steps" else 0.5)


def test_the_pac_threshold_is_the_first_bin_that_the_tail_test_accepts():
    rng = np.random.default_rng(4)
    for trial in range(50):
        sizes = np.full(9, 60) if trial % 2 else rng.integers(30, 90, 9)
        federation = Federation.from_counts(rng.multinomial(sizes, np.full(12, 1 / 12)))
        is_accepted = _tail_bounds.pac_tail_test(sizes, 1, LEVEL, 0.1).accepts(
            federation.cumulative_counts().T, sizes, 1
        )
        bounds = count_bounds(federation)
        assert _tail_bounds.pac_threshold(bounds, LEVEL, 1, 0.1) == is_accepted.argmax()
    small = count_bounds(Federation.from_counts([[1] * 4] * 5))
    assert _tail_bounds.pac_threshold(small, LEVEL, 2, 0.01) is None


def test_kl_lower_is_the_root_of_the_divergence_from_below():
    for fraction, radius in product((0.02, 0.5, 0.9, 0.999, 1.0), (1e-5, 1e-3, 0.1)):
        p = float(_tail_bounds.kl_lower(np.array(fraction), radius))
        divergence = float(_tail_bounds.kl_divergence(np.array(fraction), np.array(p)))
        assert radius * (1 - 1e-9) <= divergence == pytest.approx(radius, rel=1e-6)
    assert _tail_bounds.kl_lower(np.array(0.0), 0.1) == 0
    pairs = np.array([0.0, 1.0, 0.3]), np.array([0.5, 0.5, 0.3])
    assert _tail_bounds.kl_divergence(*pairs) == pytest.approx([np.log(2), np.log(2), 0.0])


# The parts of delta: each is recorded, and they sum to delta

DELTA, BINS, K = 0.05, 24, 12
RNG = np.random.default_rng(0)
COUNTS = RNG.multinomial(300, np.full(BINS, 1 / BINS), K)
EXACT = Federation.from_counts(COUNTS, Binning.uniform(BINS))
PRIVATE = Federation.from_counts(
    COUNTS, Binning.uniform(BINS), privacy=Privacy(2.0), sample_sizes=COUNTS.sum(axis=1)
)
HIDDEN = Federation.from_counts(
    COUNTS, Binning.uniform(BINS), privacy=Privacy(2.0, neighbors="add-remove")
)
BY_CLASS = federation_by_class(draw_clients(RNG, label_counts(RNG, K, 3, 300), class_cdfs(3, BINS)))


@pytest.fixture
def delta_spent(monkeypatch):
    """Return the deltas that the guarantees pass to their tests, by purpose, as recorded."""
    deltas = {}

    def record_delta(owner, name, purpose, get_delta):
        function = getattr(owner, name)

        def recorded(*args, **kwargs):
            deltas.setdefault(purpose, get_delta(*args, **kwargs))
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, recorded)

    for owner in (_tail_bounds, _label_shift_thresholds):
        record_delta(owner, "pac_tail_test", "samples", lambda sizes, m, level, delta, *_: delta)
    record_delta(
        _tail_bounds,
        "noisy_size_tail_test",
        "samples",
        lambda counts, m, level, delta, noise: delta,
    )
    noise_model = _noise_model.NoiseModel
    record_delta(noise_model, "bounds_of_any_sum", "noise", lambda self, bins, delta: delta)
    # of hidden sizes the smallest and the largest total are bounded too
    record_delta(noise_model, "bound_of_hidden_total", "totals", lambda self, delta: 2 * delta)
    record_delta(
        _heterogeneity.ClientIntervals, "__init__", "pruning", lambda self, reports, beta: beta
    )
    record_delta(
        _label_shift_thresholds.ClientPairs,
        "contradictions",
        "pruning",
        lambda self, below, m, beta, *_: beta,
    )
    record_delta(
        _label_shift_thresholds,
        "accepts_distributions",
        "samples",
        lambda evidence, distributions, alpha: evidence.delta,
    )
    monkeypatch.setattr(
        _pac_guarantee, "pac_tail_test", _tail_bounds.pac_tail_test
    )  # the breakdown point spends no delta
    return deltas


@pytest.mark.parametrize(
    ("guarantee", "reports", "fractions"),
    [
        (robfcp.PACGuarantee(2), EXACT, {"samples": 1}),
        (robfcp.PACGuarantee(2, heterogeneity=0.1), EXACT, {"pruning": 0.2, "samples": 0.8}),
        (robfcp.PACGuarantee(2), PRIVATE, {"noise": 0.2, "samples": 0.8}),
        (robfcp.PACGuarantee(2), HIDDEN, {"totals": 0.1, "noise": 0.1, "samples": 0.8}),
        # noise has half of the delta of every interval, and a fifth of what pruning leaves
        (
            robfcp.PACGuarantee(2, heterogeneity=0.1),
            PRIVATE,
            {"pruning": 0.2, "noise": 0.2 * 0.8, "samples": 0.8 * 0.8},
        ),
        (robfcp.LabelShiftGuarantee(2), BY_CLASS, {"pruning": 0.2, "samples": 0.8}),
        (
            robfcp.LabelShiftGuarantee(2, label_distribution="uniform"),
            BY_CLASS,
            {"pruning": 0.2, "samples": 0.8},
        ),
        (MarginalGuarantee(2), PRIVATE, {"noise": 0.1 / 50 / DELTA}),  # a fiftieth of the miss rate
    ],
    ids=str,
)
def test_the_fractions_of_delta_sum_to_delta(guarantee, reports, fractions, delta_spent):
    guarantee.threshold(reports, Fraction(9, 10), 1 - DELTA)
    assert delta_spent == pytest.approx(
        {purpose: fraction * DELTA for purpose, fraction in fractions.items()}
    )
    assert sum(fractions.values()) == pytest.approx(
        0.04 if isinstance(guarantee, MarginalGuarantee) else 1
    )


def test_classes_share_delta_equally(delta_spent):
    calibration = robfcp.calibrate(
        BY_CLASS, by="class", guarantee=robfcp.PACGuarantee(2), certificate_confidence=1 - DELTA
    )
    assert delta_spent == pytest.approx({"samples": DELTA / 3})
    assert len(calibration.strata) == 3


@pytest.mark.parametrize("reports", [PRIVATE, HIDDEN], ids=["sizes known", "sizes hidden"])
def test_a_certificate_spends_a_fifth_of_delta_on_the_noise_of_all_bounds(reports, delta_spent):
    """Both bounds at every bin; where sizes are hidden the smallest total too."""
    coverage_intervals(count_bounds(reports), np.array([BINS // 2]), [2], DELTA)
    delta_of_totals = delta_spent.get("totals", 0.0) / 2  # the largest total is not needed
    assert 2 * BINS * delta_spent["noise"] + delta_of_totals == pytest.approx(0.2 * DELTA)
    assert (delta_of_totals > 0) == (reports is HIDDEN)
