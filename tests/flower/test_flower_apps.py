"""The ready apps and the examples run whole in this process, and end where the core ends."""

import importlib
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import robfcp

pytest.importorskip("flwr")
tomllib = pytest.importorskip("tomllib")
pytestmark = pytest.mark.flower

from engine_data import client_data, core_reports  # noqa: E402

from robfcp.engines.flower import (  # noqa: E402
    DEFAULTS,
    calibrate_in_process,
    calibration_round,
    client_app,
    named_strategy,
    register_sizes,
    replay_in_process,
    server_app,
)
from robfcp.engines.flower_network import InProcessNetwork, run_in_process  # noqa: E402
from robfcp.errors import RobfcpError  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(folder, package, output, nodes=8, node_configs=None, **config):
    """Run an example's apps in process with its own run config."""
    table = tomllib.loads((EXAMPLES / folder / "pyproject.toml").read_text())
    defaults = table["tool"]["flwr"]["app"]["config"]
    assert set(config) <= set(defaults)
    sys.path.insert(0, str(EXAMPLES / folder))
    try:
        client = importlib.import_module(f"{package}.client_app").app
        server = importlib.import_module(f"{package}.server_app").app
    finally:
        sys.path.remove(str(EXAMPLES / folder))
    configs = [
        {"partition-id": k, "num-partitions": nodes, **(node_configs or {}).get(k, {})}
        for k in range(nodes)
    ]
    run_config = {**defaults, "deadline": 30.0, "poll": 0.01, "output": str(output), **config}
    run_in_process(server, client, configs, run_config, [f"site-{k}" for k in range(nodes)])
    return robfcp.Calibration.load(output)


def seen_coverage(calibration):
    claims = [entry["claims"] for entry in calibration.provenance["clients"].values()]
    return sum(c["covered"][0] for c in claims) / sum(c["n_samples"] for c in claims)


@pytest.mark.parametrize("strategy", ["fedavg", "fedmedian", "multikrum"])
def test_the_example_trains_and_calibrates_in_one_run(strategy, tmp_path):
    output = tmp_path / "c.json"
    calibration = run_example(
        "flower_app", "flower_app", output, strategy=strategy, malicious=2, **{"min-nodes": 8}
    )
    assert calibration.federation.n_clients == 8
    assert calibration.federation.registered
    assert calibration.provenance["run_id"] == "1"
    assert 0.8 < seen_coverage(calibration) < 0.99
    sizes = [
        entry["claims"]["total_size"][0] for entry in calibration.provenance["clients"].values()
    ]
    assert sum(sizes) / 360 < 2  # a trained model: a digit or two, not ten
    core = robfcp.calibrate(list(calibration.federation), malicious=2)
    assert core.threshold == calibration.threshold


@pytest.mark.parametrize("attack", ["coverage", "efficiency"])
def test_lying_nodes_of_the_example_are_flagged(attack, tmp_path):
    common = {"attackers": 2, "attack": attack, "malicious": 2, "num-server-rounds": 3}
    robust = run_example("flower_app", "flower_app", tmp_path / "c.json", **common)
    assert robust.flagged == ("site-0", "site-1")
    naive = run_example("flower_app", "flower_app", tmp_path / "n.json", defence="none", **common)
    assert (naive.threshold < robust.threshold) == (attack == "coverage")
    assert 0.85 < seen_coverage(robust) < 0.98


def test_a_node_can_be_told_to_lie_by_its_own_config(tmp_path):
    calibration = run_example(
        "flower_app",
        "flower_app",
        tmp_path / "c.json",
        node_configs={5: {"attack": True}},
        malicious=1,
    )
    assert calibration.flagged == ("site-5",)


def test_a_robust_strategy_survives_poisoned_training(tmp_path):
    common = {"attackers": 2, "malicious": 2, "poison-training": True, "min-nodes": 8}
    sizes = {}
    for strategy in ("fedavg", "multikrum"):
        calibration = run_example(
            "flower_app", "flower_app", tmp_path / "c.json", strategy=strategy, **common
        )
        claims = [entry["claims"] for entry in calibration.provenance["clients"].values()]
        sizes[strategy] = sum(c["total_size"][0] for c in claims) / 360
    assert sizes["multikrum"] < 2 < sizes["fedavg"]


def test_the_pytorch_example_trains_and_calibrates(tmp_path):
    pytest.importorskip("torch")
    calibration = run_example(
        "flower_torch_app", "flower_torch_app", tmp_path / "c.json", nodes=6, malicious=1
    )
    assert calibration.federation.n_clients == 6
    assert 0.8 < seen_coverage(calibration) < 0.99
    assert len(calibration.federation.model) == 64


