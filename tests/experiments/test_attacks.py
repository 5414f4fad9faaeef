"""Every attack keeps one protocol and its formula; the adaptive one finds the worst of a family."""

from dataclasses import replace

import numpy as np
import pytest
from effort import thorough
from makers import outputs

import robfcp
from robfcp import Binning, Federation, Report, RobfcpError
from robfcp.defense import Assessment
from robfcp.experiments.attacks import (
    ATTACKS,
    AdaptiveAttack,
    base,
    coordinated,
    get_attack,
    mimic,
    simple,
)
from robfcp.experiments.attacks.adaptive import AttackParameters, _AttackBuilder, parameter_families
from robfcp.experiments.attacks.base import PairAttack, SampleAttack, ScoreAttack
from robfcp.experiments.scenarios import ScenarioConfig, apply_attack, make_scenario

MALICIOUS = np.array([1, 3, 4])
BENIGN = np.setdiff1d(np.arange(9), MALICIOUS)
QUICK = set(ATTACKS) - {"adaptive", "adaptive-up"}


@pytest.fixture(scope="module")
def scenario():
    p, y = outputs(0, 1200, 4)
    config = ScenarioConfig(n_clients=9, malicious_fraction=1 / 3, beta=2.0)
    return replace(make_scenario(p, y, config, np.random.default_rng(3)), malicious=MALICIOUS)


@pytest.fixture
def scores():
    rng = np.random.default_rng(0)
    return [rng.beta(1 + k / 4, 8, 60) for k in range(9)]


@pytest.fixture
def pairs(scores):
    """Only client 2 and client 1, which is malicious, hold class 3."""
    rng = np.random.default_rng(1)
    return [
        (client_scores, rng.integers(0, 4 if k in (1, 2) else 3, 60))
        for k, client_scores in enumerate(scores)
    ]


def tables(federation):
    """(R, C, H) counts by class."""
    strata = federation.strata
    return strata.table.dense().reshape(-1, strata.n_strata, strata.n_bins)


def is_same(left, right):
    if isinstance(left, Federation):
        return np.array_equal(left.counts, right.counts) and np.array_equal(
            tables(left), tables(right)
        )
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(is_same, left, right))
    return left == right if isinstance(left, bytes) else np.array_equal(left, right)


@pytest.mark.parametrize("name", thorough(ATTACKS, *QUICK))
def test_every_attack_keeps_the_protocol(name, scenario):
    attack, federation = get_attack(name), scenario.federation
    if isinstance(attack, AdaptiveAttack):
        attack = replace(attack, trials=12, defense_rule="none")
    pairs = [
        (client_scores, y)
        for client_scores, (_, y) in zip(scenario.scores, scenario.samples, strict=True)
    ]
    data_of_stage = {"scores": scenario.scores, "samples": scenario.samples, "pairs": pairs}
    data, raw = (
        data_of_stage.get(attack.stage, federation),
        [report.to_json() for report in federation],
    )
    first_result = attack(data, MALICIOUS, 1)
    mask = np.isin(np.arange(9), MALICIOUS)
    assert is_same(first_result, attack(data, mask, np.random.default_rng(1))), (
        "seeded, takes masks"
    )
    untouched = raw if attack.stage == "reports" else data
    assert is_same(attack(data, [], 1), untouched)
    if attack.stage in data_of_stage or attack.stage == "reports":
        assert all(is_same(first_result[k], untouched[k]) for k in BENIGN)
    if attack.stage in ("scores", "pairs"):
        factor = 20 if name == "size-inflation" else 1
        forged = [
            first_result[k] if attack.stage == "pairs" else (first_result[k], np.zeros(0, int))
            for k in MALICIOUS
        ]
        assert [len(client_scores) for client_scores, _ in forged] == [
            factor * len(scenario.scores[k]) for k in MALICIOUS
        ]
        assert all(
            client_scores.min() >= 0 and client_scores.max() <= 1 for client_scores, _ in forged
        )
        assert all(np.isin(labels, range(4)).all() for _, labels in forged)
        read_samples, write_samples = (
            (base.client_pairs, base.replace_pairs)
            if attack.stage == "pairs"
            else (base.client_scores, base.replace_scores)
        )
        through_edges = attack(read_samples(federation), MALICIOUS, 2)
        on_counts = attack(federation, MALICIOUS, 2)
        assert is_same(
            on_counts, write_samples(federation, MALICIOUS, [through_edges[k] for k in MALICIOUS])
        )
    received = apply_attack(attack, scenario, np.random.default_rng(1))
    if attack.stage == "scores":  # assigned to classes by the client's label distribution
        attacked, class_sizes = attack(federation, MALICIOUS, 1), federation.strata.stratum_sizes
        assert np.array_equal(
            attacked.strata.stratum_sizes,
            attacked.sample_sizes[:, None] / class_sizes.sum(1)[:, None] * class_sizes,
        )
        max_difference = 0.06 * factor * federation.sample_sizes[:, None] if factor > 1 else 0
        assert (
            np.abs(received.strata.stratum_sizes - attacked.strata.stratum_sizes) <= max_difference
        ).all()
    if attack.stage == "samples":
        reports = [
            Report.from_scores("x", scenario.score(*xy), labels=xy[1], classes=4)
            for xy in first_result
        ]
        assert np.array_equal(tables(received), [report.strata.dense() for report in reports])
    assert np.array_equal(tables(received).sum(axis=1), received.counts)
    assert np.array_equal(received.strata.stratum_sizes.sum(axis=1), received.sample_sizes)
    for k in BENIGN:
        position = received.clients.index(federation.clients[k])
        assert np.array_equal(tables(received)[position], tables(federation)[k])


