"""Model outputs from files as people have them: CSV of any habit, parquet, npz and npy.

Which column is what is told by its name; what is wrong is said by row and column.
"""

from __future__ import annotations

import csv
import glob
import io
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from robfcp.arguments import a_few
from robfcp.cli.console import basic
from robfcp.errors import RobfcpError
from robfcp.files import unreadable
from robfcp.report import Names
from robfcp.scores import ClassColumns, ClassificationScore, Risk, Score, from_logits, sum_tolerance

MAX_TABLE_BYTES = 2**33
MAX_ARRAY_BYTES = 2**34
REPORTS = (".json",)
TABLES = (".csv", ".npz", ".parquet")
TARGETS = ("labels", "label", "targets", "target", "y", "y_true", "truth")
PREDICTIONS = ("probabilities", "predictions", "logits")
IDS = ("ids", "id", "index", "patientid")
MULTILABEL = ("label_", "label:")  # one column a label, 0 or 1
_AN_ID = re.compile(r"|id|index|unnamed: 0|patientid|.+[_ -]id", re.IGNORECASE)
_ENDS = (("low", "high"), ("lower", "upper"))
_BOMS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_MISSING = ("", "na", "n/a", "nan", "null", "none", "#n/a", "-")
_OTHERS = {
    ".xlsx": "save it as CSV UTF-8 in the spreadsheet",
    ".xls": "save it as CSV UTF-8 in the spreadsheet",
    ".ods": "save it as CSV in the spreadsheet",
    ".pt": "save arrays with numpy.savez; pickles are never opened",
    ".pth": "save arrays with numpy.savez; pickles are never opened",
    ".pkl": "save arrays with numpy.savez; pickles are never opened",
}

Expects = Literal["classes", "values", "labels"]  # one of C classes, a number, several labels


@dataclass(frozen=True)
class FileReading:
    """How a file is to be read, as far as it does not say itself."""

    ids: Annotated[str | None, basic("The column that names samples, if not 'id'.", "--id")] = None
    label: Annotated[str | None, basic("The column with the truth, if not 'label' or 'y'.")] = None
    logits: Annotated[bool, basic("Take softmax of the columns.", "--logits")] = False
    normalise: Annotated[bool, basic("Divide rows by their sums.", "--normalise")] = False
    classes: Names | None = None
    lenient: bool = False  # one bad sample must not show by failing: it becomes NaN

    def __post_init__(self) -> None:
        if self.logits and self.normalise:
            raise RobfcpError(
                "--normalise: the softmax of logits sums to 1 already; drop one of them"
            )

    @property
    def named(self) -> tuple[str, ...]:
        """The classes' names, where they are stated."""
        return self.classes if isinstance(self.classes, tuple) else ()


@dataclass(frozen=True, eq=False)
class FileOutputs:
    """Predictions of a model with the true targets where the file has them."""

    predictions: NDArray[Any]
    targets: NDArray[Any] | None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    names: tuple[str, ...] = ()  # of the classes, where they have names
    ids: NDArray[Any] | None = None
    rows: Sequence[int] = ()  # as a spreadsheet counts them
    notes: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...] | int:
        """The classes' names, or their number where the file does not name them."""
        return self.names or int(self.predictions.shape[1])

    @property
    def sample_ids(self) -> list[str]:
        """What the samples are called; their rows in the file where they have no names."""
        return [str(name) for name in (self.rows if self.ids is None else self.ids)]


def expects(score: Score | None, risk: Risk | str | None = None) -> Expects:
    """What a score or a risk is computed from."""
    if risk is not None:
        return "labels"
    return "classes" if score is None or isinstance(score, ClassificationScore) else "values"


