"""Who was asked and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

Status = Literal["ok", "faulty", "rejected", "missing", "late", "not asked"]
T = TypeVar("T")


@dataclass(frozen=True)
class Participant:
    """A node under the name it was registered by."""

    node_id: int
    client: str
    public_key: bytes = b""


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What one node did: its answer, or why there is none."""

    participant: Participant
    status: Status
    reason: str = ""
    answer: T | None = None
    attempts: int = 1

    @property
    def line(self) -> str:
        """The reason as one line that names the client and what to do."""
        client = self.participant.client
        if self.reason.startswith(f"{client}: "):
            return self.reason
        return f"{client}: {self.reason}; check that node"


Outcomes = list[Outcome[Any]]
