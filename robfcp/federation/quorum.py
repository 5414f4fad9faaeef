"""How many valid reports a round needs, in exact arithmetic, for files and for engines alike."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

import numpy as np

from robfcp._util.numbers import share, whole
from robfcp.errors import QuorumError
from robfcp.federation.faults import Fault


def reports_needed(quorum: int | float | Fraction | None, awaited: int) -> int:
    """The least number of valid reports: a number, or a share of those awaited; at least one."""
    if isinstance(quorum, (float, np.floating, Fraction)):
        part = Fraction(str(share("quorum", quorum, "give a number or a share", one=True)))
        return max(1, ceil(part * awaited))
    if quorum is None:
        return 1
    return whole("quorum", quorum, "give a number or a share of the reports")


def check_quorum(
    valid: int, awaited: int, quorum: int | float | None, faulty: Sequence[Fault]
) -> None:
    """Refuse a round with too few valid reports; the first fault is named."""
    needed = reports_needed(quorum, awaited)
    if valid < max(1, needed):
        first = f" (first fault: {faulty[0].reason})" if faulty else ""
        remedy = "fix the faulty sites" if faulty else "wait for more reports"
        raise QuorumError(
            f"only {valid} of {awaited} reports are valid but the quorum is {needed}{first}; "
            f"{remedy} or lower the quorum"
        )
