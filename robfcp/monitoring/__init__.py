"""Monitoring: alarms that are valid at any time, at one client or over many, and round comparison.

`Monitor` bets against the certified coverage, `merge_e_values` merges the messages of many
monitors, `AlarmHistory` records the inspections, and `compare_rounds` compares two calibrations.
May import `local`, `evaluation`, `calibration` and what lies below them.
"""

from robfcp.monitoring._e_value_report import EValueReport, read_e_value_reports
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
