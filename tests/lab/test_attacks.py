"""Every attack keeps one protocol and its own promise; the searching one finds what there is."""

from dataclasses import replace

import numpy as np
import pytest
from effort import thorough
from makers import outputs

import robfcp
from robfcp import Federation, Grid, Report, RobfcpError
from robfcp.defence import Assessment
from robfcp.lab.attacks import ATTACKS, Adaptive, coordinated, named_attack, simple
from robfcp.lab.attacks.adaptive import Shape, _Forge, families
from robfcp.lab.attacks.base import pairs_of, scores_of, with_counts, with_pairs, with_scores
from robfcp.lab.worlds import Setting, apply_attack, make_world

BAD = np.array([1, 3, 4])
HONEST = np.setdiff1d(np.arange(9), BAD)
QUICK = set(ATTACKS) - {"adaptive", "adaptive-up"}


@pytest.fixture(scope="module")
def world():
    p, y = outputs(0, 1200, 4)
    setting = Setting(n_clients=9, share=1 / 3, beta=2.0)
    return replace(make_world(p, y, setting, np.random.default_rng(3)), malicious=BAD)


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
    attack, federation = named_attack(name), world.federation
    if isinstance(attack, Adaptive):
        attack = replace(attack, trials=12, against="none")
    pairs = [(part, y) for part, (_, y) in zip(world.scores, world.samples, strict=True)]
    kinds = {"scores": world.scores, "samples": world.samples, "pairs": pairs}
    data, raw = kinds.get(attack.on, federation), [report.to_json() for report in federation]
    once = attack(data, BAD, 1)
    mask = np.isin(np.arange(9), BAD)
    assert same(once, attack(data, mask, np.random.default_rng(1))), "seeded, takes masks"
    untouched = raw if attack.on == "reports" else data
    assert same(attack(data, [], 1), untouched)
    if attack.on in kinds or attack.on == "reports":
        assert all(same(once[k], untouched[k]) for k in HONEST)
    if attack.on in ("scores", "pairs"):
        factor = 20 if name == "size-inflation" else 1
        forged = [once[k] if attack.on == "pairs" else (once[k], np.zeros(0, int)) for k in BAD]
        assert [len(part) for part, _ in forged] == [factor * len(world.scores[k]) for k in BAD]
        assert all(part.min() >= 0 and part.max() <= 1 for part, _ in forged)
        assert all(np.isin(labels, range(4)).all() for _, labels in forged)
        parts, back = (pairs_of, with_pairs) if attack.on == "pairs" else (scores_of, with_scores)
        through_edges = attack(parts(federation), BAD, 2)
        on_counts = attack(federation, BAD, 2)
        assert same(on_counts, back(federation, BAD, [through_edges[k] for k in BAD]))
    seen = apply_attack(attack, world, np.random.default_rng(1))
    if attack.on == "scores":  # go to classes in the client's own mix
        sent, own = attack(federation, BAD, 1), federation.strata.sizes
        assert np.array_equal(sent.strata.sizes, sent.sizes[:, None] / own.sum(1)[:, None] * own)
        drawn = 0.06 * factor * federation.sizes[:, None] if factor > 1 else 0
        assert (np.abs(seen.strata.sizes - sent.strata.sizes) <= drawn).all()
    if attack.on == "samples":
        made = [Report.from_scores("x", world.score(*xy), labels=xy[1], classes=4) for xy in once]
        assert np.array_equal(tables(seen), [report.strata.dense() for report in made])
    assert np.array_equal(tables(seen).sum(axis=1), seen.counts)
    assert np.array_equal(seen.strata.sizes.sum(axis=1), seen.sizes)
    for k in HONEST:
        place = seen.ids.index(federation.ids[k])
        assert np.array_equal(tables(seen)[place], tables(federation)[k])


def test_samples_of_a_federation_sketch_back_to_it_on_open_grids_too(world):
    federation, everybody = world.federation, np.arange(9)
    assert same(with_scores(federation, everybody, scores_of(federation)), federation)
    assert same(with_pairs(federation, everybody, pairs_of(federation)), federation)
    small = Federation.from_counts([[1, 2, 0, 3], [2, 0, 1, 1]], Grid.open_ended([0.0, 1.0, 2.0]))
    assert np.array_equal(with_scores(small, np.arange(2), scores_of(small)).counts, small.counts)
    assert simple.Coverage()(small, [0], 0).counts[0].tolist() == [6, 0, 0, 0]
    assert simple.Efficiency()(small, [0], 0).counts[0].tolist() == [0, 0, 0, 6]
    with pytest.raises(RobfcpError, match="labels"):
        coordinated.PairMimic()(small, [0], 2)


