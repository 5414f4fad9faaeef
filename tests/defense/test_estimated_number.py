"""The number of malicious clients: exclusions and duplicates; the paper's contrast."""

import numpy as np
import pytest

import robfcp
from robfcp import Binning, Federation, RobfcpError
from robfcp.defense import RobFCP, RobFCPReleased, estimate_n_malicious
from robfcp.defense.rob_fcp import likelihood_contrasts
from robfcp.defense.rob_fcp._n_malicious_estimator import COVARIANCE_RIDGE
from robfcp.experiments.attacks import ATTACKS
from robfcp.experiments.scenarios import build_federation


def federation(n_clients=40, n=200, seed=0, spread=0.0):
    rng = np.random.default_rng([seed, n_clients, n])
    skill = 0.4 * np.exp(spread * rng.standard_normal(n_clients))
    scores = [rng.beta(a, 3, n) for a in skill]
    return build_federation(scores, Binning.default(), robfcp.LAC())


@pytest.mark.parametrize(
    ("attack", "n_malicious"),
    [(None, 0), ("coverage", 8), ("efficiency", 10), ("mimic", 6)],
)
def test_excluded_clients_and_surplus_duplicates_are_counted(attack, n_malicious):
    attacked = federation(spread=0.2)
    if attack is not None:
        attacked = ATTACKS[attack](attacked, np.arange(n_malicious), 0)
    assert estimate_n_malicious(attacked) == n_malicious
    undefended = robfcp.calibrate(attacked, defense="none")
    assert undefended.n_malicious == 0
    assert undefended.flagged_clients == ()
    expected = () if attack == "mimic" else attacked.clients[:n_malicious]
    assert robfcp.calibrate(attacked).flagged_clients == expected


def test_excluded_duplicates_are_counted_once_and_never_a_majority():
    counts = federation().counts.copy()
    counts[:9] = counts[0][::-1]
    attacked = Federation.from_counts(counts, Binning.default())
    assert set(robfcp.calibrate(attacked).flagged_clients) == set(attacked.clients[:9])
    assert estimate_n_malicious(attacked) == 9
    counts[:30] = counts[30]
    assert estimate_n_malicious(Federation.from_counts(counts, Binning.default())) == 19


@pytest.mark.parametrize("fit_variances", [True, False])
def test_prefix_sums_give_the_contrast_of_the_definition(fit_variances):
    ranked = np.random.default_rng(0).dirichlet(np.ones(7), 25)
    sizes, contrasts = likelihood_contrasts(ranked, fit_variances)
    assert sizes.tolist() == list(range(13, 25))
    for z, value in zip(sizes, contrasts, strict=True):
        mean, variance = ranked[:z].mean(axis=0), ranked[:z].var(axis=0) + COVARIANCE_RIDGE
        weights = 1 / variance if fit_variances else np.ones(7)
        squared = ((ranked - mean) ** 2 * weights).sum(axis=1)
        assert value == pytest.approx((squared[z:].mean() - squared[:z].mean()) / 2)


@pytest.mark.parametrize("defense", [RobFCP(), RobFCPReleased()])
def test_the_papers_number_counts_gross_attacks_but_is_never_zero(defense):
    benign = federation(30, 500)
    assert defense.estimate_n_malicious(benign) > 0
    attacked = ATTACKS["efficiency"](benign, np.arange(9), 0)
    estimate = defense.estimate_n_malicious(attacked)
    assert 1 <= estimate <= 14
    assert robfcp.calibrate(attacked, defense=defense).n_malicious == estimate
    with pytest.raises(RobfcpError, match="at least 3"):
        defense.estimate_n_malicious(Federation.from_counts([[1, 2], [2, 1]]))


def test_one_decoy_decides_the_papers_number_but_not_the_defaults():
    attacked = ATTACKS["decoy"](federation(40, 500), np.arange(12), 0)
    assert RobFCP().estimate_n_malicious(attacked) < 12
    assert estimate_n_malicious(attacked) == 12


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.3])
@pytest.mark.parametrize("attack", ["coverage", "efficiency", "mimic"])
def test_gross_attacks_are_counted_exactly_in_95_of_100_runs(attack, spread):
    attack_reports = ATTACKS[attack]
    hits = [
        estimate_n_malicious(attack_reports(federation(60, 300, seed, spread), np.arange(m), seed))
        == m
        for m in (6, 12, 24)
        for seed in range(15)
    ]
    assert np.mean(hits) >= 0.95 - 2 * np.sqrt(0.05 * 0.95 / len(hits))


def test_a_decoy_does_not_hide_few_malicious_clients():
    assert estimate_n_malicious(ATTACKS["decoy"](federation(60, 300), np.arange(6), 0)) == 6


@pytest.mark.slow
def test_the_gaussian_attack_is_counted_within_two_at_500_samples_and_often_at_50():
    malicious, noise = np.arange(24), ATTACKS["gaussian-relative"]
    for n, min_fraction in ((500, 0.8), (50, 0.1)):
        hits = [
            abs(estimate_n_malicious(noise(federation(60, n, seed), malicious, seed)) - 24) <= 2
            for seed in range(20)
        ]
        assert np.mean(hits) >= min_fraction
