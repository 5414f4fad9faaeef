"""Tails against scipy's, PAC over all sets that may be honest, and where delta is spent."""

from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from effort import cases, thorough
from plain_shift import by_class, class_cdfs, draw_sites, label_counts
from scipy.stats import binom

import robfcp
from robfcp.binning import Binning
from robfcp.federation import Federation
from robfcp.guarantees import (
    MarginalGuarantee,
    _base,
    _heterogeneity,
    _label_shift,
    _noise_model,
    _tail_bounds,
    count_bounds,
)
from robfcp.guarantees._certify import coverage_intervals
from robfcp.privacy import Privacy

LEVEL = Fraction(4, 5)


def brute_force(below, sizes, m, level, delta):
    """Whether every set that leaves out at most m clients reaches its own critical count."""
    for number in range(m + 1):
        for removed in combinations(range(len(sizes)), number):
            kept = [k for k in range(len(sizes)) if k not in removed]
            needed = _tail_bounds.critical_counts(np.array([sizes[kept].sum()]), level, delta)[0]
            if below[kept].sum() < needed:
                return False
    return True


@pytest.mark.parametrize("level", [Fraction(9, 10), Fraction(1, 2), Fraction(99, 100)])
@pytest.mark.parametrize("delta", thorough([0.05, 0.4, 1e-6], 0.05, 0.4))
def test_critical_count_is_the_least_rare_count_beyond_the_mean(level, delta):
    totals = np.arange(1, 400, 7)
    for total, found in zip(
        totals, _tail_bounds.critical_counts(totals, level, delta), strict=True
    ):
        candidates = [
            c
            for c in range(int(total) + 2)
            if c >= level * int(total) + 1 and binom.sf(c - 1, total, float(level)) <= delta
        ]
        assert found == min(candidates)


def test_the_critical_gain_is_the_least_that_hoeffding_or_bentkus_calls_rare():
    """Of 0/1 losses, the hardest, the chance of reaching it is at most delta."""
    for n in (20, 100, 400):
        for level in (Fraction(9, 10), Fraction(4, 5)):
            (gain,) = _tail_bounds.critical_loss_drops(np.array([n]), level, 0.05, 36)
            lost, miss = np.arange(36 * n) / 36, float(1 - level)
            lost = lost[lost <= n * miss]
            hoeffding = np.exp(-n * _tail_bounds.kl_divergence(lost / n, np.full(len(lost), miss)))
            bentkus = np.e * binom.cdf(np.ceil(lost), n, miss)
            rare = lost[np.minimum(hoeffding, bentkus) <= 0.05]
            assert gain == (36 * n - round(36 * rare[-1]) if rare.size else 36 * n + 1)
            assert binom.sf(np.ceil(gain / 36) - 1, n, float(level)) <= 0.05


@pytest.mark.effort
@pytest.mark.parametrize("sizes", ["equal", "unequal", "looked at in steps"])
def test_pac_asks_the_critical_count_of_every_benign_set(sizes, monkeypatch):
    """Exactly so for equal sizes, never less for unequal ones, also between the totals tried."""
    if sizes == "looked at in steps":
        monkeypatch.setattr(_tail_bounds, "_MAX_TOTALS", 3)
    rng = np.random.default_rng(len(sizes))
    passed, agreed = [], []
    for _ in range(cases(60)):
        n_clients = int(rng.integers(2, 8))
        m, number = int(rng.integers(0, n_clients)), rng.integers(3, 200, n_clients)
        number = np.full(n_clients, rng.integers(5, 60)) if sizes == "equal" else number
        below = rng.binomial(number, rng.uniform(0.75, 1))
        wanted = brute_force(below, number, m, LEVEL, 0.1)
        tail = _tail_bounds.pac_tail_test(number, m, LEVEL, 0.1)
        for j in range(m + 1):  # the line lies above the critical count of every total
            totals = np.unique([sum(kept) for kept in combinations(number, n_clients - j)])
            line = tail.min_excess[j] + tail.p * totals
            assert (line >= tail.q * _tail_bounds.critical_counts(totals, LEVEL, 0.1)).all()
        found = bool(tail.accepts(below[None, :], number, m)[0])
        assert found == wanted if sizes == "equal" else wanted or not found
        passed.append(found)
        agreed.append(found == wanted)
    assert 0.1 < np.mean(passed) < 0.9
    assert np.mean(agreed) > (0.9 if sizes != "looked at in steps" else 0.5)


def test_pac_threshold_is_the_first_edge_at_which_the_tail_is_reached():
    rng = np.random.default_rng(4)
    for trial in range(50):
        sizes = np.full(9, 60) if trial % 2 else rng.integers(30, 90, 9)
        federation = Federation.from_counts(rng.multinomial(sizes, np.full(12, 1 / 12)))
        holds = _tail_bounds.pac_tail_test(sizes, 1, LEVEL, 0.1).accepts(
            federation.cumulative_counts().T, sizes, 1
        )
        bounds = count_bounds(federation)
        assert _tail_bounds.pac_threshold(bounds, LEVEL, 1, 0.1) == holds.argmax()
    few = count_bounds(Federation.from_counts([[1] * 4] * 5))
    assert _tail_bounds.pac_threshold(few, LEVEL, 2, 0.01) is None


