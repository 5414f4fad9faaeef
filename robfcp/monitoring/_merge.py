"""The e-values of many clients merged, when some of the clients are malicious.

Let W_1 <= ... <= W_K be the reported e-values, with 0 for silent clients. The mean of the K - m
smallest is at most the mean over any K - m benign clients, so while coverage holds at all benign
clients it reaches 1/delta with probability at most delta, whatever m malicious clients send and
however clients depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from robfcp._typing import FloatArray
from robfcp._validation import as_float_array, check_fraction, check_integer
from robfcp.errors import RobfcpError
from robfcp.federation import RejectedReport
from robfcp.monitoring._e_value_report import EValueReport

LIST_WEIGHT = 0.1  # w: of a client's e-value in the product for independent clients, 1 - w of 1


@dataclass(frozen=True)
class MergedEValue:
    """The merged e-values of the clients.

    Attributes
    ----------
    n_clients : int
        The number of clients K, with those that are silent or rejected.
    max_malicious : int
        At most so many of them are malicious, m.
    delta : float
        The probability that a false alarm is ever raised, half for coverage and half for drift.
    log_mean_e_value : float
        ln of the mean of the K - m smallest e-values: valid under any dependence.
    log_product_e_value : float
        ln of the product of (1 - w + w W) over them: valid if clients are independent.
    log_e_exchangeability : float
        ln of the mean of the K - m smallest e-values against "scores are like those reported";
        clients that compute none count as 0.
    independent : bool
        Whether the clients were stated to be independent, so that the product may raise an alarm.
    alarming_clients : tuple of str
        The clients that raise an alarm each, by e-BH at delta among the benign ones; the largest
        e-value first.
    rejected_reports : tuple of RejectedReport
        The rejected e-value reports, and why; their clients count as silent.
    signatures_checked : bool
        Whether signatures show who sent them. If not, a sender under several names counts as
        several clients.
    """

    n_clients: int
    max_malicious: int
    delta: float
    log_mean_e_value: float
    log_product_e_value: float
    log_e_exchangeability: float
    independent: bool = False
    alarming_clients: tuple[str, ...] = ()
    rejected_reports: tuple[RejectedReport, ...] = ()
    signatures_checked: bool = False

    @property
    def has_alarm(self) -> bool:
        """Whether the merged e-value raises an alarm for coverage."""
        return self.log_e_coverage >= self.log_alarm_threshold

    @property
    def has_exchangeability_alarm(self) -> bool:
        """Whether the merged e-value raises an alarm for drift from the clients' reports."""
        return self.log_e_exchangeability >= self.log_alarm_threshold

    @property
    def log_e_coverage(self) -> float:
        """ln of the merged e-value: the mean, or its average with the product if independent."""
        if not self.independent:
            return self.log_mean_e_value
        return float(np.logaddexp(self.log_mean_e_value, self.log_product_e_value) - np.log(2))

    @property
    def log_alarm_threshold(self) -> float:
        """ln(2 / delta), at which either alarm is raised: each has half of delta."""
        return float(np.log(2 / self.delta))

    @property
    def line(self) -> str:
        """The result in one line."""
        clients_text = describe_clients(
            self.n_clients, self.max_malicious, names_checked=self.signatures_checked
        )
        if self.has_alarm:
            return coverage_alarm_line(clients_text)
        if self.has_exchangeability_alarm:
            return drift_alarm_line(clients_text)
        return no_alarm_line(clients_text, self.max_malicious, self.alarming_clients, "no alarm: ")


def describe_clients(n_clients: int, max_malicious: int, *, names_checked: bool) -> str:
    """Return the numbers of clients in words, and whether their names are checked.

    The lines below take this as `clients_text`.
    """
    unchecked = "" if names_checked else " (names unchecked)"
    return f"{n_clients} sites{unchecked} of which at most {max_malicious} lie"


def coverage_alarm_line(clients_text: str, since: str = "") -> str:
    """Return the line about an alarm for coverage; `since` is "" or " since step 3"."""
    return (
        f"alarm{since}: {clients_text}, and coverage has fallen below its floor at an "
        "honest one at least; recalibrate now on fresh samples"
    )


def drift_alarm_line(clients_text: str, since: str = "") -> str:
    """Return the line about an alarm for drift alone; `since` is "" or " since step 3"."""
    return (
        f"no alarm, but drift{since}: {clients_text}, and scores no longer are like the own "
        "report at an honest one at least; check coverage there"
    )


def no_alarm_line(
    clients_text: str, max_malicious: int, alarming: Sequence[str], start: str
) -> str:
    """Return the line about no alarm of all clients, beginning with `start`.

    Parameters
    ----------
    clients_text : str
        As `describe_clients` returns it.
    max_malicious : int
        m, as in `clients_text`.
    alarming : sequence of str
        The clients that raise an alarm each.
    start : str
        With the space or colon that it ends with.
    """
    if not alarming:
        return start + clients_text
    return (
        f"{start}{clients_text}, but {len(alarming)} alarm by themselves: look there; drift at no "
        f"more than {max_malicious} sites cannot be told from {max_malicious} liars"
    )


