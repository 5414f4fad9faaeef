"""Worlds: a federation before an attack, what it looks like after one, and its test data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robfcp.arguments import share as checked_share
from robfcp.errors import RobfcpError
from robfcp.federation import Federation
from robfcp.grid import Grid
from robfcp.lab import partitions
from robfcp.lab.attacks import Attack
from robfcp.lab.strata import stratified
from robfcp.scores import LAC, ClassificationScore, check_labels, check_probabilities

Thresholds = float | NDArray[np.float64]  # one for all classes, or (C,) one for each


@dataclass(frozen=True)
class Measured:
    """What thresholds give on a world's test data; the worst class is NaN where labels lack."""

    coverage: float
    set_size: float
    worst_class_coverage: float


@dataclass(frozen=True, eq=False)
class World:
    """One run's federation before the attack, and what a threshold gives on its test data.

    Parameters
    ----------
    federation
        The clients' counts, by class too where labels are known.
    score
        How samples are scored.
    samples
        (probabilities, labels) of each client's calibration half; empty where they are not known.
    scores
        Their scores.
    malicious
        Who attacks.
    tests
        Each client's test scores.
    test_scores
        Those of the benign clients, rising.
    test_sizes
        The scores of all labels of the same samples, rising.
    test_labels
        The labels of `test_scores`, in its order, where they are known.
    test_columns
        (n, C) what `test_sizes` holds, by sample and label.
    """

    federation: Federation
    score: ClassificationScore
    samples: list[tuple[NDArray[Any], NDArray[np.intp]]]
    scores: list[NDArray[np.float64]]
    malicious: NDArray[np.intp]
    tests: list[NDArray[np.float64]]
    test_scores: NDArray[np.float64]
    test_sizes: NDArray[np.float64]
    test_labels: NDArray[np.intp] | None = None
    test_columns: NDArray[np.float64] | None = None

    @property
    def benign(self) -> NDArray[np.bool_]:
        """(K,) who does not attack."""
        mask = np.ones(self.federation.n_clients, dtype=bool)
        mask[self.malicious] = False
        return mask

    @property
    def labels(self) -> list[NDArray[np.intp]] | None:
        """Each client's labels, in the order of its scores; None where they are not known."""
        return [labels for _, labels in self.samples] or None

    @property
    def liars(self) -> frozenset[str]:
        """The names of those who attack."""
        return frozenset(self.federation.ids[k] for k in self.malicious)

    def coverage(self, threshold: float) -> float:
        """Share of the benign clients' test scores at or below the threshold."""
        return float(np.searchsorted(self.test_scores, threshold, "right") / len(self.test_scores))

    def set_size(self, threshold: float) -> float:
        """Mean number of labels at or below the threshold on the same test data."""
        at_or_below = np.searchsorted(self.test_sizes, threshold, "right")
        return float(at_or_below / len(self.test_scores))

    def class_coverage(self, thresholds: Thresholds) -> NDArray[np.float64]:
        """(C,) share of each class's test scores at or below its threshold; NaN without samples."""
        labels, columns = self._by_class()
        n_classes = columns.shape[1]
        limits = np.broadcast_to(thresholds, n_classes)
        hits = np.bincount(labels[self.test_scores <= limits[labels]], minlength=n_classes)
        size = np.bincount(labels, minlength=n_classes)
        return np.where(size > 0, hits / np.maximum(size, 1), np.nan)

    def measured(self, thresholds: Thresholds) -> Measured:
        """Coverage, mean set size and coverage of the worst class, of {y: s(x, y) <= q_y}."""
        worst = np.nan
        if self.test_labels is not None:
            worst = float(np.nanmin(self.class_coverage(thresholds)))
        if not isinstance(thresholds, np.ndarray):
            return Measured(self.coverage(thresholds), self.set_size(thresholds), worst)
        labels, columns = self._by_class()
        hits = (self.test_scores <= thresholds[labels]).mean()
        size = (columns <= thresholds).sum() / len(columns)
        return Measured(float(hits), float(size), worst)

    def _by_class(self) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """The test labels and the scores of all labels."""
        if self.test_labels is None or self.test_columns is None:
            raise RobfcpError("by: this world has no test labels; make it with make_world")
        return self.test_labels, self.test_columns


