"""Simulations: closed forms, counts by class that add up, thresholds for each class, seeds."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from makers import command_error, command_output

from robfcp import Binning, Report, RobfcpError
from robfcp.defense import Assessment, Consensus
from robfcp.experiments import outputs, partitions, simulate
from robfcp.experiments.coarsening import as_default_reports, as_reports_by_class
from robfcp.experiments.scenarios import (
    ScenarioConfig,
    assign_labels,
    build_federation,
    make_scenario,
)
from robfcp.experiments.simulation import ReceivedReports, summarize, to_records
from robfcp.scores import LAC


@pytest.fixture(scope="module")
def data():
    shipped = outputs.load("mnist")
    return shipped.probabilities, shipped.labels


@pytest.fixture(scope="module")
def scenario(data):
    config = ScenarioConfig(n_clients=12, malicious_fraction=0.3, beta=0.5)
    return make_scenario(data[0][:3000], data[1][:3000], config, np.random.default_rng(3))


@pytest.mark.effort
def test_the_default_restores_benign_coverage_where_the_published_defense_fails(data):
    options = {"defenses": [Consensus.name], "n_malicious_known": False, "n_runs": cases(1)}
    options["n_clients"] = 50
    for attack in ("coverage", "efficiency", "size-inflation", "collusion"):
        errors = [abs(row.coverage_error) for row in simulate(*data, attack=attack, **options)]
        assert np.mean(errors) <= 0.01
        assert max(errors) <= 0.02
    rows = simulate(*data, attack="coverage", n_runs=2)
    assert simulate(*data, attack="coverage", n_runs=1) == rows[: len(rows) // 2]
    table = {record["defense"]: record for record in summarize(rows)}
    assert table["rob-fcp"]["coverage"] < table["none"]["coverage"] < 0.9
    assert table["benign clients alone"]["coverage"] > 0.9
    assert to_records(rows)[0]["error"] == rows[0].coverage_error
    assert list(summarize([])) == []


def test_a_round_that_a_defense_refuses_gives_trivial_sets(data):
    class ExcludesAllClients:
        name = "excludes everybody"

        def assess(self, federation):
            n = federation.n_clients
            return Assessment(np.zeros(n), np.zeros(n, bool), n_malicious=n)

    (row,) = simulate(*data, n_clients=10, n_runs=1, defenses=[ExcludesAllClients()])
    assert (row.set_size, row.coverage, row.n_flagged) == (10, 1, 0)
    assert row.defense == "excludes everybody"


def test_a_scenario_counts_as_reports_with_labels_do(scenario):
    clients = zip(scenario.federation.clients, scenario.scores, scenario.samples, strict=True)
    options = {"score": scenario.score, "classes": 10}
    reports = [Report.from_scores(name, s, labels=y, **options) for name, s, (_, y) in clients]
    assert list(scenario.federation) == reports


@pytest.mark.filterwarnings("ignore:.*coarsened counts by class are rough")
@pytest.mark.parametrize("min_cell_count", [1, 2, 5, 10])
def test_reports_that_arrive_are_those_that_the_clients_would_make(scenario, min_cell_count):
    clients = zip(scenario.federation.clients, scenario.scores, scenario.samples, strict=True)
    options = {"score": scenario.score, "classes": 10, "min_cell_count": min_cell_count}
    samples = [(name, s, y) for name, s, (_, y) in clients]
    received = ReceivedReports(scenario.federation, min_cell_count)
    reports = [Report.from_scores(name, s, labels=y, **options) for name, s, y in samples]
    assert list(received.default) == reports
    reports = [
        Report.from_scores(name, s, labels=y, stratify_by_class=True, **options)
        for name, s, y in samples
    ]
    assert list(received.by_class) == reports
    without_labels = replace(scenario.federation, strata=None)
    options["classes"] = None
    reports = [Report.from_scores(name, s, **options) for name, s, _ in samples]
    assert list(as_default_reports(without_labels, min_cell_count)) == reports
    if min_cell_count > 1:
        with pytest.raises(RobfcpError, match="recreate them with"):
            as_reports_by_class(without_labels, min_cell_count)


def test_a_defense_gets_the_requested_reports_and_a_baseline_exact_counts(data):
    received = []

    class KeepsReports:
        name = "keeps reports"

        def assess(self, federation):
            has_classes = federation.strata is not None, federation.class_totals is not None
            received.append((int(federation.min_cell_counts.max()), *has_classes))
            all_clients = np.ones(federation.n_clients, bool)
            return Assessment(np.zeros(federation.n_clients), all_clients)

    options = {
        "n_clients": 10,
        "n_runs": 1,
        "defenses": [KeepsReports(), "fedcp-qq", "local-clipped"],
    }
    default = simulate(*data, **options)
    exact = simulate(*data, **options, min_cell_count=1)
    by_class = simulate(*data, **options, by="class")
    assert received == [(5, False, True), (1, True, False), (5, True, False)]
    assert [row.min_cell_count for row in default] == [5, 1, 5]
    assert [row.min_cell_count for row in exact] == [1, 1, 1]
    assert [row.min_cell_count for row in by_class] == [5, 1, 5]
    assert default[1].coverage == exact[1].coverage
    for row, exact_row in zip(default, exact, strict=True):
        assert row.benign_coverage == exact_row.benign_coverage  # of exact counts
    with pytest.raises(RobfcpError, match="min_cell_count"):
        simulate(*data, min_cell_count=0)


def test_labels_are_assigned_in_exact_proportions_without_randomness():
    rng = np.random.default_rng(0)
    for _ in range(200):
        a, c, h = rng.integers(1, 5), rng.integers(1, 8), rng.integers(1, 30)
        counts = rng.integers(0, 4, (a, h)) + (np.arange(h) == 0)
        sizes = rng.integers(0, 30, (a, c)) + (np.arange(c) == c - 1)
        table = np.zeros((a, c, h), int)
        np.add.at(table, assign_labels(counts, sizes), 1)
        assert np.array_equal(table.sum(axis=1), counts)
        exact = counts.sum(axis=1)[:, None] * sizes / sizes.sum(axis=1, keepdims=True)
        assert (np.abs(table.sum(axis=2) - exact) < 1).all()
        # every class follows the pool: at no edge further off than by the other classes' halves
        cumulative, pool = table.cumsum(axis=2), counts.cumsum(axis=1)[:, None]
        fraction = table.sum(axis=2)[:, :, None] / counts.sum(axis=1)[:, None, None]
        assert (np.abs(cumulative - fraction * pool) <= c / 2 + 1e-9).all()
    _, label, _ = assign_labels(np.array([[7]]), np.array([[50, 30, 20]]))
    assert np.bincount(label).tolist() == [4, 2, 1]  # largest remainders


def test_a_scenario_measures_the_sets_of_one_threshold_of_several_and_of_each_client(scenario):
    thresholds, client_index = np.linspace(0.001, 0.9, 10), scenario.test_client_index
    by_client = np.outer(np.linspace(0.5, 1, 12), thresholds)
    for thresholds_given, sample_thresholds in (
        *((q, q) for q in (0.3, np.inf, thresholds)),
        (by_client, by_client[client_index]),
    ):
        metrics, sets = (
            scenario.measured(thresholds_given),
            scenario.test_label_scores <= sample_thresholds,
        )
        is_covered, label = (
            sets[np.arange(len(client_index)), scenario.test_labels],
            scenario.test_labels,
        )
        assert metrics.measures() == pytest.approx(
            {
                "coverage": is_covered.mean(),
                "set_size": sets.sum(axis=1).mean(),
                "worst_class_coverage": min(is_covered[label == c].mean() for c in set(label)),
                "worst_client_coverage": min(
                    is_covered[client_index == k].mean() for k in set(client_index)
                ),
            }
        )
    assert set(client_index) == set(np.flatnonzero(scenario.benign))


def test_rows_are_means_of_the_thresholds_of_each_class_too():
    shipped = outputs.load("cifar10")  # its classes differ: one threshold covers some of them badly
    options = {"attack": "coverage", "n_clients": 12, "beta": 1.0, "n_runs": 2}
    options["min_cell_count"] = 1  # who is excluded follows from counts by class either way
    data = shipped.probabilities, shipped.labels
    for row, by_class_row in zip(
        simulate(*data, **options), simulate(*data, **options, by="class"), strict=True
    ):
        assert (row.seed, row.defense, row.n_flagged) == (
            by_class_row.seed,
            by_class_row.defense,
            by_class_row.n_flagged,
        )
        assert by_class_row.benign_worst_class_coverage > row.benign_worst_class_coverage + 0.02


def test_simulate_command_writes_tables_and_figures(tmp_path):
    arguments = ["experiments", "simulate", "mnist", "--n-clients", 20, "--n-runs", 1]
    command_output(
        *arguments, "-o", tmp_path / "r.csv", "--plot", tmp_path / "f.png", "--by", "class"
    )
    assert (tmp_path / "r.csv").read_text().startswith("attack,defense,")
    for option, kind in (((), "default reports, cells of 5"), ((1,), "exact counts")):
        cell_option = ("--min-cell-count", *option) if option else ()
        assert kind in " ".join(
            command_output(*arguments, *cell_option, "--defense", "none").split()
        )
    assert (tmp_path / "f.png").stat().st_size > 1000
    for option in ("n-malicious", "score", "attack", "by"):
        assert option in command_error(*arguments, f"--{option}", "x")
    assert "r.doc" in command_error(*arguments, "-o", tmp_path / "r.doc")
    assert "no outputs of that name" in command_error("experiments", "simulate", "nothing")


# Every sample goes to exactly one client


@settings(max_examples=50, deadline=None)
@given(
    n=st.integers(200, 600), k=st.integers(1, 9), beta=st.floats(0.4, 10), seed=st.integers(0, 999)
)
def test_every_sample_has_one_client(n, k, beta, seed):
    labels = np.random.default_rng(seed).integers(0, 5, n)
    equal = partitions.partition_iid(n, k, seed)
    assert {len(rows) for rows in equal} <= {n // k, n // k + 1}
    assert all(map(np.array_equal, equal, partitions.partition_iid(n, k, seed)))
    for clients in (equal, partitions.partition_dirichlet(labels, k, beta, seed, minimum=2)):
        assert len(clients) == k
        np.testing.assert_array_equal(np.sort(np.concatenate(clients)), np.arange(n))


def test_smaller_beta_makes_clients_less_similar_and_a_tiny_one_does_not_underflow():
    labels = np.random.default_rng(0).integers(0, 10, 20_000)
    spread = []
    for beta in (200, 2, 0.2):
        clients = partitions.partition_dirichlet(labels, 20, beta, 0)
        fractions = [np.bincount(labels[rows], minlength=10) / len(rows) for rows in clients]
        spread.append(np.std(fractions, axis=0).mean())
    assert spread[2] > 2 * spread[1] > 4 * spread[0]
    clients = partitions.partition_dirichlet(np.zeros(100, dtype=int), 3, 1e-300, 0, minimum=0)
    assert sum(map(len, clients)) == 100
    clients = partitions.partition_dirichlet(np.arange(1000) % 10, 5, 0.05, 0, minimum=0)
    assert (
        max(map(len, clients)) <= 200 + 100
    )  # a client with a fair fraction takes no further class


def test_impossible_requests_are_refused_with_advice(data):
    labels = np.random.default_rng(0).integers(0, 10, 1000)
    spread = partial(partitions.partition_dirichlet, attempts=20)
    invalid_options = {
        "malicious_fraction": ("malicious_fraction", 1.0),
        "attack": ("attack", "nope"),
        "by": ("by", "group"),
    }
    invalid_options["n_runs"] = ("n_runs", 0)
    mismatched = {"labels": [np.zeros(2, int)], "n_classes": 2}
    for call, arguments, message in (
        *(
            (partial(simulate, **dict([wish])), data, name)
            for name, wish in invalid_options.items()
        ),
        (partial(simulate, attack=lambda context: []), data, "bare function; wrap it: ScoreAttack"),
        (partial(simulate, defenses=[lambda reports: None]), data, "has no name; give it one"),
        (
            partial(build_federation, **mismatched),
            ([np.ones(3)], Binning.default(), LAC()),
            "labels",
        ),
        (spread, (labels, 40, 0.05, 0), "use fewer than 40 clients, a larger beta"),
        *((spread, (labels, 2, b, 0), "beta") for b in (0, -1, np.nan, np.inf)),
        (partitions.partition_iid, (3, 4), "use fewer clients"),
        (partitions.partition_iid, (3, 0), "use fewer clients"),
        (spread, (labels[:30], 4, 1.0), "use fewer clients"),
        (partitions.partition_by_site, ([3, 1, 3, 2], 9), "none of 3 clients has 9 samples"),
    ):
        with pytest.raises(RobfcpError, match=message):
            call(*arguments)
