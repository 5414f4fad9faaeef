"""What most reports agree on (grid, score, round, model, classes, noise), and the quorum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, partial
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from robfcp._validation import abbreviate, check_fraction, check_integer
from robfcp.binning import Binning, named_binning
from robfcp.errors import QuorumError, RobfcpError
from robfcp.privacy import Privacy
from robfcp.reports import (
    MAX_STRATA,
    OTHER_STRATUM,
    StratumKind,
    StratumNames,
    n_strata,
    stratum_labels,
)
from robfcp.scores import Risk, Score

MAX_ROUND_CELLS = 2**24  # classes times bins of a round: what a few bytes can name


@dataclass(frozen=True)
class BinningDigest:
    """What is kept of a grid until the vote: a few bytes can name thousands of edges."""

    digest: str
    n_bins: int = field(compare=False)
    name: str = field(compare=False)
    binning: Callable[[], Binning] = field(compare=False)

    def __str__(self) -> str:
        return f"Grid({self.name}, {self.n_bins} bins, {self.digest[:8]})"

    @staticmethod
    @lru_cache(maxsize=8)
    def of(grid: Binning) -> BinningDigest:
        """The grid's; one that only its edges tell is kept itself."""
        told = grid.parameters
        built = partial(named_binning, grid.name, told) if told else lambda: grid
        return BinningDigest(grid.digest, grid.n_bins, grid.name, built)


class Header(NamedTuple):
    """A report without its client and its numbers; that of most reports is one and the same."""

    binning: BinningDigest
    score: Score | None
    round: str | None
    model: str | None
    risk: Risk | None
    privacy: Privacy | None = None
    strata: tuple[StratumKind, StratumNames] | None = None

    @property
    def n_strata(self) -> int:
        """C, the number of classes or groups; 1 without them."""
        return 1 if self.strata is None else n_strata(self.strata[1])

    @property
    def noise_variance(self) -> float:
        """Of the noise on each of its counts."""
        return 0.0 if self.privacy is None else self.privacy.noise.variance

    @property
    def protects_sample_size(self) -> bool:
        """Whether n_k is protected too."""
        return self.privacy is not None and self.privacy.protects_sample_size


RejectionReason = tuple[
    str, str, str
]  # the field of a report, what is wrong and what to do about it
HeaderCounts = Sequence[tuple[Header, int]]  # how many reports have each header
HeaderCheck = Callable[[Header], RejectionReason | None]


def _count_values(votes: HeaderCounts, choice: Callable[[Header], Hashable]) -> Counter[Any]:
    """How many reports chose each thing; None is no choice."""
    found: Counter[Any] = Counter()
    for header, number in votes:
        if (chosen := choice(header)) is not None:
            found[chosen] += number
    return found


def require_equal(name: str, expected: Any, votes: HeaderCounts) -> HeaderCheck:
    """A check that a part of the context is the expected one, or that of most reports."""
    attribute = "binning" if name == "grid" else name
    if expected is None and votes:
        # None at all is a choice too.
        ballot = _count_values(votes, lambda header: (getattr(header, attribute),))
        ((expected,), most), *others = ballot.most_common(2)
        if others and others[0][1] == most:
            raise RobfcpError(
                f"{name}: the reports are split evenly between {expected} and {others[0][0][0]}; "
                f"pass the expected {name}"
            )

    def check(header: Header) -> RejectionReason | None:
        found = getattr(header, attribute)
        if found == expected:
            return None
        return name, f"{name} is {found}, not {expected}", f"use this round's {name}"

    return check


def require_agreed_noise(
    votes: HeaderCounts, stated: Privacy | None, registered: bool
) -> HeaderCheck:
    """A check that reports are as private as agreed, or without a budget no more than most are.

    Noise hides lies, so no variance may exceed the upper median over all reports, whatever they
    hold; and nobody hides a size that is neither registered nor hidden by most.
    """
    variances = _count_values(votes, lambda header: header.noise_variance)
    hidden = sum(number for header, number in votes if header.protects_sample_size)
    heard, limit = variances.total(), 0.0
    for limit, number in sorted(variances.items()):  # noqa: B007
        heard -= 2 * number
        if heard < 0:
            break
    may_hide = registered or 2 * hidden >= variances.total()

    def check(header: Header) -> RejectionReason | None:
        own, remedy = header.privacy, "agree on a budget for all sites, or use less noise"
        if stated is not None and own != stated:
            found = "not private" if own is None else own.statement
            problem = f"is {found}, but agreed was: {stated.statement}"
            return "privacy", problem, "use the round's privacy"
        if stated is not None or own is None:
            return None
        if header.noise_variance > limit * (1 + 1e-9):
            problem = "claims more noise than most reports hold, and none was agreed on"
            return "privacy", problem, remedy
        if own.protects_sample_size and not may_hide:
            problem = "hides its size, which most reports state"
            return "privacy", problem, "register the sizes, or agree on a budget"
        return None

    return check


def require_same_noise(votes: HeaderCounts) -> HeaderCheck:
    """A check that all private reports hold the noise most of them hold."""
    laws = _count_values(votes, lambda header: header.privacy and header.privacy.noise)
    expected = min(laws, key=lambda law: (-laws[law], law))

    def check(header: Header) -> RejectionReason | None:
        if header.privacy is None or header.privacy.noise == expected:
            return None
        problem = "holds other noise than most reports while sizes are hidden"
        return "privacy", problem, "use the round's privacy or register the sizes"

    return check