def expanded(paths: Iterable[Path], endings: Sequence[str]) -> list[Path]:
    """The files: a folder stands for those in it with such an ending, a pattern for its matches.

    Shells of Windows leave patterns as they are, so they are matched here.
    """
    found: list[Path] = []
    for path in paths:
        matches = [path]
        if path.is_dir():
            inside = (one for one in path.iterdir() if one.suffix.lower() in endings)
            hidden = (".record.json", ".chain.json")
            matches = sorted(
                one
                for one in inside
                if one.is_file() and one.name[0] != "." and not one.name.endswith(hidden)
            )
            if not matches:
                raise RobfcpError(f"{path}: holds no {' or '.join(endings)} file; check the folder")
        elif glob.has_magic(str(path)) and not path.exists():
            matches = sorted(Path(name) for name in glob.glob(str(path)))
            if not matches:
                raise RobfcpError(f"{path}: matches no file; check the pattern")
        found += matches
    table = next((p for p in found if p.suffix.lower() in TABLES), None)
    if table is not None and not set(TABLES) & set(endings):
        raise RobfcpError(
            f"{table}: is a table, not a report; make one of it first: "
            f"robfcp report {table} --client NAME -o NAME.json"
        )
    return found


def read_outputs(
    path: Path,
    *,
    needs_targets: bool,
    columns: Sequence[str | None] = (),
    expects: Expects | None = None,
    reading: FileReading | None = None,
) -> FileOutputs:
    """Predictions and targets of one file.

    npz: arrays `probabilities` (or `predictions`, `logits`), `labels` (or `targets`) and, if there,
    `classes` and `ids`. npy: predictions. CSV and parquet: named columns; `label` (or `target`)
    is the truth, `id` names samples, the others are predictions, each class found by its name.
    `columns` are arrays or columns that are none of these: a group. None is left out.
    """
    how = reading or FileReading()
    aside = [name for name in columns if name is not None]
    if path.is_dir():
        raise RobfcpError(f"{path}: is a folder; name a file in it")
    if not path.is_file():
        raise RobfcpError(f"{path}: no such file; check the path")
    if not path.stat().st_size:
        raise RobfcpError(f"{path}: is empty; write it again")
    suffix = path.suffix.lower()
    try:
        if suffix in (".csv", ".tsv", ".txt"):
            found = _of_table(read_csv(path), aside, expects, how)
        elif suffix == ".parquet":
            found = _of_table(_read_parquet(path), aside, expects, how)
        elif suffix in (".npz", ".npy"):
            found = _of_arrays(path, aside, expects, how)
        else:
            remedy = _OTHERS.get(suffix, "use .csv, .npz, .npy or .parquet")
            raise RobfcpError(f"cannot read {suffix or 'a file without an ending'}; {remedy}")
    except OSError as error:
        raise RobfcpError(unreadable(path, error)) from None
    except RobfcpError as error:
        raise RobfcpError(f"{path}: {error}") from None
    if needs_targets and found.targets is None:
        raise RobfcpError(
            f"{path}: holds no labels; call the column with the truth 'label', or name it with "
            "--label"
        )
    return found


