"""`robfcp audit`: a server's log, its chain checked line by line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robfcp.calibration import AuditLog
from robfcp.cli._common import Json, Printer, Quiet

SHOWN = ("round", "client", "verdict", "reason", "result")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("audit", no_args_is_help=True)(audit)


def audit(
    log: Annotated[Path, typer.Argument(help="A log that calibrate --audit or verify wrote.")],
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check that no line of a server's log was altered, and show what it holds.

    [dim]Example: robfcp audit audit.jsonl[/dim]
    [dim]Example: robfcp audit audit.jsonl --json[/dim]
    """
    printer = Printer(as_json, quiet)
    events = list(AuditLog(log).events())
    rows = [
        (
            event.get("time"),
            event.get("event"),
            " ".join(str(event[key]) for key in SHOWN if event.get(key) is not None),
        )
        for event in events
    ]
    printer.table(f"{len(events)} events, the chain holds", ["time", "event", "about"], rows)
    if events:
        printer.line(f"The last line's digest, to be noted elsewhere: {events[-1]['digest']}")
    printer.json(events)
