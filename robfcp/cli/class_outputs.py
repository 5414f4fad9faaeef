"""Class probabilities of a file: the classes in order, labels by number, rows that sum to 1."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from robfcp._probabilities import ClassColumns, softmax, sum_tolerance
from robfcp._validation import abbreviate
from robfcp.cli.model_outputs import ModelOutputs, ReaderOptions
from robfcp.cli.table_files import Table
from robfcp.errors import RobfcpError

BINARY_CLASSES = ("0", "1")
MAX_NUMBERED = 2**31  # above every label that counts classes
PERCENT_TOLERANCE = 2.0  # how far rows of rounded percentages are off 100


class CellNames(Protocol):
    """What the cells of a file are called in messages."""

    def label_name(self, row: int) -> str:
        """Return what the cell of a row's label is called."""

    def prediction_name(self, row: int, column: int) -> str:
        """Return what the cell of one prediction is called."""

    def select(self, columns: Sequence[int]) -> CellNames:
        """Return the names where some columns of predictions are taken, in this order."""


@dataclass(frozen=True)
class TableCellNames:
    """The cells of a table.

    Attributes
    ----------
    table : Table
        It says what a spreadsheet calls a cell.
    label_column : int or None
        The table's column of labels.
    prediction_columns : sequence of int
        The table's columns of predictions.
    """

    table: Table
    label_column: int | None
    prediction_columns: Sequence[int]

    def label_name(self, row: int) -> str:
        """Return what the cell of a row's label is called."""
        return self.table.cell_name(row, self.label_column or 0)

    def prediction_name(self, row: int, column: int) -> str:
        """Return what the cell of one prediction is called."""
        return self.table.cell_name(row, self.prediction_columns[column])

    def select(self, columns: Sequence[int]) -> TableCellNames:
        """Return the names where some columns of predictions are taken, in this order."""
        return replace(self, prediction_columns=_select(self.prediction_columns, columns))


@dataclass(frozen=True)
class ArrayCellNames:
    """The cells of an array without names.

    Attributes
    ----------
    prediction_columns : sequence of int
        The array's columns of predictions.
    """

    prediction_columns: Sequence[int]

    def label_name(self, row: int) -> str:
        """Return what the cell of a row's label is called."""
        return f"row {row + 1}"

    def prediction_name(self, row: int, column: int) -> str:
        """Return what the cell of one prediction is called."""
        return f"row {row + 1}, column {self.prediction_columns[column] + 1}"

    def select(self, columns: Sequence[int]) -> ArrayCellNames:
        """Return the names where some columns of predictions are taken, in this order."""
        return ArrayCellNames(_select(self.prediction_columns, columns))


def _select(values: Sequence[int], indices: Sequence[int]) -> list[int]:
    """Return the values at some indices."""
    return [values[index] for index in indices]


def binary_probabilities(
    outputs: ModelOutputs,
    predictions: NDArray[Any],
    column_name: str,
    options: ReaderOptions,
    cells: CellNames,
) -> NDArray[Any]:
    """Return (n, 2) probabilities, or logits, of a binary model that gives one column.

    The column is that of class 1, unless its name ends with the name of class 0. What it is taken
    for is added to the notes of the outputs.
    """
    targets = outputs.targets
    if targets is not None and targets.dtype.kind == "U" and not options.class_names:
        remedy = "or name both as --classes NO,YES in the report"
        if options.classes is not None:
            remedy = "for these are the calibration's classes"
        raise RobfcpError(
            f"labels are words beside one column of probabilities, {column_name:.40}; "
            f"write 0 and 1, 1 where that column is right, {remedy}"
        )

    is_above_1 = predictions > 1
    must_be_probability = not options.logits and not options.allow_invalid
    if must_be_probability and is_above_1.any():
        row = int(np.argmax(is_above_1))
        value = float(predictions.ravel()[row])
        raise RobfcpError(
            f"{cells.prediction_name(row, 0)}: {value:.4g} is above 1 and no probability; divide "
            "percentages by 100, pass --logits for logits"
        )

    classes = options.class_names or BINARY_CLASSES
    name_of_class_0 = rf"(.*[^0-9])?(0|{re.escape(classes[0])})"
    is_of_class_0 = re.fullmatch(name_of_class_0, column_name, re.IGNORECASE) is not None
    quantity = "logit" if options.logits else "probability"
    class_name = classes[0] if is_of_class_0 else classes[1]
    outputs.notes.append(
        f"Column {column_name:.40} is taken as the {quantity} of class {class_name}."
    )

    complement = np.zeros_like(predictions) if options.logits else 1 - predictions
    if is_of_class_0:
        return np.column_stack([predictions, complement])
    return np.column_stack([complement, predictions])


