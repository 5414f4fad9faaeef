"""Several files as people name them: one by one, by pattern, or by their folder."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from pathlib import Path

from robfcp.errors import RobfcpError

REPORTS = (".json",)
PACKED = (".columns",)  # many reports in one file: the server's own work, so never looked for
TABLES = (".csv", ".npz", ".parquet")
FIGURES = (".png", ".svg", ".pdf")


def expanded(paths: Iterable[Path], endings: Sequence[str]) -> list[Path]:
    """The files: a folder stands for those in it with such an ending, a pattern for its matches.

    Shells of Windows leave patterns as they are, so they are matched here. Packed files hold no
    signatures, so whoever can drop one into a folder of reports could add sites: they are taken
    only by their path or by a pattern with their ending.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += _in_folder(path, endings)
        elif glob.has_magic(str(path)) and not path.exists():
            found += _matching(path)
        else:
            found.append(path)
    table = next((p for p in found if p.suffix.lower() in TABLES), None)
    if table is not None and not set(TABLES) & set(endings):
        raise RobfcpError(
            f"{table}: is a table, not a report; make one of it first: "
            f"robfcp sketch {table} --client NAME -o NAME.json"
        )
    return found


def _matching(pattern: Path) -> list[Path]:
    """The files of a pattern; packed ones where it has their ending."""
    matches = sorted(Path(name) for name in glob.glob(str(pattern)))
    if not matches:
        raise RobfcpError(f"{pattern}: matches no file; check the pattern")
    named = pattern.suffix.lower() in PACKED
    kept = [one for one in matches if named or not _is_packed(one)]
    if not kept:
        raise RobfcpError(f"{pattern}: matches no report; {_left_alone(len(matches))}")
    return kept


def not_taken(paths: Iterable[Path]) -> list[str]:
    """A line for each folder or pattern with packed files, which `expanded` leaves alone."""
    lines = []
    for path in paths:
        number = _packed_beside(path)
        if number:
            lines.append(f"{path}: {_left_alone(number)}")
    return lines


def _packed_beside(path: Path) -> int:
    """How many packed files a folder or a pattern holds that does not name them."""
    if path.is_dir():
        return sum(_is_packed(one) for one in path.iterdir())
    if path.suffix.lower() in PACKED or path.exists() or not glob.has_magic(str(path)):
        return 0
    return sum(_is_packed(Path(name)) for name in glob.glob(str(path)))


def _is_packed(path: Path) -> bool:
    return path.suffix.lower() in PACKED and path.is_file()


def _left_alone(number: int) -> str:
    if number == 1:
        return "1 packed file was not taken; name it if it is yours"
    return f"{number} packed files were not taken; name them if they are yours"


def _in_folder(folder: Path, endings: Sequence[str]) -> list[Path]:
    """Its files with such an ending, hidden ones and evidence left out."""
    files = sorted(
        path
        for path in folder.iterdir()
        if path.is_file()
        and path.suffix.lower() in endings
        and not path.name.startswith(".")
        and not path.name.endswith(".evidence.json")
    )
    if not files:
        packed = _packed_beside(folder)
        remedy = _left_alone(packed) if packed and endings == REPORTS else "check the folder"
        raise RobfcpError(f"{folder}: holds no {' or '.join(endings)} file; {remedy}")
    return files
