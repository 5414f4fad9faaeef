"""A site's own record of the privacy it has spent, in a file that is checked before each report.

Beside the ledger lies `NAME.lock`: one process at a time holds it, and it keeps the number of
reports ever recorded, so that a ledger that was deleted or put back from an old copy is noticed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from robfcp._files import decode_error_reason, file_lock, read_bounded, write_atomically
from robfcp.errors import RobfcpError
from robfcp.privacy._budget import Accountant, Privacy
from robfcp.privacy._noise import opendp_parts

MAX_NAME = 200
_SEEN_AT = 1  # where the lock file keeps its number; Windows locks byte 0


class Release(msgspec.Struct, forbid_unknown_fields=True):
    """One report that left the site."""

    round: str | None
    privacy: Privacy


class _File(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="privacy-ledger"):
    releases: list[Release]
    dataset: str | None = None
    schema: int = 1


@dataclass(frozen=True)
class PrivacyLedger:
    """What has been released so far about one calibration data set; a new data set, a new file.

    Parameters
    ----------
    path
        The site's file; it is made with the first report, and must not be removed as long as the
        data are in use.
    dataset
        The name of the data it speaks of; a ledger of other data is refused.

    Examples
    --------
    >>> import robfcp
    >>> ledger = robfcp.PrivacyLedger("ledger.json", dataset="patients of 2025")
    >>> privacy = robfcp.Privacy(epsilon=1.0, rounds=2)
    >>> for name in ("spring", "autumn"):
    ...     spent = ledger.charge(privacy, name)
    >>> spent.epsilon()
    1.0
    """

    path: str | os.PathLike[str]
    dataset: str | None = None

    def __post_init__(self) -> None:
        name = self.dataset
        short = isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()
        if name is not None and not short:
            raise RobfcpError(f"dataset: {name!r} is no short name; use printable characters")

    def releases(self) -> list[Release]:
        """All reports so far, the oldest first.

        Returns
        -------
        list of Release
            Each with its `round` and `privacy`.

        Examples
        --------
        >>> import robfcp
        >>> ledger = robfcp.PrivacyLedger("ledger.json")
        >>> ledger.releases()
        []
        >>> spent = ledger.charge(robfcp.Privacy(epsilon=1.0), "spring")
        >>> [release.round for release in ledger.releases()]
        ['spring']
        """
        return self._read().releases

    def spent(self) -> Accountant:
        """What all of them spend together.

        Returns
        -------
        Accountant
            Its `epsilon(delta)` is the budget all reports together keep to.

        Examples
        --------
        >>> import robfcp
        >>> ledger = robfcp.PrivacyLedger("ledger.json")
        >>> spent = ledger.charge(robfcp.Privacy(epsilon=1.0), "spring")
        >>> ledger.spent().epsilon()
        1.0
        """
        return Accountant(tuple(release.privacy for release in self.releases()))

    def charge(self, privacy: Privacy, round: str | None = None) -> Accountant:
        """Record one more report before anything is computed for it, or refuse it.

        One process at a time; what is recorded survives whatever happens to the process next.

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
            Where one more report exceeds its budget, or one that was stated for an earlier report
            about the same data; where the ledger is of other data, is gone or is an old copy.
            Nothing is recorded then.

        Examples
        --------
        >>> import robfcp
        >>> ledger = robfcp.PrivacyLedger("ledger.json")
        >>> ledger.charge(robfcp.Privacy(epsilon=1.0), "spring").epsilon()
        1.0
        """
        opendp_parts()  # a report that cannot be made must not be paid for
        self._read()  # what is no ledger is refused before a lock is laid beside it
        real = os.path.realpath(self.path)  # links to one ledger share its lock
        with file_lock(f"{real}.lock") as handle:
            file = self._read()
            self._check_seen(handle, len(file.releases))
            before = Accountant(tuple(release.privacy for release in file.releases))
            broken = before.budget_exceeded_by(privacy)
            if broken is not None:
                raise RobfcpError(
                    f"{self.path}: {len(before.releases)} reports have spent epsilon "
                    f"{before.epsilon(broken.delta):.4g} of {broken.epsilon:g} at delta "
                    f"{broken.delta:g}, and one more exceeds it; state more rounds beforehand or "
                    "use fresh calibration data"
                )
            releases = [*file.releases, Release(round, privacy)]
            written = _File(releases, self.dataset or file.dataset)
            write_atomically(real, msgspec.json.encode(written), private=True)
            os.lseek(handle, 0, os.SEEK_SET)
            os.write(handle, f" {len(releases):<20d}\n".encode())
            os.fsync(handle)
        return before.spend(privacy)

    def _read(self) -> _File:
        if not Path(self.path).exists():
            return _File([])
        try:
            file = msgspec.json.decode(read_bounded(self.path), type=_File)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise RobfcpError(
                f"{self.path}: not a privacy ledger ({decode_error_reason(error)}); "
                "restore it from a backup"
            ) from None
        if file.schema != 1:
            raise RobfcpError(f"{self.path}: schema {file.schema} is unknown; update robfcp")
        if None not in (self.dataset, file.dataset) and self.dataset != file.dataset:
            raise RobfcpError(
                f"{self.path}: is the ledger of {file.dataset!r}, not of "
                f"{self.dataset!r}; give every data set a ledger of its own"
            )
        return file

    def _check_seen(self, handle: int, recorded: int) -> None:
        """Refuse a ledger that holds fewer reports than were ever recorded in it."""
        os.lseek(handle, 0, os.SEEK_SET)
        data = os.read(handle, 64)
        text = data[_SEEN_AT:].decode("ascii", "replace").strip() if data.strip() else "0"
        if not (text.isascii() and text.isdigit()):
            raise RobfcpError(
                f"{self.path}.lock: is damaged; if the ledger is whole, write its "
                f"number of reports there ({recorded}) after one blank"
            )
        if recorded < (seen := int(text)):
            what = "is gone" if not Path(self.path).exists() else "is an old copy"
            raise RobfcpError(
                f"{self.path}: {what}: {seen} reports were recorded and it holds "
                f"{recorded}; restore it, or use fresh calibration data with a new ledger"
            )
