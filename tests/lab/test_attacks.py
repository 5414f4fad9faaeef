"""Every attack keeps its promise, is seeded, and leaves honest clients alone."""

from dataclasses import replace

import numpy as np
import pytest
from effort import thorough

import robfcp
from robfcp import Federation, Grid, RobfcpError
from robfcp.defence import NoDefence
from robfcp.lab.attacks import ATTACKS, Adaptive, named_attack
from robfcp.lab.attacks.adaptive import families
from robfcp.lab.attacks.base import pairs_of, scores_of, with_pairs, with_scores
from robfcp.lab.attacks.coordinated import (
    ClassCapture,
    Clones,
    Decoy,
    Displacement,
    Malformed,
    Mimic,
    MimicHigh,
    MimicLow,
    PairMimic,
)
from robfcp.lab.attacks.simple import (
    Coverage,
    Efficiency,
    Gaussian,
    GaussianRelative,
    LabelPoisoning,
    Lift,
    NearCoverage,
    OldModel,
    OtherClassOrder,
    Partial,
    SizeInflation,
    StaleFile,
    Subset,
    SwappedLabels,
    Temperature,
    Truncation,
)
from robfcp.lab.worlds import federation_of

BAD = np.array([1, 3, 4])
SCORE_ATTACKS = {name: attack for name, attack in ATTACKS.items() if attack.on == "scores"}
PAIR_ATTACKS = {name: attack for name, attack in ATTACKS.items() if attack.on == "pairs"}


@pytest.fixture
def scores():
    rng = np.random.default_rng(0)
    return [rng.beta(1 + k / 4, 8, 60 + 5 * k) for k in range(9)]


@pytest.fixture
def labels(scores):
    """Client 2 alone and client 1, a liar, hold class 3."""
    rng = np.random.default_rng(1)
    return [rng.integers(0, 4 if k in (1, 2) else 3, len(part)) for k, part in enumerate(scores)]


@pytest.fixture
def pairs(scores, labels):
    return list(zip(scores, labels, strict=True))


@pytest.fixture
def federation(scores, labels):
    return federation_of(scores, Grid.default(), robfcp.LAC(), labels=labels, n_classes=4)


def same(left, right):
    if isinstance(left, Federation):
        by_class = left.strata.table.dense(), right.strata.table.dense()
        return np.array_equal(left.counts, right.counts) and np.array_equal(*by_class)
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right if isinstance(left, bytes) else np.array_equal(left, right)


def data_for(attack, pairs, federation):
    rng = np.random.default_rng(5)
    samples = [(rng.dirichlet(np.ones(4), 30), rng.integers(0, 4, 30)) for _ in range(9)]
    kinds = {
        "scores": [scores for scores, _ in pairs],
        "samples": samples,
        "pairs": pairs,
        "counts": federation,
        "reports": federation,
    }
    return kinds[attack.on]


@pytest.mark.parametrize("name", thorough(ATTACKS, *(set(ATTACKS) - {"adaptive-up"})))
def test_every_attack_is_seeded_takes_masks_and_leaves_honest_clients_alone(
    name, pairs, federation
):
    attack = named_attack(name)
    if isinstance(attack, Adaptive):
        attack = replace(attack, trials=2, against="none")
    data = data_for(attack, pairs, federation)
    mask = np.isin(np.arange(9), BAD)
    once = attack(data, BAD, 1)
    assert same(once, attack(data, mask, np.random.default_rng(1)))
    honest = list(federation) if attack.on == "reports" else data
    for k in np.flatnonzero(~mask):
        if isinstance(once, Federation):
            assert np.array_equal(once.counts[k], federation.counts[k])
            row = once.strata.table.row(k)
            assert np.array_equal(row, federation.strata.table.row(k))
        elif attack.on == "reports":
            assert robfcp.Report.from_json(once[k]) == honest[k]
        else:
            assert same(once[k], honest[k])
    assert same(
        attack(data, [], 1), [r.to_json() for r in honest] if attack.on == "reports" else data
    )


