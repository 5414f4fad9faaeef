"""After calibration: alarms at a site and over sites, to be looked at any time; rounds in a row."""

from robfcp.monitoring.alarms import AlarmHistory, Merged, listed, merge, read_alarms, record_look
from robfcp.monitoring.chain import Admission, Chain, Link, Reputation, chain_path
from robfcp.monitoring.history_file import Heard, Look
from robfcp.monitoring.monitor import Monitor, Point, Reading, decode_state, reading_of
from robfcp.monitoring.monitor import State as MonitorState

__all__ = [
    "Admission",
    "AlarmHistory",
    "Chain",
    "Heard",
    "Link",
    "Look",
    "Merged",
    "Monitor",
    "MonitorState",
    "Point",
    "Reading",
    "Reputation",
    "chain_path",
    "decode_state",
    "listed",
    "merge",
    "read_alarms",
    "reading_of",
    "record_look",
]
