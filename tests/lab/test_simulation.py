"""The test range: closed forms, counts by class that add up, thresholds for each class, seeds."""

import json
from itertools import pairwise

import numpy as np
import pytest
from effort import cases
from makers import outputs as calibrated
from makers import refused, said

from robfcp import Grid, Report, RobfcpError
from robfcp.defence import Assessment, Consensus
from robfcp.federation import SparseCounts
from robfcp.lab import outputs, simulate
from robfcp.lab.attacks.simple import Coverage
from robfcp.lab.simulation import averaged, records, summarise
from robfcp.lab.worlds import Setting, federation_of, make_world, spread
from robfcp.scores import LAC


@pytest.fixture(scope="module")
def data():
    shipped = outputs.load("mnist")
    return shipped.probabilities, shipped.labels


@pytest.fixture(scope="module")
def weak():
    """A model that is right with the probability it states, so that scores have no atoms."""
    return calibrated(0, 20_000, 10, 0.15)


@pytest.fixture(scope="module")
def world(data):
    setting = Setting(n_clients=12, share=0.3, beta=0.5)
    return make_world(data[0][:3000], data[1][:3000], setting, np.random.default_rng(3))


@pytest.mark.effort
@pytest.mark.parametrize("f", [0.1, 0.4])
def test_undefended_coverage_and_set_size_under_gross_lies_are_the_closed_forms(weak, f):
    rows = simulate(*weak, attack="coverage", share=f, defences=["none"], seeds=cases(2))
    error = np.sqrt(2 * 0.1 * 0.9 / 6000 / len(rows))  # calibration and test noise
    found = np.mean([row.coverage for row in rows])
    assert found == pytest.approx((0.9 - f) / (1 - f), abs=4 * error)
    rows = simulate(*weak, attack="efficiency", share=f, defences=["none"], seeds=2)
    assert all(row.set_size == 10 and row.coverage == 1 for row in rows)


@pytest.mark.effort
def test_the_default_restores_honest_coverage_where_the_published_defence_fails(data):
    for attack in ("coverage", "efficiency", "size-inflation", "clones"):
        options = {"attack": attack, "liars": "estimate", "seeds": cases(1)}
        assert (
            max(abs(row.error) for row in simulate(*data, defences=[Consensus.name], **options))
            <= 0.01
        )
    rows = simulate(*data, attack="coverage", seeds=2)
    assert simulate(*data, attack="coverage", seeds=2) == rows
    table = {record["defence"]: record for record in summarise(rows)}
    assert table["rob-fcp"]["coverage"] < table["none"]["coverage"] < 0.9
    assert table["honest sites alone"]["coverage"] > 0.9
    assert records(rows)[0]["error"] == rows[0].error
    assert list(summarise([])) == []


def test_a_round_that_a_defence_refuses_is_lost_with_full_sets(weak):
    class Accuses:
        name = "accuses"

        def __call__(self, federation):
            n = federation.n_clients
            return Assessment(np.zeros(n), np.zeros(n, bool), liars=n)

    (row,) = simulate(*weak, n_clients=10, seeds=1, defences=[Accuses()])
    assert (row.defence, row.set_size, row.coverage, row.flagged) == ("accuses", 10, 1, 0)


def test_a_world_counts_as_reports_with_labels_do(world):
    held = zip(world.federation.ids, world.scores, world.samples, strict=True)
    told = {"score": world.score, "classes": 10}
    reports = [Report.from_scores(client, s, labels=y, **told) for client, s, (_, y) in held]
    assert list(world.federation) == reports


def test_spreading_is_exact_proportional_and_without_chance():
    rng = np.random.default_rng(0)
    for _ in range(200):
        a, c, h = rng.integers(1, 5), rng.integers(1, 8), rng.integers(1, 30)
        counts = rng.integers(0, 4, (a, h)) + (np.arange(h) == 0)
        sizes = rng.integers(0, 30, (a, c)) + (np.arange(c) == c - 1)
        table = np.zeros((a, c, h), int)
        np.add.at(table, spread(counts, sizes), 1)
        assert np.array_equal(table.sum(axis=1), counts)
        exact = counts.sum(axis=1)[:, None] * sizes / sizes.sum(axis=1, keepdims=True)
        assert (np.abs(table.sum(axis=2) - exact) < 1).all()
        # every class follows the pool: at no edge further off than by the other classes' halves
        below, pool = table.cumsum(axis=2), counts.cumsum(axis=1)[:, None]
        share = table.sum(axis=2)[:, :, None] / counts.sum(axis=1)[:, None, None]
        assert (np.abs(below - share * pool) <= c / 2 + 1e-9).all()
    for total, mix, expected in (  # largest remainders
        (10, [1, 1, 1], [4, 3, 3]),
        (7, [50, 30, 20], [4, 2, 1]),
        (5, [0, 3, 0], [0, 5, 0]),
    ):
        _, label, _ = spread(np.array([[total]]), np.array([mix]))
        assert np.bincount(label, minlength=3).tolist() == expected


