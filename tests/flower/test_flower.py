"""Rounds on Flower: the promises of every engine, the ready apps and the examples, run whole."""

import importlib
from pathlib import Path

import pytest

import robfcp

pytest.importorskip("flwr")
tomllib = pytest.importorskip("tomllib")
pytestmark = pytest.mark.flower

from flower_faults import FaultyNetwork, FlowerDriver  # noqa: E402
from flwr.app import RecordDict  # noqa: E402
from in_process import run  # noqa: E402
from integration_faults import DATA, once, told  # noqa: E402
from integration_promises import *  # noqa: E402, F403
from integration_promises import check_case, status  # noqa: E402

from robfcp.integrations import flower, register_sample_sizes, run_calibration_round  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = {"deadline": 20.0, "poll": 0.02}


@pytest.fixture
def engine():
    return FlowerDriver()


@pytest.mark.parametrize(
    ("fault", "expected", "words", "attempts"),
    [
        (lambda turn: turn.fail(2), "faulty", "Flower's code 2", 2),
        (once(lambda turn: turn.fail(5)), "ok", "", 2),
        (lambda turn: turn.fail(5), "missing", "Flower's code 5", 2),
        (lambda turn: turn.content(RecordDict({})), "rejected", "0 records", 2),
    ],
)
def test_what_flower_says_of_a_node_is_believed(fault, expected, words, attempts, engine, tmp_path):
    check_case(engine, tmp_path, fault, expected, words, attempts)


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Run an example's apps in process with its own config: calibration, coverage, set size."""

    def ran(folder="flower_app", nodes=8, node_configs=None, **config):
        monkeypatch.syspath_prepend(EXAMPLES / folder)
        table = tomllib.loads((EXAMPLES / folder / "pyproject.toml").read_text())
        defaults = table["tool"]["flwr"]["app"]["config"]
        assert set(config) <= set(defaults)
        client, server = (
            importlib.import_module(f"{folder}.{side}_app").app for side in ("client", "server")
        )
        configs = [
            {"partition-id": k, "num-partitions": nodes, **(node_configs or {}).get(k, {})}
            for k in range(nodes)
        ]
        run_config = {**defaults, **QUICK, "output": str(tmp_path / "c.json"), **config}
        names = [f"site-{k}" for k in range(nodes)]
        flower.run_in_process(server, client, configs, run_config, names)
        calibration = robfcp.Calibration.load(tmp_path / "c.json", record=True)
        claims = [entry["claims"] for entry in calibration.provenance["clients"].values()]
        seen = sum(claim["n_samples"] for claim in claims)
        shares = (sum(claim[part][0] for claim in claims) for part in ("covered", "total_size"))
        return calibration, *(share / seen for share in shares)

    return ran


@pytest.mark.parametrize("strategy", ["fedmedian", "multikrum"])
def test_the_example_trains_and_calibrates_in_one_run_though_training_is_poisoned(
    strategy, example
):
    poisoned = {"attackers": 2, "liars": 2, "poison-training": True, "min-nodes": 8}
    calibration, covered, size = example(strategy=strategy, **poisoned)
    assert calibration.federation.n_clients == 8
    assert calibration.federation.sizes_registered
    assert calibration.provenance["run_id"] == "1"
    assert 0.8 < covered < 0.99
    assert size < 2  # a trained model: a digit or two, not ten
    core = robfcp.calibrate(list(calibration.federation), defense=robfcp.Consensus(at_most=2))
    assert core.threshold == calibration.threshold
    if strategy == "multikrum":
        assert example(strategy="fedavg", **poisoned)[2] > 2


@pytest.mark.parametrize("attack", ["coverage", "efficiency"])
def test_lying_nodes_of_the_example_are_flagged(attack, example):
    common = {"attackers": 2, "attack": attack, "liars": 2, "num-server-rounds": 3}
    robust, covered, _ = example(**common)
    assert robust.flagged_clients == ("site-0", "site-1")
    naive, _, _ = example(defence="none", **common)
    assert (naive.threshold < robust.threshold) == (attack == "coverage")
    assert 0.85 < covered < 0.98
    found, _, _ = example(node_configs={5: {"attack": True}}, liars=1)  # by a node's own config
    assert found.flagged_clients == ("site-5",)


