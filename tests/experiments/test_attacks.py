"""Every attack keeps one protocol and its own promise; the searching one finds what there is."""

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
    simple,
)
from robfcp.experiments.attacks.adaptive import AttackParameters, _AttackBuilder, parameter_families
from robfcp.experiments.attacks.base import PairAttack, SampleAttack, ScoreAttack
from robfcp.experiments.scenarios import ScenarioConfig, apply_attack, make_scenario

BAD = np.array([1, 3, 4])
HONEST = np.setdiff1d(np.arange(9), BAD)
QUICK = set(ATTACKS) - {"adaptive", "adaptive-up"}


@pytest.fixture(scope="module")
def world():
    p, y = outputs(0, 1200, 4)
    setting = ScenarioConfig(n_clients=9, share=1 / 3, beta=2.0)
    return replace(make_scenario(p, y, setting, np.random.default_rng(3)), malicious=BAD)


@pytest.fixture
def scores():
    rng = np.random.default_rng(0)
    return [rng.beta(1 + k / 4, 8, 60) for k in range(9)]


@pytest.fixture
def pairs(scores):
    """Client 2 alone and client 1, a liar, hold class 3."""
    rng = np.random.default_rng(1)
    return [(part, rng.integers(0, 4 if k in (1, 2) else 3, 60)) for k, part in enumerate(scores)]


def tables(federation):
    """(R, C, H) counts by class."""
    strata = federation.strata
    return strata.table.dense().reshape(-1, strata.n_strata, strata.n_bins)


def same(left, right):
    if isinstance(left, Federation):
        return np.array_equal(left.counts, right.counts) and np.array_equal(
            tables(left), tables(right)
        )
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right if isinstance(left, bytes) else np.array_equal(left, right)


@pytest.mark.parametrize("name", thorough(ATTACKS, *QUICK))
def test_every_attack_keeps_the_protocol(name, world):
    attack, federation = get_attack(name), world.federation
    if isinstance(attack, AdaptiveAttack):
        attack = replace(attack, trials=12, defense_rule="none")
    pairs = [(part, y) for part, (_, y) in zip(world.scores, world.samples, strict=True)]
    kinds = {"scores": world.scores, "samples": world.samples, "pairs": pairs}
    data, raw = kinds.get(attack.stage, federation), [report.to_json() for report in federation]
    once = attack(data, BAD, 1)
    mask = np.isin(np.arange(9), BAD)
    assert same(once, attack(data, mask, np.random.default_rng(1))), "seeded, takes masks"
    untouched = raw if attack.stage == "reports" else data
    assert same(attack(data, [], 1), untouched)
    if attack.stage in kinds or attack.stage == "reports":
        assert all(same(once[k], untouched[k]) for k in HONEST)
    if attack.stage in ("scores", "pairs"):
        factor = 20 if name == "size-inflation" else 1
        forged = [once[k] if attack.stage == "pairs" else (once[k], np.zeros(0, int)) for k in BAD]
        assert [len(part) for part, _ in forged] == [factor * len(world.scores[k]) for k in BAD]
        assert all(part.min() >= 0 and part.max() <= 1 for part, _ in forged)
        assert all(np.isin(labels, range(4)).all() for _, labels in forged)
        parts, back = (
            (base.client_pairs, base.replace_pairs)
            if attack.stage == "pairs"
            else (base.client_scores, base.replace_scores)
        )
        through_edges = attack(parts(federation), BAD, 2)
        on_counts = attack(federation, BAD, 2)
        assert same(on_counts, back(federation, BAD, [through_edges[k] for k in BAD]))
    seen = apply_attack(attack, world, np.random.default_rng(1))
    if attack.stage == "scores":  # go to classes in the client's own mix
        sent, own = attack(federation, BAD, 1), federation.strata.stratum_sizes
        assert np.array_equal(
            sent.strata.stratum_sizes, sent.sample_sizes[:, None] / own.sum(1)[:, None] * own
        )
        drawn = 0.06 * factor * federation.sample_sizes[:, None] if factor > 1 else 0
        assert (np.abs(seen.strata.stratum_sizes - sent.strata.stratum_sizes) <= drawn).all()
    if attack.stage == "samples":
        made = [Report.from_scores("x", world.score(*xy), labels=xy[1], classes=4) for xy in once]
        assert np.array_equal(tables(seen), [report.strata.dense() for report in made])
    assert np.array_equal(tables(seen).sum(axis=1), seen.counts)
    assert np.array_equal(seen.strata.stratum_sizes.sum(axis=1), seen.sample_sizes)
    for k in HONEST:
        place = seen.clients.index(federation.clients[k])
        assert np.array_equal(tables(seen)[place], tables(federation)[k])


