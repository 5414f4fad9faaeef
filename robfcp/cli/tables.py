"""Model outputs from files as people have them: tables and arrays, found by name.

Which column is what is told by its name; what is wrong is said by row and column.
"""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp._files import read_error
from robfcp._validation import abbreviate
from robfcp.cli.class_outputs import (
    BINARY_CLASSES,
    ArrayCellNames,
    TableCellNames,
    binary_probabilities,
    order_of_classes,
    with_class_probabilities,
)
from robfcp.cli.model_outputs import ModelOutputs, ReaderOptions, Task
from robfcp.cli.table_files import Table, read_arrays, read_csv, read_parquet
from robfcp.errors import RobfcpError

REPORTS = (".json",)
ROUND = (*REPORTS, ".parquet")  # reports, or tables of them
TABLES = (".csv", ".npz", ".parquet")
ARRAYS = (".npz", ".npy")
TEXT_TABLES = (".csv", ".tsv", ".txt")
TARGETS = ("labels", "label", "targets", "target", "y", "y_true", "truth")
PREDICTIONS = ("probabilities", "predictions", "logits")
IDS = ("ids", "id", "index", "patientid")
MULTILABEL = ("label_", "label:")  # one column a label, 0 or 1
BOOLS = ("true", "false")
MIN_MEASURED = 0.1  # fraction of labels that are no whole numbers: these are measured values
MIN_ROWS_REPEATED = 8  # fewer rows may be equal by chance
MAX_EXACT_INTEGER = 2**53  # of float64
_ID_COLUMN = re.compile(r"|id|index|unnamed: 0|patientid|.+[_ -]id", re.IGNORECASE)
_INTERVALS = (("low", "high"), ("lower", "upper"))
_PICKLES = "save arrays with numpy.savez; pickles are never opened"
_REMEDIES = {  # for files that cannot be read
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save it as CSV UTF-8 in the spreadsheet"),
    **dict.fromkeys((".pt", ".pth", ".pkl"), _PICKLES),
    **dict.fromkeys((".gz", ".zip", ".bz2", ".xz"), "unpack it first"),
}


def visible_files(folder: Path) -> list[Path]:
    """Return what a folder holds, but for hidden files."""
    return sorted(folder.glob("[!.]*"))