def test_clients_that_withheld_their_labels_still_do_after_an_attack(world):
    first, *others = world.federation
    plain = Report(first.client, first.counts, first.grid, first.score)
    mixed = Federation.from_reports([plain, *others])
    forged = mixed.counts.copy()
    forged[[0, 4]] = forged[[0, 4]][:, ::-1]
    attacked = with_counts(mixed, forged)
    assert attacked.strata.rows.tolist() == list(range(1, 9))
    assert np.array_equal(tables(attacked).sum(axis=1), forged[1:])


@pytest.mark.parametrize(
    ("attack", "formula"),
    [
        (simple.Coverage(), lambda s, z: 0 * s),
        (simple.Efficiency(), lambda s, z: 0 * s + 1),
        (simple.NearCoverage(), lambda s, z: 0 * s + 0.001),
        (simple.Gaussian(), lambda s, z: np.clip(s + 0.5 * z, 0, 1)),
        (simple.GaussianRelative(), lambda s, z: np.clip(s + 0.5 * s.std() * z, 0, 1)),
        (simple.GaussianRelative(50.0), lambda s, z: np.clip(s + 50 * s.std() * z, 0, 1)),
    ],
)
def test_a_lie_is_what_its_formula_says(scores, attack, formula):
    z = np.random.default_rng(3).normal(size=60)
    assert np.allclose(attack(scores, [1], 3)[1], formula(scores[1], z))


def normed(weights):
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.fixture
def samples():
    rng = np.random.default_rng(0)
    return [(rng.dirichlet(np.ones(5), 200), rng.integers(0, 5, 200)) for _ in range(4)]


@pytest.mark.parametrize(
    ("attack", "formula"),
    [
        (simple.Temperature(), lambda p, y, z: (normed(p**2), y)),
        (simple.Temperature(2.0), lambda p, y, z: (normed(p**0.5), y)),
        (simple.OldModel(), lambda p, y, z: (normed(p**0.5 * np.exp(z)), y)),
        (simple.SwappedLabels((0, 3)), lambda p, y, z: (p, np.choose(y, [3, 1, 2, 0, 4]))),
    ],
)
def test_a_mistake_is_what_its_formula_says(samples, attack, formula):
    z = np.random.default_rng(1).normal(size=(200, 5))
    assert all(map(np.allclose, attack(samples, [1], 1)[1], formula(*samples[1], z)))


def test_the_two_commonest_classes_are_swapped(samples):
    p, y = samples[1]
    most = tuple(np.argsort(-np.bincount(y), kind="stable")[:2])
    chosen, given = (simple.SwappedLabels(pair)(samples, [1])[1][1] for pair in (None, most))
    assert np.array_equal(chosen, given)
    only = [(p, np.full(200, 2)), samples[0]]
    assert (simple.SwappedLabels()(only, [0])[0][1] != 2).all()


def test_label_poisoning_changes_every_label_asked_for_evenly(samples):
    p, labels = np.full((30_000, 4), 0.25), np.random.default_rng(0).integers(0, 4, 30_000)
    for share in (1.0, 0.5):
        (_, poisoned), _ = simple.LabelPoisoning(share)([(p, labels), samples[0]], [0], 1)
        shift = np.bincount((poisoned - labels) % 4, minlength=4) / 30_000
        assert np.allclose(shift, [1 - share, *[share / 3] * 3], atol=0.02)


def test_another_class_order_leaves_no_column_in_its_place(samples):
    p = np.tile(np.arange(1, 6) / 15, (3, 1))
    for seed in range(20):
        moved = simple.OtherClassOrder()([(p, np.zeros(3, int)), samples[0]], [0], seed)[0][0]
        assert np.allclose(np.sort(moved, axis=1), p)
        assert not np.isclose(moved, p).any()


