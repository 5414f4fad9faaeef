"""After calibration: alarms to be looked at any time; what changed from round to round."""

from robfcp.monitoring._rounds import LevelComparison, RoundComparison, compare_rounds
from robfcp.monitoring.alarms import AlarmHistory, Merged, merge, read_alarms, record_look
from robfcp.monitoring.monitor import EReport, Monitor, MonitorState

__all__ = [
    "AlarmHistory",
    "EReport",
    "LevelComparison",
    "Merged",
    "Monitor",
    "MonitorState",
    "RoundComparison",
    "compare_rounds",
    "merge",
    "read_alarms",
    "record_look",
]
