"""How private reports are told apart: who has noise, who hides its size, whose noise differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from robfcp.errors import ReportError
from robfcp.federation.late_grids import AnyGrid
from robfcp.privacy import Privacy
from robfcp.reports import By, Names
from robfcp.scores import Risk, Score


class Header(NamedTuple):
    """A report without its counts, which stand in row `row` of the server's table."""

    client: str
    n_samples: int
    row: int
    grid: AnyGrid
    score: Score | None
    round: str | None
    model: str | None
    risk: Risk | None
    privacy: Privacy | None
    strata: tuple[By, Names] | None = None


def hides_size(report: Header) -> bool:
    """Whether n_k is protected too."""
    return report.privacy is not None and report.privacy.hides_size


def size_of(report: Header, sizes: Mapping[str, int] | None) -> int:
    """n_k: as reported, or as registered where the report hides it."""
    return sizes[report.client] if sizes is not None and hides_size(report) else report.n_samples


def agreed_noise(
    reports: list[Header], stated: Privacy | None, registered: bool
) -> Callable[[Header], ReportError | None]:
    """A check that reports are as private as agreed, so that nobody's claimed noise blurs a round.

    Where nothing is stated, sizes are the clients' claims and most private reports hold the same
    noise, none may claim more: a large size with noise to match would weigh without being checked.
    """
    laws = Counter(report.privacy.noise for report in reports if report.privacy is not None)
    law, votes = laws.most_common(1)[0] if laws else (None, 0)
    most = law is not None and 2 * votes > laws.total() and not registered
    limit = law.variance if law is not None and most else float("inf")

    def check(report: Header) -> ReportError | None:
        if stated is not None and report.privacy != stated:
            found = "not private" if report.privacy is None else report.privacy.statement
            return ReportError(
                report.client,
                "privacy",
                f"is {found}, but agreed was: {stated.statement}",
                "use the round's privacy",
            )
        if report.privacy is None or report.privacy.noise.variance <= limit * (1 + 1e-9):
            return None
        return ReportError(
            report.client,
            "privacy",
            "claims more noise than most private reports hold",
            "use the round's privacy",
        )

    return check


def sizes_known(reports: list[Header], registered: bool) -> bool:
    """Whether every n_k is exact: registered, or hidden by nobody."""
    return registered or not any(hides_size(report) for report in reports)


def same_noise(
    reports: list[Header], registered: bool
) -> Callable[[Header], ReportError | None] | None:
    """A check that all private reports hold the noise most of them hold.

    None where it is not needed: numbers of samples, of all or of those in a class, are exact.
    """
    by_class = any(report.privacy is not None and report.strata is not None for report in reports)
    if sizes_known(reports, registered) and not by_class:
        return None
    laws = Counter(report.privacy.noise for report in reports if report.privacy is not None)
    expected = min(laws, key=lambda law: (-laws[law], law))

    def check(report: Header) -> ReportError | None:
        if report.privacy is None or report.privacy.noise == expected:
            return None
        return ReportError(
            report.client,
            "privacy",
            "holds other noise than most reports while sizes are hidden",
            "use the round's privacy or register the sizes",
        )

    return check
