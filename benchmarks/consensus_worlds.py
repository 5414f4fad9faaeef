"""Federations for Consensus: label distributions, sizes, difficulty, natural clients."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from robfcp import APS, LAC, Binning, Federation
from robfcp.experiments import outputs, scenarios
from robfcp.experiments.attacks import Attack, get_attack

BINNING = Binning.default()
MAX_SAMPLES = 20_000  # of a set of outputs
MIN_CLASS_SAMPLES = 5  # in each half; smaller classes are left out
N_TESTS = 300  # a client
Scores = list[NDArray[np.float64]]
Labels = list[NDArray[np.intp]]
OutputsName = tuple[str, str, str]  # data set, split and stage of shipped outputs


@dataclass
class World:
    """One run's clients; an attack changes scores and labels and marks the malicious clients."""

    scores: Scores
    labels: Labels
    tests: Scores
    n_classes: int
    registered: bool = False  # whether sample sizes were known before the round
    benign_scores: Scores = field(default_factory=list)  # the scores before the attack
    malicious: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, dtype=np.intp))

    def __post_init__(self) -> None:
        self.benign_scores = list(self.scores)

    @property
    def benign(self) -> NDArray[np.intp]:
        """The positions of the benign clients."""
        return np.setdiff1d(np.arange(len(self.scores)), self.malicious)

    def federation(self, classes: bool = True) -> Federation:
        """Return the reports as the server has them, by class or pooled."""
        n_classes = self.n_classes if classes else 1
        federation = federation_of(self.scores, self.labels, n_classes)
        return replace(federation, sizes_registered=self.registered)

    def coverage(self, bin_index: int | None) -> float:
        """Return the coverage of the benign clients' tests, weighted by their sizes."""
        threshold = np.inf if bin_index is None else BINNING.upper_edges[bin_index]
        coverages = [(self.tests[k] <= threshold).mean() for k in self.benign]
        sizes = [len(self.benign_scores[k]) for k in self.benign]
        return float(np.average(coverages, weights=sizes))


def federation_of(scores: Scores, labels: Sequence[NDArray[np.intp]], n_classes: int) -> Federation:
    """Return reports by class on the default binning; pooled with one class."""
    report_labels = labels if n_classes > 1 else None
    return scenarios.build_federation(
        scores, BINNING, LAC(), labels=report_labels, n_classes=n_classes
    )


@cache
def halves(name: OutputsName, score: str) -> tuple[Scores, Scores]:
    """Return the scores by class, rising, of both halves of a set of outputs."""
    shipped = outputs.load(name[0], name[1], name[2])  # type: ignore[arg-type]
    order = np.random.default_rng(0).permutation(len(shipped.labels))[:MAX_SAMPLES]
    probabilities = shipped.probabilities[order]
    labels = shipped.labels[order]
    scorer = LAC() if score == "lac" else APS()
    scores = scorer(probabilities, labels, rng=1)
    half_size = len(order) // 2
    n_classes = probabilities.shape[1]
    first_half = _sort_by_class(scores[:half_size], labels[:half_size], n_classes)
    second_half = _sort_by_class(scores[half_size:], labels[half_size:], n_classes)
    return first_half, second_half


def _sort_by_class(scores: NDArray[np.float64], labels: NDArray[np.intp], n_classes: int) -> Scores:
    """Return the scores of each class, rising."""
    return [np.sort(scores[labels == c]) for c in range(n_classes)]


def world(
    name: OutputsName,
    clients: int,
    size: int,
    beta: float | None,
    sizes: str,
    seed: int,
    *,
    score: str = "lac",
    spread: float = 0.0,
    group: tuple[float, float] = (0.0, 0.0),
) -> World:
    """Return clients drawn from a set of outputs.

    A client's samples of a class are drawn with density exp(t rank); t is normal with deviation
    `spread`, and `group` = (fraction, t) adds t for a fraction of the clients.

    Parameters
    ----------
    name : tuple of str
        The outputs.
    clients, size : int
        The number of clients, and about how many samples each has.
    beta : float or None
        Of Dirichlet label distributions; None for those of the outputs.
    sizes : str
        "equal", "lognormal" or "unequal".
    seed : int
        Of all draws, with the other parameters.
    score : str
        "lac" or "aps".
    spread, group
        How difficulty differs.
    """
    key = zlib.crc32(repr((name, clients, size, beta, sizes, score, spread, group)).encode())
    rng = np.random.default_rng([seed, key])
    calibration, tests = halves(name, score)
    n_classes = len(calibration)
    distributions = _label_distributions(rng, calibration, tests, clients, beta)
    sample_sizes = _sample_sizes(rng, clients, size, sizes)
    tilts = spread * rng.standard_normal(clients)
    fraction, group_tilt = group
    tilts[: round(fraction * clients)] += group_tilt

    all_scores = []
    all_labels = []
    for k in range(clients):
        scores, labels = _draw_samples(
            rng, calibration, distributions[k], tilts[k], int(sample_sizes[k])
        )
        all_scores.append(scores)
        all_labels.append(labels)
    test_scores = []
    for k in range(clients):
        scores, _ = _draw_samples(rng, tests, distributions[k], tilts[k], N_TESTS)
        test_scores.append(scores)
    return World(all_scores, all_labels, test_scores, n_classes)