def test_samples_of_a_federation_give_its_counts_on_open_binnings_too(scenario):
    federation = scenario.federation
    assert is_same(
        base.replace_pairs(federation, np.arange(9), base.client_pairs(federation)), federation
    )
    small = Federation.from_counts(
        [[1, 2, 0, 3], [2, 0, 1, 1]], Binning.open_ended([0.0, 1.0, 2.0])
    )
    assert np.array_equal(
        base.replace_scores(small, np.arange(2), base.client_scores(small)).counts, small.counts
    )
    assert ATTACKS["coverage"](small, [0], 0).counts[0].tolist() == [6, 0, 0, 0]
    assert ATTACKS["efficiency"](small, [0], 0).counts[0].tolist() == [0, 0, 0, 6]
    with pytest.raises(RobfcpError, match="labels"):
        ATTACKS["pair-mimic"](small, [0], 2)


def test_clients_that_withheld_their_labels_still_do_after_an_attack(scenario):
    first, *other_reports = scenario.federation
    without_labels = Report(first.client, first.counts, first.binning, first.score)
    mixed = Federation.from_reports([without_labels, *other_reports])
    forged = mixed.counts.copy()
    forged[[0, 4]] = forged[[0, 4]][:, ::-1]
    attacked = base.replace_counts(mixed, forged)
    assert attacked.strata.rows.tolist() == list(range(1, 9))
    assert np.array_equal(tables(attacked).sum(axis=1), forged[1:])


def normed(weights):
    return weights / weights.sum(axis=1, keepdims=True)


Z, Z2 = np.random.default_rng(3).normal(size=60), np.random.default_rng(3).normal(size=(60, 4))
FORMULAS = {  # what each attack makes of scores, or of probabilities and labels
    ATTACKS["coverage"]: lambda s: 0 * s,
    ATTACKS["efficiency"]: lambda s: 0 * s + 1,
    ATTACKS["near-coverage"]: lambda s: 0 * s + 0.001,
    ATTACKS["gaussian"]: lambda s: np.clip(s + 0.5 * Z, 0, 1),
    ScoreAttack(simple.gaussian_relative, scale=50.0): lambda s: np.clip(
        s + 50 * s.std() * Z, 0, 1
    ),
    ATTACKS["temperature-scaling"]: lambda p, y: (normed(p**2), y),
    ATTACKS["degraded-model"]: lambda p, y: (normed(p**0.5 * np.exp(Z2)), y),
}


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(0)
    return [(rng.dirichlet(np.ones(4), 60), rng.integers(0, 4, 60)) for _ in range(4)]


def test_an_attack_is_what_its_formula_says(scores, samples):
    for attack, formula in FORMULAS.items():
        if attack.stage == "scores":
            assert np.allclose(attack(scores, [1], 3)[1], formula(scores[1])), attack
        else:
            assert all(map(np.allclose, attack(samples, [1], 3)[1], formula(*samples[1]))), attack


