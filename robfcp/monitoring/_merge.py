"""Many sites' alarms merged, when some of them lie.

Let W_1 <= ... <= W_K be the alarm strengths reported, silent sites counting as 0. The mean of the
K - m smallest is at most the mean over any K - m honest sites, so it reaches 1/delta with a chance
of at most delta while all honest sites hold, whatever m liars send and however sites depend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from robfcp._typing import FloatArray
from robfcp._validation import as_float_array, check_fraction, check_integer
from robfcp.errors import RobfcpError
from robfcp.federation import RejectedReport
from robfcp.monitoring._e_report import EValueReport

LIST_WEIGHT = 0.1  # of a site's alarm in the product for independent sites


@dataclass(frozen=True)
class MergedEValue:
    """What the sites' alarms come to.

    Attributes
    ----------
    n_sites
        K, silent and faulty sites included.
    liars
        How many of them may lie, m.
    delta
        The chance of a false alarm, ever, half of it for coverage and half for drift.
    log_mean
        ln of the mean of the K - m smallest strengths: valid under any dependence.
    log_product
        ln of the product of (1 - w + w W) over them: valid where sites are independent.
    log_drift
        ln of the mean of the K - m smallest strengths against "scores are like those reported";
        sites that keep none count as 0.
    independent
        Whether the sites were stated to be independent, so that the product may ring.
    alarmed
        The sites that alarm by themselves, by e-BH at delta among the honest ones.
    faulty
        The e-reports that were refused, and why; their sites count as silent.
    checked
        Whether signatures said who sent them. Where none did, one who sends under several names
        counts as several.
    """

    n_sites: int
    liars: int
    delta: float
    log_mean: float
    log_product: float
    log_drift: float
    independent: bool = False
    alarmed: tuple[str, ...] = ()
    faulty: tuple[RejectedReport, ...] = ()
    checked: bool = False

    @property
    def has_alarm(self) -> bool:
        """Whether the alarm of all sites together rings."""
        return self.log_e_coverage >= self.log_alarm_threshold

    @property
    def has_exchangeability_alarm(self) -> bool:
        """Whether the scores of the sites together have drifted from their own reports."""
        return self.log_drift >= self.log_alarm_threshold

    @property
    def log_e_coverage(self) -> float:
        """ln of the mean's strength; of independent sites, of the average of mean and product."""
        if not self.independent:
            return self.log_mean
        return float(np.logaddexp(self.log_mean, self.log_product) - np.log(2))

    @property
    def log_alarm_threshold(self) -> float:
        """ln(2 / delta), at which either alarm rings: each has half of delta."""
        return float(np.log(2 / self.delta))

    @property
    def line(self) -> str:
        """What follows, in one line."""
        whom = describe_clients(self.n_sites, self.liars, names_checked=self.checked)
        if self.has_alarm:
            return coverage_alarm_line(whom)
        if self.has_exchangeability_alarm:
            return drift_alarm_line(whom)
        return no_alarm_line(whom, self.liars, self.alarmed, "no alarm: ")


def describe_clients(n_clients: int, max_malicious: int, *, names_checked: bool) -> str:
    """How many sites are watched, how many may lie, and whether signatures say who they are."""
    unchecked = "" if names_checked else " (names unchecked)"
    return f"{n_clients} sites{unchecked} of which at most {max_malicious} lie"


def coverage_alarm_line(whom: str, since: str = "") -> str:
    """What follows where the common alarm for coverage rang."""
    return (
        f"alarm{since}: {whom}, and coverage has fallen below its floor at an "
        "honest one at least; recalibrate now on fresh samples"
    )


def drift_alarm_line(whom: str, since: str = "") -> str:
    """What follows where the common alarm for drift rang alone."""
    return (
        f"no alarm, but drift{since}: {whom}, and scores no longer are like the own "
        "report at an honest one at least; check coverage there"
    )