def test_a_stale_file_is_an_honest_clients_and_a_subset_ones_own_easiest(samples):
    sent = simple.StaleFile()(samples, [0, 1], 4)
    for k in (0, 1):
        assert any(np.array_equal(sent[k][0], samples[j][0]) for j in (2, 3))
    part = simple.StaleFile(0.25)(samples, [0], 4)[0]
    assert len(part[1]) == 50
    assert any(np.isin(part[0], samples[j][0]).all() for j in (1, 2, 3))
    (p, y), easy = samples[0], simple.Subset(0.3)(samples, [0])[0]
    kept = easy[0][np.arange(60), easy[1]]
    assert np.array_equal(np.sort(kept), np.sort(p[np.arange(200), y])[-60:])
    assert len(simple.Subset(0.001)(samples, [0])[0][1]) == 1
    drawn, easy = (simple.Subset(0.5, which)(samples, [0], 1)[0][0] for which in ("any", "easy"))
    assert drawn.shape == easy.shape == (100, 5)
    assert not np.array_equal(drawn, easy)


@pytest.mark.parametrize(
    ("attack", "low", "high"),
    [
        (simple.Truncation(), 0, 0.75),
        (simple.Lift(), 0.25, 1),
        (coordinated.Squeeze(), 0.3, 0.85),
    ],
)
def test_only_the_mass_beyond_an_honest_quantile_moves_and_inside(scores, attack, low, high):
    pool = np.concatenate([scores[k] for k in HONEST])
    least, most = (np.quantile(pool, level, method="inverted_cdf") for level in (low, high))
    forged = attack(scores, BAD, 4)
    for k in BAD:
        kept = (scores[k] <= most if high < 1 else scores[k] > least) & (
            (scores[k] >= least) | (low == 0)
        )
        assert np.array_equal(forged[k][kept], scores[k][kept])
        source = pool if isinstance(attack, coordinated.Squeeze) else scores[k][kept]
        assert np.isin(forged[k][~kept], source).all()
        assert low == 0 or forged[k].min() >= least
        assert forged[k].max() <= most
    cut = simple.Truncation(0.01)([np.array([0.5, 0.6]), np.array([0.1, 0.2])], [0], 0)[0]
    assert (cut == 0.1).all()


def by_ease(scores):
    """Honest clients, those with the lowest scores first."""
    return sorted(HONEST, key=lambda k: np.quantile(scores[k], 0.9, method="inverted_cdf"))


def test_mimics_copy_the_client_they_name(scores):
    order = by_ease(scores)
    low, high = np.sort(scores[order[0]]), np.sort(scores[order[-1]])
    assert np.array_equal(coordinated.MimicLow("exact")(scores, BAD, 0)[1], low)
    assert np.array_equal(coordinated.MimicHigh("exact")(scores, BAD, 0)[1], high)
    assert np.isin(coordinated.MimicLow("resampled")(scores, BAD, 0)[1], low).all()
    assert 1 <= (coordinated.MimicLow("jittered")(scores, BAD, 0)[1] != low).sum() <= 6
    copies = coordinated.Mimic()(scores, BAD, 0)
    assert any(np.array_equal(copies[1], np.sort(scores[k])) for k in HONEST)
    assert np.array_equal(copies[1], copies[3])
    lowest_half = np.concatenate([scores[k] for k in order[:3]])
    assert np.isin(coordinated.Displacement()(scores, BAD, 0)[3], lowest_half).all()
    clones = coordinated.Clones()(scores, BAD, 0)
    assert np.array_equal(clones[1], clones[4])


def test_attacks_that_wrap_another_do_it_where_they_say(scores):
    decoy = coordinated.Decoy()(scores, BAD, 0)
    assert (decoy[1] == 1).all()
    assert not decoy[3].any()
    assert (simple.SizeInflation(5, simple.Efficiency())(scores, BAD, 0)[3] == 1).all()
    assert (simple.Partial(0.3)(scores, BAD, 0)[3] == 0).sum() == 18
    kept = ATTACKS["keep-30"](scores, BAD, 0)[3]
    assert ((kept == 1).sum(), np.isin(kept[kept < 1], scores[3]).all()) == (42, True)


