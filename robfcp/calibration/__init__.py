"""Calibration: reports in, the calibration that people keep out, and the record it rests on."""

from typing import TYPE_CHECKING, Any

from robfcp.calibration._calibration import Calibration
from robfcp.calibration._document import CalibrationDocument
from robfcp.calibration._levels import CoverageLevel

if TYPE_CHECKING:
    from robfcp.calibration._calibrate import calibrate

__all__ = ["Calibration", "CalibrationDocument", "CoverageLevel", "calibrate"]


def __getattr__(name: str) -> Any:
    # Whoever only loads a calibration and predicts needs nothing of the server.
    if name == "calibrate":
        from robfcp.calibration._calibrate import calibrate

        return calibrate
    raise AttributeError(f"module 'robfcp.calibration' has no attribute {name!r}")
