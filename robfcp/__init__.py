"""Federated conformal prediction that survives wrong, broken and lying sites.

Each site turns its calibration data into a `Report`; `calibrate` finds whom to trust, takes one
threshold from them and says what it proves; `Calibration.predict_set` uses it anywhere.

This module is the public surface; what it does not list may change without notice.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "1.0.0"

if TYPE_CHECKING:
    from robfcp import metrics
    from robfcp.calibration import Calibration
    from robfcp.calibration.calibrate import calibrate
    from robfcp.certificate import Certificate
    from robfcp.defence import Consensus, RobFCP
    from robfcp.diagnosis import Diagnosis, diagnose
    from robfcp.errors import QuorumError, ReportError, RobfcpError
    from robfcp.estimators import FederatedConformalClassifier, FederatedConformalRegressor
    from robfcp.federation import Federation
    from robfcp.grid import Grid
    from robfcp.guarantees import LabelShift, Marginal, Pac
    from robfcp.monitoring import Monitor
    from robfcp.privacy import Ledger, Privacy, recommend_grid
    from robfcp.probabilities import from_logits
    from robfcp.report import Report
    from robfcp.scores import (
        APS,
        CQR,
        LAC,
        RAPS,
        SAPS,
        AbsoluteResidual,
        ClassificationScore,
        OrdinalAPS,
        Risk,
        Score,
    )

__all__ = [
    "APS",
    "CQR",
    "LAC",
    "RAPS",
    "SAPS",
    "AbsoluteResidual",
    "Calibration",
    "Certificate",
    "ClassificationScore",
    "Consensus",
    "Diagnosis",
    "FederatedConformalClassifier",
    "FederatedConformalRegressor",
    "Federation",
    "Grid",
    "LabelShift",
    "Ledger",
    "Marginal",
    "Monitor",
    "OrdinalAPS",
    "Pac",
    "Privacy",
    "QuorumError",
    "Report",
    "ReportError",
    "Risk",
    "RobFCP",
    "RobfcpError",
    "Score",
    "__version__",
    "calibrate",
    "diagnose",
    "from_logits",
    "metrics",
    "recommend_grid",
]

# Where each name lives. Loaded when first used, so that a site that only sketches loads no server.
_HOMES = {
    "calibration": ("Calibration",),
    "calibration.calibrate": ("calibrate",),
    "diagnosis": ("Diagnosis", "diagnose"),
    "monitoring": ("Monitor",),
    "defence": ("Consensus", "RobFCP"),
    "errors": ("QuorumError", "ReportError", "RobfcpError"),
    "estimators": ("FederatedConformalClassifier", "FederatedConformalRegressor"),
    "federation": ("Federation",),
    "grid": ("Grid",),
    "certificate": ("Certificate",),
    "guarantees": ("LabelShift", "Marginal", "Pac"),
    "privacy": ("Ledger", "Privacy", "recommend_grid"),
    "report": ("Report",),
    "probabilities": ("from_logits",),
}
_HOME = {name: "scores" for name in __all__ if name[0].isupper()}  # all that is not named above
_HOME |= {name: room for room, names in _HOMES.items() for name in names}
_ROOMS = (*_HOMES, "scores", "metrics", "figures", "page", "engines", "lab")


def __getattr__(name: str) -> Any:
    if name in _HOME:
        found = getattr(import_module(f"robfcp.{_HOME[name]}"), name)
    elif name in _ROOMS:
        found = import_module(f"robfcp.{name}")
    else:
        raise AttributeError(f"module 'robfcp' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
