"""How many lie: an int that explains itself; the paper's contrast as published."""

import numpy as np
import pytest

import robfcp
from robfcp import Federation, Grid, RobfcpError
from robfcp.defence import MaliciousCount, estimate_malicious
from robfcp.defence.number_of_liars import METHODS
from robfcp.defence.rob_fcp import COVARIANCES, RIDGE, contrasts, likelihood_count
from robfcp.lab.attacks import Coverage, Decoy, Efficiency, GaussianRelative, Mimic
from robfcp.lab.worlds import federation_of


def federation(n_clients=40, n=200, seed=0, spread=0.0):
    rng = np.random.default_rng([seed, n_clients, n])
    skill = 0.4 * np.exp(spread * rng.standard_normal(n_clients))
    scores = [rng.beta(a, 3, n) for a in skill]
    return federation_of(scores, Grid.default(), robfcp.LAC())


def test_the_count_is_an_int_that_says_how_it_came_about():
    attacked = Coverage()(federation(), np.arange(8), 0)
    count = estimate_malicious(attacked)
    assert count == 8
    assert isinstance(count, int)
    assert isinstance(count, MaliciousCount)
    assert count + 1 == 9
    assert count.method == "groups"
    assert count.false_alarm == 0.05
    assert count.flagged == attacked.ids[:8] == tuple(sorted(count.reasons))
    assert all("stand out" in reason for reason in count.reasons.values())
    assert count.p_values is not None
    assert count.p_values.shape == (40,)
    assert repr(count) == "MaliciousCount(8, method='groups', false_alarm=0.05)"


def test_it_can_say_nobody():
    count = estimate_malicious(federation(spread=0.2))
    assert count == 0
    assert count.flagged == ()
    assert count.reasons == {}


def test_calibrate_uses_the_estimate_and_names_the_flagged():
    attacked = Efficiency()(federation(), np.arange(10), 0)
    calibration = robfcp.calibrate(attacked)
    assert calibration.n_malicious == 10
    assert calibration.flagged == attacked.ids[:10]


def test_the_upward_method_never_counts_fewer():
    for seed in range(5):
        attacked = GaussianRelative()(federation(30, 60, seed, 0.2), np.arange(9), seed)
        low, high = (estimate_malicious(attacked, m) for m in ("groups", "groups-upward"))
        assert low <= high <= 14
        assert set(low.flagged) <= set(high.flagged)
        assert high.false_alarm == 0.2


def test_a_stricter_level_flags_no_more():
    attacked = GaussianRelative()(federation(40, 50, 3), np.arange(12), 3)
    counts = [estimate_malicious(attacked, false_alarm=level) for level in (0.2, 0.05, 0.002)]
    assert counts[0] >= counts[1] >= counts[2]


@pytest.mark.parametrize("scaled", [True, False])
def test_prefix_sums_give_the_contrast_of_the_definition(scaled):
    ranked = np.random.default_rng(0).dirichlet(np.ones(7), 25)
    sizes, found = contrasts(ranked, "diagonal" if scaled else "identity")
    assert sizes.tolist() == list(range(13, 25))
    for z, value in zip(sizes, found, strict=True):
        mean, variance = ranked[:z].mean(axis=0), ranked[:z].var(axis=0) + RIDGE
        weights = 1 / variance if scaled else np.ones(7)
        squared = ((ranked - mean) ** 2 * weights).sum(axis=1)
        assert value == pytest.approx((squared[z:].mean() - squared[:z].mean()) / 2)


@pytest.mark.parametrize("covariance", ["ridge", "pseudo-inverse"])
def test_one_decomposition_gives_the_full_contrast(covariance):
    ranked = np.random.default_rng(1).dirichlet(np.ones(6), 15)
    for z, value in zip(*contrasts(ranked, covariance), strict=True):
        centred = ranked - ranked[:z].mean(axis=0)
        matrix = centred[:z].T @ centred[:z] / z
        if covariance == "ridge":
            inverse = np.linalg.inv(matrix + RIDGE * np.eye(6))
        else:
            inverse = np.linalg.pinv(matrix, hermitian=True, rtol=1e-12)
        squared = np.einsum("kb,bc,kc->k", centred, inverse, centred)
        expected = (squared[z:].mean() - squared[:z].mean()) / 2
        assert value == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_papers_method_finds_gross_attackers_but_never_says_nobody(covariance):
    honest = federation(30, 500)
    assert likelihood_count(honest, covariance)[0] > 0
    attacked = Efficiency()(honest, np.arange(9), 0)
    count = estimate_malicious(attacked, "likelihood", covariance=covariance, iterations=3)
    assert 1 <= count <= 14
    assert set(attacked.ids[:1]) <= set(count.flagged) or covariance == "ridge"
    assert count.false_alarm is None
    assert count.p_values is None


def test_one_decoy_decides_the_papers_answer_but_not_ours():
    attacked = Decoy()(federation(40, 500), np.arange(12), 0)
    assert estimate_malicious(attacked, "likelihood", covariance="identity") < 12
    assert estimate_malicious(attacked) == 12


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"method": "votes"}, "method"),
        ({"method": "likelihood", "false_alarm": 0.1}, "false_alarm"),
        ({"method": "likelihood", "covariance": "full"}, "covariance"),
        ({"false_alarm": 2.0}, "false_alarm"),
    ],
)
def test_wrong_requests_are_refused(arguments, word):
    with pytest.raises(RobfcpError, match=word):
        estimate_malicious(federation(10), **arguments)


def test_the_contrast_needs_three_clients():
    with pytest.raises(RobfcpError, match="at least 3"):
        likelihood_count(Federation.from_counts([[1, 2], [2, 1]]))
    assert METHODS[0] == "groups"


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.3])
@pytest.mark.parametrize("attack", [Coverage(), Efficiency(), Mimic(), Decoy()])
def test_gross_attacks_are_counted_exactly_in_95_of_100_runs(attack, spread):
    hits = [
        estimate_malicious(attack(federation(60, 300, seed, spread), np.arange(m), seed)) == m
        for m in (6, 12, 24)
        for seed in range(15)
    ]
    assert np.mean(hits) >= 0.95 - 2 * np.sqrt(0.05 * 0.95 / len(hits))


@pytest.mark.slow
def test_the_gaussian_attack_is_counted_at_500_samples_and_often_at_50():
    for n, least in ((500, 0.8), (50, 0.1)):
        hits = [
            estimate_malicious(GaussianRelative()(federation(60, n, seed), np.arange(24), seed))
            == 24
            for seed in range(20)
        ]
        assert np.mean(hits) >= least
