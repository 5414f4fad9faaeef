"""`robfcp page`: a calibration becomes a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robfcp.calibration import Calibration
from robfcp.cli._common import EvidenceOption, Json, Printer, Quiet, ServerKey, pinned_key
from robfcp.page import write_page


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("page", no_args_is_help=True)(page)


def page(
    calibration: Annotated[Path, typer.Argument(help="A file written by robfcp calibrate.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the page goes.")] = Path(
        "page.html"
    ),
    evidence: EvidenceOption = None,
    server_key: ServerKey = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make one self-contained HTML page of a calibration: to look at, to ask what if, to print.

    [dim]Example: robfcp page calibration.json -o page.html[/dim]
    """
    printer = Printer(as_json, quiet)
    with printer.busy("making the page"):
        loaded = Calibration.load(calibration, pinned_key(server_key))
        if evidence is not None:
            loaded = loaded.with_evidence(evidence)
        write_page(loaded, output)
    size = output.stat().st_size
    printer.line(f"{loaded.federation.n_clients} clients ({size / 1000:.0f} kB) -> {output}")
    printer.json({"output": str(output), "bytes": size})
