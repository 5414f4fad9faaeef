"""What every attack is: a callable that replaces the malicious clients' part of the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.arguments import Rng
from robfcp.errors import RobfcpError
from robfcp.federation import DenseCounts, Federation
from robfcp.grid import Grid
from robfcp.lab.strata import labelled, respread, with_rows

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Bounds = tuple[float, float]
Pair = tuple[NDArray[Any], NDArray[np.intp]]  # probabilities and labels of one client
Labelled = tuple[Array, NDArray[np.intp]]  # scores and labels of one client
Stage = Literal["samples", "scores", "pairs", "counts", "reports"]


class Attack(Protocol):
    """Turns honest data into attacked data of the same kind; `on` says which kind it works on."""

    name: ClassVar[str]
    on: ClassVar[Stage]

    def __call__(self, data: Any, malicious: ArrayLike, rng: Rng = None) -> Any:
        """The data with the malicious clients' part forged; `malicious` are indices or a mask."""
        ...


class ScoreAttack(ABC):
    """An attack on scores, and through the upper edges of the bins on a federation's counts too."""

    name: ClassVar[str]
    on: ClassVar[Stage] = "scores"

    @overload
    def __call__(self, data: Federation, malicious: ArrayLike, rng: Rng = None) -> Federation: ...

    @overload
    def __call__(
        self, data: Sequence[ArrayLike], malicious: ArrayLike, rng: Rng = None
    ) -> list[Array]: ...

    def __call__(
        self, data: Federation | Sequence[ArrayLike], malicious: ArrayLike, rng: Rng = None
    ) -> Federation | list[Array]:
        """The data with the malicious clients' scores forged."""
        generator = np.random.default_rng(rng)
        if isinstance(data, Federation):
            bad = attackers(malicious, data.n_clients)
            scores = scores_of(data)
            forged = self.forge(scores, bad, grid_bounds(data.grid, scores), generator)
            return with_scores(data, bad, forged)
        scores = [np.asarray(part, dtype=np.float64) for part in data]
        bad = attackers(malicious, len(scores))
        if not len(bad):
            return scores
        for k, part in zip(bad, self.forge(scores, bad, _bounds(scores), generator), strict=True):
            scores[k] = part
        return scores

    @abstractmethod
    def forge(
        self, scores: list[Array], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Array]:
        """The forged scores of each malicious client; `bounds` are the ends of the range."""


class SampleAttack(ABC):
    """An attack before scoring, on samples: a sequence of (probabilities, labels), one a client."""

    name: ClassVar[str]
    on: ClassVar[Stage] = "samples"

    def __call__(
        self, data: Sequence[tuple[ArrayLike, ArrayLike]], malicious: ArrayLike, rng: Rng = None
    ) -> list[Pair]:
        """The samples with the malicious clients' part forged."""
        generator = np.random.default_rng(rng)
        samples = [(np.asarray(p), np.asarray(y).astype(np.intp)) for p, y in data]
        bad = attackers(malicious, len(samples))
        if not len(bad):
            return samples
        for k, pair in zip(bad, self.forge(samples, bad, generator), strict=True):
            samples[k] = pair
        return samples

    @abstractmethod
    def forge(
        self, samples: list[Pair], malicious: Indices, rng: np.random.Generator
    ) -> list[Pair]:
        """The forged samples of each malicious client."""


class PairAttack(ABC):
    """An attack on (scores, labels), one pair of arrays a client, and on counts by class too."""

    name: ClassVar[str]
    on: ClassVar[Stage] = "pairs"

    @overload
    def __call__(self, data: Federation, malicious: ArrayLike, rng: Rng = None) -> Federation: ...

    @overload
    def __call__(
        self, data: Sequence[tuple[ArrayLike, ArrayLike]], malicious: ArrayLike, rng: Rng = None
    ) -> list[Labelled]: ...

    def __call__(
        self,
        data: Federation | Sequence[tuple[ArrayLike, ArrayLike]],
        malicious: ArrayLike,
        rng: Rng = None,
    ) -> Federation | list[Labelled]:
        """The data with the malicious clients' scores and labels forged."""
        generator = np.random.default_rng(rng)
        if isinstance(data, Federation):
            bad = attackers(malicious, data.n_clients)
            pairs = pairs_of(data)
            bounds = grid_bounds(data.grid, [part for part, _ in pairs])
            return with_pairs(data, bad, self.forge(pairs, bad, bounds, generator))
        pairs = [(np.asarray(s, np.float64), np.asarray(y).astype(np.intp)) for s, y in data]
        bad = attackers(malicious, len(pairs))
        if not len(bad):
            return pairs
        bounds = _bounds([part for part, _ in pairs])
        for k, pair in zip(bad, self.forge(pairs, bad, bounds, generator), strict=True):
            pairs[k] = pair
        return pairs

    @abstractmethod
    def forge(
        self, pairs: list[Labelled], malicious: Indices, bounds: Bounds, rng: np.random.Generator
    ) -> list[Labelled]:
        """The forged scores and labels of each malicious client; `bounds`: the range's ends."""


