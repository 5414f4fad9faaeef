"""`robfcp keygen`: a site's key pair for signed reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from robfcp.arguments import check_client
from robfcp.cli._common import Json, Printer, Quiet, prepare


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("keygen", no_args_is_help=True)(keygen)


def keygen(
    client: Annotated[str, typer.Argument(help="This site's registered name.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the private key goes.")
    ] = Path("robfcp.key"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a private key for this site and print the lines the server's registry needs.

    [dim]Example: robfcp keygen site-3 -o site-3.key[/dim]
    [dim]Example: robfcp keygen server -o server.key[/dim]
    """
    from robfcp.report import generate_key

    check_client(client)
    prepare(output)
    public = generate_key(output)
    printer = Printer(as_json, quiet)
    printer.line(f"# Private key -> {output} (keep it here). For the server's registry.toml:\n")
    printer.line(f"[{json.dumps(client)}]\nkey = {json.dumps(public)}")
    printer.json({"client": client, "key": public, "private_key": str(output)})
