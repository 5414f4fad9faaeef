"""Rounds on NVFlare: the promises of every engine, its workflows, and the Client API script."""

import json
import threading
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

import robfcp

pytest.importorskip("nvflare.apis")
pytestmark = pytest.mark.nvflare

import nvflare_faults  # noqa: E402
from integration_faults import DATA  # noqa: E402
from integration_promises import *  # noqa: E402, F403
from integration_promises import check_case, reason  # noqa: E402
from nvflare.apis.client import Client  # noqa: E402
from nvflare.apis.fl_constant import ReturnCode  # noqa: E402
from nvflare.apis.shareable import Shareable  # noqa: E402
from nvflare.apis.signal import Signal  # noqa: E402
from nvflare.app_common.abstract.fl_model import FLModel  # noqa: E402
from nvflare.app_common.abstract.model import make_model_learnable  # noqa: E402
from nvflare.app_common.abstract.model_persistor import ModelPersistor  # noqa: E402
from nvflare.app_common.utils.fl_model_utils import FLModelUtils  # noqa: E402

from robfcp.integrations import nvflare as script  # noqa: E402
from robfcp.integrations._messages import RECORD, ReportRequest, SizeRequest  # noqa: E402
from robfcp.integrations.nvflare import CalibrationController, run_client  # noqa: E402
from robfcp.reports._wire import to_wire_binning, to_wire_score  # noqa: E402


@pytest.fixture
def engine():
    return nvflare_faults.NVFlareDriver()


def stolen(turn):
    """Another client answers this one's task first, with the right nonce even."""
    turn.submit(FLModel(metrics={**turn.record, "body": b"{}"}), Client("site-5", "token"))
    turn.send()


@pytest.mark.parametrize(
    ("fault", "expected", "words", "attempts"),
    [
        (lambda turn: turn.fail(), "faulty", "NVFlare says EXECUTION_EXCEPTION", 2),
        (lambda turn: turn.fail("patient 4711"), "faulty", "an unknown code", 2),
        (lambda turn: turn.submit(Shareable()), "rejected", "cannot be read", 2),
        (stolen, "ok", "", 1),
    ],
)
def test_what_nvflare_says_of_a_site_is_believed(
    fault, expected, words, attempts, engine, tmp_path
):
    check_case(engine, tmp_path, fault, expected, words, attempts)


def test_a_site_whose_own_file_is_not_clear_answers_nothing(engine, tmp_path):
    """A misspelt epsilon must not mean a report without noise."""
    wrong = {"outputs": "nvflare_faults:nobody"}, {"outputs": None}, {"epsilonn": 1}
    own = {f"site-{k}": config for k, config in enumerate(wrong, 2)}
    calibration, _, _ = engine.play(tmp_path, configs=own, quorum=4)
    said = "scoring failed at the client", *["robfcp refused the client's data"] * 2
    assert tuple(reason(calibration, site) for site in own) == said


class Trained(ModelPersistor):
    """A persistor with what training began with and what it left."""

    weights = {"first": [0.2] * 5, "last": [0.6, 0.1, 0.1, 0.1, 0.1]}  # noqa: RUF012
    save_model = None  # calibration saves none

    def load_model(self, fl_ctx):
        return self.get_model("first", fl_ctx)

    def get_model_inventory(self, fl_ctx):
        return {name: SimpleNamespace(props={"source": name == "first"}) for name in self.files}

    def get_model(self, model_file, fl_ctx):
        return make_model_learnable({"numpy_key": np.array(self.weights[model_file])}, {})


@pytest.mark.parametrize(("files", "score"), [(["first", "last"], 0.4), (["first"], 0.8)])
def test_the_trained_model_goes_to_the_sites_and_its_digest_into_the_reports(
    files, score, engine, tmp_path
):
    persistor, own = Trained(), {"outputs": "nvflare_faults:with_params"}
    persistor.files = files
    found, _, _ = engine.play(
        tmp_path, "p", configs=dict.fromkeys(DATA, own), components={"p": persistor}
    )
    assert (len(found.benign_clients), len(found.federation.model)) == (8, 64)
    assert found.threshold == pytest.approx(score, abs=0.01)