def _label_distributions(
    rng: np.random.Generator, calibration: Scores, tests: Scores, clients: int, beta: float | None
) -> NDArray[np.float64]:
    """Return the (K, C) label distributions of the clients, without classes that hardly occur."""
    class_sizes = np.array([len(scores) for scores in calibration])
    test_sizes = np.array([len(scores) for scores in tests])
    occurs = np.minimum(class_sizes, test_sizes) >= MIN_CLASS_SAMPLES
    if beta is None:
        masses = class_sizes.astype(float) * occurs
        return np.tile(masses / masses.sum(), (clients, 1))
    drawn_masses = rng.dirichlet(np.full(len(class_sizes), beta), clients) * occurs
    return np.asarray(drawn_masses / drawn_masses.sum(axis=1, keepdims=True))


def _sample_sizes(
    rng: np.random.Generator, clients: int, size: int, sizes: str
) -> NDArray[np.int64]:
    """Return the number of samples of each client."""
    if sizes == "lognormal":
        factors = np.exp(rng.normal(-0.32, 0.8, clients))
        return np.maximum(10, np.round(size * factors)).astype(int)
    if sizes == "unequal":
        return np.round(np.exp(rng.uniform(np.log(40), np.log(900), clients))).astype(int)
    return np.full(clients, size)


def _draw_samples(
    rng: np.random.Generator,
    class_scores: Scores,
    distribution: NDArray[np.float64],
    tilt: float,
    n: int,
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return scores and labels of one client; a positive tilt favors large scores."""
    labels = rng.choice(len(class_scores), n, p=distribution)
    ranks = rng.random(n)
    if abs(tilt) > 1e-9:
        ranks = np.log1p(ranks * np.expm1(tilt)) / tilt
    scores = np.empty(n)
    for c in np.unique(labels):
        is_class = labels == c
        class_size = len(class_scores[c])
        positions = np.minimum((ranks[is_class] * class_size).astype(int), class_size - 1)
        scores[is_class] = class_scores[c][positions]
    return scores, labels


@dataclass(frozen=True, eq=False)
class _NaturalOutputs:
    """LAC scores, labels and sites of outputs with natural clients."""

    scores: NDArray[np.float64]
    labels: NDArray[np.intp]
    sites: NDArray[np.str_]
    n_classes: int


@cache
def natural_outputs(dataset: str, column: str) -> _NaturalOutputs:
    """Return outputs by the sites that a column names."""
    shipped = outputs.load(dataset, outputs.NATURAL)
    return _NaturalOutputs(
        scores=LAC()(shipped.probabilities, shipped.labels),
        labels=shipped.labels,
        sites=shipped.column(column),
        n_classes=shipped.probabilities.shape[1],
    )


def natural(dataset: str, column: str, seed: int, min_size: int = 50) -> World:
    """Return natural clients, each halved and its calibration half resampled."""
    data = natural_outputs(dataset, column)
    rng = np.random.default_rng([seed, zlib.crc32(f"{dataset} {column}".encode())])
    scores: Scores = []
    labels: Labels = []
    tests: Scores = []
    for name, size in zip(*np.unique(data.sites, return_counts=True), strict=True):
        if size < min_size:
            continue
        order = rng.permutation(np.flatnonzero(data.sites == name))
        half_size = size // 2
        calibration_rows = rng.choice(order[:half_size], half_size)
        scores.append(data.scores[calibration_rows])
        labels.append(data.labels[calibration_rows])
        tests.append(data.scores[order[half_size:]])
    return World(scores, labels, tests, data.n_classes)


def attacked(clean: World, attack: Attack | str, fraction: float, seed: int) -> World:
    """Return the world, changed in place, with a fraction of the clients malicious; one at least.

    Parameters
    ----------
    clean : World
        Before the attack.
    attack : Attack or str
        An attack, its name, or "all-wrong": every label is another one.
    fraction : float
        Of the clients.
    seed : int
        Of the choice of malicious clients, and of the attack.
    """
    rng = np.random.default_rng([seed, 99])
    n_malicious = max(1, round(fraction * len(clean.scores)))
    clean.malicious = np.sort(rng.permutation(len(clean.scores))[:n_malicious])
    if attack == "all-wrong":
        for k in clean.malicious:
            clean.scores[k], clean.labels[k] = _all_wrong(
                clean.scores[k], clean.labels[k], clean.n_classes, rng
            )
        return clean

    resolved = get_attack(attack) if isinstance(attack, str) else attack
    if resolved.stage == "pairs":
        pairs = resolved(list(zip(clean.scores, clean.labels, strict=True)), clean.malicious, rng)
        clean.scores = [scores for scores, _ in pairs]
        clean.labels = [labels for _, labels in pairs]
        return clean
    clean.scores = resolved(clean.scores, clean.malicious, rng)
    clean.labels = [
        np.resize(labels, len(scores))
        for scores, labels in zip(clean.scores, clean.labels, strict=True)
    ]
    return clean


def _all_wrong(
    scores: NDArray[np.float64],
    labels: NDArray[np.intp],
    n_classes: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return scores and labels with every label another one.

    LAC's score of a wrong label is 1 - its probability, which is at most the true label's score;
    where that is small the score is near 1.
    """
    shift = rng.integers(1, n_classes, len(scores))
    wrong_labels = (labels + shift) % n_classes
    return 1 - np.minimum(scores, 1) * rng.random(len(scores)) / 2, wrong_labels
