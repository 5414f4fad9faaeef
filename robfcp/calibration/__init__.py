"""Calibration: reports in, the artefact people keep out; its evidence, letters and what-if.

May import the rooms from `_util` to `defence` and `prediction`; metrics, estimators, engines, the
page, figures and commands build on it.
"""

from robfcp._moved import old_names
from robfcp.calibration.audit import AuditLog, log_round
from robfcp.calibration.calibrating import LevelLike, calibrate
from robfcp.calibration.calibration import (
    MAX_CALIBRATION_BYTES,
    Calibration,
    evidence_path,
)
from robfcp.calibration.evidence import Evidence, Summary
from robfcp.calibration.letters import (
    Letter,
    letter_to,
    letters,
    load_calibration,
    save_letters,
)
from robfcp.calibration.levels import Level
from robfcp.calibration.sealed import digest_of, kind_of
from robfcp.calibration.settings import Guarantee, Settings
from robfcp.calibration.signed import check_signer, sign_sealed, signer_of
from robfcp.calibration.verify import Difference, check_own_report, verify_calibration
from robfcp.calibration.what_if import Budget, Budgets, default_budgets, what_if

__all__ = [
    "MAX_CALIBRATION_BYTES",
    "AuditLog",
    "Budget",
    "Budgets",
    "Calibration",
    "Difference",
    "Evidence",
    "Guarantee",
    "Letter",
    "Level",
    "LevelLike",
    "Settings",
    "Summary",
    "calibrate",
    "check_own_report",
    "check_signer",
    "default_budgets",
    "digest_of",
    "evidence_path",
    "kind_of",
    "letter_to",
    "letters",
    "load_calibration",
    "log_round",
    "save_letters",
    "sign_sealed",
    "signer_of",
    "verify_calibration",
    "what_if",
]

__getattr__ = old_names(__name__)
