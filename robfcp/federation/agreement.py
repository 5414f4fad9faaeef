"""What most reports agree on: grid, score, round, model, and the classes they count by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from robfcp.errors import RobfcpError
from robfcp.federation.arrivals import Arrivals
from robfcp.federation.marks import Check, Header, Objection, Votes
from robfcp.reports import MAX_STRATA, OTHER, By, Names


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
