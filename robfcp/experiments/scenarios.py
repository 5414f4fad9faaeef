"""Scenarios: a federation before an attack, the same after one, and its test data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._probabilities import check_labels, check_probabilities
from robfcp._typing import BoolArray, FloatArray, IndexArray, IntArray
from robfcp._validation import check_fraction, check_integer
from robfcp.binning import Binning
from robfcp.errors import RobfcpError
from robfcp.experiments import partitions
from robfcp.federation import Federation, SparseTable, StratifiedTable
from robfcp.reports import DEFAULT_MIN_CELL_COUNT
from robfcp.scores import LAC, ClassificationScore

if TYPE_CHECKING:
    from robfcp.experiments.attacks import Attack

# One threshold, (C,) one for each class, or (K, C) one for each client and class.
Thresholds = float | FloatArray


@dataclass(frozen=True)
class ScenarioConfig:
    """The clients of a run, which of them are malicious, and the calibration asked for.

    Parameters
    ----------
    malicious_fraction : float
        The fraction of clients that is malicious.
    n_clients : int
        The number of clients; with `partition` it is the number of sites.
    beta : float, optional
        The Dirichlet concentration of the labels: the smaller, the more clients differ. Samples
        are split iid if None.
    partition : array_like, shape (n,), optional
        The name of the client of each sample, instead of an artificial split.
    min_client_size : int
        Clients with fewer samples take no part.
    score : ClassificationScore
        The nonconformity score; its default binning is used.
    coverage : float
        The target coverage.
    n_malicious_known : bool
        Whether defenses are given the number of malicious clients.
    exclude_exactly : bool
        Whether a defense that is given the number excludes exactly so many clients, whatever
        their reports, instead of at most so many.
    by : {"class"}, optional
        "class" for a threshold for each class; one threshold if None.
    min_cell_count : int
        The minimum cell count of the reports that the server receives: that of default reports
        unless stated, 1 for exact counts. Attackers see exact counts all the same.
    """

    malicious_fraction: float = 0.4
    n_clients: int = 100
    beta: float | None = None
    partition: ArrayLike | None = None
    min_client_size: int = 20
    score: ClassificationScore = field(default_factory=LAC)
    coverage: float = 0.9
    n_malicious_known: bool = True
    exclude_exactly: bool = False
    by: Literal["class"] | None = None
    min_cell_count: int = DEFAULT_MIN_CELL_COUNT

    def __post_init__(self) -> None:
        check_fraction(
            "malicious_fraction", self.malicious_fraction, "give 0.4, say", allow_zero=True
        )
        check_integer("min_cell_count", self.min_cell_count, "give 5, or 1 for exact counts", 1)
        if self.by not in (None, "class"):
            raise RobfcpError(f"by: {self.by!r} is unknown; use 'class' or None")
        if self.beta is not None and self.partition is not None:
            raise RobfcpError("beta: natural clients are as they are; leave out beta or partition")


@dataclass(frozen=True, eq=False)
class TestMetrics:
    """The prediction sets of n test samples, measured.

    Attributes
    ----------
    is_covered : ndarray of bool, shape (n,)
        Whether the set of a sample contains its label.
    set_sizes : ndarray of int, shape (n,)
        The number of labels in the set.
    labels : ndarray of int, shape (n,)
        The true labels.
    client_index : ndarray of int, shape (n,)
        The index of the client of each sample.
    """

    is_covered: BoolArray
    set_sizes: IndexArray
    labels: IndexArray
    client_index: IndexArray

    @staticmethod
    def from_scores(
        columns: NDArray[Any], labels: IndexArray, client_index: IndexArray, thresholds: Thresholds
    ) -> TestMetrics:
        """Measure the sets {y: s(x, y) <= q}; `columns` (n, C) are the scores of all labels."""
        if isinstance(thresholds, np.ndarray) and thresholds.ndim == 2:
            thresholds = thresholds[client_index]  # of each sample its client's
        is_in_set = columns <= thresholds
        is_covered = is_in_set[np.arange(len(labels)), labels]
        return TestMetrics(is_covered, is_in_set.sum(axis=1), labels, client_index)

    def client_means(self, values: NDArray[Any]) -> FloatArray:
        """Return the mean of the values at each client, (K,); NaN if it has no samples."""
        return _group_means(self.client_index, values)

    @property
    def class_coverage(self) -> FloatArray:
        """The coverage of each class, (C,); NaN if it has no samples."""
        return _group_means(self.labels, self.is_covered)

    def measures(self) -> dict[str, float]:
        """Return coverage and mean set size, and coverage of the worst class and client."""
        return {
            "coverage": float(self.is_covered.mean()),
            "set_size": int(self.set_sizes.sum()) / len(self.set_sizes),
            "worst_class_coverage": float(np.nanmin(self.class_coverage)),
            "worst_client_coverage": float(np.nanmin(self.client_means(self.is_covered))),
        }


def _group_means(group_index: IndexArray, values: NDArray[Any]) -> FloatArray:
    """Return the mean of the values of each group; NaN if it has none."""
    sizes = np.bincount(group_index)
    totals = np.bincount(group_index, values)
    means: FloatArray = totals / np.where(sizes > 0, sizes, np.nan)
    return means


@dataclass(frozen=True, eq=False)
class Scenario:
    """The federation of one run before the attack, and the test data of the benign clients.

    Attributes
    ----------
    federation : Federation
        The exact counts of the clients, pooled and by class.
    score : ClassificationScore
        The nonconformity score.
    samples : list of (probabilities, labels)
        The calibration half of each client.
    scores : list of ndarray of float
        The scores of these samples.
    malicious : ndarray of int, shape (m,)
        The indices of the malicious clients, rising.
    test_label_scores : ndarray of float, shape (n, C)
        The scores of all labels of the test halves of the benign clients.
    test_labels : ndarray of int, shape (n,)
        The true labels of the test samples.
    test_client_index : ndarray of int, shape (n,)
        The index of the client of each test sample.
    """

    federation: Federation
    score: ClassificationScore
    samples: list[tuple[NDArray[Any], IndexArray]]
    scores: list[FloatArray]
    malicious: IndexArray
    test_label_scores: FloatArray
    test_labels: IndexArray
    test_client_index: IndexArray

    @property
    def benign(self) -> BoolArray:
        """Whether each client is benign, (K,)."""
        return ~np.isin(np.arange(self.federation.n_clients), self.malicious)

    @property
    def malicious_clients(self) -> frozenset[str]:
        """The names of the malicious clients."""
        return frozenset(self.federation.clients[k] for k in self.malicious)

    def measured(self, thresholds: Thresholds) -> TestMetrics:
        """Measure the sets of the benign clients' test samples."""
        return TestMetrics.from_scores(
            self.test_label_scores, self.test_labels, self.test_client_index, thresholds
        )


