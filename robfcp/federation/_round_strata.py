"""The classes or groups of a round: which ones most reports have, and who may differ from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from robfcp._validation import abbreviate
from robfcp.errors import RobfcpError
from robfcp.federation._agreement import (
    HeaderCheck,
    HeaderCounts,
    RejectionReason,
    count_values,
)
from robfcp.federation._inbox import RoundStrata
from robfcp.reports import (
    MAX_STRATA,
    OTHER_STRATUM,
    Header,
    Strata,
    StratumKind,
    StratumNames,
    n_strata,
    stratum_labels,
)

MAX_ROUND_CELLS = 2**24  # classes times bins of a round: what a few bytes can name


def vote_on_strata(votes: HeaderCounts) -> RoundStrata:
    """Return the strata of a round, and the classes that class totals are of.

    Where the strata are classes, totals are of the same ones. Else totals are of the classes that
    most of them name; of none where half of the reports at most state any, and not all of the same
    classes, so that a few malicious clients cannot have the others' reports rejected.

    Parameters
    ----------
    votes : HeaderCounts
        The reports that have a say; all on one binning, as the checks before have it.
    """
    strata = _most_common_strata(votes)
    if strata is not None and strata[0] == "class":
        return RoundStrata(strata, strata[1])
    name_counts = count_values(votes, lambda header: header.class_names)
    if not name_counts:
        return RoundStrata(strata, None)
    common = RoundStrata(strata, _most_common_classes(name_counts))
    are_few = 2 * name_counts.total() <= sum(n_reports for _, n_reports in votes)
    check = require_known_strata(common)
    if are_few and any(check(header) for header, _ in votes if header.class_names is not None):
        return RoundStrata(strata, None)
    return common


def _most_common_strata(votes: HeaderCounts) -> Strata | None:
    """Return the kind of strata that most of the reports with any have, and their names.

    Clients without strata have no say, unless their reports hold noise: a few do not make the
    others pay for the noise on every class. But their class totals name classes, too. Where half
    of the reports at most name classes, and not all the same, the round has none: malicious
    clients could else outnumber the others, and have them refused.

    Parameters
    ----------
    votes : HeaderCounts
        The reports that have a say; all on one binning, as the checks before have it.

    Returns
    -------
    tuple or None
        "class" or "group", and the names, of groups all that fit; None for a round without.

    Raises
    ------
    RobfcpError
        Where most reports have too many classes for a round.
    """
    # Whether there are strata at all, and of which kind; "group" at a tie.
    kind_counts = count_values(votes, lambda header: header.strata and header.strata[0])
    n_stratified = kind_counts.total()
    n_private_pooled = sum(
        n_reports
        for header, n_reports in votes
        if header.strata is None and header.privacy is not None
    )
    if n_stratified <= n_private_pooled:
        return None
    by: StratumKind = max(kind_counts, key=lambda kind: (kind_counts[kind], kind))

    # How many reports have each list of names. A few with too many classes stop no round: their
    # names are left out. With those of most reports the round is refused below.
    strata_counts = count_values(votes, lambda header: _named_strata(header, by))
    name_counts = {names: n for (_, names), n in strata_counts.items()}
    n_naming = strata_counts.total()
    max_strata = MAX_ROUND_CELLS // votes[0][0].binning.n_bins
    are_few = 2 * n_naming <= sum(n_reports for _, n_reports in votes)
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
            f"classes: {n_classes} of them on this binning are too many for a round; use a "
            f"binning of at most {MAX_ROUND_CELLS // n_classes} bins, or merge classes"
        )

    # The few must all have these classes; votes without strata pass the check.
    check = require_known_strata(RoundStrata((by, classes), classes))
    if are_few and any(check(header) for header, _ in votes):
        return None
    return by, classes


def _named_strata(header: Header, by: StratumKind) -> Strata | None:
    """Return the strata of a kind that a report names, of its counts or of its class totals."""
    if header.strata is not None and header.strata[0] == by:
        return header.strata
    if by == "class" and header.class_names is not None:
        return "class", header.class_names
    return None


def _join_groups(name_counts: Mapping[StratumNames, int], max_groups: int) -> tuple[str, ...]:
    """Return the groups of all reports, sorted; where they are too many, of some reports.

    Reports with few groups go first, so that a malicious client's long list keeps nobody out.

    Parameters
    ----------
    name_counts : mapping
        The different lists of groups, as keys; how many reports have them makes no difference.
    max_groups : int
        How many groups a round can have.
    """
    groups: set[str] = set()
    all_labels = [stratum_labels(names) for names in name_counts]
    for labels in sorted(all_labels, key=lambda labels: (len(labels), labels)):
        joined = groups.union(labels)
        if len(joined) <= max_groups:
            groups = joined
    return tuple(sorted(groups))


def _most_common_classes(name_counts: Mapping[StratumNames, int]) -> StratumNames:
    """Return the classes that most reports have, whatever their order.

    Reports that give only a number of classes also vote for a set of so many names, where as many
    reports have that set as give the number: so one client alone cannot rename the classes of
    clients that give numbers. Whether a client merged its small classes makes no difference to its
    vote.

    Parameters
    ----------
    name_counts : mapping
        How many reports have each list of class names, or each number of classes; one at least.

    Returns
    -------
    tuple of str or int
        The names in the order that most of these reports have, at the end `OTHER_STRATUM` if any
        of them has it; the number alone where most reports give no names. Ties are decided by
        value, so that the order in which reports arrive makes no difference.
    """
    # Votes for a number of classes, for a set of names, and for an order of names; and the sets
    # of which any report has merged small classes.
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

    # Votes for a number count for sets of so many names that as many reports have; and for the
    # names "0", "1", ..., which say no more than the number.
    backed_votes = {}
    for classes, n_reports in set_votes.items():
        n_numbered = number_votes[len(classes)]
        are_indices = classes == frozenset(map(str, range(len(classes))))
        if are_indices or n_reports >= n_numbered:
            n_reports += n_numbered
        backed_votes[classes] = n_reports

    # A number wins where its votes exceed those of every set of names.
    if number_votes:
        n_classes = max(number_votes, key=lambda n: (number_votes[n], n))
        if number_votes[n_classes] > max(backed_votes.values(), default=0):
            return n_classes

    selected = max(
        backed_votes,
        key=lambda classes: (backed_votes[classes], set_votes[classes], sorted(classes)),
    )
    orders = [order for order in order_votes if frozenset(order) == selected]
    order = max(orders, key=lambda order: (order_votes[order], order))
    return (*order, OTHER_STRATUM) if selected in sets_with_merged else order


def require_known_strata(common: RoundStrata) -> HeaderCheck:
    """Return a check that a report names the round's strata; reports that name none pass.

    By class a report has all the round's classes, in any order, or states only how many there are;
    `OTHER_STRATUM` makes no difference. By group it may have any of the round's groups. In a round
    without strata, exact reports by class or group are pooled; those with noise, which is more on
    each of the strata than on all together, and coarsened ones are rejected. The classes of class
    totals must be the round's classes, too.

    Parameters
    ----------
    common : RoundStrata
        The strata and classes of the round.

    Returns
    -------
    HeaderCheck
        What is wrong with a header, if so.
    """

    def check(header: Header) -> RejectionReason | None:
        if header.strata is not None:
            return _reject_other_strata(header, common.strata)
        if header.class_names is not None:
            return _reject_other_classes(header.class_names, common.class_names)
        return None

    return check


def _reject_other_strata(header: Header, common: Strata | None) -> RejectionReason | None:
    """Return what is wrong with the strata of a report's counts, if so."""
    if common is None:
        return _reject_private_strata(header) or _reject_coarsened_strata(header)
    if header.strata is None or header.strata == common:
        return None
    problem = _strata_problem(header.strata, common)
    if not problem:
        return None
    return RejectionReason("classes", problem, "use this round's classes")


