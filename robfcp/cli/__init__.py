"""The command line: twelve commands and the test range's, each loaded when it is called.

Nothing imports it. It may use every room, and it alone uses the test range.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from inspect import Parameter, Signature, signature
from io import TextIOWrapper
from typing import Annotated, Any, ClassVar, get_type_hints

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from robfcp import __version__
from robfcp._files import os_error_reason
from robfcp.cli.console import cleanup_on_failure
from robfcp.errors import RobfcpError, printable

COMMANDS = {  # in the order people need them: the module and the function of each
    "demo": "demo:demo",
    "keygen": "client:keygen",
    "terms": "client:terms",
    "report": "client:report",
    "collect": "server:collect",
    "calibrate": "server:calibrate",
    "predict": "prediction:predict",
    "check": "monitoring:evaluate",
    "monitor": "monitoring:monitor",
    "alarms": "monitoring:merge_alarms",
    "show": "show:show",
    "verify": "server:verify",
}
EXPERIMENTS = {
    "train": "experiments:train",
    "reproduce": "experiments:reproduce",
    "simulate": "experiments:simulate",
    "redteam": "experiments:redteam",
    "rivals": "experiments:compare",
    "bench": "experiments:bench",
}
STYLE: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class LazyCommands(TyperGroup):
    """A group whose commands are imported when asked for, so that `report` starts at once."""

    modules: ClassVar[Mapping[str, str]] = {**COMMANDS, "lab": ""}

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order people need them."""
        return list(self.modules)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name."""
        return _command(cmd_name, self.modules[cmd_name]) if cmd_name in self.modules else None


class ExperimentCommands(LazyCommands):
    """The commands of the test range."""

    modules = EXPERIMENTS


@cache
def _command(name: str, home: str) -> Any:
    """The command of this name, imported and built when it is first asked for."""
    if not home:
        return get_group(test_range)
    module, _, function_name = home.partition(":")
    function = _with_options(getattr(import_module(f"robfcp.cli.{module}"), function_name))
    needs = any(one.default is one.empty for one in signature(function).parameters.values())
    single = typer.Typer(add_completion=False, **STYLE)
    single.command(name, no_args_is_help=needs)(function)
    return get_command(single)


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    """The command with a dataclass among its parameters taken apart: its fields are options, which
    several commands share, and arrive as one object."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    options = {kind: get_type_hints(kind, include_extras=True) for kind in groups.values()}
    parts: dict[str, list[str]] = {
        name: [f.name for f in fields(kind) if hasattr(options[kind][f.name], "__metadata__")]
        for name, kind in groups.items()
    }

    def command(**given: Any) -> None:
        whole = {n: groups[n](**{one: given.pop(one) for one in parts[n]}) for n in groups}
        with cleanup_on_failure():
            function(**given, **whole)

    own = [one for one in signature(function).parameters.values() if one.name not in groups]
    found = [one.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in own]
    for name, kind in groups.items():
        for one in parts[name]:
            default, hint = getattr(kind, one), options[kind][one]
            found.append(Parameter(one, Parameter.KEYWORD_ONLY, default=default, annotation=hint))
    command.__doc__, command.__annotations__ = function.__doc__, {}
    command.__signature__ = Signature(found)  # type: ignore[attr-defined]
    return command


test_range = typer.Typer(
    cls=ExperimentCommands,
    name="lab",
    help="The test range: train, reproduce the paper, simulate, attack and time.",
    no_args_is_help=True,
    **STYLE,
)
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


def main() -> None:
    """Run a command: exit 0 on success, 1 with one line on refused input, 2 on wrong usage, 3 where
    an alarm rings or coverage is too low."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # letters that a pipe does not have are escaped
            stream.reconfigure(errors="backslashreplace")
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
            what = "the system" if error.filename is None else printable(str(error.filename))
            why = os_error_reason(error)
            text = f"{what}: cannot be used ({why}); check it and your right to use it"
        else:
            text = f"internal error ({type(error).__name__}); run with --debug to see where"
        print("robfcp: " + " ".join(text.split()), file=sys.stderr)
        sys.exit(1)
