"""Class probabilities, their columns and labels: found by name, checked, refused with a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._validation import abbreviate, as_array, as_float_array, as_integers, reject_missing
from robfcp.errors import RobfcpError

Probabilities = NDArray[np.floating]
Classes = tuple[str, ...] | int | None
BLOCK_BYTES = 2**21  # rows are handled in blocks that stay in the cache
_NUMBERED = re.compile(r"(.*?)([0-9]{1,6})", re.DOTALL)


@dataclass(frozen=True)
class ClassColumns:
    """The classes of a table in their order.

    Attributes
    ----------
    order
        Each class's column.
    names
        The classes' names; none where they are the numbers from 0 on.
    """

    order: tuple[int, ...]
    names: tuple[str, ...]

    @staticmethod
    def names_of(table: Any) -> tuple[str, ...]:
        """The names of a frame's columns, of pandas, polars or pyarrow; none of an array's."""
        names = getattr(table, "column_names", None) or getattr(table, "columns", None)
        return () if names is None else tuple(str(name) for name in names)

    @classmethod
    def classes_of_names(
        cls, names: Sequence[str], labels: ArrayLike | None = None
    ) -> ClassColumns:
        """The classes that columns of these names stand for.

        p0, p1, p2 are the numbers from 0 on, in whatever order the columns stand. Where labels are
        text the classes are called as the labels are: prob_cat holds the label cat, and columns
        that do not begin with prob_ are none.
        """
        everyone = tuple(range(len(names)))
        given = None if labels is None else as_array("labels", labels)
        if given is not None and given.dtype.kind in "USO":
            wanted = set(given.ravel().astype(str).tolist())
            for length in range(len(commonprefix(list(names)) if len(names) > 1 else "") + 1):
                called = tuple(name[length:] for name in names)
                if all(called) and wanted <= set(called):
                    return cls(everyone, called)
            start = _common_prefix(names, sorted(wanted))
            if start:  # the others do not begin as the classes do
                own = tuple(k for k in everyone if names[k].startswith(start) and names[k] != start)
                return cls(own, tuple(names[k][len(start) :] for k in own))
        numbers = _numeric_suffixes(names)
        if numbers is None:
            return cls(everyone, tuple(names))
        order = tuple(int(place) for place in np.argsort(numbers))
        counted = sorted(numbers) == list(everyone)
        return cls(order, () if counted else tuple(str(numbers[place]) for place in order))

    @classmethod
    def columns_of_classes(cls, names: Sequence[str], classes: tuple[str, ...] | int) -> list[int]:
        """The column of each of a calibration's classes; p0, p1, ... are these in their order.

        Columns may all begin with the same letters (prob_), and differ in capitals where that is
        clear.
        """
        columns, words = cls.classes_of_names(names), () if isinstance(classes, int) else classes
        size = classes if isinstance(classes, int) else len(classes)
        for spelled in (str, str.casefold):
            there, sought = [*map(spelled, names)], [*map(spelled, words)]
            start = _common_prefix(there, sought)
            if start is not None:
                return [there.index(start + name) for name in sought]
        if columns.names == tuple(map(str, range(1, size + 1))):
            raise RobfcpError(
                f"columns {abbreviate(names)} count from 1, the classes from 0; "
                "number the columns from 0 on, and the labels too"
            )
        if len(columns.order) != size or (words and columns.names):
            lacking = [
                f"no column is called {name!r:.40}; " for name in sorted({*words} - {*names})
            ]
            raise RobfcpError(
                f"{''.join(lacking[:1])}the classes are {abbreviate(words) or f'0 to {size - 1}'}, "
                f"the columns {abbreviate(names)}; rename the columns, and drop what is no class"
            )
        return list(columns.order)

    def label_indices(self, labels: ArrayLike) -> NDArray[np.int64]:
        """(n,) each label's place among the classes; -1 where it is none of them.

        Text is looked up among the names. So are numbers where the names are numbers; beside names
        that are words they count the classes' columns from 0, as these stand in the table; without
        names they are the classes.
        """
        values = as_array("labels", labels)
        text = values.dtype.kind in "USO"
        number = np.zeros(0) if text else as_integers(values)
        if text or (self.names and _numeric_suffixes(self.names) is not None):
            names = self.names or tuple(str(place) for place in range(len(self.order)))
            known = {name: place for place, name in enumerate(names)}
            each = (values if text else number).ravel().tolist()
            places = [known.get(str(one), -1) for one in each]
            return np.array(places, dtype=np.int64).reshape(values.shape)
        inside = (number >= 0) & (number < len(self.order))
        if self.names:
            number = np.argsort(self.order)[np.where(inside, number, 0)]
        return np.where(inside, number, -1)


def _common_prefix(there: Sequence[str], sought: Sequence[str]) -> str | None:
    """The shortest letters that make each name sought one of those there; None without any."""
    if len(set(there)) < len(there) or len(set(sought)) < len(sought) or not sought:
        return None
    starts = {own[: len(own) - len(sought[0])] for own in there if own.endswith(sought[0])}
    fitting = [start for start in starts if all(start + name in there for name in sought)]
    return min(fitting, key=len, default=None)


def _numeric_suffixes(names: Sequence[str]) -> list[int] | None:
    """The numbers that names of one prefix end with; None where they do not, or one comes twice."""
    matches = [_NUMBERED.fullmatch(name.strip()) for name in names]
    parts = [match.groups() for match in matches if match is not None]
    numbers = [int(digits) for _, digits in parts]
    same = len(parts) == len(names) and len({prefix for prefix, _ in parts}) == 1
    return numbers if same and len(set(numbers)) == len(names) else None


def check_probabilities(probabilities: ArrayLike) -> Probabilities:
    """The (n, C) array itself, refused when a row cannot be a probability vector."""
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


def softmax(logits: ArrayLike) -> NDArray[np.float64]:
    """Class probabilities of logits: their softmax, in float64 so that scores keep their digits.

    Parameters
    ----------
    logits
        (n, C) numbers of any float type, numpy's or a tensor's; (n,) or (n, 1) are the logits of
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
    if values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1):
        values = np.stack([np.zeros(len(values)), values.reshape(len(values))], axis=1)
    if values.ndim != 2 or not values.shape[1]:
        raise RobfcpError(f"logits: shape {values.shape} is not (samples, classes); reshape them")
    top = values.max(axis=1, keepdims=True)
    wrong = ~np.isfinite(top[:, 0])  # NaN comes to the top too
    if wrong.any():
        raise RobfcpError(
            f"logits: row {int(np.argmax(wrong))} holds NaN or infinity; check the model's output"
        )
    powers = np.exp(values - top)
    return powers / powers.sum(axis=1, keepdims=True)


