"""Mistyped commands and options: what was probably meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

from robfcp._suggestions import suggest_names

# Words that other tools, and other spellings, use for a command or an option.
_OTHER_COMMANDS = {
    "alarms": ("merge-alarms",),
    "check": ("evaluate",),
    "conformalize": ("calibrate",),
    "lab": ("experiments",),
    "test": ("evaluate",),
}
_OTHER_OPTIONS = {
    "--anchor": ("--trusted-data",),
    "--clients": ("--n-clients",),
    "--confidence": ("--certificate-confidence", "--interval-confidence", "--coverage"),
    "--confidence-level": ("--coverage", "--certificate-confidence"),
    "--defence": ("--defense",),
    "--delta": ("--dp-delta",),
    "--epsilon": ("--dp-epsilon",),
    "--grid": ("--binning",),
    "--liars": ("--max-malicious", "--n-malicious"),
    "--neighbours": ("--neighbors",),
    "--normalise": ("--normalize",),
    "--promise": ("--guarantee",),
    "--seeds": ("--n-runs",),
}


def meant_command(name: str, known_names: Sequence[str]) -> str:
    """Return a question with the command that was probably meant; empty where none is close.

    Parameters
    ----------
    name : str
        As it was typed.
    known_names : sequence of str
        The commands.
    """
    matches = suggest_names(name, known_names, _OTHER_COMMANDS)
    return f" Did you mean {matches[0]}?" if matches else ""


def meant_option(name: str, known_names: Sequence[str]) -> str:
    """Return a question with the options that were probably meant; empty where none is close.

    Parameters
    ----------
    name : str
        As it was typed, with its dashes.
    known_names : sequence of str
        The options of the command.
    """
    matches = suggest_names(name, known_names, _OTHER_OPTIONS)
    return f" Did you mean {' or '.join(matches)}?" if matches else ""


class SuggestingCommand(TyperCommand):
    """A command that answers an unknown option with the one that was probably meant."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; refuse an unknown option with a suggestion.

        Parameters
        ----------
        ctx : Context
            That of the call.
        args : list of str
            What was typed after the command.
        """
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # The exception's class has another home in each version of typer.
            name = getattr(error, "option_name", None)
            if name is None or type(error).__name__ != "NoSuchOption":
                raise
            known_names = [name for parameter in self.params for name in parameter.opts]
            known_names += [name for parameter in self.params for name in parameter.secondary_opts]
            return ctx.fail(f"No such option: {name}.{meant_option(name, known_names)}")