def test_the_threshold_is_the_cores_to_the_bit():
    data = client_data(12, n_samples=37)
    for options in (
        {"malicious": 2},
        {"defence": "rob-fcp", "malicious": 3},
        {"defence": "none", "malicious": 0, "confidence_level": [0.8, 0.9, 0.95]},
        {"malicious": 2, "guarantee": "marginal"},
    ):
        flower = calibrate_in_process(data, round="r", **options)
        core = robfcp.calibrate(
            core_reports(data, round="r"), sizes=dict.fromkeys(data, 37), **options
        )
        assert flower.threshold == core.threshold
        assert flower.trusted == core.trusted
        for ours, theirs in zip(flower.levels, core.levels, strict=True):
            assert ours.certificate.statement == theirs.certificate.statement
            assert ours.curve == theirs.curve
        assert np.array_equal(flower.maliciousness, core.maliciousness)


def test_randomised_scores_and_regression_go_the_same_way():
    data = client_data(6)
    options = {"score": robfcp.APS(), "malicious": 1, "rng": 3}
    assert calibrate_in_process(data, **options).threshold == (
        calibrate_in_process(data, **options).threshold
    )
    rng = np.random.default_rng(0)
    data = {f"site-{k}": (rng.normal(size=80), rng.normal(size=80)) for k in range(6)}
    calibration = calibrate_in_process(
        data, score=robfcp.AbsoluteResidual(), malicious=1, check=True
    )
    claims = calibration.provenance["clients"]["site-2"]["claims"]
    ends = calibration.predict_interval(data["site-2"][0])
    assert claims["covered"][0] == 80 * robfcp.metrics.interval_coverage(ends, data["site-2"][1])
    assert claims["total_size"][0] == pytest.approx((ends[:, 1] - ends[:, 0]).sum())


def test_reports_sent_again_by_nodes_give_the_same_calibration():
    federation = robfcp.Federation.from_reports(core_reports(client_data(9)))
    flower = replay_in_process(federation, malicious=2)
    core = robfcp.calibrate(federation, malicious=2)
    assert flower.threshold == core.threshold
    assert np.array_equal(flower.maliciousness, core.maliciousness)


def test_the_demo_runs_its_round_through_flower(tmp_path):
    from typer.testing import CliRunner

    from robfcp.cli import app

    common = [
        "demo",
        "--data",
        "pathmnist",
        "--seeds",
        "1",
        "--clients",
        "20",
        "-o",
        str(tmp_path),
        "--quiet",
    ]
    thresholds = []
    for engine in ("none", "flower"):
        result = CliRunner().invoke(app, [*common, "--engine", engine])
        assert result.exit_code == 0, result.exception
        thresholds.append(robfcp.Calibration.load(tmp_path / "calibration.json").threshold)
    assert thresholds[0] == thresholds[1]
    result = CliRunner().invoke(app, [*common, "--engine", "steam"])
    assert "'steam' is unknown" in str(result.exception)


def test_a_private_node_answers_the_same_request_alike_and_nothing_else(tmp_path):
    pytest.importorskip("opendp")
    from robfcp.privacy.budget import Privacy
    from robfcp.privacy.ledger import Ledger

    data = client_data(6, n_samples=300)
    ledgers = [tmp_path / f"{k}.json" for k in range(6)]
    apps = [
        client_app(
            lambda split, arrays, context: data[f"site-{context.node_config['partition-id']}"],
            privacy=Privacy(epsilon=1.0),
            ledger=ledger,
        )
        for ledger in ledgers
    ]

    def app(message, context):
        return apps[context.node_config["partition-id"]](message, context)

    configs = [{"partition-id": k} for k in range(6)]
    network = InProcessNetwork(app, configs, names=list(data))
    options = {"grid": robfcp.Grid.uniform(16), "malicious": 1, "deadline": 10, "round": "r1"}
    first, again = (calibration_round(network, **options) for _ in range(2))
    assert np.array_equal(first.federation.counts, again.federation.counts)
    assert not np.array_equal(
        first.federation.counts[0],
        robfcp.Report.from_scores("a", robfcp.LAC()(*data["site-0"]), options["grid"]).counts,
    )
    assert [len(Ledger(ledger).releases()) for ledger in ledgers] == [1] * 6
    assert all(entry["claims"] is None for entry in first.provenance["clients"].values())
    assert register_sizes(network, deadline=10) == dict.fromkeys(data, 300)
    with pytest.raises(robfcp.QuorumError, match="budget does not allow another report"):
        calibration_round(network, **{**options, "round": "r2"})  # the budget is spent


