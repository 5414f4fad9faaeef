"""Many sites' alarms merged, when some of them lie, and the record of every look at them.

Let W_1 <= ... <= W_K be the alarm strengths reported, silent sites counting as 0. The mean of the
K - m smallest is at most the mean over any K - m honest sites, so it reaches 1/delta with a chance
of at most delta while all honest sites hold, whatever m liars send and however sites depend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from robfcp._files import file_lock
from robfcp._sealed import FilePath, SealedFile, sha256_of
from robfcp._validation import as_float_array, check_fraction, check_integer
from robfcp.errors import ReportError, RobfcpError
from robfcp.federation import RejectedReport
from robfcp.federation._consistency import check_quorum
from robfcp.monitoring._monitor import Count, Digest, EValueReport, OpenFraction, PositiveCount
from robfcp.reports import terms

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
        """ln(2 / delta), at which either alarm rings."""
        return float(np.log(2 / self.delta))

    @property
    def line(self) -> str:
        """What follows, in one line."""
        rung = {"coverage": self.has_alarm, "drift": self.has_exchangeability_alarm}
        since = {name: "" for name, rings in rung.items() if rings}
        return _line(self, self.alarmed, since, "no alarm: ")


def _line(
    found: MergedEValue | AlarmHistory, alarmed: Sequence[str], since: Mapping[str, str], quiet: str
) -> str:
    """What follows of the alarms that rang, each with the words since when, or of none."""
    liars, names = found.liars, "" if found.checked else " (names unchecked)"
    whom = f"{found.n_sites} sites{names} of which at most {liars} lie"
    if "coverage" in since:
        return (
            f"alarm{since['coverage']}: {whom}, and coverage has fallen below its floor at an "
            "honest one at least; recalibrate now on fresh samples"
        )
    if "drift" in since:
        return (
            f"no alarm, but drift{since['drift']}: {whom}, and scores no longer are like the own "
            "report at an honest one at least; check coverage there"
        )
    if alarmed:
        return (
            f"{quiet}{whom}, but {len(alarmed)} alarm by themselves: look there; drift at no more "
            f"than {liars} sites cannot be told from {liars} liars"
        )
    return quiet + whom


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
    ordered = sorted(reports, key=lambda r: (r.client, r.step, r.n_samples))
    newest = {report.client: report for report in ordered}
    total = len(newest)  # a broken file is nobody's: it never counts
    if n_clients is not None:
        total = check_integer("sites", n_clients, "give how many are watched", 1)
    if total < max(len(newest), 1):
        raise RobfcpError(
            f"sites: {len(newest)} sent e-reports but {total} are watched; raise it, or pass keys "
            "so that nobody can pose as a site"
        )
    if not 0 <= check_integer("liars", max_malicious, "give the most sites that may lie") < total:
        raise RobfcpError(
            f"liars: cannot tolerate {max_malicious} among {total} sites; state fewer"
        )
    coverage = {name: report.log_coverage for name, report in newest.items()}
    drift = [one.log_drift for one in newest.values() if one.log_drift is not None]
    heard = list(coverage.values())
    mean, moved = (log_mean_of_smallest(logs, max_malicious, total) for logs in (heard, drift))
    product = log_product_of_smallest(heard, max_malicious, total)
    alarmed = alarming_clients(coverage, max_malicious, delta, total)
    strengths = mean, product, moved, independent
    return MergedEValue(
        total, max_malicious, delta, *strengths, alarmed, tuple(rejected), signatures_checked
    )


def log_mean_of_smallest(logs: Sequence[float], max_malicious: int, n_clients: int) -> float:
    """ln((W_1 + ... + W_{K-m}) / (K - m)) of the sorted strengths, 0 of those not heard."""
    kept = np.sort(as_float_array("logs", logs))[: max(0, len(logs) - max_malicious)]
    return float(np.logaddexp.reduce(kept, initial=-np.inf) - np.log(n_clients - max_malicious))


def log_product_of_smallest(logs: Sequence[float], m: int, n_sites: int) -> float:
    """ln of the product over the K - m smallest of (1 - w + w W), W = 0 of those not heard."""
    kept = np.sort(as_float_array("logs", logs))[: max(0, len(logs) - m)]
    silent = (n_sites - m - len(kept)) * np.log1p(-LIST_WEIGHT)
    return float(np.logaddexp(np.log1p(-LIST_WEIGHT), np.log(LIST_WEIGHT) + kept).sum() + silent)


def alarming_clients(
    logs: Mapping[str, float], m: int, delta: float, n_sites: int
) -> tuple[str, ...]:
    """e-BH when at most m lie: the R strongest alarms, W_(R) >= K / (delta max(1, R - m)).

    R is the largest such number. The share of false ones among the honest sites listed is at most
    delta in the mean, under any dependence; with m = 0 it is plain e-BH.
    """
    order = sorted(logs, key=lambda name: (-logs[name], name))
    number = np.arange(1, len(order) + 1)
    enough = np.log(n_sites / (delta * np.maximum(1, number - m)))
    over = [logs[name] for name in order] >= enough
    return tuple(order[: int(number[over].max(initial=0))])


def read_e_value_reports(
    paths: Iterable[FilePath],
    *,
    keys: Mapping[str, str] | FilePath | None = None,
    round: str | None = None,
    calibration: str | None = None,
    step: int | None = None,
    quorum: int | None = None,
) -> tuple[list[EValueReport], list[RejectedReport]]:
    """The valid e-reports in files and the faults of the others.

    All must be about one calibration (that of most, if none is stated), one round and, where it is
    stated, one step. A file that is not genuine is charged to the client it names only where that
    sent no genuine one. Unsigned, a name that comes twice with different words is nobody's. Fewer
    valid ones than the quorum are refused: that no alarm rang would say nothing.
    """
    if keys is not None and round is None:
        raise RobfcpError("--keys: needs --round, or an old e-report could be used again")
    public = keys if keys is None or isinstance(keys, Mapping) else terms.read_keys(keys)
    found: list[EValueReport] = []
    faults: list[RejectedReport] = []
    for path in paths:
        try:
            found.append(EValueReport.load(path, public, round))
        except ReportError as error:
            faults.append(RejectedReport.of(error))
        except RobfcpError as error:
            faults.append(RejectedReport(str(path), "file", str(error)))
    digests = [report.calibration for report in found]
    most = min(set(digests), key=lambda one: (-digests.count(one), one), default="")
    good: dict[str, list[EValueReport]] = {}
    for report in found:
        words = _find_mismatch(report, calibration or most, report.step if step is None else step)
        if not words and round is not None and report.round != round:
            words = f"of round {report.round}, not {round}; send one of this round"
        if words:
            faults.append(RejectedReport(report.client, "e-report", f"{report.client}: {words}"))
        else:
            good.setdefault(report.client, []).append(report)
    if public is None:
        twins = sorted(client for client, sent in good.items() if len(set(sent)) > 1)
        faults += [
            RejectedReport(
                client, "client", f"{client}: two different e-reports; send one, or sign them"
            )
            for client in twins
        ]
        good = {client: sent[:1] for client, sent in good.items() if client not in twins}
    kept = [report for sent in good.values() for report in sent]
    faults = [fault for fault in faults if fault.client not in good]
    if quorum is not None:
        first = faults[0].reason if faults else None
        check_quorum(len(kept), len(kept) + len(faults), quorum, first)
    return kept, faults


def _find_mismatch(report: EValueReport, calibration: str, step: int) -> str:
    """Why an e-report is not of this calibration and step; empty where it is."""
    if report.calibration != calibration:
        return "watches another calibration; send one of this round"
    return (
        "" if report.step == step else f"of step {report.step}, not {step}; send one of this step"
    )


class Inspection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One reporting date: the e-reports of the sites heard, and why others were refused."""

    step: Count
    sites: dict[str, EValueReport]
    faulty: dict[str, str] = {}


