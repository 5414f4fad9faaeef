"""The server's round: calibrate a federation, and write everything that comes of it.

The command line and the integrations only translate to and from `run_round`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from robfcp.audit import AuditLog, log_calibration
from robfcp.calibration import Calibration, calibrate
from robfcp.defense import Consensus, Defense
from robfcp.diagnosis import Diagnosis, diagnose
from robfcp.federation import Federation
from robfcp.fleet import write_verdict_table
from robfcp.guarantees import Guarantee
from robfcp.local import save_feedback
from robfcp.monitoring import RoundComparison, compare_rounds
from robfcp.page import PageInfo, write_html
from robfcp.reports import Report

__all__ = ["RoundFiles", "RoundResult", "RoundSettings", "run_round"]

Level = float | str | Fraction

VERDICTS_SUFFIX = ".verdicts.parquet"


@dataclass(frozen=True)
class RoundSettings:
    """What a round is asked for.

    Parameters
    ----------
    coverage, risk_level, by, defense, guarantee, trusted_report, certificate_confidence
        As `robfcp.calibrate` takes them.
    previous : Calibration, optional
        The calibration of the round before, with its record, to be compared with this one.
    agreement : mapping of str to str
        What was agreed beforehand, as the log is to state it.
    """

    coverage: Level | Sequence[Level] = 0.9
    risk_level: Level | Sequence[Level] | None = None
    by: str | Mapping[str, str] | None = None
    defense: str | Defense = Consensus.name
    guarantee: Guarantee | None = None
    trusted_report: Report | None = None
    certificate_confidence: float = 0.95
    previous: Calibration | None = None
    agreement: Mapping[str, str] = field(default_factory=dict)

    def calibrate(self, federation: Federation) -> Calibration:
        """Calibrate a federation as these settings ask for."""
        return calibrate(
            federation,
            coverage=self.coverage,
            risk_level=self.risk_level,
            by=self.by,
            defense=self.defense,
            guarantee=self.guarantee,
            trusted_report=self.trusted_report,
            certificate_confidence=self.certificate_confidence,
        )


@dataclass(frozen=True)
class RoundFiles:
    """Where the results of a round go; None for what is not wanted.

    Parameters
    ----------
    calibration : Path, optional
        The calibration's file. What it rests on goes beside it.
    page : Path, optional
        The page to look at.
    audit_log : Path, optional
        The log that the round is appended to.
    feedback : Path, optional
        The folder of the feedback to each client.
    page_info : PageInfo
        What the page says about itself.
    """

    calibration: Path | None = None
    page: Path | None = None
    audit_log: Path | None = None
    feedback: Path | None = None
    page_info: PageInfo = field(default_factory=PageInfo)

    def paths(self) -> list[Path]:
        """Return every path that is written to; "any" in a folder stands for all files in it."""
        paths = [self.calibration, self.page, self.audit_log]
        if self.feedback is not None:
            paths.append(self.feedback / "any")
        return [path for path in paths if path is not None]


@dataclass(frozen=True)
class RoundResult:
    """What a round gave.

    Parameters
    ----------
    calibration : Calibration
        With its record.
    comparison : RoundComparison or None
        What changed since the round before, where that was asked for.
    evidence : Path or None
        What was written beside the calibration for it to rest on: its record, or the table of
        verdicts where the counts stay stored.
    """

    calibration: Calibration
    comparison: RoundComparison | None = None
    evidence: Path | None = None

    def diagnose(self) -> Mapping[str, Diagnosis]:
        """Return {client: what its report looks like}; empty where the counts stay stored."""
        if self.calibration.federation.is_out_of_core:
            return {}
        return diagnose(self.calibration)


def run_round(
    federation: Federation,
    settings: RoundSettings,
    files: RoundFiles | None = None,
    key: Any = None,
    *,
    complete: Callable[[Calibration], Calibration] | None = None,
) -> RoundResult:
    """Calibrate, then write calibration and evidence, log, page and feedback, in that order.

    Parameters
    ----------
    federation : Federation
        The valid reports of the round.
    settings : RoundSettings
        What the round is asked for.
    files : RoundFiles, optional
        Where results go; nothing is written without.
    key : Ed25519PrivateKey, optional
        The server's private key that calibration and feedback are signed with.
    complete : callable, optional
        Called with the calibration before anything is written; what it returns is written. An
        integration asks the clients how their test data are covered and adds their answers to the
        record.

    Returns
    -------
    RoundResult
        The calibration, and what came with it.
    """
    files = files or RoundFiles()
    calibration = settings.calibrate(federation)
    if complete is not None:
        calibration = complete(calibration)

    # Before anything is written: what is written may replace the record of the round before.
    comparison = None
    if settings.previous is not None:
        comparison = compare_rounds(settings.previous, calibration)

    evidence = None
    if files.calibration is not None:
        evidence = _write_calibration(calibration, files.calibration, key)
    if files.audit_log is not None:
        log_calibration(
            AuditLog(files.audit_log), calibration, _logged_terms(calibration, settings)
        )
    if files.page is not None:
        write_html(calibration, files.page, info=files.page_info)
    if files.feedback is not None:
        save_feedback(calibration, files.feedback, key)
    return RoundResult(calibration, comparison, evidence)


def _write_calibration(calibration: Calibration, path: Path, key: Any) -> Path:
    """Write a calibration and what it rests on; return the path of the latter."""
    federation = calibration.federation
    if not federation.is_out_of_core:
        calibration.save(path, key)
        return calibration.record_path(path)

    # A record of stored counts would be as large as they are: the verdicts take its place.
    verdicts_path = path.with_suffix(VERDICTS_SUFFIX)
    write_verdict_table(federation, calibration.benign_mask, calibration.reasons, verdicts_path)
    calibration.with_record(None).save(path, key)
    return verdicts_path


def _logged_terms(calibration: Calibration, settings: RoundSettings) -> dict[str, Any]:
    """Return what the log says a round was opened with."""
    record = calibration.require_record()
    calibrated_with = {
        "defense": record.defense,
        "parameters": record.parameters,
        "guarantee": msgspec.to_builtins(record.guarantee),
    }
    return {**settings.agreement, "settings": calibrated_with}
