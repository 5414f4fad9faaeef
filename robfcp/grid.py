"""The bin edges all clients of a round share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.arguments import array, floats
from robfcp.errors import RobfcpError

_MOST_COMPARED = 3  # edges a value may have to be compared with
_SHIFT = 46  # leaves a float's exponent and six bits of its mantissa: buckets of about 1%
_LEAST_LOOKED_UP = 2.0**-30  # below it one bucket
_LOOKUP_BLOCK = 2**14  # values at a time, so that they stay in the cache
_BUCKETS = 4  # an edge, where they are of equal width
_MOST_LOOKUP_EDGES = 2**17  # beyond them the table is larger than a search is slow

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Key = Callable[[Floats], Whole]


class Lookup:
    """#{edges < x} of many x, exactly: a table over buckets, then a few comparisons.

    Buckets are given by a key that never falls as x rises. Edges whose key is smaller than that of
    x are smaller, those with a larger key are not; only edges of the same bucket are compared.

    Parameters
    ----------
    inner
        The rising edges.
    key
        The bucket of each value, from 0.
    """

    def __init__(self, inner: Floats, key: Key) -> None:
        keys = key(inner)
        self._key = key
        self._inner = np.append(inner, np.inf)
        inside = np.bincount(keys)
        self.compared = int(inside.max())
        self._smaller = np.append(0, np.cumsum(inside))
        self._last = len(inside)

    def __call__(self, values: NDArray[Any]) -> NDArray[np.intp]:
        found = np.empty(values.shape, dtype=np.intp)
        flat, out = values.reshape(-1), found.reshape(-1)
        for here in _blocks(len(flat)):
            x = np.asarray(flat[here], dtype=np.float64)
            place = self._smaller[np.minimum(self._key(x), self._last)]
            for _ in range(self.compared):
                place += x > self._inner[place]
            out[here] = place
        return found


def lookup(edges: Floats) -> Lookup | None:
    """A lookup among the inner ones of these edges, for values between the outer ones.

    By buckets of equal width, or finer towards both ends; None where neither fits the edges.
    """
    low, high = float(edges[0]), float(edges[-1])
    if not 4 <= len(edges) <= _MOST_LOOKUP_EDGES or not 1e-300 < high - low < np.inf:
        return None
    for key in (_equal(low, high, _BUCKETS * len(edges)), _towards_ends(low, high)):
        found = Lookup(edges[1:-1], key)
        if found.compared <= _MOST_COMPARED:
            return found
    return None


def _equal(low: float, high: float, number: int) -> Key:
    scale = number / (high - low)

    def key(values: Floats) -> Whole:
        return ((values - low) * scale).astype(np.int64)

    return key


def _towards_ends(low: float, high: float) -> Key:
    """Buckets of about 1% of the distance to the nearer end."""
    middle = low + (high - low) / 2
    first = _bits(np.array([_LEAST_LOOKED_UP * (high - low)]))[0]
    top = 2 * int(_bits(np.array([high - low]))[0] - first)

    def key(values: Floats) -> Whole:
        upper = values > middle
        step = np.maximum(_bits(np.where(upper, high - values, values - low)) - first, 0)
        return np.where(upper, top - step, step)

    return key


def _bits(values: Floats) -> Whole:
    """Of numbers from 0 on: rising with them."""
    return values.view(np.int64) >> _SHIFT


MANY = 1500  # values from which on they are looked up, not searched for
VERY_MANY = 2**14  # from which on cells are counted
_BLOCK = 15 * 2**10  # values at a time: arrays stay in the cache and below what malloc maps
_MOST_EDGES = 2**14
_LEAST = 2.0**-12  # of the range: below it cells are of equal width
_BITS = 42  # leaves a float's exponent and ten bits of its mantissa

Indices = NDArray[np.intp]
Find = Callable[[NDArray[Any]], Indices]


class Binning:
    """The bins between rising edges.

    Parameters
    ----------
    edges
        (H + 1,) the outer ones may be infinite.
    """

    def __init__(self, edges: Floats) -> None:
        self._edges, self._inner = edges, edges[1:-1]
        self._searched = np.append(np.nextafter(edges[0], -np.inf), edges[1:])
        self._n_bins = len(edges) - 1

    def index(self, values: NDArray[Any]) -> Indices:
        """Each value's bin, of values that lie between the outer edges."""
        if values.size < MANY or values.dtype.itemsize > 8 or self._cells is None:
            return np.asarray(self._inner.searchsorted(values), dtype=np.intp)
        return self._cells(values.reshape(-1)).reshape(values.shape)

    def counts(self, values: NDArray[Any]) -> NDArray[np.int64] | None:
        """(H,) how many of a vector of values are in each bin; None where one is in none."""
        if values.size < MANY:
            # Below the first edge searched for or above the last is what lies in no bin.
            found = np.bincount(self._searched.searchsorted(values), None, self._n_bins + 2)
            return None if found[0] or found[-1] else found[1:-1]
        if not self._edges[0] <= values.min() or not values.max() <= self._edges[-1]:
            return None
        cells = self._cells
        if cells is not None and values.size >= VERY_MANY:
            return cells.counts(values)
        if cells is not None or values.size < self._n_bins:
            return np.bincount(self.index(values), None, self._n_bins)
        below = np.searchsorted(np.sort(values), self._inner, side="right")
        return np.diff(below, prepend=0, append=values.size)

    @cached_property
    def _cells(self) -> Cells | None:
        low, high = float(self._edges[0]), float(self._edges[-1])
        few = 4 <= len(self._edges) <= _MOST_EDGES
        if not few or not 1e-290 < high - low < np.inf:
            return None
        return Cells(self._edges)


