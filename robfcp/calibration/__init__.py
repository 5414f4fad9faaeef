"""Calibration: reports in, the artefact people keep out; its record, letters, checks, what-if."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robfcp.calibration.at_site import Localised
    from robfcp.calibration.audit import AuditLog, verify_calibration
    from robfcp.calibration.by_class import diagnose
    from robfcp.calibration.calibrating import calibrate
    from robfcp.calibration.calibration import Calibration, Level, load_calibration
    from robfcp.calibration.checking import Check
    from robfcp.calibration.letters import Letter
    from robfcp.calibration.record import Record

__all__ = [
    "AuditLog",
    "Calibration",
    "Check",
    "Letter",
    "Level",
    "Localised",
    "Record",
    "calibrate",
    "diagnose",
    "load_calibration",
    "verify_calibration",
]

# Where each name lives. Loaded when first used, so that a site that only predicts loads no server.
_HOMES = {
    "at_site": ("Localised",),
    "audit": ("AuditLog", "verify_calibration"),
    "by_class": ("diagnose",),
    "calibrating": ("calibrate",),
    "calibration": ("Calibration", "Level", "load_calibration"),
    "checking": ("Check",),
    "letters": ("Letter",),
    "record": ("Record",),
}
_HOME = {name: f"robfcp.calibration.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'robfcp.calibration' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_HOME[name]), name)
    return found
