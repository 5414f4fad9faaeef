"""What all commands share: options, tables, JSON, bars, and places that can be written to."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from hashlib import sha256
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from threading import Timer
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import typer

from robfcp._files import prepare_output, write_atomically
from robfcp.errors import RobfcpError, printable

if TYPE_CHECKING:
    from robfcp.reports import terms


def option(
    help: str, *names: str, among: Iterable[str] = (), panel: str = "Basics", **more: Any
) -> Any:
    """Return an option of a command.

    Parameters
    ----------
    help : str
        What it says in the command's help.
    *names : str
        How it is typed; as the parameter is called unless stated.
    among : iterable of str
        The words it takes, which the help lists and the shell offers.
    panel : str
        The part of the help it stands in.
    **more : object
        What `typer.Option` takes besides.
    """
    choices = tuple(among)
    if not choices:
        return typer.Option(*names, help=help, rich_help_panel=panel, **more)

    def complete(incomplete: str) -> list[str]:
        """Return the choices that begin as what was typed."""
        return [choice for choice in choices if choice.startswith(incomplete)]

    help_with_choices = f"{help}: {', '.join(choices)}."
    return typer.Option(
        *names,
        help=help_with_choices,
        rich_help_panel=panel,
        autocompletion=complete,
        **more,
    )


round_option = partial(option, panel="Round and authentication")
privacy_option = partial(option, panel="Privacy")
advanced_option = partial(option, panel="Advanced")
Output = Annotated[Path | None, option("Write the result to this file.", "--output", "-o")]
Plot = Annotated[Path | None, advanced_option("Draw the result: .png, .svg or .pdf.", "--plot")]
Html = Annotated[Path | None, option("Write an HTML page.", "--html")]
Seed = Annotated[int, advanced_option("The same seed gives the same result.", "--seed", min=0)]
Sign = Annotated[
    Path | None, round_option("Sign with this private key of robfcp keygen.", "--sign")
]
Round = Annotated[
    str | None, round_option("Name of the round, the same at all clients.", "--round")
]
Model = Annotated[str | None, round_option("Name or digest of the shared model.", "--model")]
TermsFile = Annotated[Path | None, round_option("Terms of the round: round.toml.", "--terms")]
Keys = Annotated[
    Path | None, round_option("registry.toml of public keys; other reports are refused.", "--keys")
]
ServerKey = Annotated[
    str | None,
    round_option("Public key of the server; what it has not signed is refused.", "--server-key"),
]
PATIENCE_SECONDS = 2.0  # of work before a bar is shown
MAX_LISTED = 12
SEED_BYTES = 8  # of the digest that a seed is made of
_SIGNS_OF_NUMBERS = str.maketrans("", "", ".-%+")
_CREATED_FOLDERS: list[Path] = []  # by the command that runs, inner ones first


@contextmanager
def cleanup_on_failure() -> Iterator[None]:
    """Remove the empty folders that were made for the outputs of a command that fails."""
    _CREATED_FOLDERS.clear()
    try:
        yield
    except BaseException:
        for folder in _CREATED_FOLDERS:
            with suppress(OSError):
                folder.rmdir()
        raise


def prepare_outputs(
    *paths: Path | None, endings: Sequence[str] = (), inputs: Sequence[Path] = ()
) -> None:
    """Make the folders of all outputs before the work starts, or refuse them.

    Parameters
    ----------
    *paths : Path or None
        The outputs: "any" in a folder stands for all that is written there; None for nothing.
    endings : sequence of str
        The suffixes that a file may have; any if empty.
    inputs : sequence of Path
        What no output may replace.
    """
    protected = {path.resolve() for path in inputs}
    protected |= {path.parent / "any" for path in protected}
    for path in paths:
        if path is None:
            continue
        if path.resolve() in protected:
            name = path.parent if path.name == "any" else path
            raise RobfcpError(f"{name}: would replace the inputs; choose another place")
        if endings and path.suffix.lower() not in endings:
            raise RobfcpError(
                f"{path}: cannot write {path.suffix or 'this'}; use {_alternatives(endings)}"
            )
        _CREATED_FOLDERS.extend(folder for folder in path.parents if not folder.exists())
        prepare_output(path)


def _alternatives(choices: Sequence[str]) -> str:
    """Return choices in words: a, b or c."""
    *first_choices, last_choice = choices
    if not first_choices:
        return last_choice
    return f"{', '.join(first_choices)} or {last_choice}"


def derive_seed(seed: int, *purpose: str) -> int:
    """Return a seed for one purpose: another one at another site or for another task."""
    digest = sha256("\0".join([str(seed), *purpose]).encode()).digest()
    return int.from_bytes(digest[:SEED_BYTES], "big")


def load_terms(path: Path | None, key: str | None, **options: Any) -> terms.RoundTerms:
    """Return the terms of --terms, joined with the other options of the call.

    Parameters
    ----------
    path : Path or None
        The file of terms.
    key : str or None
        The server's public key, by which they must be signed.
    **options : object
        Terms by name; None for what is not stated.
    """
    from robfcp.reports import terms

    if path is None:
        return terms.RoundTerms().with_options(**options)
    return terms.read_terms(path, parse_public_key(key)).with_options(**options)


def load_private_key(path: Path | None) -> Any:
    """Return the private key that --sign names; None for no signature."""
    if path is None:
        return None
    from robfcp.reports import signing

    return signing.load_key(path)


def parse_public_key(text: str | None) -> str | None:
    """Return the public key that --server-key names."""
    if text is None:
        return None
    from robfcp.reports import signing

    return signing.read_public_key(text)


@dataclass(frozen=True)
class Printer:
    """Sends a command's result to people or to programs, as asked."""

    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False

    @property
    def is_for_people(self) -> bool:
        """Whether tables and lines are printed."""
        return not (self.quiet or self.as_json)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table whose numbers are aligned and whose cells are plain text."""
        if not self.is_for_people:
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        lines = [_row_texts(row) for row in rows]
        table = Table(
            title=Text(printable(title), "bold"), title_justify="left", header_style="bold"
        )
        for index, column in enumerate(columns):
            are_numbers = bool(lines) and all(_is_number(line[index]) for line in lines)
            table.add_column(
                Text(column), justify="right" if are_numbers else "left", overflow="fold"
            )
        for line in lines:
            table.add_row(*(Text(cell) for cell in line))
        Console(highlight=False).print(table)

    def line(self, text: str) -> None:
        """Print text, broken at blanks; control characters in names are not interpreted."""
        if not text or not self.is_for_people:
            return
        width = get_terminal_size((80, 24)).columns
        for paragraph in text.split("\n"):
            plain_text = printable(paragraph, None)
            comment_mark = "# " if plain_text.startswith("# ") else ""
            print(
                fill(
                    plain_text,
                    width,
                    subsequent_indent=comment_mark,  # every line of a comment is one
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )

    def list(self, label: str, lines: Sequence[str]) -> None:
        """Print a line each under one label, and how many more there are."""
        for line in lines[:MAX_LISTED]:
            self.line(f"{label}  {line}")
        if len(lines) > MAX_LISTED:
            self.line(f"{label}  ... and {len(lines) - MAX_LISTED} more; --json has them all")

    def wrote(self, *paths: Path | None) -> None:
        """Print where results went."""
        for path in paths:
            if path is not None:
                self.line(f"-> {path}")

    def json(self, value: Any) -> None:
        """Print the result for programs."""
        if self.as_json and not self.quiet:
            print(json_text(value))

    @contextmanager
    def busy(self, text: str, total: int | None = None) -> Iterator[Callable[..., None]]:
        """Show a bar on stderr during work of more than two seconds.

        Yields a function by which the work says how far it is: `advance`, `total`, `completed`.
        """
        if self.quiet or not sys.stderr.isatty():
            yield lambda **_: None
            return
        from rich.console import Console
        from rich.progress import Progress

        bar = Progress(console=Console(stderr=True), transient=True)
        task = bar.add_task(text, total=total)
        timer = Timer(PATIENCE_SECONDS, bar.start)
        timer.start()
        try:
            yield partial(bar.update, task)
        finally:
            timer.cancel()
            timer.join()
            bar.stop()


def json_text(value: Any) -> str:
    """Return indented JSON with infinities as null, so that every parser reads it."""
    encoded = msgspec.json.encode(value, enc_hook=_as_builtin)
    return json.dumps(msgspec.json.decode(encoded), indent=2)


def save_json(path: Path | None, value: Any) -> None:
    """Write JSON whole or not at all, where a file is named."""
    if path is not None:
        write_atomically(path, json_text(value) + "\n")


def _as_builtin(value: Any) -> Any:
    """Return what JSON has for an object that msgspec does not know."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Fraction):
        return float(value)
    return str(value)


def _is_number(cell: str) -> bool:
    """Whether a cell of a table is a number, with or without a sign or a percent sign."""
    return cell.translate(_SIGNS_OF_NUMBERS).isdigit()


def _row_texts(row: Sequence[object]) -> list[str]:
    """Return the values of a row as a table shows them."""
    return [_cell_text(value) for value in row]


def _cell_text(value: object) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return "none"
    if not isinstance(value, (float, np.floating)):
        return printable(str(value), None)
    if np.isfinite(value):
        return f"{value:.4g}"
    return "infinite" if value > 0 else "-"
