"""Rounds on Flower: the contract of every integration, the complete apps and the examples."""

import importlib
from pathlib import Path

import pytest

import robfcp

pytest.importorskip("flwr")
tomllib = pytest.importorskip("tomllib")
pytestmark = pytest.mark.flower

from flower_faults import FaultyGrid, FlowerDriver  # noqa: E402
from flwr.app import RecordDict  # noqa: E402
from in_process import run  # noqa: E402
from integration_contract import *  # noqa: E402, F403
from integration_contract import check_case, statuses  # noqa: E402
from integration_faults import DATA, once, return_or_raise  # noqa: E402

from robfcp.integrations import flower, register_sample_sizes, run_calibration_round  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMING = {"deadline": 20.0, "poll": 0.02}


@pytest.fixture
def driver():
    return FlowerDriver()


@pytest.mark.parametrize(
    ("fault", "status", "reason_text", "attempts"),
    [
        (lambda turn: turn.fail(2), "invalid", "Flower's code 2", 2),
        (once(lambda turn: turn.fail(5)), "ok", "", 2),
        (lambda turn: turn.fail(5), "missing", "Flower's code 5", 2),
        (
            lambda turn: turn.send_content(RecordDict({})),
            "refused_by_client",
            "0 records",
            2,
        ),
    ],
)
def test_flowers_error_codes_decide_a_status(
    fault, status, reason_text, attempts, driver, tmp_path
):
    check_case(driver, tmp_path, fault, status, reason_text, attempts)


@pytest.fixture
def run_example(tmp_path, monkeypatch):
    """Run an example's apps in process: the calibration, the coverage and the set size."""

    def run_apps(folder="flower_app", n_nodes=8, node_configs=None, **config):
        monkeypatch.syspath_prepend(EXAMPLES / folder)
        table = tomllib.loads((EXAMPLES / folder / "pyproject.toml").read_text())
        defaults = table["tool"]["flwr"]["app"]["config"]
        config = {name.replace("_", "-"): value for name, value in config.items()}
        assert set(config) <= set(defaults)
        client, server = (
            importlib.import_module(f"{folder}.{side}_app").app for side in ("client", "server")
        )
        configs = [
            {"partition-id": k, "num-partitions": n_nodes, **(node_configs or {}).get(k, {})}
            for k in range(n_nodes)
        ]
        run_config = {**defaults, **TIMING, "output": str(tmp_path / "c.json"), **config}
        names = [f"site-{k}" for k in range(n_nodes)]
        flower.run_in_process(server, client, configs, run_config, names)

        calibration = robfcp.Calibration.load(tmp_path / "c.json", record=True)
        claims = [entry["claims"] for entry in calibration.provenance["clients"].values()]
        n_samples = sum(claim["n_samples"] for claim in claims)
        n_covered = sum(claim["n_covered"][0] for claim in claims)
        total_set_size = sum(claim["total_set_size"][0] for claim in claims)
        return calibration, n_covered / n_samples, total_set_size / n_samples

    return run_apps


@pytest.mark.parametrize("strategy", ["fedmedian", "multikrum"])
def test_the_example_trains_and_calibrates_in_one_run_with_poisoned_training(strategy, run_example):
    poisoned = {"attackers": 2, "max_malicious": 2, "poison_training": True, "min_clients": 8}
    calibration, coverage, set_size = run_example(strategy=strategy, **poisoned)
    assert calibration.federation.n_clients == 8
    assert calibration.federation.sizes_registered
    assert calibration.provenance["run_id"] == "1"
    assert 0.8 < coverage < 0.99
    assert set_size < 2  # a trained model: one or two labels, not ten
    core = robfcp.calibrate(list(calibration.federation), defense=robfcp.Consensus(max_malicious=2))
    assert core.threshold == calibration.threshold
    if strategy == "multikrum":
        _, _, undefended_set_size = run_example(strategy="fedavg", **poisoned)
        assert undefended_set_size > 2


@pytest.mark.parametrize("attack", ["coverage", "efficiency"])
def test_malicious_nodes_of_the_example_are_flagged(attack, run_example):
    common = {"attackers": 2, "attack": attack, "max_malicious": 2, "num_server_rounds": 3}
    robust, coverage, _ = run_example(**common)
    assert robust.flagged_clients == ("site-0", "site-1")
    undefended, _, _ = run_example(defense="none", **common)
    assert (undefended.threshold < robust.threshold) == (attack == "coverage")
    assert 0.85 < coverage < 0.98
    # A node's config makes it malicious too.
    calibration, _, _ = run_example(node_configs={5: {"attack": True}}, max_malicious=1)
    assert calibration.flagged_clients == ("site-5",)


