"""`robfcp page`: a calibration becomes a page to look at."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from robfcp.calibration import Calibration
from robfcp.cli._common import EvidenceOption, Json, Printer, Quiet, ServerKey, pinned_key, prepare
from robfcp.cli._history import KINDS, history_of, kind_of_file, read_history
from robfcp.page import About, write_history_page, write_page

Title = Annotated[str, typer.Option(help="What the page is headed with.")]
Study = Annotated[str, typer.Option(help="The study or protocol, for the page.")]
RunBy = Annotated[str, typer.Option(help="Who ran it, for the page.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("page", no_args_is_help=True)(page)


def page(
    calibration: Annotated[
        Path,
        typer.Argument(
            help="A file written by robfcp calibrate; or a record of alarms, a monitor, a chain."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the page goes.")] = Path(
        "page.html"
    ),
    title: Title = "",
    study: Study = "",
    run_by: RunBy = "",
    date: Annotated[
        str | None, typer.Option(help="The date on it; today's if not given, '' for none.")
    ] = None,
    history: Annotated[
        list[Path] | None,
        typer.Option(help="Also show this record of alarms or monitor; may be repeated."),
    ] = None,
    evidence: EvidenceOption = None,
    server_key: ServerKey = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make one self-contained HTML page of a calibration: to look at, to ask what if, to print.

    The chain of rounds beside a calibration is shown with it. A record of alarms, a monitor's state
    or a chain alone makes a page of the history.

    [dim]Example: robfcp page calibration.json -o page.html --title "Outcome after stroke"[/dim]
    [dim]Example: robfcp page alarms.json -o history.html[/dim]
    """
    printer = Printer(as_json, quiet)
    prepare(output)
    if kind_of_file(calibration) in KINDS:
        found = read_history([calibration, *(history or [])])
        write_history_page(found, output)
        size = output.stat().st_size
        printer.line(f"history ({size / 1000:.0f} kB) -> {output}")
        printer.json({"output": str(output), "bytes": size})
        return
    with printer.busy("making the page"):
        loaded = Calibration.load(calibration, pinned_key(server_key))
        if evidence is not None:
            loaded = loaded.with_evidence(evidence)
        past = history_of(loaded, calibration, history or [])
        write_page(loaded, output, past, about(title, study, run_by, date))
    size = output.stat().st_size
    printer.line(f"{loaded.federation.n_clients} sites ({size / 1000:.0f} kB) -> {output}")
    printer.json({"output": str(output), "bytes": size})


def about(title: str, study: str, run_by: str, date: str | None = None) -> About:
    """What the page says about itself, with today's date unless another is given."""
    if date is None:
        today = datetime.date.today()
        date = f"{today.day} {today:%B %Y}"
    return About(title, study, run_by, date)
