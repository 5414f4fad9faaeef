"""What most reports agree on (grid, score, round, model, classes, noise), and the quorum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from robfcp._validation import abbreviate, check_fraction, check_integer
from robfcp.errors import QuorumError, RobfcpError
from robfcp.privacy import Privacy
from robfcp.reports import (
    MAX_STRATA,
    OTHER_STRATUM,
    Header,
    StratumKind,
    StratumNames,
    n_strata,
    stratum_labels,
)

MAX_ROUND_CELLS = 2**24  # classes times bins of a round: what a few bytes can name
VARIANCE_TOLERANCE = 1e-9  # relative: of a variance that is computed in another order


class RejectionReason(NamedTuple):
    """The field of a report, what is wrong with it and what to do about it."""

    field: str
    problem: str
    remedy: str


HeaderCounts = Sequence[tuple[Header, int]]  # how many reports have each header
HeaderCheck = Callable[[Header], RejectionReason | None]


def _count_values(votes: HeaderCounts, choice: Callable[[Header], Hashable]) -> Counter[Any]:
    """Count how many reports chose each value; None is no choice."""
    counts: Counter[Any] = Counter()
    for header, n_reports in votes:
        value = choice(header)
        if value is not None:
            counts[value] += n_reports
    return counts


def require_equal(name: str, expected: Any, votes: HeaderCounts) -> HeaderCheck:
    """Return a check that a part of the context is the expected one.

    Parameters
    ----------
    name : str
        The part, as reports call it.
    expected : object
        What the server states; what most reports have if None.
    votes : HeaderCounts
        Of whom a majority is asked for.

    Returns
    -------
    HeaderCheck
        What is wrong with a header, if so.

    Raises
    ------
    RobfcpError
        Where two values have equally many reports.
    """
    attribute = "binning" if name == "grid" else name
    if expected is None and votes:
        expected = _most_common_value(name, attribute, votes)

    def check(header: Header) -> RejectionReason | None:
        value = getattr(header, attribute)
        if value == expected:
            return None
        return RejectionReason(
            name, f"{name} is {value}, not {expected}", f"use this round's {name}"
        )

    return check


def _most_common_value(name: str, attribute: str, votes: HeaderCounts) -> Any:
    """Return the value of most reports; refuse a tie. None is a value here."""

    def value_in_tuple(header: Header) -> tuple[Any]:
        return (getattr(header, attribute),)

    ranked = _count_values(votes, value_in_tuple).most_common(2)
    first, n_first = ranked[0]
    if len(ranked) > 1:
        second, n_second = ranked[1]
        if n_second == n_first:
            raise RobfcpError(
                f"{name}: the reports are split evenly between {first[0]} and {second[0]}; "
                f"pass the expected {name}"
            )
    return first[0]


def require_agreed_noise(
    votes: HeaderCounts, agreed: Privacy | None, are_sizes_registered: bool
) -> HeaderCheck:
    """Return a check that reports are as private as agreed.

    Noise hides malicious reports. Without an agreed budget no variance may therefore exceed the
    upper median over all reports, whatever they hold; and nobody hides a size that is neither
    registered nor hidden by most.

    Parameters
    ----------
    votes : HeaderCounts
        The reports whose noise sets the limit.
    agreed : Privacy or None
        The budget of the round.
    are_sizes_registered : bool
        Whether the server knows all sample sizes.

    Returns
    -------
    HeaderCheck
        What is wrong with a header, if so.
    """
    if agreed is not None:
        return _require_budget(agreed)

    variances = _count_values(votes, lambda header: header.noise_variance)
    max_variance = _upper_median(variances)
    n_hidden = sum(n_reports for header, n_reports in votes if header.protects_sample_size)
    may_hide_size = are_sizes_registered or 2 * n_hidden >= variances.total()

    def check(header: Header) -> RejectionReason | None:
        if header.privacy is None:
            return None
        if header.noise_variance > max_variance * (1 + VARIANCE_TOLERANCE):
            problem = "claims more noise than most reports hold, and none was agreed on"
            remedy = "agree on a budget for all sites, or use less noise"
            return RejectionReason("privacy", problem, remedy)
        if header.protects_sample_size and not may_hide_size:
            problem = "hides its size, which most reports state"
            remedy = "register the sizes, or agree on a budget"
            return RejectionReason("privacy", problem, remedy)
        return None

    return check


def _require_budget(agreed: Privacy) -> HeaderCheck:
    """Return a check that reports have the agreed budget."""

    def check(header: Header) -> RejectionReason | None:
        if header.privacy == agreed:
            return None
        stated = "not private" if header.privacy is None else header.privacy.statement
        problem = f"is {stated}, but agreed was: {agreed.statement}"
        return RejectionReason("privacy", problem, "use the round's privacy")

    return check


def _upper_median(variances: Counter[float]) -> float:
    """Return the least variance that more than half of the reports do not exceed."""
    n_reports = variances.total()
    n_below = 0
    for variance in sorted(variances):
        n_below += variances[variance]
        if 2 * n_below > n_reports:
            return variance
    return 0.0


def require_same_noise(votes: HeaderCounts) -> HeaderCheck:
    """Return a check that all private reports hold the noise that most of them hold."""
    counts = _count_values(votes, lambda header: header.privacy and header.privacy.noise)
    expected = min(counts, key=lambda noise: (-counts[noise], noise))

    def check(header: Header) -> RejectionReason | None:
        if header.privacy is None or header.privacy.noise == expected:
            return None
        problem = "holds other noise than most reports while sizes are hidden"
        return RejectionReason("privacy", problem, "use the round's privacy or register the sizes")

    return check


def most_common_strata(votes: HeaderCounts) -> tuple[StratumKind, StratumNames] | None:
    """Return the grouping that most of the reports with any have, and its names.

    Clients without a grouping, small ones most of all, have no say, unless their reports hold
    noise: a few do not make the others pay for the noise on every class. Where only a few reports
    have a grouping and these differ the round has none: malicious clients could else outnumber
    them, and have them refused.

    Parameters
    ----------
    votes : HeaderCounts
        The reports that have a say.

    Returns
    -------
    tuple or None
        "class" or "group", and the names, of groups all that fit; None for a round without.

    Raises
    ------
    RobfcpError
        Where most reports have too many classes for a round.
    """
    # Whether there is a grouping at all, and of which kind.
    kind_counts = _count_values(votes, lambda header: header.strata and header.strata[0])
    n_stratified = kind_counts.total()
    n_private_pooled = sum(
        n_reports
        for header, n_reports in votes
        if header.strata is None and header.privacy is not None
    )
    if n_stratified <= n_private_pooled:
        return None
    by: StratumKind = max(kind_counts, key=lambda kind: (kind_counts[kind], kind))

    # How many reports have each list of names; a few with too many classes stop no round.
    strata_counts = _count_values(votes, lambda header: header.strata)
    name_counts = {names: n for (kind, names), n in strata_counts.items() if kind == by}
    max_strata = MAX_ROUND_CELLS // votes[0][0].binning.n_bins
    are_few = 2 * n_stratified <= sum(n_reports for _, n_reports in votes)
    if are_few:
        name_counts = {
            names: n for names, n in name_counts.items() if n_strata(names) <= max_strata
        }
        if not name_counts:
            return None

    if by == "group":
        return by, _join_groups(name_counts, min(MAX_STRATA, max_strata))
    classes = _most_common_classes(name_counts)
    n_classes = n_strata(classes)
    if n_classes > max_strata:
        raise RobfcpError(
            f"classes: {n_classes} of them on this grid are too many for a round; use a grid of at "
            f"most {MAX_ROUND_CELLS // n_classes} bins, or merge classes"
        )
    check = require_same_strata((by, classes))
    if are_few and any(check(header) for header, _ in votes):
        return None
    return by, classes


def _join_groups(name_counts: Mapping[StratumNames, int], max_groups: int) -> tuple[str, ...]:
    """Return the groups of all reports in order; of those with the fewest while they fit."""
    groups: set[str] = set()
    all_labels = [stratum_labels(names) for names in name_counts]
    for labels in sorted(all_labels, key=lambda labels: (len(labels), labels)):
        joined = groups.union(labels)
        if len(joined) <= max_groups:
            groups = joined
    return tuple(sorted(groups))


def _most_common_classes(name_counts: Mapping[StratumNames, int]) -> StratumNames:
    """Return the classes that most reports have, in any order.

    A number of classes backs names that as many reports have, so that one client renames nobody's
    classes. Whether a client merged its small classes makes no difference to its vote.

    Parameters
    ----------
    name_counts : mapping
        How many reports have each list of class names, or each number of classes.

    Returns
    -------
    tuple of str or int
        The names in the order of most reports; their number where most reports give no names.
    """
    # Votes for a number of classes, for a set of names, and for an order of names.
    number_votes: Counter[int] = Counter()
    set_votes: Counter[frozenset[str]] = Counter()
    order_votes: Counter[tuple[str, ...]] = Counter()
    sets_with_merged = set()
    for names, n_reports in name_counts.items():
        if isinstance(names, int):
            number_votes[names] += n_reports
            continue
        order = tuple(name for name in names if name != OTHER_STRATUM)
        set_votes[frozenset(order)] += n_reports
        order_votes[order] += n_reports
        if OTHER_STRATUM in names:
            sets_with_merged.add(frozenset(order))

    # Reports that give a number vote for names that many reports have, or that are numbers.
    backed_votes = {}
    for classes, n_reports in set_votes.items():
        n_numbered = number_votes[len(classes)]
        are_indices = classes == frozenset(map(str, range(len(classes))))
        if are_indices or n_reports >= n_numbered:
            n_reports += n_numbered
        backed_votes[classes] = n_reports

    if number_votes:
        number = max(number_votes, key=lambda number: (number_votes[number], number))
        if number_votes[number] > max(backed_votes.values(), default=0):
            return number

    chosen = max(
        backed_votes,
        key=lambda classes: (backed_votes[classes], set_votes[classes], sorted(classes)),
    )
    orders = [order for order in order_votes if frozenset(order) == chosen]
    order = max(orders, key=lambda order: (order_votes[order], order))
    return (*order, OTHER_STRATUM) if chosen in sets_with_merged else order


def require_same_strata(common: tuple[StratumKind, StratumNames] | None) -> HeaderCheck:
    """Return a check that a report by class has the round's classes, in any order, or none.

    Where the round has none, noise on each of them is more than on all together.
    """
    if common is None:
        return _reject_private_strata
    by, names = common
    common_labels = set(stratum_labels(names))
    common_classes = common_labels - {OTHER_STRATUM}

    def find_problem(own_by: StratumKind, own_names: StratumNames) -> str:
        if own_by != by:
            return f"counts are by {own_by}, not by {by} as most reports'"
        if isinstance(own_names, int) and own_names == len(common_classes):
            return ""
        if by == "class":
            own_classes = set(stratum_labels(own_names)) - {OTHER_STRATUM}
            return _class_difference(own_classes, common_classes)
        own_groups = stratum_labels(own_names)
        if common_labels.issuperset(own_groups):
            return ""
        return f"with its {len(own_groups)} groups there are too many for a round"

    def check(header: Header) -> RejectionReason | None:
        if header.strata is None or header.strata == common:
            return None
        problem = find_problem(*header.strata)
        return RejectionReason("classes", problem, "use this round's classes") if problem else None

    return check


def _reject_private_strata(header: Header) -> RejectionReason | None:
    """Refuse noise on every class where the round has none."""
    if header.strata is None or header.privacy is None:
        return None
    problem = f"holds noise for every {header.strata[0]}, and most reports have none"
    return RejectionReason("classes", problem, "use this round's classes")


def _class_difference(own_classes: set[str], common_classes: set[str]) -> str:
    """Return how a report's classes differ from the round's; empty where they do not."""
    if own_classes == common_classes:
        return ""
    missing = [f"{name!r:.40}" for name in sorted(common_classes - own_classes)]
    added = [f"{name!r:.40}" for name in sorted(own_classes - common_classes)]
    problem = f"its {len(own_classes)} classes are not the round's {len(common_classes)}"
    if sorted(map(str.lower, missing)) == sorted(map(str.lower, added)):
        return f"{problem} (they differ in upper and lower case only)"
    if missing:
        return f"{problem} (it lacks {abbreviate(missing)})"
    return f"{problem} (it adds {abbreviate(added)})"


def check_quorum(
    n_valid: int,
    n_expected: int,
    quorum: int | float | Fraction | None,
    first_rejection: str | None,
) -> None:
    """Refuse a round with too few valid reports; one at least has to be valid.

    Parameters
    ----------
    n_valid : int
        How many reports are valid.
    n_expected : int
        How many were awaited.
    quorum : int or float, optional
        A number of reports, or a share of those awaited.
    first_rejection : str, optional
        Why the first report was rejected, for the message.

    Raises
    ------
    QuorumError
        Where there are fewer.
    """
    n_required = _required_reports(quorum, n_expected)
    if n_valid >= max(1, n_required):
        return
    first_fault = f" (first fault: {first_rejection})" if first_rejection else ""
    remedy = "fix the faulty sites" if first_rejection else "wait for more reports"
    raise QuorumError(
        f"only {n_valid} of {n_expected} reports are valid but the quorum is "
        f"{n_required}{first_fault}; {remedy} or lower the quorum"
    )


def _required_reports(quorum: int | float | Fraction | None, n_expected: int) -> int:
    """Return how many valid reports a quorum asks for; a share is rounded up, exactly."""
    if quorum is None:
        return 1
    if isinstance(quorum, (float, np.floating, Fraction)):
        share = check_fraction("quorum", quorum, "give a number or a share", allow_one=True)
        return max(1, ceil(Fraction(str(share)) * n_expected))
    return check_integer("quorum", quorum, "give a number or a share of the reports")
