"""Prediction sets and intervals as files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from robfcp.calibration import Calibration
from robfcp.errors import RobfcpError
from robfcp.files import write_atomically

ENDINGS = (".csv", ".npy")
_OWN = ("id", "set", "size")
_FORMULA = "=+-@\t\r\uff1d\uff0b\uff0d\uff20"  # what spreadsheets compute, full-width ones too


NonEmpty = Annotated[
    bool, typer.Option("--non-empty", help="Put the likeliest label into empty sets.")
]


def filled_words(share: float) -> str:
    """What --non-empty did, and what that means for coverage."""
    if not share:
        return "No set was empty: --non-empty changed nothing."
    return (
        f"{share:.1%} of the sets were empty and hold their likeliest label now. Coverage can only "
        "have risen: its lower bound holds, its upper one no longer."
    )


def class_names(calibration: Calibration) -> tuple[str, ...]:
    """The names of a calibration's classes; none where it knows only their number."""
    return calibration.classes if isinstance(calibration.classes, tuple) else ()


def sets_as_csv(sets: NDArray[np.bool_], ids: Sequence[str], names: tuple[str, ...] = ()) -> str:
    """One line a sample: its id, its set in words, how many labels that are, and a column a class.

    Classes are called by name where the calibration knows them, by number where it does not.
    """
    shown = names or tuple(map(str, range(sets.shape[1])))
    heads = [f"class {name}" if name in _OWN else name for name in shown]
    lines = (
        [name, " | ".join(shown[c] for c in np.flatnonzero(row)), int(row.sum()), *map(int, row)]
        for name, row in zip(ids, sets, strict=True)
    )
    return _csv([*_OWN, *heads], lines)


def intervals_as_csv(ends: NDArray[np.float64], ids: Sequence[str]) -> str:
    """One line a sample: its id and the ends of its interval."""
    return _csv(
        ["id", "low", "high"],
        (
            [name, repr(low), repr(high)]
            for name, (low, high) in zip(ids, ends.tolist(), strict=True)
        ),
    )


def write_result(path: Path, result: NDArray[np.generic], text: str) -> None:
    """The sets or intervals as .csv or .npy, whole or not at all."""
    if path.suffix.lower() == ".csv":
        write_atomically(path, text)
    elif path.suffix.lower() == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, result, allow_pickle=False)
        write_atomically(path, buffer.getvalue())
    else:
        raise RobfcpError(f"{path}: cannot write {path.suffix or 'this'}; use .csv or .npy")


def _csv(header: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([_harmless(name) for name in header])
    writer.writerows([_harmless(cell) for cell in line] for line in lines)
    return buffer.getvalue()


def _harmless(cell: object) -> object:
    """The cell, with a mark before text that a spreadsheet would compute."""
    if not isinstance(cell, str) or not cell or cell[0] not in _FORMULA:
        return cell
    try:
        float(cell)
    except ValueError:
        return "'" + cell
    return cell