def test_many_classes_stay_sparse():
    rng = np.random.default_rng(0)
    scores, labels = [rng.random(50) for _ in range(60)], [rng.integers(0, 400, 50)] * 60
    federation = federation_of(scores, Grid.default(), LAC(), labels=labels, n_classes=400)
    attacked = Coverage()(federation, np.arange(20))
    assert isinstance(federation.strata.table, SparseCounts)
    starts, cells, values = attacked.strata.table.entries()
    for k, (first, last) in enumerate(pairwise(starts.tolist())):
        pooled = np.bincount(cells[first:last] % 1000, values[first:last], 1000)
        assert np.array_equal(pooled, attacked.counts[k])


def test_a_world_measures_the_sets_of_one_threshold_of_several_and_of_each_site(world):
    assert world.measured(np.full(10, 0.3)).numbers() == world.measured(0.3).numbers()
    assert world.measured(np.inf).numbers()["set_size"] == 10
    thresholds, owner = np.linspace(0.001, 0.9, 10), world.test_owner
    by_site = np.outer(np.linspace(0.5, 1, 12), thresholds)
    for limits, own in ((thresholds, thresholds), (by_site, by_site[owner])):
        found, sets = world.measured(limits), world.test_columns <= own
        hit, label = sets[np.arange(len(owner)), world.test_labels], world.test_labels
        assert found.numbers() == pytest.approx(
            {
                "coverage": hit.mean(),
                "set_size": sets.sum(axis=1).mean(),
                "worst_class_coverage": min(hit[label == c].mean() for c in set(label)),
                "worst_site_coverage": min(hit[owner == k].mean() for k in set(owner)),
            }
        )
    assert set(owner) == set(np.flatnonzero(world.benign))


def test_rows_are_means_of_the_thresholds_of_each_class_too():
    shipped = outputs.load("cifar10")  # its classes are unlike: one threshold leaves some behind
    options = {"attack": "coverage", "n_clients": 12, "beta": 1.0, "seeds": 2}
    rows = [
        simulate(shipped.probabilities, shipped.labels, **options, by=by) for by in (None, "class")
    ]
    for one, other in zip(*rows, strict=True):
        assert (one.by, other.by) == (None, "class")
        assert (one.seed, one.defence, one.flagged) == (other.seed, other.defence, other.flagged)
        assert other.honest_worst_class_coverage > one.honest_worst_class_coverage + 0.02
    mean = averaged(rows[1], "defence")[0]
    assert (mean.defence, mean.runs) == ("none", 2)
    assert mean.coverage == np.mean([row.coverage for row in rows[1] if row.defence == "none"])


def test_impossible_wishes_are_refused(data):
    for wrong in ({"share": 1.0}, {"attack": "nope"}, {"by": "group"}, {"seeds": 0}):
        with pytest.raises(RobfcpError, match=next(iter(wrong))):
            simulate(*data, **wrong)
    with pytest.raises(RobfcpError, match="labels"):
        federation_of([np.ones(3)], Grid.default(), LAC(), labels=[np.zeros(2, int)], n_classes=2)


def test_simulate_command_writes_tables_and_figures(tmp_path):
    words = ["lab", "simulate", "mnist", "--clients", 20, "--seeds", 1]
    said(*words, "-o", tmp_path / "r.csv", "--plot", tmp_path / "f.png")
    assert (tmp_path / "r.csv").read_text().startswith("attack,defence,")
    assert (tmp_path / "f.png").stat().st_size > 1000
    assert "each class" in said(*words, "--by", "class", "-o", tmp_path / "r.json")
    assert len(json.loads((tmp_path / "r.json").read_text())) == 3
    wrong = ("--liars", "x"), ("--score", "cqr"), ("--attack", "x"), ("--by", "group")
    for option, value in wrong:
        assert option[2:] in refused(*words, option, value)
    assert "r.doc" in refused(*words, "-o", tmp_path / "r.doc")
    assert "no outputs of that name" in refused("lab", "simulate", "nothing")
