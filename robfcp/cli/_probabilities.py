"""Rows of a file that should be probabilities: checked, or made so where that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp.cli._outputs import FileReading
from robfcp.errors import RobfcpError
from robfcp.scores import from_logits, sum_tolerance

Cell = Callable[[int, int], str]


def as_probabilities(
    p: NDArray[Any],
    where: Sequence[str],
    how: FileReading,
    cell: Callable[[int, int], str],
    names: Sequence[str] = (),
) -> NDArray[Any]:
    """Rows that are probabilities, by softmax or division where asked; else refused by place."""
    if how.logits:
        return softmax_rows(p, where, cell, lenient=how.lenient)
    if how.normalise:
        p = sums_to_one(p, where, lenient=how.lenient)
    return p if how.lenient else checked_rows(p, where, cell, names)


def softmax_rows(
    table: NDArray[Any], where: Sequence[str], cell: Cell, *, lenient: bool
) -> NDArray[np.float64]:
    """The softmax of each row; a row that has none is refused, or becomes NaN."""
    values = table.astype(np.float64)
    wrong = np.isnan(values) | (values == np.inf)
    wrong |= (values == -np.inf).all(axis=1, keepdims=True)
    bad = wrong.any(axis=1)
    if bad.any() and not lenient:
        row = int(np.argmax(bad))
        raise RobfcpError(f"{cell(row, int(np.argmax(wrong[row])))}: is no finite logit; fix it")
    p = from_logits(np.where(bad[:, None], 0.0, values))
    p[bad] = np.nan
    return p


def sums_to_one(table: NDArray[Any], where: Sequence[str], *, lenient: bool) -> NDArray[np.float64]:
    """Each row divided by its sum; a row without one is refused, or becomes NaN."""
    values = table.astype(np.float64)
    total = values.sum(axis=1, keepdims=True)
    bad = ~((total > 0) & np.isfinite(total))[:, 0]
    if bad.any() and not lenient:
        row = int(np.argmax(bad))
        raise RobfcpError(f"{where[row]}: sums to {total[row, 0]:.4g}; it cannot be normalised")
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(bad[:, None], np.nan, values / total)


def checked_rows(
    table: NDArray[Any], where: Sequence[str], cell: Cell, names: Sequence[str] = ()
) -> NDArray[Any]:
    """The rows themselves, refused by the first cell or row that is no probability."""
    wrong = ~(table >= 0)
    if wrong.any():
        row = int(np.argmax(wrong.any(axis=1)))
        column = int(np.argmax(wrong[row]))
        place, value = cell(row, column), float(table[row, column])
        if np.isnan(value):
            raise RobfcpError(f"{place}: is missing or NaN; fill it in or drop the row")
        raise RobfcpError(
            f"{place}: {value:.4g} is negative and no probability; pass --logits for logits"
        )
    total = table.sum(axis=1, dtype=np.float64)
    off = ~(np.abs(total - 1) <= sum_tolerance(table.shape[1]))
    if off.any():
        row = int(np.argmax(off))
        raise RobfcpError(f"{where[row]}: {_remedy(table, total, row, names)}")
    return table


def _remedy(table: NDArray[Any], total: NDArray[np.float64], row: int, names: Sequence[str]) -> str:
    """Why rows do not sum to 1, as far as the table shows it."""
    near = sum_tolerance(table.shape[1])
    problem = f"the probabilities sum to {total[row]:.6g}, not 1"
    if len(names) == table.shape[1]:
        for column, name in enumerate(names):
            if (np.abs(total - table[:, column] - 1) <= near).all():
                return (
                    f"{problem}, but do without column {name:.40}; pass --id {name:.40} if it is "
                    "an index, else the others as --classes"
                )
    if abs(np.median(total) - 100) < 5:
        return f"{problem}; if these are percentages, pass --normalise"
    if np.abs(total - 1).max() <= 0.01 * table.shape[1]:
        return f"{problem}; if they were rounded, pass --normalise"
    return f"{problem}; pass --logits if these are logits, --normalise if they need dividing"
