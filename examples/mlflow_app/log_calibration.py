"""Log a calibration to MLflow: what is proved as metrics, the page to look at, and a model.

`python log_calibration.py calibration.json page.html`, with the tracking server that MLflow is
told of (MLFLOW_TRACKING_URI; without one a folder here).
"""

import sys
import tempfile
from pathlib import Path

import mlflow

import robfcp

MODEL = Path(__file__).with_name("sets_model.py")


def log(calibration: str, *pages: str) -> str:
    """The run's id; the model lies in its folder `sets`."""
    found = robfcp.Calibration.load(calibration)
    with mlflow.start_run() as run, tempfile.TemporaryDirectory() as folder:
        for level in found.levels:
            told = f"{float(level.coverage):g}"
            mlflow.log_metric(f"proved_at_least_{told}", level.certificate.lower)
            mlflow.log_metric(f"proved_at_most_{told}", level.certificate.upper)
        mlflow.log_param("statement", str(found.statement)[:500])
        mlflow.log_param("sites_left_out", found.summary.n_flagged)
        for page in pages:
            mlflow.log_artifact(page)
        mlflow.pyfunc.save_model(
            path=f"{folder}/sets",
            python_model=str(MODEL),
            artifacts={"calibration": str(Path(calibration).absolute())},
            pip_requirements=["robfcp", "pandas"],
        )
        mlflow.log_artifacts(f"{folder}/sets", "sets")
    return str(run.info.run_id)


if __name__ == "__main__":
    print(log(*sys.argv[1:]))
