"""The record of all inspections of the e-values of one calibration, date by date."""

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
from robfcp.monitoring._e_value_report import EValueReport, find_mismatch, rejection_of
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
    """One reporting date: the e-value reports by client, and why others were rejected.

    The fields are keys of the file.

    Attributes
    ----------
    step : int
        The number of the reporting date.
    e_value_reports : dict of str to EValueReport
        The valid reports by client.
    rejections : dict of str to str
        The reasons of rejections by client, or by file where the client is not known.
    """

    step: Count
    e_value_reports: dict[str, EValueReport]
    rejections: dict[str, str] = {}


class AlarmHistory(SealedFile, frozen=True, dict=True):
    """All inspections of the clients of one calibration, in order.

    The fields are keys of the file.

    Parameters
    ----------
    calibration : str
        The `Calibration.fingerprint` of the calibration that is monitored.
    round : str, optional
        The name of the round, if the clients state one.
    n_clients : int
        The number of clients K, fixed at the first inspection.
    max_malicious : int
        At most so many of them are malicious.
    delta : float
        The probability that a false alarm is ever raised.
    independent : bool
        Whether the clients were stated to be independent.
    signatures_checked : bool
        Whether signatures show who sent the reports.
    inspections : tuple of Inspection
        The inspections, by rising steps.
    """

    kind = "alarm-history"
    hint = "pass the file that robfcp merge-alarms --history wrote"

    calibration: Digest
    round: str | None
    n_clients: PositiveCount
    max_malicious: Count
    delta: OpenFraction
    independent: bool = False
    signatures_checked: bool = False
    inspections: tuple[Inspection, ...] = ()

    @cached_property
    def merged(self) -> tuple[MergedEValue, ...]:
        """The merged e-values at each inspection."""
        return tuple(
            self._merge(inspection.e_value_reports.values()) for inspection in self.inspections
        )

    def _merge(
        self, reports: Iterable[EValueReport], rejected: Sequence[RejectedReport] = ()
    ) -> MergedEValue:
        """Merge e-values with the numbers that are fixed at the first inspection.

        Parameters
        ----------
        reports : iterable of EValueReport
            The valid reports of one step, one of each client.
        rejected : sequence of RejectedReport
            For the result; their clients count as silent.
        """
        return merge_e_values(
            reports,
            self.max_malicious,
            rejected=rejected,
            n_clients=self.n_clients,
            delta=self.delta,
            independent=self.independent,
            signatures_checked=self.signatures_checked,
        )

    @cached_property
    def alarm_steps(self) -> dict[str, int]:
        """The step at which the merged e-values first raise an alarm, for "coverage" and "drift".

        An alarm that has never been raised is no key.
        """
        steps: dict[str, int] = {}
        for inspection, merged in zip(self.inspections, self.merged, strict=True):
            if merged.has_alarm:
                steps.setdefault("coverage", inspection.step)
            if merged.has_exchangeability_alarm:
                steps.setdefault("drift", inspection.step)
        return steps

    @property
    def alarming_clients(self) -> tuple[str, ...]:
        """The clients that raise an alarm each at the last inspection."""
        if not self.inspections:
            return ()
        return self.merged[-1].alarming_clients

    @property
    def line(self) -> str:
        """The alarms so far and what to do, in one line.

        Examples
        --------
        >>> from robfcp.monitoring import AlarmHistory
        >>> AlarmHistory("ab" * 32, "spring", 20, 2, 0.05).line
        'no alarm in 0 looks at 20 sites (names unchecked) of which at most 2 lie'
        """
        clients_text = describe_clients(
            self.n_clients, self.max_malicious, names_checked=self.signatures_checked
        )
        since = {name: f" since step {step}" for name, step in self.alarm_steps.items()}
        if "coverage" in since:
            return coverage_alarm_line(clients_text, since["coverage"])
        if "drift" in since:
            return drift_alarm_line(clients_text, since["drift"])
        start = f"no alarm in {len(self.inspections)} looks at "
        return no_alarm_line(clients_text, self.max_malicious, self.alarming_clients, start)

    def latest(self) -> dict[str, EValueReport]:
        """Return the last valid e-value report of every client that sent one, by its name."""
        latest: dict[str, EValueReport] = {}
        for inspection in self.inspections:
            latest.update(inspection.e_value_reports)
        return latest

    def with_inspection(
        self, reports: Iterable[EValueReport], step: int, rejections: Sequence[RejectedReport] = ()
    ) -> tuple[MergedEValue, AlarmHistory]:
        """Merge the e-values of a step and add them to the history.

        The last step may be inspected again, as reports may be late. The reports recorded for it
        stay: another one of the same client is rejected. Its rejections do not stay: a caller
        passes again all that was sent, with `rejections`.

        Parameters
        ----------
        reports : iterable of EValueReport
            The reports of this step; others are rejected. Of several acceptable ones of a client
            in one call the one of most samples is recorded.
        step : int
            The number of the reporting date, at least that of the last one recorded.
        rejections : sequence of RejectedReport
            Reports that were rejected when they were read, before this call.

        Returns
        -------
        MergedEValue, AlarmHistory
            The merged e-values of the step, and the history with it.

        Raises
        ------
        RobfcpError
            Where the step comes before the last one recorded.

        Examples
        --------
        >>> from robfcp.monitoring import AlarmHistory, EValueReport
        >>> history = AlarmHistory("ab" * 32, None, n_clients=3, max_malicious=1, delta=0.05)
        >>> reports = [EValueReport(f"s{k}", "ab" * 32, 0.9, 500, 4.0, step=1) for k in range(3)]
        >>> merged, history = history.with_inspection(reports, 1)
        >>> merged.has_alarm, history.alarm_steps
        (True, {'coverage': 1})
        """
        check_integer("step", step, "give the number of the reporting date")
        last_step = self.inspections[-1].step if self.inspections else -1  # below every step
        if step < last_step:
            raise RobfcpError(
                f"step: {step} comes before step {last_step}, which is recorded; steps only rise"
            )

        # Inspected again: the reports recorded for the step stay.
        earlier_inspections = self.inspections
        accepted: dict[str, EValueReport] = {}
        if step == last_step:
            earlier_inspections = self.inspections[:-1]
            accepted.update(self.inspections[-1].e_value_reports)

        # All are compared with the reports of earlier calls, not with each other.
        sorted_reports = sorted(reports, key=lambda report: (report.client, report.n_samples))
        latest = self.latest()
        newcomers = {report.client for report in sorted_reports} - set(latest)
        rejected = list(rejections)
        for report in sorted_reports:
            problem = self._find_problem(report, step, latest, newcomers)
            if problem:
                rejected.append(rejection_of(report, problem))
            else:
                accepted[report.client] = report

        # A client with an accepted report is not silent: its other reports are not listed.
        still_rejected = [rejection for rejection in rejected if rejection.client not in accepted]
        merged = self._merge(accepted.values(), still_rejected)
        inspection = Inspection(
            step=step,
            e_value_reports={client: accepted[client] for client in sorted(accepted)},
            rejections={
                rejection.client: rejection.reason for rejection in merged.rejected_reports
            },
        )
        return merged, msgspec.structs.replace(self, inspections=(*earlier_inspections, inspection))

    def _find_problem(
        self,
        report: EValueReport,
        step: int,
        latest: Mapping[str, EValueReport],
        newcomers: Collection[str],
    ) -> str:
        """Return why a report does not count at a step; empty if it does.

        After the first reports, newcomers count only if there is room for all: else senders under
        new names could crowd out clients.

        Parameters
        ----------
        report : EValueReport
            The report.
        step : int
            The reporting date.
        latest : mapping of str to EValueReport
            The last recorded report of every client so far.
        newcomers : collection of str
            The clients that send one for the first time, at this step.

        Returns
        -------
        str
            A text as `rejection_of` takes it.
        """
        is_crowded = bool(latest) and len(latest) + len(newcomers) > self.n_clients
        if is_crowded and report.client in newcomers:
            return (
                f"is more than the {self.n_clients} sites watched, of which {len(latest)} were "
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
        """Return the first contradiction between the fields, or "" if they are consistent.

        A file is untrusted input: later code relies on what is checked here.
        """
        if self.max_malicious >= self.n_clients or len(self.latest()) > self.n_clients:
            return "as many may lie as are watched, or more were heard"

        steps = [inspection.step for inspection in self.inspections]
        if steps != sorted(set(steps)):
            return "steps do not rise"

        for inspection in self.inspections:
            for client, report in inspection.e_value_reports.items():
                mismatch = find_mismatch(report, self.calibration, inspection.step)
                if report.client != client or mismatch:
                    return "an e-value report is not of its site, step or calibration"
        return ""


def _find_break(previous: EValueReport, report: EValueReport) -> str:
    """Return why a report does not continue the client's last one; empty if it does.

    The step of `report` is not below that of `previous`: `AlarmHistory` records rising steps only.

    Parameters
    ----------
    previous : EValueReport
        The last recorded report of the client.
    report : EValueReport
        Its new one. It may be the same again, also at a later step.

    Returns
    -------
    str
        A text as `rejection_of` takes it.
    """
    previous_value = f"at step {previous.step} it was"
    if report.min_coverage != previous.min_coverage:
        return (
            f"min_coverage is {report.min_coverage}, {previous_value} {previous.min_coverage}; "
            "keep that"
        )

    is_unchanged = msgspec.structs.replace(report, step=previous.step) == previous
    if previous.step == report.step and not is_unchanged:
        return f"another e-value report of step {report.step} is recorded; wait for the next step"
    if report.n_samples < previous.n_samples:
        return (
            f"counts {report.n_samples} samples, {previous_value} {previous.n_samples}; "
            "go on with the state file"
        )
    if report.n_samples == previous.n_samples and not is_unchanged:
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
    n_clients: int | None = None,
    delta: float | None = None,
    round: str | None = None,
    independent: bool | None = None,
) -> tuple[MergedEValue, AlarmHistory]:
    """Inspect the clients and record it in a file, which is created if there is none.

    Two processes wait for each other. An inspection without a valid report is refused, as a wrong
    step must not be recorded.

    Parameters
    ----------
    path : str or PathLike
        The file of the history.
    reports : sequence of EValueReport
        The reports of this step. The first of all decides which calibration is monitored.
    max_malicious : int
        At most so many clients are malicious; must be that of the history.
    step : int
        The number of the reporting date.
    rejected : sequence of RejectedReport
        Reports that were rejected when they were read.
    signatures_checked : bool
        Whether signatures show who sent the reports; must be that of the history.
    n_clients : int, optional
        The number of clients K. It must be stated at the first inspection, as the senders of files
        must not choose it.
    delta, round, independent : float, str, bool, optional
        As in the history; None keeps what it has, or at the first inspection takes 0.05, no round
        and False.

    Returns
    -------
    MergedEValue, AlarmHistory
        The merged e-values, and the longer history, which is in the file.
    """
    with file_lock(f"{path}.lock"):
        if Path(path).exists():
            history = AlarmHistory.load(path)
            # The keys are the fields of the history, which messages name.
            requested = {
                "n_clients": n_clients,
                "delta": delta,
                "round": round,
                "independent": independent,
                "max_malicious": max_malicious,
                "signatures_checked": signatures_checked,
            }
            _check_continued(path, history, requested)
        else:
            if not reports:
                raise RobfcpError(
                    f"{path}: the first inspection needs a valid e-value report"
                    f"{_first_rejection(rejected)}"
                )
            if n_clients is None:
                raise RobfcpError(
                    "--history: needs --n-clients, how many are watched, or --keys: whoever sends "
                    "files must not choose the number"
                )
            history = AlarmHistory(
                calibration=reports[0].calibration,
                round=round,
                n_clients=n_clients,
                max_malicious=max_malicious,
                delta=DEFAULT_DELTA if delta is None else delta,
                independent=bool(independent),
                signatures_checked=signatures_checked,
            )

        merged, history = history.with_inspection(reports, step, rejected)
        if not history.inspections[-1].e_value_reports:
            raise RobfcpError(
                f"step: none of the e-value reports is a valid one of step {step}; nothing was "
                "recorded" + _first_rejection(merged.rejected_reports)
            )
        history.save(path)
    return merged, history


def _check_continued(
    path: FilePath, history: AlarmHistory, requested: Mapping[str, object]
) -> None:
    """Refuse to continue a history with other numbers than those that it started with.

    Parameters
    ----------
    path : str or PathLike
        The file, for the message.
    history : AlarmHistory
        What it holds.
    requested : mapping of str to object
        What the caller states, by the names of the history's fields; None for what it does not.
    """
    for name, value in requested.items():
        recorded = getattr(history, name)
        if value is not None and recorded != value:
            raise RobfcpError(
                f"{path}: was begun with {name} {recorded}, not {value}; "
                "what is watched is fixed beforehand: keep it, or begin another file"
            )


def _first_rejection(rejected: Sequence[RejectedReport]) -> str:
    """Return the first of some rejections, or the advice to pass reports, to end a message with."""
    return f": {rejected[0].reason}" if rejected else "; pass some"
