"""Engines: what calibration rounds on Flower and others share. Requests, outcomes, the record.

May import the rooms from `_util` to `calibration`; the engines' own adapters build on it. It knows
no engine: nothing here imports one.
"""

from robfcp.engines.monitoring import (
    MonitorRequest,
    merged_replies,
    monitor_request,
    read_e_reply,
)
from robfcp.engines.outcomes import Outcome, Outcomes, Participant, Status
from robfcp.engines.requests import (
    FAILURES,
    PROTOCOL,
    SizeReply,
    SizeRequest,
    SketchRequest,
    ThresholdReply,
    ThresholdRequest,
    read_reply,
    read_request,
)
from robfcp.engines.round import (
    client_records,
    federation_of_replies,
    read_check,
    read_report,
    read_size,
    reply_limit,
)

__all__ = [
    "FAILURES",
    "PROTOCOL",
    "MonitorRequest",
    "Outcome",
    "Outcomes",
    "Participant",
    "SizeReply",
    "SizeRequest",
    "SketchRequest",
    "Status",
    "ThresholdReply",
    "ThresholdRequest",
    "client_records",
    "federation_of_replies",
    "merged_replies",
    "monitor_request",
    "read_check",
    "read_e_reply",
    "read_reply",
    "read_report",
    "read_request",
    "read_size",
    "reply_limit",
]
