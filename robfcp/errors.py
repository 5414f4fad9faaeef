"""What can go wrong, in words that name the client, the field and the remedy."""

from __future__ import annotations

MAX_TEXT = 600
MAX_NAME = 200


def plain(text: str, limit: int | None = MAX_TEXT) -> str:
    """The text on one line, unprintable characters escaped, cut to `limit` characters.

    Names and contents of hostile reports end up in messages: they must not steer a terminal, forge
    a second line or fill a log.
    """
    if limit is not None and len(text) > limit:
        text = text[: limit - 3] + "..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class RobfcpError(ValueError):
    """Input that was refused; the message says what to do next, on one printable line."""

    def __init__(self, message: str) -> None:
        super().__init__(plain(message))


class ReportError(RobfcpError):
    """One client's report was refused."""

    def __init__(self, client: str, field: str, problem: str, remedy: str) -> None:
        self.client, self.field = plain(client, MAX_NAME), field
        self.problem, self.remedy = plain(problem, MAX_TEXT // 2), remedy
        super().__init__(f"{self.client}: {self.problem}; {remedy}")


class QuorumError(RobfcpError):
    """Too few valid reports for the round to count."""