def make_scenario(
    probabilities: ArrayLike, labels: ArrayLike, config: ScenarioConfig, rng: np.random.Generator
) -> Scenario:
    """Split samples among clients, halve each client's samples and draw the malicious clients.

    Parameters
    ----------
    probabilities : array_like, shape (n, C)
        The class probabilities of a model.
    labels : array_like, shape (n,)
        The true labels.
    config : ScenarioConfig
        The clients and the score.
    rng : Generator
        The source of all randomness: of the scores, the split, the halves and the malicious
        clients, in this order.
    """
    probability_array = check_probabilities(probabilities)
    label_array = check_labels(labels, probability_array.shape)
    label_scores = config.score.score_all_labels(probability_array, rng)
    true_scores = label_scores[np.arange(len(label_array)), label_array]

    client_names, samples_of_clients = _split_samples(label_array, config, rng)
    n_clients = len(samples_of_clients)
    calibration_halves = []
    test_halves = []
    for samples in samples_of_clients:
        calibration_half, test_half = np.array_split(rng.permutation(samples), 2)
        calibration_halves.append(calibration_half)
        test_halves.append(test_half)

    malicious = np.sort(rng.permutation(n_clients)[: round(config.malicious_fraction * n_clients)])
    for k in malicious:
        test_halves[k] = test_halves[k][:0]
    test_samples = np.concatenate(test_halves)
    if not len(test_samples):
        raise RobfcpError(
            f"n_clients: {len(label_array)} samples leave the benign of {n_clients} clients "
            "nothing to test on; use fewer clients or a smaller fraction of malicious clients"
        )

    client_scores = [true_scores[half] for half in calibration_halves]
    client_labels = [label_array[half] for half in calibration_halves]
    client_probabilities = [probability_array[half] for half in calibration_halves]
    federation = build_federation(
        client_scores,
        config.score.default_binning(),
        config.score,
        client_names,
        labels=client_labels,
        n_classes=probability_array.shape[1],
    )
    return Scenario(
        federation=federation,
        score=config.score,
        samples=list(zip(client_probabilities, client_labels, strict=True)),
        scores=client_scores,
        malicious=malicious,
        test_label_scores=label_scores[test_samples],
        test_labels=label_array[test_samples],
        test_client_index=np.repeat(np.arange(n_clients), [len(half) for half in test_halves]),
    )