def test_a_site_sets_its_own_privacy_and_no_server_can_ask_for_more(tmp_path):
    pytest.importorskip("opendp")
    from robfcp.privacy.budget import Privacy

    data = client_data(6, n_samples=300)
    app = client_app(
        lambda split, arrays, context: data[f"site-{context.node_config['partition-id']}"]
    )
    configs = [{"partition-id": k} for k in range(6)]
    own = {"epsilon": 0.5, "delta": 1e-6, "rounds": 2, "privacy-ledger": str(tmp_path / "l.json")}
    configs[2] |= own
    network = InProcessNetwork(app, configs, names=list(data))
    options = {"grid": robfcp.Grid.uniform(16), "malicious": 1, "deadline": 10}
    for number in range(3):
        calibration = calibration_round(network, round=f"r{number}", **options)
        if number < 2:
            expected = [None, None, Privacy(0.5, 1e-6, rounds=2), None, None, None]
            assert list(calibration.federation.privacy) == expected
    assert [fault.client for fault in calibration.faulty] == ["site-2"]  # two rounds, not three


def test_a_site_says_how_small_the_cells_are_that_it_shows():
    data = client_data(6, n_samples=40)
    app = client_app(
        lambda split, arrays, context: data[f"site-{context.node_config['partition-id']}"]
    )
    configs = [{"partition-id": k} for k in range(6)]
    configs[1] |= {"pooled": True}
    configs[2] |= {"least": 15}
    configs[3] |= {"bins-per-sample": 0.1}
    network = InProcessNetwork(app, configs, names=list(data))
    grid = robfcp.Grid.uniform(16)
    found = calibration_round(network, grid=grid, malicious=0, deadline=10)
    assert [fault.client for fault in found.faulty] == ["site-3"]
    assert any("1 site keeps its class back" in note for note in found.notes)
    strata = found.federation.strata
    merged = strata.sizes[:, list(strata.labels).index("(other)")]
    assert [found.federation.ids[k] for k in strata.rows[merged > 0]] == ["site-2"]


def test_local_models_need_no_arrays():
    data = client_data(5)
    calibration = calibrate_in_process(data, malicious=1)
    assert calibration.federation.model is None
    saved = robfcp.Calibration.from_json(calibration.to_json(), evidence=calibration.evidence)
    assert saved == calibration
    assert saved.provenance["engine"].startswith("flower 1.")


def test_texts_of_training_errors_stay_at_the_client():
    from flwr.app import RecordDict

    def train(message, context):
        raise ValueError("patient 4711")

    app = client_app(lambda split, arrays, context: None, train)
    network = InProcessNetwork(app, [{}])
    message = network.create_message(RecordDict(), "train", 1, "")
    (reply,) = network.send_and_receive([message])
    assert reply.error.reason == "training failed at the client"


def test_what_the_run_config_cannot_mean_is_refused(tmp_path):
    data = client_data(3)

    def run(initial=None, **config):
        app = client_app(lambda split, arrays, context: data["site-0"])
        run_in_process(server_app(initial), app, [{}] * 3, {"min-nodes": 1, **config})

    with pytest.raises(RobfcpError, match="not absolute"):
        run(output="c.json")
    with pytest.raises(RobfcpError, match="neither a number"):
        run(malicious="some")
    with pytest.raises(RobfcpError, match="'fedfoo' is unknown"):
        named_strategy({**DEFAULTS, "strategy": "fedfoo"})
    for name in ("krum", "fedtrimmedavg"):
        assert type(named_strategy({**DEFAULTS, "strategy": name})).__name__.lower() == name
    (tmp_path / "sizes.json").write_text('{"node-1": 60, "node-2": 60, "node-3": 61}')
    run(output=str(tmp_path / "c.json"), sizes=str(tmp_path / "sizes.json"), malicious=0)
    clients = robfcp.Calibration.load(tmp_path / "c.json").provenance["clients"]
    assert [clients[f"node-{k}"]["status"] for k in (1, 2, 3)] == ["ok", "ok", "faulty"]
    run(sizes="none", malicious=0, **{"min-nodes": 4, "deadline": 0.6})


def test_the_network_has_the_methods_of_flowers_grid():
    from flwr.serverapp import Grid
    from flwr.supercore.run import Run

    for name in Grid.__abstractmethods__:
        assert hasattr(InProcessNetwork, name)
    data = client_data(2)
    app = client_app(lambda split, arrays, context: data["site-0"])
    network = InProcessNetwork(app, [{}, {}])
    network.set_run(Run.create_empty(7))
    assert network.run.run_id == 7
    from flwr.app import RecordDict

    message = network.create_message(RecordDict(), "query.nothing", 1, "g")
    (reply,) = network.send_and_receive([message], timeout=1)
    assert reply.error.code == 2
    message = network.create_message(RecordDict(), "query.sketch", 1, "g")
    (reply,) = network.send_and_receive([message])
    assert dict(reply.content["robfcp"]) == {"nonce": "", "code": 1}
    assert calibration_round(network, malicious=0, deadline=5).federation.n_clients == 2