def test_the_server_says_where_results_go_and_no_job_does(tmp_path):
    for word in ("output", "malicius"):
        with pytest.raises(robfcp.RobfcpError, match=f"{word}: is unknown; use score, "):
            CalibrationController({word: "/etc/passwd"})
    controller = CalibrationController({"liars": 1, "poll": 0.02})
    local = tmp_path / "server" / "local"
    local.mkdir(parents=True)
    (local / "robfcp.json").write_text(json.dumps({"output-folder": str(tmp_path / "kept")}))
    _, server = nvflare_faults.run(controller, tmp_path)
    path = tmp_path / "kept" / "job" / "calibration.json"
    assert robfcp.Calibration.load(path, record=True).benign_clients
    assert not list(server.run_dir.rglob("calibration*"))


def asked(request, params=None):
    """A request as a task carries it."""
    record = {"nonce": "n", "body": msgspec.json.encode(request)}
    return FLModel(params=params or {}, meta={RECORD: record})


def test_a_site_that_hangs_is_freed_when_its_task_is_over(tmp_path):
    site = nvflare_faults.Site("site-1", tmp_path, {"outputs": "nvflare_faults:hangs"})
    task = FLModelUtils.to_shareable(asked(SizeRequest(client="site-1")))
    over = Signal()
    threading.Timer(0.3, over.trigger, (True,)).start()
    reply = site.executor.execute("calibrate", task, site.fl_ctx, over)
    assert reply.get_return_code() == ReturnCode.TASK_ABORTED


P, Y = DATA["site-0"]
WHAT = {"grid": to_wire_binning(robfcp.Binning.uniform(20)), "score": to_wire_score(robfcp.APS())}
REPORT = ReportRequest(client="site-0", round="r", model=None, **WHAT)


def replies(monkeypatch, folder, tasks, *arguments, **options):
    """What a script sends over the Client API, given these tasks."""
    left, sent = list(tasks), []
    monkeypatch.chdir(folder)
    monkeypatch.setattr(script, "flare", SimpleNamespace(
        init=lambda: None, get_site_name=lambda: "site-0", is_running=lambda: bool(left),
        receive=lambda: left.pop(0), send=lambda model: sent.append(model.metrics),
    ))  # fmt: skip
    run_client(*arguments, **options)
    return sent


def outputs(part, params):
    return (P, Y) if params is None else (np.tile(params["w"], (60, 1)), Y)


def test_training_and_calibration_take_turns(monkeypatch, tmp_path):
    model, training = {"w": np.full(5, 0.2)}, FLModel(params={"w": np.ones(5)})
    odd = FLModel(params={}, meta={RECORD: {"nonce": 7}})
    tasks = [training, asked(SizeRequest(client="site-0")), asked(REPORT, model), odd]

    def train(model):
        return FLModel(metrics={"trained": float(model.params["w"].sum())})

    trained, size, report, odd = replies(monkeypatch, tmp_path, tasks, outputs, train, rng=3)
    assert trained == {"trained": 5.0}
    assert size == {"nonce": "n", "body": b"60"}
    assert len(robfcp.Report.from_json(report["body"]).model) == 64
    assert odd == {"nonce": "", "code": 1}
    again = replies(monkeypatch, tmp_path, [asked(REPORT, model)], outputs, rng=3)
    assert again == [report]  # the seed and the site's name make the same report
    with pytest.raises(robfcp.RobfcpError, match="pass a function for it"):
        replies(monkeypatch, tmp_path, [training], outputs)


def test_an_attack_and_the_sites_own_file(monkeypatch, tmp_path):
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "robfcp.json").write_text('{"pooled": true}')
    (found,) = replies(monkeypatch, tmp_path, [asked(REPORT)], outputs, attack=np.zeros_like)
    report = robfcp.Report.from_json(found["body"])
    assert report.counts[0] == 60
    assert report.strata is None