@pytest.mark.parametrize("name", SCORE_ATTACKS)
def test_score_attacks_stay_in_range_keep_sizes_and_work_on_counts_too(name, scores, federation):
    attack = SCORE_ATTACKS[name]
    forged = attack(scores, BAD, 2)
    factor = attack.factor if isinstance(attack, SizeInflation) else 1
    for k in BAD:
        assert len(forged[k]) == factor * len(scores[k])
        assert forged[k].min() >= 0
        assert forged[k].max() <= 1
    attacked = attack(federation, BAD, 2)
    assert np.array_equal(attacked.sizes, attacked.counts.sum(axis=1))
    through_edges = attack(scores_of(federation), BAD, 2)
    expected = with_scores(federation, BAD, [through_edges[k] for k in BAD])
    assert np.array_equal(attacked.counts, expected.counts)


def test_scores_of_a_federation_sketch_back_to_it_on_open_grids_too(federation):
    again = with_scores(federation, np.arange(9), scores_of(federation))
    assert np.array_equal(again.counts, federation.counts)
    grid = Grid.open_ended([0.0, 1.0, 2.0])
    small = Federation.from_counts([[1, 2, 0, 3], [2, 0, 1, 1]], grid)
    assert np.array_equal(with_scores(small, np.arange(2), scores_of(small)).counts, small.counts)
    assert Coverage()(small, [0], 0).counts[0].tolist() == [6, 0, 0, 0]
    assert Efficiency()(small, [0], 0).counts[0].tolist() == [0, 0, 0, 6]


@pytest.mark.parametrize("name", PAIR_ATTACKS)
def test_pair_attacks_stay_in_range_keep_sizes_and_work_on_counts_too(name, pairs, federation):
    attack = PAIR_ATTACKS[name]
    forged = attack(pairs, BAD, 2)
    for k in BAD:
        assert [len(part) for part in forged[k]] == [len(part) for part in pairs[k]]
        assert forged[k][0].min() >= 0
        assert forged[k][0].max() <= 1
        assert np.isin(forged[k][1], range(4)).all()
    attacked = attack(federation, BAD, 2)
    through_edges = attack(pairs_of(federation), BAD, 2)
    assert same(attacked, with_pairs(federation, BAD, [through_edges[k] for k in BAD]))
    bare = Federation.from_counts(federation.counts, federation.grid)
    with pytest.raises(RobfcpError, match="labels"):
        attack(bare, BAD, 2)


def test_pairs_of_a_federation_sketch_back_to_it(federation):
    assert same(with_pairs(federation, np.arange(9), pairs_of(federation)), federation)


def test_class_capture_puts_everything_into_the_class_the_fewest_honest_clients_hold(pairs):
    for scores, score in (("top", 1), ("bottom", 0)):
        forged = ClassCapture(scores=scores)(pairs, BAD)
        for k in BAD:  # class 3 is held by client 2 alone
            assert (forged[k][0] == score).all()
            assert (forged[k][1] == 3).all()
    assert (ClassCapture(1)(pairs, BAD)[3][1] == 1).all()
    held = [(part, np.where(labels == 0, 1, labels)) for part, labels in pairs]
    assert (ClassCapture()(held, [2])[2][1] == 3).all()
    assert (ClassCapture()(held, [1, 2])[1][1] == 2).all()  # 0 and 3 have no honest holder
    with pytest.raises(RobfcpError, match="scores"):
        ClassCapture(scores="middle")


def test_pair_mimic_draws_pairs_of_the_easiest_honest_client(pairs):
    easiest = min(
        (k for k in range(9) if k not in BAD),
        key=lambda k: np.quantile(pairs[k][0], 0.9, method="inverted_cdf"),
    )
    source = set(zip(*map(np.ndarray.tolist, pairs[easiest]), strict=True))
    forged = PairMimic()(pairs, BAD, 3)
    for k in BAD:
        assert set(zip(*map(np.ndarray.tolist, forged[k]), strict=True)) <= source
    assert not same(forged[1], forged[3])


