"""Diagnosis: the likely cause of a report that looks wrong."""

from robfcp.diagnosis._diagnose import diagnose
from robfcp.diagnosis._diagnosis import Diagnosis
from robfcp.diagnosis._likelihood import MIN_REFERENCE_SCORES

__all__ = ["MIN_REFERENCE_SCORES", "Diagnosis", "diagnose"]
