"""What can go wrong, in words that name the client, the field and the remedy."""

from __future__ import annotations

MAX_TEXT = 600  # characters of a message
MAX_NAME = 200  # characters of a client's name


def printable(text: str, max_length: int | None = MAX_TEXT) -> str:
    """Return the text on one line, cut to a length, with unprintable characters escaped.

    Names and contents of hostile reports end up in messages: they must not steer a terminal, forge
    a second line or fill a log.

    Parameters
    ----------
    text : str
        Text of any origin.
    max_length : int or None, default=MAX_TEXT
        Characters that are kept, before any is escaped; None keeps all.
    """
    if max_length is not None and len(text) > max_length:
        text = text[: max_length - 3] + "..."
    if text.isprintable():
        return text
    return "".join(_escape_unprintable(character) for character in text)


def _escape_unprintable(character: str) -> str:
    """Return the character, or its escape sequence where it cannot be printed."""
    if character.isprintable():
        return character
    return ascii(character)[1:-1]


class RobfcpError(ValueError):
    """Input that was refused; the message says what to do next, on one printable line.

    Parameters
    ----------
    message : str
        What was refused and what to do; unprintable characters are escaped, long texts cut.

    Examples
    --------
    >>> import robfcp
    >>> try:
    ...     robfcp.Binning([0.0, 0.0, 1.0])
    ... except robfcp.RobfcpError as error:
    ...     print(error)
    binning: edges must increase strictly; sort them and drop repeats
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class ReportError(RobfcpError):
    """One client's report was refused.

    Parameters
    ----------
    client : str
        The client's name.
    field : str
        The part of the report that was wrong.
    problem : str
        What was wrong with it.
    remedy : str
        What to do about it.

    Examples
    --------
    >>> import robfcp
    >>> try:
    ...     robfcp.Report("a", [1, -1], robfcp.Binning.uniform(2))
    ... except robfcp.ReportError as error:
    ...     print(error.client, error.field)
    a counts
    """

    def __init__(self, client: str, field: str, problem: str, remedy: str) -> None:
        self.client = printable(client, MAX_NAME)
        self.field = field
        self.problem = printable(problem, MAX_TEXT // 2)
        self.remedy = remedy
        super().__init__(f"{self.client}: {self.problem}; {remedy}")


class RobfcpWarning(UserWarning):
    """A probable mistake, or a limit that the caller has to know; the call goes on.

    All warnings of robfcp are of this class, so that one filter silences or raises them.

    Parameters
    ----------
    message : str
        What is probably wrong; unprintable characters are escaped, long texts cut.

    Examples
    --------
    >>> import warnings
    >>> import robfcp
    >>> warnings.simplefilter("error", robfcp.RobfcpWarning)
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class QuorumError(RobfcpError):
    """Too few valid reports for the round to count.

    Parameters
    ----------
    message
        How many are valid, how many are needed and what to do.

    Examples
    --------
    >>> import robfcp
    >>> try:
    ...     robfcp.Federation.from_reports([robfcp.Report.from_scores("a", [0.1, 0.4])], quorum=2)
    ... except robfcp.QuorumError as error:
    ...     print(error)
    only 1 of 1 reports are valid but the quorum is 2; wait for more reports or lower the quorum
    """
