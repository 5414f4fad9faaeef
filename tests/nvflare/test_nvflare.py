"""Rounds on NVFlare: the contract of every integration, workflows, and the Client API script."""

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
from integration_contract import *  # noqa: E402, F403
from integration_contract import check_case, reason  # noqa: E402
from integration_faults import DATA  # noqa: E402
from nvflare.apis.client import Client  # noqa: E402
from nvflare.apis.fl_constant import ReturnCode  # noqa: E402
from nvflare.apis.shareable import Shareable  # noqa: E402
from nvflare.apis.signal import Signal  # noqa: E402
from nvflare.app_common.abstract.fl_model import FLModel  # noqa: E402
from nvflare.app_common.abstract.model import make_model_learnable  # noqa: E402
from nvflare.app_common.abstract.model_persistor import ModelPersistor  # noqa: E402
from nvflare.app_common.utils.fl_model_utils import FLModelUtils  # noqa: E402

from robfcp.integrations import nvflare  # noqa: E402
from robfcp.integrations._messages import RECORD, ReportRequest, SizeRequest  # noqa: E402
from robfcp.integrations.nvflare import CalibrationController, run_client  # noqa: E402
from robfcp.reports._wire import to_wire_binning, to_wire_score  # noqa: E402


@pytest.fixture
def driver():
    return nvflare_faults.NVFlareDriver()


def answer_for_another(turn):
    """Another client answers this client's task first, even with the right nonce."""
    turn.submit(FLModel(metrics={**turn.record, "body": b"{}"}), Client("site-5", "token"))
    turn.send()


@pytest.mark.parametrize(
    ("fault", "status", "reason_text", "attempts"),
    [
        (lambda turn: turn.fail(), "invalid", "NVFlare reports EXECUTION_EXCEPTION", 2),
        (lambda turn: turn.fail("patient 4711"), "invalid", "an unknown code", 2),
        (lambda turn: turn.submit(Shareable()), "refused_by_client", "cannot be read", 2),
        (answer_for_another, "ok", "", 1),
    ],
)
def test_nvflares_return_codes_decide_a_status(
    fault, status, reason_text, attempts, driver, tmp_path
):
    check_case(driver, tmp_path, fault, status, reason_text, attempts)


def test_a_client_with_an_invalid_policy_file_answers_nothing(driver, tmp_path):
    """A misspelled epsilon must not mean a report without noise."""
    configs = {
        "site-2": {"predict-fn": "nvflare_faults:unknown"},
        "site-3": {"predict-fn": None},
        "site-4": {"dp-epsilonn": 1},
    }
    calibration, _, _ = driver.play(tmp_path, configs=configs, quorum=4)
    reasons = [reason(calibration, client) for client in configs]
    assert reasons == [
        "scoring failed at the client",
        "robfcp refused the client's data",
        "robfcp refused the client's data",
    ]


class TrainedModels(ModelPersistor):
    """A persistor with the initial and the trained model."""

    weights = {"first": [0.2] * 5, "last": [0.6, 0.1, 0.1, 0.1, 0.1]}  # noqa: RUF012
    save_model = None  # calibration saves none

    def load_model(self, fl_ctx):
        return self.get_model("first", fl_ctx)

    def get_model_inventory(self, fl_ctx):
        return {name: SimpleNamespace(props={"source": name == "first"}) for name in self.files}

    def get_model(self, model_file, fl_ctx):
        return make_model_learnable({"numpy_key": np.array(self.weights[model_file])}, {})


@pytest.mark.parametrize(("files", "score"), [(["first", "last"], 0.4), (["first"], 0.8)])
def test_the_trained_model_goes_to_the_clients_and_its_digest_into_the_reports(
    files, score, driver, tmp_path
):
    persistor = TrainedModels()
    persistor.files = files
    config = {"predict-fn": "nvflare_faults:predict_with_params"}
    configs = dict.fromkeys(DATA, config)
    calibration, _, _ = driver.play(tmp_path, "p", configs=configs, components={"p": persistor})
    assert len(calibration.benign_clients) == 8
    assert len(calibration.federation.model) == 64
    assert calibration.threshold == pytest.approx(score, abs=0.01)


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("output", "use score, "),
        ("malicius", r"did you mean max-malicious\?"),
        ("liars", r"did you mean max-malicious\?"),
    ],
)
def test_an_unknown_key_of_a_job_is_refused(key, remedy):
    with pytest.raises(robfcp.RobfcpError, match=f"{key}: is unknown; {remedy}"):
        CalibrationController({key: "/etc/passwd"})