def test_claims_of_a_class_are_of_the_one_the_fewest_honest_clients_hold(pairs):
    for end, score in (("top", 1), ("bottom", 0)):
        forged = coordinated.ClassCapture(scores=end)(pairs, BAD)
        assert all((forged[k][0] == score).all() and (forged[k][1] == 3).all() for k in BAD)
    assert (coordinated.ClassCapture(1)(pairs, BAD)[3][1] == 1).all()
    held = [(part, np.where(labels == 0, 1, labels)) for part, labels in pairs]
    assert (coordinated.ClassCapture()(held, [1, 2])[1][1] == 2).all()  # 0, 3: no honest holder
    pool = np.concatenate([pairs[k][0] for k in HONEST])
    for k, (part, labels) in enumerate(coordinated.ClassClaim()(pairs, BAD, 0)):
        claimed = labels != pairs[k][1] if k != 1 else part != pairs[k][0]
        assert (labels[claimed] == 3).all()
        assert (part[claimed] <= np.quantile(pool, 0.5)).all()
        assert 0.75 < claimed.mean() < 1 if k in BAD else not claimed.any()


def test_stairs_and_push_move_as_many_scores_as_they_say():
    rng = np.random.default_rng(0)
    many = [rng.random(4000) for _ in range(9)]
    pool = np.concatenate([many[k] for k in HONEST])
    low, start, high = (np.quantile(pool, level) for level in (0.6, 0.85, 0.9))
    graded, pushed = coordinated.Stairs()(many, BAD, 0), coordinated.Push()(many, BAD, 0)
    for number, k in enumerate(BAD, 1):
        moved = graded[k] != many[k]
        assert moved.mean() == pytest.approx(0.6 * number / 3, abs=0.03)
        assert graded[k][moved].max() <= np.quantile(pool, 0.75)
        above = many[k] > start
        assert np.array_equal(pushed[k][~above], many[k][~above])
        assert ((pushed[k][above] > low - 0.01) & (pushed[k][above] < high + 0.01)).all()


def test_pair_mimics_ghosts_and_hubs_take_honest_pairs(pairs):
    order = by_ease([scores for scores, _ in pairs])
    held = [set(zip(*map(np.ndarray.tolist, pair), strict=True)) for pair in pairs]
    forged = coordinated.PairMimic()(pairs, BAD, 3)
    for k in BAD:
        assert set(zip(*map(np.ndarray.tolist, forged[k]), strict=True)) <= held[order[0]]
    assert not same(forged[1], forged[3])
    ghosts = coordinated.Ghost()(pairs, BAD, 0)
    for source, k in zip(order[::-1], BAD, strict=False):
        own = pairs[source][0]
        kept = own <= np.quantile(own, 0.85, method="inverted_cdf")
        assert set(ghosts[k][0]) == set(own[kept])
        assert np.array_equal(np.sort(ghosts[k][1]), np.sort(pairs[source][1]))
    forged = coordinated.Hub(of=3)(pairs, [0, 1, 3, 4], 0)  # honest: 2, 5, 6, 7, 8
    for k, parts in ((0, [2, 5, 6]), (1, [6, 7, 8])):
        mean = np.sort(np.concatenate([pairs[j][0] for j in parts]))
        assert np.array_equal(forged[k][0], mean[1::3])
        assert set(zip(*forged[k], strict=True)) <= set.union(*(held[j] for j in parts))
    assert not any(forged[k][0].any() for k in (3, 4))
    assert all(np.array_equal(forged[k][1], pairs[k][1]) for k in (3, 4))


def test_malformed_reports_are_all_refused_and_the_round_goes_on(world):
    many = Federation.from_counts(np.tile(world.federation.counts, (3, 1)), world.federation.grid)
    bad = np.arange(0, 26, 2)
    received = Federation.from_reports(coordinated.Malformed()(many, bad, 0))
    assert set(received.ids) == set(many.ids) - {many.ids[k] for k in bad}
    assert len(received.faulty) >= 1


@pytest.mark.parametrize(
    ("rule", "wrong", "word"),
    [
        (simple.Partial, {"share": 1.5}, "share"),
        (simple.SizeInflation, {"factor": 0}, "factor"),
        (simple.Temperature, {"temperature": 0.0}, "temperature"),
        (simple.Subset, {"share": 0.0}, "share"),
        (simple.Subset, {"which": "hard"}, "which"),
        (coordinated.ClassCapture, {"scores": "middle"}, "scores"),
        (coordinated.MimicLow("badly"), {"malicious": BAD}, "copy"),
        (named_attack, {"name": "bribery"}, "unknown; use one of coverage"),
        (simple.Coverage(), {"malicious": [9]}, "client numbers"),
        (simple.Coverage(), {"malicious": np.ones(3, bool)}, "mask"),
        (simple.Coverage(), {"malicious": np.arange(9)}, "honest"),
    ],
)
def test_wrong_strengths_names_and_attackers_are_refused(scores, rule, wrong, word):
    data = {"data": scores} if "malicious" in wrong else {}
    with pytest.raises(RobfcpError, match=word):
        rule(**data, **wrong)


