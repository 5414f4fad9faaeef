"""Files of tables and arrays as people have them: CSV of any habit, parquet, npz and npy.

What is wrong is said by row and column, as a spreadsheet shows them.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp._validation import abbreviate
from robfcp.errors import RobfcpError

MAX_TABLE_BYTES = 2**33
SEPARATORS = ",;\t|"
DECIMAL_SIGNS = ",."
ALPHABET_SIZE = 26  # by which a spreadsheet counts its columns
_BYTE_ORDER_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_MISSING_CELLS = ("", "na", "n/a", "nan", "null", "none", "#n/a", "-")


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of text, as spreadsheets write them; numbers are read when they are used.

    Attributes
    ----------
    names : tuple of str
        The columns' names, no two alike.
    columns : tuple of sequences of str
        The cells of each column, without blanks around them.
    rows : sequence of int
        The row of each record in a spreadsheet.
    notes : tuple of str
        What is to be said of how the file was read.
    """

    names: tuple[str, ...]
    columns: tuple[Sequence[str], ...]
    rows: Sequence[int]
    notes: tuple[str, ...] = ()

    def column_index(self, name: str) -> int:
        """Return the index of the column of this name, exact or but for capitals."""
        if name in self.names:
            return self.names.index(name)
        for column_index, column_name in enumerate(self.names):
            if column_name.lower() == name.lower():
                return column_index
        raise RobfcpError(f"has no column {name!r}; it has {abbreviate(self.names)}")

    def text_rows(self, column_index: int) -> list[int]:
        """Return the rows where a column holds what is neither a number nor missing."""
        is_unread = np.isnan(self.numeric_column(column_index, allow_invalid=True))
        column = self.columns[column_index]
        unread_rows = np.flatnonzero(is_unread).tolist()
        return [row for row in unread_rows if column[row].lower() not in _MISSING_CELLS]

    def numeric_column(
        self, column_index: int, *, allow_invalid: bool = False
    ) -> NDArray[np.float64]:
        """Return a column as (n,) numbers; a cell that is none is refused, or else NaN."""
        column = self.columns[column_index]
        try:
            return np.array(column, dtype=np.float64)
        except ValueError:
            values = [float(cell) if is_number(cell) else np.nan for cell in column]
        if not allow_invalid:
            row = int(np.argmax(np.isnan(values)))
            raise RobfcpError(self.not_a_number_message(row, column_index))
        return np.array(values)

    def cell_name(self, row: int, column_index: int) -> str:
        """Return what a spreadsheet calls a cell."""
        column = spreadsheet_column(column_index)
        return f"row {self.rows[row]}, column {column} ({self.names[column_index]:.40})"

    def not_a_number_message(self, row: int, column_index: int) -> str:
        """Return what to say of a cell that is no number."""
        cell = self.columns[column_index][row]
        cell_name = self.cell_name(row, column_index)
        if cell.lower() in _MISSING_CELLS:
            return f"{cell_name}: is missing; fill it in or drop the row"
        remedy = "write a number with a point"
        if "," in cell:
            remedy = "write decimals with a point, or put semicolons between columns"
        return f"{cell_name}: {cell!r:.40} is no number; {remedy}"

    def with_decimal_points(self) -> Table:
        """Return the table with decimal commas as points; refuse it where it has both."""
        first_cells: dict[str, str] = {}  # {comma or point: the first number that has it}
        for column_index, column in enumerate(self.columns):
            for row, cell in enumerate(column):
                if not is_number(_with_decimal_point(cell)):
                    continue
                for sign in DECIMAL_SIGNS:
                    if sign in cell and sign not in first_cells:
                        first_cells[sign] = self.cell_name(row, column_index)
        if len(first_cells) == len(DECIMAL_SIGNS):
            raise RobfcpError(
                f"{first_cells[',']} has a decimal comma, {first_cells['.']} a point; "
                "use one of them"
            )
        columns = []
        for column in self.columns:
            columns.append([_with_decimal_point(cell) for cell in column])
        return replace(self, columns=tuple(columns))