# Tables: named columns, as spreadsheets write them. Numbers are read when used.


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

    def place(self, name: str) -> int:
        """The place of the column of this name, exact or but for capitals; refused without one."""
        alike = [k for k, own in enumerate(self.names) if own.lower() == name.lower()]
        if name in self.names:
            return self.names.index(name)
        if len(alike) != 1:
            raise RobfcpError(f"has no column {name!r}; it has {a_few(self.names)}")
        return alike[0]

    def text(self, place: int) -> NDArray[np.str_]:
        """A column as text without blanks around it."""
        return np.array([str(cell).strip() for cell in self.columns[place]], dtype=str)

    def words(self, place: int) -> list[int]:
        """Where a column holds something that is neither a number nor missing."""
        column = self.columns[place]
        if isinstance(column, np.ndarray):
            return [] if column.dtype.kind in "fiub" else list(range(len(column)))
        try:
            self._floats(column)
        except ValueError:
            return [k for k, cell in enumerate(column) if self._number(cell) is None]
        return []

    def numbers(self, place: int, *, lenient: bool = False) -> NDArray[np.float64]:
        """A column as numbers; a cell that is none is refused by its place, or is NaN."""
        column = self.columns[place]
        if isinstance(column, np.ndarray):
            return column.astype(np.float64)
        try:
            return self._floats(column)
        except ValueError:
            found = [self._number(cell) for cell in column]
        for k, cell in enumerate(column):
            if not lenient and (found[k] is None or cell.strip().lower() in _MISSING):
                raise RobfcpError(self.no_number(k, place))
        return np.array([np.nan if value is None else value for value in found])

    def cell(self, row: int, place: int) -> str:
        """What a spreadsheet calls the place of a cell."""
        return f"row {self.rows[row]}, column {letters(place)} ({self.names[place]:.40})"

    def no_number(self, row: int, place: int) -> str:
        """What to say of a cell that is no number."""
        cell = str(self.columns[place][row]).strip()
        if cell.lower() in _MISSING:
            return f"{self.cell(row, place)}: is missing; fill it in or drop the row"
        remedy = "write a number with a point"
        if "," in cell and not self.decimal_comma:
            remedy = "write decimals with a point, or put semicolons between columns"
        return f"{self.cell(row, place)}: {cell!r:.40} is no number; {remedy}"

    def _floats(self, column: Sequence[str]) -> NDArray[np.float64]:
        cells = [self._point(cell) for cell in column] if self.decimal_comma else column
        return np.array(cells, dtype=np.float64)

    def _point(self, cell: str) -> str:
        return cell.replace(",", ".") if self.decimal_comma and "." not in cell else cell

    def _number(self, cell: str) -> float | None:
        """The number in a cell, NaN where it is missing, None where it is something else."""
        try:
            return float(self._point(cell))
        except ValueError:
            return np.nan if cell.strip().lower() in _MISSING else None


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
    data = path.read_bytes()
    notes: tuple[str, ...] = ()
    try:
        text = data.decode(_BOMS.get(data[:2], "utf-8-sig"))
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")
        notes = (f"{path}: was read as Windows-1252, not UTF-8.",)
    if "\0" in text or (notes and "\ufffd" in text):
        raise RobfcpError("is no text; save it as CSV UTF-8")
    first, _, rest = text.partition("\n")
    separator = ""
    if first.strip().lower().startswith("sep=") and len(first.strip()) <= 5:  # Excel's own hint
        separator, text = first.strip()[4:], rest
    bare = "".join(text.partition("\n")[0].split('"')[::2])  # what stands outside quotes
    separator = separator or max((",", ";", "\t"), key=bare.count)
    try:
        records = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    except csv.Error:
        raise RobfcpError(
            "a cell is too long or its quotes do not end; write the table again"
        ) from None
    if not records or not any(cell.strip() for cell in records[0]):
        raise RobfcpError("row 1 is empty; write the columns' names there")
    names = _checked_names([name.strip() for name in records[0]])
    rows = [k for k, record in enumerate(records) if k and any(cell.strip() for cell in record)]
    if not rows:
        raise RobfcpError("holds names and no samples; write one row a sample")
    for k in rows:
        if len(records[k]) != len(names):
            remedy = "write one cell a column"
            if separator == "," and len(records[k]) > len(names):
                remedy = "numbers with decimal commas need semicolons between columns"
            problem = f"row {k + 1} has {len(records[k])} cells, the names in row 1 are"
            raise RobfcpError(f"{problem} {len(names)}; {remedy}")
    columns = tuple(zip(*(records[k] for k in rows), strict=True))
    table = Table(names, columns, [k + 1 for k in rows], notes=notes)
    return replace(table, decimal_comma=separator != "," and _commas(table))


def _commas(table: Table) -> bool:
    """Whether numbers are written with commas; a table that mixes both signs is refused."""
    seen: dict[str, str] = {}
    for place, column in enumerate(table.columns):
        for row, cell in enumerate(column):
            for sign in ",.":
                if sign in cell and sign not in seen and _is_number(cell):
                    seen[sign] = table.cell(row, place)
        if len(seen) == 2:
            raise RobfcpError(
                f"{seen[',']} has a decimal comma, {seen['.']} a point; use one of them"
            )
    return "," in seen


