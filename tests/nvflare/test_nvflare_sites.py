"""What a site allows stands in its own file: privacy, signatures, letters; and the monitor."""

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
from nvflare.apis.fl_constant import ReturnCode  # noqa: E402
from nvflare.apis.signal import Signal  # noqa: E402
from nvflare.app_common.abstract.fl_model import FLModel  # noqa: E402
from nvflare.app_common.abstract.model import make_model_learnable  # noqa: E402
from nvflare.app_common.abstract.model_persistor import ModelPersistor  # noqa: E402
from nvflare.app_common.utils.fl_model_utils import FLModelUtils  # noqa: E402
from nvflare_faults import play, run, silent  # noqa: E402
from nvflare_sites import DATA  # noqa: E402

from robfcp.calibration import Letter  # noqa: E402
from robfcp.engines import SizeRequest, read_site, request_record  # noqa: E402
from robfcp.engines.nvflare import RECORD, CalibrationController, MonitorController  # noqa: E402
from robfcp.privacy import Ledger, Privacy  # noqa: E402
from robfcp.report import generate_key  # noqa: E402


def reason(calibration, site="site-2"):
    return calibration.provenance["clients"][site]["reason"]


def test_sizes_are_asked_for_and_binding(tmp_path):
    calibration, _, _ = play(tmp_path, sizes="ask", quorum=8)
    assert calibration.federation.registered
    (tmp_path / "sizes.json").write_text(json.dumps({**dict.fromkeys(DATA, 60), "site-2": 61}))
    calibration, _, _ = play(tmp_path, sizes=str(tmp_path / "sizes.json"))
    assert "61 samples were registered" in reason(calibration)


def test_a_missed_quorum_leaves_no_calibration(tmp_path):
    with pytest.raises(robfcp.QuorumError, match="only 7"):
        play(tmp_path, {"site-2": silent}, quorum=8, deadline=1.5)
    assert not list(tmp_path.rglob("calibration.json"))


@pytest.mark.parametrize("deadline", [0, -1, float("inf")])
def test_a_deadline_that_waits_for_ever_is_refused(tmp_path, deadline):
    with pytest.raises(robfcp.RobfcpError, match="no time to wait"):
        play(tmp_path, deadline=deadline)


def test_a_site_sets_its_own_privacy_and_ledger(tmp_path):
    ledger = tmp_path / "ledger.json"
    own = {"epsilon": 0.5, "delta": 1e-6, "rounds": 2, "privacy-ledger": str(ledger)}
    for number in range(3):
        calibration, _, _ = play(
            tmp_path / str(number), configs={"site-2": own}, grid="uniform:16", check=False
        )
        if number < 2:
            expected = [Privacy(0.5, 1e-6, rounds=2) if k == 2 else None for k in range(8)]
            assert list(calibration.federation.privacy) == expected
            assert len(Ledger(ledger).releases()) == number + 1
    assert "privacy budget" in reason(calibration)


def test_a_private_site_keeps_its_test_data_to_itself(tmp_path):
    own = {"epsilon": 1.0, "privacy-ledger": str(tmp_path / "l.json")}
    calibration, _, _ = play(tmp_path, configs={"site-2": own}, grid="uniform:16")
    clients = calibration.provenance["clients"]
    assert clients["site-2"]["claims"] is None
    assert clients["site-3"]["claims"]["n_samples"] == 60


@pytest.mark.parametrize("text", ["{", "[]", '{"epsilonn": 1}', '{"epsilon": "x"}'])
def test_a_site_whose_file_is_not_clear_answers_nothing(tmp_path, text, monkeypatch):
    """A misspelt epsilon must not mean a report without noise."""
    made = nvflare_faults.workspace

    def workspace(place, name, config=None):
        found = made(place, name, config)
        if name == "site-2":
            (place / name / "local" / "robfcp.json").write_text(text)
        return found

    monkeypatch.setattr(nvflare_faults, "workspace", workspace)
    calibration, _, _ = play(tmp_path)
    assert reason(calibration) in (
        "robfcp refused the client's data",
        "scoring failed at the client",
    )


def test_exceptions_at_a_site_become_codes(tmp_path):
    own = {
        "site-2": {"outputs": "nvflare_sites:broken"},
        "site-3": {"outputs": "nvflare_sites:nothing_of_that_name"},
        "site-4": {"outputs": None},
    }
    calibration, _, _ = play(tmp_path, configs=own)
    assert reason(calibration) == "scoring failed at the client"
    assert reason(calibration, "site-3") == "scoring failed at the client"
    assert reason(calibration, "site-4") == "robfcp refused the client's data"
    assert "4711" not in json.dumps(calibration.provenance)