def expand_paths(
    paths: Iterable[Path],
    suffixes: Sequence[str],
    list_files: Callable[[Path], list[Path]] = visible_files,
) -> list[Path]:
    """Return files: a folder stands for those in it with such a suffix, a pattern for its matches.

    Shells of Windows leave patterns as they are, so they are matched here.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += _files_in_folder(path, suffixes, list_files)
        elif glob.has_magic(str(path)) and not path.exists():
            files += _files_of_pattern(path)
        else:
            files.append(path)

    for file in files:
        suffix = file.suffix.lower()
        if suffix in TABLES and suffix not in suffixes:
            raise RobfcpError(
                f"{file}: is a table, not a report; make one of it first: "
                f"robfcp report {file} --client NAME -o NAME.json"
            )
    return files


def _files_in_folder(
    folder: Path, suffixes: Sequence[str], list_files: Callable[[Path], list[Path]]
) -> list[Path]:
    """Return the files in a folder that have one of some suffixes; refuse it without any."""
    files = []
    for path in list_files(folder):
        if path.suffix.lower() in suffixes and path.is_file():
            files.append(path)
    if not files:
        raise RobfcpError(f"{folder}: holds no {' or '.join(suffixes)} file; check the folder")
    return files


def _files_of_pattern(pattern: Path) -> list[Path]:
    """Return the files that match a pattern; refuse it where none does."""
    files = sorted(Path(name) for name in glob.glob(str(pattern)))
    if not files:
        raise RobfcpError(f"{pattern}: matches no file; check the pattern")
    return files


def read_outputs(
    path: Path,
    *,
    needs_targets: bool,
    columns: Sequence[str | None] = (),
    expects: Task | None = None,
    reading: ReaderOptions | None = None,
) -> ModelOutputs:
    """Return the predictions and targets of one file.

    npz: arrays `probabilities` (or `predictions`, `logits`), `labels` (or `targets`) and, if there,
    `classes` and `ids`. npy: predictions. CSV and parquet: named columns; `label` (or `target`)
    is the truth, `id` names samples, the others are predictions, each class found by its name.

    Parameters
    ----------
    path : Path
        The file.
    needs_targets : bool
        Whether a file without them is refused.
    columns : sequence of str or None
        Arrays or columns that are none of these: a group. None is left out.
    expects : Task, optional
        What the predictions are of; told by the columns' names where it is not stated.
    reading : ReaderOptions, optional
        How the file is to be read.
    """
    options = reading or ReaderOptions()
    further_names = [name for name in columns if name is not None]
    if path.is_dir():
        raise RobfcpError(f"{path}: is a folder; name a file in it")
    if not path.is_file():
        raise RobfcpError(f"{path}: no such file; check the path")
    try:
        outputs = _read_file(path, further_names, expects, options)
        note = _repetition_note(outputs)
        if note:
            outputs.notes.append(f"{path}: {note}")
        if needs_targets and outputs.targets is None:
            raise RobfcpError(
                "holds no labels; call the column with the truth 'label', or name it with --label"
            )
    except OSError as error:
        raise RobfcpError(read_error(path, error)) from None
    except RobfcpError as error:
        raise RobfcpError(f"{path}: {error}") from None
    return outputs


def _read_file(
    path: Path, further_names: Sequence[str], task: Task | None, options: ReaderOptions
) -> ModelOutputs:
    """Return the outputs in a file by the reader of its format."""
    if not path.stat().st_size:
        raise RobfcpError("is empty; write it again")
    suffix = path.suffix.lower()
    if suffix in ARRAYS:
        return _outputs_of_arrays(path, further_names, task, options)
    if suffix == ".parquet":
        return _outputs_of_table(read_parquet(path), further_names, task, options)
    if suffix in TEXT_TABLES:
        return _outputs_of_table(read_csv(path), further_names, task, options)
    remedy = _REMEDIES.get(suffix, "use .csv, .npz, .npy or .parquet")
    raise RobfcpError(f"cannot read {suffix or 'a file without an ending'}; {remedy}")


def _repetition_note(outputs: ModelOutputs) -> str:
    """Return what to say of samples that a file holds more than once; empty for none."""
    n_copies = _n_copies_of_each_row(outputs)
    if n_copies > 1:
        times = "twice" if n_copies == 2 else f"{n_copies} times"
        return f"every row comes {times}; drop the copies, or each counts {times}."
    if outputs.ids is None:
        return ""
    n_repeated = len(outputs.ids) - len(np.unique(outputs.ids))
    if n_repeated == 0:
        return ""
    return f"{n_repeated} rows repeat an id; rows of one person count as if independent."


def _n_copies_of_each_row(outputs: ModelOutputs) -> int:
    """Return how often every row comes; 1 where that differs between rows."""
    predictions = outputs.predictions
    targets = outputs.targets
    if targets is None or len(predictions) < MIN_ROWS_REPEATED or predictions.ndim > 2:
        return 1
    if targets.dtype.kind in "US":
        # Words as numbers: the same word is the same number.
        targets = np.unique(targets, return_inverse=True)[1]
    rows = np.column_stack([predictions, targets]).astype(np.float64)
    counts = Counter(row.tobytes() for row in rows)
    different_counts = set(counts.values())
    return different_counts.pop() if len(different_counts) == 1 else 1


# Tables: first the role of each column, then a reader for each task.


@dataclass(frozen=True)
class ColumnRoles:
    """Which column of a table is what, by index.

    Attributes
    ----------
    label, ids : int or None
        The truth, and the samples' names.
    predictions : list of int
        All columns without another role.
    multilabel_targets : list of int
        A column a label: whether it is true.
    interval : tuple of int, optional
        The lower and the upper end, where the predictions are these two.
    """

    label: int | None
    ids: int | None
    predictions: list[int]
    multilabel_targets: list[int]
    interval: tuple[int, int] | None

    @property
    def values(self) -> list[int]:
        """The columns of predicted numbers: an interval's lower end first."""
        return self.predictions if self.interval is None else list(self.interval)


