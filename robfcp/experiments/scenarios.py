"""Worlds: a federation before an attack, what it looks like after one, and its test data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp._probabilities import check_labels, check_probabilities
from robfcp._validation import check_fraction
from robfcp.binning import Binning
from robfcp.errors import RobfcpError
from robfcp.experiments import partitions
from robfcp.federation import Federation, SparseTable, StratifiedTable
from robfcp.scores import LAC, ClassificationScore

if TYPE_CHECKING:
    from robfcp.experiments.attacks import Attack

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.intp]
Thresholds = float | NDArray[np.float64]  # one for all, (C,) one a class, (K, C) by client too


@dataclass(frozen=True)
class ScenarioConfig:
    """What a run is about: the clients, who of them lies, and what is asked for.

    Parameters
    ----------
    share
        The share of the clients that attacks.
    n_clients
        How many clients there are; with `sites` as many as there are sites.
    beta
        How unlike clients are, smaller is less alike; iid if None.
    sites
        (n,) the name of each sample's own site, instead of an artificial split.
    min_size
        Natural sites with fewer samples take no part.
    score
        The score, and its own bins.
    coverage
        The coverage asked for.
    liars
        "known" tells defences the number of attackers, "estimate" does not.
    exactly
        Whether a defence of ours that is told the number leaves out so many whatever they look
        like, instead of at most so many.
    by
        "class" for one threshold a class; one for all if None.
    """

    share: float = 0.4
    n_clients: int = 100
    beta: float | None = None
    sites: ArrayLike | None = None
    min_size: int = 20
    score: ClassificationScore = field(default_factory=LAC)
    coverage: float = 0.9
    liars: Literal["known", "estimate"] = "known"
    exactly: bool = False
    by: Literal["class"] | None = None

    def __post_init__(self) -> None:
        check_fraction("share", self.share, "give 0.4, say", allow_zero=True)
        if self.by not in (None, "class"):
            raise RobfcpError(f"by: {self.by!r} is unknown; use 'class' or None")
        if self.beta is not None and self.sites is not None:
            raise RobfcpError("beta: natural sites are as they are; leave beta or sites away")


@dataclass(frozen=True, eq=False)
class TestMetrics:
    """What thresholds give test samples: whether the label is in each set, and the set's size.

    (n,) hits, sizes, labels and owner, the client each sample is of.
    """

    hits: NDArray[np.bool_]
    sizes: NDArray[np.intp]
    labels: IndexArray
    owner: IndexArray

    @staticmethod
    def of(
        columns: NDArray[Any], labels: IndexArray, owner: IndexArray, limits: Thresholds
    ) -> TestMetrics:
        """The sets {y: s(x, y) <= q}, one limit for all, (C,) one a class or (K, C) by client."""
        own = limits[owner] if isinstance(limits, np.ndarray) and limits.ndim == 2 else limits
        sets = columns <= own
        return TestMetrics(sets[np.arange(len(labels)), labels], sets.sum(axis=1), labels, owner)

    def by_site(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """The values' mean at each client, in order; NaN where it has no samples."""
        return _means(self.owner, values)

    @property
    def by_class(self) -> NDArray[np.float64]:
        """Coverage of each class, NaN where it has no samples."""
        return _means(self.labels, self.hits)

    def numbers(self) -> dict[str, float]:
        """Coverage, set size, and coverage of the worst class and site of those with samples."""
        return {
            "coverage": float(self.hits.mean()),
            "set_size": int(self.sizes.sum()) / len(self.sizes),
            "worst_class_coverage": float(np.nanmin(self.by_class)),
            "worst_site_coverage": float(np.nanmin(self.by_site(self.hits))),
        }


def _means(group: IndexArray, values: NDArray[Any]) -> NDArray[np.float64]:
    size = np.bincount(group)
    found: NDArray[np.float64] = np.bincount(group, values) / np.where(size > 0, size, np.nan)
    return found


