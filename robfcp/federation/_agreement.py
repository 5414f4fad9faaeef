"""Which of the valid reports count in a round: those that agree with the server or with most.

What the server does not state (binning, score, round, model, noise) is what most reports have. The
vote on classes and groups is in `_round_strata`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction
from hashlib import sha256
from itertools import compress, pairwise
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp._typing import BoolArray, IndexArray
from robfcp._validation import check_fraction, check_integer
from robfcp.errors import QuorumError, ReportError, RobfcpError
from robfcp.federation._inbox import AcceptedReports, RejectedReport, charge_to_source
from robfcp.federation._tables import SparseCounts
from robfcp.privacy import Privacy
from robfcp.reports import DEFAULT_MIN_CELL_COUNT, Header

VARIANCE_TOLERANCE = 1e-9  # relative: a variance computed in another order differs by rounding
_DIGEST_BYTES = 16  # of a row: finding two rows of the same digest takes 2**64 tries


class RejectionReason(NamedTuple):
    """The field of a report, what is wrong with it and what to do about it."""

    field: str
    problem: str
    remedy: str


HeaderCounts = Sequence[tuple[Header, int]]  # different headers, and how many reports have each
HeaderCheck = Callable[[Header], RejectionReason | None]  # None where nothing is wrong


class ReportSelection:
    """The reports that count in a round, and all that are rejected with the reason.

    Equal reports of one client count once from the start. The `require` methods change `is_valid`
    and `rejected` in place; `is_valid` never turns true again.

    Parameters
    ----------
    reports : AcceptedReports
        The n reports that are valid by themselves.

    Attributes
    ----------
    reports : AcceptedReports
        The same; never changed.
    is_valid : (n,) ndarray of bool
        Which of them count.
    rejected : list of (str, RejectedReport)
        The rejected reports, each with its source: "report #3" or "file:" and a path. Those that
        could not be read come first. A client that sent different reports stands before them, once,
        and is itself the source.
    resubmitted_clients : tuple of str
        The clients that sent the very same report more than once, sorted.
    """

    def __init__(self, reports: AcceptedReports) -> None:
        self.reports = reports
        self.rejected = list(reports.rejected)
        self.is_valid = ~reports.is_discarded
        self._rows_of_repeated_names = self._find_repeated_names()
        self.resubmitted_clients = self._count_equal_reports_once()

    def _find_repeated_names(self) -> IndexArray:
        """Return the rows, rising, of the reports whose client's name comes more than once."""
        clients = self.reports.clients
        if not isinstance(clients, list):  # packed names, which compare themselves
            rows: IndexArray = clients.repeated()
            return rows
        n_reports_of = Counter(clients)
        if len(n_reports_of) == len(clients):
            return np.zeros(0, dtype=np.intp)
        return np.flatnonzero([n_reports_of[client] > 1 for client in clients])

    def _count_equal_reports_once(self) -> tuple[str, ...]:
        """Make all but the first of equal reports of a client invalid; return these clients."""
        rows = self._rows_of_repeated_names
        rows = rows[self.is_valid[rows]]
        contents = self._contents_of(rows)
        n_times: Counter[tuple[str, bytes]] = Counter()
        for row, content in zip(rows.tolist(), contents, strict=True):
            report = (self.reports.clients[row], content)
            self.is_valid[row] = report not in n_times
            n_times[report] += 1
        return tuple(sorted({client for (client, _), times in n_times.items() if times > 1}))

    def _contents_of(self, rows: IndexArray) -> list[bytes]:
        """Return what some reports hold besides the name, as bytes: equal ones are equal reports.

        Parameters
        ----------
        rows : (r,) ndarray of int
            Rows of the reports, whether their counts are in memory or stored.
        """
        reports = self.reports
        if not len(rows):
            return []

        # Counts in memory and digests of stored ones are numbered apart: row i of the reports, with
        # m rows in memory before it, is row m of the tables, or row i - m of the digests.
        rows_in_memory = np.flatnonzero(reports.is_in_memory)
        in_memory = reports.is_in_memory[rows]
        n_in_memory_before = np.searchsorted(rows_in_memory, rows)
        digests = np.zeros((len(rows), 2), dtype=np.uint64)
        table_rows = n_in_memory_before[in_memory]
        digests[in_memory] = hash_rows([table.select(table_rows) for table in reports.tables])
        digests[~in_memory] = reports.digests[(rows - n_in_memory_before)[~in_memory]]

        # Equal headers have one index.
        sizes = reports.sizes[rows].astype(np.uint64)
        headers = reports.header_index[rows].astype(np.uint64)
        return [content.tobytes() for content in np.column_stack([sizes, headers, digests])]

    def is_sole_report(self) -> BoolArray:
        """Return (n,) which reports are valid and the only valid ones of their clients."""
        is_sole = self.is_valid.copy()
        rows = self._rows_of_repeated_names
        valid_rows = rows[self.is_valid[rows]].tolist()
        client_of = {row: self.reports.clients[row] for row in valid_rows}
        n_reports_of = Counter(client_of.values())
        contradicting_rows = [row for row, client in client_of.items() if n_reports_of[client] > 1]
        is_sole[contradicting_rows] = False
        return is_sole

    def votes_of_sole_reports(self) -> HeaderCounts:
        """Return how many sole reports have each header; how many valid ones if none is sole.

        So a client that sends many different reports has no vote, unless all do.
        """
        is_sole = self.is_sole_report()
        return self._count_headers(is_sole if is_sole.any() else self.is_valid)

    def votes_of_valid_reports(self) -> HeaderCounts:
        """Return how many valid reports have each header."""
        return self._count_headers(self.is_valid)

    def _count_headers(self, mask: BoolArray) -> HeaderCounts:
        """Return how many reports of an (n,) mask have each header; only headers that one has."""
        headers = self.reports.headers
        n_reports = np.bincount(self.reports.header_index[mask], minlength=len(headers)).tolist()
        return [vote for vote in zip(headers, n_reports, strict=True) if vote[1] > 0]

    def reject(self, row: int, reason: RejectionReason) -> None:
        """Make the report of a row invalid, and list it as rejected for a reason.

        Parameters
        ----------
        row : int
            A row of `reports`, which is not its position among all that arrived.
        reason : RejectionReason
            The field, the problem and the remedy, without the client's name.
        """
        rejected = RejectedReport.of(ReportError(self.reports.clients[row], *reason))
        position = self.reports.positions.position_of(row)
        self.rejected.append((f"report #{position + 1}", rejected))
        self.is_valid[row] = False

    def require(self, check: HeaderCheck) -> None:
        """Reject the valid reports to whose header a check objects.

        What the check asks for must be settled before: it is not asked again after a rejection.
        """
        # There are few different headers; each is checked once.
        reasons = [check(header) for header in self.reports.headers]
        is_wrong = np.array([reason is not None for reason in reasons], dtype=bool)
        if not is_wrong.any():
            return
        header_index = self.reports.header_index
        for row in np.flatnonzero(self.is_valid & is_wrong[header_index]).tolist():
            reason = reasons[header_index[row]]
            assert reason is not None
            self.reject(row, reason)

    def require_registered_sizes(self, sizes: Mapping[str, int]) -> None:
        """Reject reports of unregistered clients, and those of another size than the registered.

        Parameters
        ----------
        sizes : mapping of str to int
            The number of samples of every registered client. Reports that hide their size are not
            compared with it.
        """
        reports = self.reports
        hides_size = [header.protects_sample_size for header in reports.headers]
        columns = zip(
            reports.clients, reports.sizes.tolist(), reports.header_index.tolist(), strict=True
        )
        for row, (client, n_samples, header_index) in enumerate(columns):
            if not self.is_valid[row]:
                continue
            registered_size = sizes.get(client)
            if registered_size is None:
                remedy = "add it to the registry"
                self.reject(row, RejectionReason("client", "is not registered", remedy))
            elif not hides_size[header_index] and n_samples != registered_size:
                problem = f"counts sum to {n_samples} but {registered_size} samples were registered"
                remedy = "rebuild the report or fix the registry"
                self.reject(row, RejectionReason("n_samples", problem, remedy))

    def require_one_report_each(self) -> None:
        """Reject all reports of clients that sent different ones: they contradict each other."""
        is_sole = self.is_sole_report()
        rows = np.flatnonzero(self.is_valid & ~is_sole).tolist()
        n_reports_of = Counter(self.reports.clients[row] for row in rows)
        for client, n_reports in n_reports_of.items():
            reason = f"{client}: sent {n_reports} different reports for this round; send one"
            # In front of all others, so that it is the rejection that is listed for the client.
            self.rejected.insert(0, (client, RejectedReport(client, "client", reason)))
        self.is_valid = is_sole

    def clients_with_valid_report(self, clients: set[str]) -> set[str]:
        """Return which of some clients have a valid report, without a pass over all for none."""
        if not clients:
            return set()
        return clients.intersection(compress(self.reports.clients, self.is_valid))

    def rejected_by_sender(self, heard: set[str]) -> dict[str, RejectedReport]:
        """Return the first rejection of each sender.

        A sender is the client that a report names or, where that client has a valid report, the
        source that the report came from. The quorum counts one awaited report for each.

        Parameters
        ----------
        heard : set of str
            The clients that have a valid report, as `clients_with_valid_report` finds them.

        Returns
        -------
        dict of str to RejectedReport
            Its keys are the `client` of each: a client's name, "report #3" or "file:" and a path;
            in the order of `rejected`.
        """
        rejected_of: dict[str, RejectedReport] = {}
        for source, rejected in self.rejected:
            if rejected.client in heard:
                rejected = charge_to_source(source, source, rejected.field, rejected.reason)
            rejected_of.setdefault(rejected.client, rejected)
        return rejected_of


