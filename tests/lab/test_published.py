"""The paper's bounds as published, and two executable counter-examples to its theorems."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import ceil, log, sqrt

import numpy as np
import pytest
from scipy.stats import norm

from robfcp.defence import RobFCP
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.guarantees import conformal_rank
from robfcp.lab import published
from robfcp.lab.published import PublishedSetting, table_edge, theorem_1, theorem_2

SETTING = PublishedSetting(60, 40, 500, 20_000, 10, 0.9, 0.1, 0.3, 0.01)


def test_the_bounds_are_the_published_formulas():
    r, tau = 10 * norm.isf(0.1 / (2 * 10 * 60)) / (2 * sqrt(500)), 40 / 60
    assert published.normal_radius(SETTING) == pytest.approx(r)
    penalty = r * (1 + (20_000 / 500) * 2 / (1 - tau)) + 20_000 * 0.3 / (500 * (1 - tau))
    bound = theorem_1(SETTING)
    assert bound.lower == pytest.approx(0.9 - penalty - (0.01 * 500 + 1) / 560)
    assert bound.upper == pytest.approx(0.9 + penalty + (0.01 * 500 + 1.01 * 60) / 560)
    assert bound.confidence == pytest.approx(0.9)
    dkw = 10 * sqrt(log(2 * 60 / 0.1) / 1000)
    assert published.dkw_radius(SETTING) == pytest.approx(dkw)
    difference = theorem_1(SETTING, published.dkw_radius).lower - bound.lower
    assert difference == pytest.approx((r - dkw) * (1 + 40 * 2 / (1 - tau)), rel=1e-9)
    alike = replace(SETTING, sigma=0.0, sketch_error=0.0)
    over, code = published.overestimated_benign(alike, 75), published.released_code_variant(alike)
    assert over.lower == pytest.approx(0.9 - (1 - 60 / 75 * (1 - r)) - 1 / 560)
    assert code.lower == pytest.approx(0.9 - r * (1 + 2 * tau / (1 - tau)) - 1 / 560)
    assert "not the theorem" in code.name
    found = theorem_2(100, 20, 50, trace=1e-6, distance=0.5, largest=3.0, smallest=2.0)
    first = (150 - 20 - 2) ** 2 / 30**2 * 1e-6 / 0.25
    assert found == pytest.approx(1 - first - 2 * 180 * 1e-6 * 9 / (4 * 0.25))
    assert theorem_2(100, 20, 50, 1.0, 0.5) < 0


def test_theorem_1_is_vacuous_at_every_realistic_size():
    for m, bins, n in product((10, 20, 30, 40), (10, 100), (50, 500, 5000, 25_000)):
        found = theorem_1(PublishedSetting(100 - m, m, n, m * n, bins))
        assert (found.lower <= 0, found.upper >= 1) == (True, True)

    def bound(n):
        return theorem_1(PublishedSetting(90, 10, n, 10 * n, 10))

    assert bound(240_000).lower < 0 < bound(260_000).lower
    assert bound(19_000_000).upper > 1 > bound(21_000_000).upper


def test_theorem_1_is_false_when_attackers_expel_a_benign_minority():
    """40 benign from P0, 20 benign from P1, 40 tiny attackers copying P0, H = 10."""
    n, tiny, bins = 1_000_000, 10, 10
    low, high = np.zeros(bins), np.zeros(bins)
    low[:5], high[5:] = [0.2, 0.2, 0.2, 0.3005, 0.0995], 0.2
    rng = np.random.default_rng(0)
    benign = np.vstack([rng.multinomial(n, low, 40), rng.multinomial(n, high, 20)])
    liars = np.tile((low * tiny).round().astype(int), (40, 1))
    federation = Federation.from_counts(np.vstack([benign, liars]))

    setting = PublishedSetting(60, 40, n, 40 * tiny, bins, sigma=float(np.abs(low - high).sum()))
    promised = theorem_1(setting)
    as_shares = theorem_1(replace(setting, malicious_samples=40))
    assert promised.lower == pytest.approx(0.879, abs=5e-4)
    assert as_shares.lower == pytest.approx(0.881, abs=5e-4)

    trusted = RobFCP(40, bins=bins)(federation).trusted
    index = table_edge(federation, Fraction(9, 10), trusted)
    assert index is not None
    coverage = (40 * low[: index + 1].sum() + 20 * high[: index + 1].sum()) / 60
    assert not trusted[40:60].any()
    assert coverage < promised.lower - 0.2
    assert coverage == pytest.approx(0.6, abs=0.001)


def test_theorem_2_is_false_under_a_decoy():
    """One far client: the estimator, given even the true covariance, sees only that one."""
    n_clients, liars, bins, spread = 20, 5, 10, 0.001
    rng = np.random.default_rng(1)
    mean = np.full(bins, 1 / bins)
    vectors = mean + spread * rng.standard_normal((n_clients, bins))
    decoy, near = np.eye(bins)[0], mean + 0.2 * (np.eye(bins)[1] - mean)
    vectors[-1] = decoy
    vectors[-liars:-1] = near + spread * rng.standard_normal((liars - 1, bins))
    distance = float(np.linalg.norm(vectors[-liars:] - mean, axis=1).min())
    promise = theorem_2(n_clients, liars, 10, trace=bins * spread**2, distance=distance)
    assert promise > 0.95

    guess = n_clients // 2
    distances = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
    order = np.argsort(np.sort(distances, axis=1)[:, 1:guess].mean(axis=1), kind="stable")

    def criterion(z):
        centre = vectors[order[:z]].mean(axis=0)
        log_density = -((vectors[order] - centre) ** 2).sum(axis=1) / (2 * spread**2)
        return log_density[:z].mean() - log_density[z:].mean()

    chosen = max(range(guess, n_clients), key=criterion)
    assert set(order[-liars:]) == set(range(n_clients - liars, n_clients))
    assert n_clients - chosen == 1


@pytest.mark.parametrize(
    ("call", "given", "word"),
    [
        (PublishedSetting, (50, 50, 10, 10, 10), "fewer malicious"),
        (published.overestimated_benign, (SETTING, 60), "exceed the true"),
        (theorem_2, (100, 20, 20, 1.0, 1.0), "initial guess"),
    ],
)
def test_settings_the_paper_excludes_are_refused(call, given, word):
    with pytest.raises(RobfcpError, match=word):
        call(*given)


def test_the_papers_ranks_are_n_plus_1_and_n_plus_k_and_an_edge_reaches_its_rank():
    level = Fraction(9, 10)
    for rule, k, sizes, ranks in (
        (published.full_rank, 3, (8, 9, 10, 19), [9, 9, 10, 18]),
        (published.published_rank, 10, (8, 10, 90), [17, 18, 90]),
    ):
        assert [conformal_rank(level, n, k, rule) for n in sizes] == ranks
    rng = np.random.default_rng(0)
    for _ in range(50):
        counts = rng.integers(0, 9, (6, 7)) + (np.arange(7) == 0)
        trusted = rng.permutation(6) < 4
        below = counts[trusted].sum(axis=0).cumsum()
        wanted = np.flatnonzero(below >= ceil(level * (int(below[-1]) + 1)))
        found = table_edge(Federation.from_counts(counts), level, trusted)
        assert found == (wanted[0] if len(wanted) else None)
