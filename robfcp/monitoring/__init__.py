"""After calibration: alarms to be looked at any time; what changed from round to round."""

from robfcp.monitoring._history import (
    AlarmHistory,
    MergedEValue,
    merge_e_values,
    read_e_value_reports,
    record_inspection,
)
from robfcp.monitoring._monitor import EValueReport, Monitor, MonitorState
from robfcp.monitoring._rounds import LevelComparison, RoundComparison, compare_rounds

__all__ = [
    "AlarmHistory",
    "EValueReport",
    "LevelComparison",
    "MergedEValue",
    "Monitor",
    "MonitorState",
    "RoundComparison",
    "compare_rounds",
    "merge_e_values",
    "read_e_value_reports",
    "record_inspection",
]
