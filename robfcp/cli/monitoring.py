"""Whether a calibration still holds: check fresh samples, monitor a site, merge sites' alarms."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer
from numpy.typing import NDArray

from robfcp._files import read_bounded, write_atomically
from robfcp.cli import console
from robfcp.cli.client import ThresholdOptions, print_verdict, read_outputs_for
from robfcp.cli.console import Printer, advanced_option, option, round_option
from robfcp.cli.model_outputs import ReaderOptions
from robfcp.cli.tables import REPORTS, TABLES, expand_paths
from robfcp.errors import RobfcpError
from robfcp.fleet import list_report_files
from robfcp.monitoring import (
    AlarmHistory,
    Monitor,
    alarming_clients,
    merge_e_values,
    read_e_value_reports,
    record_inspection,
)
from robfcp.page import PageHistory, write_html
from robfcp.reports import Report, signing, terms

_PRINTED_FIELDS = {  # the keys of --json, and the attributes of a monitor's state
    "line": "line",
    "n": "n",
    "misses": "misses",
    "floor": "floor",
    "wanted": "wanted",
    "delta": "delta",
    "log_coverage": "log_e_coverage",
    "log_drift": "log_e_exchangeability",
    "alarm": "has_alarm",
    "alarms": "alarms",
    "short_since": "short_since",
    "repeated": "repeated",
}
ALARM_EXIT_STATUS = 3  # the exit status of an alarm, and of coverage that is too low

Watched = Annotated[Path, typer.Argument(help="A calibration, or a site's letter.")]
Step = Annotated[int | None, round_option("Number of the reporting date.", "--step", min=0)]
Delta = Annotated[float | None, advanced_option("Chance of a false alarm, ever (0.05).", "--delta")]
Strict = Annotated[
    bool, advanced_option("Exit with 3 if the wanted level is missed, too.", "--strict")
]


def evaluate(
    printer: Printer,
    reading: ReaderOptions,
    used: ThresholdOptions,
    calibration: Watched,
    data: Annotated[Path, typer.Argument(help="Fresh labelled outputs: .csv, .npz or .parquet.")],
    group: Annotated[str | None, option("A column to split by: night, ward, scanner.")] = None,
    floor: Annotated[float | None, option("Coverage to hold, if not the promise.")] = None,
    strict: Strict = False,
    confidence: Annotated[float, advanced_option("Of the exact intervals.")] = 0.95,
    seed: console.Seed = 0,
) -> None:
    """Say whether fresh labelled samples are covered as promised, or how many more would tell.

    Exits with 3 where coverage is shown to be below what is promised (--strict: or is wanted), or
    below what is wanted where nothing is promised.

    [dim]Example: robfcp check calibration.json fresh.csv --group night[/dim]
    [dim]Example: robfcp check letter.json test.csv --floor 0.85[/dim]
    """
    with printer.busy("checking"):
        loaded, watched, place, letter = used.read(calibration, reading)
        outputs = read_outputs_for(loaded, data, reading, columns=[group])
        found = watched.evaluate(
            outputs.predictions,
            cast(NDArray[Any], outputs.targets),
            groups=None if group is None else outputs.columns[group],
            level=place,
            min_coverage=floor,
            interval_confidence=confidence,
            rng=np.random.default_rng(console.derive_seed(seed, "check")),
        )
        if outputs.names:
            called = (replace(part, name=outputs.names[int(part.name)]) for part in found.classes)
            found = replace(found, classes=tuple(called))
        said = {**asdict(found), "coverage": found.overall.coverage, "line": found.line}
        for name, parts in (("classes", found.classes), ("groups", found.groups)):
            said[name] = [{**asdict(one), "coverage": one.coverage} for one in parts]
    for title, first, rows in (
        (f"{found.overall.n} fresh samples", "part", (found.overall,)),
        ("by class, all intervals together", "class", found.classes),
        (f"by {group}, all intervals together", "group", found.groups),
    ):
        if rows:
            printer.table(
                title,
                [first, "samples", "coverage", "at least", "at most"],
                [(p.name, p.n, f"{p.coverage:.4f}", f"{p.low:.4f}", f"{p.high:.4f}") for p in rows],
            )
    printer.line("\n".join([str(found), *outputs.notes]))
    print_verdict(letter, printer)
    printer.json(said)
    if found.verdict == "below" or (strict and found.overall.high < found.wanted):
        raise typer.Exit(ALARM_EXIT_STATUS)


def monitor(
    printer: Printer,
    reading: ReaderOptions,
    used: ThresholdOptions,
    calibration: Annotated[Path | None, typer.Argument(help="None if --state keeps it.")] = None,
    data: Annotated[list[Path] | None, typer.Argument(help="Fresh labelled batches.")] = None,
    state: Annotated[
        Path, option("The monitor's memory: a file, or a folder.", "--state", "-s")
    ] = Path("monitor.json"),
    own: Annotated[Path | None, option("This site's report (--fine): see drift too.")] = None,
    floor: Annotated[float | None, option("Coverage to hold, if not what --own proves.")] = None,
    html: console.Html = None,
    client: Annotated[str | None, round_option("This site's name.", "--client", "-c")] = None,
    report: Annotated[Path | None, round_option("Write an e-report for robfcp alarms.")] = None,
    round: console.Round = None,
    step: Step = None,
    sign: console.Sign = None,
    strict: Strict = False,
    delta: Delta = None,
    run_length: Annotated[
        float | None, advanced_option("Ring on change; samples to a false one.")
    ] = None,
) -> None:
    """Watch a calibration at a site: count fresh batches once each, ring when it no longer holds.

    With --id no sample counts twice. A folder as --state keeps the calibration and the own report
    too, so that later weeks need the batch alone; without one it says where the monitor stands.
    Exits with 3 while an alarm rings (--strict: or the wanted level is shown to be missed).

    [dim]Example: robfcp monitor calibration.json monday.csv --state watch/[/dim]
    [dim]Example: robfcp monitor test.csv --state watch/[/dim]
    """
    given: dict[Path, Path] = {}
    if not state.suffix or state.is_dir():
        calibration, data, own, given = _monitor_folder_files(state, calibration, data or [], own)
        state = state / "monitor.json"
    if calibration is None:
        raise RobfcpError(f"{state}: only a folder keeps a calibration; name it before the batch")
    console.prepare_outputs(state, report, html)
    key = None if sign is None else signing.load_key(sign)
    with printer.busy("watching"):
        loaded, watched, place, letter = used.read(calibration, reading)
        bag = None if own is None else Report.from_json(signing.unwrap(read_bounded(own)), str(own))
        begun: Any = {"delta": delta, "average_run_length": run_length, "path": state}
        watch = Monitor(
            watched, reference_report=bag, client=client, level=place, min_coverage=floor, **begun
        )
        round = loaded.summary.round if round is None else round
        if report is not None:  # refused before anything is counted
            first = watch.e_value_report(round, step or 0)
            _ = None if key is None else signing.sign(first, key)
        files = expand_paths(data or [], TABLES)
        batches = [(path, read_outputs_for(loaded, path, reading)) for path in files]
        for place_of, source in given.items():  # nothing is kept of what could not be read
            write_atomically(place_of, read_bounded(source), private=True)
        start = watch.state
        for path, outputs in batches:
            names = None if reading.ids is None else outputs.ids
            before, truth = watch.state, cast(NDArray[Any], outputs.targets)
            try:
                after = watch.update(outputs.predictions, truth, ids=names)
            except RobfcpError as error:
                raise RobfcpError(f"{path}: {error}") from None
            counted, again = after.n - before.n, after.repeated - before.repeated
            notes = [] if names is not None else outputs.notes
            if counted < len(truth):
                known = f"{len(truth) - counted} of {len(truth)} samples"
                notes.append(
                    f"{path}: {known} were counted before, by name; none counts "
                    "twice: name samples anew whose names are used again"
                )
            if again:
                same = f"about {again} of {len(truth)} rows are the very same as rows before"
                notes.append(f"{path}: {same}, and count again; name samples by --id COLUMN")
            printer.line("\n".join(notes))
        seen = watch.state
        if report is not None:
            watch.e_value_report(round, step or 0).save(report, key)
        if html is not None:
            write_html(PageHistory(monitors=((client or state.stem, seen),)), html)
    new, missed = seen.n - start.n, seen.misses - start.misses
    shares = [1 - out / n if n else None for out, n in ((seen.misses, seen.n), (missed, new))]
    fresh = "" if shares[1] is None else f", {shares[1]:.4f} of them covered"
    printer.line(f"{new} new samples{fresh} -> {state}\nfloor: {seen.source}\n{seen.line}")
    print_verdict(letter, printer)
    printer.wrote(report, html)
    again = sum(len(outputs.predictions) for _, outputs in batches) - new
    said = {key: getattr(seen, name) for key, name in _PRINTED_FIELDS.items()}
    said |= {"covered": shares[0], "new_covered": shares[1]}
    printer.json({**said, "new": new, "counted_before": again})
    if seen.has_alarm or (strict and seen.short_since):
        raise typer.Exit(ALARM_EXIT_STATUS)


def _monitor_folder_files(
    folder: Path, calibration: Path | None, data: list[Path], own: Path | None
) -> tuple[Path, list[Path], Path | None, dict[Path, Path]]:
    """What is watched, its batches and the own report, and what a folder is to keep of them."""
    watched, held, given = folder / "watched.json", folder / "own.json", {}
    if calibration is not None and calibration.suffix.lower() in TABLES:
        data = [calibration, *data]
    elif calibration not in (None, watched):
        given[watched] = calibration
    if own is not None and own != held:
        given[held] = own
    if watched not in given and not watched.exists():
        raise RobfcpError(f"{folder}: watches nothing yet; name the calibration before the batch")
    own = given.get(held, held if held.exists() else None)
    return given.get(watched, watched), data, own, given


def merge_alarms(
    printer: Printer,
    reports: Annotated[list[Path], typer.Argument(help="The sites' e-reports, or their folder.")],
    liars: Annotated[int, option("The most sites that may lie.", "--liars", "-m", min=0)],
    sites: Annotated[int | None, option("How many are watched, if not all sent one.")] = None,
    history: Annotated[Path | None, option("Keep every look in this file; needs --step.")] = None,
    html: console.Html = None,
    keys: console.Keys = None,
    round: console.Round = None,
    quorum: Annotated[int, round_option("Least number of valid e-reports.", min=1)] = 1,
    step: Step = None,
    independent: Annotated[
        bool, advanced_option("Sites are independent.", "--independent")
    ] = False,
    delta: Delta = None,
) -> None:
    """Merge sites' e-reports into one alarm that at most so many liars cannot ring; list sites.

    Exits with 3 where it rings.

    [dim]Example: robfcp alarms e-*.json --liars 2[/dim]
    [dim]Example: robfcp alarms e-*.json -m 1 --sites 9 --step 1 --history h.json[/dim]
    """
    if history is not None and step is None:
        raise RobfcpError("--history: needs --step, the number of the reporting date")
    if html is not None and history is None:
        raise RobfcpError("--html: shows a history; pass --history, where it is kept")
    files = expand_paths(reports, REPORTS, list_report_files)
    console.prepare_outputs(history, html)
    public = None if keys is None else terms.read_keys(keys)
    known = AlarmHistory.load(history) if history is not None and history.exists() else None
    of: Any = {"round": round, "step": step, "calibration": known and known.calibration}
    found, faults = read_e_value_reports(files, keys=public, quorum=quorum, **of)
    if sites is None and public is not None:
        sites = len(public)
    told: Any = {"rejected": faults, "signatures_checked": public is not None}
    kept: dict[str, Any] = {}
    if history is None or step is None:
        told["delta"] = 0.05 if delta is None else delta
        merged = merge_e_values(found, liars, independent=independent, n_clients=sites, **told)
    else:
        told |= {
            "n_sites": sites,
            "delta": delta,
            "round": round,
            "independent": independent or None,
        }
        merged, known = record_inspection(history, found, liars, step=step, **told)
        kept = {"line": known.line, "rang": known.alarm_steps, "looks": len(known.looks)}
        if html is not None:
            write_html(PageHistory(alarms=known, registered_clients=tuple(public or ())), html)
    said = {
        "alarm": merged.has_alarm,
        "drift": merged.has_exchangeability_alarm,
        "line": merged.line,
        **kept,
    }
    heard = {one.client: one.log_drift for one in found}
    moved = {name: log for name, log in heard.items() if log is not None}
    drifting = alarming_clients(moved, merged.liars, merged.delta, merged.n_sites)
    quiet = {*(known.latest() if known else ()), *(public or ())} - {*heard}
    silent = sorted(quiet - {fault.client for fault in merged.faulty})
    data = {**vars(merged), **said, "drifting": drifting, "silent": silent}
    printer.table(
        f"{merged.n_sites} sites",
        ["alarm strength", "log10", "holds under"],
        [
            ("mean of the K - m smallest", _power_of_ten(merged.log_mean), "any dependence"),
            (
                "product of (0.9 + 0.1 W)",
                _power_of_ten(merged.log_product),
                "independent sites only",
            ),
            (
                "drift, mean of the K - m smallest",
                _power_of_ten(merged.log_drift),
                "any dependence",
            ),
            (
                "alarm at",
                _power_of_ten(merged.log_alarm_threshold),
                f"delta {merged.delta:g}, coverage and drift",
            ),
        ],
    )
    unnamed = merged.n_sites - len(heard) - len(quiet)
    others = f"{unnamed} of {merged.n_sites} sites, not heard of; --keys would name them"
    unheard = [*silent, *([others] if unnamed > 0 else [])]
    for word, names in (("alarms", merged.alarmed), ("drifts", drifting), ("silent", unheard)):
        printer.list(word, names)
    printer.list("faulty", [fault.reason for fault in merged.faulty])
    printer.line(said["line"])
    printer.wrote(history, html)
    printer.json(data)
    if merged.has_alarm or merged.has_exchangeability_alarm or kept.get("rang"):
        raise typer.Exit(ALARM_EXIT_STATUS)


def _power_of_ten(log: float) -> str:
    return f"{log / math.log(10):.2f}" if math.isfinite(log) else "-"
