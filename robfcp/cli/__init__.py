"""The command line: twelve commands and those of `experiments`, each loaded when it is called.

Nothing imports it. It may use every package, and it alone uses the experiments.
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
from robfcp.cli._suggestions import SuggestingCommand, meant_command
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
    "evaluate": "monitoring:evaluate",
    "monitor": "monitoring:monitor",
    "merge-alarms": "monitoring:merge_alarms",
    "show": "show:show",
    "verify": "server:verify",
}
EXPERIMENTS = {
    "train": "experiments:train",
    "reproduce": "experiments:reproduce",
    "simulate": "experiments:simulate",
    "redteam": "experiments:redteam",
    "compare": "experiments:compare",
    "bench": "experiments:bench",
}
STYLE: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class LazyCommands(TyperGroup):
    """A group whose commands are imported when asked for, so that `report` starts at once."""

    modules: ClassVar[Mapping[str, str]] = {**COMMANDS, "experiments": ""}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, in the order people need them."""
        return list(self.modules)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that was typed and its arguments; refuse an unknown one."""
        name = args[0]
        if name not in self.modules and not name.startswith("-"):
            ctx.fail(f"No such command: {name}.{meant_command(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name; None without one."""
        if cmd_name not in self.modules:
            return None
        return _command(cmd_name, self.modules[cmd_name])


class ExperimentCommands(LazyCommands):
    """The commands of experiments."""

    modules = EXPERIMENTS


@cache
def _command(name: str, function_path: str) -> Any:
    """Return the command of a name, imported and built when it is first asked for.

    Parameters
    ----------
    name : str
        As it is typed.
    function_path : str
        Its module and function; empty for the group of experiments.
    """
    if not function_path:
        return get_group(experiments_app)
    module_name, _, function_name = function_path.partition(":")
    module = import_module(f"robfcp.cli.{module_name}")
    function = _with_options(getattr(module, function_name))
    parameters = signature(function).parameters.values()
    has_required_parameters = any(parameter.default is Parameter.empty for parameter in parameters)
    single = typer.Typer(add_completion=False, **STYLE)
    single.command(name, cls=SuggestingCommand, no_args_is_help=has_required_parameters)(function)
    return get_command(single)


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose groups of options are taken apart.

    A parameter that is a dataclass stands for options that several commands share, or that belong
    together: each of its fields is an option, and they arrive as one object.
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    options_by_group = {name: _options_of(group) for name, group in groups.items()}

    def command(**arguments: Any) -> None:
        objects = {}
        for name, group in groups.items():
            fields_of_group = {}
            for option in options_by_group[name]:
                fields_of_group[option.name] = arguments.pop(option.name)
            objects[name] = group(**fields_of_group)
        with cleanup_on_failure():
            function(**arguments, **objects)

    parameters = []
    for parameter in signature(function).parameters.values():
        if parameter.name not in groups:
            hint = hints[parameter.name]
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hint))
    for options in options_by_group.values():
        parameters += options
    command.__doc__ = function.__doc__
    command.__annotations__ = {}
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return command


def _options_of(group: Any) -> list[Parameter]:
    """Return an option for each annotated field of a dataclass; the other fields are none."""
    hints = get_type_hints(group, include_extras=True)
    options = []
    for field in fields(group):
        hint = hints[field.name]
        if hasattr(hint, "__metadata__"):
            default = getattr(group, field.name)
            options.append(
                Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
            )
    return options


experiments_app = typer.Typer(
    cls=ExperimentCommands,
    name="experiments",
    help="Train models, reproduce the paper, simulate attacks, compare methods, measure time.",
    no_args_is_help=True,
    **STYLE,
)
app = typer.Typer(
    cls=LazyCommands,
    name="robfcp",
    help="Byzantine-robust federated conformal prediction: prediction sets that keep their "
    "coverage although some clients send wrong or malicious calibration data.",
    no_args_is_help=True,
    **STYLE,
)


def _print_version(is_asked_for: bool) -> None:
    """Print the version and stop, where it is asked for."""
    if is_asked_for:
        print(f"robfcp {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    if debug:
        os.environ["ROBFCP_DEBUG"] = "1"


def main() -> None:
    """Run a command: exit 0 on success, 1 with one line on refused input, 2 on wrong usage, 3 where
    an alarm is raised or coverage is too low."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # characters that a pipe cannot encode are escaped
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get("ROBFCP_DEBUG"):
            raise
        message = _error_message(error)
        print("robfcp: " + " ".join(message.split()), file=sys.stderr)
        sys.exit(1)


def _error_message(error: Exception) -> str:
    """Return what to say of an error that ended a command."""
    if isinstance(error, RobfcpError):
        return str(error)
    if isinstance(error, OSError):
        source = "the system" if error.filename is None else printable(str(error.filename))
        reason = os_error_reason(error)
        return f"{source}: cannot be used ({reason}); check it and your right to use it"
    return f"internal error ({type(error).__name__}); run with --debug to see where"