def _split_samples(
    labels: IndexArray, config: ScenarioConfig, rng: np.random.Generator
) -> tuple[list[str] | None, list[IndexArray]]:
    """Return the names of the clients, if the data have some, and each client's sample indices."""
    n_samples = len(labels)
    if config.partition is not None:
        n_names = len(np.asarray(config.partition))
        if n_names != n_samples:
            raise RobfcpError(
                f"partition: {n_names} names but {n_samples} samples; give one for each sample"
            )
        client_samples = partitions.partition_by_site(
            config.partition, max(2, config.min_client_size)
        )
        return list(client_samples), list(client_samples.values())

    if config.beta is None:
        return None, partitions.partition_iid(n_samples, config.n_clients, rng)
    return None, partitions.partition_dirichlet(
        labels, config.n_clients, config.beta, rng, minimum=20
    )


def build_federation(
    scores: Sequence[FloatArray],
    binning: Binning,
    score: ClassificationScore,
    client_names: Sequence[str] | None = None,
    *,
    labels: Sequence[IndexArray] | None = None,
    n_classes: int | None = None,
) -> Federation:
    """Count the scores of all clients at once, by class too if `labels` and `n_classes` are given.

    N[k, h] = #{scores of client k in bin h}, N[k, c, h] = #{those of them with label c}.
    """
    n_clients = len(scores)
    sizes = [len(client_scores) for client_scores in scores]
    client_index = np.repeat(np.arange(n_clients), sizes)
    bins = binning.bin_indices(np.concatenate(scores))
    cells = client_index * binning.n_bins + bins
    counts = np.bincount(cells, minlength=n_clients * binning.n_bins)
    counts = counts.reshape(n_clients, binning.n_bins)
    federation = Federation.from_counts(counts, binning, client_names, score)
    if labels is None or n_classes is None:
        return federation

    if sizes != [len(client_labels) for client_labels in labels]:
        raise RobfcpError("labels: need one a score, client by client")
    empty_table = SparseTable.empty(n_classes * binning.n_bins)
    no_clients = StratifiedTable("class", n_classes, empty_table, np.arange(0), binning.n_bins)
    strata = count_by_class(
        client_index, np.concatenate(labels), bins, np.arange(n_clients), no_clients
    )
    return replace(federation, strata=strata)


def count_by_class(
    client_index: IndexArray,
    labels: IndexArray,
    bins: IndexArray,
    clients: IndexArray,
    strata: StratifiedTable,
) -> StratifiedTable:
    """Return the strata with the rows of `clients` counted anew from the given samples.

    N[k, c H + h] = #{i: client_i = k, label_i = c, bin_i = h}. All other rows stay as they are.
    """
    unchanged_rows = strata.rows[~np.isin(strata.rows, clients)]
    old_clients, old_labels, old_bins = expand_samples(strata)
    is_unchanged = np.isin(old_clients, unchanged_rows)

    all_clients = np.concatenate([old_clients[is_unchanged], client_index])
    all_labels = np.concatenate([old_labels[is_unchanged], labels])
    all_bins = np.concatenate([old_bins[is_unchanged], bins])

    # One key for each (row, class, bin), in the order of the table.
    rows = np.union1d(unchanged_rows, clients).astype(np.intp)
    width = strata.n_strata * strata.n_bins
    cells = all_labels * strata.n_bins + all_bins
    sample_keys = np.searchsorted(rows, all_clients) * width + cells
    keys, counts = np.unique(sample_keys, return_counts=True)

    starts = np.searchsorted(keys, np.arange(len(rows) + 1) * width)
    table = SparseTable.from_entries(starts, keys % width, counts, width)
    return replace(strata, table=table, rows=rows)


