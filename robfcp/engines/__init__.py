"""Engines: what calibration rounds on Flower and NVFlare share: asking, deadlines, outcomes.

May import the rooms from `_util` to `calibration`; the engines' own adapters build on it. It knows
no engine: nothing here imports one.
"""

from robfcp.engines.answering import Part, Question, answer, guarded_reply
from robfcp.engines.asking import Carrier, Collection, Failed, Reply, ask_all
from robfcp.engines.configured import (
    DEFAULTS,
    MONITOR_DEFAULTS,
    calibrate_as_configured,
    check_config,
    known_words,
    monitor_as_configured,
    sizes_as_configured,
)
from robfcp.engines.discretion import check_ledger
from robfcp.engines.monitoring import MonitorRequest, merged_replies, monitor_request, read_e_reply
from robfcp.engines.outcomes import Outcome, Outcomes, Participant, Status
from robfcp.engines.requests import (
    FAILURES,
    PROTOCOL,
    Kind,
    Refused,
    SizeReply,
    SizeRequest,
    SketchRequest,
    ThresholdReply,
    ThresholdRequest,
    open_reply_record,
    open_request_record,
    read_reply,
    read_request,
    reply_record,
    request_record,
)
from robfcp.engines.round import (
    client_records,
    federation_of_replies,
    read_check,
    read_report,
    read_size,
    reply_limit,
)
from robfcp.engines.serving import (
    Engine,
    calibration_round,
    model_digest,
    monitor_round,
    named_participants,
    register_sizes,
    send_letters,
)
from robfcp.engines.site import SITE_WORDS, SiteRules
from robfcp.engines.site_file import CODE_WORDS, own_code, read_site
from robfcp.engines.workers import bounded

__all__ = [
    "CODE_WORDS",
    "DEFAULTS",
    "FAILURES",
    "MONITOR_DEFAULTS",
    "PROTOCOL",
    "SITE_WORDS",
    "Carrier",
    "Collection",
    "Engine",
    "Failed",
    "Kind",
    "MonitorRequest",
    "Outcome",
    "Outcomes",
    "Part",
    "Participant",
    "Question",
    "Refused",
    "Reply",
    "SiteRules",
    "SizeReply",
    "SizeRequest",
    "SketchRequest",
    "Status",
    "ThresholdReply",
    "ThresholdRequest",
    "answer",
    "ask_all",
    "bounded",
    "calibrate_as_configured",
    "calibration_round",
    "check_config",
    "check_ledger",
    "client_records",
    "federation_of_replies",
    "guarded_reply",
    "known_words",
    "merged_replies",
    "model_digest",
    "monitor_as_configured",
    "monitor_request",
    "monitor_round",
    "named_participants",
    "open_reply_record",
    "open_request_record",
    "own_code",
    "read_check",
    "read_e_reply",
    "read_reply",
    "read_report",
    "read_request",
    "read_site",
    "read_size",
    "register_sizes",
    "reply_limit",
    "reply_record",
    "request_record",
    "send_letters",
    "sizes_as_configured",
]
