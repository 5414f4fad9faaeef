"""Diagnosis: the likely cause of a report that looks wrong.

`diagnose` gives a `Diagnosis` of each unusual report, in words for the people at the client. May
import `calibration`, `defense` and what lies below them.
"""

from robfcp.diagnosis._diagnose import diagnose
from robfcp.diagnosis._diagnosis import Diagnosis
from robfcp.diagnosis._likelihood import MIN_REFERENCE_SCORES

__all__ = ["MIN_REFERENCE_SCORES", "Diagnosis", "diagnose"]
