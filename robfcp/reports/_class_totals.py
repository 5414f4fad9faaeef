"""Class totals: how many samples of each class a client has, rounded as its counts are coarsened.

They stand in a report beside one table of counts of all classes together, never beside counts by
class: of two tables of the same samples a reader could subtract one from the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from robfcp._typing import IntArray
from robfcp._validation import as_array, set_fields
from robfcp.errors import RobfcpError
from robfcp.reports._strata import StratumNames, check_stratum_names, n_strata


@dataclass(frozen=True, eq=False)
class ClassTotals:
    """A client's samples of each class, to the nearest multiple of its minimum cell count.

    Parameters
    ----------
    names : StratumNames
        The classes' names in order, or only their number.
    totals : ndarray of int, shape (C,)
        Rounded numbers of samples.
    """

    names: StratumNames
    totals: IntArray

    def __post_init__(self) -> None:
        names = check_stratum_names("class", self.names)
        totals = as_array("class_totals", self.totals)
        if totals.ndim != 1 or totals.dtype.kind not in "iu" or len(totals) != n_strata(names):
            raise RobfcpError(
                f"class_totals: need one whole number for each of {n_strata(names)} classes; "
                "rebuild the report"
            )
        set_fields(self, names=names, totals=totals.astype(np.int64))

    @staticmethod
    def of(class_sizes: ArrayLike, names: StratumNames, min_cell_count: int) -> ClassTotals | None:
        """Round the sizes of the classes; None where nothing is left of them.

        Parameters
        ----------
        class_sizes : (C,) array-like of int
            The samples of each class.
        names : tuple of str or int
            The classes' names, or their number.
        min_cell_count : int
            The minimum cell count, to a multiple of which sizes are rounded.
        """
        totals = round_class_totals(np.asarray(class_sizes, dtype=np.int64), min_cell_count)
        if not totals.any():
            return None
        return ClassTotals(names, totals)


def round_class_totals(class_sizes: IntArray, min_cell_count: int) -> IntArray:
    """Return sizes of classes, of any shape, to the nearest multiple of the minimum cell count.

    Half of it is rounded up.
    """
    return (2 * class_sizes + min_cell_count) // (2 * min_cell_count) * min_cell_count


def class_size_bounds(totals: IntArray, min_cell_count: IntArray) -> tuple[IntArray, IntArray]:
    """Return the least and the most samples that classes with these rounded totals can have.

    A class of s samples has a total T, a multiple of the minimum cell count m, with
    T - m // 2 <= s <= T + (m - 1) // 2, and s >= 0.

    Parameters
    ----------
    totals : ndarray of int
        T, of any shape.
    min_cell_count : ndarray of int
        m, of a shape that fits that of the totals.
    """
    return np.maximum(totals - min_cell_count // 2, 0), totals + (min_cell_count - 1) // 2


def find_problem_of_totals(totals: Sequence[int], n_samples: int, min_cell_count: int) -> str:
    """Return why rounded totals cannot be those of a report's samples; empty where they can.

    Parameters
    ----------
    totals : (C,) sequence of int
        The stated totals.
    n_samples : int
        The stated number of samples, of all classes together.
    min_cell_count : int
        The stated minimum cell count.
    """
    if min(totals, default=0) < 0:
        return "a total is negative"
    if not any(totals):
        return "all totals are 0"
    for total in totals:
        if total % min_cell_count:
            return f"{total} is no multiple of the minimum cell count {min_cell_count}"
    # The bounds of `class_size_bounds`, for which plain numbers are faster than arrays here.
    lower = sum(max(0, total - min_cell_count // 2) for total in totals)
    upper = sum(totals) + len(totals) * ((min_cell_count - 1) // 2)
    if not lower <= n_samples <= upper:
        possible = f"{lower}" if lower == upper else f"{lower} to {upper}"
        return f"they stand for {possible} samples, not for {n_samples}"
    return ""
