"""Calibration: reports in, the artefact people keep out; its evidence, letters, what-if, monitor.

May import the rooms from `_util` to `defence` and `prediction`; metrics, estimators, engines, the
page, figures and commands build on it.
"""

from robfcp.calibration.at_sites import own_thresholds
from robfcp.calibration.audit import AuditLog, log_round
from robfcp.calibration.calibrating import LevelLike, calibrate
from robfcp.calibration.calibration import MAX_CALIBRATION_BYTES, Calibration, evidence_path
from robfcp.calibration.chain import Admission, Chain, Link, Reputation, chain_path
from robfcp.calibration.check import Check, Part, clopper_pearson, samples_to_tell
from robfcp.calibration.covered import (
    covered_at_sites,
    covered_by_stratum,
    site_coverage,
    stratum_limits,
)
from robfcp.calibration.diagnosis import Diagnosis, diagnose
from robfcp.calibration.evidence import Evidence, Summary
from robfcp.calibration.letter import Letter
from robfcp.calibration.letters import (
    letter_to,
    letters,
    load_calibration,
    load_letter,
    save_letters,
)
from robfcp.calibration.levels import Level
from robfcp.calibration.local import Localised, at_stranger
from robfcp.calibration.local_threshold import LocalThreshold
from robfcp.calibration.monitoring.alarms import Merged, listed, merge, read_alarms
from robfcp.calibration.monitoring.history import AlarmHistory, record_look
from robfcp.calibration.monitoring.history_file import Heard, Look
from robfcp.calibration.monitoring.monitor import Monitor
from robfcp.calibration.monitoring.reading import Reading, reading_of
from robfcp.calibration.monitoring.state import Point, decode_state
from robfcp.calibration.monitoring.state import State as MonitorState
from robfcp.calibration.others import FromOthers
from robfcp.calibration.promise import Promise, own_floor, promise_of
from robfcp.calibration.sealed import digest_of, kind_of
from robfcp.calibration.settings import Guarantee, Settings
from robfcp.calibration.signed import check_signer, sign_sealed
from robfcp.calibration.verify import Difference, check_own_report, verify_calibration
from robfcp.calibration.what_if import (
    Budget,
    Budgets,
    StratumBudgets,
    default_budgets,
    what_if,
    what_if_by,
)

__all__ = [
    "MAX_CALIBRATION_BYTES",
    "Admission",
    "AlarmHistory",
    "AuditLog",
    "Budget",
    "Budgets",
    "Calibration",
    "Chain",
    "Check",
    "Diagnosis",
    "Difference",
    "Evidence",
    "FromOthers",
    "Guarantee",
    "Heard",
    "Letter",
    "Level",
    "LevelLike",
    "Link",
    "LocalThreshold",
    "Localised",
    "Look",
    "Merged",
    "Monitor",
    "MonitorState",
    "Part",
    "Point",
    "Promise",
    "Reading",
    "Reputation",
    "Settings",
    "StratumBudgets",
    "Summary",
    "at_stranger",
    "calibrate",
    "chain_path",
    "check_own_report",
    "check_signer",
    "clopper_pearson",
    "covered_at_sites",
    "covered_by_stratum",
    "decode_state",
    "default_budgets",
    "diagnose",
    "digest_of",
    "evidence_path",
    "kind_of",
    "letter_to",
    "letters",
    "listed",
    "load_calibration",
    "load_letter",
    "log_round",
    "merge",
    "own_floor",
    "own_thresholds",
    "promise_of",
    "read_alarms",
    "reading_of",
    "record_look",
    "samples_to_tell",
    "save_letters",
    "sign_sealed",
    "site_coverage",
    "stratum_limits",
    "verify_calibration",
    "what_if",
    "what_if_by",
]


Calibration.letter = letter_to  # type: ignore[assignment,method-assign]
