"""A server's log of what it did: one JSON line an event, each with the digest of the one before.

Nobody can alter, drop or insert a line without breaking the chain after it. A change of the last
line, or lines cut off the end, are noticed by whoever has noted the last digest elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from fractions import Fraction
from math import isclose
from typing import Any

import msgspec

from robfcp._files import file_lock, read_bounded
from robfcp._sealed import sha256_of
from robfcp.calibration import Calibration, CoverageLevel, calibrate
from robfcp.defense import rebuild_defense
from robfcp.errors import RobfcpError
from robfcp.reports import Report

FIRST_DIGEST = "0" * 64
MAX_LOG_BYTES = 2**30
MAX_EVENT_BYTES = 2**20
TOLERANCE = 1e-7  # relative; another platform's last digits


@dataclass(frozen=True)
class AuditLog:
    """An append-only log in a file.

    Parameters
    ----------
    path : path
        The log; made with the first event.

    Examples
    --------
    >>> from robfcp.audit import AuditLog
    >>> log = AuditLog("audit.jsonl")
    >>> digest = log.write("round opened", round="2026-05")
    >>> [event["event"] for event in log.events()]
    ['round opened']
    """

    path: str | os.PathLike[str]

    def write(self, event: str, **details: Any) -> str:
        """Append an event and return the digest of its line, which the next one will hold.

        Parameters
        ----------
        event : str
            What happened.
        **details
            More of it, as JSON values.
        """
        time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        with file_lock(self.path) as handle:
            previous = self._last_digest(handle)
            entry = {"time": time, "event": event, **details, "previous": previous}
            line = json.dumps(entry, ensure_ascii=True, allow_nan=False, default=str).encode()
            if len(line) >= MAX_EVENT_BYTES:
                raise RobfcpError(f"audit: an event of {len(line)} bytes is too long for the log")
            os.write(handle, line + b"\n")
            os.fsync(handle)
        return sha256_of(line)

    def _last_digest(self, handle: int) -> str:
        """Return the digest of the last line of the open log; leave its position at the end."""
        size = os.lseek(handle, 0, os.SEEK_END)
        if not size:
            return FIRST_DIGEST

        # The last line is no longer than an event; the byte before it ends the line before.
        os.lseek(handle, max(0, size - MAX_EVENT_BYTES - 1), os.SEEK_SET)
        tail = os.read(handle, MAX_EVENT_BYTES + 1)
        if not tail.endswith(b"\n"):
            raise RobfcpError(
                f"{os.fspath(self.path)}: its last line is cut short; move the log away and "
                "note why"
            )
        last_line = tail[:-1].rsplit(b"\n", 1)[-1]
        return sha256_of(last_line)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield all events, the oldest first; refuse the first line that breaks the chain."""
        previous = FIRST_DIGEST
        lines = read_bounded(self.path, MAX_LOG_BYTES).splitlines()
        for line_number, line in enumerate(lines, 1):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                event = None
            if not isinstance(event, dict) or event.get("previous") != previous:
                remedy = "trust none"
                if line_number > 2:
                    remedy = f"trust lines 1 to {line_number - 2} at most"
                raise RobfcpError(
                    f"{os.fspath(self.path)}: the chain breaks at line {line_number}: it or the "
                    f"line before was altered, or lines between them dropped or added; {remedy}"
                )
            previous = sha256_of(line)
            yield {**event, "line_digest": previous}


def log_calibration(log: AuditLog, calibration: Calibration, terms: Mapping[str, Any]) -> str:
    """Write a round as it went, and return the digest of the last line.

    It was opened with its terms, had these reports and gave this calibration. Reports are named by
    the digest of what was accepted, rejected ones by their reason.

    Parameters
    ----------
    log : AuditLog
        The log to write to.
    calibration : Calibration
        The calibration, with its record.
    terms : mapping of str to object
        What the round was opened with, as JSON values.
    """
    federation = calibration.federation
    log.write("round opened", round=federation.round, terms=dict(terms))
    verdicts = calibration.verdicts
    for report in federation:
        log.write(
            "report received",
            client=report.client,
            digest=sha256_of(report.to_json()),
            verdict=verdicts[report.client].status,
        )
    for rejected in federation.rejected_reports:
        log.write(
            "report rejected",
            client=rejected.client,
            field=rejected.field,
            reason=rejected.reason,
        )
    for client in federation.missing_clients:
        log.write("report missing", client=client)
    return log.write(
        "calibration written",
        digest=sha256_of(calibration.to_json()),
        record=calibration.record_sha256,
        thresholds=[str(level.threshold) for level in calibration.levels],
    )


@dataclass(frozen=True)
class Discrepancy:
    """One thing that is not as its record says."""

    field: str
    documented: Any
    recomputed: Any

    @property
    def line(self) -> str:
        """The difference in words."""
        return f"{self.field} is stated as {self.documented} but its record gives {self.recomputed}"


