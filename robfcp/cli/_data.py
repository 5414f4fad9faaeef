"""Model outputs from files: which column is what, and what is wrong with which cell."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from robfcp.arguments import a_few
from robfcp.cli._named_arrays import of_arrays
from robfcp.cli._outputs import TARGETS, Expects, FileOutputs, FileReading
from robfcp.cli._probabilities import as_probabilities
from robfcp.cli._tables import Table, read_csv, read_parquet
from robfcp.errors import RobfcpError
from robfcp.files import unreadable
from robfcp.scores import (
    ClassColumns,
    ClassificationScore,
    Risk,
    Score,
)

MULTILABEL = ("label_", "label:")  # one column a label, 0 or 1
_AN_ID = re.compile(r"|id|index|unnamed: 0|patientid|.+[_ -]id", re.IGNORECASE)
_ENDS = (("low", "high"), ("lower", "upper"))
_OTHERS = {
    ".xlsx": "save it as CSV UTF-8 in the spreadsheet",
    ".xls": "save it as CSV UTF-8 in the spreadsheet",
    ".ods": "save it as CSV in the spreadsheet",
    ".pt": "save arrays with numpy.savez; pickles are never opened",
    ".pth": "save arrays with numpy.savez; pickles are never opened",
    ".pkl": "save arrays with numpy.savez; pickles are never opened",
}

IdColumn = Annotated[
    str | None,
    typer.Option("--id", help="The column that names the samples; 'id' and the like by itself."),
]
LabelColumn = Annotated[
    str | None, typer.Option("--label", help="The column with the truth, if not 'label' or 'y'.")
]
ClassesOption = Annotated[
    str | None,
    typer.Option("--classes", help="The probability columns as a,b,c; others are left out."),
]
Logits = Annotated[bool, typer.Option("--logits", help="The columns are logits: take softmax.")]
Normalise = Annotated[
    bool, typer.Option("--normalise", help="Divide rows by their sums: rounded, or in percent.")
]


def reading_of(
    classes: str | None, logits: bool, normalise: bool, label: str | None = None
) -> FileReading:
    """What the options of a command say about a file."""
    names = None if classes is None else tuple(name.strip() for name in classes.split(","))
    if logits and normalise:
        raise RobfcpError("--normalise: the softmax of logits sums to 1 already; drop one of them")
    return FileReading(label=label, classes=names, logits=logits, normalise=normalise)


def expects(score: Score | None, risk: Risk | str | None = None) -> Expects:
    """What a score or a risk is computed from."""
    if risk is not None:
        return "labels"
    return "classes" if score is None or isinstance(score, ClassificationScore) else "values"


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
    readers: dict[str, Callable[[Path], Table]] = {
        ".csv": read_csv,
        ".tsv": read_csv,
        ".txt": read_csv,
        ".parquet": read_parquet,
    }
    try:
        if suffix in readers:
            table = readers[suffix](path)
            found = _of_table(table, aside, expects, how)
        elif suffix in (".npz", ".npy"):
            found = of_arrays(path, aside, expects, how)
        else:
            remedy = _OTHERS.get(suffix, "use .csv, .npz, .npy or .parquet")
            raise RobfcpError(f"cannot read {suffix or 'a file without an ending'}; {remedy}")
    except OSError as error:
        raise RobfcpError(unreadable(path, error)) from None
    except RobfcpError as error:
        text = str(error)
        raise RobfcpError(text if text.startswith(f"{path}: ") else f"{path}: {text}") from None
    if needs_targets and found.targets is None:
        raise RobfcpError(
            f"{path}: holds no labels; call the column with the truth 'label', or name it with "
            "--label"
        )
    return found


def _of_table(
    table: Table, aside: Sequence[str], kind: Expects | None, how: FileReading
) -> FileOutputs:
    """The parts of a table by the names of its columns."""
    further = {name: table.text(_place(table, name)) for name in aside}
    taken = {_place(table, name) for name in aside}
    label = _label_place(table, how, taken)
    taken |= set() if label is None else {label}
    ids = _id_place(table, how, taken)
    taken |= set() if ids is None else {ids}
    truths = [k for k, name in enumerate(table.names) if name.lower().startswith(MULTILABEL)]
    places = [k for k in range(len(table.names)) if k not in taken and k not in truths]
    found = FileOutputs(
        np.zeros((len(table), 0)),
        None,
        further,
        ids=None if ids is None else table.text(ids),
        rows=table.rows,
        notes=(*table.notes, *_taken_as_truth(table, label, how)),
    )
    if kind == "labels" or (kind is None and truths):
        truth = [table.numbers(k, lenient=how.lenient) for k in truths]
        targets = np.stack(truth, axis=1).astype(np.int64) if truths else None
        return replace(found, predictions=_matrix(table, places, how), targets=targets)
    if kind == "classes":
        raw = None if label is None else _labels(table, label)
        return _classified(table, places, raw, label, found, how)
    predictions = _matrix(table, _ends_in_order(table, places), how)
    values = None if label is None else table.numbers(label, lenient=how.lenient)
    if values is not None and predictions.shape[1] > 1:
        whole = bool((np.abs(values) < 2**53).all()) and np.array_equal(values, np.round(values))
        values = values.astype(np.int64) if whole else values
    names = tuple(table.names[k] for k in places) if predictions.shape[1] > 1 else ()
    flat = predictions[:, 0] if predictions.shape[1] == 1 else predictions
    return replace(found, predictions=flat, targets=values, names=names)


def _classified(
    table: Table,
    there: list[int],
    raw: NDArray[Any] | None,
    label: int | None,
    found: FileOutputs,
    how: FileReading,
) -> FileOutputs:
    """Class probabilities in the order of the classes, and each label's number."""
    names = [table.names[k] for k in there]
    columns = ClassColumns.called(names, raw)
    numbered = not columns.names
    if how.classes is not None:
        order = ClassColumns.of_classes(names, how.classes)
        if order is None:
            assert isinstance(how.classes, tuple)
            lacking = sorted(set(how.classes) - set(names))
            raise RobfcpError(
                f"no column is called {lacking[0]!r:.40}; the classes are {a_few(how.classes)}, "
                f"the columns {a_few(names)}; rename the columns"
            )
        columns = ClassColumns(tuple(order), how.classes if isinstance(how.classes, tuple) else ())
    chosen = [there[k] for k in columns.order]
    p = _matrix(table, chosen, how)
    targets = None
    if raw is not None:
        by_number = numbered and raw.dtype.kind not in "US"
        targets = (ClassColumns(columns.order, ()) if by_number else columns).numbers(raw)
    if targets is not None and label is not None and not how.lenient and (targets < 0).any():
        raise RobfcpError(_no_class(table, raw, targets, label, columns))
    where = [f"row {row}" for row in table.rows]
    called = [table.names[k] for k in chosen]
    p = as_probabilities(p, where, how, lambda row, k: table.cell(row, chosen[k]), called)
    return replace(found, predictions=p, targets=targets, names=columns.names)


