"""A Client API script: calibration tasks are answered, all others go to the training function."""

import msgspec
import numpy as np
import pytest

import robfcp

pytest.importorskip("nvflare.apis")
pytestmark = pytest.mark.nvflare

from engine_data import client_data  # noqa: E402
from nvflare.app_common.abstract.fl_model import FLModel  # noqa: E402

from robfcp.engines import SizeRequest, SketchRequest, request_record  # noqa: E402
from robfcp.engines import nvflare as script  # noqa: E402
from robfcp.engines.nvflare import RECORD, calibrate_client  # noqa: E402
from robfcp.report.wire import wire_grid, wire_score  # noqa: E402

P, Y = client_data(1)["site-0"]
GRID = robfcp.Grid.uniform(20)
SKETCH = SketchRequest("site-0", "r", None, wire_grid(GRID), wire_score(robfcp.APS()))


class Flare:
    """The Client API with a fixed list of tasks."""

    def __init__(self, tasks):
        self.tasks, self.sent = list(tasks), []

    def init(self):
        pass

    def get_site_name(self):
        return "site-0"

    def is_running(self):
        return bool(self.tasks)

    def receive(self):
        return self.tasks.pop(0)

    def send(self, model):
        self.sent.append(model)


def asked(kind, body, params=None):
    return FLModel(params=params or {}, meta={RECORD: {"kind": kind, **request_record("n", body)}})


def replies(monkeypatch, tmp_path, tasks, *arguments, **options):
    monkeypatch.chdir(tmp_path)
    found = Flare(tasks)
    monkeypatch.setattr(script, "flare", found)
    calibrate_client(*arguments, **options)
    return [model.metrics for model in found.sent]


def outputs(part, params):
    return (P, Y) if params is None else (np.tile(params["w"], (60, 1)), Y)


def test_training_and_calibration_take_turns(monkeypatch, tmp_path):
    tasks = [
        FLModel(params={"w": np.ones(5)}),
        asked("size", SizeRequest("site-0")),
        asked("sketch", SKETCH, {"w": np.full(5, 0.2)}),
    ]

    def train(model):
        return FLModel(metrics={"trained": float(model.params["w"].sum())})

    trained, size, sketch = replies(monkeypatch, tmp_path, tasks, outputs, train, rng=3)
    assert trained == {"trained": 5.0}
    assert size == {"nonce": "n", "body": b'{"n_samples":60}'}
    report = robfcp.Report.from_json(sketch["body"])
    assert len(report.model) == 64
    again = replies(
        monkeypatch, tmp_path, [asked("sketch", SKETCH, {"w": np.full(5, 0.2)})], outputs, rng=3
    )
    assert again == [sketch]  # the seed and the site's name make the same report


def test_an_attack_and_the_sites_own_file(monkeypatch, tmp_path):
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "robfcp.json").write_text('{"pooled": true}')
    (found,) = replies(
        monkeypatch, tmp_path, [asked("sketch", SKETCH)], outputs, attack=np.zeros_like
    )
    report = robfcp.Report.from_json(found["body"])
    assert report.counts[0] == 60
    assert report.strata is None


def test_what_is_not_of_the_protocol_gets_a_code(monkeypatch, tmp_path):
    tasks = [
        asked("nonsense", SKETCH),
        FLModel(params={}, meta={RECORD: {"kind": "size"}}),
        FLModel(params={}, meta={RECORD: {"kind": "size", "nonce": "n", "body": b"{"}}),
        FLModel(
            params={},
            meta={RECORD: {"kind": "size", "nonce": "n", "body": b'{"client":"a","protocol":9}'}},
        ),
        asked("monitor", SKETCH),
    ]
    found = replies(monkeypatch, tmp_path, tasks, outputs)
    assert [record["code"] for record in found] == [1] * 5
    assert [record["nonce"] for record in found] == ["n", "", "n", "n", "n"]


def test_another_task_needs_a_function(monkeypatch, tmp_path):
    with pytest.raises(robfcp.RobfcpError, match="pass a function for it"):
        replies(monkeypatch, tmp_path, [FLModel(params={"w": np.ones(5)})], outputs)


def test_the_request_is_what_flower_carries():
    """One protocol: the body of a request and of a reply is the same JSON on both engines."""
    record = request_record("n", SKETCH)
    assert msgspec.json.decode(record["body"])["round"] == "r"
    assert set(record) == {"nonce", "body"}
