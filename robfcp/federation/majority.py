"""What most reports agree on: grid, score, round, model, and the classes they count by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import share, whole
from robfcp.errors import QuorumError, ReportError, RobfcpError
from robfcp.federation.faults import Fault
from robfcp.grid import Grid, named
from robfcp.privacy import Privacy
from robfcp.report import MAX_STRATA, OTHER, By, Names
from robfcp.scores import Risk, Score

KEPT_BINS = 10_000


@dataclass(frozen=True, eq=False)
class LateGrid:
    """A large grid by its name: a line of a report can name a million edges."""

    name: str
    parameters: Mapping[str, Any]
    digest: str
    n_bins: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Grid, LateGrid)) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        return f"Grid({self.name}, {self.n_bins} bins, {self.digest[:8]})"


AnyGrid = Grid | LateGrid


def kept(grid: Grid) -> AnyGrid:
    """The grid itself, or its name where it is large and has one that makes it again."""
    if grid.n_bins <= KEPT_BINS or not grid.parameters:
        return grid
    return LateGrid(grid.name, grid.parameters, grid.digest, grid.n_bins)


def built(grid: AnyGrid) -> Grid:
    """The grid with its edges."""
    return grid if isinstance(grid, Grid) else named(grid.name, grid.parameters)


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


Whole = NDArray[np.int64]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]


class Refusal(NamedTuple):
    """A fault with where it came from: a file or a place in the list."""

    source: str
    fault: Fault


@dataclass(frozen=True)
class Arrivals:
    """(n,) reports without their counts.

    Parameters
    ----------
    clients
        Who sent them.
    sizes
        n_k, as they say.
    headers
        What reports share, each kind once.
    kinds
        Which of the headers each has.
    rows
        Where the counts of each stand.
    numbers
        As which of the reports each is known, from 0; repeats have none.
    distinct
        Whether no client occurs twice.
    """

    clients: list[str]
    sizes: Whole
    headers: list[Header]
    kinds: NDArray[np.int32]
    rows: Indices
    numbers: Indices
    distinct: bool

    def __len__(self) -> int:
        return len(self.clients)

    def votes(self, mask: Mask | None = None) -> Votes:
        """How many reports have each header, in the order of the first that has it."""
        kinds = self.kinds if mask is None else self.kinds[mask]
        if len(self.headers) == 1 and len(kinds):
            return {self.headers[0]: len(kinds)}
        used, first, number = np.unique(kinds, return_index=True, return_counts=True)
        order = np.argsort(first)
        return {self.headers[used[k]]: int(number[k]) for k in order}

    def alone(self) -> Mask:
        """(n,) whose client sent no other report."""
        if self.distinct:
            return np.ones(len(self), dtype=bool)
        times = Counter(self.clients)
        return np.fromiter((times[c] == 1 for c in self.clients), dtype=bool, count=len(self))

    def where(self, mask: Mask) -> Arrivals:
        """The chosen ones alone."""
        if mask.all():
            return self
        return self.taken(np.flatnonzero(mask))

    def taken(self, order: Indices) -> Arrivals:
        """The chosen ones in the given order."""
        return replace(
            self,
            clients=[self.clients[k] for k in order.tolist()],
            sizes=self.sizes[order],
            kinds=self.kinds[order],
            rows=self.rows[order],
            numbers=self.numbers[order],
        )

    def keep(self, refused: list[Refusal], check: Check) -> Arrivals:
        """Those whose header has no objection; the others join the refused."""
        objections = [check(header) for header in self.headers]
        wrong = np.array([one is not None for one in objections], dtype=bool)
        if not wrong.any():
            return self
        places = np.flatnonzero(wrong[self.kinds]).tolist()
        return self.without(refused, ((k, objections[self.kinds[k]]) for k in places))

    def without(
        self, refused: list[Refusal], objections: Iterable[tuple[int, Objection | None]]
    ) -> Arrivals:
        """The others; each one with an objection joins the refused, in words."""
        kept = np.ones(len(self), dtype=bool)
        for k, objection in objections:
            if objection is not None:
                client = self.clients[k]
                error = ReportError(client, *objection)
                fault = Fault(client, error.field, str(error))
                refused.append(Refusal(f"report #{int(self.numbers[k]) + 1}", fault))
                kept[k] = False
        return self.where(kept)


def same(field: str, expected: Any, arrived: Arrivals) -> Check:
    """A check that the field is the expected one, or the majority's where none is given."""
    if expected is None and len(arrived):
        votes: Counter[Any] = Counter()
        for header, number in _ballot(arrived).items():
            votes[getattr(header, field)] += number
        (expected, most), *others = votes.most_common(2)
        if others and others[0][1] == most:
            raise RobfcpError(
                f"{field}: the reports are split evenly between {expected} and {others[0][0]}; "
                f"pass the expected {field}"
            )

    def check(header: Header) -> Objection | None:
        found = getattr(header, field)
        if found is expected or found == expected:
            return None
        return Objection(field, f"{field} is {found}, not {expected}", f"use this round's {field}")

    return check


