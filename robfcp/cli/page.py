"""`robfcp page`: a calibration becomes a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robfcp.calibration import Calibration
from robfcp.cli._common import EvidenceOption, Json, Printer, Quiet, ServerKey, pinned_key
from robfcp.cli._history import KINDS, history_of, kind_of_file, read_history
from robfcp.page import write_history_page, write_page


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

    [dim]Example: robfcp page calibration.json -o page.html[/dim]
    [dim]Example: robfcp page alarms.json -o history.html[/dim]
    """
    printer = Printer(as_json, quiet)
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
        write_page(loaded, output, history_of(loaded, calibration, history or []))
    size = output.stat().st_size
    printer.line(f"{loaded.federation.n_clients} clients ({size / 1000:.0f} kB) -> {output}")
    printer.json({"output": str(output), "bytes": size})
