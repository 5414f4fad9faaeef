"""Counts by class, or by another grouping: sparse, so that size grows with samples alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.arguments import array, refuse_missing
from robfcp.errors import MAX_NAME, RobfcpError
from robfcp.grid import Grid

By = Literal["class", "group"]
Names = tuple[str, ...] | int
MAX_STRATA = 20_000
DENSE = 16  # cells a sample up to which a full table is faster than sorting
MAX_COUNT = 2**40  # of one cell; sums stay exact
OTHER = "(other)"  # where a site merges what is too thin to be shown

Whole = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Strata:
    """A client's counts by stratum and bin; cell c H + h holds stratum c's scores in bin h.

    Parameters
    ----------
    by
        "class" (the label) or "group" (any other grouping).
    names
        The strata's names in order, or only their number.
    cells
        The cells in use, rising.
    counts
        What is in them; never 0 unless they hold noise.
    n_bins
        H, the bins of the grid.
    """

    by: By
    names: Names
    cells: Whole
    counts: Whole
    n_bins: int

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            raise RobfcpError(f"strata: {self.by!r} is neither 'class' nor 'group'")
        object.__setattr__(self, "names", check_strata_names(self.by, self.names))
        for name in ("cells", "counts"):
            found = array(f"strata: {name}", getattr(self, name))
            if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
                raise RobfcpError(f"strata: {name} are not whole numbers; rebuild the report")
            object.__setattr__(self, name, found.astype(np.int64))
        cells = self.cells
        if len(cells) != len(self.counts):
            raise RobfcpError("strata: cells and counts differ in length; rebuild the report")
        limit = self.n_strata * self.n_bins
        rising = (cells[1:] > cells[:-1]).all()
        if cells.size and (cells[0] < 0 or cells[-1] >= limit or not rising):
            raise RobfcpError(f"strata: cells must rise strictly within 0..{limit - 1}; rebuild it")
        if ((self.counts > MAX_COUNT) | (self.counts < -MAX_COUNT)).any():
            raise RobfcpError(f"strata: a count exceeds {MAX_COUNT}; rebuild the report")

    @property
    def n_strata(self) -> int:
        """C, the number of classes or groups."""
        return self.names if isinstance(self.names, int) else len(self.names)

    @cached_property
    def sizes(self) -> Whole:
        """(C,) samples of each stratum."""
        found = np.bincount(self.cells // self.n_bins, weights=self.counts, minlength=self.n_strata)
        return np.rint(found).astype(np.int64)

    @cached_property
    def pooled(self) -> Whole:
        """(H,) counts of all strata together."""
        found = np.bincount(self.cells % self.n_bins, weights=self.counts, minlength=self.n_bins)
        return np.rint(found).astype(np.int64)

    def dense(self) -> Whole:
        """(C, H) all counts; large for many strata."""
        table = np.zeros(self.n_strata * self.n_bins, dtype=np.int64)
        table[self.cells] = self.counts
        return table.reshape(self.n_strata, self.n_bins)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Strata)
            and (self.by, self.names, self.n_bins) == (other.by, other.names, other.n_bins)
            and np.array_equal(self.cells, other.cells)
            and np.array_equal(self.counts, other.counts)
        )

    __hash__ = None  # type: ignore[assignment]

    @staticmethod
    def of_classes(
        scores: ArrayLike, labels: ArrayLike, classes: Sequence[str] | int, grid: Grid
    ) -> Strata:
        """Counts by label; labels are class numbers, or names where `classes` has names."""
        names = _own_names("class", classes)
        number = _numbers(labels, names)
        return _counted("class", names, number, scores, grid)

    @staticmethod
    def of_groups(
        scores: ArrayLike,
        groups: ArrayLike,
        grid: Grid,
        names: Sequence[str] | int | None = None,
    ) -> Strata:
        """Counts by the groups stated, or by those that occur in the order of their names."""
        found = array("groups", groups)
        if found.ndim != 1:
            raise RobfcpError(f"groups: shape {found.shape} is not (n,); give one a sample")
        if names is not None:
            stated = _own_names("group", names)
            return _counted("group", stated, _numbers(found.astype(str), stated), scores, grid)
        occurring, number = np.unique(found.astype(str), return_inverse=True)
        return _counted("group", _own_names("group", occurring.tolist()), number, scores, grid)

    def with_thin_ones_merged(self, least: int) -> Strata:
        """The same with every stratum of fewer than `least` samples merged into one more."""
        if isinstance(self.names, int):
            names: tuple[str, ...] = tuple(str(c) for c in range(self.names))
        else:
            names = self.names
        thin = (self.sizes < least)[self.cells // self.n_bins]
        moved = np.where(thin, len(names) * self.n_bins + self.cells % self.n_bins, self.cells)
        cells, where = np.unique(moved, return_inverse=True)
        counts = np.bincount(where, weights=self.counts, minlength=len(cells))
        return Strata(
            self.by, (*names, OTHER), cells, np.rint(counts).astype(np.int64), self.n_bins
        )


def check_strata_names(by: str, names: Any) -> Names:
    """The names, or their number, refused where they cannot be."""
    if by == "class" and isinstance(names, (int, np.integer)) and not isinstance(names, bool):
        if not 1 <= names <= MAX_STRATA:
            raise RobfcpError(f"{by}: {names} of them; give 1 to {MAX_STRATA}")
        return int(names)
    if isinstance(names, (bool, str)) or not isinstance(names, Iterable):
        raise RobfcpError(f"{by}: {names!r:.40} is no list of names; give ['a', 'b'], say")
    found = tuple(str(name) if isinstance(name, str) else name for name in names)
    if not 1 <= len(found) <= MAX_STRATA:
        raise RobfcpError(f"{by}: {len(found)} of them; give 1 to {MAX_STRATA}")
    for name in found:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise RobfcpError(f"{by}: {name!r:.40} is no name; use plain text")
    if len(set(found)) < len(found):
        raise RobfcpError(f"{by}: a name comes twice; rename one")
    return found


def _own_names(by: By, names: Any) -> Names:
    """The names a site gives; the one of what is merged is not theirs to give."""
    found = check_strata_names(by, names)
    if not isinstance(found, int) and OTHER in found:
        raise RobfcpError(f"{by}: {OTHER!r} is kept for what is merged; rename it")
    return found


def _numbers(labels: ArrayLike, names: Names) -> NDArray[np.intp]:
    """Class numbers of labels given as numbers or as names."""
    found = array("labels", labels)
    count = names if isinstance(names, int) else len(names)
    if found.ndim != 1:
        raise RobfcpError(f"labels: shape {found.shape} is not (n,); give one a sample")
    refuse_missing("labels", found)
    if found.dtype.kind in "OT" and all(isinstance(label, str) for label in found.tolist()):
        found = found.astype(str)
    if found.dtype.kind in "US" and not isinstance(names, int):
        place = {name: c for c, name in enumerate(names)}
        unknown = sorted(set(found.astype(str).tolist()) - set(place))
        if unknown:
            raise RobfcpError(
                f"labels: {unknown[0]!r:.60} is none of those stated; check the names"
            )
        return np.array([place[name] for name in found.astype(str).tolist()], dtype=np.intp)
    if found.dtype.kind not in "iu":
        raise RobfcpError(f"labels: dtype {found.dtype} is not integer; encode classes as 0..C-1")
    if found.size and (found.min() < 0 or found.max() >= count):
        raise RobfcpError(
            f"labels: {found.min()}..{found.max()} leaves 0..{count - 1}; "
            "encode classes as column numbers"
        )
    return found.astype(np.intp)


def _counted(
    by: By, names: Names, number: NDArray[np.intp], scores: ArrayLike, grid: Grid
) -> Strata:
    values = array("scores", scores)
    if values.shape != number.shape:
        raise RobfcpError(f"{by}: {len(number)} of them do not fit scores of shape {values.shape}")
    n_bins = grid.n_bins
    n_cells = n_bins * (names if isinstance(names, int) else len(names))
    cell = number * n_bins + grid.index(values)
    if n_cells <= DENSE * len(values):
        table = np.bincount(cell, minlength=n_cells)
        cells = np.flatnonzero(table)
        return Strata(by, names, cells, table[cells], n_bins)
    small = np.int32 if n_cells < 2**31 else np.int64  # sorts faster
    cells, counts = np.unique(cell.astype(small), return_counts=True)
    return Strata(by, names, cells.astype(np.int64), counts, n_bins)