def _outputs_of_table(
    table: Table, further_names: Sequence[str], task: Task | None, options: ReaderOptions
) -> ModelOutputs:
    """Return the outputs in a table by the names of its columns."""
    further_columns = {name: table.column_index(name) for name in further_names}
    roles = _assign_roles(table, further_columns.values(), options)
    outputs = _outputs_without_predictions(table, further_columns, roles)
    if task == "labels" or (task is None and roles.multilabel_targets):
        return _read_multilabel(table, roles, outputs, options)
    if task != "classes":
        return _read_values(table, roles, outputs, options)

    labels = _class_labels(table, roles)
    score = _regression_score(table, roles, labels) if options.guess_task else ""
    if score:
        return replace(_read_values(table, roles, outputs, options), score=score)
    return _read_classes(table, roles, replace(outputs, targets=labels), options)


def _assign_roles(
    table: Table, further_columns: Collection[int], options: ReaderOptions
) -> ColumnRoles:
    """Return which column is what, by its name or as the options say."""
    lower_names = [name.lower() for name in table.names]
    all_columns = range(len(table.names))
    free_columns = [index for index in all_columns if index not in further_columns]
    label = _label_column(table, free_columns, options)
    ids = _id_column(table, free_columns, label, options)
    multilabel_targets = [
        index for index, name in enumerate(lower_names) if name.startswith(MULTILABEL)
    ]
    with_other_roles = {*multilabel_targets, label, ids}
    predictions = [index for index in free_columns if index not in with_other_roles]

    interval = None
    for lower, upper in _INTERVALS:
        if {lower_names[index] for index in predictions} == {lower, upper}:
            interval = (lower_names.index(lower), lower_names.index(upper))
    return ColumnRoles(label, ids, predictions, multilabel_targets, interval)


def _label_column(table: Table, free_columns: Sequence[int], options: ReaderOptions) -> int | None:
    """Return the column of the truth; None without one."""
    if options.label is not None:
        return table.column_index(options.label)
    columns_by_name = {table.names[index].lower(): index for index in free_columns}
    for name in TARGETS:
        if name in columns_by_name:
            return columns_by_name[name]
    return None


def _id_column(
    table: Table, free_columns: Sequence[int], label: int | None, options: ReaderOptions
) -> int | None:
    """Return the column of the samples' names; None without one."""
    if options.ids is not None:
        return table.column_index(options.ids)
    for index in free_columns:
        name = table.names[index]
        if index != label and name not in options.class_names and _ID_COLUMN.fullmatch(name):
            return index
    return None


def _outputs_without_predictions(
    table: Table, further_columns: Mapping[str, int], roles: ColumnRoles
) -> ModelOutputs:
    """Return what all tasks take from a table: ids, further columns, rows and notes."""
    columns = {}
    for name, index in further_columns.items():
        columns[name] = np.array(table.columns[index], dtype=str)
    ids = None
    if roles.ids is not None:
        ids = np.array(table.columns[roles.ids], dtype=str)
    no_predictions = np.zeros((len(table.rows), 0))
    return ModelOutputs(
        no_predictions, None, columns, ids=ids, rows=table.rows, notes=list(table.notes)
    )


def _read_multilabel(
    table: Table, roles: ColumnRoles, outputs: ModelOutputs, options: ReaderOptions
) -> ModelOutputs:
    """Return outputs with the probabilities of several labels, and which of them are true."""
    targets = None
    if roles.multilabel_targets:
        columns = []
        for index in roles.multilabel_targets:
            columns.append(table.numeric_column(index, allow_invalid=options.allow_invalid))
        targets = np.stack(columns, axis=1).astype(np.int64)
    predictions = _prediction_matrix(table, roles.predictions, options)
    return replace(outputs, predictions=predictions, targets=targets)


