"""Rounds on Flower: the promises of every engine, the ready apps and the examples, run whole."""

import importlib
import sys
from pathlib import Path

import pytest

import robfcp

pytest.importorskip("flwr")
tomllib = pytest.importorskip("tomllib")
pytestmark = pytest.mark.flower

from engine_data import DATA, told  # noqa: E402
from engine_faults import once  # noqa: E402
from engine_promises import *  # noqa: E402, F403
from engine_promises import check_case, status  # noqa: E402
from flower_faults import FaultyNetwork, FlowerDriver  # noqa: E402
from flwr.app import RecordDict  # noqa: E402

from robfcp.engines import calibration_round, register_sizes  # noqa: E402
from robfcp.engines.flower import (  # noqa: E402
    DEFAULTS,
    Flower,
    InProcessNetwork,
    client_app,
    named_strategy,
    run_in_process,
    server_app,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = {"deadline": 20.0, "poll": 0.02}


@pytest.fixture
def engine():
    return FlowerDriver()


@pytest.mark.parametrize(
    ("fault", "expected", "words", "attempts"),
    [
        (lambda turn: turn.fail(2), "faulty", "Flower's code 2", 2),
        (lambda turn: turn.fail(5), "missing", "Flower's code 5", 2),
        (once(lambda turn: turn.fail(5)), "ok", "", 2),
        (lambda turn: turn.content(RecordDict({})), "rejected", "holds 0 records", 2),
    ],
)
def test_what_flower_says_of_a_node_is_believed(fault, expected, words, attempts, engine, tmp_path):
    check_case(engine, tmp_path, fault, expected, words, attempts)


def run_example(folder, output, nodes=8, node_configs=None, **config):
    """Run an example's apps in process with its own run config."""
    table = tomllib.loads((EXAMPLES / folder / "pyproject.toml").read_text())
    defaults = table["tool"]["flwr"]["app"]["config"]
    assert set(config) <= set(defaults)
    sys.path.insert(0, str(EXAMPLES / folder))
    try:
        client = importlib.import_module(f"{folder}.client_app").app
        server = importlib.import_module(f"{folder}.server_app").app
    finally:
        sys.path.remove(str(EXAMPLES / folder))
    configs = [
        {"partition-id": k, "num-partitions": nodes, **(node_configs or {}).get(k, {})}
        for k in range(nodes)
    ]
    run_config = {**defaults, **QUICK, "output": str(output), **config}
    run_in_process(server, client, configs, run_config, [f"site-{k}" for k in range(nodes)])
    calibration = robfcp.Calibration.load(output)
    claims = [entry["claims"] for entry in calibration.provenance["clients"].values()]
    seen = sum(claim["n_samples"] for claim in claims)
    covered = sum(claim["covered"][0] for claim in claims) / seen
    return calibration, covered, sum(claim["total_size"][0] for claim in claims) / seen


@pytest.mark.parametrize("strategy", ["fedavg", "fedmedian", "multikrum"])
def test_the_example_trains_and_calibrates_in_one_run(strategy, tmp_path):
    calibration, covered, size = run_example(
        "flower_app", tmp_path / "c.json", strategy=strategy, liars=2, **{"min-nodes": 8}
    )
    assert calibration.federation.n_clients == 8
    assert calibration.federation.registered
    assert calibration.provenance["run_id"] == "1"
    assert 0.8 < covered < 0.99
    assert size < 2  # a trained model: a digit or two, not ten
    core = robfcp.calibrate(list(calibration.federation), defence=robfcp.Consensus(at_most=2))
    assert core.threshold == calibration.threshold


@pytest.mark.parametrize("attack", ["coverage", "efficiency"])
def test_lying_nodes_of_the_example_are_flagged(attack, tmp_path):
    common = {"attackers": 2, "attack": attack, "liars": 2, "num-server-rounds": 3}
    robust, covered, _ = run_example("flower_app", tmp_path / "c.json", **common)
    assert robust.flagged == ("site-0", "site-1")
    naive, _, _ = run_example("flower_app", tmp_path / "n.json", defence="none", **common)
    assert (naive.threshold < robust.threshold) == (attack == "coverage")
    assert 0.85 < covered < 0.98
    told = {5: {"attack": True}}  # by a node's own config
    found, _, _ = run_example("flower_app", tmp_path / "t.json", node_configs=told, liars=1)
    assert found.flagged == ("site-5",)


def test_a_robust_strategy_survives_poisoned_training(tmp_path):
    common = {"attackers": 2, "liars": 2, "poison-training": True, "min-nodes": 8}
    sizes = {
        strategy: run_example("flower_app", tmp_path / "c.json", strategy=strategy, **common)[2]
        for strategy in ("fedavg", "multikrum")
    }
    assert sizes["multikrum"] < 2 < sizes["fedavg"]


def test_the_pytorch_example_trains_and_calibrates(tmp_path):
    pytest.importorskip("torch")
    found, covered, _ = run_example("flower_torch_app", tmp_path / "c.json", nodes=6, liars=1)
    assert found.federation.n_clients == 6
    assert 0.8 < covered < 0.99
    assert len(found.federation.model) == 64


def test_the_demo_runs_its_round_through_flower(tmp_path):
    from in_process import run

    thresholds = []
    for engine in ("none", "flower"):
        done = run("demo", "--quiet", "-o", tmp_path, "--engine", engine)
        assert done.returncode == 0, done.stderr
        thresholds.append(robfcp.Calibration.load(tmp_path / "calibration.json").threshold)
    assert thresholds[0] == thresholds[1]
    assert "'steam' is unknown" in run("demo", "--engine", "steam").stderr


def test_texts_of_training_errors_stay_at_the_client():
    app = client_app(lambda *_: None, lambda *_: told(ValueError("patient 4711")))
    network = InProcessNetwork(app, [{}])
    (reply,) = network.send_and_receive([network.create_message(RecordDict(), "train", 1, "")])
    assert reply.error.reason == "training failed at the client"


def test_a_run_config_names_strategy_sizes_and_how_many_to_wait_for(tmp_path):
    with pytest.raises(robfcp.RobfcpError, match="'fedfoo' is unknown"):
        named_strategy({**DEFAULTS, "strategy": "fedfoo"})
    for name in ("krum", "fedtrimmedavg"):
        assert type(named_strategy({**DEFAULTS, "strategy": name})).__name__.lower() == name
    app = client_app(lambda *_: DATA["site-0"])
    config = {"liars": 0, "min-nodes": 4, "deadline": 0.6, "output": str(tmp_path / "c.json")}
    run_in_process(server_app(), app, [{}] * 3, config)
    names = list(status(robfcp.Calibration.load(tmp_path / "c.json")))
    assert names == ["node-1", "node-2", "node-3"]


def test_the_network_has_the_methods_of_flowers_grid():
    from flwr.serverapp import Grid
    from flwr.supercore.run import Run

    network = InProcessNetwork(client_app(lambda *_: DATA["site-0"]), [{}, {}])
    for name in Grid.__abstractmethods__:
        assert hasattr(network, name)
    network.set_run(Run.create_empty(7))
    assert network.run.run_id == 7
    message = network.create_message(RecordDict(), "query.nothing", 1, "g")
    (reply,) = network.send_and_receive([message], timeout=1)
    assert reply.error.code == 2
    message = network.create_message(RecordDict(), "query.robfcp", 1, "g")
    (reply,) = network.send_and_receive([message])
    assert dict(reply.content["robfcp"]) == {"nonce": "", "code": 1}
    assert register_sizes(Flower(network, **QUICK)) == {"node-1": 60, "node-2": 60}


def test_names_that_cannot_serve_are_replaced_by_node_numbers():
    network = FaultyNetwork(DATA)
    network._names[0] = network._names[1]
    network._names[2], network._names[3] = "", "x\n"
    names = [participant.client for participant in Flower(network).present()]
    assert names == ["node-1", "node-2", "node-3", "node-4"] + [f"site-{k}" for k in range(4, 8)]


class Restarting(FaultyNetwork):
    """A SuperLink that is down at first."""

    nodes_fail, pulls_fail = 1, 20

    def get_nodes(self):
        self.nodes_fail -= 1
        return super().get_nodes() if self.nodes_fail < 0 else told(ConnectionRefusedError("down"))

    def pull_messages(self, message_ids):
        self.pulls_fail -= 1
        if self.pulls_fail >= 0:
            raise ConnectionRefusedError("restarting")
        return super().pull_messages(message_ids)


def test_a_restarted_superlink_only_delays_the_round():
    network = Restarting(DATA)
    engine = Flower(network, **QUICK)
    calibration = calibration_round(engine, defence=robfcp.Consensus(at_most=1), check=False)
    assert set(status(calibration).values()) == {"ok"}
    network.get_nodes = lambda: told(ValueError("no"))
    with pytest.raises(robfcp.RobfcpError, match="cannot list its nodes"):
        calibration_round(Flower(network, deadline=1.0), defence=robfcp.Consensus(at_most=1))