def checked_blocks(table: Probabilities) -> Iterator[tuple[slice, Probabilities]]:
    """Blocks of rows of about BLOCK_BYTES; negative, NaN or unnormalised ones are refused."""
    step = max(1, BLOCK_BYTES // max(1, table.shape[1] * table.itemsize))
    for start in range(0, len(table), step):
        rows = slice(start, min(start + step, len(table)))
        block = table[rows]
        if not block.min() >= 0:  # NaN fails this too
            row = int(np.argmax(~(block >= 0).all(axis=1)))
            if np.isnan(block[row]).any():
                problem = "holds NaN; check the model's output"
            else:
                problem = "holds a negative value; are these logits? robfcp.softmax takes them"
            raise RobfcpError(f"probabilities: row {start + row} {problem}")
        with np.errstate(over="ignore"):
            total = block @ np.ones(block.shape[1], dtype=accumulator(block))
        wrong = ~(np.abs(total - 1) <= sum_tolerance(block.shape[1]))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise RobfcpError(
                f"probabilities: row {start + row} sums to {total[row]:.6g}, not 1; "
                "normalise the rows, or take logits through robfcp.softmax"
            )
        yield rows, block


def accumulator(block: Probabilities) -> type[np.floating]:
    """What rows are summed in: float32 where they are, to the digits they have, else float64."""
    return np.float32 if block.dtype == np.float32 else np.float64


def sum_tolerance(n_classes: int) -> float:
    """How far a row of bfloat16 or float16 probabilities can be from 1: an ulp each, at most 1%."""
    # Entry j rounds by at most 2^-9 p_j (sum <= 2^-9), or by 2^-25 where a float16 is subnormal.
    return min(0.01, 2**-8 + n_classes * 2**-25)


def check_labels(
    labels: ArrayLike, shape: tuple[int, ...], names: Sequence[str] = ()
) -> NDArray[np.intp]:
    """Labels as (n,) column numbers of an (n, C) table, looked up where the columns have names."""
    given = as_array("labels", labels)
    if given.ndim != 1 or len(given) != shape[0]:
        raise RobfcpError(
            f"labels: shape {given.shape} does not fit {shape[0]} rows; give one each"
        )
    reject_missing("labels", given)
    if names and given.dtype.kind in "USOiu":
        columns = ClassColumns.classes_of_names(names, given)
        number = columns.label_indices(given)
        if (number < 0).any():
            row = int(np.argmax(number < 0))
            raise RobfcpError(
                f"labels: {given[row]!s:.40} of sample {row} is none of the columns "
                f"{abbreviate(list(names))}; rename the columns or the label"
            )
        return np.asarray(columns.order, dtype=np.intp)[number]
    if given.dtype.kind in "USO":
        raise RobfcpError(
            "labels: are text; name the classes (a frame's columns, classes=) or encode them as "
            "column numbers"
        )
    if given.dtype.kind not in "iu":
        raise RobfcpError(f"labels: dtype {given.dtype} is not integer; encode classes as 0..C-1")
    if given.size and (given.min() < 0 or given.max() >= shape[1]):
        raise RobfcpError(
            f"labels: {given.min()}..{given.max()} leaves 0..{shape[1] - 1}; "
            "encode classes as column numbers; subtract 1 if they count from 1"
        )
    return given.astype(np.intp, copy=False)


def reorder_columns(probabilities: ArrayLike, classes: Classes) -> NDArray[Any]:
    """The probabilities as an array; a frame's columns in the order of the classes, by name.

    Another number of classes than a calibration was made for is refused.
    """
    table, names = as_array("probabilities", probabilities), ClassColumns.names_of(probabilities)
    if classes is None:
        return table
    wanted = classes if isinstance(classes, int) else len(classes)
    if names:
        table = table[:, ClassColumns.columns_of_classes(names, classes)]
    if table.ndim == 2 and table.shape[1] != wanted:
        raise RobfcpError(
            f"probabilities: {table.shape[1]} columns, but the calibration is for {wanted} classes;"
            " use the model and the column order it was made with"
        )
    return table


def encode_labels(labels: ArrayLike, classes: Classes) -> NDArray[Any]:
    """Labels as class numbers, looked up where they are text and the classes have names."""
    found = as_array("labels", labels)
    if found.dtype.kind not in "USO" or not isinstance(classes, tuple):
        return found
    return check_labels(found, (len(found), len(classes)), classes)
