"""What one client receives and does: feedback, thresholds of its own."""

from robfcp.local._feedback import ClientFeedback, iter_feedback, save_feedback

__all__ = ["ClientFeedback", "iter_feedback", "save_feedback"]