def hash_rows(tables: Sequence[SparseCounts]) -> NDArray[np.uint64]:
    """Return (n, 2) digests of what the tables hold in each row; only equal rows have equal ones.

    Parameters
    ----------
    tables : sequence of SparseCounts
        Of the same n rows, without counts of 0, in an order that is the same in all calls.

    Returns
    -------
    (n, 2) ndarray of uint64
        Each row is one digest of 16 bytes.
    """
    contents = []
    for index, table in enumerate(tables):
        # The code of an entry tells its table and its bin, so that rows of tables can be joined.
        codes = len(tables) * table.bins.astype(np.int64) + index
        entries = np.column_stack([codes, table.values.astype(np.int64)])
        data = entries.astype("<i8").tobytes()
        byte_starts = (16 * table.starts).tolist()  # an entry is two integers of eight bytes
        contents.append([data[first:stop] for first, stop in pairwise(byte_starts)])

    digests = [
        sha256(b"".join(row)).digest()[:_DIGEST_BYTES] for row in zip(*contents, strict=True)
    ]
    return np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, 2)


# ----------------------------------------------------------------------- checks of headers


def count_values(votes: HeaderCounts, value_of: Callable[[Header], Hashable]) -> Counter[Any]:
    """Return how many reports have each value.

    Parameters
    ----------
    votes : HeaderCounts
        The reports that are counted, by their headers.
    value_of : callable
        The value of a header; None where it has none, which is not counted.
    """
    counts: Counter[Any] = Counter()
    for header, n_reports in votes:
        value = value_of(header)
        if value is not None:
            counts[value] += n_reports
    return counts


