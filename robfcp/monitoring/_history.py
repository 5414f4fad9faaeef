"""The record of every look at the alarms of the sites of one calibration, date by date."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from robfcp._files import file_lock
from robfcp._sealed import FilePath, SealedFile, sha256_of
from robfcp._validation import check_integer
from robfcp.errors import RobfcpError
from robfcp.federation import RejectedReport
from robfcp.monitoring._e_report import EValueReport, find_mismatch, reject
from robfcp.monitoring._fields import Count, Digest, OpenFraction, PositiveCount
from robfcp.monitoring._merge import (
    MergedEValue,
    coverage_alarm_line,
    describe_clients,
    drift_alarm_line,
    merge_e_values,
    no_alarm_line,
)

DEFAULT_DELTA = 0.05


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
        self, reports: Iterable[EValueReport], rejected: Sequence[RejectedReport] = ()
    ) -> MergedEValue:
        """What e-reports come to under the numbers fixed with the first look."""
        return merge_e_values(
            reports,
            self.liars,
            rejected=rejected,
            n_clients=self.n_sites,
            delta=self.delta,
            independent=self.independent,
            signatures_checked=self.checked,
        )

    @cached_property
    def alarm_steps(self) -> dict[str, int]:
        """`coverage` and `drift`: the step at which the common alarm first rang."""
        steps: dict[str, int] = {}
        for look, merged in zip(self.looks, self.merged, strict=True):
            if merged.has_alarm:
                steps.setdefault("coverage", look.step)
            if merged.has_exchangeability_alarm:
                steps.setdefault("drift", look.step)
        return steps

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
        whom = describe_clients(self.n_sites, self.liars, names_checked=self.checked)
        since = {name: f" since step {step}" for name, step in self.alarm_steps.items()}
        if "coverage" in since:
            return coverage_alarm_line(whom, since["coverage"])
        if "drift" in since:
            return drift_alarm_line(whom, since["drift"])
        start = f"no alarm in {len(self.looks)} looks at "
        return no_alarm_line(whom, self.liars, self.alarming_clients, start)

    def latest(self) -> dict[str, EValueReport]:
        """The last e-report of every site that was heard."""
        latest: dict[str, EValueReport] = {}
        for look in self.looks:
            latest.update(look.sites)
        return latest

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
        last_step = self.looks[-1].step if self.looks else -1
        if step < last_step:
            raise RobfcpError(
                f"step: {step} comes before step {last_step}, which is recorded; steps only rise"
            )

        # The last step may be looked at again: what was recorded of it stays.
        earlier_looks = self.looks
        accepted: dict[str, EValueReport] = {}
        if step == last_step:
            earlier_looks = self.looks[:-1]
            accepted.update(self.looks[-1].sites)

        in_order = sorted(reports, key=lambda report: (report.client, report.n_samples))
        latest = self.latest()
        newcomers = {report.client for report in in_order} - set(latest)
        rejected = list(faulty)
        for report in in_order:
            problem = self._find_problem(report, step, latest, newcomers)
            if problem:
                rejected.append(reject(report, problem))
            else:
                accepted[report.client] = report

        still_rejected = [one for one in rejected if one.client not in accepted]
        merged = self._merge(accepted.values(), still_rejected)
        look = Inspection(
            step=step,
            sites={client: accepted[client] for client in sorted(accepted)},
            faulty={rejection.client: rejection.reason for rejection in merged.faulty},
        )
        return merged, msgspec.structs.replace(self, looks=(*earlier_looks, look))

    def _find_problem(
        self,
        report: EValueReport,
        step: int,
        latest: Mapping[str, EValueReport],
        newcomers: Collection[str],
    ) -> str:
        """Why an e-report does not count at a step; empty where it does.

        `latest` are the last e-reports of those heard before, `newcomers` those that send one for
        the first time. Once anybody was heard, newcomers count only if there is room for all.
        """
        is_crowded = bool(latest) and len(latest) + len(newcomers) > self.n_sites
        if is_crowded and report.client in newcomers:
            return (
                f"is more than the {self.n_sites} sites watched, of which {len(latest)} were "
                "heard before; pass keys so that nobody can pose as a site"
            )
        mismatch = find_mismatch(report, self.calibration, step)
        if mismatch or report.client in newcomers:
            return mismatch
        return _find_break(latest[report.client], report)

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return sha256_of(self.to_json())

    def find_contradiction(self) -> str:
        """Return the first contradiction between the fields, or "" if they are consistent."""
        if self.liars >= self.n_sites or len(self.latest()) > self.n_sites:
            return "as many may lie as are watched, or more were heard"

        steps = [look.step for look in self.looks]
        if steps != sorted(set(steps)):
            return "steps do not rise"

        for look in self.looks:
            for client, report in look.sites.items():
                mismatch = find_mismatch(report, self.calibration, look.step)
                if report.client != client or mismatch:
                    return "an e-report is not of its site, step or calibration"
        return ""


def _find_break(previous: EValueReport, report: EValueReport) -> str:
    """Why an e-report does not go on from the client's last one; empty where it does."""
    when = f"at step {previous.step} it was"
    if report.floor != previous.floor:
        return f"its floor is {report.floor}, {when} {previous.floor}; keep that"

    is_same = msgspec.structs.replace(report, step=previous.step) == previous
    if previous.step == report.step and not is_same:
        return f"another e-report of step {report.step} is recorded; wait for the next step"
    if report.n_samples < previous.n_samples:
        return (
            f"counts {report.n_samples} samples, {when} {previous.n_samples}; "
            "go on with the state file"
        )
    if report.n_samples == previous.n_samples and not is_same:
        return (
            f"counts no new samples since step {previous.step}, but tells otherwise; send it again"
        )
    return ""


