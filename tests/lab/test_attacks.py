"""Every attack keeps one protocol and its own promise; the searching one finds what there is."""

from dataclasses import replace

import numpy as np
import pytest
from effort import thorough
from makers import outputs

import robfcp
from robfcp import Federation, Grid, Report, RobfcpError
from robfcp.defence import Assessment, NoDefence
from robfcp.defence.copies import lower_tail
from robfcp.lab.attacks import ATTACKS, Adaptive, coordinated, named_attack, simple
from robfcp.lab.attacks.adaptive import Shape, _Forge, families
from robfcp.lab.attacks.base import pairs_of, scores_of, with_counts, with_pairs, with_scores
from robfcp.lab.worlds import Setting, apply_attack, federation_of, make_world

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
    if attack.on in ("scores", "counts"):  # pooled counts go to classes in the client's own mix
        own, sent = federation.strata.sizes, attack(federation, BAD, 1)
        shares = sent.sizes[:, None] / federation.sizes[:, None] * own
        assert attack.on == "counts" or np.array_equal(sent.strata.sizes, shares)
    seen = apply_attack(attack, world, np.random.default_rng(1))
    assert np.array_equal(tables(seen).sum(axis=1), seen.counts)
    assert np.array_equal(seen.strata.sizes.sum(axis=1), seen.sizes)
    for k in HONEST:
        place = seen.ids.index(federation.ids[k])
        assert np.array_equal(tables(seen)[place], tables(federation)[k])


def test_samples_of_a_federation_sketch_back_to_it_on_open_grids_too(world):
    federation, everybody = world.federation, np.arange(9)
    assert same(with_scores(federation, everybody, scores_of(federation)), federation)
    assert same(with_pairs(federation, everybody, pairs_of(federation)), federation)
    bare = Federation.from_counts(federation.counts, federation.grid)
    with pytest.raises(RobfcpError, match="labels"):
        coordinated.PairMimic()(bare, BAD, 2)
    small = Federation.from_counts([[1, 2, 0, 3], [2, 0, 1, 1]], Grid.open_ended([0.0, 1.0, 2.0]))
    assert np.array_equal(with_scores(small, np.arange(2), scores_of(small)).counts, small.counts)
    assert simple.Coverage()(small, [0], 0).counts[0].tolist() == [6, 0, 0, 0]
    assert simple.Efficiency()(small, [0], 0).counts[0].tolist() == [0, 0, 0, 6]


def test_clients_that_withheld_their_labels_still_do_after_an_attack(world):
    first, *others = world.federation
    plain = Report(first.client, first.counts, first.grid, first.score)
    mixed = Federation.from_reports([plain, *others])
    assert mixed.strata.rows.tolist() == list(range(1, 9))
    forged = mixed.counts.copy()
    forged[[0, 4]] = forged[[0, 4]][:, ::-1]
    attacked = with_counts(mixed, forged)
    assert attacked.strata.rows.tolist() == list(range(1, 9))
    assert np.array_equal(tables(attacked).sum(axis=1), forged[1:])
    only = with_counts(mixed, np.where(np.arange(9)[:, None] == 0, forged, mixed.counts))
    assert only.strata is mixed.strata


def test_score_attacks_keep_labels_and_draw_them_where_the_number_changes(world):
    own, labels = world.federation.strata.sizes, [y for _, y in world.samples]
    for name in ("coverage", "gaussian", "mimic-low", "truncation"):
        attacked = apply_attack(ATTACKS[name], world, np.random.default_rng(1))
        assert np.array_equal(attacked.strata.sizes, own)
    inflated = apply_attack(ATTACKS["size-inflation"], world, np.random.default_rng(1))
    poisoned = apply_attack(ATTACKS["label-poisoning"], world, np.random.default_rng(1))
    samples = ATTACKS["label-poisoning"](world.samples, BAD, np.random.default_rng(1))
    zero = apply_attack(simple.Coverage(), world, np.random.default_rng(1))
    for k in BAD:
        mix = inflated.strata.sizes[k] / (20 * own[k].sum())
        assert np.allclose(mix, own[k] / own[k].sum(), atol=0.06)  # 1300 draws
        p, y = samples[k]
        report = Report.from_scores("x", world.score(p, y), labels=y, classes=4)
        assert np.array_equal(tables(poisoned)[k], report.strata.dense())
        assert np.array_equal(tables(zero)[k][:, 0], np.bincount(labels[k], minlength=4))


def test_coverage_efficiency_and_near_coverage_send_one_score(scores):
    for attack, score in (
        (simple.Coverage(), 0),
        (simple.Efficiency(), 1),
        (simple.NearCoverage(), 0.001),
    ):
        assert (np.concatenate([attack(scores, BAD)[k] for k in BAD]) == score).all()