class Cells:
    """Cells with the edges in them: 1024 for every doubling of the distance from the low end.

    A cell is the leading bits of x - low + range / 4096, which never fall as x rises: edges of
    lower cells are smaller than x, those of higher cells are not.
    """

    def __init__(self, edges: Floats) -> None:
        self._low, span = edges[0], edges[-1] - edges[0]
        self._shift = span * _LEAST
        self._first = np.int64(0)
        self._first = self._of(edges[:1])[0]
        self._number = int(self._of(edges[-1:])[0]) + 2
        self._inner = edges[1:-1]
        self._guarded = np.append(self._inner, np.inf)
        self._of_edges = self._of(self._inner)
        inside = np.bincount(self._of_edges, minlength=self._number)
        self._smaller = np.append(0, np.cumsum(inside)[:-1])
        self._mixed, self._crowded = inside > 0, inside > 1
        dense = lookup(edges) if self._crowded.any() else None
        self._dense: Find = self._inner.searchsorted if dense is None else dense

    def __call__(self, values: NDArray[Any]) -> Indices:
        """#{edges < x} of each."""
        found = np.empty(len(values), dtype=np.intp)
        for here in _blocks(len(values)):
            x = np.asarray(values[here], dtype=np.float64)
            cell = self._of(x)
            place = self._smaller.take(cell)
            place += x > self._guarded.take(place)
            crowded = np.flatnonzero(self._crowded.take(cell))
            if len(crowded):
                few = len(crowded) < MANY
                place[crowded] = (self._inner.searchsorted if few else self._dense)(x[crowded])
            found[here] = place
        return found

    def counts(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """How many values lie between the edges."""
        whole = np.zeros(self._number, dtype=np.int64)
        near = []
        for here in _blocks(len(values)):
            x = np.asarray(values[here], dtype=np.float64)
            cell = self._of(x)
            whole += np.bincount(cell, None, self._number)
            near.append(x[np.flatnonzero(self._mixed.take(cell))])
        found = np.bincount(self(np.concatenate(near)), None, len(self._inner) + 1)
        whole[self._of_edges] = 0  # what lies near an edge was counted by itself
        below = np.cumsum(whole)
        found += np.diff(below[self._of_edges], prepend=0, append=below[-1])
        return found

    def _of(self, x: Floats) -> Indices:
        """The cell of each."""
        moved = x + self._shift if self._low == 0 else x - self._low + self._shift
        bits = moved.view(np.int64)
        bits >>= _BITS
        bits -= self._first
        return bits


def _blocks(number: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, number, _BLOCK))


MAX_BINS = 1_000_000


