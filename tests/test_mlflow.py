"""A calibration logged to MLflow predicts the same sets; without MLflow a stub is used."""

from __future__ import annotations

import sys
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from makers import outputs, reports_by_class

import robfcp

APP = Path(__file__).parents[1] / "examples" / "mlflow_app"


@pytest.fixture
def calibration(tmp_path):
    calibrated = robfcp.calibrate(
        reports_by_class([outputs(k, 100) for k in range(8)], ["a", "b", "c"])
    )
    calibrated.save(tmp_path / "calibration.json")
    return calibrated


def test_the_model_predicts_what_the_calibration_does(calibration, tmp_path, monkeypatch):
    pandas, models = pytest.importorskip("pandas"), []
    mlflow: Any = SimpleNamespace(
        pyfunc=SimpleNamespace(PythonModel=object), models=SimpleNamespace(set_model=models.append)
    )
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    run_path(str(APP / "sets_model.py"))
    (model,) = models
    files = {"calibration": str(tmp_path / "calibration.json")}
    model.load_context(SimpleNamespace(artifacts=files))
    p = outputs(9, 20)[0]
    frame = pandas.DataFrame(p[:, [2, 0, 1]], columns=["c", "a", "b"])  # by name, not by position
    expected = calibration.predict_set(p)
    sets = model.predict(None, frame)
    np.testing.assert_array_equal(sets[["a", "b", "c"]], expected)


@pytest.mark.filterwarnings("ignore")  # of MLflow itself
def test_a_calibration_logged_to_a_file_store_predicts(calibration, tmp_path, monkeypatch):
    mlflow, pandas = pytest.importorskip("mlflow"), pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    run = run_path(str(APP / "log_calibration.py"))["log"]("calibration.json")
    p = outputs(9, 20)[0]
    model = mlflow.pyfunc.load_model(f"runs:/{run}/sets")
    sets = model.predict(pandas.DataFrame(p, columns=["a", "b", "c"]))
    np.testing.assert_array_equal(np.asarray(sets), calibration.predict_set(p))
    lower_bound = mlflow.get_run(run).data.metrics["proved_at_least_0.9"]
    assert lower_bound == calibration.certificate.lower