@dataclass(frozen=True, eq=False)
class Scenario:
    """One run's federation before the attack, and the benign clients' test data.

    Parameters
    ----------
    federation
        The clients' counts, pooled and by class.
    score
        How samples are scored.
    samples
        (probabilities, labels) of each client's calibration half.
    scores
        Their scores.
    malicious
        Who attacks.
    test_columns
        (n, C) the scores of all labels of the benign clients' test halves.
    test_labels
        Their labels.
    test_owner
        The client each is of.
    """

    federation: Federation
    score: ClassificationScore
    samples: list[tuple[NDArray[Any], NDArray[np.intp]]]
    scores: list[NDArray[np.float64]]
    malicious: NDArray[np.intp]
    test_columns: NDArray[np.float64]
    test_labels: NDArray[np.intp]
    test_owner: NDArray[np.intp]

    @property
    def benign(self) -> NDArray[np.bool_]:
        """(K,) who does not attack."""
        return ~np.isin(np.arange(self.federation.n_clients), self.malicious)

    @property
    def malicious_clients(self) -> frozenset[str]:
        """The names of those who attack."""
        return frozenset(self.federation.clients[k] for k in self.malicious)

    def measured(self, limits: Thresholds) -> TestMetrics:
        """What the limits give the benign clients' test samples."""
        return TestMetrics.of(self.test_columns, self.test_labels, self.test_owner, limits)


def make_scenario(
    probabilities: ArrayLike, labels: ArrayLike, setting: ScenarioConfig, rng: np.random.Generator
) -> Scenario:
    """Clients with calibration scores, some of them chosen as attackers, and benign test data."""
    array = check_probabilities(probabilities)
    label = check_labels(labels, array.shape)
    every_label = setting.score.score_all_labels(array, rng)
    true = every_label[np.arange(len(label)), label]
    ids, parts = None, []
    if setting.sites is not None:
        if len(np.asarray(setting.sites)) != len(label):
            raise RobfcpError(
                f"sites: {len(np.asarray(setting.sites))} names but {len(label)} samples; "
                "give one a sample"
            )
        own_sites = partitions.partition_by_site(setting.sites, max(2, setting.min_size))
        ids, parts = list(own_sites), list(own_sites.values())
    elif setting.beta is None:
        parts = partitions.partition_iid(len(label), setting.n_clients, rng)
    else:
        parts = partitions.partition_dirichlet(
            label, setting.n_clients, setting.beta, rng, minimum=20
        )
    halves = [np.array_split(rng.permutation(part), 2) for part in parts]
    malicious = np.sort(rng.permutation(len(parts))[: round(setting.share * len(parts))])
    attackers = set(malicious.tolist())
    tested = [half[1][: 0 if k in attackers else None] for k, half in enumerate(halves)]
    test = np.concatenate(tested)
    if not len(test):
        raise RobfcpError(
            f"simulate: {len(label)} samples leave the honest of {len(parts)} clients nothing to "
            "test on; use fewer clients or a smaller share of attackers"
        )
    scores, own = [true[half[0]] for half in halves], [label[half[0]] for half in halves]
    grid = setting.score.default_binning()
    return Scenario(
        federation=build_federation(
            scores, grid, setting.score, ids, labels=own, n_classes=array.shape[1]
        ),
        score=setting.score,
        samples=[(array[half[0]], own[k]) for k, half in enumerate(halves)],
        scores=scores,
        malicious=malicious,
        test_columns=every_label[test],
        test_labels=label[test],
        test_owner=np.repeat(np.arange(len(halves)), [len(half) for half in tested]),
    )


def build_federation(
    scores: Sequence[NDArray[np.float64]],
    grid: Binning,
    score: ClassificationScore,
    ids: Sequence[str] | None = None,
    *,
    labels: Sequence[NDArray[np.intp]] | None = None,
    n_classes: int | None = None,
) -> Federation:
    """All clients' scores sketched at once, by class too where `labels` and `n_classes` are given.

    N[k, h] = #{scores of k in bin h}, N[k, c, h] = #{those of them with label c}.
    """
    sizes = [len(part) for part in scores]
    owner = np.repeat(np.arange(len(scores)), sizes)
    bins = grid.bin_indices(np.concatenate(scores))
    counts = np.bincount(owner * grid.n_bins + bins, minlength=len(scores) * grid.n_bins)
    pooled = counts.reshape(len(scores), grid.n_bins)
    federation = Federation.from_counts(pooled, grid, ids, score)
    if labels is None or n_classes is None:
        return federation
    if sizes != [len(part) for part in labels]:
        raise RobfcpError("labels: need one a score, client by client")
    label, everybody = np.concatenate(labels), np.arange(len(scores))
    empty = SparseTable.empty(n_classes * grid.n_bins)
    nobody = StratifiedTable("class", n_classes, empty, np.arange(0), grid.n_bins)
    strata = count_by_class(owner, label, bins, everybody, nobody)
    return replace(federation, strata=strata)


