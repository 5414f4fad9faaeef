"""A calibration logged to MLflow predicts the same sets from there; with a stand-in without it."""

from __future__ import annotations

import sys
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from makers import by_class, outputs

import robfcp

APP = Path(__file__).parents[1] / "examples" / "mlflow_app"


@pytest.fixture
def calibration(tmp_path):
    made = robfcp.calibrate(by_class([outputs(k, 100) for k in range(8)], ["a", "b", "c"]))
    made.save(tmp_path / "calibration.json")
    return made


def test_the_model_predicts_what_the_calibration_does(calibration, tmp_path, monkeypatch):
    pandas, kept = pytest.importorskip("pandas"), []
    told: Any = SimpleNamespace(
        pyfunc=SimpleNamespace(PythonModel=object), models=SimpleNamespace(set_model=kept.append)
    )
    monkeypatch.setitem(sys.modules, "mlflow", told)
    run_path(str(APP / "sets_model.py"))
    (model,) = kept
    files = {"calibration": str(tmp_path / "calibration.json")}
    model.load_context(SimpleNamespace(artifacts=files))
    p = outputs(9, 20)[0]
    frame = pandas.DataFrame(p[:, [2, 0, 1]], columns=["c", "a", "b"])  # by name, not by place
    wanted = calibration.predict_set(p)
    found = model.predict(None, frame)
    np.testing.assert_array_equal(found[["a", "b", "c"]], wanted)


@pytest.mark.filterwarnings("ignore")  # of MLflow itself
def test_a_calibration_logged_to_a_file_store_predicts_from_there(
    calibration, tmp_path, monkeypatch
):
    mlflow, pandas = pytest.importorskip("mlflow"), pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    run = run_path(str(APP / "log_calibration.py"))["log"]("calibration.json")
    p = outputs(9, 20)[0]
    model = mlflow.pyfunc.load_model(f"runs:/{run}/sets")
    found = model.predict(pandas.DataFrame(p, columns=["a", "b", "c"]))
    np.testing.assert_array_equal(np.asarray(found), calibration.predict_set(p))
    proved = mlflow.get_run(run).data.metrics["proved_at_least_0.9"]
    assert proved == calibration.certificate.lower
