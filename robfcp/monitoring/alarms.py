"""Many sites' evidence merged, when at most m of them lie.

Let W_1 <= ... <= W_K be the wealths reported, silent sites counting as 0. The mean of the K - m
smallest is at most the mean over any K - m honest sites, so it reaches 1/delta with a chance of at
most delta while all honest sites hold, whatever the liars send and however sites depend.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.arguments import floats, share, whole
from robfcp.calibration.sealed import digest_of
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation import Fault, fault_of
from robfcp.files import read_limited, write_atomically
from robfcp.monitoring.history_file import (
    RINGS,
    Heard,
    HistoryBody,
    Look,
    decode_history,
    encode_history,
    heard_of,
)
from robfcp.monitoring.monitor import locked
from robfcp.report import EReport, read_e_report, read_keys

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


MAX_HISTORY_BYTES = 2**28
FilePath = str | os.PathLike[str]


@dataclass(frozen=True)
class AlarmHistory:
    """Every look at the sites of one calibration, the first one first.

    Parameters
    ----------
    calibration
        The SHA-256 of the calibration watched.
    round
        The name of the round; None where the sites gave none.
    n_sites
        K, fixed with the first look.
    m
        How many of them may lie.
    delta
        The chance of a false alarm, ever.
    independent
        Whether the sites were stated to be independent.
    rang
        `coverage` and `drift`: the step at which the common alarm first rang.
    looks
        What was seen.
    """

    calibration: str
    round: str | None
    n_sites: int
    m: int
    delta: float
    independent: bool = False
    rang: dict[str, int] | None = None
    looks: tuple[Look, ...] = ()

    @property
    def alarmed(self) -> tuple[str, ...]:
        """The sites that alarm by themselves at the last look."""
        return tuple(self.looks[-1].alarmed) if self.looks else ()

    @property
    def alarm(self) -> bool:
        """Whether the common alarm has rung at any look."""
        return "coverage" in (self.rang or {})

    @property
    def drift(self) -> bool:
        """Whether the common drift alarm has rung at any look."""
        return "drift" in (self.rang or {})

    @property
    def line(self) -> str:
        """Where the sites stand and what to do, in one line.

        Examples
        --------
        >>> from robfcp.monitoring import AlarmHistory
        >>> AlarmHistory("ab" * 32, "spring", 20, 2, 0.05).line
        'no alarm in 0 looks at 20 sites of which at most 2 lie'
        """
        whom = f"{self.n_sites} sites of which at most {self.m} lie"
        rang = self.rang or {}
        if self.alarm:
            return (
                f"alarm since step {rang['coverage']}: {whom}, and coverage has fallen below its "
                "floor at an honest one at least; recalibrate now, with --previous and --alarms"
            )
        if self.drift:
            return (
                f"drift since step {rang['drift']}: {whom}, and scores no longer are like the own "
                "report at an honest one at least; check coverage there"
            )
        words = f"no alarm in {len(self.looks)} looks at {whom}"
        if self.alarmed:
            return f"{words}, but {len(self.alarmed)} alarm by themselves: look there"
        return words

    def fitting(
        self, reports: Iterable[EReport], step: int
    ) -> tuple[dict[str, EReport], list[Fault]]:
        """The e-reports of this step that go on from what was recorded; and the others' faults."""
        good: dict[str, EReport] = {}
        faults = []
        last: dict[str, tuple[int, Heard]] = {}
        for look in self.looks:
            last |= {name: (look.step, heard) for name, heard in look.sites.items()}
        reports = list(reports)
        strangers = {report.client for report in reports} - set(last)
        crowded = bool(last) and len(last) + len(strangers) > self.n_sites
        for report in sorted(reports, key=lambda r: (r.client, r.n_samples)):
            problem = _problem(report, step, last.get(report.client), self)
            if crowded and report.client in strangers:
                problem = (
                    f"is more than the {self.n_sites} sites watched, of which {len(last)} were "
                    "heard before; pass keys so that nobody can pose as a site"
                )
            if problem is None:
                good[report.client] = report
            else:
                faults.append(Fault(report.client, "history", f"{report.client}: {problem}"))
        return good, faults

    def looked(
        self, reports: Iterable[EReport], step: int, faulty: Sequence[Fault] = ()
    ) -> tuple[Merged, AlarmHistory]:
        """The evidence at this step, and the history with it.

        The last step may be looked at again, as e-reports come late: what was recorded of it stays.

        Parameters
        ----------
        reports
            Of this step; others are refused.
        step
            The number of the reporting date.
        faulty
            E-reports that were refused before.

        Returns
        -------
        Merged, AlarmHistory
            What the evidence comes to, and the longer history.

        Examples
        --------
        >>> from robfcp.monitoring import AlarmHistory
        >>> from robfcp.report import EReport
        >>> history = AlarmHistory("ab" * 32, None, n_sites=3, m=1, delta=0.05)
        >>> reports = [EReport(f"s{k}", "ab" * 32, 0.9, 500, 4.0, step=1) for k in range(3)]
        >>> merged, history = history.looked(reports, 1)
        >>> merged.alarm, history.rang
        (True, {'coverage': 1})
        """
        whole("step", step, "give the number of the reporting date")
        newest = self.looks[-1].step if self.looks else -1
        if step < newest:
            raise RobfcpError(
                f"step: {step} comes before step {newest}, which is recorded; steps only rise"
            )
        good, faults = self.fitting(reports, step)
        if step == newest:
            good = {**self._recorded(), **good}
        named = [*faulty, *faults]
        merged = merge(
            good.values(),
            self.m,
            n_sites=self.n_sites,
            delta=self.delta,
            independent=self.independent,
            faulty=[fault for fault in named if fault.client not in good],
        )
        rang = dict(self.rang or {})
        for name, rings in zip(RINGS, (merged.alarm, merged.drift), strict=True):
            if rings:
                rang.setdefault(name, step)
        look = Look(
            step=step,
            coverage=_finite(merged.log_mean),
            product=merged.log_product,
            drift=_finite(merged.log_drift),
            alarmed=list(merged.alarmed),
            sites={name: heard_of(good[name]) for name in sorted(good)},
            faulty={fault.client: fault.reason for fault in merged.faulty},
        )
        kept = self.looks[:-1] if step == newest else self.looks
        return merged, replace(self, rang=rang, looks=(*kept, look))

    def _recorded(self) -> dict[str, EReport]:
        """The e-reports of the last look."""
        look = self.looks[-1]
        return {
            name: heard.e_report(name, self.calibration, self.round, look.step)
            for name, heard in look.sites.items()
        }

    def check_settings(self, source: FilePath, **stated: object) -> None:
        """Refuse settings that are not those of the first look; None says nothing."""
        for name, value in stated.items():
            if value is not None and getattr(self, name) != value:
                raise RobfcpError(
                    f"{source}: was begun with {name} {getattr(self, name)}, not {value}; what is "
                    "watched is fixed beforehand: keep it, or begin another file"
                )

    def to_json(self) -> bytes:
        """The history as sealed JSON."""
        body = HistoryBody(
            self.calibration,
            round=self.round,
            n_sites=self.n_sites,
            m=self.m,
            delta=self.delta,
            independent=self.independent,
            rang=dict(self.rang or {}),
            looks=list(self.looks),
        )
        return encode_history(body)

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return digest_of(self.to_json())

    @staticmethod
    def from_json(data: bytes | str, source: str = "alarms") -> AlarmHistory:
        """A history from JSON, or one line that says what is wrong with it."""
        body = decode_history(data, source)
        return AlarmHistory(
            body.calibration,
            round=body.round,
            n_sites=body.n_sites,
            m=body.m,
            delta=body.delta,
            independent=body.independent,
            rang=body.rang,
            looks=tuple(body.looks),
        )

    def save(self, path: FilePath) -> None:
        """Write it whole or not at all, and never more than can be read back."""
        data = self.to_json()
        if len(data) > MAX_HISTORY_BYTES:
            raise RobfcpError(f"{path}: holds too many looks; calibrate again and begin another")
        write_atomically(path, data)

    @staticmethod
    def load(path: FilePath) -> AlarmHistory:
        """The history in a file."""
        return AlarmHistory.from_json(read_limited(path, MAX_HISTORY_BYTES), os.fspath(path))