def _reject_other_classes(
    reported: StratumNames, common: StratumNames | None
) -> RejectionReason | None:
    """Return what is wrong with the classes of a report's class totals, if so."""
    if common is None or reported == common:
        return None
    problem = _strata_problem(("class", reported), ("class", common))
    if not problem:
        return None
    return RejectionReason("classes", problem, "use this round's classes")


def _strata_problem(reported: Strata, common: Strata) -> str:
    """Return what is wrong with the strata of a report; empty where nothing is.

    Parameters
    ----------
    reported, common : tuple
        The kind and names of the strata, of the report and of the round.
    """
    reported_by, reported_names = reported
    by, names = common  # a kind and its names, as in a header
    if reported_by != by:
        return f"counts are by {reported_by}, not by {by} as most reports'"
    if isinstance(reported_names, int) and reported_names == len(_proper_labels(names)):
        return ""  # a number alone means the round's own names in their order
    if by == "class":
        return _class_problem(reported_names, names)
    return _group_problem(reported_names, names)


def _proper_labels(names: StratumNames) -> set[str]:
    """Return the names of strata without that of the merged small ones."""
    return set(stratum_labels(names)) - {OTHER_STRATUM}


def _group_problem(reported: StratumNames, common: StratumNames) -> str:
    """Return what is wrong with a report's groups; empty where the round has them all.

    The round lacks groups of a report only where `_join_groups` left its groups out, because all
    together are more than a round can have.
    """
    groups = stratum_labels(reported)
    if set(stratum_labels(common)).issuperset(groups):
        return ""
    return f"with its {len(groups)} groups there are too many for a round"


def _reject_private_strata(header: Header) -> RejectionReason | None:
    """Return what is wrong with a private report by class or group in a round without strata.

    Other reports pass: their strata are pooled.
    """
    if header.strata is None or header.privacy is None:
        return None
    problem = f"holds noise for every {header.strata[0]}, and most reports have none"
    return RejectionReason("classes", problem, "use this round's classes")


def _reject_coarsened_strata(header: Header) -> RejectionReason | None:
    """Return what is wrong with a coarsened report by class or group in a round without strata.

    Each stratum was coarsened by itself. Pooled, its cells would not tell any more where samples
    may lie, and the bounds that are computed from them would be false.
    """
    if header.strata is None or header.min_cell_count == 1:
        return None
    by = header.strata[0]
    problem = f"its counts are coarsened by {by}, and the round has no {by} in common"
    return RejectionReason("classes", problem, "send a default report, of all classes together")


def _class_problem(reported: StratumNames, common: StratumNames) -> str:
    """Return how a report's classes differ from the round's; empty where they do not.

    Their order makes no difference, nor whether small classes are merged.

    Parameters
    ----------
    reported, common : tuple of str or int
        The names of classes, or how many there are, of the report and of the round.
    """
    classes = _proper_labels(reported)
    common_classes = _proper_labels(common)
    if classes == common_classes:
        return ""
    missing = [f"{name!r:.40}" for name in sorted(common_classes - classes)]
    added = [f"{name!r:.40}" for name in sorted(classes - common_classes)]
    problem = f"its {len(classes)} classes are not the round's {len(common_classes)}"
    if sorted(map(str.lower, missing)) == sorted(map(str.lower, added)):
        return f"{problem} (they differ in upper and lower case only)"
    if missing:
        return f"{problem} (it lacks {abbreviate(missing)})"
    return f"{problem} (it adds {abbreviate(added)})"