def test_the_pytorch_example_trains_and_calibrates(run_example):
    pytest.importorskip("torch")
    calibration, coverage, _ = run_example("flower_torch_app", n_nodes=6, max_malicious=1)
    assert calibration.federation.n_clients == 6
    assert len(calibration.federation.model) == 64
    assert 0.8 < coverage < 0.99


def test_the_demo_runs_its_round_through_flower(tmp_path):
    thresholds = []
    for backend in ("none", "flower"):
        result = run("demo", "--quiet", "-o", tmp_path, "--backend", backend)
        assert result.returncode == 0, result.stderr
        thresholds.append(robfcp.Calibration.load(tmp_path / "calibration.json").threshold)
    assert thresholds[0] == thresholds[1]
    assert "'steam' is unknown" in run("demo", "--backend", "steam").stderr


def test_a_run_config_names_the_strategy_and_how_many_clients_to_wait_for(tmp_path):
    with pytest.raises(robfcp.RobfcpError, match="'fedfoo' is unknown"):
        flower.get_strategy({**flower.DEFAULTS, "strategy": "fedfoo"})
    for name in ("krum", "fedtrimmedavg"):
        strategy = flower.get_strategy({**flower.DEFAULTS, "strategy": name})
        assert type(strategy).__name__.lower() == name

    app = flower.make_client_app(lambda *_: DATA["site-0"])
    config = {
        "max-malicious": 0,
        "min-clients": 4,
        "deadline": 0.6,
        "output": str(tmp_path / "c.json"),
    }
    flower.run_in_process(flower.make_server_app(), app, [{}, {}, {"partition-id": 7}], config)
    names = list(statuses(robfcp.Calibration.load(tmp_path / "c.json", record=True)))
    assert names == ["node-1", "node-2", "partition-7"]


def test_the_grid_has_the_methods_of_flowers_and_reveals_no_text_of_an_error():
    from flwr.serverapp import Grid
    from flwr.supercore.run import Run

    app = flower.make_client_app(
        lambda *_: DATA["site-0"], lambda *_: return_or_raise(ValueError("patient 4711"))
    )
    grid = flower.InProcessGrid(app, [{}, {}])
    assert all(hasattr(grid, name) for name in Grid.__abstractmethods__)
    grid.set_run(Run.create_empty(7))
    assert grid.run.run_id == 7
    message_types = ("train", "query.nothing", "query.robfcp")
    messages = [
        grid.create_message(RecordDict(), message_type, 1, "g") for message_type in message_types
    ]
    train_reply, unknown_reply, empty_reply = grid.send_and_receive(messages, timeout=1)
    assert train_reply.error.reason == "training failed at the client"
    assert unknown_reply.error.code == 2
    assert dict(empty_reply.content["robfcp"]) == {"nonce": "", "code": 1}
    sizes = register_sample_sizes(flower.FlowerTransport(grid, **TIMING))
    assert sizes == {"node-1": 60, "node-2": 60}


def test_a_restarted_superlink_only_delays_the_round():
    def failing_at_first(n_failures, call):
        failures = iter([ConnectionRefusedError("down")] * n_failures)
        return lambda *arguments: return_or_raise(next(failures, None)) or call(*arguments)

    grid = FaultyGrid(DATA)
    grid.get_nodes = failing_at_first(1, grid.get_nodes)
    grid.pull_messages = failing_at_first(20, grid.pull_messages)
    options = {"defense": robfcp.Consensus(max_malicious=1), "evaluate": False}
    calibration = run_calibration_round(flower.FlowerTransport(grid, **TIMING), **options)
    assert set(statuses(calibration).values()) == {"ok"}
    grid.get_nodes = lambda: return_or_raise(ValueError("no"))
    with pytest.raises(robfcp.RobfcpError, match="cannot list its nodes"):
        run_calibration_round(flower.FlowerTransport(grid, deadline=1.0), **options)


def test_a_wrong_key_of_a_run_config_is_named_in_the_log(tmp_path, caplog):
    app = flower.make_client_app(lambda *_: DATA["site-0"])
    config = {"liars": 1, "output": str(tmp_path / "c.json"), **TIMING}
    flower.run_in_process(flower.make_server_app(), app, [{}, {}, {}], config)
    assert "liars: robfcp does not read this key; did you mean max-malicious?" in caplog.messages
