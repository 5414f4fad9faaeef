"""What all commands share: options, tables, JSON, and one line for every user error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from threading import Timer
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer

from robfcp.cli._paths import FIGURES
from robfcp.errors import RobfcpError, plain
from robfcp.files import prepare_output, write_atomically

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from robfcp.report import agreement

Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON only.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the result to this file.")
]
LocalOption = Annotated[
    Path | None,
    typer.Option("--local", help="The site's calibration outputs: its own threshold is meant."),
]
EvidenceOption = Annotated[
    Path | None,
    typer.Option("--evidence", help="The calibration's evidence file, if not beside it."),
]
TermsFile = Annotated[
    Path | None, typer.Option("--terms", help="What was agreed for the round: round.toml.")
]
Keys = Annotated[
    Path | None, typer.Option(help="registry.toml of public keys; unsigned ones are refused.")
]
Revoked = Annotated[Path | None, typer.Option(help="Public keys that count no more, one a line.")]
AgreedGrid = Annotated[
    str | None, typer.Option(help="Refuse reports on another grid, as sketch --grid names it.")
]
ServerKey = Annotated[
    str | None,
    typer.Option(
        "--server-key",
        help="The server's public key (ed25519:..., or its file): refuse what it has not signed.",
    ),
]
LevelOption = Annotated[
    str | None,
    typer.Option(
        "--level", help="Which of the calibration's levels: 0.95, say; the first if none."
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same result.")]
PATIENCE_SECONDS = 2.0


def prepare(*paths: Path | None, endings: Sequence[str] = ()) -> None:
    """Make the folders of all outputs before the work starts, or refuse them."""
    for path in paths:
        if path is None:
            continue
        if endings and path.suffix.lower() not in endings:
            known = " or ".join([", ".join(endings[:-1]), endings[-1]] if endings[1:] else endings)
            raise RobfcpError(f"{path}: cannot write {path.suffix or 'this'}; use {known}")
        prepare_output(path)


def prepare_figure(path: Path | None) -> None:
    """As `prepare` for a figure; without matplotlib it is refused now, not after the work."""
    if path is not None:
        from robfcp.figures import style

        prepare(path, endings=FIGURES)
        with style():
            pass


def stream(seed: int, *words: str) -> np.random.Generator:
    """Random numbers of one use: the same seed gives others at another site or for another task."""
    return np.random.default_rng(seed_of(seed, *words))


def seed_of(seed: int, *words: str) -> int:
    """A seed for one use, where numbers must be drawn twice alike."""
    digest = sha256("\0".join([str(seed), *words]).encode()).digest()
    return int.from_bytes(digest[:8], "big")


def level_place(levels: Sequence[Fraction], text: str | None) -> int:
    """The place of a confidence level: by its value, or by its number from 0."""
    if text is None:
        return 0
    number = natural(text)
    if number is not None and number < len(levels):
        return number
    try:
        wanted = Fraction(text)
    except (ValueError, ZeroDivisionError):
        wanted = Fraction(-1)
    if wanted not in levels:
        known = ", ".join(f"{float(level):g}" for level in levels)
        raise RobfcpError(
            f"--level: {text!r} is none of the calibration's levels {known}; take one of them, or "
            "calibrate with --confidence"
        )
    return list(levels).index(wanted)


def completes(*words: str) -> Callable[[str], list[str]]:
    """What the shell offers for an option that takes one of these words."""

    def offered(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return offered


def agreed_terms(path: Path | None, key: str | None, **options: Any) -> agreement.Terms:
    """The terms of --terms, joined with what the call states besides."""
    from robfcp.report import agreement

    found = agreement.Terms() if path is None else agreement.read_terms(path, pinned_key(key))
    return found.joined(**options)


def pinned_key(text: str | None) -> str | None:
    """The public key that --server-key names."""
    if text is None:
        return None
    from robfcp.report import signing

    return signing.read_public_key(text)


class Printer:
    """Sends a command's result to people or to programs, as asked."""

    def __init__(self, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json, self.quiet = as_json, quiet

    @cached_property
    def console(self) -> Console:
        """Where tables and sentences go; rich is loaded when the first one does."""
        from rich.console import Console

        return Console(quiet=self.quiet or self.as_json, highlight=False)

    @cached_property
    def errors(self) -> Console:
        """Where progress bars go."""
        from rich.console import Console

        return Console(stderr=True, highlight=False)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A table whose numbers are aligned and whose cells are plain text."""
        if self.quiet or self.as_json:
            return
        from rich.markup import escape
        from rich.table import Table

        lines = [[_cell(value) for value in row] for row in rows]
        laid = _laid_out(columns, lines, self.console.width)
        if laid is None:
            self._records(title, columns, lines)
            return
        columns, lines, gap = laid
        table = Table(
            title=escape(plain(title)),
            title_justify="left",
            title_style="bold",
            header_style="bold",
            padding=(0, gap),
        )
        room = self.console.width - (2 * gap + 1) * len(columns) - 1
        widths = _widths(columns, lines, room)
        for number, (column, width) in enumerate(zip(columns, widths, strict=True)):
            right = bool(lines) and all(_numeric(line[number]) for line in lines)
            justify: Literal["left", "right"] = "right" if right else "left"
            table.add_column(column, justify=justify, overflow="fold", width=width)
        for line in lines:
            table.add_row(*line)
        self.console.print(table)

    def _records(self, title: str, columns: Sequence[str], lines: list[list[str]]) -> None:
        """Where no table fits: a paragraph a row, each cell with its column's name."""
        self.line(title, style="bold")
        for row in lines:
            pairs = zip(columns, row, strict=True)
            self.line("; ".join(f"{name} {cell}".strip() for name, cell in pairs if cell))

    def line(self, text: str, style: str | None = None) -> None:
        """Text for people; markup and control characters in names are not interpreted."""
        if self.quiet or self.as_json:
            return
        lines = [plain(part, None) for part in text.split("\n")]
        if sys.stdout.isatty() or style is not None:
            self.console.print("\n".join(lines), style=style, markup=False, soft_wrap=False)
        else:
            print("\n".join(_wrapped(line) for line in lines))

    def json(self, value: Any) -> None:
        """The result for programs."""
        if self.as_json and not self.quiet:
            print(json_text(value))

    def progress(self) -> Progress:
        """A bar on stderr, gone when it is done, absent when nobody looks."""
        from rich.progress import (
            BarColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.errors,
            transient=True,
            disable=self.quiet or not sys.stderr.isatty(),
        )

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """A moving bar on stderr for work that takes more than two seconds."""
        if self.quiet or not sys.stderr.isatty():
            yield
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=self.errors,
            transient=True,
        )
        bar.add_task(text, total=None)
        timer = Timer(PATIENCE_SECONDS, bar.start)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            bar.stop()


