"""Model outputs from files as people have them: CSV of any habit, parquet, npz and npy.

Which column is what is told by its name; what is wrong is said by row and column.
"""

from __future__ import annotations

import csv
import glob
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from robfcp._files import read_error
from robfcp._probabilities import ClassColumns, softmax, sum_tolerance
from robfcp._validation import abbreviate
from robfcp.cli.console import option
from robfcp.errors import RobfcpError
from robfcp.reports import StratumNames
from robfcp.scores import ClassificationScore, Risk, Score

MAX_TABLE_BYTES = 2**33
REPORTS = (".json",)
ROUND = (*REPORTS, ".parquet")  # reports, or tables of them
TABLES = (".csv", ".npz", ".parquet")
TARGETS = ("labels", "label", "targets", "target", "y", "y_true", "truth")
PREDICTIONS = ("probabilities", "predictions", "logits")
IDS = ("ids", "id", "index", "patientid")
MULTILABEL = ("label_", "label:")  # one column a label, 0 or 1
_AN_ID = re.compile(r"|id|index|unnamed: 0|patientid|.+[_ -]id", re.IGNORECASE)
_ENDS = (("low", "high"), ("lower", "upper"))
_BOMS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
BOOLS = ("true", "false")
_MISSING = ("", "na", "n/a", "nan", "null", "none", "#n/a", "-")
_PICKLES = "save arrays with numpy.savez; pickles are never opened"
_OTHERS = {
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save it as CSV UTF-8 in the spreadsheet"),
    **dict.fromkeys((".pt", ".pth", ".pkl"), _PICKLES),
    **dict.fromkeys((".gz", ".zip", ".bz2", ".xz"), "unpack it first"),
}

Cell = Callable[[int, int | None], str]  # what the place of one, or of a row's label, is called
Task = Literal["classes", "values", "labels"]  # one of C classes, a number, several labels


@dataclass(frozen=True)
class ReaderOptions:
    """How a file is to be read, as far as it does not say itself."""

    ids: Annotated[str | None, option("The column that names samples, if not 'id'.", "--id")] = None
    label: Annotated[str | None, option("The column with the truth, if not 'label' or 'y'.")] = None
    logits: Annotated[bool, option("Take softmax of the columns.", "--logits")] = False
    normalise: Annotated[bool, option("Divide rows by their sums.", "--normalise")] = False
    classes: StratumNames | None = None
    guess: bool = False  # whether it may turn out to hold numbers in place of classes
    lenient: bool = False  # one bad sample must not show by failing: it becomes NaN

    def __post_init__(self) -> None:
        if self.logits and self.normalise:
            raise RobfcpError("--normalise: a softmax sums to 1 already; drop one of them")

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes' names, where they are stated."""
        return self.classes if isinstance(self.classes, tuple) else ()


@dataclass(frozen=True, eq=False)
class ModelOutputs:
    """Predictions of a model with the true targets where the file has them."""

    predictions: NDArray[Any]
    targets: NDArray[Any] | None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    names: tuple[str, ...] = ()  # of the classes, where they have names
    ids: NDArray[Any] | None = None
    rows: Sequence[int] = ()  # as a spreadsheet counts them
    notes: list[str] = field(default_factory=list)
    score: str = ""  # of the numbers it turned out to hold

    @property
    def classes(self) -> tuple[str, ...] | int:
        """The classes' names, or their number where the file does not name them."""
        return self.names or int(self.predictions.shape[1])


def expected_task(score: Score | None, risk: Risk | str | None = None) -> Task:
    """What a score or a risk is computed from."""
    if risk is not None:
        return "labels"
    return "classes" if score is None or isinstance(score, ClassificationScore) else "values"