def test_coverage_and_efficiency_send_only_the_ends_of_the_range(scores, federation):
    assert not np.concatenate([Coverage()(scores, BAD)[k] for k in BAD]).any()
    assert (np.concatenate([Efficiency()(scores, BAD)[k] for k in BAD]) == 1).all()
    assert np.array_equal(Coverage()(federation, BAD).counts[BAD, 0], federation.sizes[BAD])
    assert np.array_equal(Efficiency()(federation, BAD).counts[BAD, -1], federation.sizes[BAD])


def test_gaussian_adds_the_papers_noise_and_the_relative_one_that_of_the_scores(scores):
    wide = [np.full(4, 0.5), np.linspace(0.2, 0.8, 50_000)]
    change = GaussianRelative()(wide, [1], 3)[1] - wide[1]
    assert change.std() == pytest.approx(0.5 * wide[1].std(), rel=0.02)
    noise = np.random.default_rng(3).normal(0, 0.5, 50_000)
    assert np.array_equal(Gaussian()(wide, [1], 3)[1], np.clip(wide[1] + noise, 0, 1))
    for rule in (Gaussian(50.0), GaussianRelative(50.0)):
        assert rule(scores, BAD, 3)[1].max() == 1


def test_near_coverage_stays_a_step_above_the_minimum(scores):
    assert (np.concatenate([NearCoverage()(scores, BAD)[k] for k in BAD]) == 0.001).all()


def test_truncation_and_lift_move_only_the_mass_beyond_the_honest_quantile(scores):
    pool = np.concatenate([part for k, part in enumerate(scores) if k not in BAD])
    low, high = (np.quantile(pool, q, method="inverted_cdf") for q in (0.25, 0.75))
    cut, lifted = Truncation()(scores, BAD, 4), Lift()(scores, BAD, 4)
    for k in BAD:
        kept = scores[k] <= high
        assert np.array_equal(cut[k][kept], scores[k][kept])
        assert np.isin(cut[k], scores[k][kept]).all()
        assert np.array_equal(lifted[k][scores[k] > low], scores[k][scores[k] > low])
        assert lifted[k].min() > low
    assert (Truncation(0.01)([np.array([0.5, 0.6]), np.array([0.1, 0.2])], [0], 0)[0] == 0.1).all()


def test_mimics_copy_the_client_they_name(scores):
    equal = [part[:60] for part in scores]
    honest = [k for k in range(9) if k not in BAD]
    order = sorted(honest, key=lambda k: np.quantile(equal[k], 0.9, method="inverted_cdf"))
    assert np.array_equal(MimicLow("exact")(equal, BAD, 0)[1], np.sort(equal[order[0]]))
    assert np.array_equal(MimicHigh("exact")(equal, BAD, 0)[1], np.sort(equal[order[-1]]))
    assert np.isin(MimicLow("resampled")(equal, BAD, 0)[1], equal[order[0]]).all()
    jittered = MimicLow("jittered")(equal, BAD, 0)[1]
    assert 1 <= (jittered != np.sort(equal[order[0]])).sum() <= 6
    copies = Mimic()(equal, BAD, 0)
    assert any(np.array_equal(copies[1], np.sort(equal[k])) for k in honest)
    assert np.array_equal(copies[1], copies[3])
    lowest_half = np.concatenate([equal[k] for k in order[:3]])
    assert np.isin(Displacement()(equal, BAD, 0)[3], lowest_half).all()
    clones = Clones()(equal, BAD, 0)
    assert np.array_equal(clones[1], clones[4])
    with pytest.raises(RobfcpError, match="copy"):
        MimicLow("badly")(equal, BAD, 0)