def require_equal(name: str, expected: Any, votes: HeaderCounts) -> HeaderCheck:
    """Return a check that one entry of a header is the expected one.

    Parameters
    ----------
    name : {"binning", "score", "round", "model", "risk"}
        The entry, as reports call it.
    expected : object
        What the server states, a `BinningDigest` for "binning"; what most reports have if None.
    votes : HeaderCounts
        The reports that vote where the server states nothing.

    Returns
    -------
    HeaderCheck
        What is wrong with a header, if so.

    Raises
    ------
    RobfcpError
        Where the two most frequent values have equally many reports.
    """
    if expected is None and votes:
        expected = _most_common_value(name, votes)

    def check(header: Header) -> RejectionReason | None:
        value = getattr(header, name)
        if value == expected:
            return None
        return RejectionReason(
            name, f"{name} is {value}, not {expected}", f"use this round's {name}"
        )

    return check


def _most_common_value(name: str, votes: HeaderCounts) -> Any:
    """Return the value of most reports; refuse a tie.

    Parameters
    ----------
    name : str
        The entry of a header.
    votes : HeaderCounts
        One report at least.
    """

    # None is a value here: most reports may name no score. The tuple lets it be counted.
    def value_in_tuple(header: Header) -> tuple[Any]:
        return (getattr(header, name),)

    ranked = count_values(votes, value_in_tuple).most_common(2)
    first, n_first = ranked[0]
    if len(ranked) > 1:
        second, n_second = ranked[1]
        if n_second == n_first:
            raise RobfcpError(
                f"{name}: the reports are split evenly between {first[0]} and {second[0]}; "
                f"pass the expected {name}"
            )
    return first[0]