def record_inspection(
    path: FilePath,
    reports: Sequence[EValueReport],
    max_malicious: int,
    *,
    step: int,
    rejected: Sequence[RejectedReport] = (),
    signatures_checked: bool = False,
    n_sites: int | None = None,
    delta: float | None = None,
    round: str | None = None,
    independent: bool | None = None,
) -> tuple[MergedEValue, AlarmHistory]:
    """Look at the sites and keep it in a file, which is begun where there is none.

    `n_sites`, `delta`, `round` and `independent` are as in the history; None keeps what it has.
    Two processes wait for each other. `n_sites` must be stated at the first look: whoever sends
    files must not choose it. A look that finds no valid e-report is refused: a wrong step must not
    move the clock.
    """
    with file_lock(f"{path}.lock"):
        if Path(path).exists():
            history = AlarmHistory.load(path)
            given = {
                "n_sites": n_sites,
                "delta": delta,
                "round": round,
                "independent": independent,
                "liars": max_malicious,
                "checked": signatures_checked,
            }
            _check_continued(path, history, given)
        else:
            if not reports:
                raise RobfcpError(
                    f"{path}: the first look needs a valid e-report{_first_rejection(rejected)}"
                )
            if n_sites is None:
                raise RobfcpError(
                    "--history: needs --sites, how many are watched, or --keys: whoever sends "
                    "files must not choose the number"
                )
            history = AlarmHistory(
                calibration=reports[0].calibration,
                round=round,
                n_sites=n_sites,
                liars=max_malicious,
                delta=DEFAULT_DELTA if delta is None else delta,
                independent=bool(independent),
                checked=signatures_checked,
            )

        merged, history = history.with_inspection(reports, step, rejected)
        if not history.looks[-1].sites:
            raise RobfcpError(
                f"step: none of the e-reports is a valid one of step {step}, nothing was recorded"
                + _first_rejection(merged.faulty)
            )
        history.save(path)
    return merged, history


def _check_continued(path: FilePath, history: AlarmHistory, given: Mapping[str, object]) -> None:
    """Refuse to go on with a history under other numbers than it was begun with."""
    for name, value in given.items():
        recorded = getattr(history, name)
        if value is not None and recorded != value:
            raise RobfcpError(
                f"{path}: was begun with {name} {recorded}, not {value}; "
                "what is watched is fixed beforehand: keep it, or begin another file"
            )


def _first_rejection(rejected: Sequence[RejectedReport]) -> str:
    """The first of some rejections, to end a message with."""
    return f": {rejected[0].reason}" if rejected else "; pass some"