def _read_parquet(path: Path) -> Table:
    """The table in a parquet file; it needs pyarrow."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise RobfcpError(
            "parquet needs pyarrow; pip install 'robfcp[parquet]', or save it as CSV"
        ) from None
    try:
        file = parquet.ParquetFile(path)
        groups = range(file.metadata.num_row_groups)
        size = sum(file.metadata.row_group(k).total_byte_size for k in groups)
        content = file.read() if size <= MAX_TABLE_BYTES else None
    except PermissionError:
        raise
    except (ArrowException, OSError, ValueError):
        raise RobfcpError("is damaged or no parquet file; write it again") from None
    if content is None:
        raise RobfcpError(f"is larger than {MAX_TABLE_BYTES} bytes; split it")
    names = ["" if name.startswith("__index_") else name for name in content.column_names]
    if not content.num_rows:
        raise RobfcpError("holds no samples; write one row a sample")
    columns: list[Sequence[str] | NDArray[Any]] = []
    for k in range(len(names)):
        values = content.column(k).to_pylist()
        if all(isinstance(value, (int, float)) or value is None for value in values):
            columns.append(np.array([np.nan if v is None else v for v in values], np.float64))
        else:
            columns.append(["" if value is None else str(value) for value in values])
    return Table(_checked_names(names), tuple(columns), range(2, content.num_rows + 2))


def _checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """The columns' names, refused where they are numbers or two are alike."""
    if all(_is_number(name) for name in names) and not all(name.isdigit() for name in names):
        raise RobfcpError("row 1 holds numbers; write the columns' names there")
    lowered = [name.lower() for name in names]
    for place, name in enumerate(lowered):
        first = lowered.index(name)
        if first != place:
            raise RobfcpError(
                f"columns {letters(first)} and {letters(place)} have the same name "
                f"{names[place]!r:.40}; rename one"
            )
    return tuple(names)


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", ".", 1))
    except ValueError:
        return False
    return True


# Which column is what.


def _of_table(
    table: Table, aside: Sequence[str], kind: Expects | None, how: FileReading
) -> FileOutputs:
    """The parts of a table by the names of its columns."""
    further = {name: table.text(table.place(name)) for name in aside}
    taken = {table.place(name) for name in aside}
    label, notes = _label_place(table, how, taken)
    ids = None if how.ids is None else table.place(how.ids)
    if ids is None:
        free = set(range(len(table.names))) - taken - {label}
        named = (k for k in sorted(free) if table.names[k] not in how.named)
        ids = next((k for k in named if _AN_ID.fullmatch(table.names[k])), None)
    truths = [k for k, name in enumerate(table.names) if name.lower().startswith(MULTILABEL)]
    places = [k for k in range(len(table.names)) if k not in {*taken, *truths, label, ids}]
    found = FileOutputs(
        np.zeros((len(table), 0)),
        None,
        further,
        ids=None if ids is None else table.text(ids),
        rows=table.rows,
        notes=(*table.notes, *notes),
    )
    if kind == "labels" or (kind is None and truths):
        truth = [table.numbers(k, lenient=how.lenient) for k in truths]
        targets = np.stack(truth, axis=1).astype(np.int64) if truths else None
        return replace(found, predictions=_matrix(table, places, how), targets=targets)
    if kind == "classes":
        return _classified_columns(table, places, label, found, how)
    called = {table.names[k].lower(): k for k in places}
    for low, high in _ENDS:
        if set(called) == {low, high}:
            places = [called[low], called[high]]
    predictions = _matrix(table, places, how)
    values = None if label is None else table.numbers(label, lenient=how.lenient)
    if predictions.shape[1] == 1:
        return replace(found, predictions=predictions[:, 0], targets=values)
    names = tuple(table.names[k] for k in places)
    return replace(found, predictions=predictions, targets=_whole(values), names=names)