def test_the_pytorch_example_trains_and_calibrates(example):
    pytest.importorskip("torch")
    found, covered, _ = example("flower_torch_app", nodes=6, liars=1)
    assert (found.federation.n_clients, len(found.federation.model)) == (6, 64)
    assert 0.8 < covered < 0.99


def test_the_demo_runs_its_round_through_flower(tmp_path):
    thresholds = []
    for engine in ("none", "flower"):
        done = run("demo", "--quiet", "-o", tmp_path, "--engine", engine)
        assert done.returncode == 0, done.stderr
        thresholds.append(robfcp.Calibration.load(tmp_path / "calibration.json").threshold)
    assert thresholds[0] == thresholds[1]
    assert "'steam' is unknown" in run("demo", "--engine", "steam").stderr


def test_a_run_config_names_strategy_and_how_many_to_wait_for(tmp_path):
    with pytest.raises(robfcp.RobfcpError, match="'fedfoo' is unknown"):
        flower.get_strategy({**flower.DEFAULTS, "strategy": "fedfoo"})
    for name in ("krum", "fedtrimmedavg"):
        found = flower.get_strategy({**flower.DEFAULTS, "strategy": name})
        assert type(found).__name__.lower() == name
    app = flower.make_client_app(lambda *_: DATA["site-0"])
    config = {"liars": 0, "min-nodes": 4, "deadline": 0.6, "output": str(tmp_path / "c.json")}
    flower.run_in_process(flower.make_server_app(), app, [{}, {}, {"partition-id": 7}], config)
    names = list(status(robfcp.Calibration.load(tmp_path / "c.json", record=True)))
    assert names == ["node-1", "node-2", "partition-7"]


def test_the_network_has_the_methods_of_flowers_grid_and_tells_no_text_of_an_error():
    from flwr.serverapp import Grid
    from flwr.supercore.run import Run

    app = flower.make_client_app(
        lambda *_: DATA["site-0"], lambda *_: told(ValueError("patient 4711"))
    )
    network = flower.InProcessGrid(app, [{}, {}])
    assert all(hasattr(network, name) for name in Grid.__abstractmethods__)
    network.set_run(Run.create_empty(7))
    assert network.run.run_id == 7
    kinds = ("train", "query.nothing", "query.robfcp")
    messages = [network.create_message(RecordDict(), kind, 1, "g") for kind in kinds]
    trained, nothing, odd = network.send_and_receive(messages, timeout=1)
    assert trained.error.reason == "training failed at the client"
    assert nothing.error.code == 2
    assert dict(odd.content["robfcp"]) == {"nonce": "", "code": 1}
    assert register_sample_sizes(flower.FlowerTransport(network, **QUICK)) == {
        "node-1": 60,
        "node-2": 60,
    }


def test_a_restarted_superlink_only_delays_the_round():
    def restarting(times, call):
        failures = iter([ConnectionRefusedError("down")] * times)
        return lambda *given: told(next(failures, None)) or call(*given)

    network = FaultyNetwork(DATA)
    network.get_nodes = restarting(1, network.get_nodes)
    network.pull_messages = restarting(20, network.pull_messages)
    options = {"defense": robfcp.Consensus(at_most=1), "evaluate": False}
    calibration = run_calibration_round(flower.FlowerTransport(network, **QUICK), **options)
    assert set(status(calibration).values()) == {"ok"}
    network.get_nodes = lambda: told(ValueError("no"))
    with pytest.raises(robfcp.RobfcpError, match="cannot list its nodes"):
        run_calibration_round(flower.FlowerTransport(network, deadline=1.0), **options)