def _no_class(
    table: Table,
    raw: NDArray[Any] | None,
    targets: NDArray[np.int64],
    label: int,
    columns: ClassColumns,
) -> str:
    """Which label is no class, and what the classes are."""
    row = int(np.argmax(targets < 0))
    shown = str(table.text(label)[row])
    where = table.cell(row, label)
    if not shown:
        return f"{where}: the label is missing; fill it in or drop the row"
    if columns.names:
        classes = a_few(columns.names)
    else:
        classes = f"0 to {len(columns.order) - 1}, as the columns are counted"
    return f"{where}: {shown!r:.40} is none of the classes {classes}; fix it or rename a column"


def _labels(table: Table, place: int) -> NDArray[Any]:
    """Labels as whole numbers where all are, else as text."""
    if table.is_text(place):
        return table.text(place)
    values = table.numbers(place, lenient=True)
    whole = np.isfinite(values) & (values == np.round(values)) & (np.abs(values) < 2**53)
    return values.astype(np.int64) if whole.all() else values


def _matrix(table: Table, places: Sequence[int], how: FileReading) -> NDArray[np.float64]:
    """(n, C) numbers of some columns."""
    if not places:
        raise RobfcpError("holds no predictions; add a column a class, or one of predictions")
    if not how.lenient:
        for place in places:
            if table.is_text(place):
                raise RobfcpError(_text_column(table, place))
    return np.stack([table.numbers(k, lenient=how.lenient) for k in places], axis=1)


def _text_column(table: Table, place: int) -> str:
    name = table.names[place]
    wrong = [row for row in range(len(table)) if table.is_text_cell(row, place)]
    first = str(table.text(place)[0])
    if len(wrong) < len(table) or first.replace(",", "", 1).isdigit():
        return table.no_number(wrong[0], place)
    return (
        f"{table.cell(0, place)}: {first!r:.40} is no number; pass --id {name:.40} if it names "
        f"samples, --label {name:.40} if it is the truth, or the probabilities' names as --classes"
    )


def _place(table: Table, name: str) -> int:
    place = table.find(name)
    if place is None:
        raise RobfcpError(f"has no column {name!r}; it has {a_few(table.names)}")
    return place


def _label_place(table: Table, how: FileReading, taken: set[int]) -> int | None:
    if how.label is not None:
        return _place(table, how.label)
    found = [table.find(name) for name in TARGETS]
    named = next((place for place in found if place is not None and place not in taken), None)
    return _words_of_classes(table, taken) if named is None else named


def _taken_as_truth(table: Table, label: int | None, how: FileReading) -> list[str]:
    """That a column was taken for the truth by what it holds, where its name does not say so."""
    if label is None or how.label is not None or table.names[label].lower() in TARGETS:
        return []
    return [f"Column {table.names[label]:.40} was taken as the truth: it holds the classes' names."]


def _words_of_classes(table: Table, taken: set[int]) -> int | None:
    """The one column of text whose words are the names of other columns; None without one."""
    texts = [k for k in range(len(table.names)) if k not in taken and table.is_text(k)]
    found = []
    for place in texts:
        others = [table.names[k] for k in range(len(table.names)) if k not in texts]
        words = sorted(set(table.text(place).tolist()) - {""})
        if len(words) > 1 and ClassColumns.named(others, words) is not None:
            found.append(place)
    return found[0] if len(found) == 1 else None


def _id_place(table: Table, how: FileReading, taken: set[int]) -> int | None:
    if how.ids is not None:
        return _place(table, how.ids)
    wanted = how.classes if isinstance(how.classes, tuple) else ()
    for place, name in enumerate(table.names):
        if place not in taken and name not in wanted and _AN_ID.fullmatch(name):
            return place
    return None


def _ends_in_order(table: Table, places: list[int]) -> list[int]:
    """Two columns called low and high in that order, others as they stand."""
    names = {table.names[k].lower(): k for k in places}
    for low, high in _ENDS:
        if set(names) == {low, high}:
            return [names[low], names[high]]
    return places
