"""Calibration: from the reports of a round to thresholds and certificates that can be kept.

`calibrate` makes a `Calibration`, which predicts, is saved and is loaded; `sensitivity` says what
is certified for other numbers of malicious clients. May import `defense`, `guarantees`,
`federation` and what lies below them; to load a calibration and predict needs none of these three.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from robfcp.calibration._calibration import Calibration
from robfcp.calibration._coverage import StratumCoverage, client_coverage
from robfcp.calibration._document import CalibrationDocument
from robfcp.calibration._levels import CoverageLevel
from robfcp.calibration._verdicts import ClientVerdict, VerdictStatus

if TYPE_CHECKING:
    from robfcp.calibration._arguments import coverage_of_alpha
    from robfcp.calibration._calibrate import calibrate
    from robfcp.calibration._record import RecordDocument
    from robfcp.calibration._sensitivity import SensitivityTable, sensitivity
    from robfcp.calibration._strata import stratum_federations

__all__ = [
    "Calibration",
    "CalibrationDocument",
    "ClientVerdict",
    "CoverageLevel",
    "RecordDocument",
    "SensitivityTable",
    "StratumCoverage",
    "VerdictStatus",
    "calibrate",
    "client_coverage",
    "coverage_of_alpha",
    "sensitivity",
    "stratum_federations",
]

# Whoever only loads a calibration and predicts needs nothing of the server: these modules are
# loaded when one of their names is first asked for.
SERVER_MODULES = {
    "calibrate": "robfcp.calibration._calibrate",
    "coverage_of_alpha": "robfcp.calibration._arguments",
    "RecordDocument": "robfcp.calibration._record",
    "SensitivityTable": "robfcp.calibration._sensitivity",
    "sensitivity": "robfcp.calibration._sensitivity",
    "stratum_federations": "robfcp.calibration._strata",
}


def __getattr__(name: str) -> Any:
    """Return a name of `SERVER_MODULES`; Python calls this where the package has no such name."""
    if name not in SERVER_MODULES:
        raise AttributeError(f"module 'robfcp.calibration' has no attribute {name!r}")
    return getattr(import_module(SERVER_MODULES[name]), name)
