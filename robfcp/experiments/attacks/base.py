"""What every attack is: a callable that replaces the malicious clients' part of the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._validation import Rng
from robfcp.binning import Binning
from robfcp.errors import RobfcpError
from robfcp.experiments.scenarios import assign_labels, count_by_class, expand_samples
from robfcp.federation import Federation, SparseTable

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]
Pair = tuple[NDArray[Any], IndexArray]  # probabilities or scores, and labels, of one client
Stage = Literal["samples", "scores", "pairs", "counts", "reports"]
AttackFunction = Callable[..., list[Any]]  # what attackers who see a scene send, in their order


class Attack(Protocol):
    """Turns honest data into attacked data of the same kind; `on` says which kind it works on."""

    @property
    def name(self) -> str:
        """How it is called."""

    @property
    def stage(self) -> Stage:
        """Where it belongs."""

    def __call__(self, data: Any, malicious: ArrayLike, rng: Rng = None) -> Any:
        """The data with the malicious clients' part forged; `malicious` are indices or a mask."""


@dataclass(frozen=True)
class AttackContext:
    """What attackers know: everybody's data, who they are, and how their draws are seeded."""

    all_data: list[Any]  # a client: scores, or a pair of scores or probabilities and labels
    malicious: IndexArray
    rng: np.random.Generator
    binning: Binning | None = None

    @cached_property
    def scores(self) -> list[FloatArray]:
        """Everybody's scores."""
        return [part[0] if isinstance(part, tuple) else part for part in self.all_data]

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The ends of the grid, or of the scores where it is open; without one [0, 1] and them."""
        least, most = min(part.min() for part in self.scores), max(map(np.max, self.scores))
        if self.binning is None:
            return min(0.0, float(least)), max(1.0, float(most))
        low, high = self.binning.edges[0], self.binning.edges[-1]
        return float(least if np.isinf(low) else low), float(most if np.isinf(high) else high)

    @property
    def malicious_data(self) -> list[Any]:
        """The data of each malicious client."""
        return [self.all_data[k] for k in self.malicious]

    @cached_property
    def benign_indices(self) -> IndexArray:
        """The positions of the others."""
        return np.setdiff1d(np.arange(len(self.all_data)), self.malicious)

    @cached_property
    def benign_scores(self) -> FloatArray:
        """All honest scores."""
        return np.concatenate([self.scores[k] for k in self.benign_indices])

    def benign_scores_between(self, low: float, high: float) -> FloatArray:
        """The honest scores between these two quantiles of theirs."""
        ends = quantile(self.benign_scores, low), quantile(self.benign_scores, high)
        return self.benign_scores[(self.benign_scores >= ends[0]) & (self.benign_scores <= ends[1])]

    def benign_by_quantile(self, level: float) -> IndexArray:
        """The honest clients from the lowest to the highest `level` quantile of their scores."""
        quantiles = [quantile(self.scores[k], level) for k in self.benign_indices]
        return self.benign_indices[np.argsort(quantiles, kind="stable")]


class ConcreteAttack:
    """An attack by a rule, in its own strength or another: rule(scene, ...) gives the forged data
    of each malicious client, in the order of `scene.malicious`."""

    def __init__(self, on: Stage, rule: AttackFunction, *told: Any, **strength: Any) -> None:
        self.stage, self.craft, self.arguments, self.strength = on, rule, told, strength
        self.name = rule.__name__.replace("_", "-")

    def __repr__(self) -> str:
        said = (getattr(one, "__name__", one) for one in (*self.arguments, *self.strength.values()))
        return f"{self.name}({', '.join(map(str, said))})"

    def craft_reports(self, scene: AttackContext) -> list[Any]:
        """The forged data of each malicious client."""
        found, n_liars = self.craft(scene, *self.arguments, **self.strength), len(scene.malicious)
        if len(found) != n_liars:
            problem = f"{self.name}: the attack returned {len(found)} arrays for {n_liars} lying "
            raise RobfcpError(f"{problem}sites; return one for each, in the order of scene.own")
        return found

    def __call__(self, data: Any, malicious: ArrayLike, rng: Rng = None) -> Any:
        """The data, one entry a client or a federation's counts, with the liars' part forged."""
        generator = np.random.default_rng(rng)
        if isinstance(data, Federation):
            parts = client_scores(data) if self.stage == "scores" else client_pairs(data)
            bad = malicious_indices(malicious, data.n_clients)
            forged = self.craft_reports(AttackContext(parts, bad, generator, data.binning))
            return (replace_scores if self.stage == "scores" else replace_pairs)(data, bad, forged)
        if self.stage == "scores":
            parts = [np.asarray(part, np.float64) for part in data]
        else:
            kind = np.float64 if self.stage == "pairs" else None
            parts = [(np.asarray(x, kind), np.asarray(y).astype(np.intp)) for x, y in data]
        bad = malicious_indices(malicious, len(parts))
        if len(bad):
            for k, part in zip(
                bad, self.craft_reports(AttackContext(parts, bad, generator)), strict=True
            ):
                parts[k] = part
        return parts


ScoreAttack = partial(
    ConcreteAttack, "scores"
)  # and, through the upper edges of the bins, on counts too
PairAttack = partial(
    ConcreteAttack, "pairs"
)  # (scores, labels) of each client; and counts by class
SampleAttack = partial(ConcreteAttack, "samples")  # before scoring: (probabilities, labels) of each


def quantile(scores: FloatArray, level: float) -> float:
    """The least score with a share `level` of the scores at or below it."""
    return float(np.quantile(scores, level, method="inverted_cdf"))


def malicious_indices(malicious: ArrayLike, n_clients: int) -> IndexArray:
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


def client_scores(federation: Federation) -> list[FloatArray]:
    """Each client's scores rounded up to the upper edges of their bins; binning restores them."""
    upper = upper_edges(federation.binning)
    return [np.repeat(upper, counts) for counts in federation.counts]


