"""What a page says about itself: title, study, who ran it and when."""

from __future__ import annotations

from dataclasses import dataclass, fields

from robfcp.errors import RobfcpError

LONGEST = 200


@dataclass(frozen=True)
class About:
    """The lines at the top of a page; empty ones are left out.

    Parameters
    ----------
    title
        What the calibration is for.
    study
        The study, protocol or project.
    by
        Who ran it.
    date
        When, as people write it.

    Examples
    --------
    >>> from robfcp.page import About
    >>> About("Outcome after stroke", study="IST", by="A. Analyst", date="15 November 2026").lines
    ('IST', '15 November 2026', 'run by A. Analyst')
    """

    title: str = ""
    study: str = ""
    by: str = ""
    date: str = ""

    def __post_init__(self) -> None:
        for one in fields(self):
            if len(getattr(self, one.name)) > LONGEST:
                raise RobfcpError(f"{one.name}: more than {LONGEST} letters do not fit the page")

    @property
    def lines(self) -> tuple[str, ...]:
        """What stands beside the title."""
        by = f"run by {self.by}" if self.by else ""
        return tuple(part for part in (self.study, self.date, by) if part)