def _ballot(arrived: Arrivals) -> Votes:
    """One vote a client; who sent several reports has none, unless all have."""
    alone = arrived.alone()
    return arrived.votes(alone if alone.any() else None)


def common_strata(votes: Votes) -> tuple[By | None, Names]:
    """What most reports by class agree on: the grouping, and its names; groups join theirs."""
    kinds: Counter[tuple[By, Names]] = Counter()
    for header, number in votes.items():
        if header.strata is not None:
            kinds[header.strata] += number
    if not kinds:
        return None, 0
    groupings: Counter[By] = Counter()
    for (grouping, _), number in kinds.items():
        groupings[grouping] += number
    by: By = max(groupings, key=lambda one: (groupings[one], str(one)))
    own = {names: number for (one, names), number in kinds.items() if one == by}
    return by, _common_groups(own) if by == "group" else _common_classes(own)


def _common_classes(own: Mapping[Names, int]) -> Names:
    """The classes most reports have, in any order; a number backs all names of that number.

    Whether a site merged its thin classes makes no difference to its vote.
    """
    numbers: Counter[int] = Counter()
    sets: Counter[frozenset[str]] = Counter()
    orders: Counter[tuple[str, ...]] = Counter()
    merged = set()
    for names, number in own.items():
        if isinstance(names, int):
            numbers[names] += number
            continue
        order = tuple(name for name in names if name != OTHER)
        sets[frozenset(order)] += number
        orders[order] += number
        if OTHER in names:
            merged.add(frozenset(order))
    backed = {one: votes + numbers[len(one)] for one, votes in sets.items()}
    if numbers:
        most = max(numbers, key=lambda one: (numbers[one], one))
        if numbers[most] > max(backed.values(), default=0):
            return most
    chosen = max(backed, key=lambda one: (backed[one], sets[one], sorted(one)))
    fitting = [order for order in orders if frozenset(order) == chosen]
    order = max(fitting, key=lambda one: (orders[one], one))
    return (*order, OTHER) if chosen in merged else order


def _common_groups(own: Mapping[Names, int]) -> Names:
    """All groups; where that is more than a round can have, those that most reports name."""
    votes: Counter[str] = Counter()
    for names, number in own.items():
        for name in _listed(names):
            votes[name] += number
    return tuple(sorted(sorted(votes, key=lambda name: (-votes[name], name))[:MAX_STRATA]))


def _listed(names: Names) -> tuple[str, ...]:
    return tuple(str(c) for c in range(names)) if isinstance(names, int) else names


def same_strata(by: By, names: Names) -> Check:
    """A check that a report by class has the round's classes, in any order, or none at all."""
    wanted = set(_listed(names))

    def check(header: Header) -> Objection | None:
        if header.strata is None or header.strata == (by, names):
            return None
        own_by, own = header.strata
        if own_by != by:
            problem = f"counts are by {own_by}, not by {by} as most reports'"
        elif isinstance(own, int) and own == len(wanted - {OTHER}):
            return None
        elif by == "class" and set(_listed(own)) - {OTHER} != wanted - {OTHER}:
            number = len(set(_listed(own)) - {OTHER})
            problem = f"its {number} classes are not the round's {len(wanted - {OTHER})}"
        elif by == "group" and not wanted.issuperset(_listed(own)):
            problem = f"with its {len(_listed(own))} groups there are more than {MAX_STRATA}"
        else:
            return None
        return Objection("classes", problem, "use this round's classes")

    return check


def reports_needed(quorum: int | float | Fraction | None, awaited: int) -> int:
    """The least number of valid reports: a number, or a share of those awaited; at least one."""
    if isinstance(quorum, (float, np.floating, Fraction)):
        part = Fraction(str(share("quorum", quorum, "give a number or a share", one=True)))
        return max(1, ceil(part * awaited))
    if quorum is None:
        return 1
    return whole("quorum", quorum, "give a number or a share of the reports")


def check_quorum(
    valid: int, awaited: int, quorum: int | float | None, faulty: Sequence[Fault]
) -> None:
    """Refuse a round with too few valid reports; the first fault is named."""
    needed = reports_needed(quorum, awaited)
    if valid < max(1, needed):
        first = f" (first fault: {faulty[0].reason})" if faulty else ""
        remedy = "fix the faulty sites" if faulty else "wait for more reports"
        raise QuorumError(
            f"only {valid} of {awaited} reports are valid but the quorum is {needed}{first}; "
            f"{remedy} or lower the quorum"
        )
