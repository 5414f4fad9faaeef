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
    """An option, its help first; its name is the parameter's unless it is stated.

    among: the words it takes, which the help lists and the shell offers.
    """
    words = tuple(among)
    if words:
        help = f"{help}: {', '.join(words)}."
        more["autocompletion"] = lambda incomplete: [w for w in words if w.startswith(incomplete)]
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


round_option = partial(option, panel="Agreement")
privacy_option = partial(option, panel="Privacy")
advanced_option = partial(option, panel="Expert")
Output = Annotated[Path | None, option("Write the result to this file.", "--output", "-o")]
Plot = Annotated[Path | None, advanced_option("Draw it: .png, .svg, .pdf.", "--plot")]
Html = Annotated[Path | None, option("Write a page to look at.", "--html")]
Seed = Annotated[int, advanced_option("The same seed gives the same result.", "--seed", min=0)]
Sign = Annotated[Path | None, round_option("Sign it with this key of robfcp keygen.", "--sign")]
Round = Annotated[str | None, round_option("The round's name, the same at all sites.", "--round")]
Model = Annotated[str | None, round_option("The shared model's name or digest.", "--model")]
TermsFile = Annotated[
    Path | None, round_option("What was agreed for the round: round.toml.", "--terms")
]
Keys = Annotated[
    Path | None, round_option("registry.toml of public keys: refuse others.", "--keys")
]
ServerKey = Annotated[
    str | None, round_option("Refuse what this key has not signed.", "--server-key")
]
PATIENCE_SECONDS = 2.0
MAX_LISTED = 12
_MARKS = str.maketrans("", "", ".-%+")  # in numbers
_CREATED_FOLDERS: list[Path] = []  # folders, inner ones first


@contextmanager
def cleanup_on_failure() -> Iterator[None]:
    """Takes the empty folders away that were made for the outputs of a command that fails."""
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

    No output may replace an input: "any" in a folder stands for all that is written there.
    """
    taken = {one.resolve() for one in inputs}
    taken |= {one.parent / "any" for one in taken}
    for path in paths:
        if path is None:
            continue
        if path.resolve() in taken:
            name = path.parent if path.name == "any" else path
            raise RobfcpError(f"{name}: would replace the inputs; choose another place")
        if endings and path.suffix.lower() not in endings:
            known = " or ".join([", ".join(endings[:-1]), endings[-1]] if endings[1:] else endings)
            raise RobfcpError(f"{path}: cannot write {path.suffix or 'this'}; use {known}")
        _CREATED_FOLDERS.extend(folder for folder in path.parents if not folder.exists())
        prepare_output(path)


def derive_seed(seed: int, *words: str) -> int:
    """A seed for one use: the same seed gives others at another site or for another task."""
    digest = sha256("\0".join([str(seed), *words]).encode()).digest()
    return int.from_bytes(digest[:8], "big")


def load_terms(path: Path | None, key: str | None, **options: Any) -> terms.RoundTerms:
    """The terms of --terms, joined with what the call states besides."""
    from robfcp.reports import terms

    found = terms.RoundTerms() if path is None else terms.read_terms(path, parse_public_key(key))
    return found.with_options(**options)


def parse_public_key(text: str | None) -> str | None:
    """The public key that --server-key names."""
    if text is None:
        return None
    from robfcp.reports import signing

    return signing.read_public_key(text)


@dataclass(frozen=True)
class Printer:
    """Sends a command's result to people or to programs, as asked."""

    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A table whose numbers are aligned and whose cells are plain text."""
        if self.quiet or self.as_json:
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        lines = [[_cell(value) for value in row] for row in rows]
        table = Table(
            title=Text(printable(title), "bold"), title_justify="left", header_style="bold"
        )
        for number, column in enumerate(columns):
            right = bool(lines) and all(line[number].translate(_MARKS).isdigit() for line in lines)
            table.add_column(Text(column), justify="right" if right else "left", overflow="fold")
        for line in lines:
            table.add_row(*map(Text, line))
        Console(highlight=False).print(table)

    def line(self, text: str) -> None:
        """Text for people, broken at blanks; control characters in names are not interpreted."""
        if text and not (self.quiet or self.as_json):
            width = get_terminal_size((80, 24)).columns
            for part in text.split("\n"):
                words = printable(part, None)
                mark = "# " if words.startswith("# ") else ""  # every line of a comment is one
                kept = {"break_long_words": False, "break_on_hyphens": False}
                print(fill(words, width, subsequent_indent=mark, **kept))  # type: ignore[arg-type]

    def list(self, word: str, lines: Sequence[str]) -> None:
        """A line each under one word, and how many more there are."""
        for line in lines[:MAX_LISTED]:
            self.line(f"{word}  {line}")
        if len(lines) > MAX_LISTED:
            self.line(f"{word}  ... and {len(lines) - MAX_LISTED} more; --json has them all")

    def wrote(self, *paths: Path | None) -> None:
        """Where results went."""
        for path in paths:
            if path is not None:
                self.line(f"-> {path}")

    def json(self, value: Any) -> None:
        """The result for programs."""
        if self.as_json and not self.quiet:
            print(json_text(value))

    @contextmanager
    def busy(self, text: str, total: int | None = None) -> Iterator[Callable[..., None]]:
        """A bar on stderr for work of more than two seconds, told how far it is; gone when done."""
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
    """Indented JSON with infinities as null, so that every parser reads it."""
    encoded = msgspec.json.encode(value, enc_hook=_builtin)
    return json.dumps(msgspec.json.decode(encoded), indent=2)


def save_json(path: Path | None, value: Any) -> None:
    """Write JSON whole or not at all, where a file is named."""
    if path is not None:
        write_atomically(path, json_text(value) + "\n")


def _builtin(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return float(value) if isinstance(value, Fraction) else str(value)


def _cell(value: object) -> str:
    if isinstance(value, (float, np.floating)):
        return f"{value:.4g}" if np.isfinite(value) else "infinite" if value > 0 else "-"
    return "none" if value is None else printable(str(value), None)