def attackers(malicious: ArrayLike, n_clients: int) -> Indices:
    """The positions of the malicious clients, from indices or a mask."""
    array = np.asarray(malicious)
    if array.dtype == bool:
        if array.shape != (n_clients,):
            raise RobfcpError(f"malicious: a mask of {n_clients} clients was needed")
        return np.flatnonzero(array)
    chosen = np.unique(array.astype(np.intp))
    if chosen.size and not 0 <= chosen[0] <= chosen[-1] < n_clients:
        raise RobfcpError(f"malicious: client numbers must lie in 0..{n_clients - 1}")
    if chosen.size == n_clients:
        raise RobfcpError("malicious: at least one client must stay honest")
    return chosen


def honest(malicious: Indices, n_clients: int) -> Indices:
    """The positions of the other clients."""
    return np.setdiff1d(np.arange(n_clients), malicious)


def scores_of(federation: Federation) -> list[Array]:
    """Each client's scores rounded up to the upper edges of their bins; binning restores them."""
    upper = _upper(federation.grid)
    return [np.repeat(upper, counts) for counts in federation.counts]


def pairs_of(federation: Federation) -> list[Labelled]:
    """The same scores with the labels the reports keep."""
    strata = federation.strata
    if strata is None or strata.by != "class" or len(strata.rows) < federation.n_clients:
        raise RobfcpError(
            "attack: it forges labels too, but not all reports keep counts by class; "
            "make them with labels"
        )
    upper = _upper(federation.grid)
    return [(upper[bins], label) for bins, label in labelled(strata, federation.n_clients)]


def with_scores(federation: Federation, malicious: Indices, forged: list[Array]) -> Federation:
    """The federation with the malicious clients' rows replaced by the sketches of these scores."""
    counts = federation.counts.copy()
    for k, part in zip(malicious, forged, strict=True):
        counts[k] = np.bincount(federation.grid.index(part), minlength=federation.grid.n_bins)
    return with_counts(federation, counts)


def with_counts(federation: Federation, counts: NDArray[np.int64]) -> Federation:
    """The federation with other counts; sizes follow, and classes in each client's proportions."""
    strata = federation.strata
    if strata is not None:
        forged = np.flatnonzero((counts != federation.counts).any(axis=1))
        strata = respread(strata, counts[forged], forged)
    return replace(federation, table=DenseCounts(counts), sizes=counts.sum(axis=1), strata=strata)


def with_pairs(federation: Federation, malicious: Indices, forged: list[Labelled]) -> Federation:
    """The federation with the malicious clients' counts, pooled and by class, of these samples."""
    if not len(malicious) or federation.strata is None:
        return federation
    owner = np.repeat(malicious, [len(part) for part, _ in forged])
    label = np.concatenate([one for _, one in forged])
    bins = federation.grid.index(np.concatenate([part for part, _ in forged]))
    counts = federation.counts.copy()
    counts[malicious] = 0
    np.add.at(counts, (owner, bins), 1)
    strata = with_rows(federation.strata, owner, label, bins, malicious)
    return replace(federation, table=DenseCounts(counts), sizes=counts.sum(axis=1), strata=strata)


def _upper(grid: Grid) -> Array:
    """(H,) the bins' upper edges, the last one finite."""
    upper = grid.upper.copy()
    if np.isinf(upper[-1]):
        upper[-1] = np.nextafter(upper[-2], np.inf) if len(upper) > 1 else 0.0
    return upper


def grid_bounds(grid: Grid, scores: list[Array]) -> Bounds:
    """The ends of the grid, and of the scores where it is open-ended."""
    low, high = float(grid.edges[0]), float(grid.edges[-1])
    if np.isinf(low):
        low = float(min(part.min() for part in scores))
    if np.isinf(high):
        high = float(max(part.max() for part in scores))
    return low, high


def _bounds(scores: list[Array]) -> Bounds:
    """[0, 1], widened to the scores there are."""
    return (
        min(0.0, *(float(part.min()) for part in scores)),
        max(1.0, *(float(part.max()) for part in scores)),
    )
