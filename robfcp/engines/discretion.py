"""What a site keeps to itself: nothing, or all that a privacy budget does not pay for."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from robfcp.engines.requests import Refused
from robfcp.errors import RobfcpError
from robfcp.privacy import Ledger, Privacy

FilePath = str | os.PathLike[str]

log = logging.getLogger(__name__)


class Open:
    """A site without a budget: every question is answered, and failures say what they are."""

    def check_size(self) -> None:
        """Refuse to state n_k where it is protected."""

    def check_protected(self, what: str) -> None:
        """Refuse what tells of protected samples outside the budget."""

    def report(
        self,
        body: bytes,
        round: str | None,
        memory: MutableMapping[str, Any],
        make: Callable[[], bytes],
    ) -> bytes:
        """The report that answers a request."""
        return make()

    @contextmanager
    def on_its_data(self) -> Iterator[None]:
        """What happens while the site's data are looked at."""
        yield


class Discreet(Open):
    """A site with a budget and a ledger of what it has spent."""

    def __init__(self, privacy: Privacy, ledger: FilePath | None, dataset: str) -> None:
        self.privacy, self.ledger, self.dataset = privacy, ledger, dataset

    def check_size(self) -> None:
        """Refuse where the budget protects that a sample is there at all."""
        if self.privacy.hides_size:
            raise Refused(4, "the number of samples is protected")

    def check_protected(self, what: str) -> None:
        """Refuse."""
        raise Refused(4, what)

    def report(
        self,
        body: bytes,
        round: str | None,
        memory: MutableMapping[str, Any],
        make: Callable[[], bytes],
    ) -> bytes:
        """The one it gave before, which reveals nothing new, or one that is paid for."""
        if memory.get("request") == body:
            return bytes(memory["report"])
        self.charge(round)
        found = make()
        memory["request"], memory["report"] = body, found
        return found

    def charge(self, round: str | None) -> None:
        """Spend one report of the budget before anything is computed from the data."""
        if self.ledger is None:
            raise Refused(
                6, "privacy-ledger: a private site needs one; name a file that stays across runs"
            )
        try:
            Ledger(self.ledger, self.dataset).charge(self.privacy, round)
        except RobfcpError as error:
            raise Refused(6, str(error)) from error

    @contextmanager
    def on_its_data(self) -> Iterator[None]:
        """Every failure looks alike: which it was might tell of the data."""
        try:
            yield
        except Exception as error:
            log.exception("robfcp: failed on the site's data")
            raise Refused(2, "failed on the site's data") from error


def discretion_of(privacy: Privacy | None, ledger: FilePath | None, dataset: str) -> Open:
    """What a site with this budget, or without one, keeps to itself."""
    return Open() if privacy is None else Discreet(privacy, ledger, dataset)


def check_ledger(privacy: Privacy | None, ledger: FilePath | None) -> None:
    """Refuse a budget without a place where it is recorded what was spent."""
    if privacy is not None and ledger is None:
        raise RobfcpError("ledger: privacy needs one; name a file that stays across runs")