def test_gaussian_adds_the_papers_noise_and_the_relative_one_that_of_the_scores(scores):
    wide = [np.full(4, 0.5), np.linspace(0.2, 0.8, 50_000)]
    change = simple.GaussianRelative()(wide, [1], 3)[1] - wide[1]
    assert change.std() == pytest.approx(0.5 * wide[1].std(), rel=0.02)
    noise = np.random.default_rng(3).normal(0, 0.5, 50_000)
    assert np.array_equal(simple.Gaussian()(wide, [1], 3)[1], np.clip(wide[1] + noise, 0, 1))
    for rule in (simple.Gaussian(50.0), simple.GaussianRelative(50.0)):
        assert rule(scores, BAD, 3)[1].max() == 1


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


def test_mimics_copy_the_client_they_name(scores):
    order = sorted(HONEST, key=lambda k: np.quantile(scores[k], 0.9, method="inverted_cdf"))
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
    with pytest.raises(RobfcpError, match="copy"):
        coordinated.MimicLow("badly")(scores, BAD, 0)


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
    assert (coordinated.ClassCapture()(held, [2])[2][1] == 3).all()
    assert (coordinated.ClassCapture()(held, [1, 2])[1][1] == 2).all()  # 0, 3: no honest holder
    pool = np.concatenate([pairs[k][0] for k in HONEST])
    for k, (part, labels) in enumerate(coordinated.ClassClaim()(pairs, BAD, 0)):
        claimed = labels != pairs[k][1] if k != 1 else part != pairs[k][0]
        assert (labels[claimed] == 3).all()
        assert (part[claimed] <= np.quantile(pool, 0.5)).all()
        assert 0.75 < claimed.mean() < 1 if k in BAD else not claimed.any()


def test_pair_mimic_draws_pairs_of_the_easiest_honest_client(pairs):
    easiest = min(HONEST, key=lambda k: np.quantile(pairs[k][0], 0.9, method="inverted_cdf"))
    source = set(zip(*map(np.ndarray.tolist, pairs[easiest]), strict=True))
    forged = coordinated.PairMimic()(pairs, BAD, 3)
    assert all(set(zip(*map(np.ndarray.tolist, forged[k]), strict=True)) <= source for k in BAD)
    assert not same(forged[1], forged[3])


def test_stairs_push_and_ghost_lower_as_much_as_they_say(pairs):
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
    hardest = sorted(HONEST, key=lambda k: -np.quantile(pairs[k][0], 0.9, method="inverted_cdf"))
    for source, k in zip(hardest, BAD, strict=False):
        scores, labels = coordinated.Ghost()(pairs, BAD, 0)[k]
        own = pairs[source][0]
        kept = own <= np.quantile(own, 0.85, method="inverted_cdf")
        assert np.isin(scores, own[kept]).all()
        assert np.isin(own[kept], scores).all()
        assert np.array_equal(np.sort(labels), np.sort(pairs[source][1]))


def test_half_of_a_hubs_attackers_send_means_of_honest_reports_and_the_others_zeros(pairs):
    forged = coordinated.Hub(of=3)(pairs, [0, 1, 3, 4], 0)  # honest: 2, 5, 6, 7, 8
    for k, parts in ((0, [2, 5, 6]), (1, [6, 7, 8])):
        scores, labels = forged[k]
        mean = np.sort(np.concatenate([pairs[j][0] for j in parts]))
        assert np.array_equal(scores, mean[1::3])
        assert set(zip(scores, labels, strict=True)) <= {
            pair for j in parts for pair in zip(*pairs[j], strict=True)
        }
    assert not any(forged[k][0].any() for k in (3, 4))
    assert all(np.array_equal(forged[k][1], pairs[k][1]) for k in (3, 4))


@pytest.fixture
def samples():
    rng = np.random.default_rng(0)
    return [(rng.dirichlet(np.ones(5), 200), rng.integers(0, 5, 200)) for _ in range(4)]


def test_label_poisoning_changes_every_label_asked_for_evenly(samples):
    p, labels = np.full((30_000, 4), 0.25), np.random.default_rng(0).integers(0, 4, 30_000)
    for share in (1.0, 0.5):
        (_, poisoned), _ = simple.LabelPoisoning(share)([(p, labels), samples[0]], [0], 1)
        shift = np.bincount((poisoned - labels) % 4, minlength=4) / 30_000
        assert np.allclose(shift, [1 - share, *[share / 3] * 3], atol=0.02)


def test_swapped_labels_exchange_two_classes_and_no_other(samples):
    p, y = samples[1]
    swapped = simple.SwappedLabels((0, 3))(samples, [1])[1]
    assert swapped[0] is p
    assert np.array_equal(swapped[1], np.select([y == 0, y == 3], [3, 0], y))
    first, second = np.argsort(-np.bincount(y), kind="stable")[:2]
    moved = simple.SwappedLabels()(samples, [1])[1][1]
    assert np.array_equal(moved == first, y == second)
    assert np.array_equal(moved == second, y == first)
    only = [(p, np.full(200, 2)), samples[0]]
    assert (simple.SwappedLabels()(only, [0])[0][1] != 2).all()