def _classified_columns(
    table: Table, there: list[int], label: int | None, found: FileOutputs, how: FileReading
) -> FileOutputs:
    """Class probabilities in the order of the classes, and each label's number."""
    names = [table.names[k] for k in there]
    raw = None
    if label is not None:
        text = bool(table.words(label))
        raw = table.text(label) if text else _whole(table.numbers(label, lenient=True))
    columns = ClassColumns.called(names, raw)
    numbered = not columns.names
    if how.classes is not None:
        order = ClassColumns.of_classes(names, how.classes)
        if order is None:
            lacking = sorted(set(how.named) - set(names))
            raise RobfcpError(
                f"no column is called {lacking[0]!r:.40}; the classes are {a_few(how.named)}, "
                f"the columns {a_few(names)}; rename the columns"
            )
        columns = ClassColumns(tuple(order), how.named)
    chosen = [there[k] for k in columns.order]
    p = _matrix(table, chosen, how)
    targets = None
    if raw is not None and label is not None:
        by_number = numbered and raw.dtype.kind not in "US"
        targets = (ClassColumns(columns.order, ()) if by_number else columns).numbers(raw)
        if not how.lenient and (targets < 0).any():
            row = int(np.argmax(targets < 0))
            shown, where = str(table.text(label)[row]), table.cell(row, label)
            if not shown:
                raise RobfcpError(f"{where}: the label is missing; fill it in or drop the row")
            known = f"0 to {len(columns.order) - 1}, as the columns are counted"
            known = a_few(columns.names) if columns.names else known
            raise RobfcpError(
                f"{where}: {shown!r:.40} is none of the classes {known}; fix it or rename a column"
            )
    called = [table.names[k] for k in chosen]
    p = _probabilities(p, table.rows, how, lambda row, k: table.cell(row, chosen[k]), called)
    return replace(found, predictions=p, targets=targets, names=columns.names)


def _whole(values: Any) -> Any:
    """Numbers as integers where all of them are."""
    if values is None or not (np.isfinite(values) & (np.abs(values) < 2**53)).all():
        return values
    return values.astype(np.int64) if np.array_equal(values, np.round(values)) else values


def _matrix(table: Table, places: Sequence[int], how: FileReading) -> NDArray[np.float64]:
    """(n, C) numbers of some columns."""
    if not places:
        raise RobfcpError("holds no predictions; add a column a class, or one of predictions")
    for place in places if not how.lenient else ():
        wrong, name = table.words(place), table.names[place]
        if not wrong:
            continue
        first = str(table.text(place)[0])
        if len(wrong) < len(table) or first.replace(",", "", 1).isdigit():
            raise RobfcpError(table.no_number(wrong[0], place))
        raise RobfcpError(
            f"{table.cell(0, place)}: {first!r:.40} is no number; pass --id {name:.40} if it names "
            f"samples, --label {name:.40} if it is the truth, or the probabilities' names as "
            "--classes"
        )
    return np.stack([table.numbers(k, lenient=how.lenient) for k in places], axis=1)


def _label_place(table: Table, how: FileReading, taken: set[int]) -> tuple[int | None, list[str]]:
    """Where the truth is, by its name or as the one column of text whose words are the names of
    other columns; and that it was taken for the truth, where its name does not say so."""
    if how.label is not None:
        return table.place(how.label), []
    lowered = [name.lower() for name in table.names]
    for name in TARGETS:
        if lowered.count(name) == 1 and lowered.index(name) not in taken:
            return lowered.index(name), []
    texts = [k for k in range(len(table.names)) if k not in taken and table.words(k)]
    others = [name for k, name in enumerate(table.names) if k not in texts]
    found = []
    for place in texts:
        words = sorted(set(table.text(place).tolist()) - {""})
        if len(words) > 1 and ClassColumns.named(others, words) is not None:
            found.append(place)
    if len(found) != 1:
        return None, []
    name = table.names[found[0]]
    return found[0], [f"Column {name:.40} was taken as the truth: it holds the classes' names."]


