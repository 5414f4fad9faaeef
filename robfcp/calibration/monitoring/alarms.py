"""Many sites' evidence merged, when at most m of them lie.

Let W_1 <= ... <= W_K be the wealths reported, silent sites counting as 0. The mean of the K - m
smallest is at most the mean over any K - m honest sites, so it reaches 1/delta with a chance of at
most delta while all honest sites hold, whatever the liars send and however sites depend.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._util.numbers import floats, share, whole
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation import Fault, fault_of
from robfcp.reports import EReport, read_e_report, read_keys

WEIGHT = 0.1  # of a site's wealth in the product for independent sites
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Merged:
    """What the sites' evidence comes to.

    Attributes
    ----------
    n_sites
        K, silent and faulty sites included.
    m
        How many of them may lie.
    delta
        The chance of a false alarm, ever.
    log_mean
        ln of the mean of the K - m smallest wealths: valid under any dependence.
    log_product
        ln of the product of (1 - w + w W) over them: valid where sites are independent.
    log_change
        ln of the mean of the K - m smallest R_t.
    log_drift
        ln of the mean of the K - m smallest wealths against exchangeability; sites that keep none
        count as 0.
    independent
        Whether the sites were stated to be independent, so that the product may ring.
    alarmed
        The sites that alarm by themselves, by e-BH at delta among the honest ones.
    faulty
        The e-reports that were refused, and why; their sites count as no evidence.
    """

    n_sites: int
    m: int
    delta: float
    log_mean: float
    log_product: float
    log_change: float
    log_drift: float
    independent: bool = False
    alarmed: tuple[str, ...] = ()
    faulty: tuple[Fault, ...] = ()

    @property
    def alarm(self) -> bool:
        """Whether the evidence of all sites together rings."""
        found = max(self.log_mean, self.log_product if self.independent else -np.inf)
        return bool(found >= -np.log(self.delta))

    @property
    def drift(self) -> bool:
        """Whether the scores of the sites together have drifted from their own reports."""
        return bool(self.log_drift >= -np.log(self.delta))

    @property
    def line(self) -> str:
        """What follows, in one line."""
        whom = f"{self.n_sites} sites of which at most {self.m} lie"
        if self.alarm:
            return (
                f"alarm: {whom}, and coverage has fallen below its floor at an honest one at "
                "least; recalibrate now, with --previous to keep the record"
            )
        if self.drift:
            return (
                f"no alarm, but drift: {whom}, and scores no longer are like the own report at an "
                "honest one at least; check coverage there"
            )
        if self.alarmed:
            return (
                f"no common alarm: {whom}, but {len(self.alarmed)} alarm by themselves: look "
                "there; drift at no more than m sites cannot be told from m liars"
            )
        return f"no alarm: {whom}"


def merge(
    reports: Iterable[EReport],
    m: int,
    *,
    n_sites: int | None = None,
    delta: float = 0.05,
    independent: bool = False,
    faulty: Sequence[Fault] = (),
) -> Merged:
    """The evidence of K sites of which at most m lie; sites that sent nothing valid count as 0.

    n_sites: how many are watched, fixed beforehand; those that reported if None.
    independent: whether sites' samples are independent, stated beforehand.
    """
    share("delta", delta, "give 0.05, say")
    reports, known = _newest(reports), {fault.client for fault in faulty}
    names = [report.client for report in reports]
    heard = len(known | set(names))
    total = heard if n_sites is None else whole("sites", n_sites, "give how many are watched", 1)
    if total < max(len(names), 1):  # a broken file is nobody's: it never counts against the number
        raise RobfcpError(
            f"sites: {len(names)} sent e-reports but {total} are watched; raise it, or pass keys "
            "so that nobody can pose as a site"
        )
    if not 0 <= whole("m", m, "give the most sites that may lie") < total:
        raise RobfcpError(f"m: cannot tolerate {m} liars among {total} sites; state fewer")
    wealth = _padded([report.log_wealth for report in reports], total)
    change = _padded([_or_zero(report.log_change) for report in reports], total)
    drift = _padded([_or_zero(report.log_exchangeability) for report in reports], total)
    return Merged(
        n_sites=total,
        m=m,
        delta=delta,
        log_mean=log_mean_of_smallest(wealth, m),
        log_product=log_product_of_smallest(wealth, m),
        log_change=log_mean_of_smallest(change, m),
        log_drift=log_mean_of_smallest(drift, m),
        independent=independent,
        alarmed=listed(dict(zip(names, wealth, strict=False)), m, delta, total),
        faulty=tuple(faulty),
    )


def log_mean_of_smallest(logs: ArrayLike, m: int) -> float:
    """ln((W_1 + ... + W_{K-m}) / (K - m)) of the sorted wealths."""
    kept = np.sort(floats("logs", logs))[: len(np.asarray(logs)) - m]
    return float(np.logaddexp.reduce(kept) - np.log(len(kept)))


def log_product_of_smallest(logs: ArrayLike, m: int, weight: float = WEIGHT) -> float:
    """ln of the product over the K - m smallest of (1 - w + w W)."""
    kept = np.sort(floats("logs", logs))[: len(np.asarray(logs)) - m]
    return float(np.logaddexp(np.log1p(-weight), np.log(weight) + kept).sum())


def listed(
    logs: Mapping[str, float], m: int, delta: float, n_sites: int | None = None
) -> tuple[str, ...]:
    """e-BH when at most m lie: the R sites of largest wealth, W_(R) >= K / (delta max(1, R - m)).

    R is the largest such number. The share of false ones among the honest sites listed is at most
    delta in the mean, under any dependence; with m = 0 it is plain e-BH.
    """
    total = len(logs) if n_sites is None else n_sites
    order = sorted(logs, key=lambda name: (-logs[name], name))
    found = 0
    for number, name in enumerate(order, start=1):
        if logs[name] >= np.log(total / (delta * max(1, number - m))):
            found = number
    return tuple(order[:found])


def read_alarms(
    paths: Iterable[str | os.PathLike[str]],
    *,
    keys: Mapping[str, str] | str | os.PathLike[str] | None = None,
    round: str | None = None,
    calibration: str | None = None,
    step: int | None = None,
) -> tuple[list[EReport], list[Fault]]:
    """The valid e-reports in files and the faults of the others.

    All must be about one calibration (that of most, if none is stated), one round and, where it is
    stated, one step. A file that is not genuine is charged to the client it names only where that
    sent no genuine one.
    """
    if keys is not None and round is None:
        raise RobfcpError("--keys: needs --round, or an old e-report could be used again")
    public = keys if keys is None or isinstance(keys, Mapping) else read_keys(keys)
    found: list[EReport] = []
    faults: list[Fault] = []
    for path in paths:
        try:
            found.append(read_e_report(path, public, round))
        except ReportError as error:
            faults.append(fault_of(error))
        except RobfcpError as error:
            faults.append(Fault(str(path), "file", str(error)))
    expected = calibration or _most([report.calibration for report in found])
    good: list[EReport] = []
    for report in found:
        problem = _other_context(report, expected, round, step)
        if problem is None:
            good.append(report)
        else:
            faults.append(problem)
    if public is None:
        good = _without_twins(good, faults)
    heard = {report.client for report in good}
    return good, [fault for fault in faults if fault.client not in heard]


def _other_context(
    report: EReport, calibration: str, round: str | None, step: int | None
) -> Fault | None:
    if report.calibration != calibration:
        reason = f"{report.client}: watches another calibration; send one of this round"
        return Fault(report.client, "calibration", reason)
    if round is not None and report.round != round:
        reason = f"{report.client}: of round {report.round}, not {round}; send one of this round"
        return Fault(report.client, "round", reason)
    if step is not None and report.step != step:
        reason = f"{report.client}: of step {report.step}, not {step}; send one of this step"
        return Fault(report.client, "step", reason)
    return None


def _without_twins(reports: list[EReport], faults: list[Fault]) -> list[EReport]:
    """Unsigned, a name that comes twice with different words is nobody's evidence."""
    kept: dict[str, EReport] = {}
    twins = set()
    for report in reports:
        if report.client in kept and kept[report.client] != report:
            twins.add(report.client)
        kept[report.client] = report
    for client in sorted(twins):
        del kept[client]
        reason = f"{client}: two different e-reports; send one, or sign them"
        faults.append(Fault(client, "client", reason))
    return list(kept.values())


def _newest(reports: Iterable[EReport]) -> list[EReport]:
    """One e-report a site: that of the latest step, then of the most samples."""
    found: dict[str, EReport] = {}
    for report in sorted(reports, key=lambda r: (r.client, r.step, r.n_samples)):
        found[report.client] = report
    return list(found.values())


def _padded(logs: list[float], total: int) -> Vector:
    return np.array(logs + [-np.inf] * (total - len(logs)))


def _or_zero(log: float | None) -> float:
    return -np.inf if log is None else log


def _most(values: list[str]) -> str:
    """The value that comes most often; the first of them by name where several do."""
    return min(set(values), key=lambda value: (-values.count(value), value)) if values else ""