@dataclass(frozen=True, eq=False)
class Grid:
    """Bins (edges[h], edges[h+1]], the first closed below: counts up to an edge are exact.

    Two grids are equal when their edges are, whatever their names.

    Parameters
    ----------
    edges
        (H + 1,) rising numbers: the lower end of the range (possibly -inf) first, its top (possibly
        inf) last.
    name
        How a report names the grid; "edges" sends the edges themselves.
    parameters
        With which parameters the name makes it again.

    Examples
    --------
    >>> import robfcp
    >>> robfcp.Grid([0.0, 0.5, 1.0]).counts([0.0, 0.5, 0.75])
    array([2, 1])
    """

    edges: NDArray[np.float64]
    name: str = "edges"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        edges = floats("grid", self.edges) + 0.0  # -0.0 becomes 0.0: equal edges, equal digests
        if edges.ndim != 1 or edges.size < 2:
            raise RobfcpError(
                "grid: edges must be a vector of at least two numbers; give more edges"
            )
        if edges.size > MAX_BINS + 1:
            raise RobfcpError(f"grid: more than {MAX_BINS} bins; use a coarser grid")
        if np.isnan(edges).any() or not (edges[1:] > edges[:-1]).all():
            raise RobfcpError("grid: edges must increase strictly; sort them and drop repeats")
        if np.isinf(edges[1:-1]).any() or edges[0] == np.inf or edges[-1] == -np.inf:
            raise RobfcpError("grid: only the outermost edges may be infinite; drop the others")
        edges.flags.writeable = False
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "parameters", MappingProxyType(dict(self.parameters)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again from its parts: copies and pickles of estimators hold grids."""
        return Grid, (self.edges, self.name, dict(self.parameters))

    @staticmethod
    def default() -> Grid:
        """About 1000 bins on [0, 1], fine at both ends, with every k/100 among its edges.

        For scores in [0, 1]: what reports use unless told otherwise.

        Returns
        -------
        Grid
            The same for everybody.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Grid.default().n_bins
        1000
        """
        return _default()

    @staticmethod
    def uniform(bins: int = 100, low: float = 0.0, high: float = 1.0) -> Grid:
        """`bins` bins of equal width on [low, high]; 100 on [0, 1] is the grid of Rob-FCP.

        Parameters
        ----------
        bins
            How many, at most a million.
        low
            The lower end of the range.
        high
            Its top.

        Returns
        -------
        Grid
            Scores outside [low, high] do not fit it.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Grid.uniform(4).edges
        array([0.  , 0.25, 0.5 , 0.75, 1.  ])
        """
        number, bottom, top = floats("grid", [bins, low, high])
        if not 1 <= number <= MAX_BINS or number % 1 or not bottom < top:
            raise RobfcpError(
                f"grid: uniform({bins}, {low}, {high}) needs 1 to {MAX_BINS} bins and low < high"
            )
        bins = int(bins)
        with np.errstate(over="ignore", invalid="ignore"):
            edges = bottom + (top - bottom) * (np.arange(bins + 1) / bins)
        edges[-1] = top
        return Grid(edges, "uniform", {"bins": bins, "low": float(bottom), "high": float(top)})

    @staticmethod
    def open_ended(edges: ArrayLike | None = None) -> Grid:
        """Bins between the given edges and one beyond each end; a threshold there is infinite.

        Without edges: log-spaced from 1e-6 to 1e6 on both sides of 0 (2.3% a bin), for any scale.

        Parameters
        ----------
        edges
            Finite, rising numbers.

        Returns
        -------
        Grid
            Every finite score fits it.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Grid.open_ended([0.0, 1.0]).edges
        array([-inf,   0.,   1.,  inf])
        """
        if edges is None:
            return _open_ended_default()
        inner = floats("grid", edges)
        if inner.ndim != 1 or not np.isfinite(inner).all():
            raise RobfcpError("grid: open_ended needs a vector of finite edges")
        return Grid(np.concatenate([[-np.inf], inner, [np.inf]]), "open_ended")

    @staticmethod
    def extended() -> Grid:
        """The default grid on [0, 1], as fine on [1, 2], log-spaced beyond and open-ended.

        For scores that may exceed 1, such as RAPS.

        Returns
        -------
        Grid
            Every finite score fits it.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Grid.extended().edges[[0, -2, -1]]
        array([  -inf, 20000.,    inf])
        """
        return _extended()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the edges: equal exactly when two grids bin alike."""
        return hashlib.sha256(self.edges.astype("<f8").tobytes()).hexdigest()

    @property
    def upper(self) -> NDArray[np.float64]:
        """Each bin's upper edge: the values a threshold can take."""
        return self.edges[1:]

    @property
    def n_bins(self) -> int:
        """H, the number of bins."""
        return self.edges.size - 1

    def edge_at(self, thresholds: ArrayLike) -> NDArray[np.intp]:
        """The bin whose upper edge each threshold is; the last one for what lies beyond them.

        Parameters
        ----------
        thresholds
            Real numbers, of any shape; infinite ones too.

        Returns
        -------
        array of int
            Bin numbers from 0, of the same shape.

        Examples
        --------
        >>> import numpy as np
        >>> import robfcp
        >>> robfcp.Grid.uniform(4).edge_at([0.25, 0.75, np.inf])
        array([0, 2, 3])
        """
        return np.searchsorted(self.upper, np.asarray(thresholds)).clip(max=self.n_bins - 1)

    def index(self, scores: ArrayLike) -> NDArray[np.intp]:
        """Each score's bin number; scores outside the range or NaN are refused.

        Parameters
        ----------
        scores
            Real numbers, of any shape.

        Returns
        -------
        array of int
            Bin numbers from 0, of the same shape.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Grid.uniform(4).index([0.0, 0.25, 0.26, 1.0])
        array([0, 0, 1, 3])
        """
        return self._binning.index(self._checked(scores))

    @cached_property
    def _binning(self) -> Binning:
        return Binning(self.edges)

    def counts(self, scores: ArrayLike) -> NDArray[np.int64]:
        """(H,) how many scores fall into each bin.

        Parameters
        ----------
        scores
            (n,) real numbers; those outside the range or NaN are refused.

        Returns
        -------
        (H,) array of int
            They sum to n.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Grid.uniform(4).counts([0.0, 0.25, 0.26, 1.0])
        array([2, 1, 0, 1])
        """
        values = scores if type(scores) is np.ndarray else array("scores", scores)
        if values.dtype.kind in "fiu" and values.dtype.itemsize <= 8 and values.ndim == 1:
            found = self._binning.counts(values)
            if found is not None:
                return found
        return np.bincount(self.index(values), minlength=self.n_bins).astype(np.int64)

    def _checked(self, scores: ArrayLike) -> NDArray[Any]:
        values = array("scores", scores)
        if values.dtype.kind not in "fiu":
            raise RobfcpError(f"scores: must be real numbers, not {values.dtype}; convert them")
        if values.size:
            low, high = values.min(), values.max()
            if np.isnan(low) or np.isnan(high):
                row = int(np.argmax(np.isnan(values)))
                raise RobfcpError(f"scores: row {row} is NaN; find the broken prediction first")
            if low < self.edges[0] or high > self.edges[-1]:
                raise RobfcpError(
                    f"scores: range [{low:g}, {high:g}] leaves the grid's "
                    f"[{self.edges[0]:g}, {self.edges[-1]:g}]; use Grid.open_ended or a wider grid"
                )
        return values

    def merge_ends(self, coarse: Grid) -> NDArray[np.intp] | None:
        """For each bin of `coarse` the last own bin inside it, or None where edges do not nest.

        Parameters
        ----------
        coarse
            A grid whose edges are all among this one's, with the same ends.

        Returns
        -------
        (B,) array of int or None
            What `Federation.merged` takes.

        Examples
        --------
        >>> import robfcp
        >>> robfcp.Grid.uniform(4).merge_ends(robfcp.Grid.uniform(2))
        array([1, 3])
        >>> robfcp.Grid.uniform(4).merge_ends(robfcp.Grid.uniform(3)) is None
        True
        """
        position = np.searchsorted(self.edges, coarse.edges)
        inside = position < self.edges.size
        nested = inside.all() and np.array_equal(self.edges[position], coarse.edges)
        covers = nested and position[0] == 0 and position[-1] == self.edges.size - 1
        return position[1:] - 1 if covers else None

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Grid) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Grid({self.name}, {self.n_bins} bins, {self.digest[:8]})"


