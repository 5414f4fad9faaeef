"""What every attack is: a callable that replaces the data of the malicious clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._typing import FloatArray, IndexArray, IntArray
from robfcp._validation import Rng
from robfcp.binning import Binning
from robfcp.errors import RobfcpError
from robfcp.experiments.scenarios import assign_labels, count_by_class, expand_samples
from robfcp.federation import Federation, SparseTable

# One client's scores or probabilities, and its labels.
Pair = tuple[NDArray[Any], IndexArray]

# What an attack works on: (probabilities, labels) before scoring, scores, (scores, labels), the
# counts of a federation, or the raw reports that the server receives.
Stage = Literal["samples", "scores", "pairs", "counts", "reports"]

# Takes an `AttackContext` and returns the forged data of each malicious client, in their order.
AttackFunction = Callable[..., list[Any]]


class Attack(Protocol):
    """Turns benign data into attacked data of the same kind; `stage` says which kind."""

    @property
    def name(self) -> str:
        """The name of the attack in tables."""

    @property
    def stage(self) -> Stage:
        """The kind of data that the attack works on."""

    def __call__(self, data: Any, malicious: ArrayLike, rng: Rng = None) -> Any:
        """Return the data with that of the malicious clients forged.

        Parameters
        ----------
        data : object
            What the attack's stage says.
        malicious : array_like
            The positions of the malicious clients, or a mask of all clients.
        rng : int, Generator or None
            A seed or a generator.
        """


@dataclass(frozen=True)
class AttackContext:
    """What malicious clients know.

    Attributes
    ----------
    all_data : list
        Of each client: scores, or a pair of scores or probabilities and labels.
    malicious : array of int
        The positions of the malicious clients.
    rng : Generator
        For everything that is drawn.
    binning : Binning or None
        The bins of a federation whose counts are attacked.
    """

    all_data: list[Any]
    malicious: IndexArray
    rng: np.random.Generator
    binning: Binning | None = None

    @cached_property
    def scores(self) -> list[FloatArray]:
        """The scores of each client."""
        return [data[0] if isinstance(data, tuple) else data for data in self.all_data]

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest score that a client can report.

        They are the outer edges of the binning; where an edge is infinite, the extreme scores.
        Without a binning they are the extremes of [0, 1] and all scores.
        """
        lowest_score = float(min(scores.min() for scores in self.scores))
        highest_score = float(max(np.max(scores) for scores in self.scores))
        if self.binning is None:
            return min(0.0, lowest_score), max(1.0, highest_score)

        low = float(self.binning.edges[0])
        high = float(self.binning.edges[-1])
        if np.isinf(low):
            low = lowest_score
        if np.isinf(high):
            high = highest_score
        return low, high

    @property
    def malicious_data(self) -> list[Any]:
        """The data of each malicious client."""
        return [self.all_data[k] for k in self.malicious]

    @cached_property
    def benign_indices(self) -> IndexArray:
        """The positions of the benign clients."""
        return np.setdiff1d(np.arange(len(self.all_data)), self.malicious)

    @cached_property
    def benign_scores(self) -> FloatArray:
        """The scores of all benign clients together."""
        return np.concatenate([self.scores[k] for k in self.benign_indices])

    def benign_scores_between(self, low: float, high: float) -> FloatArray:
        """Return the benign scores between two quantiles of theirs.

        Parameters
        ----------
        low, high : float
            The levels of the quantiles; scores equal to them count.
        """
        scores = self.benign_scores
        low_score = quantile(scores, low)
        high_score = quantile(scores, high)
        return scores[(scores >= low_score) & (scores <= high_score)]

    def benign_by_quantile(self, level: float) -> IndexArray:
        """Return the benign clients from the lowest to the highest quantile of their scores.

        Parameters
        ----------
        level : float
            Of the quantile.
        """
        quantiles = [quantile(self.scores[k], level) for k in self.benign_indices]
        return self.benign_indices[np.argsort(quantiles, kind="stable")]


