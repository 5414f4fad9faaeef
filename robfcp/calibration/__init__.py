"""Calibration: reports in, the artefact people keep out; its record, letters, checks, what-if."""

from robfcp.calibration.calibration import Calibration, Level, load_calibration

__all__ = ["Calibration", "Level", "load_calibration"]