def test_a_data_fault_changes_samples_as_documented(samples):
    (p, y), other_probabilities = samples[1], [samples[k][0] for k in (0, 2, 3)]
    commonest = np.argsort(-np.bincount(y), kind="stable")[:2]
    easiest = np.sort(p[np.arange(60), y])[-18:]
    for seed in range(9):

        def faulty_samples(*attack, seed=seed):
            return SampleAttack(*attack)(samples, [1], seed)[1]

        assert (faulty_samples(simple.label_poisoning)[1] != y).all()
        swapped = faulty_samples(simple.label_swap)[1]
        assert set(swapped[swapped != y]) == set(commonest)
        moved = faulty_samples(simple.class_permutation)[0]
        assert is_same(np.sort(moved), np.sort(p))
        assert not np.isclose(moved, p).any()
        assert any(
            is_same(faulty_samples(simple.wrong_file)[0], candidate)
            for candidate in other_probabilities
        )
        assert len(faulty_samples(simple.wrong_file, 0.25)[1]) == 15
        kept_probabilities, labels = faulty_samples(simple.selection_bias, 0.3)
        assert is_same(np.sort(kept_probabilities[np.arange(18), labels]), easiest)
        assert not is_same(faulty_samples(simple.selection_bias, 0.3, "any")[0], kept_probabilities)
        assert len(faulty_samples(simple.selection_bias, 0.001)[1]) == 1


DISPLACE_UP, MEANS_OF_THREE = (
    ScoreAttack(coordinated.displace_benign, upwards=True),
    PairAttack(coordinated.benign_means, of=3),
)
HIDING = {  # attacks that send scores of benign clients, and the sign of the change of the quantile
    "truncation": -1,
    "mimic-low": -1,
    "mimic-low-exact": -1,
    "mimic-low-jittered": -1,
    "displace-benign": -1,
    "collusion": -1,
    "graded-truncation": -1,
    "shift-below-threshold": -1,
    "pair-mimic": -1,
    "frame-hardest": -1,
    "lower-truncation": 1,
    "mimic-high": 1,
    DISPLACE_UP: 1,
    "two-sided-trimming": 0,
    "mimic": 0,
    MEANS_OF_THREE: 0,
}


@pytest.mark.parametrize("name", HIDING, ids=str)
def test_hidden_attacks_send_benign_scores_and_move_the_quantile_as_documented(scores, pairs, name):
    attack = ATTACKS.get(name, name)
    on_pairs = attack.stage == "pairs"
    attacked = attack(pairs if on_pairs else scores, MALICIOUS, 0)
    forged = [attacked[k][0] if on_pairs else attacked[k] for k in MALICIOUS]
    all_scores = np.append(
        np.concatenate(scores), 0.0
    )  # half of the clients of benign-means send zeros
    assert np.isin(np.concatenate(forged), all_scores).all()
    pull = np.quantile(forged, 0.9) - np.quantile(np.concatenate([scores[k] for k in BENIGN]), 0.9)
    assert HIDING[name] == 0 or np.sign(pull) == HIDING[name]


def test_claimed_classes_are_those_that_the_fewest_benign_clients_hold(pairs):
    for score in (1, 0):
        forged = PairAttack(coordinated.class_capture, score == 1)(pairs, MALICIOUS)
        assert all((forged[k][0] == score).all() and (forged[k][1] == 3).all() for k in MALICIOUS)
    merged_pairs = [
        (client_scores, np.where(labels == 0, 1, labels)) for client_scores, labels in pairs
    ]
    assert (
        ATTACKS["class-capture"](merged_pairs, [1, 2])[1][1] == 2
    ).all()  # 0, 3: no benign holder
    claims = ATTACKS["class-claim"](pairs, MALICIOUS, 0)
    assert all(0.8 < (claims[k][1] == 3).mean() < 1 for k in MALICIOUS)


def test_malformed_reports_are_all_refused_and_the_round_goes_on(scenario):
    large = Federation.from_counts(
        np.tile(scenario.federation.counts, (3, 1)), scenario.federation.binning
    )
    malicious = np.arange(0, 26, 2)
    received = Federation.from_reports(ATTACKS["malformed"](large, malicious, 0))
    assert set(received.clients) == set(large.clients) - {large.clients[k] for k in malicious}
    assert len(received.rejected_reports) >= 1


def test_wrong_strengths_names_and_attackers_are_refused(scores, samples):
    for attack, arguments, message in (
        (ScoreAttack(simple.partial_manipulation, 1.5), (scores, MALICIOUS), "fraction"),
        (SampleAttack(simple.selection_bias, 1.5), (samples, [1]), "fraction"),
        (SampleAttack(simple.selection_bias, 0.5, "hard"), (samples, [1]), "kept_scores"),
        (ScoreAttack(mimic.mimic_low, "badly"), (scores, MALICIOUS), "copy"),
        (
            ScoreAttack(lambda context: context.malicious_data[0]),
            (scores, MALICIOUS),
            "arrays for . malicious clients",
        ),
        (get_attack, ("bribery",), "unknown; use one of coverage"),
        (ATTACKS["coverage"], (scores, [9]), "client numbers"),
        (ATTACKS["coverage"], (scores, np.ones(3, bool)), "mask"),
        (ATTACKS["coverage"], (scores, np.arange(9)), "benign"),
    ):
        with pytest.raises(RobfcpError, match=message):
            attack(*arguments)