def test_decoy_size_inflation_and_partial_wrap_another_attack(scores):
    decoy = Decoy()(scores, BAD, 0)
    assert (decoy[1] == 1).all()
    assert not decoy[3].any()
    inflated = SizeInflation(5, Efficiency())(scores, BAD, 0)[3]
    assert len(inflated) == 5 * len(scores[3])
    assert (inflated == 1).all()
    part = Partial(0.3)(scores, BAD, 0)[3]
    assert (part == 0).sum() == round(0.3 * len(scores[3]))
    with pytest.raises(RobfcpError, match="share"):
        Partial(1.5)
    with pytest.raises(RobfcpError, match="factor"):
        SizeInflation(0)


def test_label_poisoning_changes_every_label_asked_for_evenly():
    p = np.full((30_000, 4), 0.25)
    labels = np.random.default_rng(0).integers(0, 4, 30_000)
    ((_, poisoned), _) = LabelPoisoning()([(p, labels), (p[:5], labels[:5])], [0], 1)
    shift = (poisoned - labels) % 4
    assert np.allclose(
        np.bincount(shift, minlength=4) / 30_000, [0, 1 / 3, 1 / 3, 1 / 3], atol=0.02
    )
    ((_, half), _) = LabelPoisoning(0.5)([(p, labels), (p[:5], labels[:5])], [0], 1)
    assert (half != labels).mean() == pytest.approx(0.5, abs=0.02)


@pytest.fixture
def samples():
    rng = np.random.default_rng(0)
    return [(rng.dirichlet(np.ones(5), 200), rng.integers(0, 5, 200)) for _ in range(4)]


def test_swapped_labels_exchange_two_classes_and_no_other(samples):
    p, y = samples[1]
    swapped = SwappedLabels((0, 3))(samples, [1])[1]
    assert swapped[0] is p
    assert np.array_equal(swapped[1], np.select([y == 0, y == 3], [3, 0], y))
    first, second = np.argsort(-np.bincount(y), kind="stable")[:2]
    moved = SwappedLabels()(samples, [1])[1][1]
    assert np.array_equal(moved == first, y == second)
    assert np.array_equal(moved == second, y == first)
    only = [(p, np.full(200, 2)), samples[0]]
    assert (SwappedLabels()(only, [0])[0][1] != 2).all()


def test_an_old_model_is_worse_and_keeps_the_labels(samples):
    certain = [(np.full((4000, 5), 0.025) + 0.875 * np.eye(5)[np.arange(4000) % 5],
                np.arange(4000) % 5), samples[0]]  # fmt: skip
    p, y = OldModel()(certain, [0], 1)[0]
    assert np.array_equal(y, certain[0][1])
    assert np.allclose(p.sum(axis=1), 1)
    assert 0.4 < (p.argmax(axis=1) == y).mean() < 0.95
    same = OldModel(keep=1.0, noise=0.0)(samples, [0])[0][0]
    assert np.allclose(same, samples[0][0])


def test_another_class_order_leaves_no_column_in_its_place(samples):
    p = np.tile(np.arange(1, 6) / 15, (3, 1))
    for seed in range(20):
        moved = OtherClassOrder()([(p, np.zeros(3, int)), samples[0]], [0], seed)[0][0]
        assert np.allclose(np.sort(moved, axis=1), p)
        assert not np.isclose(moved, p).any()


def test_temperature_raises_probabilities_to_its_inverse(samples):
    p = samples[2][0]
    for t in (0.5, 2.0):
        expected = p ** (1 / t) / (p ** (1 / t)).sum(axis=1, keepdims=True)
        assert np.allclose(Temperature(t)(samples, [2])[2][0], expected)
    with pytest.raises(RobfcpError, match="temperature"):
        Temperature(0.0)