def _read_values(
    table: Table, roles: ColumnRoles, outputs: ModelOutputs, options: ReaderOptions
) -> ModelOutputs:
    """Return outputs with predicted numbers, or ends of intervals."""
    predictions = _prediction_matrix(table, roles.values, options)
    names = tuple(table.names[index] for index in roles.values)
    if roles.interval is not None and (predictions[:, 0] > predictions[:, 1]).mean() > 0.5:
        raise RobfcpError(
            f"{names[0].lower()} is above {names[1].lower()} in most rows; rename the columns"
        )

    targets = None
    if roles.label is not None:
        targets = table.numeric_column(roles.label, allow_invalid=options.allow_invalid)
    if len(names) == 1:
        return replace(outputs, predictions=predictions[:, 0], targets=targets)
    if targets is not None:
        targets = _integers_where_possible(targets)
    return replace(outputs, predictions=predictions, targets=targets, names=names)


def _class_labels(table: Table, roles: ColumnRoles) -> NDArray[Any] | None:
    """Return the labels of classes: text, integers, or numbers where they are measured values."""
    if roles.label is None:
        return None
    text = np.array(table.columns[roles.label], dtype=str)
    if len(roles.predictions) == 1:
        lower_text = np.char.lower(text)
        if np.isin(lower_text, BOOLS).all():
            return (lower_text == "true").astype(np.int64)
    if table.text_rows(roles.label):
        return text
    return _integers_where_possible(table.numeric_column(roles.label, allow_invalid=True))


def _regression_score(table: Table, roles: ColumnRoles, labels: NDArray[Any] | None) -> str:
    """Return the score of predicted numbers where a table holds these; empty where classes."""
    if labels is None or labels.dtype.kind not in "if":
        return ""
    names = [table.names[index] for index in roles.predictions]
    finite_labels = labels[np.isfinite(labels)]
    is_fractional = finite_labels != np.round(finite_labels)
    are_measured = bool(finite_labels.size) and is_fractional.mean() > MIN_MEASURED
    if are_measured and len(names) > 1 and roles.interval is None:
        raise RobfcpError(
            f"labels are measured values beside columns {abbreviate(names)}; "
            "keep one column of predictions, or two quantiles and call them lower and upper"
        )
    if len(names) == 1 and not are_measured and not np.isin(finite_labels, (0, 1)).all():
        raise RobfcpError(
            f"labels go from {finite_labels.min():g} to {finite_labels.max():g} beside one column, "
            f"{names[0]:.40}; write 0 and 1 if it is the probability of class 1, or pass "
            "--score absolute-residual if it predicts these numbers"
        )
    if roles.interval is not None:
        return "cqr"
    return "absolute-residual" if are_measured else ""


def _read_classes(
    table: Table, roles: ColumnRoles, outputs: ModelOutputs, options: ReaderOptions
) -> ModelOutputs:
    """Return outputs with class probabilities; their targets are the labels in the table."""
    if len(roles.predictions) == 1:
        (column,) = roles.predictions
        cells = TableCellNames(table, roles.label, [column, column])
        single_column = _prediction_matrix(table, roles.predictions, options)
        both_columns = binary_probabilities(
            outputs, single_column, table.names[column], options, cells
        )
        order = order_of_classes(BINARY_CLASSES, outputs.targets, options)
        predictions = both_columns[:, list(order.columns.order)]
        return with_class_probabilities(outputs, predictions, BINARY_CLASSES, order, options, cells)

    # Further columns need not be numbers: only those of classes are read.
    names = [table.names[index] for index in roles.predictions]
    order = order_of_classes(names, outputs.targets, options)
    class_columns = [roles.predictions[index] for index in order.columns.order]
    predictions = _prediction_matrix(table, class_columns, options)
    cells = TableCellNames(table, roles.label, roles.predictions)
    return with_class_probabilities(outputs, predictions, names, order, options, cells)


def _integers_where_possible(values: NDArray[np.float64]) -> NDArray[Any]:
    """Return (n,) numbers as integers where all of them are."""
    is_exact = np.isfinite(values) & (np.abs(values) < MAX_EXACT_INTEGER)
    if is_exact.all() and np.array_equal(values, np.round(values)):
        return values.astype(np.int64)
    return values


