"""The bin edges all clients of a round share, and which bin a value is in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._typing import FloatArray, IndexArray, IntArray
from robfcp._validation import as_array, as_float_array, set_fields
from robfcp.errors import RobfcpError

MAX_BINS = 1_000_000
_MIN_VALUES_FOR_LOOKUP = 1500  # fewer values are searched for, not looked up
_MAX_LOOKUP_EDGES = 2**14  # beyond them the table is larger than a search is slow
_MAX_COMPARISONS = 8  # edges a value may have to be compared with
_BLOCK_SIZE = 15 * 2**10  # values at a time: arrays stay in the cache and below what malloc maps
_SHIFT_FRACTION = 2.0**-24  # of the range: nearer to its ends buckets no longer shrink
_DROPPED_BITS = 43  # leaves a float's exponent and nine bits of its mantissa
_MIN_RANGE = 1e-290  # of edges that are looked up: shifts of smaller ones would lose digits


class _Lookup:
    """#{inner edges < x} of many x, exactly, ten times as fast as a search.

    The bucket of x is the leading bits of its distance from the low end less those of its distance
    from the high one: it never falls as x rises, and buckets shrink towards both ends. Edges in
    lower buckets are smaller than x, those in higher ones are not, those in its own are compared.
    """

    def __init__(self, edges: FloatArray) -> None:
        self._low = edges[0]
        self._high = edges[-1]
        self._shift = (edges[-1] - edges[0]) * _SHIFT_FRACTION

        # Buckets are counted from that of the lowest edge.
        self._first_bucket = np.int64(0)
        buckets = self._buckets(edges)
        self._first_bucket = buckets[0]
        buckets -= self._first_bucket

        edges_per_bucket = np.bincount(buckets[1:-1], None, buckets[-1] + 1)
        self._n_smaller = np.cumsum(edges_per_bucket) - edges_per_bucket
        self._inner_edges = np.append(edges[1:-1], np.inf)
        self.n_comparisons = int(edges_per_bucket.max())

    def __call__(self, values: NDArray[Any]) -> IndexArray:
        indices = np.empty(len(values), dtype=np.intp)
        for start in range(0, len(values), _BLOCK_SIZE):
            block = np.asarray(values[start : start + _BLOCK_SIZE], dtype=np.float64)
            index = self._n_smaller.take(self._buckets(block))
            for _ in range(self.n_comparisons):
                index += block > self._inner_edges.take(index)
            indices[start : start + _BLOCK_SIZE] = index
        return indices

    def _buckets(self, values: FloatArray) -> IntArray:
        """Return the bucket of each value."""
        above_low = values - self._low
        below_high = self._high - values
        above_low += self._shift
        below_high += self._shift
        buckets = above_low.view(np.int64)
        buckets_from_high = below_high.view(np.int64)
        buckets >>= _DROPPED_BITS
        buckets_from_high >>= _DROPPED_BITS
        buckets -= buckets_from_high
        buckets -= self._first_bucket
        return buckets


@dataclass(frozen=True, eq=False)
class Binning:
    """Bins (edges[h], edges[h+1]], the first closed below: counts up to an edge are exact.

    Two binnings are equal when their edges are, whatever their names.

    Parameters
    ----------
    edges : ndarray of float, shape (H + 1,)
        Rising numbers: the lower end of the range (possibly -inf) first, its top (possibly
        inf) last.
    name : str
        How a report names the binning; "edges" sends the edges themselves.
    parameters : mapping of str to object
        With which parameters the name makes it again.

    Examples
    --------
    >>> import robfcp
    >>> robfcp.Binning([0.0, 0.5, 1.0]).counts([0.0, 0.5, 0.75])
    array([2, 1])
    """

    edges: FloatArray
    name: str = "edges"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # -0.0 becomes 0.0: equal edges, equal digests.
        edges = as_float_array("binning", self.edges) + 0.0
        if edges.ndim != 1 or edges.size < 2:
            raise RobfcpError("binning: edges must be a vector of two numbers or more; give more")
        if edges.size > MAX_BINS + 1:
            raise RobfcpError(f"binning: more than {MAX_BINS} bins; use fewer edges")
        if np.isnan(edges).any() or not (edges[1:] > edges[:-1]).all():
            raise RobfcpError("binning: edges must increase strictly; sort them and drop repeats")
        if np.isinf(edges[1:-1]).any() or edges[0] == np.inf or edges[-1] == -np.inf:
            raise RobfcpError("binning: only the outermost edges may be infinite; drop the others")
        edges.flags.writeable = False
        set_fields(self, edges=edges, parameters=MappingProxyType(dict(self.parameters)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Make it again from its fields: copies and pickles of estimators hold binnings."""
        return Binning, (self.edges, self.name, dict(self.parameters))

    @staticmethod
    @cache
    def default() -> Binning:
        """Return about 1000 bins on [0, 1], fine at both ends, with every k/100 among the edges.

        For scores in [0, 1]: what reports use unless told otherwise.

        Returns
        -------
        Binning
            The same for everybody.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Binning.default().n_bins
        1000
        """
        with np.errstate(over="ignore"):
            logistic = 1 / (1 + np.exp(-np.linspace(-16, 16, 901)))
        percents = np.arange(101) / 100
        edges = np.sort(np.concatenate([_round_digits(logistic), percents]))
        is_first = np.diff(edges, prepend=-1) > 0  # np.unique would load numpy.ma
        return Binning(edges[is_first], "default")

    @staticmethod
    def uniform(n_bins: int = 100, low: float = 0.0, high: float = 1.0) -> Binning:
        """Return `n_bins` bins of equal width on [low, high]; 100 on [0, 1] are those of Rob-FCP.

        Parameters
        ----------
        n_bins : int
            How many, at most a million.
        low : float
            The lower end of the range.
        high : float
            Its top.

        Returns
        -------
        Binning
            Scores outside [low, high] do not fit it.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Binning.uniform(4).edges
        array([0.  , 0.25, 0.5 , 0.75, 1.  ])
        """
        bins_given, low_end, high_end = as_float_array("n_bins, low, high", [n_bins, low, high])
        is_count = 1 <= bins_given <= MAX_BINS and bins_given % 1 == 0
        if not is_count or not low_end < high_end:
            raise RobfcpError(
                f"n_bins, low, high: {n_bins}, {low}, {high} are no binning; give 1 to {MAX_BINS} "
                "bins and low < high"
            )
        n_bins = int(n_bins)
        with np.errstate(over="ignore", invalid="ignore"):
            edges = low_end + (high_end - low_end) * (np.arange(n_bins + 1) / n_bins)
        edges[-1] = high_end
        parameters = {"bins": n_bins, "low": float(low_end), "high": float(high_end)}
        return Binning(edges, "uniform", parameters)

    @staticmethod
    def open_ended(edges: ArrayLike | None = None) -> Binning:
        """Return bins between edges and one beyond each end; a threshold there is infinite.

        Without edges: log-spaced from 1e-6 to 1e6 on both sides of 0 (2.3% a bin), for any scale.

        Parameters
        ----------
        edges : array_like, optional
            Finite, rising numbers.

        Returns
        -------
        Binning
            Every finite score fits it.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Binning.open_ended([0.0, 1.0]).edges
        array([-inf,   0.,   1.,  inf])
        """
        if edges is None:
            return _open_ended_default()
        inner_edges = as_float_array("binning", edges)
        if inner_edges.ndim != 1 or not np.isfinite(inner_edges).all():
            raise RobfcpError("binning: open_ended needs a vector of finite edges")
        return Binning(np.concatenate([[-np.inf], inner_edges, [np.inf]]), "open_ended")

    @staticmethod
    @cache
    def extended() -> Binning:
        """Return the default bins on [0, 1], as fine on [1, 2], log-spaced beyond and open-ended.

        For scores that may exceed 1, such as RAPS.

        Returns
        -------
        Binning
            Every finite score fits it.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Binning.extended().edges[[0, -2, -1]]
        array([  -inf, 20000.,    inf])
        """
        from_0_to_1 = Binning.default().edges
        from_1_to_2 = _round_digits(1 + from_0_to_1[1:])
        from_2_on = _round_digits(2 * 10 ** np.linspace(0, 4, 401))[1:]
        inner_edges = np.unique(np.concatenate([from_0_to_1, from_1_to_2, from_2_on]))
        return Binning(np.concatenate([[-np.inf], inner_edges, [np.inf]]), "extended")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the edges: equal exactly when two binnings are."""
        return hashlib.sha256(self.edges.astype("<f8").tobytes()).hexdigest()

    @cached_property
    def upper_edges(self) -> FloatArray:
        """Each bin's upper edge: the values a threshold can take."""
        return self.edges[1:]

    @cached_property
    def n_bins(self) -> int:
        """H, the number of bins."""
        return self.edges.size - 1

    def bin_index_of_threshold(self, thresholds: ArrayLike) -> IndexArray:
        """Return the bin whose upper edge each threshold is; the last one for what lies beyond.

        Parameters
        ----------
        thresholds : array_like
            Real numbers, of any shape; infinite ones too.

        Returns
        -------
        array of int
            Bin numbers from 0, of the same shape.

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> robfcp.Binning.uniform(4).bin_index_of_threshold([0.25, 0.75, np.inf])
        array([0, 2, 3])
        """
        indices = np.searchsorted(self.upper_edges, np.asarray(thresholds))
        return indices.clip(max=self.n_bins - 1)

    def bin_indices(self, scores: ArrayLike) -> IndexArray:
        """Return each score's bin index; scores outside the range or NaN are refused.

        Parameters
        ----------
        scores : array_like
            Real numbers, of any shape.

        Returns
        -------
        array of int
            Bin numbers from 0, of the same shape.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Binning.uniform(4).bin_indices([0.0, 0.25, 0.26, 1.0])
        array([0, 0, 1, 3])
        """
        values = as_array("scores", scores)
        if values.dtype.kind not in "fiu":
            raise RobfcpError(f"scores: must be real numbers, not {values.dtype}; convert them")
        if values.size:
            self._check_range(values)

        use_lookup = values.size >= _MIN_VALUES_FOR_LOOKUP and values.dtype.itemsize <= 8
        if not use_lookup or self._lookup is None:
            return np.asarray(self.edges[1:-1].searchsorted(values), dtype=np.intp)
        return self._lookup(values.reshape(-1)).reshape(values.shape)

    def _check_range(self, values: NDArray[Any]) -> None:
        """Refuse NaN and values outside the range."""
        low, high = values.min(), values.max()
        if np.isnan(low) or np.isnan(high):
            row = int(np.argmax(np.isnan(values)))
            raise RobfcpError(f"scores: row {row} is NaN; find the broken prediction first")
        if low < self.edges[0] or high > self.edges[-1]:
            raise RobfcpError(
                f"scores: range [{low:g}, {high:g}] leaves the binning's "
                f"[{self.edges[0]:g}, {self.edges[-1]:g}]; "
                "use Binning.open_ended or a wider binning"
            )

    @cached_property
    def _lookup(self) -> _Lookup | None:
        """A table of the edges; None where buckets do not fit them."""
        has_right_size = 4 <= self.edges.size <= _MAX_LOOKUP_EDGES
        if not has_right_size or not _MIN_RANGE < self.edges[-1] - self.edges[0] < np.inf:
            return None
        lookup = _Lookup(self.edges)
        return lookup if lookup.n_comparisons <= _MAX_COMPARISONS else None

    def counts(self, scores: ArrayLike) -> IntArray:
        """Return (H,) how many scores fall into each bin.

        Parameters
        ----------
        scores : array_like, shape (n,)
            Real numbers; those outside the range or NaN are refused.

        Returns
        -------
        (H,) array of int
            They sum to n.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Binning.uniform(4).counts([0.0, 0.25, 0.26, 1.0])
        array([2, 1, 0, 1])
        """
        indices = self.bin_indices(scores)
        return np.bincount(indices, minlength=self.n_bins).astype(np.int64)

    def merged_bin_ends(self, coarse: Binning) -> IndexArray | None:
        """Return the last bin inside each bin of `coarse`, or None where edges do not nest.

        Parameters
        ----------
        coarse : Binning
            A binning whose edges are all among this one's, with the same ends.

        Returns
        -------
        (B,) array of int or None
            What `Federation.merged` takes.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Binning.uniform(4).merged_bin_ends(robfcp.Binning.uniform(2))
        array([1, 3])
        >>> robfcp.Binning.uniform(4).merged_bin_ends(robfcp.Binning.uniform(3)) is None
        True
        """
        positions = np.searchsorted(self.edges, coarse.edges)
        is_beyond_last = positions == self.edges.size
        if is_beyond_last.any() or not np.array_equal(self.edges[positions], coarse.edges):
            return None
        has_same_ends = positions[0] == 0 and positions[-1] == self.edges.size - 1
        return positions[1:] - 1 if has_same_ends else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Binning):
            return NotImplemented
        return self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Binning({self.name}, {self.n_bins} bins, {self.digest[:8]})"


def _round_digits(values: FloatArray) -> FloatArray:
    """Return ten significant digits, so that every platform's `exp` gives the same edges."""
    return np.array([float(f"{value:.10g}") for value in values])


@cache
def _open_ended_default() -> Binning:
    """Return bins log-spaced from 1e-6 to 1e6 on both sides of 0, and one beyond each end."""
    steps = _round_digits(10 ** np.linspace(-6, 6, 1201))
    edges = np.concatenate([[-np.inf], -steps[::-1], [0.0], steps, [np.inf]])
    return Binning(edges, "open_ended")


def named_binning(name: str, parameters: Mapping[str, Any]) -> Binning:
    """Return the binning that a report names, rebuilt from its name and parameters."""
    if name == "default" and not parameters:
        return Binning.default()
    if name == "open_ended" and not parameters:
        return Binning.open_ended()
    if name == "extended" and not parameters:
        return Binning.extended()
    if name == "uniform" and set(parameters) == {"bins", "low", "high"}:
        return Binning.uniform(parameters["bins"], parameters["low"], parameters["high"])
    raise RobfcpError(f"binning: {name!r} is unknown {dict(parameters)}; send its edges instead")
