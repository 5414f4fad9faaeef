"""The command line: thin, one file a command."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from robfcp._version import __version__
from robfcp.errors import RobfcpError

app = typer.Typer(
    name="robfcp",
    help="Prediction sets for federated models when some of the sites are wrong, broken or lying.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS = (
    "demo",
    "keygen",
    "sketch",
    "calibrate",
    "predict",
    "report",
    "certify",
    "train",
    "reproduce",
    "simulate",
    "redteam",
    "bench",
)
for _name in COMMANDS:
    import_module(f"robfcp.cli.{_name}").register(app)


def _version(asked: bool) -> None:
    if asked:
        print(f"robfcp {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    if debug:
        os.environ["ROBFCP_DEBUG"] = "1"


def main() -> None:
    """Run a command; exit 0 on success, 1 with one line on refused input, 2 on wrong usage."""
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get("ROBFCP_DEBUG"):
            raise
        if isinstance(error, RobfcpError):
            text = str(error)
        else:
            text = (
                f"internal error ({type(error).__name__}: {error}); run with --debug to see where"
            )
        print("robfcp: " + " ".join(text.split()), file=sys.stderr)
        sys.exit(1)