def limit_noise(
    votes: HeaderCounts, agreed: Privacy | None, are_sizes_registered: bool
) -> HeaderCheck:
    """Return a check that reports have the agreed budget or, without one, usual noise at most.

    Noise hides malicious reports. Without an agreed budget no variance may therefore exceed the
    upper median over all reports, where those without noise have variance 0. And a report may hide
    its size only where sizes are registered, or where at least half of the reports hide theirs: at
    a tie noise is allowed, as by the upper median.

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

    variances = count_values(votes, lambda header: header.noise_variance)
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


def limit_min_cell_count(votes: HeaderCounts, agreed: int | None) -> HeaderCheck:
    """Return a check that no report is coarsened to larger cells than the round's.

    Large cells hide malicious reports. Without an agreed minimum cell count the largest allowed is
    the default one, or the upper median over all reports that are allowed where that is larger.

    Parameters
    ----------
    votes : HeaderCounts
        The reports whose minimum cell counts set the limit.
    agreed : int or None
        The minimum cell count of the round.

    Returns
    -------
    HeaderCheck
        What is wrong with a header, if so. Smaller cells than the round's pass: they tell more.
    """
    largest = _usual_min_cell_count(votes) if agreed is None else agreed

    def check(header: Header) -> RejectionReason | None:
        if header.min_cell_count <= largest:
            return None
        problem = f"min_cell_count is {header.min_cell_count}, and the round's is {largest}"
        return RejectionReason("min_cell_count", problem, "make the report with the round's")

    return check


def _usual_min_cell_count(votes: HeaderCounts) -> int:
    """Return the largest minimum cell count that a round allows where none was agreed on.

    Reports of larger cells are left out until the others agree: so the answer does not depend on
    reports that are rejected for it.
    """
    while True:
        declared = count_values(votes, lambda header: header.min_cell_count)
        largest = max(DEFAULT_MIN_CELL_COUNT, int(_upper_median(declared)))
        allowed = [vote for vote in votes if vote[0].min_cell_count <= largest]
        if len(allowed) == len(votes):
            return largest
        votes = allowed


def _require_budget(agreed: Privacy) -> HeaderCheck:
    """Return a check that reports have the agreed budget; one without noise does not pass."""

    def check(header: Header) -> RejectionReason | None:
        if header.privacy == agreed:
            return None
        declared = "not private" if header.privacy is None else header.privacy.statement
        problem = f"is {declared}, but agreed was: {agreed.statement}"
        return RejectionReason("privacy", problem, "use the round's privacy")

    return check


def _upper_median(n_reports_of: Counter[float]) -> float:
    """Return the least variance that more than half of the reports do not exceed.

    Parameters
    ----------
    n_reports_of : Counter
        How many reports have each variance. Without any the answer is 0.
    """
    n_reports = n_reports_of.total()
    n_up_to = 0
    for variance in sorted(n_reports_of):
        n_up_to += n_reports_of[variance]
        if 2 * n_up_to > n_reports:
            return variance
    return 0.0


def require_same_noise(votes: HeaderCounts) -> HeaderCheck:
    """Return a check that all private reports hold the noise that most of them hold.

    Where several are equally frequent it is the first in the order of `Noise`. Reports without
    noise pass.

    Parameters
    ----------
    votes : HeaderCounts
        The reports that vote; one private report at least.
    """
    counts = count_values(votes, lambda header: header.privacy and header.privacy.noise)
    expected = min(counts, key=lambda noise: (-counts[noise], noise))

    def check(header: Header) -> RejectionReason | None:
        if header.privacy is None or header.privacy.noise == expected:
            return None
        problem = "holds other noise than most reports while sizes are hidden"
        return RejectionReason("privacy", problem, "use the round's privacy or register the sizes")

    return check


# ----------------------------------------------------------------------------- quorum


def check_quorum(
    n_valid: int,
    n_awaited: int,
    quorum: int | float | Fraction | None,
    first_rejection: str | None,
) -> None:
    """Refuse a round with too few valid reports; one at least has to be valid.

    Parameters
    ----------
    n_valid : int
        How many reports are valid.
    n_awaited : int
        How many were awaited.
    quorum : int, float or Fraction, optional
        The least number of valid reports if an int; else their least share of those awaited: 1 is
        one report, 1.0 is all of them.
    first_rejection : str, optional
        Why the first report was rejected, for the message.

    Raises
    ------
    QuorumError
        Where fewer reports are valid, or none at all.
    RobfcpError
        Where the quorum is no such number.
    """
    n_required = _required_reports(quorum, n_awaited)
    if n_valid >= max(1, n_required):
        return
    first_fault = f" (first fault: {first_rejection})" if first_rejection else ""
    remedy = "fix the faulty sites" if first_rejection else "wait for more reports"
    raise QuorumError(
        f"only {n_valid} of {n_awaited} reports are valid but the quorum is "
        f"{n_required}{first_fault}; {remedy} or lower the quorum"
    )


def _required_reports(quorum: int | float | Fraction | None, n_awaited: int) -> int:
    """Return how many valid reports a quorum asks for.

    A share is rounded up. It is taken as the decimal that is written, so that 0.1 of 30 is 3:
    the float 0.1 itself is a little more, and its share would be rounded up to 4.

    Parameters
    ----------
    quorum : int, float or Fraction, optional
        As `check_quorum` takes it; one report if None.
    n_awaited : int
        How many reports were awaited.
    """
    if quorum is None:
        return 1
    if isinstance(quorum, (float, np.floating, Fraction)):
        fraction = check_fraction("quorum", quorum, "give a number or a share", allow_one=True)
        return max(1, ceil(Fraction(str(fraction)) * n_awaited))
    return check_integer("quorum", quorum, "give a number or a share of the reports")
