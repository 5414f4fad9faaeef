"""Calibration: reports in, the artefact people keep out; its record, letters, checks, what-if."""

from robfcp.calibration.calibration import Calibration, Level

__all__ = ["Calibration", "Level"]
