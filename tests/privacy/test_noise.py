"""The laws of privacy noise: closed forms, exact tails of sums, bounds for parts of a sum."""

import numpy as np
import pytest
from effort import cases
from makers import peak
from scipy.stats import dlaplace

import robfcp
from robfcp import Binning, Privacy, Report
from robfcp.privacy import _noise as noise_module
from robfcp.privacy._noise import Noise, noise_bound

LAWS = [Noise("laplace", scale) for scale in (0.3, 2.0, 20.0)]
LAWS += [Noise("gaussian", scale) for scale in (0.4, 1.0, 6.4)]


def convolved(*terms):
    """Probabilities of the sum of so many draws of each law, by convolution."""
    total = np.ones(1)
    for noise, number in terms:
        for _ in range(number):
            total = np.convolve(total, noise.mass(int(45 * noise.scale) + 20))
    return total


@pytest.mark.parametrize("noise", LAWS, ids=str)
def test_masses_add_up_and_have_the_stated_variance(noise):
    mass, x = noise.mass(3000), np.arange(-3000, 3001)
    assert mass.sum() == pytest.approx(1, abs=1e-12)
    assert mass @ x**2 == pytest.approx(noise.variance, rel=1e-9)
    angles = np.linspace(0, np.pi, 7)
    expected = np.cos(np.outer(angles, x)) @ mass
    np.testing.assert_allclose(noise.characteristic(angles), expected, atol=1e-12)
    if noise.mechanism == "laplace":
        np.testing.assert_allclose(mass, dlaplace(1 / noise.scale).pmf(x), rtol=1e-12, atol=1e-300)


SUMS = [((noise, number),) for noise in LAWS for number in (1, 2, 5, cases(12))]


@pytest.mark.effort
@pytest.mark.parametrize("terms", [*SUMS, ((LAWS[1], 4), (LAWS[5], 3))], ids=str)
def test_a_bound_is_the_least_one_that_keeps_its_chance(terms):
    mass = convolved(*terms)
    middle = len(mass) // 2
    for chance in (0.2, 0.002, 1e-6):
        bound = noise_bound((*terms, (LAWS[0], 0)), chance)
        assert mass[middle + bound + 1 :].sum() <= chance
        assert bound == 0 or mass[middle + bound :].sum() > chance - 1e-12


@pytest.mark.parametrize(
    "terms",
    [
        ((Noise("laplace", 2000.0), 2),),
        ((Noise("gaussian", 500.0), 100),),
        ((Noise("laplace", 500.0), 7), (Noise("gaussian", 300.0), 50)),
    ],
)
def test_wide_noise_has_a_bound_that_is_safe_and_not_far(terms, monkeypatch):
    for chance in (0.05, 1e-3, 1e-10):
        exact = noise_bound.__wrapped__(terms, chance)
        with monkeypatch.context() as patched:
            patched.setattr(noise_module, "_MAX_EXACT_VALUES", 0)
            bound = noise_bound.__wrapped__(terms, chance)
        assert exact < bound < 2 * exact
        assert chance > 1e-3 or bound < 1.5 * exact


@pytest.mark.parametrize("n", [500, 10**9])
@pytest.mark.parametrize("promise", [None, robfcp.PACGuarantee(liars=1)])
def test_reports_that_claim_endless_noise_cost_little(n, promise):
    privacy, grid, rng = Privacy(2e-5), Binning.uniform(100), np.random.default_rng(0)
    counts = np.rint(rng.laplace(0, privacy.scale, (6, 100))).astype(int)
    counts[:, 50] += n
    told = {"n_samples": n, "privacy": privacy}
    sent = [Report(f"s{k}", row, grid, **told) for k, row in enumerate(counts)]
    assert peak(lambda: robfcp.calibrate(sent, guarantee=promise)) < 2**26
