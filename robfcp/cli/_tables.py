"""Tables as spreadsheets write them: CSV of any habit, and parquet. Numbers are read when used."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.errors import RobfcpError

MAX_TABLE_BYTES = 2**33
_BOMS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_MISSING = ("", "na", "n/a", "nan", "null", "none", "#n/a", "-")


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns, as text or as numbers, and the row each record has in a spreadsheet."""

    names: tuple[str, ...]
    columns: tuple[Sequence[str] | NDArray[Any], ...]
    rows: Sequence[int]
    decimal_comma: bool = False
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, name: str) -> int | None:
        """The place of the column of this name, exact or but for capitals."""
        if name in self.names:
            return self.names.index(name)
        alike = [k for k, own in enumerate(self.names) if own.lower() == name.lower()]
        return alike[0] if len(alike) == 1 else None

    def text(self, place: int) -> NDArray[np.str_]:
        """A column as text without blanks around it."""
        column = self.columns[place]
        return np.array([str(cell).strip() for cell in column], dtype=str)

    def is_text(self, place: int) -> bool:
        """Whether a column holds something that is neither a number nor missing."""
        column = self.columns[place]
        if isinstance(column, np.ndarray):
            return column.dtype.kind not in "fiub"
        try:
            self._floats(column)
        except ValueError:
            return any(self._text_cell(cell) for cell in column)
        return False

    def numbers(self, place: int, *, lenient: bool = False) -> NDArray[np.float64]:
        """A column as numbers; a cell that is none is refused by its place, or is NaN."""
        column = self.columns[place]
        if isinstance(column, np.ndarray):
            return column.astype(np.float64)
        try:
            return self._floats(column)
        except ValueError:
            pass
        found = np.full(len(column), np.nan)
        for k, cell in enumerate(column):
            try:
                found[k] = float(self._point(cell))
            except ValueError:
                if not lenient:
                    raise RobfcpError(self.no_number(k, place)) from None
        return found

    def cell(self, row: int, place: int) -> str:
        """What a spreadsheet calls the place of a cell."""
        return f"row {self.rows[row]}, column {letters(place)} ({self.names[place]:.40})"

    def _floats(self, column: Sequence[str]) -> NDArray[np.float64]:
        cells = [self._point(cell) for cell in column] if self.decimal_comma else column
        return np.array(cells, dtype=np.float64)

    def _point(self, cell: str) -> str:
        return cell.replace(",", ".") if self.decimal_comma and "." not in cell else cell

    def _text_cell(self, cell: str) -> bool:
        if cell.strip().lower() in _MISSING:
            return False
        try:
            float(self._point(cell))
        except ValueError:
            return True
        return False

    def is_text_cell(self, row: int, place: int) -> bool:
        """Whether a cell is neither a number nor missing."""
        return self._text_cell(str(self.columns[place][row]))

    def no_number(self, row: int, place: int) -> str:
        """What to say of a cell that is no number."""
        cell = str(self.columns[place][row]).strip()
        if cell.lower() in _MISSING:
            return f"{self.cell(row, place)}: is missing; fill it in or drop the row"
        remedy = "write a number with a point"
        if "," in cell and not self.decimal_comma:
            remedy = "write decimals with a point, or put semicolons between columns"
        return f"{self.cell(row, place)}: {cell!r:.40} is no number; {remedy}"


def letters(place: int) -> str:
    """How a spreadsheet calls the column at this place, counted from 0: A, B, ... Z, AA."""
    text = ""
    place += 1
    while place:
        place, rest = divmod(place - 1, 26)
        text = chr(ord("A") + rest) + text
    return text


def read_csv(path: Path) -> Table:
    """The table in a CSV file: commas, semicolons or tabs; decimal points or commas; any BOM."""
    text, notes = _decoded(path)
    first, _, rest = text.partition("\n")
    separator = None
    if first.strip().lower().startswith("sep=") and len(first.strip()) <= 5:  # Excel's own hint
        separator, text = first.strip()[4:] or None, rest
    separator = separator or _separator(text.partition("\n")[0])
    try:
        records = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    except csv.Error:
        raise RobfcpError(
            f"{path}: a cell is too long or its quotes do not end; write the table again"
        ) from None
    if not records or not any(cell.strip() for cell in records[0]):
        raise RobfcpError(f"{path}: row 1 is empty; write the columns' names there")
    names = tuple(name.strip() for name in records[0])
    _check_names(path, names)
    rows = [k for k, record in enumerate(records) if k and any(cell.strip() for cell in record)]
    if not rows:
        raise RobfcpError(f"{path}: holds names and no samples; write one row a sample")
    for k in rows:
        if len(records[k]) != len(names):
            raise RobfcpError(_ragged(path, k + 1, len(records[k]), len(names), separator))
    columns = tuple(zip(*(records[k] for k in rows), strict=True))
    comma = separator != "," and _commas(path, names, columns, [k + 1 for k in rows])
    return Table(names, columns, [k + 1 for k in rows], comma, notes)


