"""Tables of text read column by column, with missing values as the official files write them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError
from robfcp.lab.datasets.files import Source

MISSING = frozenset({"", "?", "nan", "na"})
Columns = dict[str, list[str]]


def read_columns(path: Path, source: Source, needed: Sequence[str]) -> Columns:
    """The needed columns of a CSV file with a header line, as text without blanks around it."""
    with path.open(newline="", encoding="latin-1") as stream:
        reader = csv.reader(stream)
        header = [name.strip().removeprefix("ï»¿").strip('"') for name in next(reader, [])]
        rows = [row for row in reader if row]
    missing = [name for name in needed if name not in header]
    if missing:
        raise RobfcpError(
            f"{source.name}: {path} has no column {missing[0]}; get the table from {source.home}"
        )
    if not rows:
        raise RobfcpError(f"{source.name}: {path} holds no rows; get it from {source.home}")
    ragged = next((k for k, row in enumerate(rows, 2) if len(row) != len(header)), None)
    if ragged is not None:
        raise RobfcpError(
            f"{source.name}: {path} line {ragged} has {len(rows[ragged - 2])} of {len(header)} "
            f"values; get the table from {source.home}"
        )
    return {name: [row[header.index(name)].strip() for row in rows] for name in needed}


def numbers(values: Sequence[str], field: str, source: Source) -> NDArray[np.float32]:
    """(n,) the values as float32; NaN where one is missing."""
    found = np.full(len(values), np.nan, np.float32)
    for k, value in enumerate(values):
        if value.lower() in MISSING:
            continue
        try:
            found[k] = float(value)
        except ValueError:
            raise RobfcpError(
                f"{source.name}: {field} holds {value!r:.40}, which is no number; "
                f"get the table from {source.home}"
            ) from None
    return found


def flags(
    values: Sequence[str], field: str, source: Source, yes: str = "Y", no: str = "N"
) -> NDArray[np.float32]:
    """(n,) 1 for yes, 0 for no, NaN where missing or "C" (could not be told)."""
    known = {yes: 1.0, no: 0.0, "C": np.nan}
    wrong = next((v for v in values if v.upper() not in known and v.lower() not in MISSING), None)
    if wrong is not None:
        raise RobfcpError(
            f"{source.name}: {field} holds {wrong!r}, not {yes} or {no}; "
            f"get the table from {source.home}"
        )
    return np.array([known.get(value.upper(), np.nan) for value in values], np.float32)


def members(values: Sequence[str], word: str) -> NDArray[np.float32]:
    """(n,) 1 where the value is the word, else 0."""
    return np.array([value.upper() == word for value in values], np.float32)
