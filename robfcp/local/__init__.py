"""What one client receives and does: feedback, thresholds of its own."""

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
