"""Byzantine-robust federated conformal prediction.

Prediction sets that keep their coverage although some clients send wrong or malicious calibration
data. Each client turns its calibration data into a `Report`; `calibrate` decides which clients to
exclude, computes the thresholds and certifies their coverage; `Calibration.predict_set` is used
anywhere.

This module is the public interface; what it does not list may change without notice.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "1.0.0"

if TYPE_CHECKING:
    from robfcp import metrics
    from robfcp._probabilities import softmax
    from robfcp.binning import Binning
    from robfcp.calibration import Calibration, calibrate
    from robfcp.certificates import Certificate
    from robfcp.defense import Consensus, RobFCP
    from robfcp.diagnosis import Diagnosis, diagnose
    from robfcp.errors import QuorumError, ReportError, RobfcpError, RobfcpWarning
    from robfcp.estimators import FederatedConformalClassifier, FederatedConformalRegressor
    from robfcp.federation import Federation
    from robfcp.guarantees import LabelShiftGuarantee, MarginalGuarantee, PACGuarantee
    from robfcp.monitoring import Monitor
    from robfcp.privacy import Privacy, PrivacyLedger, recommend_binning
    from robfcp.reports import Report
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
    "Binning",
    "Calibration",
    "Certificate",
    "ClassificationScore",
    "Consensus",
    "Diagnosis",
    "FederatedConformalClassifier",
    "FederatedConformalRegressor",
    "Federation",
    "LabelShiftGuarantee",
    "MarginalGuarantee",
    "Monitor",
    "OrdinalAPS",
    "PACGuarantee",
    "Privacy",
    "PrivacyLedger",
    "QuorumError",
    "Report",
    "ReportError",
    "Risk",
    "RobFCP",
    "RobfcpError",
    "RobfcpWarning",
    "Score",
    "__version__",
    "calibrate",
    "diagnose",
    "metrics",
    "recommend_binning",
    "softmax",
]

# Where each name lives. Loaded when first used, so that a client that only reports loads no server.
_EXPORTS = {
    "_probabilities": ("softmax",),
    "binning": ("Binning",),
    "calibration": ("Calibration", "calibrate"),
    "certificates": ("Certificate",),
    "defense": ("Consensus", "RobFCP"),
    "diagnosis": ("Diagnosis", "diagnose"),
    "errors": ("QuorumError", "ReportError", "RobfcpError", "RobfcpWarning"),
    "estimators": ("FederatedConformalClassifier", "FederatedConformalRegressor"),
    "federation": ("Federation",),
    "guarantees": ("LabelShiftGuarantee", "MarginalGuarantee", "PACGuarantee"),
    "monitoring": ("Monitor",),
    "privacy": ("Privacy", "PrivacyLedger", "recommend_binning"),
    "reports": ("Report",),
    "scores": (
        "APS",
        "CQR",
        "LAC",
        "RAPS",
        "SAPS",
        "AbsoluteResidual",
        "ClassificationScore",
        "OrdinalAPS",
        "Risk",
        "Score",
    ),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}
_SUBMODULES = {
    *(module for module in _EXPORTS if not module.startswith("_")),
    "audit",
    "evaluation",
    "experiments",
    "figures",
    "fleet",
    "integrations",
    "local",
    "metrics",
    "page",
    "rounds",
    "schemas",
}


def __getattr__(name: str) -> Any:
    """Load a name or a submodule when it is first used."""
    if name in _MODULE_OF:
        value = getattr(import_module(f"robfcp.{_MODULE_OF[name]}"), name)
    elif name in _SUBMODULES:
        value = import_module(f"robfcp.{name}")
    else:
        raise AttributeError(f"module 'robfcp' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
