"""Calibration: reports in, the artefact people keep out; its record, letters, checks, what-if."""

from robfcp.calibration.at_site import Localised, LocalThreshold, at_stranger
from robfcp.calibration.audit import (
    AuditLog,
    Difference,
    check_own_report,
    log_round,
    verify_calibration,
)
from robfcp.calibration.calibrating import LevelLike, calibrate
from robfcp.calibration.calibration import MAX_CALIBRATION_BYTES, Calibration, evidence_path
from robfcp.calibration.checking import (
    Check,
    Part,
    Promise,
    clopper_pearson,
    own_floor,
    promise_of,
    samples_to_tell,
)
from robfcp.calibration.covered import (
    covered_at_sites,
    covered_by_stratum,
    diagnose,
    site_coverage,
    stratum_limits,
)
from robfcp.calibration.document import check_signer, sign_sealed
from robfcp.calibration.evidence import Evidence, Summary
from robfcp.calibration.letters import (
    Letter,
    file_name,
    letter_to,
    letters,
    load_calibration,
    own_thresholds,
    save_letters,
)
from robfcp.calibration.levels import Level
from robfcp.calibration.sealed import digest_of, kind_of
from robfcp.calibration.settings import Settings
from robfcp.calibration.what_if import (
    Budget,
    Budgets,
    OtherSettings,
    StratumBudgets,
    default_budgets,
    other_settings,
    what_if,
    what_if_by,
)

__all__ = [
    "MAX_CALIBRATION_BYTES",
    "AuditLog",
    "Budget",
    "Budgets",
    "Calibration",
    "Check",
    "Difference",
    "Evidence",
    "Letter",
    "Level",
    "LevelLike",
    "LocalThreshold",
    "Localised",
    "OtherSettings",
    "Part",
    "Promise",
    "Settings",
    "StratumBudgets",
    "Summary",
    "at_stranger",
    "calibrate",
    "check_own_report",
    "check_signer",
    "clopper_pearson",
    "covered_at_sites",
    "covered_by_stratum",
    "default_budgets",
    "diagnose",
    "digest_of",
    "evidence_path",
    "file_name",
    "kind_of",
    "letter_to",
    "letters",
    "load_calibration",
    "log_round",
    "other_settings",
    "own_floor",
    "own_thresholds",
    "promise_of",
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