def expand_paths(
    paths: Iterable[Path],
    endings: Sequence[str],
    files_in: Callable[[Path], list[Path]] = lambda folder: sorted(folder.glob("[!.]*")),
) -> list[Path]:
    """The files: a folder stands for those in it with such an ending, a pattern for its matches.

    Shells of Windows leave patterns as they are, so they are matched here.
    """
    found: list[Path] = []
    for path in paths:
        matches = [path]
        if path.is_dir():
            inside = [one for one in files_in(path) if one.suffix.lower() in endings]
            matches = [one for one in inside if one.is_file()]
            if not matches:
                raise RobfcpError(f"{path}: holds no {' or '.join(endings)} file; check the folder")
        elif glob.has_magic(str(path)) and not path.exists():
            matches = sorted(Path(name) for name in glob.glob(str(path)))
            if not matches:
                raise RobfcpError(f"{path}: matches no file; check the pattern")
        found += matches
    table = next((p for p in found if p.suffix.lower() in {*TABLES} - {*endings}), None)
    if table is not None:
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
    expects: Task | None = None,
    reading: ReaderOptions | None = None,
) -> ModelOutputs:
    """Predictions and targets of one file.

    npz: arrays `probabilities` (or `predictions`, `logits`), `labels` (or `targets`) and, if there,
    `classes` and `ids`. npy: predictions. CSV and parquet: named columns; `label` (or `target`)
    is the truth, `id` names samples, the others are predictions, each class found by its name.
    `columns` are arrays or columns that are none of these: a group. None is left out.
    """
    how = reading or ReaderOptions()
    aside = [name for name in columns if name is not None]
    if path.is_dir():
        raise RobfcpError(f"{path}: is a folder; name a file in it")
    if not path.is_file():
        raise RobfcpError(f"{path}: no such file; check the path")
    suffix = path.suffix.lower()
    try:
        if not path.stat().st_size:
            raise RobfcpError("is empty; write it again")
        if suffix in (".npz", ".npy"):
            found = _outputs_of_arrays(path, aside, expects, how)
        elif suffix in (".csv", ".tsv", ".txt", ".parquet"):
            table = _read_parquet(path) if suffix == ".parquet" else read_csv(path)
            found = _outputs_of_table(table, aside, expects, how)
        else:
            remedy = _OTHERS.get(suffix, "use .csv, .npz, .npy or .parquet")
            raise RobfcpError(f"cannot read {suffix or 'a file without an ending'}; {remedy}")
        note = ""
        if (often := _most_common(found)) > 1:
            twice = "twice" if often == 2 else f"{often} times"
            note = f"every row comes {twice}; drop the copies, or each counts {twice}."
        elif found.ids is not None and (again := len(found.ids) - len(np.unique(found.ids))):
            note = f"{again} rows repeat an id; rows of one person count as if independent."
        found.notes.extend([f"{path}: {note}"] if note else [])
        if needs_targets and found.targets is None:
            raise RobfcpError(
                "holds no labels; call the column with the truth 'label', or name it with --label"
            )
    except OSError as error:
        raise RobfcpError(read_error(path, error)) from None
    except RobfcpError as error:
        raise RobfcpError(f"{path}: {error}") from None
    return found


def _most_common(found: ModelOutputs) -> int:
    """How often every row comes, where that is the same number for all."""
    if found.targets is None or len(found.predictions) < 8 or found.predictions.ndim > 2:
        return 1
    rows = np.column_stack([found.predictions, found.targets]).astype(np.float64)
    numbers = set(Counter(map(bytes, rows)).values())
    return numbers.pop() if len(numbers) == 1 else 1


