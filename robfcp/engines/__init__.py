"""Engines: what calibration rounds on Flower and others share: asking, deadlines, outcomes.

May import the rooms from `_util` to `calibration`; the engines' own adapters build on it. It knows
no engine: nothing here imports one.
"""

from robfcp.engines.asking import Carrier, Collection, Failed, Reply, ask_all
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
from robfcp.engines.site import Refused, SiteRules
from robfcp.engines.workers import bounded

__all__ = [
    "FAILURES",
    "PROTOCOL",
    "Carrier",
    "Collection",
    "Failed",
    "MonitorRequest",
    "Outcome",
    "Outcomes",
    "Participant",
    "Refused",
    "Reply",
    "SiteRules",
    "SizeReply",
    "SizeRequest",
    "SketchRequest",
    "Status",
    "ThresholdReply",
    "ThresholdRequest",
    "ask_all",
    "bounded",
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