def make_world(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    n_clients: int,
    share: float,
    beta: float | None,
    score: ClassificationScore | None,
    grid: Grid | None,
    rng: np.random.Generator,
    sites: ArrayLike | None = None,
    min_size: int = 20,
) -> World:
    """Clients with calibration scores, some of them chosen as attackers, and benign test data."""
    checked_share("share", share, "give 0.4, say", zero=True)
    array = check_probabilities(probabilities)
    label = check_labels(labels, array.shape)
    rule = LAC() if score is None else score
    grid = rule.default_grid() if grid is None else grid
    every_label = rule.all_labels(array, rng)
    true = every_label[np.arange(len(label)), label]
    ids, parts = _clients(label, n_clients, beta, sites, min_size, rng)
    n_clients = len(parts)
    halves = [np.array_split(rng.permutation(part), 2) for part in parts]
    malicious = np.sort(rng.permutation(n_clients)[: round(share * n_clients)])
    attackers = set(malicious.tolist())
    test = np.concatenate([half[1] for k, half in enumerate(halves) if k not in attackers])
    if not len(test):
        raise RobfcpError(
            f"simulate: {len(label)} samples leave the honest of {n_clients} clients nothing to "
            "test on; use fewer clients or a smaller share of attackers"
        )
    scores = [true[half[0]] for half in halves]
    order = np.argsort(true[test], kind="stable")
    own = [label[half[0]] for half in halves]
    return World(
        federation=federation_of(scores, grid, rule, ids, labels=own, n_classes=array.shape[1]),
        score=rule,
        samples=[(array[half[0]], own[k]) for k, half in enumerate(halves)],
        scores=scores,
        malicious=malicious,
        tests=[true[half[1]] for half in halves],
        test_scores=true[test][order],
        test_sizes=np.sort(every_label[test], axis=None),
        test_labels=label[test][order],
        test_columns=every_label[test],
    )


def _clients(
    labels: NDArray[np.intp],
    n_clients: int,
    beta: float | None,
    sites: ArrayLike | None,
    min_size: int,
    rng: np.random.Generator,
) -> tuple[list[str] | None, partitions.Parts]:
    """Names, where the sites are the data's own, and sample numbers of every client."""
    if sites is None:
        if beta is None:
            return None, partitions.iid(len(labels), n_clients, rng)
        return None, partitions.dirichlet(labels, n_clients, beta, rng, minimum=20)
    if beta is not None:
        raise RobfcpError("beta: natural sites are as they are; leave beta or sites away")
    if len(np.asarray(sites)) != len(labels):
        raise RobfcpError(
            f"sites: {len(np.asarray(sites))} names but {len(labels)} samples; give one a sample"
        )
    found = partitions.by_site(sites, max(2, min_size))
    return list(found), list(found.values())


def federation_of(
    scores: Sequence[NDArray[np.float64]],
    grid: Grid,
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
    bins = grid.index(np.concatenate(scores))
    counts = np.bincount(owner * grid.n_bins + bins, minlength=len(scores) * grid.n_bins)
    pooled = counts.reshape(len(scores), grid.n_bins)
    federation = Federation.from_counts(pooled, grid, ids, score)
    if labels is None or n_classes is None:
        return federation
    if sizes != [len(part) for part in labels]:
        raise RobfcpError("labels: need one a score, client by client")
    label = np.concatenate(labels)
    strata = stratified(owner, label, bins, len(scores), n_classes, grid.n_bins)
    return replace(federation, strata=strata)


def apply_attack(attack: Attack, world: World, rng: np.random.Generator) -> Federation:
    """The federation the server sees when the world's attackers do this, at whatever stage.

    Counts by class always add up to the pooled ones. Attacks on scores leave the labels as they
    are, drawn again from the client's own where their number changes.
    """
    if not len(world.malicious):
        return world.federation
    if attack.on == "samples":
        samples = attack(world.samples, world.malicious, rng)
        scores = list(world.scores)
        for k in world.malicious:
            probabilities, labels = samples[k]
            scores[k] = world.score(probabilities, labels, rng)
        return _resketched(world, scores, [labels for _, labels in samples])
    if attack.on == "scores":
        scores = attack(world.scores, world.malicious, rng)
        return _resketched(world, scores, _own_labels(world, scores, rng))
    if attack.on == "pairs":
        if world.labels is None:
            raise RobfcpError(f"{attack.name}: it forges labels too, but this world has none")
        pairs = attack(list(zip(world.scores, world.labels, strict=True)), world.malicious, rng)
        return _resketched(world, [part for part, _ in pairs], [labels for _, labels in pairs])
    forged = attack(world.federation, world.malicious, rng)
    return forged if isinstance(forged, Federation) else Federation.from_reports(forged)


def _resketched(
    world: World,
    scores: Sequence[NDArray[np.float64]],
    labels: Sequence[NDArray[np.intp]] | None,
) -> Federation:
    """The world's clients with other scores and labels; by class where they were so before."""
    old = world.federation
    n_classes = None if old.strata is None else old.strata.n_strata
    return federation_of(scores, old.grid, world.score, old.ids, labels=labels, n_classes=n_classes)


def _own_labels(
    world: World, scores: Sequence[NDArray[np.float64]], rng: np.random.Generator
) -> list[NDArray[np.intp]] | None:
    """Each client's labels; where the number of scores changed, as many drawn from its own."""
    if world.labels is None:
        return None
    return [
        own if len(own) == len(part) else rng.choice(own, len(part))
        for own, part in zip(world.labels, scores, strict=True)
    ]
