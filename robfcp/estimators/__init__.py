"""The scikit-learn shaped front: an estimator, its sites' calibration data, prediction sets.

May import every room up to `calibration`; nothing but the command line and the lab may use it.
It needs scikit-learn, which is loaded when this room is.
"""

try:
    import sklearn  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "the scikit-learn front needs scikit-learn; install it with: pip install 'robfcp[sklearn]'"
    ) from error

from robfcp.estimators.classifier import FederatedConformalClassifier
from robfcp.estimators.regressor import FederatedConformalRegressor

__all__ = ["FederatedConformalClassifier", "FederatedConformalRegressor"]
