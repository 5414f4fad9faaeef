"""Why a client's report was left out, and what may stand in the place of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from robfcp.errors import MAX_NAME, MAX_TEXT, ReportError, plain
from robfcp.report import Report

MOST = 10 * MAX_TEXT  # characters of a line in which every one had to be escaped


@dataclass(frozen=True)
class Fault:
    """Why a client's report was left out.

    Parameters
    ----------
    client
        The client's name, or the file's where the client is not known.
    field
        The part of the report that was wrong.
    reason
        What was wrong and what to do, on one printable line.

    Examples
    --------
    >>> import robfcp
    >>> reports = [robfcp.Report.from_scores(name, [0.1, 0.4]) for name in "ab"]
    >>> robfcp.Federation.from_reports(reports, sizes={"a": 2}).faulty[0].reason
    'b: is not registered; add it to the registry'
    """

    client: str
    field: str
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "client", plain(self.client, MAX_NAME))
        object.__setattr__(self, "reason", plain(self.reason))


def fault_of(error: ReportError) -> Fault:
    """Why a report was refused."""
    return Fault(error.client, error.field, str(error))


def fault_again(client: str, field: str, reason: str) -> Fault:
    """A fault as a file keeps it: what was made printable before stays as it is."""
    fault = Fault(client, plain(field, MAX_NAME), reason)
    for name, text in (("client", client), ("reason", reason)):
        if text.isprintable() and len(text) <= MOST:
            object.__setattr__(fault, name, text)
    return fault


Untrusted = Report | bytes | str | Mapping[str, Any] | Fault  # a fault: found while reading it