class AlarmHistory(SealedFile, frozen=True, dict=True):
    """Every look at the sites of one calibration, the first one first.

    Parameters
    ----------
    calibration
        The SHA-256 of the calibration watched.
    round
        The name of the round; None where the sites gave none.
    n_sites
        K, fixed with the first look.
    liars
        How many of them may lie.
    delta
        The chance of a false alarm, ever.
    independent
        Whether the sites were stated to be independent.
    checked
        Whether signatures say who sent them.
    looks
        What was seen.
    """

    kind = "alarms"
    hint = "pass the file that robfcp alarms --history wrote"

    calibration: Digest
    round: str | None
    n_sites: PositiveCount
    liars: Count
    delta: OpenFraction
    independent: bool = False
    checked: bool = False
    looks: tuple[Inspection, ...] = ()

    @cached_property
    def merged(self) -> tuple[MergedEValue, ...]:
        """What the alarms came to at each look."""
        return tuple(self._merge(look.sites.values()) for look in self.looks)

    def _merge(
        self, reports: Iterable[EValueReport], faulty: Sequence[RejectedReport] = ()
    ) -> MergedEValue:
        return merge_e_values(
            reports,
            self.liars,
            rejected=faulty,
            n_clients=self.n_sites,
            delta=self.delta,
            independent=self.independent,
            signatures_checked=self.checked,
        )

    @cached_property
    def alarm_steps(self) -> dict[str, int]:
        """`coverage` and `drift`: the step at which the common alarm first rang."""
        found: dict[str, int] = {}
        for look, one in zip(self.looks, self.merged, strict=True):
            for name, rings in (
                ("coverage", one.has_alarm),
                ("drift", one.has_exchangeability_alarm),
            ):
                if rings:
                    found.setdefault(name, look.step)
        return found

    @property
    def alarming_clients(self) -> tuple[str, ...]:
        """The sites that alarm by themselves at the last look."""
        return self.merged[-1].alarmed if self.looks else ()

    @property
    def line(self) -> str:
        """Where the sites stand and what to do, in one line.

        Examples
        --------
        >>> from robfcp.monitoring import AlarmHistory
        >>> AlarmHistory("ab" * 32, "spring", 20, 2, 0.05).line
        'no alarm in 0 looks at 20 sites (names unchecked) of which at most 2 lie'
        """
        since = {name: f" since step {step}" for name, step in self.alarm_steps.items()}
        quiet = f"no alarm in {len(self.looks)} looks at "
        return _line(self, self.alarming_clients, since, quiet)

    def latest(self) -> dict[str, EValueReport]:
        """The last e-report of every site that was heard."""
        return {name: report for look in self.looks for name, report in look.sites.items()}

    def with_inspection(
        self, reports: Iterable[EValueReport], step: int, faulty: Sequence[RejectedReport] = ()
    ) -> tuple[MergedEValue, AlarmHistory]:
        """What the alarms come to at this step, and the history with it.

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
        MergedEValue, AlarmHistory
            What the alarms come to, and the longer history.

        Examples
        --------
        >>> from robfcp.monitoring import AlarmHistory, EValueReport
        >>> history = AlarmHistory("ab" * 32, None, n_sites=3, liars=1, delta=0.05)
        >>> reports = [EValueReport(f"s{k}", "ab" * 32, 0.9, 500, 4.0, step=1) for k in range(3)]
        >>> merged, history = history.with_inspection(reports, 1)
        >>> merged.has_alarm, history.alarm_steps
        (True, {'coverage': 1})
        """
        check_integer("step", step, "give the number of the reporting date")
        newest = self.looks[-1].step if self.looks else -1
        if step < newest:
            raise RobfcpError(
                f"step: {step} comes before step {newest}, which is recorded; steps only rise"
            )
        reports, last, faults = list(reports), self.latest(), list(faulty)
        good = dict(self.looks[-1].sites) if step == newest else {}
        strangers = {report.client for report in reports} - set(last)
        crowded = bool(last) and len(last) + len(strangers) > self.n_sites
        for report in sorted(reports, key=lambda r: (r.client, r.n_samples)):
            problem = self._problem(report, step, last.get(report.client, report))
            if crowded and report.client in strangers:
                problem = (
                    f"is more than the {self.n_sites} sites watched, of which {len(last)} were "
                    "heard before; pass keys so that nobody can pose as a site"
                )
            if problem:
                faults.append(
                    RejectedReport(report.client, "e-report", f"{report.client}: {problem}")
                )
            else:
                good[report.client] = report
        merged = self._merge(good.values(), [one for one in faults if one.client not in good])
        sites = {name: good[name] for name in sorted(good)}
        look = Inspection(step, sites, {fault.client: fault.reason for fault in merged.faulty})
        kept = self.looks[:-1] if step == newest else self.looks
        return merged, msgspec.structs.replace(self, looks=(*kept, look))

    def _problem(self, report: EValueReport, step: int, before: EValueReport) -> str:
        """Why an e-report does not go on from the one before; empty where it does."""
        if stray := _find_mismatch(report, self.calibration, step):
            return stray
        when, n, new = before.step, before.n_samples, report.n_samples
        if report.floor != before.floor:
            return f"its floor is {report.floor}, at step {when} it was {before.floor}; keep that"
        other = msgspec.structs.replace(report, step=when) != before
        if when == step and other:
            return f"another e-report of step {step} is recorded; wait for the next step"
        if new < n:
            return f"counts {new} samples, at step {when} it was {n}; go on with the state file"
        if new == n and other:
            return f"counts no new samples since step {when}, but tells otherwise; send it again"
        return ""

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return sha256_of(self.to_json())

    def find_contradiction(self) -> str:
        """What does not fit together."""
        steps = [look.step for look in self.looks]
        if self.liars >= self.n_sites or len(self.latest()) > self.n_sites:
            return "as many may lie as are watched, or more were heard"
        if steps != sorted(set(steps)):
            return "steps do not rise"
        every = ((look.step, name, one) for look in self.looks for name, one in look.sites.items())
        wrong = any(
            one.client != name or _find_mismatch(one, self.calibration, k) for k, name, one in every
        )
        return "an e-report is not of its site, step or calibration" if wrong else ""


