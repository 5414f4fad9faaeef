"""Which column of a table stands for which class, by the columns' names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._util.names import a_few
from robfcp._util.numbers import array
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
