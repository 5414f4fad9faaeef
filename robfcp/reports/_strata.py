"""Counts by class, or by another grouping: sparse, so that size grows with samples alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._typing import IntArray
from robfcp._validation import as_array, as_floats_or_nan, as_integers, reject_missing, set_fields
from robfcp.binning import Binning
from robfcp.errors import MAX_NAME, RobfcpError

StratumKind = Literal["class", "group"]
StratumNames = tuple[str, ...] | int
Strata = tuple[StratumKind, StratumNames]  # the kind of a round's strata, and their names
MAX_STRATA = 20_000
MAX_COUNT = 2**40  # of one cell; sums stay exact
OTHER_STRATUM = "(other)"  # where a client merges strata too small to be reported
_MAX_DENSE_RATIO = 16  # cells a sample up to which a full table is faster than sorting


@dataclass(frozen=True, eq=False)
class StratifiedCounts:
    """A client's counts by stratum and bin; cell c H + h holds stratum c's scores in bin h.

    Parameters
    ----------
    by : StratumKind
        "class" (the label) or "group" (any other grouping).
    names : StratumNames
        The strata's names in order, or only their number.
    cells : ndarray of int, shape (U,)
        The cells in use, rising.
    counts : ndarray of int, shape (U,)
        What they hold; never 0 unless they hold noise.
    n_bins : int
        H, the bins of the binning.
    """

    by: StratumKind
    names: StratumNames
    cells: IntArray
    counts: IntArray
    n_bins: int

    def __post_init__(self) -> None:
        if self.by not in get_args(StratumKind):
            raise RobfcpError(f"strata: {self.by!r} is neither 'class' nor 'group'")
        set_fields(
            self,
            names=check_stratum_names(self.by, self.names),
            cells=_as_int_vector("cells", self.cells),
            counts=_as_int_vector("counts", self.counts),
        )
        self._check_cells()

    def _check_cells(self) -> None:
        """Refuse cells that do not rise within the strata's bins, and counts that are too large."""
        cells = self.cells
        if len(cells) != len(self.counts):
            raise RobfcpError("strata: cells and counts differ in length; rebuild the report")

        n_cells = self.n_strata * self.n_bins
        is_rising = (cells[1:] > cells[:-1]).all()
        if cells.size and (cells[0] < 0 or cells[-1] >= n_cells or not is_rising):
            raise RobfcpError(
                f"strata: cells must rise strictly within 0..{n_cells - 1}; rebuild it"
            )
        if ((self.counts > MAX_COUNT) | (self.counts < -MAX_COUNT)).any():
            raise RobfcpError(f"strata: a count exceeds {MAX_COUNT}; rebuild the report")

    @property
    def n_strata(self) -> int:
        """C, the number of classes or groups."""
        return n_strata(self.names)

    @cached_property
    def stratum_sizes(self) -> IntArray:
        """(C,) samples of each stratum."""
        stratum = self.cells // self.n_bins
        return _sum_exactly(stratum, self.counts, self.n_strata)

    @cached_property
    def pooled_counts(self) -> IntArray:
        """(H,) counts of all strata together."""
        bins = self.cells % self.n_bins
        return _sum_exactly(bins, self.counts, self.n_bins)

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
        binning: Binning,
        is_private: bool = False,
    ) -> StratifiedCounts:
        """Count scores by label or group.

        Parameters
        ----------
        by : {"class", "group"}
            What the labels are.
        scores, labels : array-like
            (n,) the scores of a client and what stratum each belongs to.
        names : sequence of str or int, optional
            The strata's names in order, or their number; those that occur if None.
        binning : Binning
            The bins of the scores.
        is_private : bool
            Whether noise is added later. A label that is none of the names then counts in the last
            bin of the first one: a refusal would disclose a sample.

        Returns
        -------
        StratifiedCounts
            One count a sample.
        """
        field = "labels" if by == "class" else "groups"
        strata = as_array("labels", labels)
        if strata.ndim != 1:
            raise RobfcpError(f"{field}: shape {strata.shape} is not (n,); give one a sample")
        if by == "group" or strata.dtype.kind == "S":
            strata = strata.astype(str)

        occurring = np.unique(strata).tolist() if names is None else names
        known_names = check_stratum_names(by, occurring)
        if not isinstance(known_names, int) and OTHER_STRATUM in known_names:
            raise RobfcpError(
                f"{_names_field(by)}: {OTHER_STRATUM!r} is reserved for merged strata; rename it"
            )
        values = as_array("scores", scores)
        if values.shape != strata.shape:
            raise RobfcpError(f"{field}: {len(strata)} do not fit scores of shape {values.shape}")

        if is_private:
            index = _stratum_indices_or_minus_one(strata, known_names)
            values = np.where(index < 0, binning.edges[-1], values)
            index = np.maximum(index, 0)
        else:
            index = _stratum_indices(strata, known_names)

        n_bins = binning.n_bins
        cell_of_sample = index * n_bins + binning.bin_indices(values)
        cells, counts = _count_cells(cell_of_sample, n_bins * n_strata(known_names))
        return StratifiedCounts(by, known_names, cells, counts, n_bins)

    def merge_small_strata(self, min_count: int) -> StratifiedCounts:
        """Merge all strata of fewer than `min_count` samples into one more, the last one."""
        names = stratum_labels(self.names)
        strata, bins = np.divmod(self.cells, self.n_bins)
        is_small = self.stratum_sizes < min_count
        cells_if_merged = len(names) * self.n_bins + bins
        moved = np.where(is_small[strata], cells_if_merged, self.cells)

        # The bins of several small strata come together in one cell.
        cells, positions = np.unique(moved, return_inverse=True)
        counts = _sum_exactly(positions, self.counts, len(cells))
        return StratifiedCounts(self.by, (*names, OTHER_STRATUM), cells, counts, self.n_bins)