def test_signed_reports_and_letters(tmp_path):
    keys = {name: generate_key(tmp_path / f"{name}.key") for name in DATA}
    registry = tmp_path / "registry.json"
    registry.write_text(json.dumps({name: {"key": key} for name, key in keys.items()}))
    own = {
        name: {
            "signing-key": str(tmp_path / f"{name}.key"),
            "letter-folder": str(tmp_path / f"{name}.letters"),
        }
        for name in DATA
        if name != "site-2"
    }
    calibration, _, _ = play(tmp_path, configs=own, keys=str(registry), letters=True)
    assert "not signed" in reason(calibration)
    assert calibration.federation.n_clients == 7
    (file,) = (tmp_path / "site-3.letters").iterdir()
    letter = Letter.load(file)
    assert (letter.client, letter.calibration) == ("site-3", calibration)
    assert np.isfinite(letter.at_site(*DATA["site-3"]).levels[0].own)
    assert not (tmp_path / "site-2.letters").exists()


class Trained(ModelPersistor):
    """A persistor with what training began with and what it left."""

    def __init__(self, files):
        super().__init__()
        self.files = files

    def load_model(self, fl_ctx):
        return self.get_model("first", fl_ctx)

    def save_model(self, model, fl_ctx):
        raise AssertionError("calibration saves no model")

    def get_model_inventory(self, fl_ctx):
        return {name: SimpleNamespace(props={"source": name == "first"}) for name in self.files}

    def get_model(self, model_file, fl_ctx):
        weights = {"first": [0.2] * 5, "last": [0.6, 0.1, 0.1, 0.1, 0.1]}[model_file]
        return make_model_learnable({"numpy_key": np.array(weights)}, {})


@pytest.mark.parametrize(("files", "score"), [(["first", "last"], 0.4), (["first"], 0.8)])
def test_the_trained_model_goes_to_the_sites_and_its_digest_into_the_reports(
    files, score, tmp_path
):
    own = {name: {"outputs": "nvflare_sites:with_params"} for name in DATA}
    calibration, _, _ = play(
        tmp_path, configs=own, components={"persistor": Trained(files)}, persistor="persistor"
    )
    assert set(calibration.trusted) == set(DATA)
    assert len(calibration.federation.model) == 64
    assert calibration.threshold == pytest.approx(score, abs=0.01)


def test_the_monitor_is_one_more_workflow(tmp_path):
    federation = robfcp.Federation.from_counts([[50, 45, 5]] * 20, score=robfcp.LAC())
    path = tmp_path / "calibration.json"
    robfcp.calibrate(federation, defence="none", malicious=1).save(path)
    own = {
        name: {
            "fresh": f"nvflare_sites:fresh_{k}",
            "monitor-folder": str(tmp_path / f"{name}.monitor"),
        }
        for k, name in enumerate(DATA)
    }
    own["site-1"] = {"fresh": "nvflare_sites:fresh_1"}  # no place for its state
    own["site-2"] = {}  # does not watch
    controller = MonitorController(
        {
            "calibration": str(path),
            "malicious": 2,
            "round": "2026-11",
            "floor": 0.9,
            "deadline": 20.0,
            "poll": 0.02,
        }
    )
    _, server = run(controller, tmp_path, configs=own)
    found = msgspec.json.decode((server.run_dir / "monitor.json").read_bytes())
    assert found["alarm"]
    assert found["line"].startswith("alarm: 8 sites of which at most 2 lie")
    assert {fault["client"] for fault in found["faulty"]} == {"site-1", "site-2"}
    assert set(found["alarmed"]) == {name for name in DATA if name not in ("site-1", "site-2")}


def test_the_server_says_where_results_go_and_no_job_does(tmp_path):
    with pytest.raises(robfcp.RobfcpError, match="output: is unknown"):
        CalibrationController({"output": "/etc/passwd"})
    controller = CalibrationController({"malicious": 1, "deadline": 20.0, "poll": 0.02})
    local = tmp_path / "server" / "local"
    local.mkdir(parents=True)
    (local / "robfcp.json").write_text(json.dumps({"output-folder": str(tmp_path / "kept")}))
    _, server = run(controller, tmp_path)
    assert robfcp.Calibration.load(tmp_path / "kept" / "job" / "calibration.json").trusted
    assert not list(server.run_dir.rglob("calibration*"))


def test_a_site_that_hangs_is_freed_when_its_task_is_over(tmp_path):
    site = nvflare_faults.Site("site-1", tmp_path, {"outputs": "nvflare_sites:hangs"})
    body = SizeRequest("site-1")
    asked = FLModel(params={}, meta={RECORD: {"kind": "size", **request_record("n", body)}})
    over = Signal()
    threading.Timer(0.3, over.trigger, (True,)).start()
    reply = site.executor.execute("calibrate", FLModelUtils.to_shareable(asked), site.fl_ctx, over)
    assert reply.get_return_code() == ReturnCode.TASK_ABORTED


def test_words_that_nobody_knows_are_refused():
    with pytest.raises(robfcp.RobfcpError, match="malicius: is unknown; use score, "):
        CalibrationController({"malicius": 2})
    assert CalibrationController({"confidence_level": 0.8}).config == {"confidence-level": 0.8}


def test_a_site_without_a_file_allows_what_the_code_says(tmp_path):
    assert read_site(tmp_path / "robfcp.json") == {}