def record_inspection(
    path: FilePath,
    reports: Sequence[EValueReport],
    max_malicious: int,
    *,
    step: int,
    rejected: Sequence[RejectedReport] = (),
    signatures_checked: bool = False,
    **stated: Any,
) -> tuple[MergedEValue, AlarmHistory]:
    """Look at the sites and keep it in a file, which is begun where there is none.

    stated: `round`, `n_sites`, `delta`, `independent` as in the history; None keeps what it has.
    Two processes wait for each other. `n_sites` must be stated at the first look: whoever sends
    files must not choose it. A look that finds no valid e-report is refused: a wrong step must not
    move the clock.
    """
    known = {name: value for name, value in stated.items() if value is not None}
    known |= {"liars": max_malicious, "checked": signatures_checked}
    with file_lock(f"{path}.lock"):
        if Path(path).exists():
            history = AlarmHistory.load(path)
            for name, value in known.items():
                if getattr(history, name) != value:
                    raise RobfcpError(
                        f"{path}: was begun with {name} {getattr(history, name)}, not {value}; "
                        "what is watched is fixed beforehand: keep it, or begin another file"
                    )
        else:
            if not reports:
                raise RobfcpError(
                    f"{path}: the first look needs a valid e-report{_first_rejections(rejected)}"
                )
            if "n_sites" not in known:
                raise RobfcpError(
                    "--history: needs --sites, how many are watched, or --keys: whoever sends "
                    "files must not choose the number"
                )
            history = AlarmHistory(reports[0].calibration, **{"round": None, "delta": 0.05} | known)
        merged, history = history.with_inspection(reports, step, rejected)
        if not history.looks[-1].sites:
            raise RobfcpError(
                f"step: none of the e-reports is a valid one of step {step}, nothing was recorded"
                + _first_rejections(merged.faulty)
            )
        history.save(path)
    return merged, history


def _first_rejections(faults: Sequence[RejectedReport]) -> str:
    """The first of some faults, to end a message with."""
    return f": {faults[0].reason}" if faults else "; pass some"