# Tables: named columns of text, as spreadsheets write them. Numbers are read when used.


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of text without blanks around it, and each record's row in a spreadsheet."""

    names: tuple[str, ...]
    columns: tuple[Sequence[str], ...]
    rows: Sequence[int]
    notes: tuple[str, ...] = ()

    def column_index(self, name: str) -> int:
        """The place of the column of this name, exact or but for capitals; refused without one."""
        if name in self.names:
            return self.names.index(name)
        alike = [k for k, own in enumerate(self.names) if own.lower() == name.lower()]
        if not alike:
            raise RobfcpError(f"has no column {name!r}; it has {abbreviate(self.names)}")
        return alike[0]

    def first_text_cell(self, place: int) -> list[int]:
        """Where a column holds something that is neither a number nor missing."""
        unread = np.flatnonzero(np.isnan(self.numeric_column(place, lenient=True))).tolist()
        return [k for k in unread if self.columns[place][k].lower() not in _MISSING]

    def numeric_column(self, place: int, *, lenient: bool = False) -> NDArray[np.float64]:
        """A column as numbers; a cell that is none is refused by its place, or is NaN."""
        column = self.columns[place]
        try:
            return np.array(column, dtype=np.float64)
        except ValueError:
            found = [float(cell) if is_number(cell) else np.nan for cell in column]
        if not lenient:
            raise RobfcpError(self.not_a_number_message(int(np.argmax(np.isnan(found))), place))
        return np.array(found)

    def cell_name(self, row: int, place: int) -> str:
        """What a spreadsheet calls the place of a cell."""
        return f"row {self.rows[row]}, column {spreadsheet_column(place)} ({self.names[place]:.40})"

    def not_a_number_message(self, row: int, place: int) -> str:
        """What to say of a cell that is no number."""
        cell = self.columns[place][row]
        if cell.lower() in _MISSING:
            return f"{self.cell_name(row, place)}: is missing; fill it in or drop the row"
        remedy = "write a number with a point"
        if "," in cell:
            remedy = "write decimals with a point, or put semicolons between columns"
        return f"{self.cell_name(row, place)}: {cell!r:.40} is no number; {remedy}"

    def with_decimal_points(self) -> Table:
        """With decimal commas as points; refused where some cells have the one, some the other."""
        seen: dict[str, str] = {}
        for place, column in enumerate(self.columns):
            for row, cell in enumerate(column):
                if is_number(_with_decimal_point(cell)):
                    seen |= {
                        sign: self.cell_name(row, place) for sign in {*",."} & {*cell} - {*seen}
                    }
        if len(seen) == 2:
            problem = f"{seen[',']} has a decimal comma, {seen['.']} a point"
            raise RobfcpError(f"{problem}; use one of them")
        return replace(
            self, columns=tuple([*map(_with_decimal_point, column)] for column in self.columns)
        )


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _with_decimal_point(cell: str) -> str:
    """A number with a decimal comma as one with a point; anything else as it is."""
    found = cell.replace(",", ".", 1)
    return found if is_number(found) else cell


def spreadsheet_column(place: int) -> str:
    """How a spreadsheet calls the column at this place, counted from 0: A, B, ... Z, AA."""
    before, rest = divmod(place, 26)
    return (spreadsheet_column(before - 1) if before else "") + chr(ord("A") + rest)


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
    if re.fullmatch(r"sep=.", first.strip(), re.IGNORECASE):  # Excel's own hint
        separator, text = first.strip()[4], rest
    else:
        separator = max(",;\t|", key="".join(first.split('"')[::2]).count)  # unquoted
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        records = [[cell.strip() for cell in record] for record in reader]
    except csv.Error:
        raise RobfcpError("a cell is too long or its quotes do not end; write it again") from None
    if not records or not any(records[0]):
        raise RobfcpError("row 1 is empty; write the columns' names there")
    names = _checked_names(records[0])
    rows = [k for k, record in enumerate(records) if k and any(record)]
    if not rows:
        raise RobfcpError("holds names and no samples; write one row a sample")
    for k in rows:
        if len(records[k]) != len(names):
            raise RobfcpError(
                f"row {k + 1} has {len(records[k])} cells, the names in row 1 are {len(names)}; "
                "write one cell a column, and semicolons between numbers with decimal commas"
            )
    columns = tuple(zip(*(records[k] for k in rows), strict=True))
    table = Table(names, columns, [k + 1 for k in rows], notes)
    return table if separator == "," else table.with_decimal_points()


