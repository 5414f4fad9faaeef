"""What one client receives and does: feedback, thresholds of its own."""

from robfcp.local._feedback import ClientFeedback, iter_feedback, save_feedback
from robfcp.local._threshold import LocalThreshold

__all__ = ["ClientFeedback", "LocalThreshold", "iter_feedback", "save_feedback"]
