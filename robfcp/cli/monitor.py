"""`robfcp monitor`: a site watches whether its calibration still holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robfcp.calibration import Calibration, Localised, load_calibration, own_floor, promise_of
from robfcp.cli._common import (
    Json,
    LevelOption,
    LocalOption,
    Printer,
    Quiet,
    level_place,
    prepare,
    prepare_figure,
)
from robfcp.cli._data import LabelColumn, Logits, Normalise, reading_of
from robfcp.cli._local import localised_from, read_for
from robfcp.cli._paths import TABLES, expanded
from robfcp.cli._sites import letter_note
from robfcp.errors import RobfcpError
from robfcp.files import read_limited
from robfcp.monitoring import Monitor
from robfcp.page import History, write_history_page
from robfcp.report import Report, load_key, signing


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("monitor", no_args_is_help=True)(monitor)


def monitor(
    calibration: Annotated[Path, typer.Argument(help="A calibration, or a site's letter.")],
    data: Annotated[
        list[Path] | None, typer.Argument(help="Fresh labelled batches: .csv, .npz, .parquet.")
    ] = None,
    state: Annotated[
        Path, typer.Option("--state", "-s", help="What the monitor remembers; kept up to date.")
    ] = Path("monitor.json"),
    own: Annotated[
        Path | None, typer.Option(help="This site's own report: also watch for drifting scores.")
    ] = None,
    local: LocalOption = None,
    floor: Annotated[
        str | None, typer.Option(help="Coverage to hold; or 'own', what --own proves here.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Chance of a false alarm, ever; 0.05 unless stated.")
    ] = None,
    run_length: Annotated[
        float | None, typer.Option(help="Ring on change too; mean samples to a false alarm.")
    ] = None,
    ids: Annotated[
        str | None, typer.Option("--id", help="A column that names the samples; none counts twice.")
    ] = None,
    label: LabelColumn = None,
    logits: Logits = False,
    normalise: Normalise = False,
    level: LevelOption = None,
    client: Annotated[
        str | None, typer.Option("--client", "-c", help="This site's name, for --report.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write an e-report for the server's robfcp alarms.")
    ] = None,
    round: Annotated[str | None, typer.Option(help="The round's name, for --report.")] = None,
    step: Annotated[int, typer.Option(help="Number of the reporting date.")] = 0,
    sign: Annotated[
        Path | None, typer.Option(help="Sign the e-report with this key; needs --round.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw how strong the alarms are: .png, .svg, .pdf.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page of what was seen.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Watch a calibration at a site: count fresh batches once each, ring when it no longer holds.

    [dim]Example: robfcp monitor calibration.json monday.csv --state monitor.json[/dim]
    [dim]Example: robfcp monitor letter.json monday.csv -s 03.json -c site-03 --report e.json[/dim]
    """
    printer = Printer(as_json, quiet)
    prepare(state, report, html)
    prepare_figure(plot)
    key = None if sign is None else load_key(sign)
    with printer.busy("watching"):
        loaded = load_calibration(calibration)
        bag = None if own is None else Report.from_json(signing.unwrap(read_limited(own)), str(own))
        reading = reading_of(None, logits, normalise, label)
        place = level_place([one.coverage for one in loaded.levels], level)
        promise_of(loaded, place)
        watched: Calibration | Localised = loaded
        threshold = loaded.levels[place].threshold
        if local is not None:
            watched = localised_from(calibration, local, reading)
            threshold = watched.levels[place].threshold
        watch = Monitor(
            watched,
            report=bag,
            client=client,
            level=place,
            floor=_floor(floor, bag, threshold),
            delta=delta,
            run_length=run_length,
            path=state,
        )
        new = 0
        for path in expanded(data or [], TABLES):
            outputs = read_for(loaded, path, reading, needs_targets=True, columns=[ids])
            assert outputs.targets is not None
            names = None if ids is None else outputs.columns[ids]
            before = watch.state.n
            counted = watch.update(outputs.predictions, outputs.targets, ids=names).n - before
            new += counted
            if not counted:
                printer.line(f"{path}: was counted before; nothing was counted twice")
        seen = watch.state
        if report is not None:
            watch.e_report(round, step).save(report, key)
        if plot is not None:
            from robfcp.figures import plot_alarm, save

            save(plot_alarm(watch), plot)
        if html is not None:
            write_history_page(History(monitors=((client or state.stem, seen),)), html)
    printer.line(f"{new} new samples -> {state}")
    printer.line(f"floor: {seen.source}")
    printer.line(seen.line)
    letter_note(calibration, printer)
    for written in (report, plot, html):
        if written is not None:
            printer.line(f"-> {written}")
    told = ("n", "misses", "floor", "delta", "log_coverage", "log_change", "log_drift", "alarms")
    points = ("n", "coverage", "change", "drift")
    printer.json(
        {
            **{name: getattr(seen, name) for name in (*told, "alarm")},
            "new": new,
            "curve": {name: [getattr(point, name) for point in seen.curve] for name in points},
        }
    )


def _floor(text: str | None, report: Report | None, threshold: float) -> float | None:
    """A number, or what the site's own report proves."""
    if text is None:
        return None
    if text == "own":
        if report is None:
            raise RobfcpError("--floor: 'own' needs the site's own report; pass --own")
        return own_floor(report, threshold)
    try:
        return float(text)
    except ValueError:
        raise RobfcpError(f"--floor: {text!r} is neither a number nor 'own'") from None
