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
_COUNT_OFFSET = 1  # of the number in the lock file; Windows locks byte 0


class Release(msgspec.Struct, forbid_unknown_fields=True):
    """One report that left the site."""

    round: str | None
    privacy: Privacy


class LedgerFile(
    msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="privacy-ledger"
):
    releases: list[Release]
    dataset: str | None = None
    schema: int = 1


@dataclass(frozen=True)
class PrivacyLedger:
    """What has been released so far about one calibration data set; a new data set, a new file.

    Parameters
    ----------
    path : path
        The site's file; it is made with the first report, and must not be removed as long as the
        data are in use.
    dataset : str, optional
        The name of the data it speaks of; a ledger of other data is refused.

    Examples
    --------
    >>> import robfcp
    >>> ledger = robfcp.PrivacyLedger("ledger.json", dataset="patients of 2025")
    >>> privacy = robfcp.Privacy(epsilon=1.0, n_rounds=2)
    >>> for name in ("spring", "autumn"):
    ...     spent = ledger.charge(privacy, name)
    >>> spent.epsilon()
    1.0
    """

    path: str | os.PathLike[str]
    dataset: str | None = None

    def __post_init__(self) -> None:
        name = self.dataset
        if name is None:
            return
        is_short_text = isinstance(name, str) and 0 < len(name) <= MAX_NAME
        if not is_short_text or not name.isprintable():
            raise RobfcpError(f"dataset: {name!r} is no short name; use printable characters")

    def releases(self) -> list[Release]:
        """Return all reports so far, the oldest first.

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
        """Return what all of them spend together.

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
        privacy : Privacy
            What the report will have.
        round : str, optional
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
        real_path = os.path.realpath(self.path)  # links to one ledger share its lock
        with file_lock(f"{real_path}.lock") as handle:
            ledger = self._read()
            self._check_complete(handle, len(ledger.releases))
            spent = Accountant(tuple(release.privacy for release in ledger.releases))
            self._check_budget(spent, privacy)

            releases = [*ledger.releases, Release(round, privacy)]
            updated = LedgerFile(releases, self.dataset or ledger.dataset)
            write_atomically(real_path, msgspec.json.encode(updated), private=True)
            _write_count(handle, len(releases))
        return spent.spend(privacy)

    def _check_budget(self, spent: Accountant, privacy: Privacy) -> None:
        """Refuse one more report that exceeds its budget, or that of an earlier one."""
        exceeded = spent.budget_exceeded_by(privacy)
        if exceeded is None:
            return
        raise RobfcpError(
            f"{self.path}: {len(spent.releases)} reports have spent epsilon "
            f"{spent.epsilon(exceeded.delta):.4g} of {exceeded.epsilon:g} at delta "
            f"{exceeded.delta:g}, and one more exceeds it; state more rounds beforehand or "
            "use fresh calibration data"
        )

    def _read(self) -> LedgerFile:
        """Return what the file holds, nothing where there is none; refuse another ledger."""
        if not Path(self.path).exists():
            return LedgerFile([])
        try:
            ledger = msgspec.json.decode(read_bounded(self.path), type=LedgerFile)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise RobfcpError(
                f"{self.path}: not a privacy ledger ({decode_error_reason(error)}); "
                "restore it from a backup"
            ) from None
        if ledger.schema != 1:
            raise RobfcpError(f"{self.path}: schema {ledger.schema} is unknown; update robfcp")
        both_are_named = self.dataset is not None and ledger.dataset is not None
        if both_are_named and self.dataset != ledger.dataset:
            raise RobfcpError(
                f"{self.path}: is the ledger of {ledger.dataset!r}, not of "
                f"{self.dataset!r}; give every data set a ledger of its own"
            )
        return ledger

    def _check_complete(self, handle: int, n_releases: int) -> None:
        """Refuse a ledger that holds fewer reports than were ever recorded in it."""
        n_recorded = _read_count(handle)
        if n_recorded is None:
            raise RobfcpError(
                f"{self.path}.lock: is damaged; if the ledger is whole, write its "
                f"number of reports there ({n_releases}) after one blank"
            )
        if n_releases < n_recorded:
            problem = "is an old copy" if Path(self.path).exists() else "is gone"
            raise RobfcpError(
                f"{self.path}: {problem}: {n_recorded} reports were recorded and it holds "
                f"{n_releases}; restore it, or use fresh calibration data with a new ledger"
            )


def _read_count(handle: int) -> int | None:
    """Return the number of reports that a lock file keeps; None where it is damaged."""
    os.lseek(handle, 0, os.SEEK_SET)
    data = os.read(handle, 64)
    if not data.strip():
        return 0
    text = data[_COUNT_OFFSET:].decode("ascii", "replace").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _write_count(handle: int, n_releases: int) -> None:
    """Keep the number of reports in a lock file, over the one before."""
    os.lseek(handle, 0, os.SEEK_SET)
    os.write(handle, f" {n_releases:<20d}\n".encode())
    os.fsync(handle)