def read_parquet(path: Path) -> Table:
    """The table in a parquet file; it needs pyarrow."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise RobfcpError(
            f"{path}: parquet needs pyarrow; pip install 'robfcp[parquet]', or save it as CSV"
        ) from None
    try:
        file = parquet.ParquetFile(path)
        groups = range(file.metadata.num_row_groups)
        if sum(file.metadata.row_group(k).total_byte_size for k in groups) > MAX_TABLE_BYTES:
            raise RobfcpError(f"{path}: is larger than {MAX_TABLE_BYTES} bytes; split it")
        content = file.read()
    except PermissionError:
        raise
    except (ArrowException, OSError, ValueError):
        raise RobfcpError(f"{path}: is damaged or no parquet file; write it again") from None
    names = tuple("" if name.startswith("__index_") else name for name in content.column_names)
    _check_names(path, names)
    if not content.num_rows:
        raise RobfcpError(f"{path}: holds no samples; write one row a sample")
    columns = tuple(_column(content.column(k)) for k in range(len(names)))
    return Table(names, columns, range(2, content.num_rows + 2))


def _column(column: Any) -> Sequence[str] | NDArray[Any]:
    values = column.to_pylist()
    if all(isinstance(value, (int, float)) or value is None for value in values):
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return ["" if value is None else str(value) for value in values]


def _decoded(path: Path) -> tuple[str, tuple[str, ...]]:
    data = path.read_bytes()
    kind = _BOMS.get(data[:2], "utf-8-sig")
    notes: tuple[str, ...] = ()
    try:
        text = data.decode(kind)
    except UnicodeDecodeError:
        try:
            text, notes = data.decode("cp1252"), (f"{path}: was read as Windows-1252, not UTF-8.",)
        except UnicodeDecodeError:
            raise RobfcpError(f"{path}: is no text; save it as CSV UTF-8") from None
    if "\0" in text:
        raise RobfcpError(f"{path}: is no text; save it as CSV UTF-8")
    return text, notes


def _separator(header: str) -> str:
    """What stands most often between names, outside quotes."""
    bare = "".join(header.split('"')[::2])
    return max((",", ";", "\t"), key=bare.count)


def _check_names(path: Path, names: Sequence[str]) -> None:
    if all(_is_number(name) for name in names) and not all(name.isdigit() for name in names):
        raise RobfcpError(f"{path}: row 1 holds numbers; write the columns' names there")
    lowered = [name.lower() for name in names]
    for place, name in enumerate(lowered):
        first = lowered.index(name)
        if first != place:
            raise RobfcpError(
                f"{path}: columns {letters(first)} and {letters(place)} have the same name "
                f"{names[place]!r:.40}; rename one"
            )


def _commas(
    path: Path, names: Sequence[str], columns: Sequence[Sequence[str]], rows: Sequence[int]
) -> bool:
    """Whether numbers are written with commas; a table that mixes both signs is refused."""
    seen: dict[str, str] = {}
    for place, column in enumerate(columns):
        for row, cell in zip(rows, column, strict=True):
            for sign in ",.":
                if sign in cell and _is_number(cell) and sign not in seen:
                    seen[sign] = f"row {row}, column {letters(place)} ({names[place]:.40})"
        if len(seen) == 2:
            raise RobfcpError(
                f"{path}: {seen[',']} has a decimal comma, {seen['.']} a point; use one of them"
            )
    return "," in seen


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", ".", 1))
    except ValueError:
        return False
    return True


def _ragged(path: Path, row: int, found: int, wanted: int, separator: str) -> str:
    problem = f"{path}: row {row} has {found} cells, the names in row 1 are {wanted}"
    if separator == "," and found > wanted:
        return f"{problem}; numbers with decimal commas need semicolons between columns"
    return f"{problem}; write one cell a column"