class ConcreteAttack:
    """An attack function in its usual strength or another.

    Parameters
    ----------
    stage : str
        What the function works on.
    craft : callable
        `craft(context, ...)` returns the forged data of each malicious client, in the order of
        `context.malicious`.
    arguments, strength
        Given to the function after the context.
    """

    def __init__(
        self, stage: Stage, craft: AttackFunction, /, *arguments: Any, **strength: Any
    ) -> None:
        self.stage = stage
        self.craft = craft
        self.arguments = arguments
        self.strength = strength
        self.name = craft.__name__.replace("_", "-")

    def __repr__(self) -> str:
        values = (*self.arguments, *self.strength.values())
        texts = [str(getattr(value, "__name__", value)) for value in values]
        return f"{self.name}({', '.join(texts)})"

    def craft_reports(self, context: AttackContext) -> list[Any]:
        """Return the forged data of each malicious client.

        Parameters
        ----------
        context : AttackContext
            What the malicious clients know.
        """
        forged = self.craft(context, *self.arguments, **self.strength)
        n_malicious = len(context.malicious)
        if len(forged) != n_malicious:
            raise RobfcpError(
                f"{self.name}: the attack returned {len(forged)} arrays for {n_malicious} "
                "malicious clients; return one for each, in the order of context.malicious"
            )
        return forged

    def __call__(self, data: Any, malicious: ArrayLike, rng: Rng = None) -> Any:
        """Return the data with that of the malicious clients forged.

        Parameters
        ----------
        data : object
            One entry a client, or a federation, whose counts are then forged.
        malicious : array_like
            The positions of the malicious clients, or a mask of all clients.
        rng : int, Generator or None
            A seed or a generator.
        """
        generator = np.random.default_rng(rng)
        if isinstance(data, Federation):
            return self._attack_federation(data, malicious, generator)

        client_data = self._as_arrays(data)
        malicious_rows = malicious_indices(malicious, len(client_data))
        if not len(malicious_rows):
            return client_data
        forged = self.craft_reports(AttackContext(client_data, malicious_rows, generator))
        for k, forged_data in zip(malicious_rows, forged, strict=True):
            client_data[k] = forged_data
        return client_data

    def _attack_federation(
        self, federation: Federation, malicious: ArrayLike, rng: np.random.Generator
    ) -> Federation:
        """Return the federation with the counts of the malicious clients forged."""
        attacks_scores = self.stage == "scores"
        collect: Callable[[Federation], list[Any]] = client_pairs
        if attacks_scores:
            collect = client_scores
        client_data = collect(federation)
        malicious_rows = malicious_indices(malicious, federation.n_clients)

        context = AttackContext(client_data, malicious_rows, rng, federation.binning)
        forged = self.craft_reports(context)
        if attacks_scores:
            return replace_scores(federation, malicious_rows, forged)
        return replace_pairs(federation, malicious_rows, forged)

    def _as_arrays(self, data: Any) -> list[Any]:
        """Return the data of each client as arrays."""
        if self.stage == "scores":
            return [np.asarray(scores, np.float64) for scores in data]
        dtype = np.float64 if self.stage == "pairs" else None  # probabilities keep their type
        return [
            (np.asarray(values, dtype), np.asarray(labels).astype(np.intp))
            for values, labels in data
        ]


# On scores, or on counts through the upper edges of the bins.
ScoreAttack = partial(ConcreteAttack, "scores")

# On (scores, labels) of each client, or on counts by class.
PairAttack = partial(ConcreteAttack, "pairs")

# Before scoring, on (probabilities, labels) of each client.
SampleAttack = partial(ConcreteAttack, "samples")


def quantile(scores: FloatArray, level: float) -> float:
    """Return the least score with a fraction `level` of the scores at or below it."""
    return float(np.quantile(scores, level, method="inverted_cdf"))


def malicious_indices(malicious: ArrayLike, n_clients: int) -> IndexArray:
    """Return the positions of the malicious clients, in order.

    Parameters
    ----------
    malicious : array_like
        Positions, or a mask of all clients.
    n_clients : int
        The number of all clients.
    """
    array = np.asarray(malicious)
    if array.dtype == bool:
        if array.shape != (n_clients,):
            raise RobfcpError(f"malicious: a mask of {n_clients} clients was needed")
        return np.flatnonzero(array)

    indices = np.unique(array.astype(np.intp))
    if indices.size and not 0 <= indices[0] <= indices[-1] < n_clients:
        raise RobfcpError(f"malicious: client numbers must lie in 0..{n_clients - 1}")
    if indices.size == n_clients:
        raise RobfcpError("malicious: at least one client must stay benign")
    return indices


