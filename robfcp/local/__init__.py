"""What one client receives after a round: its feedback, and a threshold of its own.

`ClientFeedback` holds a client's verdict and the calibration, `LocalThreshold` and
`LocalCalibration` suit its own label distribution, and `calibrate_unseen_client` serves a client
that sent no report. May import `calibration`, `diagnosis`, `evaluation` and what lies below them.
"""

from robfcp.local._feedback import ClientFeedback, iter_feedback, local_thresholds, save_feedback
from robfcp.local._threshold import (
    UNSEEN_CLIENT,
    LocalCalibration,
    LocalThreshold,
    calibrate_unseen_client,
    local_coverage_bound,
)

__all__ = [
    "UNSEEN_CLIENT",
    "ClientFeedback",
    "LocalCalibration",
    "LocalThreshold",
    "calibrate_unseen_client",
    "iter_feedback",
    "local_coverage_bound",
    "local_thresholds",
    "save_feedback",
]
