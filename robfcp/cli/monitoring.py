"""Whether a calibration still holds: check fresh samples, monitor a site, merge sites' alarms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
import typer
from numpy.typing import NDArray

from robfcp._files import read_bounded, write_atomically
from robfcp.cli import console
from robfcp.cli.console import Printer, advanced_option, option, round_option
from robfcp.cli.model_outputs import ModelOutputs, ReaderOptions
from robfcp.cli.prediction import (
    LoadedThreshold,
    ThresholdOptions,
    print_verdict,
    read_outputs_for,
)
from robfcp.cli.tables import REPORTS, TABLES, expand_paths
from robfcp.errors import RobfcpError
from robfcp.federation import RejectedReport
from robfcp.fleet import list_report_files
from robfcp.monitoring import (
    AlarmHistory,
    EValueReport,
    MergedEValue,
    Monitor,
    MonitorState,
    alarming_clients,
    merge_e_values,
    read_e_value_reports,
    record_inspection,
)
from robfcp.page import PageHistory, write_html
from robfcp.reports import Report, signing, terms

if TYPE_CHECKING:
    from robfcp.evaluation import CoverageEvaluation, CoverageInterval

_PRINTED_FIELDS = (  # attributes of a monitor's state that --json prints
    "line",
    "n_samples",
    "n_missed",
    "min_coverage",
    "target_coverage",
    "delta",
    "log_e_coverage",
    "log_e_exchangeability",
    "has_alarm",
    "alarm_steps",
    "target_missed_since",
    "n_repeated_rows",
)
ALARM_EXIT_STATUS = 3  # the exit status of an alarm, and of coverage that is too low
DEFAULT_DELTA = 0.05  # chance of a false alarm of merged e-values
STATE_FILE = "monitor.json"  # in a monitor's folder
CALIBRATION_FILE = "calibration.json"
REFERENCE_FILE = "reference-report.json"

Monitored = Annotated[Path, typer.Argument(help="A calibration, or client feedback.")]
Step = Annotated[int | None, round_option("Number of the inspection.", "--step", min=0)]
Delta = Annotated[
    float | None, advanced_option("Probability of a false alarm, ever (0.05).", "--delta")
]
Strict = Annotated[
    bool, advanced_option("Exit with 3 also where the target coverage is missed.", "--strict")
]


def evaluate(
    printer: Printer,
    reading: ReaderOptions,
    threshold_options: ThresholdOptions,
    calibration: Monitored,
    data: Annotated[Path, typer.Argument(help="Fresh labeled outputs: .csv, .npz or .parquet.")],
    group: Annotated[str | None, option("Column of groups: night, ward, scanner.")] = None,
    min_coverage: Annotated[
        float | None, option("Minimum coverage, if not the certified one.")
    ] = None,
    strict: Strict = False,
    interval_confidence: Annotated[
        float, advanced_option("Confidence of the exact intervals.")
    ] = 0.95,
    seed: console.Seed = 0,
) -> None:
    """Evaluate the coverage of fresh labeled samples against the certified one.

    Exits with 3 where coverage is shown to be below what is promised (--strict: or is wanted), or
    below what is wanted where nothing is promised.

    [dim]Example: robfcp evaluate calibration.json fresh.csv --group night[/dim]
    [dim]Example: robfcp evaluate feedback.json test.csv --min-coverage 0.85[/dim]
    """
    with printer.busy("checking"):
        threshold = threshold_options.read(calibration, reading)
        outputs = read_outputs_for(threshold.calibration, data, reading, columns=[group])
        evaluation = threshold.source.evaluate(
            outputs.predictions,
            cast(NDArray[Any], outputs.targets),
            groups=None if group is None else outputs.columns[group],
            level=threshold.level_index,
            min_coverage=min_coverage,
            interval_confidence=interval_confidence,
            rng=np.random.default_rng(console.derive_seed(seed, "check")),
        )
        evaluation = _with_class_names(evaluation, outputs)

    title = f"{evaluation.overall.n_samples} fresh samples"
    _print_intervals(title, "part", [evaluation.overall], printer)
    _print_intervals("by class, all intervals together", "class", evaluation.classes, printer)
    _print_intervals(f"by {group}, all intervals together", "group", evaluation.groups, printer)
    printer.line("\n".join([str(evaluation), *outputs.notes]))
    print_verdict(threshold.feedback, printer)
    printer.json(_evaluation_as_json(evaluation))
    is_wanted_missed = evaluation.overall.upper < evaluation.target_coverage
    if evaluation.result == "undercoverage" or (strict and is_wanted_missed):
        raise typer.Exit(ALARM_EXIT_STATUS)


def _with_class_names(evaluation: CoverageEvaluation, outputs: ModelOutputs) -> CoverageEvaluation:
    """Return an evaluation whose classes are called by name, where the file names them."""
    if not outputs.names:
        return evaluation
    classes = []
    for interval in evaluation.classes:
        classes.append(replace(interval, name=outputs.names[int(interval.name)]))
    return replace(evaluation, classes=tuple(classes))


def _print_intervals(
    title: str, first_column: str, intervals: Sequence[CoverageInterval], printer: Printer
) -> None:
    """Print the coverage of some strata with its intervals, where there are any."""
    rows = []
    for interval in intervals:
        values = (interval.coverage, interval.lower, interval.upper)
        rows.append((interval.name, interval.n_samples, *(f"{value:.4f}" for value in values)))
    if rows:
        printer.table(title, [first_column, "samples", "coverage", "at least", "at most"], rows)


def _evaluation_as_json(evaluation: CoverageEvaluation) -> dict[str, Any]:
    """Return an evaluation for programs."""
    return {
        **asdict(evaluation),
        "coverage": evaluation.overall.coverage,
        "line": evaluation.line,
        "classes": _intervals_as_json(evaluation.classes),
        "groups": _intervals_as_json(evaluation.groups),
    }


def _intervals_as_json(intervals: Sequence[CoverageInterval]) -> list[dict[str, Any]]:
    """Return the coverage of some strata for programs."""
    return [{**asdict(interval), "coverage": interval.coverage} for interval in intervals]


@dataclass(frozen=True)
class MonitorOptions:
    """What a monitor is held against, what it writes, and what it rings at."""

    state: Annotated[
        Path, option("State of the monitor: a file, or a folder.", "--state", "-s")
    ] = Path(STATE_FILE)
    reference_report: Annotated[
        Path | None, option("Exact report of this client, to test exchangeability too.")
    ] = None
    min_coverage: Annotated[
        float | None, option("Minimum coverage, if not what --reference-report certifies.")
    ] = None
    html: console.Html = None
    client: Annotated[str | None, round_option("Name of this client.", "--client", "-c")] = None
    report: Annotated[
        Path | None, round_option("Write an e-value report for robfcp merge-alarms.")
    ] = None
    round: console.Round = None
    step: Step = None
    sign: console.Sign = None
    strict: Strict = False
    delta: Delta = None
    average_run_length: Annotated[
        float | None, advanced_option("Raise an alarm on change; average samples to a false one.")
    ] = None


@dataclass(frozen=True)
class MonitorFiles:
    """What a monitor reads and keeps.

    Attributes
    ----------
    state : Path
        Its memory.
    calibration : Path
        What is watched.
    batches : list of Path
        Files or folders of fresh labeled outputs.
    reference_report : Path, optional
        The report that fresh scores are compared with.
    copies : mapping of Path to Path
        {file in the monitor's folder: what is copied there}.
    """

    state: Path
    calibration: Path
    batches: list[Path]
    reference_report: Path | None
    copies: Mapping[Path, Path]


def monitor(
    options: MonitorOptions,
    printer: Printer,
    reading: ReaderOptions,
    threshold_options: ThresholdOptions,
    calibration: Annotated[
        Path | None, typer.Argument(help="Calibration; omitted if --state holds it.")
    ] = None,
    data: Annotated[list[Path] | None, typer.Argument(help="Fresh labeled batches.")] = None,
) -> None:
    """Monitor a calibration at one client: raise an alarm when coverage no longer holds.

    With --id no sample counts twice. A folder as --state keeps the calibration and the own report
    too, so that later weeks need the batch alone; without one it says where the monitor stands.
    Exits with 3 while an alarm rings (--strict: or the wanted level is shown to be missed).

    [dim]Example: robfcp monitor calibration.json monday.csv --state watch/[/dim]
    [dim]Example: robfcp monitor test.csv --state watch/[/dim]
    """
    files = _monitor_files(options, calibration, data or [])
    console.prepare_outputs(files.state, options.report, options.html)
    key = console.load_private_key(options.sign)
    with printer.busy("watching"):
        threshold = threshold_options.read(files.calibration, reading)
        watch = _make_monitor(threshold, files, options)
        if options.report is not None:
            # What cannot be sent or signed is refused before anything is counted.
            e_value_report = _e_value_report(watch, threshold, options)
            if key is not None:
                signing.sign(e_value_report, key)

        batches = []
        for path in expand_paths(files.batches, TABLES):
            batches.append((path, read_outputs_for(threshold.calibration, path, reading)))
        # Nothing is kept of what could not be read.
        for copy, source in files.copies.items():
            write_atomically(copy, read_bounded(source), private=True)

        start = watch.state
        for path, outputs in batches:
            _count_batch(watch, path, outputs, reading, printer)
        if options.report is not None:
            _e_value_report(watch, threshold, options).save(options.report, key)
        if options.html is not None:
            name = options.client or files.state.stem
            write_html(PageHistory(monitors=((name, watch.state),)), options.html)

    n_samples = sum(len(outputs.predictions) for _, outputs in batches)
    _print_counted(start, watch.state, files.state, printer)
    print_verdict(threshold.feedback, printer)
    printer.wrote(options.report, options.html)
    printer.json(_counted_as_json(start, watch.state, n_samples))
    if watch.state.has_alarm or (options.strict and watch.state.target_missed_since):
        raise typer.Exit(ALARM_EXIT_STATUS)


def _monitor_files(
    options: MonitorOptions, calibration: Path | None, data: list[Path]
) -> MonitorFiles:
    """Return what a monitor reads: as named, or as its folder keeps it."""
    if not options.state.suffix or options.state.is_dir():
        return _monitor_folder_files(options.state, calibration, data, options.reference_report)
    if calibration is None:
        raise RobfcpError(
            f"{options.state}: only a folder keeps a calibration; name it before the batch"
        )
    return MonitorFiles(options.state, calibration, data, options.reference_report, {})


def _monitor_folder_files(
    folder: Path, calibration: Path | None, data: list[Path], reference_report: Path | None
) -> MonitorFiles:
    """Return what a monitor with a folder reads, and what the folder is to keep of it."""
    kept_calibration = folder / CALIBRATION_FILE
    kept_report = folder / REFERENCE_FILE
    copies: dict[Path, Path] = {}
    if calibration is not None and calibration.suffix.lower() in TABLES:
        # The first argument is a batch where the folder has the calibration.
        data = [calibration, *data]
    elif calibration is not None and calibration != kept_calibration:
        copies[kept_calibration] = calibration
    if reference_report is not None and reference_report != kept_report:
        copies[kept_report] = reference_report
    if kept_calibration not in copies and not kept_calibration.exists():
        raise RobfcpError(f"{folder}: watches nothing yet; name the calibration before the batch")

    if kept_report.exists():
        reference_report = copies.get(kept_report, kept_report)
    else:
        reference_report = copies.get(kept_report)
    return MonitorFiles(
        folder / STATE_FILE,
        copies.get(kept_calibration, kept_calibration),
        data,
        reference_report,
        copies,
    )


def _read_reference_report(path: Path | None) -> Report | None:
    """Return this site's own report, signed or not; None without one."""
    if path is None:
        return None
    return Report.from_json(signing.unwrap(read_bounded(path)), str(path))


def _make_monitor(
    threshold: LoadedThreshold, files: MonitorFiles, options: MonitorOptions
) -> Monitor:
    """Return the monitor of a threshold, which goes on from its state where there is one."""
    return Monitor(
        threshold.source,
        reference_report=_read_reference_report(files.reference_report),
        client=options.client,
        level=threshold.level_index,
        min_coverage=options.min_coverage,
        delta=options.delta,
        average_run_length=options.average_run_length,
        path=files.state,
    )


def _e_value_report(
    watch: Monitor, threshold: LoadedThreshold, options: MonitorOptions
) -> EValueReport:
    """Return what this site tells the server, in the calibration's round unless one is named."""
    round_name = options.round
    if round_name is None:
        round_name = threshold.calibration.summary.round
    return watch.e_value_report(round_name, options.step or 0)


def _count_batch(
    watch: Monitor, path: Path, outputs: ModelOutputs, reading: ReaderOptions, printer: Printer
) -> None:
    """Count a batch of fresh samples; print which of them were counted before."""
    targets = cast(NDArray[Any], outputs.targets)
    ids = None if reading.ids is None else outputs.ids
    previous_state = watch.state
    try:
        state = watch.update(outputs.predictions, targets, ids=ids)
    except RobfcpError as error:
        raise RobfcpError(f"{path}: {error}") from None

    # That rows repeat an id is no news where ids decide what counts.
    notes = outputs.notes if ids is None else []
    n_samples = len(targets)
    n_counted = state.n_samples - previous_state.n_samples
    n_repeated = state.n_repeated_rows - previous_state.n_repeated_rows
    if n_counted < n_samples:
        notes.append(
            f"{path}: {n_samples - n_counted} of {n_samples} samples were counted before, by name; "
            "none counts twice: name samples anew whose names are used again"
        )
    if n_repeated:
        notes.append(
            f"{path}: about {n_repeated} of {n_samples} rows are the very same as rows before, "
            "and count again; name samples by --id COLUMN"
        )
    printer.line("\n".join(notes))


def _coverage_of_counts(n_samples: int, n_misses: int) -> float | None:
    """Return the fraction that is covered; None without samples."""
    if n_samples == 0:
        return None
    return 1 - n_misses / n_samples


def _new_coverage(start: MonitorState, state: MonitorState) -> float | None:
    """Return the coverage of the samples counted since a state; None without any."""
    return _coverage_of_counts(state.n_samples - start.n_samples, state.n_missed - start.n_missed)


def _print_counted(start: MonitorState, state: MonitorState, path: Path, printer: Printer) -> None:
    """Print how many samples were counted, how they are covered, and where the monitor stands."""
    new_coverage = _new_coverage(start, state)
    coverage_text = "" if new_coverage is None else f", {new_coverage:.4f} of them covered"
    printer.line(f"{state.n_samples - start.n_samples} new samples{coverage_text} -> {path}")
    printer.line(f"min_coverage: {state.source}\n{state.line}")


def _counted_as_json(start: MonitorState, state: MonitorState, n_samples: int) -> dict[str, Any]:
    """Return where a monitor stands for programs, after batches of so many samples."""
    fields = {name: getattr(state, name) for name in _PRINTED_FIELDS}
    n_new = state.n_samples - start.n_samples
    return {
        **fields,
        "coverage": _coverage_of_counts(state.n_samples, state.n_missed),
        "new_coverage": _new_coverage(start, state),
        "n_new": n_new,
        "n_repeated": n_samples - n_new,
    }


@dataclass(frozen=True)
class AlarmOptions:
    """Which e-value reports are valid, what is known of the sites, and where looks are kept."""

    n_clients: Annotated[
        int | None, option("Number of monitored clients, if not all sent a report.")
    ] = None
    history: Annotated[Path | None, option("File of all inspections; needs --step.")] = None
    html: console.Html = None
    keys: console.Keys = None
    round: console.Round = None
    quorum: Annotated[int, round_option("Minimum number of valid e-value reports.", min=1)] = 1
    step: Step = None
    independent: Annotated[bool, advanced_option("Clients are independent.", "--independent")] = (
        False
    )
    delta: Delta = None

    def check(self) -> None:
        """Refuse options that do not go together."""
        if self.history is not None and self.step is None:
            raise RobfcpError("--history: needs --step, the number of the reporting date")
        if self.html is not None and self.history is None:
            raise RobfcpError("--html: shows a history; pass --history, where it is kept")

    def read_keys(self) -> Mapping[str, str] | None:
        """Return {client: public key}; None where no registry is named."""
        return None if self.keys is None else terms.read_keys(self.keys)

    def read_history(self) -> AlarmHistory | None:
        """Return the looks so far; None before the first, or where none are kept."""
        if self.history is None or not self.history.exists():
            return None
        return AlarmHistory.load(self.history)


@dataclass(frozen=True)
class MergedAlarms:
    """What the sites' e-value reports come to.

    Attributes
    ----------
    merged : MergedEValue
        The alarm of all sites together.
    history : AlarmHistory, optional
        All looks with this one, where they are kept.
    drifting : tuple of str
        Clients whose scores drift from their own reports.
    silent : list of str
        Clients whose names are known and who sent no report, valid or not.
    n_unnamed : int
        How many more clients were not heard of.
    """

    merged: MergedEValue
    history: AlarmHistory | None
    drifting: tuple[str, ...]
    silent: list[str]
    n_unnamed: int

    @property
    def line(self) -> str:
        """The answer in one line: of all looks where they are kept."""
        return self.merged.line if self.history is None else self.history.line

    @property
    def has_alarm(self) -> bool:
        """Whether an alarm rings, or rang at a look before."""
        has_rung = self.history is not None and bool(self.history.alarm_steps)
        return self.merged.has_alarm or self.merged.has_exchangeability_alarm or has_rung


def merge_alarms(
    options: AlarmOptions,
    printer: Printer,
    reports: Annotated[
        list[Path], typer.Argument(help="E-value reports of the clients, or their folder.")
    ],
    max_malicious: Annotated[
        int, option("Malicious clients at most.", "--max-malicious", "-m", min=0)
    ],
) -> None:
    """Merge the e-value reports of clients into one alarm that malicious clients cannot raise.

    Exits with 3 where it rings.

    [dim]Example: robfcp merge-alarms e-*.json --max-malicious 2[/dim]
    [dim]Example: robfcp merge-alarms e-*.json -m 1 --n-clients 9 --step 1 --history h.json[/dim]
    """
    options.check()
    files = expand_paths(reports, REPORTS, list_report_files)
    console.prepare_outputs(options.history, options.html)
    keys = options.read_keys()
    alarms = _merge_reports(files, max_malicious, options, keys)
    if options.html is not None:
        page = PageHistory(alarms=alarms.history, registered_clients=tuple(keys or ()))
        write_html(page, options.html)
    _print_alarms(alarms, printer)
    printer.wrote(options.history, options.html)
    printer.json(_alarms_as_json(alarms))
    if alarms.has_alarm:
        raise typer.Exit(ALARM_EXIT_STATUS)


def _merge_reports(
    files: Sequence[Path],
    max_malicious: int,
    options: AlarmOptions,
    keys: Mapping[str, str] | None,
) -> MergedAlarms:
    """Return what e-value reports come to; the look is recorded where a history is kept."""
    previous = options.read_history()
    reports, rejected = read_e_value_reports(
        files,
        keys=keys,
        round=options.round,
        calibration=None if previous is None else previous.calibration,
        step=options.step,
        quorum=options.quorum,
    )
    merged, history = _merge(reports, rejected, max_malicious, options, keys)

    log_drifts = {
        report.client: report.log_e_exchangeability
        for report in reports
        if report.log_e_exchangeability is not None
    }
    drifting = alarming_clients(log_drifts, merged.max_malicious, merged.delta, merged.n_clients)
    expected = set(keys or ())
    if history is not None:
        expected |= set(history.latest())
    reporting = {report.client for report in reports}
    missing = expected - reporting
    silent = sorted(missing - {rejection.client for rejection in merged.rejected_reports})
    n_unnamed = merged.n_clients - len(reporting) - len(missing)
    return MergedAlarms(merged, history, drifting, silent, n_unnamed)


def _merge(
    reports: Sequence[EValueReport],
    rejected: Sequence[RejectedReport],
    max_malicious: int,
    options: AlarmOptions,
    keys: Mapping[str, str] | None,
) -> tuple[MergedEValue, AlarmHistory | None]:
    """Return the alarm of all clients together, and all looks where they are kept."""
    n_clients = options.n_clients
    if n_clients is None and keys is not None:
        n_clients = len(keys)
    if options.history is not None and options.step is not None:
        return record_inspection(
            options.history,
            reports,
            max_malicious,
            step=options.step,
            rejected=rejected,
            signatures_checked=keys is not None,
            n_clients=n_clients,
            delta=options.delta,
            round=options.round,
            independent=options.independent or None,
        )
    merged = merge_e_values(
        reports,
        max_malicious,
        n_clients=n_clients,
        delta=DEFAULT_DELTA if options.delta is None else options.delta,
        independent=options.independent,
        rejected=rejected,
        signatures_checked=keys is not None,
    )
    return merged, None


def _print_alarms(alarms: MergedAlarms, printer: Printer) -> None:
    """Print how strong the alarm is, and which sites alarm, drift or are silent."""
    merged = alarms.merged
    mean = _power_of_ten(merged.log_mean_e_value)
    product = _power_of_ten(merged.log_product_e_value)
    drift = _power_of_ten(merged.log_e_exchangeability)
    alarm_threshold = _power_of_ten(merged.log_alarm_threshold)
    printer.table(
        f"{merged.n_clients} sites",
        ["alarm strength", "log10", "holds under"],
        [
            ("mean of the K - m smallest", mean, "any dependence"),
            ("product of (0.9 + 0.1 W)", product, "independent sites only"),
            ("drift, mean of the K - m smallest", drift, "any dependence"),
            ("alarm at", alarm_threshold, f"delta {merged.delta:g}, coverage and drift"),
        ],
    )
    silent = list(alarms.silent)
    if alarms.n_unnamed > 0:
        silent.append(
            f"{alarms.n_unnamed} of {merged.n_clients} sites, not heard of; --keys would name them"
        )
    printer.list("alarms", merged.alarming_clients)
    printer.list("drifts", alarms.drifting)
    printer.list("silent", silent)
    printer.list("rejected", [rejection.reason for rejection in merged.rejected_reports])
    printer.line(alarms.line)


def _alarms_as_json(alarms: MergedAlarms) -> dict[str, Any]:
    """Return merged alarms for programs."""
    data = {
        **vars(alarms.merged),
        "has_alarm": alarms.merged.has_alarm,
        "has_exchangeability_alarm": alarms.merged.has_exchangeability_alarm,
        "line": alarms.line,
    }
    if alarms.history is not None:
        data["alarm_steps"] = alarms.history.alarm_steps
        data["n_inspections"] = len(alarms.history.inspections)
    return {**data, "drifting": alarms.drifting, "silent": alarms.silent}


def _power_of_ten(natural_log: float) -> str:
    """Return the logarithm to base 10 of what has this natural one; a dash where infinite."""
    if not math.isfinite(natural_log):
        return "-"
    return f"{natural_log / math.log(10):.2f}"