def no_alarm_line(whom: str, max_malicious: int, alarming: Sequence[str], start: str) -> str:
    """What follows where no common alarm rang, beginning with `start`."""
    if not alarming:
        return start + whom
    return (
        f"{start}{whom}, but {len(alarming)} alarm by themselves: look there; drift at no more "
        f"than {max_malicious} sites cannot be told from {max_malicious} liars"
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
    """The alarms of K sites of which at most so many lie; those that sent nothing valid count as 0.

    n_clients: how many are watched, fixed beforehand; those that sent something valid if None.
    independent: whether sites' samples are independent, stated beforehand.
    signatures_checked: whether signatures said who sent them.
    """
    check_fraction("delta", delta, "give 0.05, say")

    # The newest e-report of each client; a broken file is nobody's and never counts.
    in_time = sorted(reports, key=lambda report: (report.client, report.step, report.n_samples))
    newest = {report.client: report for report in in_time}
    if n_clients is None:
        n_clients = len(newest)
    else:
        n_clients = check_integer("sites", n_clients, "give how many are watched", 1)
    if n_clients < max(len(newest), 1):
        raise RobfcpError(
            f"sites: {len(newest)} sent e-reports but {n_clients} are watched; raise it, or pass "
            "keys so that nobody can pose as a site"
        )
    check_integer("liars", max_malicious, "give the most sites that may lie")
    if max_malicious >= n_clients:
        raise RobfcpError(
            f"liars: cannot tolerate {max_malicious} among {n_clients} sites; state fewer"
        )

    coverage = {client: report.log_coverage for client, report in newest.items()}
    drift = [report.log_drift for report in newest.values() if report.log_drift is not None]
    logs = list(coverage.values())
    return MergedEValue(
        n_sites=n_clients,
        liars=max_malicious,
        delta=delta,
        log_mean=log_mean_of_smallest(logs, max_malicious, n_clients),
        log_product=log_product_of_smallest(logs, max_malicious, n_clients),
        log_drift=log_mean_of_smallest(drift, max_malicious, n_clients),
        independent=independent,
        alarmed=alarming_clients(coverage, max_malicious, delta, n_clients),
        faulty=tuple(rejected),
        checked=signatures_checked,
    )


def log_mean_of_smallest(logs: Sequence[float], max_malicious: int, n_clients: int) -> float:
    """ln((W_1 + ... + W_{K-m}) / (K - m)) of the sorted strengths, 0 of those not heard."""
    smallest = _without_largest(logs, max_malicious)
    log_sum = np.logaddexp.reduce(smallest, initial=-np.inf)
    return float(log_sum - np.log(n_clients - max_malicious))


def log_product_of_smallest(logs: Sequence[float], max_malicious: int, n_clients: int) -> float:
    """ln of the product over the K - m smallest of (1 - w + w W), W = 0 of those not heard.

    w is LIST_WEIGHT; the product has a mean of at most 1 where sites are independent.
    """
    smallest = _without_largest(logs, max_malicious)
    n_silent = n_clients - max_malicious - len(smallest)
    factors = np.logaddexp(np.log1p(-LIST_WEIGHT), np.log(LIST_WEIGHT) + smallest)
    return float(factors.sum() + n_silent * np.log1p(-LIST_WEIGHT))


def _without_largest(logs: Sequence[float], max_malicious: int) -> FloatArray:
    """The logarithms in rising order without the m largest; silent sites come before them all."""
    n_left = max(0, len(logs) - max_malicious)
    return np.sort(as_float_array("logs", logs))[:n_left]


def alarming_clients(
    logs: Mapping[str, float], max_malicious: int, delta: float, n_clients: int
) -> tuple[str, ...]:
    """e-BH when at most m lie: the R strongest alarms, W_(R) >= K / (delta max(1, R - m)).

    R is the largest such number. The share of false ones among the honest sites listed is at most
    delta in the mean, under any dependence; with m = 0 it is plain e-BH (Wang and Ramdas 2022).
    """
    strongest_first = sorted(logs, key=lambda client: (-logs[client], client))
    ranks = np.arange(1, len(strongest_first) + 1)
    needed = np.log(n_clients / (delta * np.maximum(1, ranks - max_malicious)))
    is_strong_enough = [logs[client] for client in strongest_first] >= needed
    n_listed = int(ranks[is_strong_enough].max(initial=0))
    return tuple(strongest_first[:n_listed])