def most_common_strata(votes: HeaderCounts) -> tuple[StratumKind, StratumNames] | None:
    """The grouping that most of the reports with any have, and its names; groups join theirs.

    Sites without one, small ones most of all, have no say, unless their reports hold noise: a few
    do not make the others pay for the noise on every class. Where only a few reports have any and
    these differ the round has none: liars could else outnumber them, and have them refused.
    """
    groupings = _count_values(votes, lambda header: header.strata and header.strata[0])
    pooled = (n for one, n in votes if one.strata is None and one.privacy is not None)
    if groupings.total() <= sum(pooled):
        return None
    kinds = _count_values(votes, lambda header: header.strata)
    by: StratumKind = max(groupings, key=lambda one: (groupings[one], one))
    own = {names: number for (one, names), number in kinds.items() if one == by}
    most = MAX_ROUND_CELLS // votes[0][0].binning.n_bins
    few = 2 * groupings.total() <= sum(number for _, number in votes)
    if few:  # a few with too many classes stop no round
        own = {names: number for names, number in own.items() if n_strata(names) <= most}
        if not own:
            return None
    if by == "group":
        found: set[str] = set()
        for names in sorted(
            map(stratum_labels, own), key=lambda one: (len(one), one)
        ):  # few groups first
            if len(joined := found.union(names)) <= min(MAX_STRATA, most):
                found = joined
        return by, tuple(sorted(found))
    if (number := n_strata(classes := _most_common_classes(own))) > most:
        raise RobfcpError(
            f"classes: {number} of them on this grid are too many for a round; use a grid of at "
            f"most {MAX_ROUND_CELLS // number} bins, or merge classes"
        )
    check = require_same_strata((by, classes))
    return None if few and any(check(header) for header, _ in votes) else (by, classes)


def _most_common_classes(own: Mapping[StratumNames, int]) -> StratumNames:
    """The classes most reports have, in any order; a number backs names that as many reports have.

    One site renames nobody's classes.
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
        order = tuple(name for name in names if name != OTHER_STRATUM)
        sets[frozenset(order)] += number
        orders[order] += number
        if OTHER_STRATUM in names:
            merged.add(frozenset(order))
    backed = {}
    for one, votes in sets.items():
        numbered = one == frozenset(map(str, range(len(one)))) or votes >= numbers[len(one)]
        backed[one] = votes + numbered * numbers[len(one)]
    if numbers:
        most = max(numbers, key=lambda one: (numbers[one], one))
        if numbers[most] > max(backed.values(), default=0):
            return most
    chosen = max(backed, key=lambda one: (backed[one], sets[one], sorted(one)))
    fitting = [order for order in orders if frozenset(order) == chosen]
    order = max(fitting, key=lambda one: (orders[one], one))
    return (*order, OTHER_STRATUM) if chosen in merged else order


def require_same_strata(common: tuple[StratumKind, StratumNames] | None) -> HeaderCheck:
    """A check that a report by class has the round's classes, in any order, or none at all.

    Where the round has none, noise on each of them is more than on all together.
    """
    by, names = common or ("class", ())
    wanted = set(stratum_labels(names))
    ours = wanted - {OTHER_STRATUM}

    def check(header: Header) -> RejectionReason | None:
        if header.strata is None or header.strata == common:
            return None
        own_by, own = header.strata
        if common is None:
            if header.privacy is None:
                return None
            problem = f"holds noise for every {own_by}, and most reports have none"
        elif own_by != by:
            problem = f"counts are by {own_by}, not by {by} as most reports'"
        elif isinstance(own, int) and own == len(ours):
            return None
        elif by == "class" and (theirs := set(stratum_labels(own)) - {OTHER_STRATUM}) != ours:
            problem = f"its {len(theirs)} classes are not the round's {len(ours)}"
            lacks, more = (
                [f"{x!r:.40}" for x in sorted(s)] for s in (ours - theirs, theirs - ours)
            )
            told = f" (it lacks {abbreviate(lacks)})" if lacks else f" (it adds {abbreviate(more)})"
            same = sorted(map(str.lower, lacks)) == sorted(map(str.lower, more))
            problem += " (they differ in upper and lower case only)" if same else told
        elif by == "group" and not wanted.issuperset(stratum_labels(own)):
            problem = f"with its {len(stratum_labels(own))} groups there are too many for a round"
        else:
            return None
        return "classes", problem, "use this round's classes"

    return check


def check_quorum(
    n_valid: int,
    n_expected: int,
    quorum: int | float | Fraction | None,
    first_rejection: str | None,
) -> None:
    """Refuse a round with too few valid reports; the first fault is named.

    The quorum is a number of reports, or a share of those awaited; one at least has to be valid.
    """
    needed = 1
    if isinstance(quorum, (float, np.floating, Fraction)):
        part = Fraction(
            str(check_fraction("quorum", quorum, "give a number or a share", allow_one=True))
        )
        needed = max(1, ceil(part * n_expected))
    elif quorum is not None:
        needed = check_integer("quorum", quorum, "give a number or a share of the reports")
    if n_valid < max(1, needed):
        first = f" (first fault: {first_rejection})" if first_rejection else ""
        remedy = "fix the faulty sites" if first_rejection else "wait for more reports"
        raise QuorumError(
            f"only {n_valid} of {n_expected} reports are valid but the quorum is {needed}{first}; "
            f"{remedy} or lower the quorum"
        )