def _read_parquet(path: Path) -> Table:
    """The table in a parquet file; it needs pyarrow."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise RobfcpError(
            "parquet needs pyarrow; pip install 'robfcp[parquet]', or save CSV"
        ) from None
    try:
        file = parquet.ParquetFile(path)
        groups = range(file.metadata.num_row_groups)
        if sum(file.metadata.row_group(k).total_byte_size for k in groups) > MAX_TABLE_BYTES:
            raise RobfcpError(f"is larger than {MAX_TABLE_BYTES} bytes; split it")
        content = file.read()
    except (PermissionError, RobfcpError):
        raise
    except (ArrowException, OSError, ValueError):
        raise RobfcpError("is damaged or no parquet file; write it again") from None
    if not content.num_rows:
        raise RobfcpError("holds no samples; write one row a sample")
    names = ["" if name.startswith("__index_") else name for name in content.column_names]
    columns = tuple(
        ["" if v is None else str(int(v) if v in (True, False) else v) for v in one.to_pylist()]
        for one in content.columns
    )
    return Table(_checked_names(names), columns, range(2, content.num_rows + 2))


def _checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """The columns' names, refused where they are numbers or two are alike."""
    numbers = all(is_number(_with_decimal_point(name)) for name in names)
    if numbers and not all(name.isdigit() for name in names):
        raise RobfcpError("row 1 holds numbers; write the columns' names there")
    seen: dict[str, int] = {}
    for place, name in enumerate(names):
        first = seen.setdefault(name.lower(), place)
        if first != place:
            raise RobfcpError(
                f"columns {spreadsheet_column(first)} and {spreadsheet_column(place)} "
                f"have the same name {name!r:.40}; rename one"
            )
    return tuple(names)


# Which column is what.


def _outputs_of_table(
    table: Table, aside: Sequence[str], kind: Task | None, how: ReaderOptions
) -> ModelOutputs:
    """The parts of a table by the names of its columns."""
    taken = {name: table.column_index(name) for name in aside}
    free = [k for k in range(len(table.names)) if k not in taken.values()]
    lowered = {name.lower(): k for k, name in enumerate(table.names) if k in free}
    label = next((lowered[name] for name in TARGETS if name in lowered), None)
    label = label if how.label is None else table.column_index(how.label)
    ids = None if how.ids is None else table.column_index(how.ids)
    if ids is None:
        named = (k for k in free if k != label and table.names[k] not in how.class_names)
        ids = next((k for k in named if _AN_ID.fullmatch(table.names[k])), None)
    truths = [k for k, name in enumerate(table.names) if name.lower().startswith(MULTILABEL)]
    places = [k for k in free if k not in {*truths, label, ids}]
    called = {table.names[k].lower(): k for k in places}
    ends = next((pair for pair in _ENDS if {*pair} == {*called}), ())
    found = ModelOutputs(
        np.zeros((len(table.rows), 0)),
        None,
        {name: np.array(table.columns[place], dtype=str) for name, place in taken.items()},
        ids=None if ids is None else np.array(table.columns[ids], dtype=str),
        rows=table.rows,
        notes=[*table.notes],
    )
    if kind == "labels" or (kind is None and truths):
        truth = [table.numeric_column(k, lenient=how.lenient) for k in truths]
        targets = np.stack(truth, axis=1).astype(np.int64) if truths else None
        return replace(found, predictions=_matrix(table, places, how), targets=targets)
    if kind == "classes":
        raw = None
        if label is not None:
            text: Any = np.array(table.columns[label], dtype=str)
            raw = (
                text
                if table.first_text_cell(label)
                else _integers_where_possible(table.numeric_column(label, lenient=True))
            )
            if len(places) == 1 and np.isin(np.char.lower(text), BOOLS).all():
                raw = (np.char.lower(text) == "true").astype(np.int64)
        found, names = replace(found, targets=raw), [table.names[k] for k in places]
        if how.guess and raw is not None and raw.dtype.kind in "if":
            there = raw[np.isfinite(raw)]
            measured = there.size and (there != np.round(there)).mean() > 0.1
            if measured and len(places) > 1 and not ends:
                raise RobfcpError(
                    f"labels are measured values beside columns {abbreviate(names)}; "
                    "keep one column of predictions, or two quantiles and call them lower and upper"
                )
            if len(places) == 1 and not measured and not np.isin(there, (0, 1)).all():
                raise RobfcpError(
                    f"labels go from {there.min():g} to {there.max():g} beside one column, "
                    f"{names[0]:.40}; write 0 and 1 if it is the probability of class 1, or pass "
                    "--score absolute-residual if it predicts these numbers"
                )
            if ends or measured:
                said = _outputs_of_table(table, aside, "values", how)
                return replace(said, score="cqr" if ends else "absolute-residual")
        both: Any = None

        def take(order: list[int]) -> NDArray[Any]:
            chosen = [places[k] for k in order]
            return _matrix(table, chosen, how) if both is None else both[:, order]

        def cell(row: int, k: int | None) -> str:
            return table.cell_name(row, label or 0 if k is None else places[k])

        if len(places) == 1:
            both = _binary_probabilities(found, _matrix(table, places, how), names[0], how, cell)
            names, places = ["0", "1"], places * 2
        return _class_probabilities(found, names, take, how, cell)
    places = [called[name] for name in ends] or places
    predictions = _matrix(table, places, how)
    if ends and (predictions[:, 0] > predictions[:, 1]).mean() > 0.5:
        raise RobfcpError(f"{ends[0]} is above {ends[1]} in most rows; rename the columns")
    values = None if label is None else table.numeric_column(label, lenient=how.lenient)
    if predictions.shape[1] == 1:
        return replace(found, predictions=predictions[:, 0], targets=values)
    called_so = tuple(table.names[k] for k in places)
    return replace(
        found, predictions=predictions, targets=_integers_where_possible(values), names=called_so
    )


