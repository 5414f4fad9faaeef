"""Where each rule spends its chance to fail: every part is recorded, and they sum to delta."""

from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from plain_shift import by_class, class_cdfs, draw_sites, label_counts
from scipy.stats import binomtest

import robfcp
from robfcp.federation import Federation
from robfcp.grid import Grid
from robfcp.guarantees import Marginal, label_shift, tails
from robfcp.guarantees import alike as pruning
from robfcp.guarantees.engine import coverage_interval
from robfcp.guarantees.tails import bounds_of
from robfcp.privacy import Privacy

LEVEL, DELTA, BINS, K = Fraction(9, 10), 0.05, 24, 12
RNG = np.random.default_rng(0)
COUNTS = RNG.multinomial(300, np.full(BINS, 1 / BINS), K)
PLAIN = Federation.from_counts(COUNTS, Grid.uniform(BINS))
PRIVATE = Federation.from_counts(
    COUNTS, Grid.uniform(BINS), privacy=Privacy(2.0), sizes=COUNTS.sum(axis=1)
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

    def condition(self, sizes, m, level, delta, *_):
        return delta

    watch(tails.PacCondition, "__init__", "samples", condition)
    watch(tails.NoisyCounts, "allowance", "noise", lambda self, edges, chance: chance)
    watch(pruning.ClientIntervals, "__init__", "pruning", lambda self, reports, beta: beta)
    watch(label_shift.Pairs, "kept", "pruning", lambda self, below, m, beta, *_: beta)
    watch(label_shift, "accepted", "samples", lambda *given: given[-1])
    label_shift._condition.cache_clear()
    return found


@pytest.mark.parametrize(
    ("promise", "reports", "parts"),
    [
        (robfcp.Pac(2), PLAIN, {"samples": 1}),
        (robfcp.Pac(2, alike=0.1), PLAIN, {"pruning": 0.2, "samples": 0.8}),
        (robfcp.Pac(2), PRIVATE, {"noise": 0.2, "samples": 0.8}),
        (robfcp.LabelShift(2), CLASSED, {"pruning": 0.2, "samples": 0.8}),
        (robfcp.LabelShift(2, mix="uniform"), CLASSED, {"pruning": 0.2, "samples": 0.8}),
    ],
    ids=str,
)
def test_the_parts_of_delta_sum_to_delta(promise, reports, parts, spent):
    promise.threshold(reports, LEVEL, 1 - DELTA)
    assert spent == pytest.approx({what: share * DELTA for what, share in parts.items()})
    assert sum(spent.values()) == pytest.approx(DELTA)


def test_private_reports_of_sites_alike_spend_delta_thrice_over_nothing(spent):
    """Noise has half of every interval's chance, and a fifth of what pruning leaves."""
    robfcp.Pac(2, alike=0.1).threshold(PRIVATE, LEVEL, 1 - DELTA)
    assert spent["pruning"] == pytest.approx(0.2 * DELTA)
    assert spent["noise"] + spent["samples"] == pytest.approx(0.8 * DELTA)


def test_classes_share_delta_equally(spent):
    found = robfcp.calibrate(CLASSED, by="class", promise=robfcp.Pac(2), confidence=1 - DELTA)
    assert spent == pytest.approx({"samples": DELTA / 3})
    assert len(found.parts) == 3


def test_both_ends_at_every_edge_share_the_delta_of_a_certificate():
    """P(outside at some edge) <= sum over 2 H ends of exp(-N kl) = 2 H delta / (2 H)."""
    bounds = bounds_of(PLAIN)
    low, high = coverage_interval(bounds, np.arange(BINS), 0, DELTA, BINS)
    share, total = np.cumsum(COUNTS.sum(axis=0)) / COUNTS.sum(), COUNTS.sum()
    inner = slice(0, BINS - 1)
    for end in (low[inner], high[inner]):
        divergence = share[inner] * np.log(share[inner] / end)
        divergence += (1 - share[inner]) * np.log((1 - share[inner]) / (1 - end))
        np.testing.assert_allclose(2 * BINS * np.exp(-total * divergence), DELTA, rtol=1e-6)


def test_every_site_and_inner_edge_shares_the_delta_of_pruning():
    """Clopper and Pearson's intervals miss with a chance of beta / (K (H - 1)) each."""
    known = pruning.ClientIntervals(PLAIN, DELTA)
    cdf = np.cumsum(COUNTS, axis=1)
    for row, edge in enumerate(known.edges[::5]):
        for k in range(0, K, 3):
            test = binomtest(int(cdf[k, edge]), 300)
            wanted = test.proportion_ci(1 - DELTA / (K * (BINS - 1)), method="exact")
            found = known.low[5 * row, k], known.high[5 * row, k]
            assert found == pytest.approx((wanted.low, wanted.high), abs=1e-9)


def test_a_pac_threshold_after_pruning_is_one_of_the_smaller_delta():
    """Spending all of delta again would give another edge here."""
    rng = np.random.default_rng(1)
    counts = rng.multinomial(400, np.full(2000, 1 / 2000), 15)
    fine = Federation.from_counts(counts)
    pac = partial(tails.pac_threshold, fine, LEVEL, 2)
    assert pac(0.8 * DELTA) != pac(DELTA)
    found, _ = robfcp.Pac(2, alike=0.3).threshold(fine, LEVEL, 1 - DELTA)
    assert found == pac(0.8 * DELTA)


def test_noise_takes_a_fiftieth_of_the_miss_rate_of_a_marginal_threshold(spent):
    Marginal(2).threshold(PRIVATE, LEVEL, 1 - DELTA)
    assert spent == pytest.approx({"noise": 0.1 / 50})
