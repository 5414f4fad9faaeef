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

from robfcp._validation import as_array, as_float_array
from robfcp.errors import RobfcpError

MAX_BINS = 1_000_000
_MIN_EDGES_FOR_LOOKUP = 1500  # values from which on they are looked up, not searched for
_MAX_LOOKUP_EDGES = 2**14  # beyond them the table is larger than a search is slow
_MAX_COMPARISONS = 8  # edges a value may have to be compared with
_BLOCK = 15 * 2**10  # values at a time: arrays stay in the cache and below what malloc maps
_LEAST = 2.0**-24  # of the range: nearer to its ends buckets no longer shrink
_BITS = 43  # leaves a float's exponent and nine bits of its mantissa


class _Lookup:
    """#{inner edges < x} of many x, exactly, ten times as fast as a search.

    The bucket of x is the leading bits of its distance from the low end less those of its distance
    from the high one: it never falls as x rises, and buckets shrink towards both ends. Edges in
    lower buckets are smaller than x, those in higher ones are not, those in its own are compared.
    """

    def __init__(self, edges: NDArray[np.float64]) -> None:
        self._low, self._high, self._first = edges[0], edges[-1], np.int64(0)
        self._shift = (edges[-1] - edges[0]) * _LEAST
        buckets = self._bucket(edges)
        self._first = buckets[0]
        buckets -= self._first
        inside = np.bincount(buckets[1:-1], None, buckets[-1] + 1)
        self._smaller = np.cumsum(inside) - inside
        self._inner = np.append(edges[1:-1], np.inf)
        self.compared = int(inside.max())

    def __call__(self, values: NDArray[Any]) -> NDArray[np.intp]:
        places = np.empty(len(values), dtype=np.intp)
        for start in range(0, len(values), _BLOCK):
            x = np.asarray(values[start : start + _BLOCK], dtype=np.float64)
            place = self._smaller.take(self._bucket(x))
            for _ in range(self.compared):
                place += x > self._inner.take(place)
            places[start : start + _BLOCK] = place
        return places

    def _bucket(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        up, down = x - self._low, self._high - x
        up += self._shift
        down += self._shift
        bucket, other = up.view(np.int64), down.view(np.int64)
        bucket >>= _BITS
        other >>= _BITS
        bucket -= other
        bucket -= self._first
        return bucket


@dataclass(frozen=True, eq=False)
class Binning:
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
    >>> robfcp.Binning([0.0, 0.5, 1.0]).counts([0.0, 0.5, 0.75])
    array([2, 1])
    """

    edges: NDArray[np.float64]
    name: str = "edges"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        edges = (
            as_float_array("grid", self.edges) + 0.0
        )  # -0.0 becomes 0.0: equal edges, equal digests
        if edges.ndim != 1 or edges.size < 2:
            raise RobfcpError("grid: edges must be a vector of two numbers or more; give more")
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
        return Binning, (self.edges, self.name, dict(self.parameters))

    @staticmethod
    @cache
    def default() -> Binning:
        """About 1000 bins on [0, 1], fine at both ends, with every k/100 among its edges.

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
        edges = np.sort(np.concatenate([_round_digits(logistic), np.arange(101) / 100]))
        edges = edges[np.diff(edges, prepend=-1) > 0]  # np.unique would load numpy.ma
        return Binning(edges, "default")

    @staticmethod
    def uniform(n_bins: int = 100, low: float = 0.0, high: float = 1.0) -> Binning:
        """`n_bins` bins of equal width on [low, high]; 100 on [0, 1] is the grid of Rob-FCP.

        Parameters
        ----------
        n_bins
            How many, at most a million.
        low
            The lower end of the range.
        high
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
        number, bottom, top = as_float_array("grid", [n_bins, low, high])
        if not 1 <= number <= MAX_BINS or number % 1 or not bottom < top:
            raise RobfcpError(
                f"grid: uniform({n_bins}, {low}, {high}) needs 1 to {MAX_BINS} bins and low < high"
            )
        n_bins = int(n_bins)
        with np.errstate(over="ignore", invalid="ignore"):
            edges = bottom + (top - bottom) * (np.arange(n_bins + 1) / n_bins)
        edges[-1] = top
        return Binning(edges, "uniform", {"bins": n_bins, "low": float(bottom), "high": float(top)})

    @staticmethod
    def open_ended(edges: ArrayLike | None = None) -> Binning:
        """Bins between the given edges and one beyond each end; a threshold there is infinite.

        Without edges: log-spaced from 1e-6 to 1e6 on both sides of 0 (2.3% a bin), for any scale.

        Parameters
        ----------
        edges
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
        inner = as_float_array("grid", edges)
        if inner.ndim != 1 or not np.isfinite(inner).all():
            raise RobfcpError("grid: open_ended needs a vector of finite edges")
        return Binning(np.concatenate([[-np.inf], inner, [np.inf]]), "open_ended")

    @staticmethod
    @cache
    def extended() -> Binning:
        """The default grid on [0, 1], as fine on [1, 2], log-spaced beyond and open-ended.

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
        unit = Binning.default().edges
        beyond = _round_digits(2 * 10 ** np.linspace(0, 4, 401))[1:]
        edges = np.unique(np.concatenate([unit, _round_digits(1 + unit[1:]), beyond]))
        return Binning(np.concatenate([[-np.inf], edges, [np.inf]]), "extended")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the edges: equal exactly when two grids bin alike."""
        return hashlib.sha256(self.edges.astype("<f8").tobytes()).hexdigest()

    @cached_property
    def upper_edges(self) -> NDArray[np.float64]:
        """Each bin's upper edge: the values a threshold can take."""
        return self.edges[1:]

    @cached_property
    def n_bins(self) -> int:
        """H, the number of bins."""
        return self.edges.size - 1

    def bin_index_of_threshold(self, thresholds: ArrayLike) -> NDArray[np.intp]:
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
        >>> robfcp.Binning.uniform(4).bin_index_of_threshold([0.25, 0.75, np.inf])
        array([0, 2, 3])
        """
        return np.searchsorted(self.upper_edges, np.asarray(thresholds)).clip(max=self.n_bins - 1)

    def bin_indices(self, scores: ArrayLike) -> NDArray[np.intp]:
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
        >>> robfcp.Binning.uniform(4).bin_indices([0.0, 0.25, 0.26, 1.0])
        array([0, 0, 1, 3])
        """
        values = as_array("scores", scores)
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
                    f"[{self.edges[0]:g}, {self.edges[-1]:g}]; "
                    "use Binning.open_ended or a wider grid"
                )
        if values.size < _MIN_EDGES_FOR_LOOKUP or values.dtype.itemsize > 8 or self._lookup is None:
            return np.asarray(self.edges[1:-1].searchsorted(values), dtype=np.intp)
        return self._lookup(values.reshape(-1)).reshape(values.shape)

    @cached_property
    def _lookup(self) -> _Lookup | None:
        """None where buckets do not fit the edges."""
        few = 4 <= self.edges.size <= _MAX_LOOKUP_EDGES
        if not few or not 1e-290 < self.edges[-1] - self.edges[0] < np.inf:
            return None
        lookup = _Lookup(self.edges)
        return lookup if lookup.compared <= _MAX_COMPARISONS else None

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
        >>> robfcp.Binning.uniform(4).counts([0.0, 0.25, 0.26, 1.0])
        array([2, 1, 0, 1])
        """
        return np.bincount(self.bin_indices(scores), minlength=self.n_bins).astype(np.int64)

    def merged_bin_ends(self, coarse: Binning) -> NDArray[np.intp] | None:
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
        >>> robfcp.Binning.uniform(4).merged_bin_ends(robfcp.Binning.uniform(2))
        array([1, 3])
        >>> robfcp.Binning.uniform(4).merged_bin_ends(robfcp.Binning.uniform(3)) is None
        True
        """
        position = np.searchsorted(self.edges, coarse.edges)
        inside = position < self.edges.size
        nested = inside.all() and np.array_equal(self.edges[position], coarse.edges)
        covers = nested and position[0] == 0 and position[-1] == self.edges.size - 1
        return position[1:] - 1 if covers else None

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Binning) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Grid({self.name}, {self.n_bins} bins, {self.digest[:8]})"


def _round_digits(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ten significant digits, so that every platform's `exp` gives the same edges."""
    return np.array([float(f"{value:.10g}") for value in values])


@cache
def _open_ended_default() -> Binning:
    steps = _round_digits(10 ** np.linspace(-6, 6, 1201))
    edges = np.concatenate([[-np.inf], -steps[::-1], [0.0], steps, [np.inf]])
    return Binning(edges, "open_ended")


def named_binning(name: str, parameters: Mapping[str, Any]) -> Binning:
    """The grid a report names, rebuilt from its name and parameters."""
    if name in ("default", "open_ended", "extended") and not parameters:
        grid: Binning = getattr(Binning, name)()
        return grid
    if name == "uniform" and set(parameters) == {"bins", "low", "high"}:
        return Binning.uniform(parameters["bins"], parameters["low"], parameters["high"])
    raise RobfcpError(f"grid: unknown grid {name!r} {dict(parameters)}; send its edges instead")