def private_network(tmp_path, data, **config):
    """One private site among plain ones; its config is its own."""
    names = list(data)
    app = client_app(
        lambda split, arrays, context: data[names[int(context.node_config["partition-id"])]]
    )
    configs = [{"partition-id": k} for k in range(len(names))]
    configs[0] |= {"epsilon": 0.1, "privacy-ledger": str(tmp_path / "l.json"), **config}
    return InProcessNetwork(app, configs, names=names)


def odd_one(kind):
    """Neighbouring data: one patient's row or label is broken."""
    data = client_data(6, n_samples=300)
    rows, labels = (array.copy() for array in data["site-0"])
    if kind == "NaN":
        rows[7] = np.nan
    elif kind == "strange label":
        labels[7] = 99
    data["site-0"] = rows, labels
    return data


@pytest.mark.parametrize("kind", ["ordinary", "NaN", "strange label"])
@pytest.mark.parametrize("grid", [(0.0, 1.0), (0.0, 0.9), (0.3, 0.4)])
def test_neighbouring_data_answer_alike_whatever_grid_the_server_chooses(tmp_path, kind, grid):
    """At epsilon 0.1 these were told apart every time, and for nothing."""
    pytest.importorskip("opendp")
    from robfcp.privacy.ledger import Ledger

    network = private_network(tmp_path, odd_one(kind))
    grid = robfcp.Grid.uniform(8, *grid)
    score = robfcp.LAC()
    found = []

    def keep(message, context):
        reply = app(message, context)
        if context.node_id == 1:
            found.append(dict(reply.content["robfcp"]))
        return reply

    app, network._app = network._app, keep
    with suppress(robfcp.RobfcpError):  # plain sites cannot fit a narrow grid
        calibration_round(network, grid=grid, score=score, malicious=0, deadline=10, check=False)
    assert "body" in found[0]
    assert len(Ledger(tmp_path / "l.json").releases()) == 1


def test_the_budget_is_spent_before_the_data_are_touched(tmp_path):
    pytest.importorskip("opendp")
    from robfcp.privacy.ledger import Ledger

    def outputs(split, arrays, context):
        if context.node_id == 1:
            seen.append(len(Ledger(tmp_path / "l.json").releases()))
            raise ValueError("patient 4711")
        return data["site-1"]

    seen, data = [], client_data(2)
    network = private_network(tmp_path, data)
    network._app = client_app(outputs)
    calibration = calibration_round(network, malicious=0, deadline=10, check=False)
    assert calibration.provenance["clients"]["site-0"]["reason"] == "scoring failed at the client"
    assert seen == [1]


@pytest.mark.parametrize(
    ("pins", "asked", "code"),
    [
        ({"privacy-grid": "uniform:16"}, {"grid": "uniform:16"}, "ok"),
        ({"privacy-grid": "uniform:16"}, {"grid": "uniform:17"}, "takes another grid or score"),
        ({"privacy-score": "lac"}, {"score": robfcp.APS()}, "takes another grid or score"),
        ({"privacy-score": "aps"}, {"score": robfcp.APS()}, "ok"),
        ({"privacy-ledger": ""}, {}, "budget does not allow"),
    ],
)
def test_a_site_pins_what_it_answers(tmp_path, pins, asked, code):
    pytest.importorskip("opendp")
    from robfcp.privacy import grid_from_text

    network = private_network(tmp_path, client_data(4), **pins)
    if pins.get("privacy-ledger") == "":
        for context in network._contexts.values():
            context.node_config.pop("privacy-ledger", None)
    asked = {**asked, "grid": grid_from_text(asked.get("grid", "uniform:16"))}
    calibration = calibration_round(network, malicious=0, deadline=10, check=False, **asked)
    entry = calibration.provenance["clients"]["site-0"]
    assert code in (entry["status"], *[entry["reason"]]) or code in entry["reason"]
    assert (entry["status"] == "ok") == (tmp_path / "l.json").exists()


def test_privacy_without_a_ledger_is_refused_at_once(tmp_path):
    from robfcp.privacy import Privacy

    with pytest.raises(RobfcpError, match="privacy needs one"):
        client_app(lambda *_: None, privacy=Privacy(1.0))


def test_a_stated_number_of_samples_is_given_without_looking(tmp_path):
    network = private_network(tmp_path, client_data(2), **{"privacy-samples": 60})
    network._app = client_app(lambda *_: 1 / 0)
    assert register_sizes(network, deadline=5) == {"site-0": 60}
