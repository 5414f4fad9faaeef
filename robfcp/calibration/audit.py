"""A server's log of what it did: one JSON line an event, each with the digest of the one before.

Nobody can alter, drop or insert a line without breaking the chain after it. Cutting lines off the
end is noticed by whoever has noted the last digest elsewhere, as every calibration's event invites.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from robfcp._util.files import read_limited
from robfcp._util.locks import locked
from robfcp.calibration.calibration import Calibration
from robfcp.calibration.sealed import digest_of
from robfcp.errors import RobfcpError

FIRST = "0" * 64
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
    >>> from robfcp.calibration import AuditLog
    >>> log = AuditLog("audit.jsonl")
    >>> digest = log.write("round opened", round="2026-05")
    >>> [event["event"] for event in log.events()]
    ['round opened']
    """

    path: str | os.PathLike[str]

    def write(self, event: str, **details: Any) -> str:
        """Append an event; the digest of its line, which the next one will hold."""
        with locked(self.path) as handle:
            line = _line(_last_digest(handle, os.fspath(self.path)), event, details)
            os.lseek(handle, 0, os.SEEK_END)
            os.write(handle, line + b"\n")
            os.fsync(handle)
        return digest_of(line)

    def events(self) -> Iterator[dict[str, Any]]:
        """All events, the oldest first, refused at the first line that breaks the chain."""
        previous = FIRST
        for number, line in enumerate(read_limited(self.path, MAX_LOG_BYTES).splitlines(), 1):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                event = None
            if not isinstance(event, dict) or event.get("previous") != previous:
                raise RobfcpError(
                    f"{os.fspath(self.path)}: line {number} does not follow the line before it: "
                    "the log was altered; trust the lines above at most"
                )
            previous = digest_of(line)
            yield {**event, "digest": previous}


def log_round(log: AuditLog, calibration: Calibration, terms: Mapping[str, Any]) -> str:
    """Write a round as it went: opened with its terms, every report, the calibration; its digest.

    Reports are named by the digest of what was accepted, refused ones by their reason.
    """
    federation, evidence = calibration.federation, calibration.evidence
    log.write("round opened", round=federation.round, terms=dict(terms))
    trusted = set(evidence.trusted)
    for report in federation:
        verdict = "trusted" if report.client in trusted else "flagged"
        digest = digest_of(report.to_json())
        log.write("report received", client=report.client, digest=digest, verdict=verdict)
    for fault in federation.faulty:
        log.write("report refused", client=fault.client, field=fault.field, reason=fault.reason)
    for client in federation.missing:
        log.write("report missing", client=client)
    return log.write(
        "calibration written",
        digest=digest_of(calibration.to_json()),
        evidence=calibration.evidence_digest,
        thresholds=[str(level.threshold) for level in calibration.levels],
    )


def _line(previous: str, event: str, details: Mapping[str, Any]) -> bytes:
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    entry = {"time": now, "event": event, **details, "previous": previous}
    line = json.dumps(entry, ensure_ascii=True, allow_nan=False, default=str).encode()
    if len(line) >= _TAIL:
        raise RobfcpError(f"audit: an event of {len(line)} bytes is too long for the log")
    return line


def _last_digest(handle: int, path: str) -> str:
    """The digest of the last line; a line cut short by a crash is refused."""
    size = os.lseek(handle, 0, os.SEEK_END)
    if not size:
        return FIRST
    os.lseek(handle, max(0, size - _TAIL - 1), os.SEEK_SET)
    tail = os.read(handle, _TAIL + 1)
    if not tail.endswith(b"\n"):
        raise RobfcpError(f"{path}: its last line is cut short; move the log away and note why")
    return digest_of(tail[:-1].rsplit(b"\n", 1)[-1])
