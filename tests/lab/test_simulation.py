"""The test range: closed forms, seeds, every attack at its stage."""

import json

import numpy as np
import pytest
from effort import cases, thorough
from typer.testing import CliRunner

import robfcp
from robfcp.cli import app
from robfcp.defence import DEFAULT
from robfcp.lab import outputs, simulate
from robfcp.lab.attacks import ATTACKS
from robfcp.lab.simulation import records, summarise
from robfcp.lab.worlds import Setting, apply_attack, make_world
from robfcp.scores import APS, LAC


@pytest.fixture(scope="module")
def data():
    shipped = outputs.load("mnist")
    return shipped.probabilities, shipped.labels


@pytest.fixture(scope="module")
def some(data):
    """As many as twenty clients need to be told apart."""
    return data[0][:2000], data[1][:2000]


@pytest.fixture(scope="module")
def weak():
    """A model that is right with the probability it states, so that scores have no atoms."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(10, 0.15), 20_000)
    return p, (p.cumsum(axis=1) > rng.random((len(p), 1))).argmax(axis=1)


@pytest.mark.effort
@pytest.mark.parametrize("f", [0.1, 0.2, 0.3, 0.4])
def test_undefended_coverage_under_coverage_attackers_is_the_closed_form(weak, f):
    rows = simulate(*weak, attack="coverage", share=f, defences=["none"], seeds=cases(2))
    found = np.array([row.coverage for row in rows])
    error = np.sqrt(2 * 0.1 * 0.9 / 6000 / len(rows))  # calibration and test noise
    assert found.mean() == pytest.approx((0.9 - f) / (1 - f), abs=4 * error)


@pytest.mark.parametrize("f", [0.1, 0.2, 0.4])
def test_efficiency_attackers_give_full_sets_once_they_are_alpha(weak, f):
    rows = simulate(*weak, attack="efficiency", share=f, defences=["none"], seeds=2)
    assert all(row.set_size == 10 and row.coverage == 1 for row in rows)


@pytest.mark.effort
@pytest.mark.parametrize("malicious", ["known", "estimate"])
def test_the_default_defence_restores_honest_coverage_on_an_accurate_model(data, malicious):
    for attack in ("coverage", "efficiency", "size-inflation", "clones"):
        rows = simulate(
            *data, attack=attack, malicious=malicious, defences=[DEFAULT], seeds=cases(1)
        )
        assert max(abs(row.error) for row in rows) <= 0.01, attack


def test_the_published_defence_fails_there_and_the_table_says_so(data):
    rows = simulate(*data, attack="coverage", seeds=2)
    table = {record["defence"]: record for record in summarise(rows)}
    assert table["rob-fcp"]["coverage"] < table["none"]["coverage"] < 0.9
    assert table["honest sites alone"]["coverage"] > 0.9
    assert records(rows)[0]["error"] == rows[0].error
    assert list(summarise([])) == []


@pytest.mark.parametrize("attack", [name for name in ATTACKS if not name.startswith("adaptive")])
@pytest.mark.parametrize("beta", thorough([None, 0.5], 0.5))
def test_every_attack_runs_at_its_stage_and_is_seeded(some, attack, beta):
    def run():
        return simulate(
            *some, attack=attack, share=0.3, n_clients=20, beta=beta, seeds=1, defences=[DEFAULT]
        )

    rows = run()
    assert run() == rows
    (row,) = rows
    assert row.attack == attack
    assert row.n_malicious == 6
    assert 0 <= row.caught <= row.flagged <= 20


def test_without_attackers_the_federation_is_untouched(data):
    rng = np.random.default_rng(0)
    world = make_world(*data, Setting(n_clients=10, share=0.0), rng)
    assert apply_attack(ATTACKS["coverage"], world, rng) is world.federation
    assert world.liars == frozenset()
    threshold = world.federation.grid.upper[500]
    assert world.measured(threshold).coverage == np.mean(world.test_scores <= threshold)
    assert world.measured(np.inf).set_size == 10
    assert world.score == LAC()


def test_randomised_scores_are_simulated_too(data):
    (row,) = simulate(*data, score=APS(), n_clients=20, seeds=1, defences=["none"], share=0.0)
    assert 0.88 < row.coverage < 0.96


def test_impossible_wishes_are_refused(data):
    with pytest.raises(robfcp.RobfcpError, match="share"):
        simulate(*data, share=1.0)
    with pytest.raises(robfcp.RobfcpError, match="attack"):
        simulate(*data, attack="nope")


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_simulate_command_writes_tables_and_figures(tmp_path):
    words = ["lab", "simulate", "mnist", "--clients", 20, "--seeds", 1]
    result = invoke(*words, "-o", tmp_path / "r.csv", "--plot", tmp_path / "f.png", "--json")
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.output)["rows"]) == 3
    assert (tmp_path / "r.csv").read_text().startswith("attack,defence,")
    assert (tmp_path / "f.png").stat().st_size > 1000
    assert invoke(*words, "-o", tmp_path / "r.json", "-q").exit_code == 0
    assert len(json.loads((tmp_path / "r.json").read_text())) == 3
    for bad in (
        ["-o", tmp_path / "r.doc"],
        ["--liars", "x"],
        ["--score", "cqr"],
        ["--attack", "x"],
    ):
        assert isinstance(invoke(*words, *bad).exception, robfcp.RobfcpError)
    assert isinstance(invoke("lab", "simulate", "nothing").exception, robfcp.RobfcpError)


def test_simulate_command_reads_files(tmp_path, data):
    np.savez(tmp_path / "o.npz", probabilities=data[0][:800], labels=data[1][:800])
    result = invoke(
        "lab", "simulate", tmp_path / "o.npz", "--clients", 8, "--seeds", 1, "--beta", 5
    )
    assert result.exit_code == 0, result.output