def test_kl_lower_end_is_the_root_of_the_divergence_and_errs_downwards():
    for share, radius in product((0.02, 0.5, 0.9, 0.999, 1.0), (1e-5, 1e-3, 0.1)):
        p = float(_tail_bounds.kl_lower(np.array(share), radius))
        divergence = float(_tail_bounds.kl_divergence(np.array(share), np.array(p)))
        assert radius * (1 - 1e-9) <= divergence == pytest.approx(radius, rel=1e-6)
    assert _tail_bounds.kl_lower(np.array(0.0), 0.1) == 0
    ends = np.array([0.0, 1.0, 0.3]), np.array([0.5, 0.5, 0.3])
    assert _tail_bounds.kl_divergence(*ends) == pytest.approx([np.log(2), np.log(2), 0.0])


# Where each rule spends its chance to fail: every part is recorded, and they sum to delta

DELTA, BINS, K = 0.05, 24, 12
RNG = np.random.default_rng(0)
COUNTS = RNG.multinomial(300, np.full(BINS, 1 / BINS), K)
PLAIN = Federation.from_counts(COUNTS, Binning.uniform(BINS))
PRIVATE = Federation.from_counts(
    COUNTS, Binning.uniform(BINS), privacy=Privacy(2.0), sample_sizes=COUNTS.sum(axis=1)
)
HIDDEN = Federation.from_counts(
    COUNTS, Binning.uniform(BINS), privacy=Privacy(2.0, neighbours="add-remove")
)
CLASSED = by_class(draw_sites(RNG, label_counts(RNG, K, 3, 300), class_cdfs(3, BINS)))


@pytest.fixture
def spent(monkeypatch):
    """What was spent on what, as the rules themselves hand it on."""
    found = {}

    def watch(place, name, what, at):
        whole = getattr(place, name)

        def watched(*given, **named):
            found.setdefault(what, at(*given, **named))
            return whole(*given, **named)

        monkeypatch.setattr(place, name, watched)

    for place in (_tail_bounds, _label_shift):
        watch(place, "pac_tail_test", "samples", lambda sizes, m, level, delta, *_: delta)
    watch(
        _tail_bounds,
        "noisy_size_tail_test",
        "samples",
        lambda counts, m, level, delta, noise: delta,
    )
    noise_model = _noise_model.NoiseModel
    watch(noise_model, "bounds_of_any_sum", "noise", lambda self, bins, delta: delta)
    # of hidden sizes the least and the largest total are bounded too
    watch(noise_model, "bound_of_hidden_total", "totals", lambda self, delta: 2 * delta)
    watch(_heterogeneity.ClientIntervals, "__init__", "pruning", lambda self, reports, beta: beta)
    watch(
        _label_shift.ClientPairs, "contradictions", "pruning", lambda self, below, m, beta, *_: beta
    )
    watch(
        _label_shift,
        "accepts_distributions",
        "samples",
        lambda evidence, distributions, alpha: evidence.delta,
    )
    monkeypatch.setattr(
        _base, "pac_tail_test", _tail_bounds.pac_tail_test
    )  # who can force full sets costs nothing
    return found


@pytest.mark.parametrize(
    ("promise", "reports", "parts"),
    [
        (robfcp.PACGuarantee(2), PLAIN, {"samples": 1}),
        (robfcp.PACGuarantee(2, alike=0.1), PLAIN, {"pruning": 0.2, "samples": 0.8}),
        (robfcp.PACGuarantee(2), PRIVATE, {"noise": 0.2, "samples": 0.8}),
        (robfcp.PACGuarantee(2), HIDDEN, {"totals": 0.1, "noise": 0.1, "samples": 0.8}),
        # noise has half of every interval's chance, and a fifth of what pruning leaves
        (
            robfcp.PACGuarantee(2, alike=0.1),
            PRIVATE,
            {"pruning": 0.2, "noise": 0.2 * 0.8, "samples": 0.8 * 0.8},
        ),
        (robfcp.LabelShiftGuarantee(2), CLASSED, {"pruning": 0.2, "samples": 0.8}),
        (robfcp.LabelShiftGuarantee(2, mix="uniform"), CLASSED, {"pruning": 0.2, "samples": 0.8}),
        (MarginalGuarantee(2), PRIVATE, {"noise": 0.1 / 50 / DELTA}),  # a fiftieth of the miss rate
    ],
    ids=str,
)
def test_the_parts_of_delta_sum_to_delta(promise, reports, parts, spent):
    promise.threshold(reports, Fraction(9, 10), 1 - DELTA)
    assert spent == pytest.approx({what: share * DELTA for what, share in parts.items()})
    assert sum(parts.values()) == pytest.approx(
        0.04 if isinstance(promise, MarginalGuarantee) else 1
    )


def test_classes_share_delta_equally(spent):
    found = robfcp.calibrate(
        CLASSED, by="class", guarantee=robfcp.PACGuarantee(2), certificate_confidence=1 - DELTA
    )
    assert spent == pytest.approx({"samples": DELTA / 3})
    assert len(found.strata) == 3


@pytest.mark.parametrize("reports", [PRIVATE, HIDDEN], ids=["sizes known", "sizes hidden"])
def test_a_certificate_shares_a_fifth_of_delta_among_the_noise_of_all_ends(reports, spent):
    """Both ends at every bin; where sizes are hidden the least total too."""
    coverage_intervals(count_bounds(reports), np.array([BINS // 2]), [2], DELTA)
    of_totals = spent.get("totals", 0.0) / 2  # the largest total is not needed
    assert 2 * BINS * spent["noise"] + of_totals == pytest.approx(0.2 * DELTA)
    assert (of_totals > 0) == (reports is HIDDEN)