def expand_samples(strata: StratifiedTable) -> tuple[IndexArray, IndexArray, IndexArray]:
    """Return the client, the class and the bin of every sample, (n,) each."""
    starts, cells, counts = strata.table.entries()
    entry_clients = np.repeat(strata.rows, np.diff(starts))
    clients = np.repeat(entry_clients, counts)
    labels, bins = np.divmod(np.repeat(cells.astype(np.intp), counts), strata.n_bins)
    return clients, labels, bins


def assign_labels(counts: IntArray, sizes: IntArray) -> tuple[IndexArray, IndexArray, IndexArray]:
    """Return the row, the class and the bin of each sample of A pooled histograms, (n,) each.

    Class c gets n_c = n s_c / sum(s) samples, rounded by largest remainders (the first of equals).
    Its j-th sample has the quantile level (j + 1/2) / n_c among the client's samples in the order
    of their bins, so that every class has the pooled distribution, the bins add up to the counts,
    and nothing is drawn.

    Parameters
    ----------
    counts : ndarray of int, shape (A, H)
        The pooled counts.
    sizes : ndarray of int, shape (A, C)
        The proportions s of the classes.
    """
    n_clients, n_bins = counts.shape
    n_classes = sizes.shape[1]
    totals = counts.sum(axis=1)

    # Largest remainders: the floor of the exact sizes, then one more for the first by remainder.
    class_sizes, remainders = np.divmod(totals[:, None] * sizes, sizes.sum(axis=1, keepdims=True))
    by_remainder = np.argsort(-remainders, axis=1, kind="stable")
    rank = np.argsort(by_remainder, axis=1, kind="stable")
    n_missing = totals - class_sizes.sum(axis=1)
    class_sizes += rank < n_missing[:, None]

    # Samples by row and class, then each row's by their levels.
    group_sizes = class_sizes.ravel()
    group_starts = np.cumsum(group_sizes) - group_sizes
    group = np.repeat(np.arange(len(group_sizes)), group_sizes)
    row, label = np.divmod(group, n_classes)
    index_in_group = np.arange(len(group)) - group_starts[group]
    level = (index_in_group + 0.5) / group_sizes[group]
    order = np.lexsort((label, level, row))

    bins = np.repeat(np.tile(np.arange(n_bins), n_clients), counts.ravel())
    return row, label[order], bins


def apply_attack(attack: Attack, scenario: Scenario, rng: np.random.Generator) -> Federation:
    """Return the federation that the server gets from the attacked scenario.

    Counts by class always add up to the pooled ones. Attacks on scores leave the labels as they
    are; where the number of scores changes, labels are drawn from the client's.
    """
    federation = scenario.federation
    malicious = scenario.malicious
    if not len(malicious):
        return federation

    scores = list(scenario.scores)
    labels = [client_labels for _, client_labels in scenario.samples]
    if attack.stage == "samples":
        samples = attack(scenario.samples, malicious, rng)
        for k in malicious:
            probabilities, labels[k] = samples[k]
            scores[k] = scenario.score(probabilities, labels[k], rng)
    elif attack.stage == "scores":
        scores = attack(scenario.scores, malicious, rng)
        for k in malicious:
            if len(scores[k]) != len(labels[k]):
                labels[k] = rng.choice(labels[k], len(scores[k]))
    elif attack.stage == "pairs":
        pairs = attack(list(zip(scores, labels, strict=True)), malicious, rng)
        scores = [client_scores for client_scores, _ in pairs]
        labels = [client_labels for _, client_labels in pairs]
    else:
        attacked = attack(federation, malicious, rng)
        if isinstance(attacked, Federation):
            return attacked
        return Federation.from_reports(attacked)

    return build_federation(
        scores,
        federation.binning,
        scenario.score,
        federation.clients,
        labels=labels,
        n_classes=scenario.test_label_scores.shape[1],
    )
