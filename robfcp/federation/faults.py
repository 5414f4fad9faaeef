"""Why a client's report was left out, and what may stand in the place of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from robfcp.errors import MAX_NAME, ReportError, plain
from robfcp.report import Report


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


Untrusted = Report | bytes | str | Mapping[str, Any] | Fault  # a fault: found while reading it
