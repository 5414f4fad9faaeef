"""Class probabilities, their columns and labels: found by name, checked, refused with a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._typing import FloatArray, IndexArray, IntArray
from robfcp._validation import abbreviate, as_array, as_float_array, as_integers, reject_missing
from robfcp.errors import RobfcpError

Probabilities = NDArray[np.floating]
Classes = tuple[str, ...] | int | None  # the names of the classes, or their number

BLOCK_BYTES = 2**21  # rows are handled in blocks that stay in the cache
_TEXT_KINDS = "USO"  # of numpy types: text, bytes, objects
_NAME_WITH_NUMBER = re.compile(r"(.*?)([0-9]{1,6})", re.DOTALL)


@dataclass(frozen=True)
class ClassColumns:
    """The classes of a table in their order.

    Attributes
    ----------
    order : tuple of int
        The column of each class.
    names : tuple of str
        The names of the classes; empty where they are the numbers from 0 on.
    """

    order: tuple[int, ...]
    names: tuple[str, ...]

    @staticmethod
    def names_of(table: Any) -> tuple[str, ...]:
        """Return the column names of a pandas, polars or pyarrow frame; empty for an array."""
        names = getattr(table, "column_names", None) or getattr(table, "columns", None)
        return () if names is None else tuple(str(name) for name in names)

    @classmethod
    def classes_of_names(
        cls, names: Sequence[str], labels: ArrayLike | None = None
    ) -> ClassColumns:
        """Return the classes that columns of these names stand for.

        p0, p1, p2 are the numbers from 0 on, in whatever order the columns stand. Where labels are
        text the classes are called as the labels are: prob_cat holds the label cat, and columns
        that do not begin with prob_ are none.

        Parameters
        ----------
        names : sequence of str
            The names of the columns, in their order.
        labels : (n,) array_like, optional
            Labels of samples; only text says how the classes are called.
        """
        if labels is not None:
            values = as_array("labels", labels)
            if values.dtype.kind in _TEXT_KINDS:
                label_names = set(values.ravel().astype(str).tolist())
                columns = cls._named_as_labels(names, label_names)
                if columns is not None:
                    return columns
        return cls._named_as_columns(names)

    @classmethod
    def _named_as_labels(cls, names: Sequence[str], label_names: set[str]) -> ClassColumns | None:
        """Return the columns called as labels are, after letters they share; None without any."""
        # Every column is a class. They may begin with the same letters, or with fewer of them.
        shared_prefix = commonprefix(list(names)) if len(names) > 1 else ""
        for length in range(len(shared_prefix) + 1):
            class_names = tuple(name[length:] for name in names)
            if all(class_names) and label_names <= set(class_names):
                return cls(tuple(range(len(names))), class_names)

        # Some columns are no classes, and do not begin as the classes do.
        prefix = _shortest_common_prefix(names, sorted(label_names))
        if not prefix:
            return None
        class_columns = [name.startswith(prefix) and name != prefix for name in names]
        order = tuple(column for column, is_class in enumerate(class_columns) if is_class)
        return cls(order, tuple(names[column].removeprefix(prefix) for column in order))

    @classmethod
    def _named_as_columns(cls, names: Sequence[str]) -> ClassColumns:
        """Return one class a column: by number where all names end with one, else by name."""
        columns = range(len(names))
        suffixes = _numeric_suffixes(names)
        if suffixes is None:
            return cls(tuple(columns), tuple(names))

        order = tuple(int(column) for column in np.argsort(suffixes))
        if sorted(suffixes) == list(columns):
            return cls(order, ())
        return cls(order, tuple(str(suffixes[column]) for column in order))

    @classmethod
    def columns_of_classes(cls, names: Sequence[str], classes: tuple[str, ...] | int) -> list[int]:
        """Return the column of each of a calibration's classes; p0, p1, ... are these in order.

        Columns may all begin with the same letters (prob_), and differ in capitals where that is
        clear.

        Parameters
        ----------
        names : sequence of str
            The names of the columns, in their order.
        classes : tuple of str or int
            The names of the classes, or their number.
        """
        class_names = () if isinstance(classes, int) else classes
        n_classes = _count_classes(classes)

        for spelling in (str, str.casefold):
            column_names = [spelling(name) for name in names]
            wanted_names = [spelling(name) for name in class_names]
            prefix = _shortest_common_prefix(column_names, wanted_names)
            if prefix is not None:
                return [column_names.index(prefix + name) for name in wanted_names]

        columns = cls.classes_of_names(names)
        names_from_1 = tuple(str(index + 1) for index in range(n_classes))
        if columns.names == names_from_1:
            raise RobfcpError(
                f"columns {abbreviate(names)} count from 1, the classes from 0; "
                "number the columns from 0 on, and the labels too"
            )
        are_other_names = bool(class_names) and bool(columns.names)
        if len(columns.order) != n_classes or are_other_names:
            raise RobfcpError(_other_columns_problem(names, class_names, n_classes))
        return list(columns.order)

    def label_indices(self, labels: ArrayLike) -> IntArray:
        """Return each label's position among the classes; -1 where it is none of them.

        Text is looked up among the names. So are numbers where the names are numbers; beside names
        that are words they count the classes' columns from 0, as these stand in the table; without
        names they are the classes.

        Parameters
        ----------
        labels : (n,) array_like
            Text, whole numbers, or objects of either.

        Returns
        -------
        (n,) array of int
        """
        values = as_array("labels", labels)
        if values.dtype.kind in _TEXT_KINDS:
            return self._indices_of_names(values)
        integers = as_integers(values)
        if self.names and _numeric_suffixes(self.names) is not None:
            return self._indices_of_names(integers)

        is_class = (integers >= 0) & (integers < len(self.order))
        class_indices = integers
        if self.names:
            class_of_column = np.argsort(self.order)
            class_indices = class_of_column[np.where(is_class, integers, 0)]
        return np.where(is_class, class_indices, -1)

    def _indices_of_names(self, values: NDArray[Any]) -> IntArray:
        """Return the positions among the classes of values that name them; -1 of other values."""
        names = self.names or tuple(str(index) for index in range(len(self.order)))
        index_of_name = {name: index for index, name in enumerate(names)}
        texts = [str(value) for value in values.ravel().tolist()]
        indices = [index_of_name.get(text, -1) for text in texts]
        return np.array(indices, dtype=np.int64).reshape(values.shape)


def _count_classes(classes: tuple[str, ...] | int) -> int:
    """Return the number of classes, of which the names or the number are given."""
    return classes if isinstance(classes, int) else len(classes)


def _shortest_common_prefix(names: Sequence[str], wanted_names: Sequence[str]) -> str | None:
    """Return the fewest letters that make every wanted name one of the names, put before it.

    None where there are no such letters, or a name stands twice.
    """
    if not wanted_names:
        return None
    available = set(names)
    if len(available) < len(names) or len(set(wanted_names)) < len(wanted_names):
        return None

    first = wanted_names[0]
    prefixes = {name.removesuffix(first) for name in names if name.endswith(first)}
    for prefix in sorted(prefixes, key=lambda prefix: (len(prefix), prefix)):
        if all(prefix + name in available for name in wanted_names):
            return prefix
    return None


def _other_columns_problem(names: Sequence[str], class_names: Sequence[str], n_classes: int) -> str:
    """Return why columns of these names are not the classes, and what to do."""
    lacking_names = sorted(set(class_names) - set(names))
    lacking = f"no column is called {lacking_names[0]!r:.40}; " if lacking_names else ""
    classes = abbreviate(class_names) or f"0 to {n_classes - 1}"
    return (
        f"{lacking}the classes are {classes}, the columns {abbreviate(names)}; "
        "rename the columns, and drop what is no class"
    )


def _numeric_suffixes(names: Sequence[str]) -> list[int] | None:
    """Return the numbers that names of one prefix end with; None where they do not, or repeat."""
    suffixes = []
    prefixes = set()
    for name in names:
        match = _NAME_WITH_NUMBER.fullmatch(name.strip())
        if match is None:
            return None
        prefixes.add(match[1])
        suffixes.append(int(match[2]))

    if len(prefixes) != 1 or len(set(suffixes)) < len(suffixes):
        return None
    return suffixes


def check_probabilities(probabilities: ArrayLike) -> Probabilities:
    """Return the (n, C) array; refuse a shape or type that cannot hold probabilities.

    The values are checked by `checked_blocks`.
    """
    table = as_array("probabilities", probabilities)
    if table.ndim != 2 or table.shape[1] < 2:
        raise RobfcpError(
            f"probabilities: shape {table.shape} is not (samples, classes >= 2); where p is that "
            "of class 1 alone, pass numpy.column_stack([1 - p, p]); where these are predicted "
            "numbers, make reports with score=robfcp.AbsoluteResidual()"
        )
    if table.dtype.kind == "O":
        table = as_float_array("probabilities", table)
    if table.dtype.kind != "f":
        raise RobfcpError(f"probabilities: dtype {table.dtype} is not floating point; pass floats")
    return table


def softmax(logits: ArrayLike) -> FloatArray:
    """Return class probabilities of logits: their softmax, in float64 so that scores keep digits.

    Parameters
    ----------
    logits : array_like, shape (n, C)
        Numbers of any float type, numpy's or a tensor's; (n,) or (n, 1) are the logits of
        class 1 of a model with two classes.

    Returns
    -------
    (n, C) array
        Rows that sum to 1.

    Raises
    ------
    RobfcpError
        Where a row holds NaN or positive infinity, or nothing but negative infinity.

    Examples
    --------
    >>> import robfcp
    >>> robfcp.softmax([[0.0, 0.0], [1000.0, 0.0]])
    array([[0.5, 0.5],
           [1. , 0. ]])
    >>> robfcp.softmax([0.0])
    array([[0.5, 0.5]])
    """
    values = as_float_array("logits", logits)
    is_one_column = values.ndim == 2 and values.shape[1] == 1
    if values.ndim == 1 or is_one_column:
        logits_of_class_1 = values.reshape(len(values))
        values = np.stack([np.zeros(len(values)), logits_of_class_1], axis=1)
    if values.ndim != 2 or not values.shape[1]:
        raise RobfcpError(f"logits: shape {values.shape} is not (samples, classes); reshape them")

    # Less the largest logit of each row no power overflows. NaN is the largest of its row too.
    largest = values.max(axis=1, keepdims=True)
    is_broken = ~np.isfinite(largest[:, 0])
    if is_broken.any():
        row = int(np.argmax(is_broken))
        raise RobfcpError(f"logits: row {row} holds NaN or infinity; check the model's output")
    powers = np.exp(values - largest)
    return powers / powers.sum(axis=1, keepdims=True)


def checked_blocks(table: Probabilities) -> Iterator[tuple[slice, Probabilities]]:
    """Yield blocks of rows; refuse negative or unnormalized ones, and NaN.

    Parameters
    ----------
    table : (n, C) array of float
        Probabilities.

    Yields
    ------
    slice
        The rows of the block.
    (r, C) array of float
        A view of them, of about BLOCK_BYTES.
    """
    row_bytes = table.shape[1] * table.itemsize
    rows_per_block = max(1, BLOCK_BYTES // max(1, row_bytes))
    for start in range(0, len(table), rows_per_block):
        rows = slice(start, min(start + rows_per_block, len(table)))
        block = table[rows]
        _refuse_negative(block, start)
        _refuse_unnormalized(block, start)
        yield rows, block


def _refuse_negative(block: Probabilities, first_row: int) -> None:
    """Refuse rows with negative values or NaN; errors count rows from `first_row` on."""
    # The minimum is the fast check; as NaN is not >= 0, it fails it too.
    if block.min() >= 0:
        return
    is_invalid = ~(block >= 0).all(axis=1)
    row = int(np.argmax(is_invalid))
    if np.isnan(block[row]).any():
        problem = "holds NaN; check the model's output"
    else:
        problem = "holds a negative value; are these logits? robfcp.softmax takes them"
    raise RobfcpError(f"probabilities: row {first_row + row} {problem}")


def _refuse_unnormalized(block: Probabilities, first_row: int) -> None:
    """Refuse rows that do not sum to 1; errors count rows from `first_row` on."""
    n_classes = block.shape[1]
    with np.errstate(over="ignore"):
        sums = block @ np.ones(n_classes, dtype=accumulator(block))
    is_invalid = ~(np.abs(sums - 1) <= sum_tolerance(n_classes))
    if is_invalid.any():
        row = int(np.argmax(is_invalid))
        raise RobfcpError(
            f"probabilities: row {first_row + row} sums to {sums[row]:.6g}, not 1; "
            "normalize the rows, or take logits through robfcp.softmax"
        )


def accumulator(block: Probabilities) -> type[np.floating]:
    """Return what rows are summed in: float32 where that is their type, else float64."""
    return np.float32 if block.dtype == np.float32 else np.float64


def sum_tolerance(n_classes: int) -> float:
    """Return how far a row of bfloat16 or float16 probabilities can be from 1, at most 1%.

    Entry j of a row rounds by at most 2^-9 p_j, which sums to 2^-9, or by 2^-25 where a float16 is
    subnormal. Twice the first is allowed.
    """
    return min(0.01, 2**-8 + n_classes * 2**-25)


def check_labels(
    labels: ArrayLike, shape: tuple[int, ...], names: Sequence[str] = (), *, field: str = "labels"
) -> IndexArray:
    """Return the column of each label, looked up where the columns have names.

    Parameters
    ----------
    labels : (n,) array_like
        Names of columns or their numbers.
    shape : tuple of int
        Of the table of the labels, (n, C).
    names : sequence of str, optional
        The names of its columns.
    field : str
        The argument that holds the labels, for errors.

    Returns
    -------
    (n,) array of int
        Column numbers from 0 to C - 1.
    """
    values = as_array(field, labels)
    n_rows = shape[0]
    if values.ndim != 1 or len(values) != n_rows:
        raise RobfcpError(
            f"{field}: shape {values.shape} does not fit {n_rows} rows; give one each"
        )
    reject_missing(field, values)

    kind = values.dtype.kind
    if names and kind in _TEXT_KINDS + "iu":
        return _named_columns_of_labels(values, names)
    if kind in _TEXT_KINDS:
        raise RobfcpError(
            "labels: are text; name the classes (a frame's columns, classes=) or encode them as "
            "column numbers"
        )
    if kind not in "iu":
        raise RobfcpError(f"labels: dtype {values.dtype} is not integer; encode classes as 0..C-1")

    last_column = shape[1] - 1
    if values.size and (values.min() < 0 or values.max() > last_column):
        raise RobfcpError(
            f"labels: {values.min()}..{values.max()} leaves 0..{last_column}; "
            "encode classes as column numbers; subtract 1 if they count from 1"
        )
    return values.astype(np.intp, copy=False)


def _named_columns_of_labels(values: NDArray[Any], names: Sequence[str]) -> IndexArray:
    """Return the column of each of n labels of text or numbers, among columns with names."""
    columns = ClassColumns.classes_of_names(names, values)
    class_indices = columns.label_indices(values)
    is_unknown = class_indices < 0
    if is_unknown.any():
        row = int(np.argmax(is_unknown))
        raise RobfcpError(
            f"labels: {values[row]!s:.40} of sample {row} is none of the columns "
            f"{abbreviate(list(names))}; rename the columns or the label"
        )
    return np.asarray(columns.order, dtype=np.intp)[class_indices]


def reorder_columns(probabilities: ArrayLike, classes: Classes) -> NDArray[Any]:
    """Return the probabilities as an array; a frame's columns in the order of the classes.

    Another number of classes than a calibration was made for is refused.

    Parameters
    ----------
    probabilities : (n, C) array_like or frame
        A frame's columns are found by name.
    classes : tuple of str, int or None
        The names of the calibration's classes, or their number; None takes the table as it is.

    Returns
    -------
    (n, C) array
    """
    table = as_array("probabilities", probabilities)
    if classes is None:
        return table

    names = ClassColumns.names_of(probabilities)
    if names:
        table = table[:, ClassColumns.columns_of_classes(names, classes)]
    n_classes = _count_classes(classes)
    if table.ndim == 2 and table.shape[1] != n_classes:
        raise RobfcpError(
            f"probabilities: {table.shape[1]} columns, but the calibration is for {n_classes} "
            "classes; use the model and the column order it was made with"
        )
    return table


def encode_labels(labels: ArrayLike, classes: Classes) -> NDArray[Any]:
    """Return (n,) labels as class numbers, looked up where they and the classes are text."""
    values = as_array("labels", labels)
    if values.dtype.kind not in _TEXT_KINDS or not isinstance(classes, tuple):
        return values
    return check_labels(values, (len(values), len(classes)), classes)
