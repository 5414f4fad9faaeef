"""Distributions of privacy noise: closed forms, exact tails of sums, bounds for partial sums."""

import numpy as np
import pytest
from effort import cases
from makers import peak_memory
from scipy.stats import dlaplace

import robfcp
from robfcp import Binning, Privacy, Report
from robfcp.privacy import _noise as noise_module
from robfcp.privacy._noise import Noise, noise_bound

DISTRIBUTIONS = [Noise("laplace", scale) for scale in (0.3, 2.0, 20.0)]
DISTRIBUTIONS += [Noise("gaussian", scale) for scale in (0.4, 1.0, 6.4)]


def convolved(*terms):
    """Probabilities of the sum of so many draws of each distribution, by convolution."""
    total = np.ones(1)
    for noise, n_draws in terms:
        for _ in range(n_draws):
            total = np.convolve(total, noise.mass(int(45 * noise.scale) + 20))
    return total


@pytest.mark.parametrize("noise", DISTRIBUTIONS, ids=str)
def test_masses_add_up_and_have_the_stated_variance(noise):
    mass, x = noise.mass(3000), np.arange(-3000, 3001)
    assert mass.sum() == pytest.approx(1, abs=1e-12)
    assert mass @ x**2 == pytest.approx(noise.variance, rel=1e-9)
    angles = np.linspace(0, np.pi, 7)
    expected = np.cos(np.outer(angles, x)) @ mass
    np.testing.assert_allclose(noise.characteristic(angles), expected, atol=1e-12)
    if noise.mechanism == "laplace":
        np.testing.assert_allclose(mass, dlaplace(1 / noise.scale).pmf(x), rtol=1e-12, atol=1e-300)


SUMS = [((noise, n_draws),) for noise in DISTRIBUTIONS for n_draws in (1, 2, 5, cases(12))]


@pytest.mark.effort
@pytest.mark.parametrize("terms", [*SUMS, ((DISTRIBUTIONS[1], 4), (DISTRIBUTIONS[5], 3))], ids=str)
def test_a_bound_is_the_smallest_that_keeps_its_tail_probability(terms):
    mass = convolved(*terms)
    center = len(mass) // 2
    for probability in (0.2, 0.002, 1e-6):
        bound = noise_bound((*terms, (DISTRIBUTIONS[0], 0)), probability)
        assert mass[center + bound + 1 :].sum() <= probability
        assert bound == 0 or mass[center + bound :].sum() > probability - 1e-12


@pytest.mark.parametrize(
    "terms",
    [
        ((Noise("laplace", 2000.0), 2),),
        ((Noise("gaussian", 500.0), 100),),
        ((Noise("laplace", 500.0), 7), (Noise("gaussian", 300.0), 50)),
    ],
)
def test_wide_noise_has_a_bound_that_is_safe_and_not_far(terms, monkeypatch):
    for probability in (0.05, 1e-3, 1e-10):
        exact = noise_bound.__wrapped__(terms, probability)
        with monkeypatch.context() as patched:
            patched.setattr(noise_module, "_MAX_EXACT_VALUES", 0)
            bound = noise_bound.__wrapped__(terms, probability)
        assert exact < bound < 2 * exact
        assert probability > 1e-3 or bound < 1.5 * exact


@pytest.mark.parametrize("n", [500, 10**9])
@pytest.mark.parametrize("guarantee", [None, robfcp.PACGuarantee(max_malicious=1)])
def test_reports_that_claim_endless_noise_cost_little(n, guarantee):
    privacy, binning, rng = Privacy(2e-5), Binning.uniform(100), np.random.default_rng(0)
    counts = np.rint(rng.laplace(0, privacy.scale, (6, 100))).astype(int)
    counts[:, 50] += n
    options = {"n_samples": n, "privacy": privacy}
    reports = [Report(f"s{k}", row, binning, **options) for k, row in enumerate(counts)]
    assert peak_memory(lambda: robfcp.calibrate(reports, guarantee=guarantee)) < 2**26