def _binary_probabilities(
    found: ModelOutputs, p: NDArray[Any], name: str, how: ReaderOptions, cell: Cell
) -> NDArray[Any]:
    """(n, 2) of a binary model's one column; what it is taken for, as its name tells, is noted."""
    classes, what = how.class_names or ("0", "1"), "logit" if how.logits else "probability"
    if found.targets is not None and found.targets.dtype.kind == "U" and not how.class_names:
        remedy = "or name both as --classes NO,YES in the report"
        if how.classes is not None:
            remedy = "for these are the calibration's classes"
        raise RobfcpError(
            f"labels are words beside one column of probabilities, {name:.40}; write 0 and 1, 1 "
            f"where that column is right, {remedy}"
        )
    if not how.logits and not how.lenient and (p > 1).any():
        row = int(np.argmax(p > 1))
        raise RobfcpError(
            f"{cell(row, 0)}: {float(p.ravel()[row]):.4g} is above 1 and no probability; divide "
            "percentages by 100, pass --logits for logits"
        )
    ends = rf"(.*[^0-9])?(0|{re.escape(classes[0])})"
    place = 0 if re.fullmatch(ends, name, re.IGNORECASE) else 1
    found.notes.append(f"Column {name:.40} is taken as the {what} of class {classes[place]}.")
    other = np.zeros_like(p) if how.logits else 1 - p
    return np.column_stack([other, p][:: 2 * place - 1])


