"""Every guarantee against attackers who see all honest data and pick the worst of many attacks.

Each check must hold for the stated budget and fail for a budget one too small.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from omniscient import (
    BINS,
    CLASSES,
    GRID,
    LEVEL,
    attacks,
    band_failures,
    marginal,
    pac,
    pruned,
    worst_coverage,
)
from scipy.spatial.distance import cdist
from scipy.stats import binom

from robfcp.federation import Federation
from robfcp.guarantees import Pac, certify
from robfcp.guarantees.alike import prune
from robfcp.guarantees.engine import counts_of
from robfcp.guarantees.promises import marginal_threshold


def mean_is_below(coverage: np.ndarray, level: float) -> bool:
    """Whether the mean lies below the level beyond three standard errors."""
    return bool(coverage.mean() < level - 3 * coverage.std(ddof=1) / np.sqrt(len(coverage)))


def fails_too_often(failures: int, trials: int, rate: float) -> bool:
    """Whether so many failures have a chance below 0.1% at the stated rate."""
    return bool(binom.sf(failures - 1, trials, rate) < 1e-3)


SETTINGS = [(mix, n) for mix in ("iid", "dirichlet") for n in (50, 500, None)]


def worst(seed, rule, world, told, trials, extra=0):
    """Coverage in each trial of (mix, n, clients, liars), the rule told a number of them."""
    mix, n, n_clients, liars = world
    rng = np.random.default_rng([seed, n_clients, n or 0])
    sites = {"mix": mix, "n": n, "n_clients": n_clients, "liars": liars}
    return worst_coverage(rng, rule, **sites, budget=told, extra=extra, trials=trials)


def failures(seed, rule, world, told, trials):
    return int((worst(seed, rule, world, told, trials) < 0.9).sum())


@pytest.mark.slow
@pytest.mark.parametrize(
    "world",
    [(*one, *sites) for one in SETTINGS for sites in ((6, 1), (20, 3))]
    + [("dirichlet", 50, 100, 9)],
)
def test_marginal_guarantee_covers_whatever_the_stated_liars_do(world):
    assert not mean_is_below(worst(1, marginal, world, world[-1], 200, extra=1), 0.9)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "told"), [(("iid", 500, 6, 1), 0), (("iid", 500, 100, 9), 0)])
def test_the_same_check_catches_a_marginal_budget_too_small(world, told):
    assert mean_is_below(worst(2, marginal, world, told, 200, extra=1), 0.9)


@pytest.mark.slow
@pytest.mark.parametrize(("mix", "n"), SETTINGS)
def test_pac_threshold_fails_at_most_at_its_stated_rate(mix, n):
    world = mix, n, 6, 1
    assert not fails_too_often(failures(3, pac, world, 1, 120), 120, 0.2)
    if n != 50:
        assert fails_too_often(failures(3, pac, world, 0, 120), 120, 0.2)


@pytest.mark.slow
def test_pac_threshold_without_liars_fails_close_to_its_stated_rate():
    failed = failures(4, pac, ("iid", 200, 6, 0), 0, 300)
    assert not fails_too_often(failed, 300, 0.2)
    assert failed > 0.05 * 300


@pytest.mark.slow
@pytest.mark.parametrize("n", [50, 500, None])
@pytest.mark.parametrize(("n_clients", "liars"), [(9, 4), (20, 8)])
def test_pruned_pac_fails_at_most_at_its_stated_rate_with_almost_half_lying(n, n_clients, liars):
    world = "iid", n, n_clients, liars
    assert not fails_too_often(failures(5, pruned, world, liars, 120), 120, 0.2)
    if n_clients == 9:  # of unlike sizes pruning often finds the fourth too: a third fail
        trials = 200 if n is None else 120
        assert fails_too_often(failures(5, pruned, world, liars - 1, trials), trials, 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.0, 0.04])
@pytest.mark.parametrize("n", [50, 500])
def test_pruning_then_pac_covers_although_liars_hide_inside_the_noise(n, sigma):
    """Benign clients are shifted by up to sigma around a common CDF; 5 of 20 lie."""
    rng = np.random.default_rng([6, n])
    base = CLASSES.mean(axis=0)
    half = np.cumsum(base) <= 0.8
    direction = np.where(half, base / base[half].sum(), -base / base[~half].sum())
    coverage, dropped = np.empty(60), 0
    for trial in range(60):
        shift = rng.uniform(-sigma, sigma, 20)
        truth = base + shift[:, None] * direction
        counts = rng.multinomial(n, truth)
        benign = np.append(np.cumsum(truth[5:], axis=1).mean(axis=0), 1.0)
        indices = []
        for forged in attacks(counts, 5):
            federation = Federation.from_counts(forged, GRID)
            index, _ = Pac(5, sigma).threshold(federation, LEVEL, 0.8)
            indices.append(BINS if index is None else index)
            dropped += int(not prune(federation, 5, sigma, 0.04).kept[5:].all())
        coverage[trial] = benign[min(indices)]
    assert not fails_too_often(int((coverage < 0.9).sum()), 60, 0.2)
    assert not fails_too_often(dropped, 60 * 10, 0.04)


@pytest.mark.slow
def test_stating_no_heterogeneity_for_clients_that_differ_breaks_pruning():
    """Why sigma is an input: with 0 stated for two benign groups, the smaller one is expelled."""
    truth = np.zeros((20, BINS))
    truth[:13, 20:60], truth[13:, 120:160] = 1 / 40, 1 / 40
    counts = np.random.default_rng(7).multinomial(500, truth)
    index, _ = Pac(7, 0.0).threshold(Federation.from_counts(counts, GRID), LEVEL, 0.95)
    assert index is not None
    assert np.cumsum(truth, axis=1)[:, index].mean() < 0.7
    honest, _ = Pac(7, 0.6).threshold(Federation.from_counts(counts, GRID), LEVEL, 0.95)
    assert honest is None or np.cumsum(truth, axis=1)[:, honest].mean() >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("mix", "n"), SETTINGS)
def test_certificates_hold_at_every_edge_at_once(mix, n):
    """An attacker may choose the threshold too: one edge outside the band is a failure."""

    def failures(budget: int) -> int:
        rng = np.random.default_rng([8, n or 0])
        return band_failures(rng, mix=mix, n=n, budget=budget, trials=60)

    assert not fails_too_often(failures(2), 60, 0.2)
    assert fails_too_often(failures(1), 60, 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("equal", [True, False])
def test_guarantees_of_a_thousand_clients_cost_less_than_their_distances(equal):
    rng = np.random.default_rng(10)
    sizes = np.full(1000, 500) if equal else rng.integers(50, 2000, 1000)
    federation = Federation.from_counts(rng.multinomial(sizes, rng.dirichlet(np.ones(1000), 1000)))
    vectors = federation.counts / federation.sizes[:, None]

    def seconds(work: Callable[[], object]) -> float:
        spent = []
        for _ in range(5):
            start = time.perf_counter()
            work()
            spent.append(time.perf_counter() - start)
        return min(spent)

    def at_threshold() -> None:
        fresh = replace(federation)
        index = marginal_threshold(fresh, LEVEL, m=50)
        assert index is not None
        certify(fresh, index, 50)

    distances = seconds(lambda: cdist(vectors, vectors))
    assert seconds(at_threshold) < distances
    edges, most = np.arange(1000), np.array([50])
    assert seconds(lambda: counts_of(replace(federation)).shares(edges, most, 0.0)) < 5 * distances
