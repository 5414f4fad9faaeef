"""A site's own record of the privacy it has spent, in a file that is checked before each report."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from robfcp._util.files import read_limited, write_atomically
from robfcp.errors import RobfcpError
from robfcp.privacy.budget import Accountant, Privacy


class Release(msgspec.Struct, forbid_unknown_fields=True):
    """One report that left the site."""

    round: str | None
    privacy: Privacy


class _File(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="privacy-ledger"):
    schema: int
    releases: list[Release]


@dataclass(frozen=True)
class Ledger:
    """What has been released so far about one calibration data set; a new data set, a new file.

    Parameters
    ----------
    path
        The site's file; it is made with the first report.

    Examples
    --------
    >>> import robfcp
    >>> ledger = robfcp.Ledger("ledger.json")
    >>> privacy = robfcp.Privacy(epsilon=1.0, rounds=2)
    >>> for name in ("spring", "autumn"):
    ...     spent = ledger.charge(privacy, name)
    >>> spent.epsilon()
    1.0
    """

    path: str | os.PathLike[str]

    def releases(self) -> list[Release]:
        """All reports so far, the oldest first.

        Returns
        -------
        list of Release
            Each with its `round` and `privacy`.

        Examples
        --------
        >>> import robfcp
        >>> ledger = robfcp.Ledger("ledger.json")
        >>> ledger.releases()
        []
        >>> spent = ledger.charge(robfcp.Privacy(epsilon=1.0), "spring")
        >>> [release.round for release in ledger.releases()]
        ['spring']
        """
        if not Path(self.path).exists():
            return []
        try:
            return msgspec.json.decode(read_limited(self.path), type=_File).releases
        except msgspec.MsgspecError as error:
            raise RobfcpError(
                f"{os.fspath(self.path)}: not a privacy ledger ({error}); restore it from a backup"
            ) from None

    def spent(self) -> Accountant:
        """What all of them spend together.

        Returns
        -------
        Accountant
            Its `epsilon(delta)` is the budget all reports together keep to.

        Examples
        --------
        >>> import robfcp
        >>> ledger = robfcp.Ledger("ledger.json")
        >>> spent = ledger.charge(robfcp.Privacy(epsilon=1.0), "spring")
        >>> ledger.spent().epsilon()
        1.0
        """
        return Accountant(tuple(release.privacy for release in self.releases()))

    def charge(self, privacy: Privacy, round: str | None = None) -> Accountant:
        """Record one more report before it is made, or refuse where it exceeds its budget.

        Parameters
        ----------
        privacy
            What the report will have.
        round
            The name of the round.

        Returns
        -------
        Accountant
            What is spent with this report.

        Raises
        ------
        RobfcpError
            Where one more report exceeds the budget; nothing is recorded then.

        Examples
        --------
        >>> import robfcp
        >>> ledger = robfcp.Ledger("ledger.json")
        >>> ledger.charge(robfcp.Privacy(epsilon=1.0), "spring").epsilon()
        1.0
        """
        before = self.spent()
        if not before.allows(privacy):
            spent = before.epsilon(privacy.delta)
            raise RobfcpError(
                f"{os.fspath(self.path)}: {len(before.releases)} reports have spent epsilon "
                f"{spent:.4g} of {privacy.epsilon:g} at delta {privacy.delta:g}, and one more "
                "exceeds it; state more rounds beforehand or use fresh calibration data"
            )
        releases = [*self.releases(), Release(round, privacy)]
        write_atomically(self.path, msgspec.json.encode(_File(1, releases)))
        return before.spend(privacy)