def count_by_class(
    owner: IndexArray,
    label: IndexArray,
    bins: IndexArray,
    clients: IndexArray,
    strata: StratifiedTable,
) -> StratifiedTable:
    """The strata with the rows of `clients` counted anew from these samples; others are kept.

    N[k, c H + h] = #{i: owner_i = k, label_i = c, bin_i = h}.
    """
    kept = ~np.isin(strata.rows, clients)
    width = strata.n_strata * strata.n_bins
    whose, old_label, old_bins = expand_samples(strata)
    stays = np.isin(whose, strata.rows[kept])
    rows = np.union1d(strata.rows[kept], clients).astype(np.intp)
    place = np.searchsorted(rows, np.concatenate([whose[stays], owner]))
    cell = np.concatenate([old_label[stays], label]) * strata.n_bins
    cell += np.concatenate([old_bins[stays], bins])
    keys, counts = np.unique(place * width + cell, return_counts=True)
    starts = np.searchsorted(keys, np.arange(len(rows) + 1) * width)
    return replace(
        strata, table=SparseTable.from_entries(starts, keys % width, counts, width), rows=rows
    )


def expand_samples(strata: StratifiedTable) -> tuple[IndexArray, IndexArray, IndexArray]:
    """(client, class, bin) of every sample."""
    starts, cells, values = strata.table.entries()
    client = np.repeat(np.repeat(strata.rows, np.diff(starts)), values)
    label, bins = np.divmod(np.repeat(cells.astype(np.intp), values), strata.n_bins)
    return client, label, bins


def assign_labels(counts: IntArray, sizes: IntArray) -> tuple[IndexArray, IndexArray, IndexArray]:
    """(row, class, bin) of each sample of pooled counts (A, H) in the proportions of (A, C) sizes.

    Class c gets n_c = n s_c / sum(s) samples, rounded by largest remainders (the first of equals);
    its j-th stands at (j + 1/2) / n_c of the client's samples in the order of their bins, so that
    every class has the pooled distribution, all bins add up, and nothing is drawn.
    """
    totals = counts.sum(axis=1)
    quota, rest = np.divmod(totals[:, None] * sizes, sizes.sum(axis=1, keepdims=True))
    rank = np.argsort(np.argsort(-rest, axis=1, kind="stable"), axis=1, kind="stable")
    quota += rank < (totals - quota.sum(axis=1))[:, None]
    group = np.repeat(np.arange(quota.size), quota.ravel())
    owner, label = np.divmod(group, quota.shape[1])
    first = np.cumsum(quota.ravel()) - quota.ravel()
    place = (np.arange(len(group)) - first[group] + 0.5) / quota.ravel()[group]
    order = np.lexsort((label, place, owner))
    bins = np.repeat(np.tile(np.arange(counts.shape[1]), len(counts)), counts.ravel())
    return owner, label[order], bins


def apply_attack(attack: Attack, world: Scenario, rng: np.random.Generator) -> Federation:
    """The federation the server sees when the world's attackers do this, at whatever stage.

    Counts by class always add up to the pooled ones. Attacks on scores leave the labels as they
    are, drawn again from the client's own where their number changes.
    """
    old, bad = world.federation, world.malicious
    if not len(bad):
        return old
    scores, labels = list(world.scores), [labels for _, labels in world.samples]
    if attack.stage == "samples":
        samples = attack(world.samples, bad, rng)
        for k in bad:
            forged, labels[k] = samples[k]
            scores[k] = world.score(forged, labels[k], rng)
    elif attack.stage == "scores":
        scores = attack(world.scores, bad, rng)
        for k in bad:
            if len(scores[k]) != len(labels[k]):
                labels[k] = rng.choice(labels[k], len(scores[k]))
    elif attack.stage == "pairs":
        pairs = attack(list(zip(scores, labels, strict=True)), bad, rng)
        scores, labels = [part for part, _ in pairs], [own for _, own in pairs]
    else:
        sent = attack(old, bad, rng)
        return sent if isinstance(sent, Federation) else Federation.from_reports(sent)
    n_classes = world.test_columns.shape[1]
    return build_federation(
        scores, old.binning, world.score, old.clients, labels=labels, n_classes=n_classes
    )
