"""The monitor as a task on Flower: nodes keep state, liars cannot ring, silence is no evidence."""

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message
from flwr.clientapp import ClientApp

import robfcp
from robfcp.engines.flower import add_monitor, monitor_round
from robfcp.engines.flower_network import InProcessNetwork, open_request, reply_content

pytestmark = pytest.mark.flower

LAC = robfcp.LAC()


def calibration():
    federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=LAC)
    return robfcp.calibrate(federation, defence="none", malicious=1)


def network(folder, missing, n=400, **options):
    """Nodes that miss that often; the samples labelled so far grow with the calls."""
    calls = dict.fromkeys(range(len(missing)), 0)

    def fresh(arrays, context):
        k = int(context.node_config["partition-id"])
        calls[k] += 1
        if missing[k] is None:
            raise OSError("the disk is gone")
        y = (np.random.default_rng(k).random(calls[k] * n) < missing[k]).astype(int)
        return np.tile([0.9, 0.1], (len(y), 1)), y, np.arange(len(y))

    app = ClientApp()
    add_monitor(app, fresh, **options)
    configs = [
        {"partition-id": k, "monitor-folder": str(folder / str(k))} for k in range(len(missing))
    ]
    return InProcessNetwork(app, configs, names=[f"site-{k}" for k in range(len(missing))])


def ask(found, m=2, **options):
    return monitor_round(
        found,
        calibration(),
        m,
        **{"round": "r", "floor": 0.9, "deadline": 10, "poll": 0.01, **options},
    )


def test_drift_at_most_sites_rings_and_at_none_does_not(tmp_path):
    assert not ask(network(tmp_path / "a", [0.1] * 8)).alarm
    merged = ask(network(tmp_path / "b", [0.3] * 6 + [0.1] * 2))
    assert merged.alarm
    assert set(merged.alarmed) == {f"site-{k}" for k in range(6)}


def test_nodes_go_on_from_their_state_and_count_nothing_twice(tmp_path):
    found = network(tmp_path, [0.15] * 4)
    wealth = [ask(found, 0, step=step).log_mean for step in range(3)]
    assert len(set(wealth)) == 3
    again = network(tmp_path, [0.15] * 4)
    assert ask(again, 0, step=3).log_mean == wealth[2]  # all 400 were counted before


def test_failing_private_and_lying_nodes_are_no_evidence(tmp_path):
    found = network(tmp_path / "a", [0.3, 0.3, None, 0.3])
    merged = ask(found, 1)
    assert [fault.client for fault in merged.faulty] == ["site-2"]
    assert merged.n_sites == 4
    quiet = ask(network(tmp_path / "b", [0.3] * 3, privacy=robfcp.Privacy(epsilon=1.0)), 1)
    assert (len(quiet.faulty), quiet.log_mean) == (3, -np.inf)


def test_an_answer_about_something_else_is_refused(tmp_path):
    report = robfcp.Monitor(calibration(), client="site-0", floor=0.9).e_report("old", 0)
    app = ClientApp()

    @app.query("monitor")
    def answer(message, context):
        nonce, _, _ = open_request(message.content)
        return Message(reply_content(nonce, report.to_json()), reply_to=message)

    found = InProcessNetwork(app, [{"partition-id": k} for k in range(2)], names=["site-0", "b"])
    merged = ask(found, 0)
    assert {fault.client for fault in merged.faulty} == {"site-0", "b"}
    assert "round is old, not r" in merged.faulty[1].reason + merged.faulty[0].reason


def test_every_date_is_kept_and_an_alarm_stays(tmp_path):
    record = tmp_path / "alarms.json"
    found = network(tmp_path / "nodes", [0.3] * 6 + [None, 0.1])
    for step in (1, 2):
        merged = ask(found, step=step, history=record)
    history = robfcp.monitoring.AlarmHistory.load(record)
    assert [look.step for look in history.looks] == [1, 2]
    assert (history.n_sites, "coverage" in history.rang) == (8, merged.alarm)
    assert list(history.looks[-1].faulty) == ["site-6"]
    with pytest.raises(robfcp.RobfcpError, match="steps only rise"):
        ask(found, step=1, history=record)
    silent = network(tmp_path / "silent", [None] * 2)
    assert ask(silent, 0, step=3, history=record).log_mean == -np.inf
    assert robfcp.monitoring.AlarmHistory.load(record) == history