def _as_int_vector(name: str, values: ArrayLike) -> IntArray:
    """Return a vector of whole numbers as int64; refuse anything else."""
    array = as_array(f"strata: {name}", values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise RobfcpError(f"strata: {name} are not whole numbers; rebuild the report")
    return array.astype(np.int64)


def _sum_exactly(index: IntArray, counts: IntArray, n_sums: int) -> IntArray:
    """Return the (n_sums,) sums of the counts with each index; floats hold them exactly."""
    sums = np.bincount(index, weights=counts, minlength=n_sums)
    return np.rint(sums).astype(np.int64)


def _count_cells(cell_of_sample: IntArray, n_cells: int) -> tuple[IntArray, IntArray]:
    """Return the cells in use, rising, and how many samples each holds."""
    if n_cells <= _MAX_DENSE_RATIO * len(cell_of_sample):
        table = np.bincount(cell_of_sample, minlength=n_cells)
        cells = np.flatnonzero(table)
        return cells, table[cells]

    dtype = np.int32 if n_cells < 2**31 else np.int64  # small numbers sort faster
    cells, counts = np.unique(cell_of_sample.astype(dtype), return_counts=True)
    return cells.astype(np.int64), counts


def single_stratum(counts: IntArray) -> StratifiedCounts:
    """Return the (H,) counts of all samples as those of one class."""
    cells = np.flatnonzero(counts)
    return StratifiedCounts("class", 1, cells, counts[cells], counts.size)


def stratum_labels(names: StratumNames) -> tuple[str, ...]:
    """Return the names of classes or groups; their numbers where they have none."""
    if isinstance(names, int):
        return tuple(str(index) for index in range(names))
    return names


def n_strata(names: StratumNames) -> int:
    """Return C, how many classes or groups there are."""
    return names if isinstance(names, int) else len(names)


def check_stratum_names(by: str, names: Any) -> StratumNames:
    """Return the strata's names, or their number; refuse what cannot be either.

    Parameters
    ----------
    by : str
        "class" or "group"; only classes may be given by their number.
    names : object
        The names as a user or a report gives them.

    Returns
    -------
    tuple of str or int
        Plain names, all different, or the number.
    """
    is_number = isinstance(names, (int, np.integer)) and not isinstance(names, bool)
    if by == "class" and is_number:
        if not 1 <= names <= MAX_STRATA:
            raise RobfcpError(f"{_names_field(by)}: {names} of them; give 1 to {MAX_STRATA}")
        return int(names)

    if isinstance(names, (bool, str, Mapping)) or not isinstance(names, Iterable):
        raise RobfcpError(
            f"{_names_field(by)}: {names!r:.40} is not a list of names; give for example ['a', 'b']"
        )
    plain_names = tuple(str(name) if isinstance(name, str) else name for name in names)
    if not 1 <= len(plain_names) <= MAX_STRATA:
        raise RobfcpError(f"{_names_field(by)}: {len(plain_names)} of them; give 1 to {MAX_STRATA}")
    for name in plain_names:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise RobfcpError(f"{_names_field(by)}: {name!r:.40} is not a name; use plain text")
    if len(set(plain_names)) < len(plain_names):
        raise RobfcpError(f"{_names_field(by)}: a name comes twice; rename one")
    return plain_names


def _names_field(by: str) -> str:
    """Return the argument in which the names of classes or groups are given."""
    return "classes" if by == "class" else "groups"


def _stratum_indices_or_minus_one(labels: NDArray[Any], names: StratumNames) -> IntArray:
    """Return (n,) indices of strata given by index or by name; -1 where a label is neither."""
    index_of_name = {name: index for index, name in enumerate(stratum_labels(names))}
    indices = np.empty(len(labels), dtype=object)
    for row, label in enumerate(labels.tolist()):
        indices[row] = index_of_name.get(label) if isinstance(label, str) else label

    integers = as_integers(as_floats_or_nan(indices))
    is_stratum = (integers >= 0) & (integers < len(index_of_name))
    return np.where(is_stratum, integers, -1)


def _stratum_indices(labels: NDArray[Any], names: StratumNames) -> IntArray:
    """Return (n,) indices of strata given by index or by name; refuse others."""
    reject_missing("labels", labels)
    is_object = labels.dtype.kind in "OT"
    if is_object and all(isinstance(label, str) for label in labels.tolist()):
        labels = labels.astype(str)

    is_by_name = labels.dtype.kind == "U" and not isinstance(names, int)
    if is_by_name:
        indices = _stratum_indices_or_minus_one(labels, names)
        if (indices < 0).any():
            unknown = min(labels[indices < 0].tolist())
            raise RobfcpError(f"labels: {unknown!r:.60} is none of those stated; check the names")
        return indices

    if labels.dtype.kind not in "iu":
        raise RobfcpError(f"labels: dtype {labels.dtype} is not integer; encode classes as 0..C-1")
    indices = labels.astype(np.int64)
    if labels.size and (indices.min() < 0 or indices.max() >= n_strata(names)):
        raise RobfcpError(
            f"labels: {labels.min()}..{labels.max()} leaves 0..{n_strata(names) - 1}; "
            "encode classes as column numbers"
        )
    return indices
