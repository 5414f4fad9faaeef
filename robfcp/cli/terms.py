"""`robfcp terms`: what was agreed for a round, checked and signed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import asdict

from robfcp.cli._common import Json, Printer, Quiet, ServerKey, pinned_key
from robfcp.report import agreement, load_key


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("terms", no_args_is_help=True)(terms)


def terms(
    file: Annotated[Path, typer.Argument(help="round.toml: round, model, score, grid, epsilon.")],
    sign: Annotated[
        Path | None, typer.Option(help="Sign it with this key of robfcp keygen: FILE.sig.")
    ] = None,
    server_key: ServerKey = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show the terms of a round; the server signs them, the sites check that it has.

    [dim]Example: robfcp terms round.toml --sign server.key[/dim]
    [dim]Example: robfcp terms round.toml[/dim]
    """
    printer = Printer(as_json, quiet)
    found = agreement.read_terms(file, pinned_key(server_key))
    agreed = {name: value for name, value in asdict(found).items() if value}
    printer.table(str(file), ["what", "agreed"], list(agreed.items()))
    if sign is not None:
        printer.line(f"-> {agreement.sign_terms(file, load_key(sign))}")
    printer.json(agreed)
