"""Which of the valid reports count in a round: they are asked what the round agrees on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import compress

import numpy as np

from robfcp._typing import BoolArray, IndexArray
from robfcp.errors import ReportError
from robfcp.federation._agreement import HeaderCheck, HeaderCounts, RejectionReason
from robfcp.federation._inbox import AcceptedReports, RejectedReport
from robfcp.federation._rows import hash_rows


class ReportSelection:
    """The reports that count in a round, and all that are rejected with the reason.

    A report that came twice counts once from the start.

    Parameters
    ----------
    reports : AcceptedReports
        All that are valid by themselves.

    Attributes
    ----------
    reports : AcceptedReports
        The same.
    is_valid : (n,) ndarray of bool
        Which of them count.
    rejected : list
        The rejected reports, each with its source.
    resubmitted_clients : tuple of str
        The clients whose report came twice, the very same.
    """

    def __init__(self, reports: AcceptedReports) -> None:
        self.reports = reports
        self.rejected = list(reports.rejected)
        self.is_valid = ~reports.is_discarded
        self._rows_of_repeated_names = self._find_repeated_names()
        self.resubmitted_clients = self._count_equal_reports_once()

    def _find_repeated_names(self) -> IndexArray:
        """Return the rows whose client's name comes more than once."""
        clients = self.reports.clients
        if not isinstance(clients, list):
            rows: IndexArray = clients.repeated()
            return rows
        n_reports_of = Counter(clients)
        if len(n_reports_of) == len(clients):
            return np.zeros(0, dtype=np.intp)
        return np.flatnonzero([n_reports_of[client] > 1 for client in clients])

    def _count_equal_reports_once(self) -> tuple[str, ...]:
        """Drop all but the first of equal reports of a client; return these clients."""
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
        """Return what the reports of some rows hold, as bytes: equal ones are equal reports."""
        reports = self.reports
        if not len(rows):
            return []
        rows_in_memory = np.flatnonzero(reports.is_in_memory)
        in_memory = reports.is_in_memory[rows]
        n_in_memory_before = np.searchsorted(rows_in_memory, rows)
        digests = np.zeros((len(rows), 2), dtype=np.uint64)
        table_rows = n_in_memory_before[in_memory]
        digests[in_memory] = hash_rows([table.select(table_rows) for table in reports.tables])
        digests[~in_memory] = reports.digests[(rows - n_in_memory_before)[~in_memory]]

        sizes = reports.sizes[rows].astype(np.uint64)
        headers = reports.header_index[rows].astype(np.uint64)
        return [content.tobytes() for content in np.column_stack([sizes, headers, digests])]

    def is_only_one(self) -> BoolArray:
        """Return (n,) which of the valid reports are the only ones of their clients."""
        is_only = self.is_valid.copy()
        rows = self._rows_of_repeated_names
        client_of = {row: self.reports.clients[row] for row in rows[is_only[rows]].tolist()}
        n_reports_of = Counter(client_of.values())
        several = [row for row, client in client_of.items() if n_reports_of[client] > 1]
        is_only[several] = False
        return is_only

    def ballot(self) -> HeaderCounts:
        """Return the votes of those who sent one report; of all where nobody did."""
        is_only = self.is_only_one()
        return self._count_headers(is_only if is_only.any() else self.is_valid)

    def votes(self) -> HeaderCounts:
        """Return how many valid reports have each header."""
        return self._count_headers(self.is_valid)

    def _count_headers(self, mask: BoolArray) -> HeaderCounts:
        """Return how many of some reports have each header; without headers that none has."""
        headers = self.reports.headers
        n_reports = np.bincount(self.reports.header_index[mask], minlength=len(headers)).tolist()
        return [vote for vote in zip(headers, n_reports, strict=True) if vote[1]]

    def reject(self, row: int, reason: RejectionReason) -> None:
        """Let a report count no more, for a reason."""
        rejected = RejectedReport.of(ReportError(self.reports.clients[row], *reason))
        position = self.reports.positions.position_of(row)
        self.rejected.append((f"report #{position + 1}", rejected))
        self.is_valid[row] = False

    def require(self, check: HeaderCheck) -> None:
        """Reject the reports to whose header a check objects."""
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
        """Reject reports of unregistered clients, and those of another size than the registered."""
        reports = self.reports
        hides_size = [header.protects_sample_size for header in reports.headers]
        columns = zip(
            reports.clients, reports.sizes.tolist(), reports.header_index.tolist(), strict=True
        )
        for row, (client, n_samples, header) in enumerate(columns):
            if not self.is_valid[row]:
                continue
            registered = sizes.get(client)
            if registered is None:
                remedy = "add it to the registry"
                self.reject(row, RejectionReason("client", "is not registered", remedy))
            elif not hides_size[header] and n_samples != registered:
                problem = f"counts sum to {n_samples} but {registered} samples were registered"
                remedy = "rebuild the report or fix the registry"
                self.reject(row, RejectionReason("n_samples", problem, remedy))

    def require_one_report_each(self) -> None:
        """Reject the reports of clients that sent different ones: they contradict each other."""
        is_only = self.is_only_one()
        rows = np.flatnonzero(self.is_valid & ~is_only).tolist()
        n_reports_of = Counter(self.reports.clients[row] for row in rows)
        for client, n_reports in n_reports_of.items():
            reason = f"{client}: sent {n_reports} different reports for this round; send one"
            self.rejected.insert(0, (client, RejectedReport(client, "client", reason)))
        self.is_valid = is_only

    def clients_heard(self, clients: set[str]) -> set[str]:
        """Return which of some clients have a valid report."""
        if not clients:
            return set()
        return clients.intersection(compress(self.reports.clients, self.is_valid))

    def rejected_by_client(self, heard: set[str]) -> dict[str, RejectedReport]:
        """Return one rejected report for each client without a valid one.

        Parameters
        ----------
        heard : set of str
            The clients that have a valid report. A rejected one that bears such a name is its
            source's, so that nobody can discredit another.
        """
        rejected_of: dict[str, RejectedReport] = {}
        for source, rejected in self.rejected:
            if rejected.client in heard:
                reason = f"{source}: {rejected.reason}"
                rejected = RejectedReport(source, rejected.field, reason)
            rejected_of.setdefault(rejected.client, rejected)
        return rejected_of