def _probabilities(
    p: NDArray[Any],
    rows: Sequence[int],
    how: FileReading,
    cell: Callable[[int, int], str],
    names: Sequence[str] = (),
) -> NDArray[Any]:
    """Rows that are probabilities, by softmax or division where asked; else refused by place."""
    if how.logits:
        p = p.astype(np.float64)
        wrong = np.isnan(p) | (p == np.inf) | (p == -np.inf).all(axis=1, keepdims=True)
        bad = wrong.any(axis=1)
        if bad.any() and not how.lenient:
            row = int(np.argmax(bad))
            raise RobfcpError(
                f"{cell(row, int(np.argmax(wrong[row])))}: is no finite logit; fix it"
            )
        p = from_logits(np.where(bad[:, None], 0.0, p))
        p[bad] = np.nan
        return p
    total = p.sum(axis=1, dtype=np.float64)
    if how.normalise:
        bad = ~((total > 0) & np.isfinite(total))
        if bad.any() and not how.lenient:
            row = int(np.argmax(bad))
            raise RobfcpError(f"row {rows[row]}: sums to {total[row]:.4g}; it cannot be normalised")
        with np.errstate(invalid="ignore", divide="ignore"):
            p = np.where(bad[:, None], np.nan, p.astype(np.float64) / total[:, None])
        total = p.sum(axis=1)
    if how.lenient:
        return p
    wrong = ~(p >= 0)
    if wrong.any():
        row = int(np.argmax(wrong.any(axis=1)))
        column = int(np.argmax(wrong[row]))
        place, value = cell(row, column), float(p[row, column])
        if np.isnan(value):
            raise RobfcpError(f"{place}: is missing or NaN; fill it in or drop the row")
        raise RobfcpError(
            f"{place}: {value:.4g} is negative and no probability; pass --logits for logits"
        )
    off = ~(np.abs(total - 1) <= sum_tolerance(p.shape[1]))
    if off.any():
        row = int(np.argmax(off))
        problem = f"row {rows[row]}: the probabilities sum to {total[row]:.6g}, not 1"
        raise RobfcpError(problem + _remedy(p, total, names))
    return p


def _remedy(p: NDArray[Any], total: NDArray[np.float64], names: Sequence[str]) -> str:
    """Why rows do not sum to 1, as far as the table shows it."""
    without = np.abs(total[:, None] - p - 1) <= sum_tolerance(p.shape[1])
    for name, alone in zip(names, without.all(axis=0), strict=False):
        if alone:
            return (
                f", but do without column {name:.40}; pass --id {name:.40} if it is an index, else "
                "the others as --classes"
            )
    if abs(np.median(total) - 100) < 5:
        return "; if these are percentages, pass --normalise"
    if np.abs(total - 1).max() <= 0.01 * p.shape[1]:
        return "; if they were rounded, pass --normalise"
    return "; pass --logits if these are logits, --normalise if they need dividing"


# Arrays: within memory for their size, never a pickle.