def _laid_out(
    columns: Sequence[str], lines: list[list[str]], width: int
) -> tuple[Sequence[str], list[list[str]], int] | None:
    """The table as it stands or on its side, with blanks beside its lines or without: the first
    that breaks no word; None where all would."""
    ways: list[tuple[Sequence[str], list[list[str]]]] = [(columns, lines)]
    if lines:
        head, *rest = [list(row) for row in zip(columns, *lines, strict=True)]
        ways.append((head, rest))
    for gap in (1, 0):
        for heads, rows in ways:
            words = _longest_words(heads, rows)
            if sum(words) + (2 * gap + 1) * len(words) + 1 <= width:
                return heads, rows, gap
    return None


def _widths(columns: Sequence[str], lines: Sequence[Sequence[str]], room: int) -> list[int]:
    """Each column as wide as its longest word; what is left goes to those that lack least."""
    widths = _longest_words(columns, lines)
    wanted = [max(map(len, column)) for column in zip(columns, *lines, strict=True)]
    room -= sum(widths)
    for place in sorted(range(len(widths)), key=lambda k: wanted[k] - widths[k]):
        more = min(room, wanted[place] - widths[place])
        widths[place] += more
        room -= more
    return widths


def _longest_words(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> list[int]:
    """The longest word of each column, which it must be wide enough for."""
    return [
        max(len(word) for cell in column for word in (cell.split() or [""]))
        for column in zip(columns, *lines, strict=True)
    ]


def _wrapped(line: str) -> str:
    """The line broken at blanks to the width of the terminal, as rich would."""
    width = get_terminal_size((80, 24)).columns
    return fill(line, width, break_long_words=False, break_on_hyphens=False) if line else line


def natural(text: str) -> int | None:
    """The whole number a text spells in plain digits; None where it spells none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def json_text(value: Any) -> str:
    """Indented JSON with infinities as null, so that every parser reads it."""
    return json.dumps(_plain(value), indent=2, allow_nan=False)


def save_json(path: Path, value: Any) -> None:
    """Write JSON whole or not at all."""
    write_atomically(path, json_text(value) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def _cell(value: object) -> str:
    if isinstance(value, (float, np.floating)):
        return f"{value:.4g}" if np.isfinite(value) else "infinite" if value > 0 else "-"
    from rich.markup import escape

    text = "none" if value is None else plain(str(value), None)
    return escape(text)


def _numeric(text: str) -> bool:
    return text.replace(".", "").replace("-", "").replace("%", "").replace("+", "").isdigit()
