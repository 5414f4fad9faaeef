"""Federated conformal prediction that survives wrong, broken and lying sites.

Each site turns its calibration data into a `Report`; `calibrate` finds whom to trust, takes one
threshold from them and says what it proves; `Calibration.predict_set` uses it anywhere.

This module is the public surface; what it does not list may change without notice.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from robfcp import _moved, metrics
from robfcp._version import __version__
from robfcp.calibration import Calibration, calibrate
from robfcp.defence import Band, NoDefence, RobFCP, estimate_malicious, maliciousness
from robfcp.errors import QuorumError, ReportError, RobfcpError
from robfcp.federation import Fault, Federation, read_federation
from robfcp.grid import Grid
from robfcp.guarantees import Certificate, certify
from robfcp.privacy import Ledger, Privacy, recommend_grid
from robfcp.reports import Report
from robfcp.scores import APS, CQR, LAC, RAPS, AbsoluteResidual, ClassificationScore, Score

if TYPE_CHECKING:
    from robfcp.estimators import FederatedConformalClassifier, FederatedConformalRegressor
    from robfcp.lab import attacks, partitions
    from robfcp.lab.simulation import simulate

__all__ = [
    "APS",
    "CQR",
    "LAC",
    "RAPS",
    "AbsoluteResidual",
    "Band",
    "Calibration",
    "Certificate",
    "ClassificationScore",
    "Fault",
    "FederatedConformalClassifier",
    "FederatedConformalRegressor",
    "Federation",
    "Grid",
    "Ledger",
    "NoDefence",
    "Privacy",
    "QuorumError",
    "Report",
    "ReportError",
    "RobFCP",
    "RobfcpError",
    "Score",
    "__version__",
    "attacks",
    "calibrate",
    "certify",
    "estimate_malicious",
    "maliciousness",
    "metrics",
    "partitions",
    "read_federation",
    "recommend_grid",
    "simulate",
]

# Loaded when first used: scikit-learn's front, and the test range, which nothing else needs.
_LATER = {
    "FederatedConformalClassifier": "robfcp.estimators",
    "FederatedConformalRegressor": "robfcp.estimators",
    "attacks": "robfcp.lab",
    "partitions": "robfcp.lab",
    "simulate": "robfcp.lab",
}

_moved.install()


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'robfcp' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return __all__
