"""A server's log of what it did: one JSON line an event, each with the digest of the one before.

Nobody can alter, drop or insert a line without breaking the chain after it. A change of the last
line, or lines cut off the end, are noticed by whoever has noted the last digest elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from fractions import Fraction
from math import isclose
from typing import Any

import msgspec

from robfcp._files import file_lock, read_bounded
from robfcp._sealed import sha256_of
from robfcp.calibration import Calibration, CoverageLevel
from robfcp.calibration._calibrate import calibrate
from robfcp.defense import rebuild_defense
from robfcp.errors import RobfcpError
from robfcp.reports import Report

FIRST_DIGEST = "0" * 64
MAX_LOG_BYTES = 2**30
_TAIL = 2**20  # no event is longer


@dataclass(frozen=True)
class AuditLog:
    """An append-only log in a file.

    Parameters
    ----------
    path
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
        """Append an event; the digest of its line, which the next one will hold."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        with file_lock(self.path) as handle:
            size = os.lseek(handle, 0, os.SEEK_END)
            os.lseek(handle, max(0, size - _TAIL - 1), os.SEEK_SET)
            tail = os.read(handle, _TAIL + 1)
            if size and not tail.endswith(b"\n"):
                raise RobfcpError(
                    f"{os.fspath(self.path)}: its last line is cut short; move the log away and "
                    "note why"
                )
            previous = sha256_of(tail[:-1].rsplit(b"\n", 1)[-1]) if size else FIRST_DIGEST
            entry = {"time": now, "event": event, **details, "previous": previous}
            line = json.dumps(entry, ensure_ascii=True, allow_nan=False, default=str).encode()
            if len(line) >= _TAIL:
                raise RobfcpError(f"audit: an event of {len(line)} bytes is too long for the log")
            os.write(handle, line + b"\n")
            os.fsync(handle)
        return sha256_of(line)

    def events(self) -> Iterator[dict[str, Any]]:
        """All events, the oldest first, refused at the first line that breaks the chain."""
        previous = FIRST_DIGEST
        for number, line in enumerate(read_bounded(self.path, MAX_LOG_BYTES).splitlines(), 1):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                event = None
            if not isinstance(event, dict) or event.get("previous") != previous:
                last = f"trust lines 1 to {number - 2} at most" if number > 2 else "trust none"
                raise RobfcpError(
                    f"{os.fspath(self.path)}: the chain breaks at line {number}: it or the line "
                    f"before was altered, or lines between them dropped or added; {last}"
                )
            previous = sha256_of(line)
            yield {**event, "line_digest": previous}


def log_calibration(log: AuditLog, calibration: Calibration, terms: Mapping[str, Any]) -> str:
    """Write a round as it went: opened with its terms, every report, the calibration; its digest.

    Reports are named by the digest of what was accepted, refused ones by their reason.
    """
    federation = calibration.federation
    log.write("round opened", round=federation.round, terms=dict(terms))
    verdicts = calibration.verdicts
    for report in federation:
        said = {"digest": sha256_of(report.to_json()), "verdict": verdicts[report.client]}
        log.write("report received", client=report.client, **said)
    for fault in federation.rejected_reports:
        log.write("report refused", client=fault.client, field=fault.field, reason=fault.reason)
    for client in federation.missing_clients:
        log.write("report missing", client=client)
    return log.write(
        "calibration written",
        digest=sha256_of(calibration.to_json()),
        record=calibration.record_digest,
        thresholds=[str(level.threshold) for level in calibration.levels],
    )


TOLERANCE = 1e-7  # relative; another platform's last digits


@dataclass(frozen=True)
class Discrepancy:
    """One thing that is not as its record says."""

    what: str
    stated: Any
    recomputed: Any

    @property
    def line(self) -> str:
        """The difference in words."""
        return f"{self.what} is stated as {self.stated} but its record gives {self.recomputed}"


def verify_calibration(calibration: Calibration) -> list[Discrepancy]:
    """What differs between a calibration and what its record gives; nothing where it is right.

    Thresholds, certificates, verdicts and numbers are computed again from the reports
    in the record, as the record says it was asked for.

    Parameters
    ----------
    calibration
        With its record.

    Returns
    -------
    list of Discrepancy
        Empty where everything is as stated.

    Raises
    ------
    RobfcpError
        Where the record is missing, is another's or contradicts itself, or where the defence was
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
    levels, risk = [level.coverage for level in calibration.levels], record.federation.risk
    bound = None if risk is None else Fraction(str(risk.bound))
    again = calibrate(
        record.federation,
        levels if bound is None else 0.9,
        risk_level=None if bound is None else [(1 - level) * bound for level in levels],
        by=calibration.by if record.clusters is None else record.clusters,
        defense=rebuild_defense(record.defense, record.parameters),
        guarantee=record.guarantee,
        trusted_report=record.trusted_report,
        certificate_confidence=calibration.certificate_confidence,
    )
    several = calibration.has_multiple_levels
    return _compare("", _audited_values(calibration, several), _audited_values(again, several))


def find_own_report(calibration: Calibration, report: Report) -> list[Discrepancy]:
    """What the record says otherwise than a site's own report; nothing where it holds it."""
    federation = calibration.federation
    own = [other for other in federation if other.client == report.client]
    refused = {fault.client: fault.reason for fault in federation.rejected_reports}
    said = "another one" if own else refused.get(report.client, "no report")
    what = f"the report of {report.client}"
    return [] if own == [report] else [Discrepancy(what, "the one passed", said)]


def _level_values(level: CoverageLevel) -> dict[str, Any]:
    """Return the threshold and certificate of a level, by the keys of the calibration's file."""
    values: dict[str, Any] = msgspec.to_builtins(level.to_document())

    # A file has null for an infinite threshold; here it is compared as a number.
    values["threshold"] = level.threshold
    for stratum_values, stratum in zip(values["parts"], level.strata, strict=True):
        stratum_values["threshold"] = stratum.threshold
    return values


def _audited_values(calibration: Calibration, several: bool) -> Any:
    """All that follows from the record, by name."""
    levels = {
        f"level {float(level.coverage):g}": _level_values(level) for level in calibration.levels
    }
    odd = zip(calibration.federation.clients, calibration.maliciousness.tolist(), strict=True)
    facts = {
        "liars": calibration.n_malicious,
        "score": repr(calibration.score),
        "summary": calibration.summary,
        "flagged": list(calibration.flagged_clients),
        "": levels if several else _level_values(calibration.levels[0]),
        "the oddness of": dict(odd),
    }
    return msgspec.to_builtins(facts, enc_hook=str)


def _compare(name: str, stated: Any, computed: Any) -> list[Discrepancy]:
    """The places where two JSON values differ."""
    if isinstance(stated, dict) and isinstance(computed, dict):
        return [
            difference
            for key in sorted({*stated, *computed})
            for difference in _compare(
                f"{name} {key}".strip().replace("_", " "), stated.get(key), computed.get(key)
            )
        ]
    numbers = isinstance(stated, (int, float)) and isinstance(computed, (int, float))
    same = stated == computed or (
        numbers and isclose(stated, computed, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    )
    return [] if same else [Discrepancy(name, stated, computed)]
