"""How reports are told apart: what they share, who has noise, who hides its size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from robfcp.federation.late_grids import AnyGrid
from robfcp.privacy import Privacy
from robfcp.reports import By, Names
from robfcp.scores import Risk, Score


class Header(NamedTuple):
    """A report without its client and its numbers; that of most reports is one and the same."""

    grid: AnyGrid
    score: Score | None
    round: str | None
    model: str | None
    risk: Risk | None
    privacy: Privacy | None = None
    strata: tuple[By, Names] | None = None

    @property
    def n_strata(self) -> int:
        """C, the number of classes or groups; 1 without them."""
        if self.strata is None:
            return 1
        names = self.strata[1]
        return names if isinstance(names, int) else len(names)

    @property
    def hides_size(self) -> bool:
        """Whether n_k is protected too."""
        return self.privacy is not None and self.privacy.hides_size


class Objection(NamedTuple):
    """What is wrong with a report, and what to do about it."""

    field: str
    problem: str
    remedy: str


Votes = Mapping[Header, int]  # how many reports have each header, the first one first
Check = Callable[[Header], Objection | None]


def agreed_noise(votes: Votes, stated: Privacy | None, registered: bool) -> Check:
    """A check that reports are as private as agreed, so that nobody's claimed noise blurs a round.

    Where nothing is stated, sizes are the clients' claims and most private reports hold the same
    noise, none may claim more: a large size with noise to match would weigh without being checked.
    """
    laws: Counter[object] = Counter()
    for header, number in votes.items():
        if header.privacy is not None:
            laws[header.privacy.noise] += number
    law, most = laws.most_common(1)[0] if laws else (None, 0)
    bounded = law is not None and 2 * most > laws.total() and not registered
    limit = law.variance if bounded else float("inf")  # type: ignore[attr-defined]

    def check(header: Header) -> Objection | None:
        if stated is not None and header.privacy != stated:
            found = "not private" if header.privacy is None else header.privacy.statement
            return Objection(
                "privacy",
                f"is {found}, but agreed was: {stated.statement}",
                "use the round's privacy",
            )
        if header.privacy is None or header.privacy.noise.variance <= limit * (1 + 1e-9):
            return None
        return Objection(
            "privacy", "claims more noise than most private reports hold", "use the round's privacy"
        )

    return check


def sizes_known(headers: Iterable[Header], registered: bool) -> bool:
    """Whether every n_k is exact: registered, or hidden by nobody."""
    return registered or not any(header.hides_size for header in headers)


def same_noise(votes: Votes, registered: bool) -> Check | None:
    """A check that all private reports hold the noise most of them hold.

    None where it is not needed: numbers of samples, of all or of those in a class, are exact.
    """
    by_class = any(header.privacy is not None and header.strata is not None for header in votes)
    if sizes_known(votes, registered) and not by_class:
        return None
    laws: Counter[object] = Counter()
    for header, number in votes.items():
        if header.privacy is not None:
            laws[header.privacy.noise] += number
    expected = min(laws, key=lambda law: (-laws[law], law))

    def check(header: Header) -> Objection | None:
        if header.privacy is None or header.privacy.noise == expected:
            return None
        return Objection(
            "privacy",
            "holds other noise than most reports while sizes are hidden",
            "use the round's privacy or register the sizes",
        )

    return check