def verify_calibration(calibration: Calibration) -> list[Discrepancy]:
    """Return what differs between a calibration and what its record gives.

    Thresholds, certificates, verdicts and numbers are computed again from the reports
    in the record, as the record says it was asked for.

    Parameters
    ----------
    calibration : Calibration
        With its record.

    Returns
    -------
    list of Discrepancy
        Empty where everything is as stated.

    Raises
    ------
    RobfcpError
        Where the record is missing, is another's or contradicts itself, or where the defense was
        an object that no record can make again.

    Examples
    --------
    >>> import robfcp
    >>> from robfcp.audit import verify_calibration
    >>> federation = robfcp.Federation.from_counts([[9, 1]] * 3)
    >>> verify_calibration(robfcp.calibrate(federation))
    []
    """
    record = calibration.require_record()
    risk = record.federation.risk
    levels = [level.coverage for level in calibration.levels]

    # Losses are asked for by their mean, which replaces the coverage.
    coverage: Sequence[Fraction] | float = levels
    risk_levels: Sequence[Fraction] | None = None
    if risk is not None:
        bound = Fraction(str(risk.upper_bound))
        coverage = 0.9
        risk_levels = [(1 - level) * bound for level in levels]

    recomputed = calibrate(
        record.federation,
        coverage=coverage,
        risk_level=risk_levels,
        by=calibration.by if record.clusters is None else record.clusters,
        defense=rebuild_defense(record.defense, record.parameters),
        guarantee=record.guarantee,
        trusted_report=record.trusted_report,
        certificate_confidence=calibration.certificate_confidence,
    )
    by_level = calibration.has_multiple_levels
    stated_values = _audited_values(calibration, by_level=by_level)
    recomputed_values = _audited_values(recomputed, by_level=by_level)
    return _compare("", stated_values, recomputed_values)


def find_own_report(calibration: Calibration, report: Report) -> list[Discrepancy]:
    """Return how the record differs from a client's own report; nothing where it holds it.

    Parameters
    ----------
    calibration : Calibration
        With its record.
    report : Report
        What the client has sent.
    """
    federation = calibration.federation
    recorded = [entry for entry in federation if entry.client == report.client]
    if recorded == [report]:
        return []

    in_record = "another one"
    if not recorded:
        reasons = {rejected.client: rejected.reason for rejected in federation.rejected_reports}
        in_record = reasons.get(report.client, "no report")
    return [Discrepancy(f"the report of {report.client}", "the one passed", in_record)]


def _level_values(level: CoverageLevel) -> dict[str, Any]:
    """Return the threshold and certificate of a level, by the keys of the calibration's file."""
    values: dict[str, Any] = msgspec.to_builtins(level.to_document())

    # A file has null for an infinite threshold; here it is compared as a number.
    values["threshold"] = level.threshold
    for stratum_values, stratum in zip(values["strata"], level.strata, strict=True):
        stratum_values["threshold"] = stratum.threshold
    return values


def _audited_values(calibration: Calibration, *, by_level: bool) -> Any:
    """Return all that follows from the record, as JSON values by the names that people read.

    `by_level` says whether the values of a level stand under its name, or at the top.
    """
    levels: dict[str, Any] = _level_values(calibration.levels[0])
    if by_level:
        levels = {
            f"level {float(level.coverage):g}": _level_values(level) for level in calibration.levels
        }
    clients = calibration.federation.clients
    values = {
        "n_malicious": calibration.n_malicious,
        "score": repr(calibration.score),
        "summary": calibration.summary,
        "flagged clients": list(calibration.flagged_clients),
        "": levels,
        "the maliciousness of": dict(zip(clients, calibration.maliciousness.tolist(), strict=True)),
    }
    return msgspec.to_builtins(values, enc_hook=str)


def _compare(name: str, documented: Any, recomputed: Any) -> list[Discrepancy]:
    """Return where two JSON values differ, each with its path of keys as a name."""
    if isinstance(documented, dict) and isinstance(recomputed, dict):
        discrepancies = []
        for key in sorted({*documented, *recomputed}):
            path = f"{name} {key}".strip().replace("_", " ")
            discrepancies += _compare(path, documented.get(key), recomputed.get(key))
        return discrepancies
    if _is_same(documented, recomputed):
        return []
    return [Discrepancy(name, documented, recomputed)]


def _is_same(documented: Any, recomputed: Any) -> bool:
    """Return whether two values are equal, numbers up to the last digits of another platform."""
    if documented == recomputed:
        return True
    are_numbers = isinstance(documented, (int, float)) and isinstance(recomputed, (int, float))
    if not are_numbers:
        return False
    return isclose(documented, recomputed, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
