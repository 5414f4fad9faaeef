"""Counts by class, or by another grouping: sparse, so that size grows with samples alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._validation import as_array, as_floats_or_nan, as_integers, reject_missing
from robfcp.binning import Binning
from robfcp.errors import MAX_NAME, RobfcpError

StratumKind = Literal["class", "group"]
StratumNames = tuple[str, ...] | int
MAX_STRATA = 20_000
TOP_BIN_ROUNDING = 10  # bins: to so many of them the highest cell is shown
_MAX_DENSE_RATIO = 16  # cells a sample up to which a full table is faster than sorting
MAX_COUNT = 2**40  # of one cell; sums stay exact
OTHER_STRATUM = "(other)"  # where a site merges what is too thin to be shown

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StratifiedCounts:
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

    by: StratumKind
    names: StratumNames
    cells: IntArray
    counts: IntArray
    n_bins: int

    MIN_CELL_COUNT: ClassVar[int] = 5  # samples that a cell has at least, unless a report is fine
    MIN_SAMPLES_PER_CLASS: ClassVar[int] = (
        25  # samples a class from which on these are kept unless told
    )

    def __post_init__(self) -> None:
        if self.by not in get_args(StratumKind):
            raise RobfcpError(f"strata: {self.by!r} is neither 'class' nor 'group'")
        object.__setattr__(self, "names", check_stratum_names(self.by, self.names))
        for name in ("cells", "counts"):
            found = as_array(f"strata: {name}", getattr(self, name))
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
        return n_strata(self.names)

    @cached_property
    def stratum_sizes(self) -> IntArray:
        """(C,) samples of each stratum."""
        found = np.bincount(self.cells // self.n_bins, weights=self.counts, minlength=self.n_strata)
        return np.rint(found).astype(np.int64)

    @cached_property
    def pooled_counts(self) -> IntArray:
        """(H,) counts of all strata together."""
        found = np.bincount(self.cells % self.n_bins, weights=self.counts, minlength=self.n_bins)
        return np.rint(found).astype(np.int64)

    def dense(self) -> IntArray:
        """(C, H) all counts; large for many strata."""
        table = np.zeros(self.n_strata * self.n_bins, dtype=np.int64)
        table[self.cells] = self.counts
        return table.reshape(self.n_strata, self.n_bins)

    @staticmethod
    def of(
        by: StratumKind,
        scores: ArrayLike,
        labels: ArrayLike,
        names: Sequence[str] | int | None,
        grid: Binning,
        private: bool = False,
    ) -> StratifiedCounts:
        """Counts by label or group; without names by the groups that occur, in their order.

        In a private report what is none of the names counts in the last bin of the first one: a
        refusal would tell of a sample.
        """
        field, found = "labels" if by == "class" else "groups", as_array("labels", labels)
        if found.ndim != 1:
            raise RobfcpError(f"{field}: shape {found.shape} is not (n,); give one a sample")
        found = found.astype(str) if by == "group" or found.dtype.kind == "S" else found
        occurring = np.unique(found).tolist() if names is None else names
        stated = check_stratum_names(by, occurring)
        if not isinstance(stated, int) and OTHER_STRATUM in stated:
            raise RobfcpError(f"{by}: {OTHER_STRATUM!r} is kept for what is merged; rename it")
        values = as_array("scores", scores)
        if values.shape != found.shape:
            raise RobfcpError(f"{by}: {len(found)} do not fit scores of shape {values.shape}")
        if private:
            number = _stratum_indices_or_minus_one(found, stated)
            values, number = np.where(number < 0, grid.edges[-1], values), np.maximum(number, 0)
        else:
            number = _stratum_indices(found, stated)
        n_bins = grid.n_bins
        n_cells = n_bins * n_strata(stated)
        cell = number * n_bins + grid.bin_indices(values)
        if n_cells <= _MAX_DENSE_RATIO * len(values):
            table = np.bincount(cell, minlength=n_cells)
            cells = np.flatnonzero(table)
            return StratifiedCounts(by, stated, cells, table[cells], n_bins)
        small = np.int32 if n_cells < 2**31 else np.int64  # sorts faster
        cells, counts = np.unique(cell.astype(small), return_counts=True)
        return StratifiedCounts(by, stated, cells.astype(np.int64), counts, n_bins)

    def coarsened(self, unit: int = 1) -> StratifiedCounts:
        """The same with five samples or more (of `unit` counts each) in every cell.

        The counts A above an edge become 5 ceil(A / 5), and each cell is moved up to the middle
        between its own highest and the next score, the highest to a tenth edge; fewer than five
        of a stratum to the last bin. Scores only rise: no count up to an edge exceeds the true one,
        so no threshold falls and every bound from below stays true, whatever the scores are. Nor
        does a sample lie below the cell before its own, and of ten or more, which keep their bin,
        only five and what exceeds a multiple of five do: bounds from above are known too.
        """
        n_bins, least, sizes = self.n_bins, self.MIN_CELL_COUNT * unit, self.stratum_sizes
        before = np.cumsum(sizes) - sizes
        owner, bins = np.divmod(self.cells, n_bins)
        ends = np.append(owner[1:] != owner[:-1], True)
        true = np.cumsum(self.counts) - before[owner]
        shown = sizes[owner] + (true - sizes[owner]) // least * least
        shown = np.where((shown < least) & ~ends, 0, shown)
        step = np.diff(shown + before[owner], prepend=0)
        top = np.where(
            sizes[owner] < least, n_bins, (bins // TOP_BIN_ROUNDING + 1) * TOP_BIN_ROUNDING
        )
        middle = np.where(shown == true, (bins + np.append(bins[1:], 0) - 1) // 2, bins)
        place = np.where(ends, np.minimum(top, n_bins) - 1, middle)
        place = np.where(step >= 2 * least, bins, place)
        kept = step > 0
        cells = (owner * n_bins + place)[kept]
        return StratifiedCounts(self.by, self.names, cells, step[kept], n_bins)

    def merge_small_strata(self, min_count: int) -> StratifiedCounts:
        """The same with every stratum of fewer than `least` samples merged into one more."""
        names = stratum_labels(self.names)
        thin = (self.stratum_sizes < min_count)[self.cells // self.n_bins]
        moved = np.where(thin, len(names) * self.n_bins + self.cells % self.n_bins, self.cells)
        cells, where = np.unique(moved, return_inverse=True)
        counts = np.rint(np.bincount(where, weights=self.counts)).astype(np.int64)
        return StratifiedCounts(self.by, (*names, OTHER_STRATUM), cells, counts, self.n_bins)


def single_stratum(counts: IntArray) -> StratifiedCounts:
    """The counts of all together as those of one class."""
    cells = np.flatnonzero(counts)
    return StratifiedCounts("class", 1, cells, counts[cells], counts.size)


def stratum_labels(names: StratumNames) -> tuple[str, ...]:
    """The names of classes or groups; their numbers where they have none."""
    return tuple(map(str, range(names))) if isinstance(names, int) else names


def n_strata(names: StratumNames) -> int:
    """C, how many classes or groups there are."""
    return names if isinstance(names, int) else len(names)


def check_stratum_names(by: str, names: Any) -> StratumNames:
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


def _stratum_indices_or_minus_one(labels: NDArray[Any], names: StratumNames) -> IntArray:
    """Class numbers of labels given as numbers or as names, whatever they are; -1 of others."""
    place = {name: c for c, name in enumerate(stratum_labels(names))}
    told = (place.get(one) if isinstance(one, str) else one for one in labels.tolist())
    number = as_integers(as_floats_or_nan(np.fromiter(told, dtype=object, count=len(labels))))
    return np.where((number < 0) | (number >= len(place)), -1, number)


def _stratum_indices(labels: NDArray[Any], names: StratumNames) -> IntArray:
    """Class numbers of labels given as numbers or as names; others are refused."""
    reject_missing("labels", labels)
    if labels.dtype.kind in "OT" and all(isinstance(label, str) for label in labels.tolist()):
        labels = labels.astype(str)
    by_name = labels.dtype.kind == "U" and not isinstance(names, int)
    if not by_name and labels.dtype.kind not in "iu":
        raise RobfcpError(f"labels: dtype {labels.dtype} is not integer; encode classes as 0..C-1")
    number = _stratum_indices_or_minus_one(labels, names) if by_name else labels.astype(np.int64)
    if by_name and (number < 0).any():
        unknown = min(labels[number < 0].tolist())
        raise RobfcpError(f"labels: {unknown!r:.60} is none of those stated; check the names")
    if labels.size and (number.min() < 0 or number.max() >= n_strata(names)):
        raise RobfcpError(
            f"labels: {labels.min()}..{labels.max()} leaves 0..{n_strata(names) - 1}; "
            "encode classes as column numbers"
        )
    return number
