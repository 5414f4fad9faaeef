"""Prediction sets as an MLflow model: a frame of probabilities in, a frame of yes and no out.

MLflow runs this file when it loads the model ("models from code"), so nothing is pickled; what it
keeps beside it is the calibration, a JSON file with a digest that robfcp checks.
"""

from typing import Any

import mlflow
import pandas as pd

import robfcp


class PredictionSets(mlflow.pyfunc.PythonModel):
    """Columns are classes, by name where the calibration has names; a row is a case."""

    def load_context(self, context: Any) -> None:
        """Read the calibration that was saved with the model."""
        self.calibration = robfcp.Calibration.load(context.artifacts["calibration"])

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        """Whether each label is in each case's set."""
        sets, names = self.calibration.predict_set(model_input), self.calibration.classes
        columns = list(names) if isinstance(names, (tuple, list)) else model_input.columns
        return pd.DataFrame(sets, columns=columns, index=model_input.index)


mlflow.models.set_model(PredictionSets())