@pytest.mark.parametrize(("direction", "sign"), [("down", 1), ("up", -1)])
def test_the_adaptive_attacker_does_at_least_as_badly_as_every_family(world, direction, sign):
    pool = np.cumsum(world.federation.pooled(world.benign))

    def reached(federation):
        index = robfcp.guarantees.fcp_index(federation, robfcp.arguments.exact_level(0.9))
        return 1.0 if index is None else pool[index] / pool[-1]

    found = Adaptive("none", direction, trials=20).search(world.federation, BAD, 0)
    assert found.coverage == pytest.approx(reached(found.federation))
    for attack in families(direction):
        drawn = repr(attack).startswith(("Gauss", "Disp", "Mimic", "Trunc", "Lift", "Squeeze"))
        least = sign * reached(attack(world.federation, BAD, 7)) + (0.02 if drawn else 1e-12)
        assert sign * found.coverage <= least, attack


@pytest.mark.parametrize(("direction", "sign"), [("down", 1), ("up", -1)])
@pytest.mark.parametrize("by_class", [True, False])
def test_the_free_search_beats_honesty_without_any_family(
    world, monkeypatch, direction, sign, by_class
):
    federation = world.federation if by_class else replace(world.federation, strata=None)
    monkeypatch.setattr("robfcp.lab.attacks.adaptive.families", lambda direction: [])
    honest = Adaptive("none", direction, trials=0).search(federation, BAD, 0)
    found = Adaptive("none", direction, trials=60).search(federation, BAD, 0)
    assert (honest.family, found.family[:12]) == ("honest", "free: scores")
    assert sign * found.coverage < sign * honest.coverage - 0.01
    again = Adaptive("none", direction, trials=60, beyond=True).search(federation, BAD, 0)
    assert again.value == pytest.approx(0)  # nothing can be lost beyond itself


def test_a_shape_is_sent_as_its_formula_says(world):
    federation, rng = world.federation, np.random.default_rng(0)
    forge, honest = _Forge(federation, BAD, rng), tables(federation)[HONEST].sum(axis=0)
    tilt, claim = rng.normal(size=(4, forge.n_blocks)), rng.normal(size=4)
    shape = Shape(tilt, claim, loyal=0.4, own=0.3, tight=True, size=np.log(2))
    sent = tables(forge.sent(shape))
    assert np.array_equal(sent[BAD[0]], tables(federation)[BAD[0]])  # one of three is loyal
    scores = honest * np.exp(tilt)[:, forge.block]
    for k in BAD[1:]:
        own = federation.strata.sizes[k] / federation.sizes[k]
        mix = (0.3 * own + 0.7 * honest.sum(axis=1) / honest.sum()) * np.exp(claim)
        law = mix[:, None] / mix.sum() * scores / scores.sum(axis=1, keepdims=True)
        assert sent[k].sum() == 2 * federation.sizes[k]
        assert np.abs(np.cumsum(sent[k] - sent[k].sum() * law)).max() <= 1 + 1e-6


def test_the_adaptive_attacker_takes_any_rule_and_turns_one_that_leaves_out_the_hardest(world):
    class Expels:
        name = "expels"

        def __call__(self, federation):
            ease = federation.counts.cumsum(axis=1).sum(axis=1) / federation.sizes
            return Assessment(-ease, ease > np.sort(ease)[2])

    search = {"data": world.federation, "malicious": BAD, "rng": 0}
    assert Adaptive(Expels(), trials=30, beyond=True).search(**search).value < -0.01
    assert Adaptive(lambda federation: 5, trials=1).search(**search).family == "honest"
    assert Adaptive(lambda federation: None, trials=1).search(**search).coverage == 1
    with pytest.raises(RobfcpError, match="direction"):
        Adaptive(direction="sideways").search(**search)