def test_samples_of_a_federation_sketch_back_to_it_on_open_grids_too(world):
    federation = world.federation
    assert same(
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


def test_clients_that_withheld_their_labels_still_do_after_an_attack(world):
    first, *others = world.federation
    plain = Report(first.client, first.counts, first.grid, first.score)
    mixed = Federation.from_reports([plain, *others])
    forged = mixed.counts.copy()
    forged[[0, 4]] = forged[[0, 4]][:, ::-1]
    attacked = base.replace_counts(mixed, forged)
    assert attacked.strata.rows.tolist() == list(range(1, 9))
    assert np.array_equal(tables(attacked).sum(axis=1), forged[1:])


def normed(weights):
    return weights / weights.sum(axis=1, keepdims=True)


Z, Z2 = np.random.default_rng(3).normal(size=60), np.random.default_rng(3).normal(size=(60, 4))
FORMULAS = {  # what each lie by itself makes of scores, or of probabilities and labels
    ATTACKS["coverage"]: lambda s: 0 * s,
    ATTACKS["efficiency"]: lambda s: 0 * s + 1,
    ATTACKS["near-coverage"]: lambda s: 0 * s + 0.001,
    ATTACKS["gaussian"]: lambda s: np.clip(s + 0.5 * Z, 0, 1),
    ScoreAttack(simple.gaussian_relative, scale=50.0): lambda s: np.clip(
        s + 50 * s.std() * Z, 0, 1
    ),
    ATTACKS["temperature"]: lambda p, y: (normed(p**2), y),
    ATTACKS["old-model"]: lambda p, y: (normed(p**0.5 * np.exp(Z2)), y),
}


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(0)
    return [(rng.dirichlet(np.ones(4), 60), rng.integers(0, 4, 60)) for _ in range(4)]


def test_a_lie_is_what_its_formula_says(scores, samples):
    for attack, formula in FORMULAS.items():
        if attack.stage == "scores":
            assert np.allclose(attack(scores, [1], 3)[1], formula(scores[1])), attack
        else:
            assert all(map(np.allclose, attack(samples, [1], 3)[1], formula(*samples[1]))), attack


def test_a_mistake_does_what_it_says_to_samples(samples):
    (p, y), others = samples[1], [samples[k][0] for k in (0, 2, 3)]
    commonest = np.argsort(-np.bincount(y), kind="stable")[:2]
    easiest = np.sort(p[np.arange(60), y])[-18:]
    for seed in range(9):

        def sent(*attack, seed=seed):
            return SampleAttack(*attack)(samples, [1], seed)[1]

        assert (sent(simple.label_poisoning)[1] != y).all()
        swapped = sent(simple.label_swap)[1]
        assert set(swapped[swapped != y]) == set(commonest)
        moved = sent(simple.class_permutation)[0]
        assert same(np.sort(moved), np.sort(p))
        assert not np.isclose(moved, p).any()
        assert any(same(sent(simple.wrong_file)[0], one) for one in others)
        assert len(sent(simple.wrong_file, 0.25)[1]) == 15
        kept, labels = sent(simple.selection_bias, 0.3)
        assert same(np.sort(kept[np.arange(18), labels]), easiest)
        assert not same(sent(simple.selection_bias, 0.3, "any")[0], kept)
        assert len(sent(simple.selection_bias, 0.001)[1]) == 1


UP, HUB = (
    ScoreAttack(coordinated.displace_benign, upwards=True),
    PairAttack(coordinated.benign_means, of=3),
)
HIDING = {  # attacks that send scores which honest clients hold, and which way they pull
    "truncation": -1, "mimic-low": -1, "mimic-low-exact": -1, "mimic-low-jittered": -1,
    "displacement": -1, "clones": -1, "stairs": -1, "push": -1, "pair-mimic": -1, "ghost": -1,
    "lift": 1, "mimic-high": 1, UP: 1, "squeeze": 0, "mimic": 0, HUB: 0,
}  # fmt: skip


@pytest.mark.parametrize("name", HIDING, ids=str)
def test_hidden_lies_are_made_of_honest_scores_and_pull_where_they_say(scores, pairs, name):
    attack = ATTACKS.get(name, name)
    on_pairs = attack.stage == "pairs"
    sent = attack(pairs if on_pairs else scores, BAD, 0)
    forged = [sent[k][0] if on_pairs else sent[k] for k in BAD]
    held = np.append(np.concatenate(scores), 0.0)  # half of a hub's friends send zeros
    assert np.isin(np.concatenate(forged), held).all()
    pull = np.quantile(forged, 0.9) - np.quantile(np.concatenate([scores[k] for k in HONEST]), 0.9)
    assert HIDING[name] == 0 or np.sign(pull) == HIDING[name]


def test_claims_of_a_class_are_of_the_one_the_fewest_honest_clients_hold(pairs):
    for score in (1, 0):
        forged = PairAttack(coordinated.class_capture, score == 1)(pairs, BAD)
        assert all((forged[k][0] == score).all() and (forged[k][1] == 3).all() for k in BAD)
    held = [(part, np.where(labels == 0, 1, labels)) for part, labels in pairs]
    assert (ATTACKS["class-capture"](held, [1, 2])[1][1] == 2).all()  # 0, 3: no honest holder
    claims = ATTACKS["class-claim"](pairs, BAD, 0)
    assert all(0.8 < (claims[k][1] == 3).mean() < 1 for k in BAD)


def test_malformed_reports_are_all_refused_and_the_round_goes_on(world):
    many = Federation.from_counts(
        np.tile(world.federation.counts, (3, 1)), world.federation.binning
    )
    bad = np.arange(0, 26, 2)
    received = Federation.from_reports(ATTACKS["malformed"](many, bad, 0))
    assert set(received.clients) == set(many.clients) - {many.clients[k] for k in bad}
    assert len(received.rejected_reports) >= 1


def test_wrong_strengths_names_and_attackers_are_refused(scores, samples):
    for rule, wrong, word in (
        (ScoreAttack(simple.partial_manipulation, 1.5), (scores, BAD), "share"),
        (SampleAttack(simple.selection_bias, 1.5), (samples, [1]), "share"),
        (SampleAttack(simple.selection_bias, 0.5, "hard"), (samples, [1]), "which"),
        (ScoreAttack(coordinated.mimic_low, "badly"), (scores, BAD), "copy"),
        (
            ScoreAttack(lambda scene: scene.malicious_data[0]),
            (scores, BAD),
            "arrays for . lying sites",
        ),
        (get_attack, ("bribery",), "unknown; use one of coverage"),
        (ATTACKS["coverage"], (scores, [9]), "client numbers"),
        (ATTACKS["coverage"], (scores, np.ones(3, bool)), "mask"),
        (ATTACKS["coverage"], (scores, np.arange(9)), "honest"),
    ):
        with pytest.raises(RobfcpError, match=word):
            rule(*wrong)


@pytest.mark.parametrize(("direction", "sign"), [("down", 1), ("up", -1)])
def test_the_adaptive_attacker_beats_every_family_and_freely_honesty(
    world, monkeypatch, direction, sign
):
    pool = np.cumsum(world.federation.pooled_counts(world.benign))

    def reached(federation):
        index = robfcp.guarantees.fcp_bin_index(federation, robfcp._validation.parse_level(0.9))
        return 1.0 if index is None else pool[index] / pool[-1]

    found = AdaptiveAttack("none", direction, trials=20).search(world.federation, BAD, 0)
    assert found.coverage == pytest.approx(reached(found.federation))
    for attack in parameter_families(direction):
        drawn = repr(attack).startswith(("gauss", "disp", "mimic", "trunc", "lift", "squeeze"))
        least = sign * reached(attack(world.federation, BAD, 7)) + (0.02 if drawn else 1e-12)
        assert sign * found.coverage <= least, attack
    monkeypatch.setattr(
        "robfcp.experiments.attacks.adaptive.parameter_families", lambda direction: []
    )
    for federation in (world.federation, replace(world.federation, strata=None)):
        honest = AdaptiveAttack("none", direction, trials=0).search(federation, BAD, 0)
        found = AdaptiveAttack("none", direction, trials=60).search(federation, BAD, 0)
        assert (honest.family, found.family[:12]) == ("honest", "free: scores")
        assert sign * found.coverage < sign * honest.coverage - 0.01
        again = AdaptiveAttack("none", direction, trials=60, beyond=True).search(federation, BAD, 0)
        assert again.value == pytest.approx(0)  # nothing can be lost beyond itself


def test_a_shape_is_sent_as_its_formula_says(world):
    federation, rng = world.federation, np.random.default_rng(0)
    builder, honest = _AttackBuilder(federation, BAD, rng), tables(federation)[HONEST].sum(axis=0)
    tilt, claim = rng.normal(size=(4, builder.n_blocks)), rng.normal(size=4)
    shape = AttackParameters(tilt, claim, loyal=0.4, own_weight=0.3, tight=True, size=np.log(2))
    sent = tables(builder.forge_reports(shape))
    assert np.array_equal(sent[BAD[0]], tables(federation)[BAD[0]])  # one of three is loyal
    scores = honest * np.exp(tilt)[:, builder.block]
    for k in BAD[1:]:
        own = federation.strata.stratum_sizes[k] / federation.sample_sizes[k]
        mix = (0.3 * own + 0.7 * honest.sum(axis=1) / honest.sum()) * np.exp(claim)
        law = mix[:, None] / mix.sum() * scores / scores.sum(axis=1, keepdims=True)
        assert sent[k].sum() == 2 * federation.sample_sizes[k]
        assert np.abs(np.cumsum(sent[k] - sent[k].sum() * law)).max() <= 1 + 1e-6


def test_the_adaptive_attacker_takes_any_rule_and_exploits_one_that_excludes_the_hardest(world):
    class ExcludesHardest:
        name = "excludes the hardest"

        def assess(self, federation):
            ease = federation.counts.cumsum(axis=1).sum(axis=1) / federation.sample_sizes
            return Assessment(-ease, ease > np.sort(ease)[2])

    search = {"data": world.federation, "malicious": BAD, "rng": 0}
    assert AdaptiveAttack(ExcludesHardest(), trials=30, beyond=True).search(**search).value < -0.01
    assert AdaptiveAttack(lambda federation: 5, trials=1).search(**search).family == "honest"
    assert AdaptiveAttack(lambda federation: None, trials=1).search(**search).coverage == 1
    with pytest.raises(RobfcpError, match="direction"):
        AdaptiveAttack(direction="sideways").search(**search)
