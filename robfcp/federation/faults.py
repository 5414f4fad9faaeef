"""Why a client's report was left out, and what may stand in the place of a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from robfcp.errors import MAX_NAME, plain
from robfcp.reports import Report


@dataclass(frozen=True)
class Fault:
    """Why a client's report was left out."""

    client: str
    field: str
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "client", plain(self.client, MAX_NAME))
        object.__setattr__(self, "reason", plain(self.reason))


Untrusted = Report | bytes | str | Mapping[str, Any] | Fault  # a fault: found while reading it
