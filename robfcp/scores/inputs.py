"""Checks on class probabilities and labels, shared by every classification score."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.arguments import a_few, array, floats, refuse_missing
from robfcp.arguments import array as numbers
from robfcp.errors import RobfcpError

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

    @property
    def classes(self) -> tuple[str, ...] | int:
        """The names, or the number of classes where they have none."""
        return self.names or len(self.order)


def column_names(table: Any) -> tuple[str, ...]:
    """The names of a frame's columns, of pandas, polars or pyarrow; none of an array's."""
    names = getattr(table, "column_names", None) or getattr(table, "columns", None)
    return () if names is None else tuple(str(name) for name in names)


def class_columns(names: Sequence[str], labels: ArrayLike | None = None) -> ClassColumns:
    """The classes that columns of these names stand for.

    p0, p1, p2 are the numbers from 0 on, in whatever order the columns stand. Where labels are
    text the classes are called as the labels are: prob_cat holds the label cat, and columns that
    do not begin with prob_ are none.
    """
    everyone = tuple(range(len(names)))
    numbers = _numbers(names)
    found = None if labels is None else array("labels", labels)
    if found is not None and found.dtype.kind in "USO":
        wanted = set(found.ravel().astype(str).tolist())
        for called in _readings(names):
            if wanted <= set(called):
                return ClassColumns(everyone, called)
        start = _start(names, sorted(wanted))
        if start:  # the others do not begin as the classes do
            own = tuple(k for k in everyone if names[k].startswith(start) and names[k] != start)
            return ClassColumns(own, tuple(names[k][len(start) :] for k in own))
    if numbers is None:
        return ClassColumns(everyone, tuple(names))
    order = tuple(int(place) for place in np.argsort(numbers))
    if sorted(numbers) == list(everyone):
        return ClassColumns(order, ())
    return ClassColumns(order, tuple(str(numbers[place]) for place in order))


def places(names: Sequence[str], wanted: Sequence[str]) -> list[int] | None:
    """The column of each wanted class; None where one has none.

    Columns may all begin with the same letters (prob_), and differ in capitals where that is clear.
    """
    for spelled in (str, str.casefold):
        there = [spelled(name) for name in names]
        sought = [spelled(name) for name in wanted]
        start = _start(there, sought)
        if start is not None:
            return [there.index(start + name) for name in sought]
    return None


def _start(there: Sequence[str], sought: Sequence[str]) -> str | None:
    """The shortest letters that make each name sought one of those there; None without any."""
    if len(set(there)) < len(there) or len(set(sought)) < len(sought) or not sought:
        return None
    starts = {own[: len(own) - len(sought[0])] for own in there if own.endswith(sought[0])}
    fitting = [start for start in starts if all(start + name in there for name in sought)]
    return min(fitting, key=len, default=None)


def label_numbers(labels: ArrayLike, columns: ClassColumns) -> NDArray[np.int64]:
    """(n,) each label's place among the classes; -1 where it is none of them.

    Text is looked up among the names. So are numbers where the names are numbers; beside names that
    are words they count the classes' columns from 0, as these stand in the table; without names
    they are the classes.
    """
    values = array("labels", labels)
    n_classes, names = len(columns.order), columns.names
    if values.dtype.kind in "USO":
        called = names or tuple(str(number) for number in range(n_classes))
        texts = np.array([str(value) for value in values.ravel()], dtype=str)
        return _looked_up(texts, called).reshape(values.shape)
    whole = np.asarray(values, dtype=np.float64)
    fits = np.isfinite(whole) & (whole == np.round(whole)) & (np.abs(whole) < 2**53)
    number = np.where(fits, whole, -1).astype(np.int64)
    if names and _numbers(names) is not None:
        return np.where(fits, _looked_up(number.astype(str), names), -1)
    inside = (number >= 0) & (number < n_classes)
    if names:
        number = np.argsort(columns.order)[np.where(inside, number, 0)]
    return np.where(inside, number, -1)


def label_columns(labels: ArrayLike, names: Sequence[str]) -> NDArray[np.intp]:
    """(n,) the column each label means, of a frame with columns of these names."""
    columns = class_columns(names, labels)
    number = label_numbers(labels, columns)
    if (number < 0).any():
        row = int(np.argmax(number.ravel() < 0))
        raise RobfcpError(
            f"labels: {array('labels', labels).ravel()[row]!s:.40} of sample {row} is none of the "
            f"columns {a_few(list(names))}; rename the columns or the label"
        )
    return np.asarray(columns.order, dtype=np.intp)[number]


def _looked_up(texts: NDArray[np.str_], names: Sequence[str]) -> NDArray[np.int64]:
    """The place of each text among the names, -1 where it is none of them."""
    known = {name: place for place, name in enumerate(names)}
    each, which = np.unique(texts, return_inverse=True)
    found = np.array([known.get(str(text), -1) for text in each], dtype=np.int64)
    return found[which.ravel()] if len(each) else np.zeros(0, dtype=np.int64)


def _numbers(names: Sequence[str]) -> list[int] | None:
    """The numbers that names of one prefix end with; None where they do not, or one comes twice."""
    found = [_NUMBERED.fullmatch(name.strip()) for name in names]
    parts = [match.groups() for match in found if match is not None]
    numbers = [int(digits) for _, digits in parts]
    same = len(parts) == len(names) and len({prefix for prefix, _ in parts}) == 1
    return numbers if same and len(set(numbers)) == len(names) else None


def _readings(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The names as they stand, then without more and more of what they begin with in common."""
    shared = commonprefix(list(names)) if len(names) > 1 else ""
    for length in range(len(shared) + 1):
        called = tuple(name[length:] for name in names)
        if all(called):
            yield called


