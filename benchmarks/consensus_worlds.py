"""Federations that consensus is tried on: label mixes, sizes, difficulty, natural sites, liars."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robfcp import APS, LAC, Binning, Federation
from robfcp.experiments import outputs, scenarios
from robfcp.experiments.attacks import Attack, get_attack

GRID = Binning.default()
Scores = list[NDArray[np.float64]]


@dataclass
class World:
    """One run: scores and labels of every client, tests of every client, who lies."""

    scores: Scores
    labels: list[NDArray[np.intp]]
    tests: Scores
    n_classes: int
    registered: bool = False  # sizes, beforehand
    honest: Scores = field(default_factory=list)
    bad: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, dtype=np.intp))

    def __post_init__(self) -> None:
        self.honest = list(self.scores)

    @property
    def benign(self) -> NDArray[np.intp]:
        """Who does not lie."""
        return np.setdiff1d(np.arange(len(self.scores)), self.bad)

    def federation(self, classes: bool = True) -> Federation:
        """The reports as the server has them."""
        found = federation_of(self.scores, self.labels, self.n_classes if classes else 1)
        return replace(found, sizes_registered=self.registered)

    def coverage(self, index: int | None) -> float:
        """Of the benign clients' tests, weighted by their sizes."""
        edge = np.inf if index is None else GRID.upper_edges[index]
        sizes = [len(self.honest[k]) for k in self.benign]
        return float(
            np.average([(self.tests[k] <= edge).mean() for k in self.benign], weights=sizes)
        )


def federation_of(scores: Scores, labels: Sequence[NDArray[np.intp]], n_classes: int) -> Federation:
    """Reports by class on the default grid; pooled with one class."""
    known = labels if n_classes > 1 else None
    return scenarios.build_federation(scores, GRID, LAC(), labels=known, n_classes=n_classes)


@cache
def halves(name: tuple[str, str, str], score: str) -> tuple[list[Scores], int]:
    """Scores by class, rising, of both halves of a set of outputs."""
    shipped = outputs.load(name[0], name[1], name[2])  # type: ignore[arg-type]
    order = np.random.default_rng(0).permutation(len(shipped.labels))[:20_000]
    probabilities, labels = shipped.probabilities[order], shipped.labels[order]
    scores = LAC()(probabilities, labels) if score == "lac" else APS()(probabilities, labels, rng=1)
    n_classes = probabilities.shape[1]
    cut = len(order) // 2
    parts = [
        [np.sort(scores[place][labels[place] == c]) for c in range(n_classes)]
        for place in (slice(cut), slice(cut, None))
    ]
    return parts, n_classes


def world(
    name: tuple[str, str, str],
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
    """Clients of a set of outputs: their label mixes, their sizes, and how hard their samples are.

    A client's samples of a class are drawn with density exp(t rank); t is normal with deviation
    `spread`, and `group` = (share, t) adds t for a share of the clients.
    """
    key = zlib.crc32(repr((name, clients, size, beta, sizes, score, spread, group)).encode())
    rng = np.random.default_rng([seed, key])
    (calibration, tests), n_classes = halves(name, score)
    held = np.array([min(len(a), len(b)) >= 5 for a, b in zip(calibration, tests, strict=True)])
    mixes = np.array([len(part) for part in calibration], dtype=float) * held
    mixes = np.tile(mixes / mixes.sum(), (clients, 1))
    if beta is not None:
        mixes = rng.dirichlet(np.full(n_classes, beta), clients) * held
        mixes /= mixes.sum(axis=1, keepdims=True)
    number = np.full(clients, size)
    if sizes == "lognormal":
        number = np.maximum(10, np.round(size * np.exp(rng.normal(-0.32, 0.8, clients)))).astype(
            int
        )
    if sizes == "unequal":
        number = np.round(np.exp(rng.uniform(np.log(40), np.log(900), clients))).astype(int)
    tilts = spread * rng.standard_normal(clients)
    tilts[: round(group[0] * clients)] += group[1]

    def drawn(parts: Scores, k: int, n: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        labels = rng.choice(n_classes, n, p=mixes[k])
        ranks = rng.random(n)
        if abs(tilts[k]) > 1e-9:
            ranks = np.log1p(ranks * np.expm1(tilts[k])) / tilts[k]
        scores = np.empty(n)
        for c in np.unique(labels):
            mine = labels == c
            places = np.minimum((ranks[mine] * len(parts[c])).astype(int), len(parts[c]) - 1)
            scores[mine] = parts[c][places]
        return scores, labels

    own = [drawn(calibration, k, int(number[k])) for k in range(clients)]
    checks = [drawn(tests, k, 300)[0] for k in range(clients)]
    return World([s for s, _ in own], [y for _, y in own], checks, n_classes)


@cache
def natural_scores(dataset: str, column: str) -> tuple[NDArray[Any], ...]:
    """LAC scores, labels, site and number of classes of outputs with their own sites."""
    shipped = outputs.load(dataset, outputs.NATURAL)
    scores = LAC()(shipped.probabilities, shipped.labels)
    return scores, shipped.labels, shipped.column(column), np.array(shipped.probabilities.shape[1])


def natural(dataset: str, column: str, seed: int, least: int = 50) -> World:
    """Sites as they are, each halved and its calibration half resampled."""
    scores, labels, site, n_classes = natural_scores(dataset, column)
    rng = np.random.default_rng([seed, zlib.crc32(f"{dataset} {column}".encode())])
    parts: list[list[Any]] = [[], [], []]
    for name, size in zip(*np.unique(site, return_counts=True), strict=True):
        if size < least:
            continue
        order = rng.permutation(np.flatnonzero(site == name))
        first = rng.choice(order[: size // 2], size // 2)
        for part, values in zip(
            parts, (scores[first], labels[first], scores[order[size // 2 :]]), strict=True
        ):
            part.append(values)
    return World(*parts, int(n_classes))


def attacked(made: World, attack: Attack | str, share: float, seed: int) -> World:
    """The world with a share of the clients lying; one at least."""
    rng = np.random.default_rng([seed, 99])
    number = max(1, round(share * len(made.scores)))
    made.bad = np.sort(rng.permutation(len(made.scores))[:number])
    if attack == "all-wrong":
        for k in made.bad:
            made.scores[k], made.labels[k] = _all_wrong(made.scores[k], made, k, rng)
        return made
    rule = get_attack(attack) if isinstance(attack, str) else attack
    pairs = list(zip(made.scores, made.labels, strict=True))
    if rule.stage == "pairs":
        forged = rule(pairs, made.bad, rng)
        made.scores, made.labels = [s for s, _ in forged], [y for _, y in forged]
    else:
        made.scores = rule(made.scores, made.bad, rng)
        made.labels = [np.resize(y, len(s)) for s, y in zip(made.scores, made.labels, strict=True)]
    return made


def _all_wrong(
    scores: NDArray[np.float64], made: World, k: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Every label another one: LAC's score of a wrong label is 1 - its probability, which is at
    most the true label's score; where that is small the score is near 1."""
    shift = rng.integers(1, made.n_classes, len(scores))
    labels = (made.labels[k] + shift) % made.n_classes
    return 1 - np.minimum(scores, 1) * rng.random(len(scores)) / 2, labels