def client_pairs(federation: Federation) -> list[Pair]:
    """The same scores with the labels the reports keep."""
    strata = federation.strata
    if strata is None or strata.by != "class" or len(strata.rows) < federation.n_clients:
        raise RobfcpError(
            "attack: it forges labels too, but not all reports keep counts by class; "
            "make them with labels"
        )
    owner, label, bins = expand_samples(strata)
    order = np.lexsort((label, bins, owner))
    cuts = np.cumsum(federation.sample_sizes)[:-1]
    scores = np.split(upper_edges(federation.binning)[bins[order]], cuts)
    return list(zip(scores, np.split(label[order], cuts), strict=True))


def replace_scores(
    federation: Federation, malicious: IndexArray, forged: list[FloatArray]
) -> Federation:
    """The federation with the malicious clients' rows replaced by the sketches of these scores."""
    counts = federation.counts.copy()
    for k, part in zip(malicious, forged, strict=True):
        counts[k] = federation.binning.counts(part)
    return replace_counts(federation, counts)


def replace_counts(federation: Federation, counts: NDArray[np.int64]) -> Federation:
    """The federation with other counts; sizes follow, and classes in each client's proportions.

    Who reported no classes still does not.
    """
    strata = federation.strata
    forged = np.flatnonzero((counts != federation.counts).any(axis=1))
    if strata is not None:
        forged = forged[np.isin(forged, strata.rows)]
        if len(forged):
            sizes = strata.stratum_sizes[np.searchsorted(strata.rows, forged)]
            owner, label, bins = assign_labels(counts[forged], sizes)
            strata = count_by_class(forged[owner], label, bins, forged, strata)
    return replace(
        federation,
        table=SparseTable.from_dense(counts),
        sample_sizes=counts.sum(axis=1),
        strata=strata,
    )


def replace_pairs(federation: Federation, malicious: IndexArray, forged: list[Pair]) -> Federation:
    """The federation with the malicious clients' counts, pooled and by class, of these samples."""
    if not len(malicious) or federation.strata is None:
        return federation
    owner = np.repeat(malicious, [len(part) for part, _ in forged])
    label = np.concatenate([one for _, one in forged])
    bins = federation.binning.bin_indices(np.concatenate([part for part, _ in forged]))
    counts = federation.counts.copy()
    counts[malicious] = 0
    np.add.at(counts, (owner, bins), 1)
    strata = count_by_class(owner, label, bins, malicious, federation.strata)
    return replace(
        federation,
        table=SparseTable.from_dense(counts),
        sample_sizes=counts.sum(axis=1),
        strata=strata,
    )


def upper_edges(grid: Binning) -> FloatArray:
    """(H,) the bins' upper edges, the last one finite."""
    upper = grid.upper_edges.copy()
    if np.isinf(upper[-1]):
        upper[-1] = np.nextafter(upper[-2], np.inf) if len(upper) > 1 else 0.0
    return upper
