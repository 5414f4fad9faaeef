"""The test range keeps the label: counts by class that add up, and thresholds for each class."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from effort import thorough
from typer.testing import CliRunner

import robfcp
from robfcp import Federation, Grid, Report, RobfcpError, metrics
from robfcp.cli import app
from robfcp.federation import SparseCounts
from robfcp.lab import outputs, simulate
from robfcp.lab.attacks import ATTACKS, Adaptive, Attack
from robfcp.lab.attacks.base import with_counts
from robfcp.lab.attacks.simple import Coverage
from robfcp.lab.redteam import DEFENCES, redteam
from robfcp.lab.simulation import summarise
from robfcp.lab.worlds import Setting, apply_attack, federation_of, make_world, spread

QUICK = [name for name, attack in ATTACKS.items() if not isinstance(attack, Adaptive)]
SMALL = Setting(n_clients=12, share=0.3, beta=0.5)


@pytest.fixture(scope="module")
def data():
    shipped = outputs.load("mnist")
    return shipped.probabilities[:3000], shipped.labels[:3000]


@pytest.fixture(scope="module")
def world(data):
    return make_world(*data, SMALL, np.random.default_rng(3))


def tables(federation):
    """(R, C, H) counts by class."""
    strata = federation.strata
    return strata.table.dense().reshape(-1, strata.n_strata, strata.n_bins)


def labels_of(world):
    return [labels for _, labels in world.samples]


def short(attack):
    """The attack, with a search of two steps where it searches."""
    return replace(attack, trials=2) if isinstance(attack, Adaptive) else attack


def check_consistent(federation):
    assert np.array_equal(federation.strata.rows, np.arange(federation.n_clients))
    assert (tables(federation) >= 0).all()
    assert np.array_equal(tables(federation).sum(axis=1), federation.counts)
    assert np.array_equal(federation.strata.sizes.sum(axis=1), federation.sizes)


def test_a_world_counts_as_reports_with_labels_do(world):
    federation = world.federation
    check_consistent(federation)
    reports = [
        Report.from_scores(client, scores, score=world.score, labels=labels, classes=10)
        for client, scores, labels in zip(
            federation.ids, world.scores, labels_of(world), strict=True
        )
    ]
    received = Federation.from_reports(reports)
    assert np.array_equal(received.counts, federation.counts)
    assert np.array_equal(tables(received), tables(federation))
    assert list(federation) == reports


@pytest.mark.parametrize("name", thorough(ATTACKS, *QUICK))
def test_counts_by_class_add_up_under_every_attack_and_honest_ones_stay(world, name):
    attacked = apply_attack(short(ATTACKS[name]), world, np.random.default_rng(1))
    check_consistent(attacked)
    for k in np.flatnonzero(world.benign):
        place = attacked.ids.index(world.federation.ids[k])
        assert np.array_equal(tables(attacked)[place], tables(world.federation)[k])


@pytest.mark.parametrize(
    "name", thorough([n for n, a in ATTACKS.items() if a.on in ("scores", "counts")], *QUICK)
)
def test_forged_pooled_counts_are_spread_over_the_clients_own_mix(world, name):
    attacked = short(ATTACKS[name])(world.federation, world.malicious, 1)
    check_consistent(attacked)
    own = world.federation.strata.sizes[world.malicious]
    factor = attacked.sizes[world.malicious] / world.federation.sizes[world.malicious]
    found = attacked.strata.sizes[world.malicious]
    assert np.array_equal(found, factor[:, None] * own)


def test_score_attacks_keep_labels_and_draw_them_where_the_number_changes(world):
    own = world.federation.strata.sizes
    for name in ("coverage", "gaussian", "mimic-low", "truncation"):
        attacked = apply_attack(ATTACKS[name], world, np.random.default_rng(1))
        assert np.array_equal(attacked.strata.sizes, own)
    inflated = apply_attack(ATTACKS["size-inflation"], world, np.random.default_rng(1))
    for k in world.malicious:
        mix = inflated.strata.sizes[k] / (20 * own[k].sum())
        assert np.allclose(mix, own[k] / own[k].sum(), atol=0.06)  # 1400 draws
        assert not mix[own[k] == 0].any()
    forged = Coverage()(world.scores, world.malicious)
    k = world.malicious[0]
    one = apply_attack(Coverage(), world, np.random.default_rng(1))
    expected = [((labels_of(world)[k] == c) & (forged[k] == 0)).sum() for c in range(10)]
    assert np.array_equal(tables(one)[k][:, 0], expected)


def test_sample_attacks_recompute_scores_and_labels(world):
    attacked = apply_attack(ATTACKS["label-poisoning"], world, np.random.default_rng(1))
    samples = ATTACKS["label-poisoning"](world.samples, world.malicious, np.random.default_rng(1))
    for k in world.malicious:
        p, labels = samples[k]
        report = Report.from_scores("x", world.score(p, labels), labels=labels, classes=10)
        assert np.array_equal(tables(attacked)[k], report.strata.dense())


def test_spreading_is_exact_proportional_and_without_chance():
    rng = np.random.default_rng(0)
    for _ in range(200):
        a, c, h = rng.integers(1, 5), rng.integers(1, 8), rng.integers(1, 30)
        counts = rng.integers(0, 4, (a, h)) + (np.arange(h) == 0)
        sizes = rng.integers(0, 30, (a, c)) + (np.arange(c) == c - 1)
        owner, label, bins = spread(counts, sizes)
        table = np.zeros((a, c, h), int)
        np.add.at(table, (owner, label, bins), 1)
        assert np.array_equal(table.sum(axis=1), counts)
        exact = counts.sum(axis=1)[:, None] * sizes / sizes.sum(axis=1, keepdims=True)
        assert (np.abs(table.sum(axis=2) - exact) < 1).all()
        # every class follows the pool: at no edge further off than by the other classes' halves
        below, pool = table.cumsum(axis=2), counts.cumsum(axis=1)[:, None]
        share = table.sum(axis=2)[:, :, None] / counts.sum(axis=1)[:, None, None]
        assert (np.abs(below - share * pool) <= c / 2 + 1e-9).all()


def test_largest_remainders_give_what_is_left_to_the_largest_fractions():
    for total, mix, expected in (
        (10, [1, 1, 1], [4, 3, 3]),
        (7, [50, 30, 20], [4, 2, 1]),
        (5, [0, 3, 0], [0, 5, 0]),
    ):
        _, label, _ = spread(np.array([[total]]), np.array([mix]))
        assert np.bincount(label, minlength=3).tolist() == expected


def test_clients_that_withheld_their_labels_still_do_after_an_attack(world):
    mask = np.arange(12) > 0
    part = world.federation.subset(mask)
    first = world.federation.subset(~mask)
    mixed = Federation.from_reports(
        [*part, *(Report(r.client, r.counts, r.grid, r.score) for r in first)]
    )
    assert mixed.strata.rows.tolist() == list(range(1, 12))
    forged = mixed.counts.copy()
    forged[[0, 4]] = forged[[0, 4]][:, ::-1]
    attacked = with_counts(mixed, forged)
    assert attacked.strata.rows.tolist() == list(range(1, 12))
    assert np.array_equal(tables(attacked).sum(axis=1), forged[1:])
    only = with_counts(mixed, np.where(np.arange(12)[:, None] == 0, forged, mixed.counts))
    assert only.strata is mixed.strata


def test_many_classes_stay_sparse():
    rng = np.random.default_rng(0)
    scores, labels = [rng.random(50) for _ in range(60)], [rng.integers(0, 400, 50)] * 60
    federation = federation_of(scores, Grid.default(), robfcp.LAC(), labels=labels, n_classes=400)
    assert isinstance(federation.strata.table, SparseCounts)
    attacked = Coverage()(federation, np.arange(20))
    assert isinstance(attacked.strata.table, SparseCounts)
    starts, cells, values = attacked.strata.table.entries()
    for k, (first, last) in enumerate(pairwise(starts.tolist())):
        pooled = np.bincount(cells[first:last] % 1000, values[first:last], 1000)
        assert np.array_equal(pooled, attacked.counts[k])


def test_labels_must_fit_the_scores():
    with pytest.raises(RobfcpError, match="labels"):
        federation_of(
            [np.ones(3)], Grid.default(), robfcp.LAC(), labels=[np.zeros(2, int)], n_classes=2
        )


def test_a_world_measures_the_sets_of_several_thresholds(world):
    thresholds = np.linspace(0.001, 0.9, 10)
    assert world.measured(np.full(10, 0.3)) == world.measured(0.3)
    found = world.measured(thresholds)
    sets = world.test_columns <= thresholds
    assert found.set_size == pytest.approx(sets.sum(axis=1).mean())
    hit = world.test_scores <= thresholds[world.test_labels]
    shares = [hit[world.test_labels == c].mean() for c in range(10)]
    assert found.worst_class_coverage == pytest.approx(min(shares))
    assert found.coverage == pytest.approx(hit.mean())


def test_rows_have_the_worst_class_with_one_threshold_and_with_several():
    shipped = outputs.load("cifar10")  # its classes are unlike: one threshold leaves some behind
    data = shipped.probabilities, shipped.labels
    options = {"attack": "coverage", "n_clients": 12, "beta": 1.0, "seeds": 2}
    pooled, by_class = simulate(*data, **options), simulate(*data, **options, by="class")
    assert [row.by for row in pooled] == [None] * 6
    assert [row.by for row in by_class] == ["class"] * 6
    for one, other in zip(pooled, by_class, strict=True):
        assert one.worst_class_coverage <= one.coverage
        assert other.worst_class_coverage <= other.coverage
        assert (one.seed, one.defence, one.flagged) == (other.seed, other.defence, other.flagged)
        assert other.honest_worst_class_coverage > one.honest_worst_class_coverage + 0.02
    table = {record["defence"]: record for record in summarise(by_class)}
    alone = table["honest sites alone"]["worst_class_coverage"]
    assert alone == np.mean([row.honest_worst_class_coverage for row in by_class])
    assert table["none"]["worst_class_coverage"] < alone


def test_class_capture_moves_only_the_captured_class_when_classes_have_thresholds(data, world):
    attack: Attack = ATTACKS["class-capture"]
    attacked = apply_attack(attack, world, np.random.default_rng(0))
    own = world.federation.subset(world.benign)
    honest = robfcp.calibrate(own, by="class", defence="none").levels[0].parts
    found = robfcp.calibrate(attacked, by="class", defence="none").levels[0].parts
    (captured,) = {
        c for k in world.malicious for c in np.flatnonzero(attacked.strata.sizes[k]).tolist()
    }
    for c, (one, other) in enumerate(zip(honest, found, strict=True)):
        assert (one.threshold == other.threshold) == (c != captured)
    assert found[captured].threshold == pytest.approx(1)


@pytest.mark.slow
def test_the_red_team_works_by_class_and_has_the_new_attacks(data):
    cells = redteam(
        *data,
        attacks=("class-capture", "pair-mimic", "adaptive"),
        shares=(0.3,),
        n_clients=6,
        beta=1.0,
        by="class",
        trials=1,
        seeds=1,
    )
    assert len(cells) == 3 * len(DEFENCES)
    assert all(cell.by == "class" for cell in cells)
    assert all(0 <= cell.worst_class_coverage <= cell.coverage for cell in cells)
    assert {"class-capture", "class-capture-low", "pair-mimic"} <= set(ATTACKS)


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.slow
def test_both_commands_take_by(tmp_path):
    words = ["lab", "simulate", "mnist", "--clients", 12, "--seeds", 1]
    result = command(*words, "--by", "class", "-o", tmp_path / "rows.csv")
    assert result.exit_code == 0, result.output
    assert "worst class" in result.output
    assert "worst_class_coverage" in (tmp_path / "rows.csv").read_text()
    assert "worst class" not in command(*words).output
    words = ["lab", "redteam", "mnist", "--attack", "class-capture", "--share", 0.3, "--seeds", 1]
    result = command(*words, "--by", "class")
    assert result.exit_code == 0, result.output
    assert "worst class" in result.output
    (first, *_) = json.loads(command(*words, "--by", "class", "--json").stdout)
    assert first["by"] == "class"
    for name in ("simulate", "redteam"):
        assert "--by" in str(command("lab", name, "mnist", "--by", "group").exception)


def test_other_groupings_are_refused_in_words(data):
    with pytest.raises(RobfcpError, match="by: 'group'"):
        simulate(*data, by="group", n_clients=5, seeds=1)


def test_group_coverage_is_coverage_group_by_group():
    rng = np.random.default_rng(0)
    sets, labels = rng.random((50, 3)) < 0.6, rng.integers(0, 3, 50)
    groups = rng.choice(["a", "b", "c"], 50)
    for name, (size, share) in metrics.group_coverage(sets, labels, groups).items():
        chosen = groups == name
        assert size == chosen.sum()
        assert share == pytest.approx(metrics.coverage(sets[chosen], labels[chosen]))
    with pytest.raises(RobfcpError, match="groups: need one group"):
        metrics.group_coverage(sets, labels, groups[:3])