def _prediction_matrix(
    table: Table, columns: Sequence[int], options: ReaderOptions
) -> NDArray[np.float64]:
    """Return the (n, C) numbers of some columns."""
    if not columns:
        raise RobfcpError("holds no predictions; add a column a class, or one of predictions")
    if not options.allow_invalid:
        for column in columns:
            _check_numeric(table, column)
    values = [
        table.numeric_column(column, allow_invalid=options.allow_invalid) for column in columns
    ]
    return np.stack(values, axis=1)


def _check_numeric(table: Table, column: int) -> None:
    """Refuse a column of text with what it may be meant for, or a cell that is no number."""
    text_rows = table.text_rows(column)
    if not text_rows:
        return
    first_cell = table.columns[column][0]
    is_decimal_comma = first_cell.replace(",", "", 1).isdigit()
    if 2 * len(text_rows) > len(table.rows) and not is_decimal_comma:
        name = table.names[column]
        raise RobfcpError(
            f"{table.cell_name(0, column)}: {first_cell!r:.40} is no number; "
            f"pass --id {name:.40} if it names samples, --label {name:.40} if it is the truth, "
            "or the probabilities' names as --classes"
        )
    raise RobfcpError(table.not_a_number_message(text_rows[0], column))


# Arrays by name: never a pickle.


def _outputs_of_arrays(
    path: Path, further_names: Sequence[str], task: Task | None, options: ReaderOptions
) -> ModelOutputs:
    """Return the outputs in an npz archive by its arrays' names, or the array of an npy file."""
    arrays = _required_arrays(path, further_names, options)
    kind = next(name for name in PREDICTIONS if name in arrays)
    predictions = arrays[kind]
    target_names = TARGETS if options.label is None else [options.label]
    id_names = IDS if options.ids is None else [options.ids]
    n_rows = len(predictions) if predictions.ndim else 0
    outputs = ModelOutputs(
        predictions,
        _first_array(arrays, target_names),
        {name: arrays[name] for name in further_names},
        ids=_first_array(arrays, id_names),
        rows=range(1, n_rows + 1),
    )
    options = replace(options, logits=options.logits or kind == "logits")
    if task != "classes" or predictions.dtype.kind not in "fiu":
        return outputs

    if predictions.shape in ((n_rows,), (n_rows, 1)):
        cells = ArrayCellNames(range(2))
        predictions = binary_probabilities(outputs, predictions, kind, options, cells)
    if predictions.ndim != 2:
        return outputs
    n_columns = predictions.shape[1]
    names = arrays.get("classes", np.arange(n_columns)).astype(str).tolist()
    if len(names) != n_columns:
        raise RobfcpError(f"{len(names)} classes are named, but there are {n_columns} columns")
    cells = ArrayCellNames(range(n_columns))
    order = order_of_classes(names, outputs.targets, options)
    in_order = predictions[:, list(order.columns.order)]
    return with_class_probabilities(outputs, in_order, names, order, options, cells)


def _required_arrays(
    path: Path, further_names: Sequence[str], options: ReaderOptions
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file that have a role; refuse it without those asked for by name."""
    requested = [options.ids, options.label, *further_names]
    requested_names = [name for name in requested if name is not None]
    usual_names = ["classes", *IDS, *TARGETS, *PREDICTIONS]
    all_names, arrays = read_arrays(path, [*requested_names, *usual_names])
    for name in requested_names:
        if name not in arrays:
            raise RobfcpError(
                f"has no array {name!r}; it has {abbreviate(all_names) or 'none with a name'}"
            )
    for name, array in arrays.items():
        if array.ndim == 0:
            raise RobfcpError(f"array {name!r} is a single value; save one entry a sample")
    if not any(name in arrays for name in PREDICTIONS):
        raise RobfcpError(
            f"has arrays {abbreviate(sorted(all_names)) or '(none)'} but no 'probabilities'; "
            "save it with numpy.savez(path, probabilities=..., labels=...)"
        )
    return arrays


def _first_array(arrays: Mapping[str, NDArray[Any]], names: Sequence[str]) -> NDArray[Any] | None:
    """Return the array of the first of some names that there is; None without any."""
    return next((arrays[name] for name in names if name in arrays), None)
