"""The diagnosis: what a site's report looks like, in words a clinician reads.

It reads counts and whom the calibration trusts; which defence decided that is all the same.
"""

from robfcp.calibration.diagnosis.diagnosis import diagnose
from robfcp.calibration.diagnosis.words import Diagnosis

__all__ = ["Diagnosis", "diagnose"]