def client_scores(federation: Federation) -> list[FloatArray]:
    """Return each client's scores, rounded up to the upper edges of their bins.

    The bins of these scores are those of the reports.
    """
    upper = upper_edges(federation.binning)
    return [np.repeat(upper, counts) for counts in federation.counts]


def client_pairs(federation: Federation) -> list[Pair]:
    """Return each client's scores as `client_scores` does, with the labels of its report."""
    strata = federation.strata
    if strata is None or strata.by != "class" or len(strata.rows) < federation.n_clients:
        raise RobfcpError(
            "attack: it forges labels too, but not all reports keep counts by class; "
            "recreate them with stratify_by_class=True"
        )
    client_index, labels, bins = expand_samples(strata)
    order = np.lexsort((labels, bins, client_index))
    scores = upper_edges(federation.binning)[bins[order]]

    boundaries = np.cumsum(federation.sample_sizes)[:-1]
    scores_by_client = np.split(scores, boundaries)
    labels_by_client = np.split(labels[order], boundaries)
    return list(zip(scores_by_client, labels_by_client, strict=True))


def replace_scores(
    federation: Federation, malicious: IndexArray, forged: list[FloatArray]
) -> Federation:
    """Return the federation with the counts of the malicious clients replaced.

    Parameters
    ----------
    federation : Federation
        The reports before the attack.
    malicious : array of int
        The positions of the malicious clients.
    forged : list of array
        The scores that each of them counts.
    """
    counts = federation.counts.copy()
    for k, scores in zip(malicious, forged, strict=True):
        counts[k] = federation.binning.counts(scores)
    return replace_counts(federation, counts)


def replace_counts(federation: Federation, counts: IntArray) -> Federation:
    """Return the federation with other counts, and with the sample sizes that follow from them.

    A client whose counts change keeps the proportions of its classes. A client that reported no
    classes still reports none.

    Parameters
    ----------
    federation : Federation
        The reports before the attack.
    counts : (K, H) array of int
        The counts of all clients.
    """
    strata = federation.strata
    if strata is not None:
        changed = np.flatnonzero((counts != federation.counts).any(axis=1))
        forged = changed[np.isin(changed, strata.rows)]
        if len(forged):
            class_sizes = strata.stratum_sizes[np.searchsorted(strata.rows, forged)]
            row, labels, bins = assign_labels(counts[forged], class_sizes)
            strata = count_by_class(forged[row], labels, bins, forged, strata)
    return replace(
        federation,
        table=SparseTable.from_dense(counts),
        sample_sizes=counts.sum(axis=1),
        strata=strata,
    )


def replace_pairs(federation: Federation, malicious: IndexArray, forged: list[Pair]) -> Federation:
    """Return the federation with the malicious clients' counts replaced, pooled and by class.

    Parameters
    ----------
    federation : Federation
        The reports before the attack.
    malicious : array of int
        The positions of the malicious clients.
    forged : list of pairs of arrays
        The scores and labels that each of them counts.
    """
    if not len(malicious) or federation.strata is None:
        return federation
    client_index = np.repeat(malicious, [len(scores) for scores, _ in forged])
    bins = federation.binning.bin_indices(np.concatenate([scores for scores, _ in forged]))
    labels = np.concatenate([forged_labels for _, forged_labels in forged])

    counts = federation.counts.copy()
    counts[malicious] = 0
    np.add.at(counts, (client_index, bins), 1)
    return replace(
        federation,
        table=SparseTable.from_dense(counts),
        sample_sizes=counts.sum(axis=1),
        strata=count_by_class(client_index, labels, bins, malicious, federation.strata),
    )


def upper_edges(binning: Binning) -> FloatArray:
    """Return the (H,) upper edges of the bins, the last of them finite."""
    upper = binning.upper_edges.copy()
    if np.isinf(upper[-1]):
        upper[-1] = np.nextafter(upper[-2], np.inf) if len(upper) > 1 else 0.0
    return upper