def is_number(cell: str) -> bool:
    """Whether a text is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _with_decimal_point(cell: str) -> str:
    """Return a number with a decimal comma as one with a point; anything else as it is."""
    with_point = cell.replace(",", ".", 1)
    return with_point if is_number(with_point) else cell


def spreadsheet_column(column_index: int) -> str:
    """Return how a spreadsheet calls a column, counted from 0: A, B, ... Z, AA."""
    prefix_index, alphabet_index = divmod(column_index, ALPHABET_SIZE)
    last_character = chr(ord("A") + alphabet_index)
    if prefix_index == 0:
        return last_character
    return spreadsheet_column(prefix_index - 1) + last_character


def read_csv(path: Path) -> Table:
    """Return the table in a CSV file: any separator, decimal points or commas, any BOM."""
    text, notes = _decode_csv(path)
    separator, text = _split_off_separator(text)
    records = []
    try:
        for record in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
            records.append([cell.strip() for cell in record])
    except csv.Error:
        raise RobfcpError("a cell is too long or its quotes do not end; write it again") from None

    if not records or not any(records[0]):
        raise RobfcpError("row 1 is empty; write the columns' names there")
    names = _checked_names(records[0])

    # Blank lines count as rows in a spreadsheet, but hold no sample.
    indices = [index for index, record in enumerate(records) if index and any(record)]
    if not indices:
        raise RobfcpError("holds names and no samples; write one row a sample")
    for index in indices:
        if len(records[index]) != len(names):
            raise RobfcpError(
                f"row {index + 1} has {len(records[index])} cells, the names in row 1 are "
                f"{len(names)}; "
                "write one cell a column, and semicolons between numbers with decimal commas"
            )

    columns = tuple(zip(*(records[index] for index in indices), strict=True))
    table = Table(names, columns, [index + 1 for index in indices], notes)
    if separator == ",":
        return table
    return table.with_decimal_points()


def _decode_csv(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return a CSV file's text, and what is to be said of its encoding."""
    content = path.read_bytes()
    notes: tuple[str, ...] = ()
    try:
        text = content.decode(_BYTE_ORDER_MARKS.get(content[:2], "utf-8-sig"))
    except UnicodeDecodeError:
        text = content.decode("cp1252", "replace")
        notes = (f"{path}: was read as Windows-1252, not UTF-8.",)
    if "\0" in text or (notes and "\ufffd" in text):
        raise RobfcpError("is no text; save it as CSV UTF-8")
    return text, notes


def _split_off_separator(text: str) -> tuple[str, str]:
    """Return what stands between the cells of a CSV file, and its text without Excel's hint."""
    first_line, _, following_lines = text.partition("\n")
    hint = first_line.strip()
    if re.fullmatch(r"sep=.", hint, re.IGNORECASE):
        return hint[-1], following_lines
    unquoted = "".join(first_line.split('"')[::2])
    return max(SEPARATORS, key=unquoted.count), text


def read_parquet(path: Path) -> Table:
    """Return the table in a parquet file; it needs pyarrow."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise RobfcpError(
            "parquet needs pyarrow; pip install 'robfcp[fleet]', or save CSV"
        ) from None
    try:
        file = parquet.ParquetFile(path)
        n_bytes = 0
        for group in range(file.metadata.num_row_groups):
            n_bytes += file.metadata.row_group(group).total_byte_size
        if n_bytes > MAX_TABLE_BYTES:
            raise RobfcpError(f"is larger than {MAX_TABLE_BYTES} bytes; split it")
        content = file.read()
    except (PermissionError, RobfcpError):
        raise
    except (ArrowException, OSError, ValueError):
        raise RobfcpError("is damaged or no parquet file; write it again") from None

    if not content.num_rows:
        raise RobfcpError("holds no samples; write one row a sample")
    names = ["" if name.startswith("__index_") else name for name in content.column_names]
    columns = []
    for column in content.columns:
        columns.append([_cell_text(value) for value in column.to_pylist()])
    # Row 1 holds the names, as in a spreadsheet.
    return Table(_checked_names(names), tuple(columns), range(2, content.num_rows + 2))


def _cell_text(value: Any) -> str:
    """Return a value of a parquet file as a spreadsheet would write it."""
    if value is None:
        return ""
    if value in (True, False):
        return str(int(value))
    return str(value)


def _checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns' names, refused where they are numbers or two are alike."""
    are_numbers = all(is_number(_with_decimal_point(name)) for name in names)
    if are_numbers and not all(name.isdigit() for name in names):
        raise RobfcpError("row 1 holds numbers; write the columns' names there")
    first_columns: dict[str, int] = {}
    for column_index, name in enumerate(names):
        first = first_columns.setdefault(name.lower(), column_index)
        if first != column_index:
            raise RobfcpError(
                f"columns {spreadsheet_column(first)} and {spreadsheet_column(column_index)} "
                f"have the same name {name!r:.40}; rename one"
            )
    return tuple(names)


def read_arrays(
    path: Path, wanted_names: Iterable[str] = ()
) -> tuple[list[str], dict[str, NDArray[Any]]]:
    """Return the names of all arrays in a file, and the arrays that are wanted.

    Parameters
    ----------
    path : Path
        An npz file, or an npy file: its array is called probabilities and has no name of its own.
        Pickles are never opened.
    wanted_names : iterable of str
        The arrays to read, as far as the file has them.
    """
    suffix = path.suffix.lower()
    try:
        with path.open("rb") as stream:
            content = np.load(stream, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return [], {"probabilities": content}
            arrays = {name: content[name] for name in {*wanted_names} & {*content.files}}
            if not all(isinstance(array, np.ndarray) for array in arrays.values()):
                raise ValueError  # a member that is no array comes as its bytes
            return content.files, arrays
    except PermissionError:
        raise
    except Exception as error:  # zlib, tokenize, zipfile, numpy: each has its own
        save = "save" if suffix == ".npy" else "savez"
        problem = _array_file_problem(error, suffix)
        raise RobfcpError(f"{problem}; save it with numpy.{save}") from error


def _array_file_problem(error: Exception, suffix: str) -> str:
    """Return why numpy could not read a file of arrays."""
    if "Object" in str(error):
        return "holds Python objects"
    if "encrypted" in str(error):
        return "is encrypted"
    return f"is damaged or no {suffix} file"