def test_an_old_model_is_worse_and_keeps_the_labels(samples):
    y = np.arange(4000) % 5
    p, kept = simple.OldModel()([(0.025 + 0.875 * np.eye(5)[y], y), samples[0]], [0], 1)[0]
    assert np.array_equal(kept, y)
    assert np.allclose(p.sum(axis=1), 1)
    assert 0.4 < (p.argmax(axis=1) == y).mean() < 0.95
    assert np.allclose(simple.OldModel(1.0, 0.0)(samples, [0])[0][0], samples[0][0])


def test_another_class_order_leaves_no_column_in_its_place(samples):
    p = np.tile(np.arange(1, 6) / 15, (3, 1))
    for seed in range(20):
        given = [(p, np.zeros(3, int)), samples[0]]
        moved = simple.OtherClassOrder()(given, [0], seed)[0][0]
        assert np.allclose(np.sort(moved, axis=1), p)
        assert not np.isclose(moved, p).any()


def test_temperature_raises_probabilities_to_its_inverse(samples):
    p = samples[2][0]
    for t in (0.5, 2.0):
        expected = p ** (1 / t) / (p ** (1 / t)).sum(axis=1, keepdims=True)
        assert np.allclose(simple.Temperature(t)(samples, [2])[2][0], expected)


def test_a_stale_file_is_an_honest_clients_whole_or_in_part(samples):
    sent = simple.StaleFile()(samples, [0, 1], 4)
    for k in (0, 1):
        assert any(np.array_equal(sent[k][0], samples[j][0]) for j in (2, 3))
    part = simple.StaleFile(0.25)(samples, [0], 4)[0]
    assert len(part[1]) == 50
    assert any(np.isin(part[0], samples[j][0]).all() for j in (1, 2, 3))


def test_a_subset_keeps_the_easy_samples_or_any(samples):
    p, y = samples[0]
    easy = simple.Subset(0.3)(samples, [0])[0]
    kept = easy[0][np.arange(60), easy[1]]
    assert np.array_equal(np.sort(kept), np.sort(p[np.arange(200), y])[-60:])
    assert len(simple.Subset(0.001)(samples, [0])[0][1]) == 1
    assert len(simple.Subset(0.5, "any")(samples, [0], 1)[0][1]) == 100


def test_malformed_reports_are_all_refused_and_the_round_goes_on(world):
    many = Federation.from_counts(np.tile(world.federation.counts, (3, 1)), world.federation.grid)
    bad = np.arange(0, 26, 2)
    received = Federation.from_reports(coordinated.Malformed()(many, bad, 0))
    assert received.n_clients == 27 - len(bad)
    assert len(received.faulty) >= 1
    assert not set(received.ids) & {many.ids[k] for k in bad}


@pytest.mark.parametrize(
    ("rule", "wrong", "word"),
    [
        (simple.Partial, {"share": 1.5}, "share"),
        (simple.SizeInflation, {"factor": 0}, "factor"),
        (simple.Temperature, {"temperature": 0.0}, "temperature"),
        (simple.Subset, {"share": 0.0}, "share"),
        (simple.Subset, {"which": "hard"}, "which"),
        (coordinated.ClassCapture, {"scores": "middle"}, "scores"),
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
    assert honest.family == "honest"
    assert found.family.startswith("free: scores")
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
    drawn = tables(forge.sent(replace(shape, tight=False, size=np.log(100))))[BAD[2]]
    assert np.abs(np.cumsum(drawn / drawn.sum() - law)).max() < 0.02
    for down, up in zip(forge.starts(False)[:7], forge.starts(True), strict=False):
        assert np.array_equal(down.tilt[:, ::-1], up.tilt)


def test_a_search_beyond_fcp_turns_a_rule_that_leaves_out_the_hardest_sites(world):
    class Expels:
        name = "expels"

        def __call__(self, federation):
            ease = federation.counts.cumsum(axis=1).sum(axis=1) / federation.sizes
            return Assessment(-ease, ease > np.sort(ease)[2])

    found = Adaptive(Expels(), trials=30, beyond=True).search(world.federation, BAD, 0)
    assert found.value < -0.01


def test_the_adaptive_attacker_takes_any_rule_and_refuses_nonsense(world):
    search = {"data": world.federation, "malicious": BAD, "rng": 0}
    assert Adaptive(lambda federation: 5, trials=1).search(**search).family == "honest"
    assert Adaptive(lambda federation: None, trials=1).search(**search).coverage == 1
    nobody = {**search, "malicious": []}
    assert Adaptive(NoDefence(), trials=0).search(**nobody).family == "honest"
    with pytest.raises(RobfcpError, match="direction"):
        Adaptive(direction="sideways").search(**search)


def test_the_hub_chains_all_honest_reports_to_means_closer_than_chance_allows():
    rng = np.random.default_rng(0)
    pairs = [(rng.beta(0.6, 3, 20_000), rng.integers(0, 10, 20_000)) for _ in range(20)]
    sent = coordinated.Hub()(pairs, np.arange(8), 0)
    rows = federation_of([part for part, _ in sent], Grid.default(), robfcp.LAC()).counts
    close = [lower_tail(rows[0], rows[k]) for k in range(8, 20)]
    assert max(close[:4]) < 1e-25 < min(close[4:])