def merge_e_values(
    reports: Iterable[EValueReport],
    max_malicious: int,
    *,
    n_clients: int | None = None,
    delta: float = 0.05,
    independent: bool = False,
    rejected: Sequence[RejectedReport] = (),
    signatures_checked: bool = False,
) -> MergedEValue:
    """Merge the e-values of K clients; those without a valid report count as 0.

    Parameters
    ----------
    reports : iterable of EValueReport
        The valid reports; of several of one client the newest counts.
    max_malicious : int
        At most so many clients are malicious.
    n_clients : int, optional
        The number of clients, fixed beforehand; those with a valid report if None.
    delta : float
        The probability that a false alarm is ever raised.
    independent : bool
        Whether the samples of the clients are independent, stated beforehand.
    rejected : sequence of RejectedReport
        Reports that are not valid; they are listed in the result and change no e-value.
    signatures_checked : bool
        Whether signatures show who sent the reports.
    """
    check_fraction("delta", delta, "give 0.05, say")

    # The newest report of each client; the name in a broken file is not checked and never counts.
    oldest_first = sorted(
        reports, key=lambda report: (report.client, report.step, report.n_samples)
    )
    newest = {report.client: report for report in oldest_first}
    if n_clients is None:
        n_clients = len(newest)
    else:
        n_clients = check_integer("n_clients", n_clients, "give how many are watched", 1)
    if n_clients < max(len(newest), 1):
        raise RobfcpError(
            f"n_clients: {len(newest)} sent e-value reports but {n_clients} are monitored; raise "
            "it, or pass "
            "keys so that nobody can pose as a site"
        )
    check_integer("max_malicious", max_malicious, "give the most sites that may lie")
    if max_malicious >= n_clients:
        raise RobfcpError(
            f"max_malicious: cannot tolerate {max_malicious} among {n_clients} sites; state fewer"
        )

    coverage_logs = {client: report.log_e_coverage for client, report in newest.items()}
    drift_logs = [
        report.log_e_exchangeability
        for report in newest.values()
        if report.log_e_exchangeability is not None
    ]
    logs = list(coverage_logs.values())
    return MergedEValue(
        n_clients=n_clients,
        max_malicious=max_malicious,
        delta=delta,
        log_mean_e_value=log_mean_of_smallest(logs, max_malicious, n_clients),
        log_product_e_value=log_product_of_smallest(logs, max_malicious, n_clients),
        log_e_exchangeability=log_mean_of_smallest(drift_logs, max_malicious, n_clients),
        independent=independent,
        alarming_clients=alarming_clients(coverage_logs, max_malicious, delta, n_clients),
        rejected_reports=tuple(rejected),
        signatures_checked=signatures_checked,
    )


def log_mean_of_smallest(logs: Sequence[float], max_malicious: int, n_clients: int) -> float:
    """Return ln((W_1 + ... + W_{K-m}) / (K - m)) of the sorted e-values, 0 of silent clients.

    Parameters
    ----------
    logs : sequence of float
        ln of the e-values of the clients that sent one; at most K.
    max_malicious : int
        m, below K.
    n_clients : int
        K, with the silent clients.

    Returns
    -------
    float
        Minus infinity if at most m clients sent one.
    """
    # Silent clients have the smallest e-values, 0: they add nothing to the sum.
    smallest = _without_largest(logs, max_malicious)
    log_sum = np.logaddexp.reduce(smallest, initial=-np.inf)
    return float(log_sum - np.log(n_clients - max_malicious))


def log_product_of_smallest(logs: Sequence[float], max_malicious: int, n_clients: int) -> float:
    """Return ln of the product of (1 - w + w W) over the K - m smallest, W = 0 of silent clients.

    w is LIST_WEIGHT; the product has a mean of at most 1 if clients are independent.

    Parameters
    ----------
    logs, max_malicious, n_clients
        As `log_mean_of_smallest` takes them.
    """
    smallest = _without_largest(logs, max_malicious)
    n_silent = n_clients - max_malicious - len(smallest)
    factors = np.logaddexp(np.log1p(-LIST_WEIGHT), np.log(LIST_WEIGHT) + smallest)
    return float(factors.sum() + n_silent * np.log1p(-LIST_WEIGHT))


def _without_largest(logs: Sequence[float], max_malicious: int) -> FloatArray:
    """Return the logarithms in rising order without the m largest; none if there are at most m.

    Parameters
    ----------
    logs : sequence of float
        ln of the e-values of the clients that sent one, in any order.
    max_malicious : int
        m.

    Returns
    -------
    ndarray of shape (max(0, len(logs) - m),)
    """
    n_smallest = max(0, len(logs) - max_malicious)
    return np.sort(as_float_array("logs", logs))[:n_smallest]


def alarming_clients(
    logs: Mapping[str, float], max_malicious: int, delta: float, n_clients: int
) -> tuple[str, ...]:
    """Return the clients with the R largest e-values, W_(R) >= K / (delta max(1, R - m)).

    R is the largest such number: e-BH when at most m clients are malicious. The fraction of false
    alarms among the benign clients listed is at most delta in the mean, under any dependence; with
    m = 0 it is plain e-BH (Wang and Ramdas 2022).

    Parameters
    ----------
    logs : mapping of str to float
        ln of the e-values of the clients that sent one.
    max_malicious : int
        m, below K.
    delta : float
        The fraction of false alarms.
    n_clients : int
        K, with the silent clients.

    Returns
    -------
    tuple of str
        The largest e-value first; ties are broken by name.
    """
    largest_first = sorted(logs, key=lambda client: (-logs[client], client))
    ranks = np.arange(1, len(largest_first) + 1)
    log_thresholds = np.log(n_clients / (delta * np.maximum(1, ranks - max_malicious)))
    is_reached = [logs[client] for client in largest_first] >= log_thresholds
    n_listed = int(ranks[is_reached].max(initial=0))
    return tuple(largest_first[:n_listed])
