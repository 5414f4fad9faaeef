"""What was checked before reports were believed, for the auditor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Checked:
    """How each part of the reports was checked, in words that stand in the record.

    signatures: "not checked", "by registered keys", or what an engine vouches for.
    sizes: "registered" beforehand, or "claimed" by the clients.
    grid, score, round, model: "as stated" by the server, or "as most reports".
    """

    signatures: str = "not checked"
    sizes: str = "claimed"
    grid: str = "as most reports"
    score: str = "as most reports"
    round: str = "as most reports"
    model: str = "as most reports"

    @staticmethod
    def against(expected: Mapping[str, Any], registered: bool, signatures: str) -> Checked:
        """The record of a round whose expected values are those that are not None."""
        stated = {name: "as stated" for name, value in expected.items() if value is not None}
        return Checked(signatures, "registered" if registered else "claimed", **stated)
