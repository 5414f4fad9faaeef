"""Prediction sets as an MLflow model: a frame of probabilities in, a frame of booleans out.

MLflow runs this file when it loads the model ("models from code"), so nothing is pickled. It
stores the calibration with it, a JSON file with a digest that robfcp checks.
"""

from typing import Any

import mlflow
import pandas as pd

import robfcp


class PredictionSets(mlflow.pyfunc.PythonModel):
    """Columns are classes, by name if the calibration has names; a row is a sample."""

    def load_context(self, context: Any) -> None:
        """Read the calibration that was saved with the model."""
        self.calibration = robfcp.Calibration.load(context.artifacts["calibration"])

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        """Return whether each label is in each sample's prediction set."""
        sets = self.calibration.predict_set(model_input)
        columns = model_input.columns
        if isinstance(self.calibration.classes, (tuple, list)):
            columns = list(self.calibration.classes)
        return pd.DataFrame(sets, columns=columns, index=model_input.index)


mlflow.models.set_model(PredictionSets())