@dataclass(frozen=True)
class ClassOrder:
    """The classes that the columns of a file stand for.

    Attributes
    ----------
    columns : ClassColumns
        The column of each class, and the classes' names.
    labels : ClassColumns
        The same as labels call the classes: by number where the file's columns are numbered.
    """

    columns: ClassColumns
    labels: ClassColumns


def order_of_classes(
    column_names: Sequence[str], labels: NDArray[Any] | None, options: ReaderOptions
) -> ClassOrder:
    """Return the classes in order: as the columns are called, or as a calibration has them."""
    columns = ClassColumns.classes_of_names(column_names, labels)
    are_numbered = not columns.names
    if options.classes is not None:
        order = ClassColumns.columns_of_classes(column_names, options.classes)
        columns = ClassColumns(tuple(order), options.class_names)

    labels_are_text = labels is not None and labels.dtype.kind in "US"
    if are_numbered and not labels_are_text:
        return ClassOrder(columns, ClassColumns(columns.order, ()))
    return ClassOrder(columns, columns)


def with_class_probabilities(
    outputs: ModelOutputs,
    predictions: NDArray[Any],
    column_names: Sequence[str],
    order: ClassOrder,
    options: ReaderOptions,
    cells: CellNames,
) -> ModelOutputs:
    """Return outputs with checked class probabilities, and with labels as class indices.

    Parameters
    ----------
    outputs : ModelOutputs
        Targets are the labels as the file has them. Notes are added to.
    predictions : (n, C) ndarray
        The columns of the classes, in their order.
    column_names : sequence of str
        What all columns of the file are called.
    order : ClassOrder
        The classes of `predictions`.
    options : ReaderOptions
        Whether rows are logits, or to be normalized, or may be invalid.
    cells : CellNames
        What the cells of all columns are called.
    """
    labels = outputs.targets
    targets = labels
    if labels is not None and labels.ndim == 1:
        targets = order.labels.label_indices(labels)
        if not options.allow_invalid:
            _check_labels(labels, targets, order.columns, cells)
        _note_labels_from_1(outputs, labels, targets, order.columns)

    names = [column_names[column] for column in order.columns.order]
    checked = _checked_probabilities(
        predictions, outputs.rows, options, cells.select(order.columns.order), names
    )
    return replace(outputs, predictions=checked, targets=targets, names=order.columns.names)


def _check_labels(
    labels: NDArray[Any], targets: NDArray[Any], columns: ClassColumns, cells: CellNames
) -> None:
    """Refuse labels that are none of the classes: those whose target is -1."""
    is_unknown = targets < 0
    if not is_unknown.any():
        return

    row = int(np.argmax(is_unknown))
    label = str(labels[row])
    cell_name = cells.label_name(row)
    if label in ("", "nan"):
        raise RobfcpError(f"{cell_name}: the label is missing; fill it in or drop the row")

    n_classes = len(columns.order)
    are_integers = labels.dtype.kind in "iu"
    if are_integers and labels.min() == 1 and labels.max() == n_classes:
        raise RobfcpError(
            f"labels are 1 to {n_classes}, and the {n_classes} columns count from 0; subtract 1 "
            "from every label, or call the columns by their labels"
        )

    classes = f"0 to {n_classes - 1}, as the columns are counted"
    if columns.names:
        classes = abbreviate(columns.names)
    raise RobfcpError(
        f"{cell_name}: {label!r:.40} is none of the classes {classes}; fix it or rename a column"
    )


def _note_labels_from_1(
    outputs: ModelOutputs, labels: NDArray[Any], targets: NDArray[Any], columns: ClassColumns
) -> None:
    """Note where labels begin at 1, so that they may count the classes from 1."""
    are_integers = labels.dtype.kind in "iu"
    if not are_integers or len(columns.order) <= 2 or "1" in columns.names:
        return
    if labels.min(initial=MAX_NUMBERED) != 1:
        return

    class_index = int(targets[np.argmin(labels)])
    class_name = columns.names[class_index] if columns.names else "1"
    outputs.notes.append(
        f"Labels begin at 1, taken as class {class_name}; subtract 1 if they count from 1."
    )


