"""The command line: thin, one file a command, each loaded when it is called.

Nothing imports it. It may use every room, and it alone uses the test range.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from robfcp import __version__
from robfcp.errors import RobfcpError, plain
from robfcp.files import reason_of

COMMANDS = (
    "demo",
    "keygen",
    "terms",
    "sketch",
    "calibrate",
    "localise",
    "predict",
    "check",
    "monitor",
    "alarms",
    "page",
    "certify",
    "verify",
    "audit",
    "train",
    "reproduce",
    "simulate",
    "redteam",
    "bench",
)
OLD_NAMES = {"report": "page"}  # of version 0.1, for one release
STYLE: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class LazyCommands(TyperGroup):
    """A group whose commands are imported when asked for, so that `sketch` starts at once."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order people need them."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name; an old one says what it is called now."""
        name = OLD_NAMES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        if name != cmd_name:
            print(
                f"robfcp: the command {cmd_name} is now called {name}; "
                "the old name goes with the next release",
                file=sys.stderr,
            )
        return _command(name)


@cache
def _command(name: str) -> Any:
    """The command of this name, imported and built when it is first asked for."""
    single = typer.Typer(add_completion=False, **STYLE)
    import_module(f"robfcp.cli.{name}").register(single)
    command = get_command(single)
    command.name = name
    return command


app = typer.Typer(
    cls=LazyCommands,
    name="robfcp",
    help="Prediction sets for federated models when some of the sites are wrong, broken or lying.",
    no_args_is_help=True,
    **STYLE,
)


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


def _refused(error: OSError) -> str:
    """What the system would not let us do, in plain words."""
    what = "the system" if error.filename is None else plain(str(error.filename))
    return f"{what}: cannot be used ({reason_of(error)}); check it and your right to use it"


def _say_anything() -> None:
    """Names in letters that the terminal or pipe does not have are escaped, never an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main() -> None:
    """Run a command; exit 0 on success, 1 with one line on refused input, 2 on wrong usage."""
    _say_anything()
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
        elif isinstance(error, OSError):
            text = _refused(error)
        else:
            text = f"internal error ({type(error).__name__}); run with --debug to see where"
        print("robfcp: " + " ".join(text.split()), file=sys.stderr)
        sys.exit(1)