@pytest.mark.parametrize(("direction", "sign"), [("down", 1), ("up", -1)])
def test_the_adaptive_attack_beats_every_family_and_benign_reports(
    scenario, monkeypatch, direction, sign
):
    benign_cumulative = np.cumsum(scenario.federation.pooled_counts(scenario.benign))

    def reached(federation):
        index = robfcp.guarantees.fcp_bin_index(federation, robfcp._validation.parse_level(0.9))
        return 1.0 if index is None else benign_cumulative[index] / benign_cumulative[-1]

    result = AdaptiveAttack("none", direction, trials=20).search(scenario.federation, MALICIOUS, 0)
    assert result.coverage == pytest.approx(reached(result.federation))
    for attack in parameter_families(direction):
        is_random = repr(attack).startswith(
            ("gauss", "disp", "mimic", "trunc", "lower-truncation", "two-sided-trimming")
        )
        bound = sign * reached(attack(scenario.federation, MALICIOUS, 7)) + (
            0.02 if is_random else 1e-12
        )
        assert sign * result.coverage <= bound, attack
    monkeypatch.setattr(
        "robfcp.experiments.attacks.adaptive.parameter_families", lambda direction: []
    )
    for federation in (scenario.federation, replace(scenario.federation, strata=None)):
        benign_result = AdaptiveAttack("none", direction, trials=0).search(federation, MALICIOUS, 0)
        result = AdaptiveAttack("none", direction, trials=60).search(federation, MALICIOUS, 0)
        assert (benign_result.family, result.family[:12]) == ("benign", "free: scores")
        assert sign * result.coverage < sign * benign_result.coverage - 0.01
        beyond_benign = AdaptiveAttack("none", direction, trials=60, beyond=True).search(
            federation, MALICIOUS, 0
        )
        assert beyond_benign.value == pytest.approx(0)  # nothing is lost beyond the benign result


def test_attack_parameters_give_reports_as_their_formula_says(scenario):
    federation, rng = scenario.federation, np.random.default_rng(0)
    builder, benign_counts = (
        _AttackBuilder(federation, MALICIOUS, rng),
        tables(federation)[BENIGN].sum(axis=0),
    )
    tilt, claim = rng.normal(size=(4, builder.n_blocks)), rng.normal(size=4)
    parameters = AttackParameters(
        tilt, claim, loyal=0.4, own_weight=0.3, tight=True, size=np.log(2)
    )
    forged = tables(builder.forge_reports(parameters))
    assert np.array_equal(
        forged[MALICIOUS[0]], tables(federation)[MALICIOUS[0]]
    )  # one of three is loyal
    scores = benign_counts * np.exp(tilt)[:, builder.block]
    for k in MALICIOUS[1:]:
        class_fractions = federation.strata.stratum_sizes[k] / federation.sample_sizes[k]
        distribution = (
            0.3 * class_fractions + 0.7 * benign_counts.sum(axis=1) / benign_counts.sum()
        ) * np.exp(claim)
        expected = (
            distribution[:, None] / distribution.sum() * scores / scores.sum(axis=1, keepdims=True)
        )
        assert forged[k].sum() == 2 * federation.sample_sizes[k]
        assert np.abs(np.cumsum(forged[k] - forged[k].sum() * expected)).max() <= 1 + 1e-6


def test_the_adaptive_attack_takes_any_defense_and_exploits_one_that_excludes_the_hardest(scenario):
    class ExcludesHardest:
        name = "excludes the hardest"

        def assess(self, federation):
            ease = federation.counts.cumsum(axis=1).sum(axis=1) / federation.sample_sizes
            return Assessment(-ease, ease > np.sort(ease)[2])

    search = {"data": scenario.federation, "malicious": MALICIOUS, "rng": 0}
    assert AdaptiveAttack(ExcludesHardest(), trials=30, beyond=True).search(**search).value < -0.01
    assert AdaptiveAttack(lambda federation: 5, trials=1).search(**search).family == "benign"
    assert AdaptiveAttack(lambda federation: None, trials=1).search(**search).coverage == 1
    with pytest.raises(RobfcpError, match="direction"):
        AdaptiveAttack(direction="sideways").search(**search)