def _of_arrays(
    path: Path, aside: Sequence[str], kind: Expects | None, how: FileReading
) -> FileOutputs:
    """The parts of an npz archive by the names of its arrays, or the array of an npy file."""
    there = array_names(path)
    asked = [name for name in (how.ids, how.label, *aside) if name is not None]
    arrays = read_arrays(path, [*asked, "classes", *IDS, *TARGETS, *PREDICTIONS])
    for name in asked:
        if name not in arrays:
            raise RobfcpError(f"has no array {name!r}; it has {a_few(there) or 'none with a name'}")
    called = next((name for name in PREDICTIONS if name in arrays), None)
    if called is None:
        raise RobfcpError(
            f"has arrays {a_few(sorted(there)) or '(none)'} but no 'probabilities'; "
            "save it with numpy.savez(path, probabilities=..., labels=...)"
        )
    p = arrays[called]
    truth = [how.label] if how.label is not None else TARGETS
    targets = next((arrays[name] for name in truth if name in arrays), None)
    ids = next((arrays[name] for name in ([how.ids] if how.ids else IDS) if name in arrays), None)
    rows = range(1, (len(p) if p.ndim else 0) + 1)
    found = FileOutputs(p, targets, {name: arrays[name] for name in aside}, ids=ids, rows=rows)
    if kind != "classes" or p.ndim != 2 or p.dtype.kind not in "fiu":
        return found
    named = arrays["classes"].astype(str).tolist() if "classes" in arrays else []
    if named and len(named) != p.shape[1]:
        raise RobfcpError(f"{len(named)} classes are named, but there are {p.shape[1]} columns")
    columns = ClassColumns(tuple(range(p.shape[1])), tuple(named))
    if named and how.named:
        order = ClassColumns.of_classes(named, how.named)
        if order is None:
            raise RobfcpError(f"the classes {a_few(named)} are not {a_few(how.named)}; rename them")
        columns = ClassColumns(tuple(order), how.named)
        p = p[:, list(order)]
    if targets is not None and targets.ndim == 1 and targets.dtype.kind in "US":
        kept = how.named or columns.names
        number = ClassColumns(columns.order, kept).numbers(targets)
        if not how.lenient and (number < 0).any():
            row = int(np.argmax(number < 0))
            known = kept or [str(k) for k in range(p.shape[1])]
            raise RobfcpError(
                f"row {row + 1}: the label {targets[row]!s:.40} is none of the classes "
                f"{a_few(known)}; save their names as an array 'classes'"
            )
        targets = number
    how = replace(how, logits=how.logits or called == "logits")
    p = _probabilities(p, rows, how, lambda row, k: f"row {row + 1}, column {k + 1}")
    return replace(found, predictions=p, targets=targets, names=columns.names)


def array_names(path: Path) -> list[str]:
    """The names of the arrays in an npz file; none where it is no such file."""
    if path.suffix.lower() != ".npz" or not zipfile.is_zipfile(path):
        return []
    try:
        with zipfile.ZipFile(path) as content:
            return [name.removesuffix(".npy") for name in content.namelist()]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError):
        return []


def read_arrays(path: Path, wanted: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Those of the wanted arrays that an npz file holds; the one of an npy file."""
    kind = path.suffix.lower()
    try:
        with path.open("rb") as stream:
            if kind == ".npy":
                return {"probabilities": _array(stream, path.stat().st_size)}
            found = {}
            with zipfile.ZipFile(stream) as archive:
                members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
                for name in {*wanted} & {*members}:
                    with archive.open(members[name]) as member:
                        found[name] = _array(member, members[name].file_size)
            return found
    except RobfcpError as error:
        raise RobfcpError(f"cannot be read ({error}); write it again") from None
    except PermissionError:
        raise
    except Exception as error:  # zlib, tokenize, zipfile, numpy: each has its own
        secret = isinstance(error, RuntimeError) and "encrypted" in str(error)
        problem = "is encrypted" if secret else f"is damaged or no {kind} file"
        save = "save" if kind == ".npy" else "savez"
        raise RobfcpError(f"{problem}; save it with numpy.{save}") from error


def _array(stream: IO[bytes], size: int) -> NDArray[Any]:
    """The array in a stream of so many bytes; what its header claims beyond them is refused."""
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise RobfcpError(f"npy version {version} is not known")
    if dtype.hasobject:
        raise RobfcpError("it holds Python objects")
    wanted = prod(shape) * dtype.itemsize
    if not 0 <= wanted <= min(size, MAX_ARRAY_BYTES):
        raise RobfcpError(f"shape {shape} needs {wanted} bytes but the file has {size}")
    data = stream.read(wanted)
    if len(data) < wanted:
        raise RobfcpError("it ends too early")
    array = np.frombuffer(data, dtype=dtype)
    return array.reshape(shape[::-1]).T if fortran else array.reshape(shape)
