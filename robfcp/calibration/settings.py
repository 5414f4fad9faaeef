"""What `calibrate` was told, as the file keeps it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from robfcp.arguments import share
from robfcp.guarantees import Promise
from robfcp.report import By


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a calibration was made: what `calibrate` was told, for the auditor.

    `defence` and `parameters` make the same defence again; one that cannot be written down is
    recorded as `custom:NAME`.
    """

    defence: str
    parameters: Mapping[str, bool | int | float | str | None] = msgspec.field(default_factory=dict)
    promise: Promise | None = None
    by: By | None = None
    clusters: Mapping[str, str] | None = None
    confidence: float = 0.95

    def __post_init__(self) -> None:
        share("confidence", self.confidence, "give 0.95, say")