Probabilities = NDArray[np.floating]
BLOCK_BYTES = 2**20  # rows are handled in blocks that stay in the cache


def check_probabilities(probabilities: ArrayLike) -> Probabilities:
    """The (n, C) array itself, refused when a row cannot be a probability vector."""
    array = numbers("probabilities", probabilities)
    if array.ndim != 2 or array.shape[1] < 2:
        raise RobfcpError(
            f"probabilities: shape {array.shape} is not (samples, classes >= 2); reshape them"
        )
    if array.dtype.kind == "O":
        array = floats("probabilities", array)
    if array.dtype.kind != "f":
        raise RobfcpError(
            f"probabilities: dtype {array.dtype} is not floating point; pass class probabilities"
        )
    return array


def from_logits(logits: ArrayLike) -> NDArray[np.float64]:
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
    >>> robfcp.from_logits([[0.0, 0.0], [1000.0, 0.0]])
    array([[0.5, 0.5],
           [1. , 0. ]])
    >>> robfcp.from_logits([0.0])
    array([[0.5, 0.5]])
    """
    values = floats("logits", logits)
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


def row_blocks(array: NDArray[np.generic]) -> Iterator[slice]:
    """Slices of rows that each hold about BLOCK_BYTES."""
    step = max(1, BLOCK_BYTES // max(1, array.shape[1] * array.itemsize))
    for start in range(0, len(array), step):
        yield slice(start, min(start + step, len(array)))


def check_rows(block: Probabilities, first: int, total: NDArray[np.floating] | None = None) -> None:
    """Refuse negative, NaN or unnormalised rows; the sum may be off by the dtype's rounding.

    `total` are the rows' sums where they are known already.
    """
    lowest = block.min() if block.size else 0.0
    if not lowest >= 0:  # NaN fails this too
        row = first + int(np.argmax(~(block >= 0).all(axis=1)))
        if np.isnan(block[row - first]).any():
            problem = "holds NaN; check the model's output"
        else:
            problem = "holds a negative value; are these logits? robfcp.from_logits takes them"
        raise RobfcpError(f"probabilities: row {row} {problem}")
    if total is None:
        with np.errstate(over="ignore"):
            total = np.einsum("ij->i", block, dtype=accumulator(block), casting="same_kind")
    wrong = ~(np.abs(total - 1) <= sum_tolerance(block.shape[1]))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise RobfcpError(
            f"probabilities: row {first + row} sums to {total[row]:.6g}, not 1; "
            "normalise the rows, or take logits through robfcp.from_logits"
        )


def accumulator(block: Probabilities) -> type[np.floating]:
    """What rows are summed in: float32 where they are, to the digits they have, else float64."""
    return np.float32 if block.dtype == np.float32 else np.float64


def sum_tolerance(n_classes: int) -> float:
    """How far a row of bfloat16 or float16 probabilities can be from 1: an ulp each, at most 1%."""
    # Entry j rounds by at most 2^-9 p_j (sum <= 2^-9), or by 2^-25 where a float16 is subnormal.
    return min(0.01, 2**-8 + n_classes * 2**-25)


def check_labels(
    labels: ArrayLike, n_samples: int, n_classes: int, names: Sequence[str] = ()
) -> NDArray[np.intp]:
    """Labels as (n,) class numbers, looked up where the columns have names."""
    array = numbers("labels", labels)
    if array.ndim != 1 or len(array) != n_samples:
        raise RobfcpError(
            f"labels: shape {array.shape} does not fit {n_samples} samples; give one per row"
        )
    refuse_missing("labels", array)
    if names and array.dtype.kind in "USOiu":
        return label_columns(array, names)
    if array.dtype.kind in "USO":
        raise RobfcpError(
            "labels: are text; name the classes (a frame's columns, classes=) or encode them as "
            "column numbers"
        )
    if array.dtype.kind not in "iu":
        raise RobfcpError(f"labels: dtype {array.dtype} is not integer; encode classes as 0..C-1")
    if array.size and (array.min() < 0 or array.max() >= n_classes):
        raise RobfcpError(
            f"labels: {array.min()}..{array.max()} leaves 0..{n_classes - 1}; "
            "encode classes as column numbers"
        )
    return array.astype(np.intp, copy=False)