def _checked_probabilities(
    predictions: NDArray[Any],
    rows: Sequence[int],
    options: ReaderOptions,
    cells: CellNames,
    names: Sequence[str],
) -> NDArray[Any]:
    """Return (n, C) rows that are probabilities, by softmax or division where asked for.

    Others are refused by their row, or stay invalid where that is allowed.
    """
    if options.logits:
        return _softmax_of_logits(predictions, options, cells)
    probabilities = predictions
    if options.normalize:
        probabilities = _normalized(predictions, rows, options)
    if not options.allow_invalid:
        _check_signs(probabilities, cells)
        _check_sums(probabilities, rows, names)
    return probabilities


def _softmax_of_logits(
    predictions: NDArray[Any], options: ReaderOptions, cells: CellNames
) -> NDArray[np.float64]:
    """Return the softmax of each row; NaN where a logit is invalid and that is allowed."""
    logits = predictions.astype(np.float64)
    # A class may be impossible, but one must be possible.
    is_without_class = (logits == -np.inf).all(axis=1, keepdims=True)
    is_invalid = np.isnan(logits) | (logits == np.inf) | is_without_class
    if is_invalid.any() and not options.allow_invalid:
        row, column = np.argwhere(is_invalid)[0].tolist()
        raise RobfcpError(f"{cells.prediction_name(row, column)}: is no finite logit; fix it")

    is_invalid_row = is_invalid.any(axis=1, keepdims=True)
    probabilities = softmax(np.where(is_invalid_row, 0.0, logits))
    return np.where(is_invalid_row, np.nan, probabilities)


def _normalized(
    predictions: NDArray[Any], rows: Sequence[int], options: ReaderOptions
) -> NDArray[np.float64]:
    """Return rows divided by their sums; NaN where the sum is invalid and that is allowed."""
    sums = predictions.sum(axis=1, dtype=np.float64)
    is_invalid = ~((sums > 0) & np.isfinite(sums))
    if is_invalid.any() and not options.allow_invalid:
        row = int(np.argmax(is_invalid))
        raise RobfcpError(f"row {rows[row]}: sums to {sums[row]:.4g}; it cannot be normalized")
    with np.errstate(invalid="ignore", divide="ignore"):
        fractions = predictions.astype(np.float64) / sums[:, None]
    return np.where(is_invalid[:, None], np.nan, fractions)


def _check_signs(probabilities: NDArray[Any], cells: CellNames) -> None:
    """Refuse probabilities that are missing or negative."""
    is_invalid = ~(probabilities >= 0)
    if not is_invalid.any():
        return
    row, column = np.argwhere(is_invalid)[0].tolist()
    value = float(probabilities[row, column])
    cell_name = cells.prediction_name(row, column)
    if np.isnan(value):
        raise RobfcpError(f"{cell_name}: is missing or NaN; fill it in or drop the row")
    raise RobfcpError(f"{cell_name}: {value:.4g} is negative; pass --logits for logits")


def _check_sums(probabilities: NDArray[Any], rows: Sequence[int], names: Sequence[str]) -> None:
    """Refuse rows that do not sum to 1, with the remedy that is likely."""
    sums = probabilities.sum(axis=1, dtype=np.float64)
    tolerance = sum_tolerance(probabilities.shape[1])
    is_off = ~(np.abs(sums - 1) <= tolerance)
    if not is_off.any():
        return

    remedy = "; pass --logits for logits, --normalize for percentages or rounded numbers"
    if np.abs(sums - 100).max() <= PERCENT_TOLERANCE:
        remedy = "; divide percentages by 100, or pass --normalize"

    # A column without which all rows sum to 1 holds no probabilities.
    sums_without = sums[:, None] - probabilities
    is_superfluous = (np.abs(sums_without - 1) <= tolerance).all(axis=0)
    if is_superfluous.any():
        name = names[int(np.argmax(is_superfluous))]
        remedy = (
            f", but do without column {name:.40}; pass --id {name:.40} if it names samples, "
            f"--label {name:.40} if it is the truth, else the others as --classes"
        )
    row = int(np.argmax(is_off))
    raise RobfcpError(f"row {rows[row]}: the probabilities sum to {sums[row]:.6g}, not 1{remedy}")