def test_the_server_decides_where_results_go_and_no_job_does(tmp_path):
    controller = CalibrationController({"max_malicious": 1, "poll": 0.02})
    local = tmp_path / "server" / "local"
    local.mkdir(parents=True)
    (local / "robfcp.json").write_text(json.dumps({"output-dir": str(tmp_path / "results")}))
    _, server = nvflare_faults.run(controller, tmp_path)
    path = tmp_path / "results" / "job" / "calibration.json"
    assert robfcp.Calibration.load(path, record=True).benign_clients
    assert not list(server.run_dir.rglob("calibration*"))


def as_task(request, params=None):
    """A request as a task carries it."""
    record = {"nonce": "n", "body": msgspec.json.encode(request)}
    return FLModel(params=params or {}, meta={RECORD: record})


def test_a_client_that_hangs_is_freed_when_its_task_ends(tmp_path):
    config = {"predict-fn": "nvflare_faults:hang"}
    client = nvflare_faults.ClientThread("site-1", tmp_path, config)
    task = FLModelUtils.to_shareable(as_task(SizeRequest(client="site-1")))
    abort_signal = Signal()
    threading.Timer(0.3, abort_signal.trigger, (True,)).start()
    reply = client.executor.execute("calibrate", task, client.fl_ctx, abort_signal)
    assert reply.get_return_code() == ReturnCode.TASK_ABORTED


PROBABILITIES, LABELS = DATA["site-0"]
REPORT = ReportRequest(
    client="site-0",
    round="r",
    model=None,
    binning=to_wire_binning(robfcp.Binning.uniform(20)),
    score=to_wire_score(robfcp.APS()),
)


def run_script(monkeypatch, folder, tasks, *arguments, **options):
    """What a script sends over the Client API, given these tasks."""
    waiting_tasks = list(tasks)
    replies = []
    client_api = SimpleNamespace(
        init=lambda: None,
        get_site_name=lambda: "site-0",
        is_running=lambda: bool(waiting_tasks),
        receive=lambda: waiting_tasks.pop(0),
        send=lambda model: replies.append(model.metrics),
    )
    monkeypatch.chdir(folder)
    monkeypatch.setattr(nvflare, "flare", client_api)
    run_client(*arguments, **options)
    return replies


def predict_split(split, params):
    if params is None:
        return PROBABILITIES, LABELS
    return np.tile(params["w"], (60, 1)), LABELS


def test_training_and_calibration_alternate(monkeypatch, tmp_path):
    model = {"w": np.full(5, 0.2)}
    training = FLModel(params={"w": np.ones(5)})
    invalid = FLModel(params={}, meta={RECORD: {"nonce": 7}})
    tasks = [training, as_task(SizeRequest(client="site-0")), as_task(REPORT, model), invalid]

    def train(model):
        return FLModel(metrics={"trained": float(model.params["w"].sum())})

    replies = run_script(monkeypatch, tmp_path, tasks, predict_split, train, rng=3)
    trained, size, report, failure = replies
    assert trained == {"trained": 5.0}
    assert size == {"nonce": "n", "body": b"60"}
    assert len(robfcp.Report.from_json(report["body"]).model) == 64
    assert failure == {"nonce": "", "code": 1}
    repeated = run_script(monkeypatch, tmp_path, [as_task(REPORT, model)], predict_split, rng=3)
    assert repeated == [report]  # by the seed and the client's name
    with pytest.raises(robfcp.RobfcpError, match="pass a function for it"):
        run_script(monkeypatch, tmp_path, [training], predict_split)


def test_an_attack_and_the_policy_file(monkeypatch, tmp_path):
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "robfcp.json").write_text('{"stratify-by-class": false}')
    (reply,) = run_script(
        monkeypatch, tmp_path, [as_task(REPORT)], predict_split, attack=np.zeros_like
    )
    report = robfcp.Report.from_json(reply["body"])
    assert report.counts[0] == 60
    assert report.strata is None