def _round_digits(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ten significant digits, so that every platform's `exp` gives the same edges."""
    return np.array([float(f"{value:.10g}") for value in values])


@cache
def _default() -> Grid:
    with np.errstate(over="ignore"):
        logistic = 1 / (1 + np.exp(-np.linspace(-16, 16, 901)))
    edges = np.sort(np.concatenate([_round_digits(logistic), np.arange(101) / 100]))
    edges = edges[np.diff(edges, prepend=-1) > 0]  # np.unique would load numpy.ma
    return Grid(edges, "default")


@cache
def _open_ended_default() -> Grid:
    steps = _round_digits(10 ** np.linspace(-6, 6, 1201))
    edges = np.concatenate([[-np.inf], -steps[::-1], [0.0], steps, [np.inf]])
    return Grid(edges, "open_ended")


@cache
def _extended() -> Grid:
    unit = _default().edges
    beyond = _round_digits(2 * 10 ** np.linspace(0, 4, 401))[1:]
    shifted = _round_digits(1 + unit[1:])
    edges = np.unique(np.concatenate([unit, shifted, beyond]))
    return Grid(np.concatenate([[-np.inf], edges, [np.inf]]), "extended")


def named(name: str, parameters: Mapping[str, Any]) -> Grid:
    """The grid a report names, rebuilt from its name and parameters."""
    fixed = {"default": _default, "open_ended": _open_ended_default, "extended": _extended}
    if name in fixed and not parameters:
        return fixed[name]()
    if name == "uniform" and set(parameters) == {"bins", "low", "high"}:
        return Grid.uniform(**parameters)
    raise RobfcpError(f"grid: unknown grid {name!r} {dict(parameters)}; send its edges instead")
