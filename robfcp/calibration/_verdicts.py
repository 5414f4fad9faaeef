"""What became of each client of a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

VerdictStatus = Literal["benign", "flagged", "rejected", "missing"]


@dataclass(frozen=True)
class ClientVerdict:
    """What became of one client.

    Attributes
    ----------
    status : {"benign", "flagged", "rejected", "missing"}
        "flagged" where the defense finds that the client is malicious or faulty, "rejected" where
        its report breaks a rule, "missing" where a registered client sent none.
    effect : {"included", "excluded"}
        Whether the thresholds are computed from its report. Those of a guarantee are computed from
        all valid reports, flagged ones too.
    reason : str
        Why it was flagged or rejected; empty for others.
    maliciousness : float or None
        The maliciousness score that the defense gives it; None without a valid report.
    """

    status: VerdictStatus
    effect: Literal["included", "excluded"]
    reason: str = ""
    maliciousness: float | None = None
