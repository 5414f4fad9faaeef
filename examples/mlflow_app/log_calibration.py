"""Log a calibration to MLflow: its certificates as metrics, its page, and a model.

`python log_calibration.py calibration.json page.html`, with the tracking server that MLflow is
configured for (MLFLOW_TRACKING_URI; without one a folder in the working directory).
"""

import sys
import tempfile
from pathlib import Path

import mlflow

import robfcp

MODEL = Path(__file__).with_name("sets_model.py")
MAX_STATEMENT_LENGTH = 500  # characters of a parameter that all tracking servers take


def log(calibration_path: str, *pages: str) -> str:
    """Log a calibration file and pages; return the id of the run, with the model in `sets`."""
    calibration = robfcp.Calibration.load(calibration_path)
    with mlflow.start_run() as run, tempfile.TemporaryDirectory() as folder:
        for level in calibration.levels:
            coverage = f"{float(level.coverage):g}"
            mlflow.log_metric(f"proved_at_least_{coverage}", level.certificate.lower)
            mlflow.log_metric(f"proved_at_most_{coverage}", level.certificate.upper)
        statement = str(calibration.statement)
        mlflow.log_param("statement", statement[:MAX_STATEMENT_LENGTH])
        mlflow.log_param("clients_flagged", calibration.summary.n_flagged)
        for page in pages:
            mlflow.log_artifact(page)
        mlflow.pyfunc.save_model(
            path=f"{folder}/sets",
            python_model=str(MODEL),
            artifacts={"calibration": str(Path(calibration_path).absolute())},
            pip_requirements=["robfcp", "pandas"],
        )
        mlflow.log_artifacts(f"{folder}/sets", "sets")
    return str(run.info.run_id)


if __name__ == "__main__":
    print(log(*sys.argv[1:]))