def test_a_stale_file_is_an_honest_clients_whole_or_in_part(samples):
    sent = StaleFile()(samples, [0, 1], 4)
    for k in (0, 1):
        assert any(np.array_equal(sent[k][0], samples[j][0]) for j in (2, 3))
    part = StaleFile(0.25)(samples, [0], 4)[0]
    assert len(part[1]) == 50
    assert any(np.isin(part[0], samples[j][0]).all() for j in (1, 2, 3))


def test_a_subset_keeps_the_easy_samples_or_any(samples):
    p, y = samples[0]
    easy = Subset(0.3)(samples, [0])[0]
    own = p[np.arange(200), y]
    kept = easy[0][np.arange(60), easy[1]]
    assert np.array_equal(np.sort(kept), np.sort(own)[-60:])
    assert len(Subset(0.001)(samples, [0])[0][1]) == 1
    anything = Subset(0.5, "any")(samples, [0], 1)[0]
    assert anything[0].min() >= 0
    assert len(anything[1]) == 100
    for wrong in ({"share": 0.0}, {"which": "hard"}):
        with pytest.raises(RobfcpError, match=next(iter(wrong))):
            Subset(**wrong)


def test_malformed_reports_are_all_refused_and_the_round_goes_on(federation):
    many = Federation.from_counts(np.tile(federation.counts, (3, 1)), federation.grid)
    bad = np.arange(0, 26, 2)
    received = Federation.from_reports(Malformed()(many, bad, 0))
    assert received.n_clients == 27 - len(bad)
    assert len(received.faulty) >= 1
    assert not set(received.ids) & {many.ids[k] for k in bad}


@pytest.mark.parametrize("direction", ["down", "up"])
def test_the_adaptive_attacker_does_at_least_as_badly_as_every_family(federation, direction):
    found = Adaptive("none", direction, trials=20).search(federation, BAD, 0)
    sign = 1 if direction == "down" else -1
    rule = Adaptive("none")._rule(3)
    pool = np.cumsum(federation.pooled(~np.isin(np.arange(9), BAD)))
    assert found.coverage == pytest.approx(
        1.0 if rule(found.federation) is None else pool[rule(found.federation)] / pool[-1]
    )
    for attack, name in families(direction):
        index = rule(attack(federation, BAD, 7))
        reached = 1.0 if index is None else pool[index] / pool[-1]
        tolerance = 0.02 if name.startswith(("gauss", "disp", "mimic", "trunc", "lift")) else 1e-12
        assert sign * found.coverage <= sign * reached + tolerance, name


def test_the_free_search_beats_honesty_without_any_family(federation, monkeypatch):
    monkeypatch.setattr("robfcp.lab.attacks.adaptive.families", lambda direction: iter(()))
    for direction, sign in (("down", 1), ("up", -1)):
        honest = Adaptive("none", direction, trials=0).search(federation, BAD, 0)
        found = Adaptive("none", direction, trials=60).search(federation, BAD, 0)
        assert honest.family == "honest"
        assert found.family == "free"
        assert sign * found.coverage < sign * honest.coverage - 0.01


def test_the_adaptive_attacker_takes_any_rule_and_refuses_nonsense(federation):
    assert Adaptive(lambda federation: 5, trials=1).search(federation, BAD, 0).family == "honest"
    assert Adaptive(lambda federation: None, trials=1).search(federation, BAD, 0).coverage == 1
    assert Adaptive(NoDefence(), trials=0).search(federation, [], 0).family == "honest"
    with pytest.raises(RobfcpError, match="direction"):
        Adaptive(direction="sideways").search(federation, BAD, 0)


def test_wrong_attackers_and_names_are_refused(scores):
    for malicious, word in (
        ([9], "client numbers"),
        (np.ones(3, bool), "mask"),
        (np.arange(9), "honest"),
    ):
        with pytest.raises(RobfcpError, match=word):
            Coverage()(scores, malicious)
    with pytest.raises(RobfcpError, match="unknown; use one of coverage"):
        named_attack("bribery")
