"""After calibration: alarms to be looked at any time; rounds in a row."""

from robfcp.monitoring.alarms import AlarmHistory, Merged, merge, read_alarms, record_look
from robfcp.monitoring.chain import Chain, Link, chain_path
from robfcp.monitoring.monitor import EReport, Monitor, MonitorState

__all__ = [
    "AlarmHistory",
    "Chain",
    "EReport",
    "Link",
    "Merged",
    "Monitor",
    "MonitorState",
    "chain_path",
    "merge",
    "read_alarms",
    "record_look",
]