def _class_probabilities(
    found: ModelOutputs,
    names: Sequence[str],
    take: Callable[[list[int]], NDArray[Any]],
    how: ReaderOptions,
    cell: Cell,
) -> ModelOutputs:
    """Class probabilities in the order of the classes, and each label's number.

    names: of the columns; take: the (n, C) numbers of some of them; cell: what the place of one,
    or of a row's label, is called.
    """
    raw, columns = found.targets, ClassColumns.classes_of_names(names, found.targets)
    numbered = not columns.names
    if how.classes is not None:
        order = ClassColumns.columns_of_classes(names, how.classes)
        columns = ClassColumns(tuple(order), how.class_names)
    p, targets = take([*columns.order]), raw
    if raw is not None and raw.ndim == 1:
        by_number = numbered and raw.dtype.kind not in "US"
        targets = (ClassColumns(columns.order, ()) if by_number else columns).label_indices(raw)
        if not how.lenient and (targets < 0).any():
            row = int(np.argmax(targets < 0))
            shown, where = str(raw[row]), cell(row, None)
            if shown in ("", "nan"):
                raise RobfcpError(f"{where}: the label is missing; fill it in or drop the row")
            last = len(columns.order)
            if raw.dtype.kind in "iu" and (raw.min(), raw.max()) == (1, last):
                raise RobfcpError(
                    f"labels are 1 to {last}, and the {last} columns count from 0; subtract 1 from "
                    "every label, or call the columns by their labels"
                )
            known = f"0 to {last - 1}, as the columns are counted"
            known = abbreviate(columns.names) if columns.names else known
            raise RobfcpError(
                f"{where}: {shown!r:.40} is none of the classes {known}; fix it or rename a column"
            )
        counting = raw.dtype.kind in "iu" and len(columns.order) > 2 and "1" not in columns.names
        if counting and raw.min(initial=2**31) == 1:
            place = int(targets[np.argmin(raw)])
            one = columns.names[place] if columns.names else "1"
            note = f"Labels begin at 1, taken as class {one}; subtract 1 if they count from 1."
            found.notes.append(note)
    called = [names[k] for k in columns.order]
    p = _probabilities(p, found.rows, how, lambda row, k: cell(row, columns.order[k or 0]), called)
    return replace(found, predictions=p, targets=targets, names=columns.names)


def _integers_where_possible(values: Any) -> Any:
    """Numbers as integers where all of them are."""
    if values is None or not (np.isfinite(values) & (np.abs(values) < 2**53)).all():
        return values
    return values.astype(np.int64) if np.array_equal(values, np.round(values)) else values


def _matrix(table: Table, places: Sequence[int], how: ReaderOptions) -> NDArray[np.float64]:
    """(n, C) numbers of some columns."""
    if not places:
        raise RobfcpError("holds no predictions; add a column a class, or one of predictions")
    for place in places if not how.lenient else ():
        wrong, name, first = (
            table.first_text_cell(place),
            table.names[place],
            table.columns[place][0],
        )
        if 2 * len(wrong) > len(table.rows) and not first.replace(",", "", 1).isdigit():
            raise RobfcpError(
                f"{table.cell_name(0, place)}: {first!r:.40} is no number; "
                f"pass --id {name:.40} if it names samples, --label {name:.40} if it is the truth, "
                "or the probabilities' names as --classes"
            )
        if wrong:
            raise RobfcpError(table.not_a_number_message(wrong[0], place))
    return np.stack([table.numeric_column(k, lenient=how.lenient) for k in places], axis=1)


def _probabilities(
    p: NDArray[Any], rows: Sequence[int], how: ReaderOptions, cell: Cell, names: Sequence[str]
) -> NDArray[Any]:
    """Rows that are probabilities, by softmax or division where asked; else refused by place."""
    if how.logits:
        p = p.astype(np.float64)
        wrong = np.isnan(p) | (p == np.inf) | (p == -np.inf).all(axis=1, keepdims=True)
        if wrong.any() and not how.lenient:
            row, k = np.argwhere(wrong)[0].tolist()
            raise RobfcpError(f"{cell(row, k)}: is no finite logit; fix it")
        bad = wrong.any(axis=1, keepdims=True)
        return np.where(bad, np.nan, softmax(np.where(bad, 0.0, p)))
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
        row, k = np.argwhere(wrong)[0].tolist()
        place, value = cell(row, k), float(p[row, k])
        if np.isnan(value):
            raise RobfcpError(f"{place}: is missing or NaN; fill it in or drop the row")
        raise RobfcpError(f"{place}: {value:.4g} is negative; pass --logits for logits")
    within = sum_tolerance(p.shape[1])
    off = ~(np.abs(total - 1) <= within)
    if not off.any():
        return p
    row = int(np.argmax(off))
    remedy = "; pass --logits for logits, --normalise for percentages or rounded numbers"
    if np.abs(total - 100).max() <= 2:
        remedy = "; divide percentages by 100, or pass --normalise"
    spare = np.flatnonzero((np.abs(total[:, None] - p - 1) <= within).all(axis=0))
    if len(spare):
        name = names[spare[0]]
        remedy = f", but do without column {name:.40}; pass --id {name:.40} if it names samples, "
        remedy += f"--label {name:.40} if it is the truth, else the others as --classes"
    raise RobfcpError(f"row {rows[row]}: the probabilities sum to {total[row]:.6g}, not 1{remedy}")


