"""After calibration: alarms to be looked at any time; what changed from round to round."""

from robfcp.monitoring._e_report import EValueReport, read_e_value_reports
from robfcp.monitoring._history import AlarmHistory, record_inspection
from robfcp.monitoring._merge import MergedEValue, alarming_clients, merge_e_values
from robfcp.monitoring._monitor import Monitor
from robfcp.monitoring._rounds import LevelComparison, RoundComparison, compare_rounds
from robfcp.monitoring._state import MonitorState

__all__ = [
    "AlarmHistory",
    "EValueReport",
    "LevelComparison",
    "MergedEValue",
    "Monitor",
    "MonitorState",
    "RoundComparison",
    "alarming_clients",
    "compare_rounds",
    "merge_e_values",
    "read_e_value_reports",
    "record_inspection",
]