def record_look(
    path: FilePath,
    reports: Sequence[EReport],
    m: int,
    *,
    step: int,
    round: str | None = None,
    n_sites: int | None = None,
    delta: float | None = None,
    independent: bool | None = None,
    faulty: Sequence[Fault] = (),
) -> tuple[Merged, AlarmHistory]:
    """Look at the sites and keep it in a file, which is begun where there is none.

    Two processes wait for each other. `n_sites` must be stated at the first look, or is the number
    that sent something. A look that finds no valid e-report is refused: a wrong step must not
    move the clock.
    """
    with locked(path):
        if Path(path).exists():
            history = AlarmHistory.load(path)
            history.check_settings(
                path, m=m, round=round, n_sites=n_sites, delta=delta, independent=independent
            )
        else:
            heard = {r.client for r in reports} | {fault.client for fault in faulty}
            if not reports:
                raise RobfcpError(f"{path}: the first look needs a valid e-report{_first(faulty)}")
            history = AlarmHistory(
                calibration=reports[0].calibration,
                round=round,
                n_sites=len(heard) if n_sites is None else n_sites,
                m=m,
                delta=0.05 if delta is None else delta,
                independent=bool(independent),
            )
        merged, history = history.looked(reports, step, faulty)
        if not history.looks[-1].sites:
            raise RobfcpError(
                f"step: none of the e-reports is a valid one of step {step}, nothing was recorded"
                + _first(merged.faulty)
            )
        history.save(path)
    return merged, history


def _first(faults: Sequence[Fault]) -> str:
    """The first of some faults, to end a message with."""
    return f": {faults[0].reason}" if faults else "; pass some"


def _problem(
    report: EReport, step: int, before: tuple[int, Heard] | None, history: AlarmHistory
) -> str | None:
    """Why an e-report does not go on from the record; None where it does."""
    if report.calibration != history.calibration:
        return "watches another calibration; send one of this round"
    if report.step != step:
        return f"of step {report.step}, not {step}; send one of this step"
    if before is None:
        return None
    when, heard = before
    if report.floor != heard.floor:
        return f"its floor is {report.floor}, at step {when} it was {heard.floor}; keep that"
    if when == step and heard_of(report) != heard:
        return f"another e-report of step {step} is recorded; wait for the next step"
    if report.n_samples < heard.n:
        return (
            f"counts {report.n_samples} samples, at step {when} it was {heard.n}; "
            "go on with the same state file"
        )
    if report.n_samples == heard.n and heard_of(report) != heard:
        return f"counts no new samples since step {when}, but tells otherwise; send it again"
    return None


def _finite(log: float) -> float | None:
    return log if math.isfinite(log) else None
