"""Federated conformal prediction that survives wrong, broken and lying sites.

Each site turns its calibration data into a `Report`; `calibrate` finds whom to trust, takes one
threshold from them and says what it proves; `Calibration.predict_set` uses it anywhere.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from robfcp import attacks, metrics, partitions
from robfcp._version import __version__
from robfcp.calibration import Calibration
from robfcp.certificates import Certificate
from robfcp.counting import estimate_malicious
from robfcp.defences import RobFCP, maliciousness
from robfcp.errors import QuorumError, ReportError, RobfcpError
from robfcp.federation import Fault, Federation
from robfcp.grid import Grid
from robfcp.privacy import Privacy
from robfcp.reports import Report
from robfcp.scores import APS, CQR, LAC, RAPS, AbsoluteResidual
from robfcp.server import calibrate

if TYPE_CHECKING:
    from robfcp.estimators import FederatedConformalClassifier, FederatedConformalRegressor
    from robfcp.private_grids import recommend_grid
    from robfcp.simulation import simulate

__all__ = [
    "APS",
    "CQR",
    "LAC",
    "RAPS",
    "AbsoluteResidual",
    "Calibration",
    "Certificate",
    "Fault",
    "FederatedConformalClassifier",
    "FederatedConformalRegressor",
    "Federation",
    "Grid",
    "Privacy",
    "QuorumError",
    "Report",
    "ReportError",
    "RobFCP",
    "RobfcpError",
    "__version__",
    "attacks",
    "calibrate",
    "estimate_malicious",
    "maliciousness",
    "metrics",
    "partitions",
    "recommend_grid",
    "simulate",
]

# Loaded when first used, so that `import robfcp` stays light.
_LATER = {
    "FederatedConformalClassifier": "robfcp.estimators",
    "FederatedConformalRegressor": "robfcp.estimators",
    "recommend_grid": "robfcp.private_grids",
    "simulate": "robfcp.simulation",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'robfcp' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return __all__