# Arrays: never a pickle.


def _outputs_of_arrays(
    path: Path, aside: Sequence[str], kind: Task | None, how: ReaderOptions
) -> ModelOutputs:
    """The parts of an npz archive by the names of its arrays, or the array of an npy file."""
    asked = [name for name in (how.ids, how.label, *aside) if name is not None]
    there, arrays = read_arrays(path, [*asked, "classes", *IDS, *TARGETS, *PREDICTIONS])
    for name in asked:
        if name not in arrays:
            raise RobfcpError(
                f"has no array {name!r}; it has {abbreviate(there) or 'none with a name'}"
            )
    called = next((name for name in PREDICTIONS if name in arrays), None)
    if called is None:
        raise RobfcpError(
            f"has arrays {abbreviate(sorted(there)) or '(none)'} but no 'probabilities'; "
            "save it with numpy.savez(path, probabilities=..., labels=...)"
        )
    p = arrays[called]
    truth, names = [how.label] if how.label else TARGETS, [how.ids] if how.ids else IDS
    targets = next((arrays[name] for name in truth if name in arrays), None)
    ids = next((arrays[name] for name in names if name in arrays), None)
    rows = range(1, (len(p) if p.ndim else 0) + 1)
    how = replace(how, logits=how.logits or called == "logits")
    found = ModelOutputs(p, targets, {name: arrays[name] for name in aside}, ids=ids, rows=rows)

    def cell(row: int, k: int | None) -> str:
        return f"row {row + 1}" + ("" if k is None else f", column {k + 1}")

    if kind == "classes" and p.shape in ((len(rows),), (len(rows), 1)) and p.dtype.kind in "fiu":
        p = _binary_probabilities(found, p, called, how, cell)
    if kind != "classes" or p.ndim != 2 or p.dtype.kind not in "fiu":
        return found
    named = arrays.get("classes", np.arange(p.shape[1])).astype(str).tolist()
    if len(named) != p.shape[1]:
        raise RobfcpError(f"{len(named)} classes are named, but there are {p.shape[1]} columns")
    return _class_probabilities(found, named, lambda order: p[:, order], how, cell)


def read_arrays(
    path: Path, wanted: Iterable[str] = ()
) -> tuple[list[str], dict[str, NDArray[Any]]]:
    """The names of all arrays in an npz file, and those that are wanted; the one of an npy file."""
    kind = path.suffix.lower()
    try:
        with path.open("rb") as stream:
            content = np.load(stream, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return [], {"probabilities": content}
            found = {name: content[name] for name in {*wanted} & {*content.files}}
            if not all(isinstance(one, np.ndarray) for one in found.values()):
                raise ValueError  # a member that is no array comes as its bytes
            return content.files, found
    except PermissionError:
        raise
    except Exception as error:  # zlib, tokenize, zipfile, numpy: each has its own
        problem = f"is damaged or no {kind} file"
        for word, known in (("encrypted", "is encrypted"), ("Object", "holds Python objects")):
            problem = known if word in str(error) else problem
        save = "save" if kind == ".npy" else "savez"
        raise RobfcpError(f"{problem}; save it with numpy.{save}") from error
