"""Several files as people name them: one by one, by pattern, or by their folder."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from pathlib import Path

from robfcp.errors import RobfcpError

REPORTS = (".json",)
TABLES = (".csv", ".npz", ".parquet")
FIGURES = (".png", ".svg", ".pdf")


def expanded(paths: Iterable[Path], endings: Sequence[str]) -> list[Path]:
    """The files: a folder stands for those in it with such an ending, a pattern for its matches.

    Shells of Windows leave patterns as they are, so they are matched here.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += _in_folder(path, endings)
        elif glob.has_magic(str(path)) and not path.exists():
            matches = sorted(Path(name) for name in glob.glob(str(path)))
            if not matches:
                raise RobfcpError(f"{path}: matches no file; check the pattern")
            found += matches
        else:
            found.append(path)
    table = next((p for p in found if p.suffix.lower() in TABLES), None)
    if table is not None and not set(TABLES) & set(endings):
        raise RobfcpError(
            f"{table}: is a table, not a report; make one of it first: "
            f"robfcp sketch {table} --client NAME -o NAME.json"
        )
    return found


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
        raise RobfcpError(f"{folder}: holds no {' or '.join(endings)} file; check the folder")
    return files
