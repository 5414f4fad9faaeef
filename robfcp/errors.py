"""What can go wrong, in words that name the client, the field and the remedy."""

from __future__ import annotations


class RobfcpError(ValueError):
    """Input that was refused; the message says what to do next."""


class ReportError(RobfcpError):
    """One client's report was refused."""

    def __init__(self, client: str, field: str, problem: str, remedy: str) -> None:
        self.client, self.field, self.problem, self.remedy = client, field, problem, remedy
        super().__init__(f"{client}: {problem}; {remedy}")


class QuorumError(RobfcpError):
    """Too few valid reports for the round to count."""
