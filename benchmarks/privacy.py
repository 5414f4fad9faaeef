"""The tables of docs/guides/privacy.md: `python benchmarks/privacy.py price|grids`.

Clients draw their samples from a real network's shipped test outputs, on which coverage and set
size are then exact. Samples are seeded; the noise is OpenDP's and is not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from robfcp import (
    LAC,
    Binning,
    Calibration,
    Consensus,
    MarginalGuarantee,
    Privacy,
    calibrate,
    recommend_binning,
)
from robfcp.experiments import outputs
from robfcp.federation import Federation
from robfcp.guarantees import marginal_threshold_bin
from robfcp.privacy import add_noise, logistic_binning

EPSILONS: tuple[float | None, ...] = (0.1, 0.5, 1.0, 4.0, None)
SIZES = (50, 500, 5000)
CLIENTS, STATED, LIARS = 50, 2, 10
LEVEL = Fraction(9, 10)

Shares = NDArray[np.float64]


class Population:
    """A network's outputs as the distribution that every client samples from."""

    def __init__(self, name: str) -> None:
        shipped = outputs.load(name)
        self.scores = np.sort(LAC()(shipped.probabilities, shipped.labels))
        self.labels = np.sort(LAC().score_all_labels(shipped.probabilities).ravel())

    def shares(self, grid: Binning) -> Shares:
        """The share of scores in each bin."""
        below = np.searchsorted(self.scores, grid.upper_edges, side="right")
        return np.asarray(np.diff(below, prepend=0) / self.scores.size)

    def coverage(self, threshold: float) -> float:
        """The share of true labels in their sets."""
        return float(np.searchsorted(self.scores, threshold, side="right") / self.scores.size)

    def set_size(self, threshold: float) -> float:
        """Labels a set holds on average."""
        return float(np.searchsorted(self.labels, threshold, side="right") / self.scores.size)


def federation(
    rng: np.random.Generator,
    population: Population,
    grid: Binning,
    n: int,
    privacy: Privacy | None,
    forged: int | None = None,
    liars: int = 0,
) -> Federation:
    """Reports of n samples a client; the first `liars` put everything into the forged bin."""
    counts = rng.multinomial(n, population.shares(grid), size=CLIENTS)
    if forged is not None:
        counts[:liars] = 0
        counts[:liars, forged] = n
    if privacy is None:
        return Federation.from_counts(counts, grid)
    noisy = add_noise(counts.ravel(), privacy).reshape(counts.shape)
    return Federation.from_counts(noisy, grid, privacy=privacy, sample_sizes=np.full(CLIENTS, n))


def price(population: Population, seeds: int) -> Iterable[Sequence[object]]:
    """Coverage, set size, certificate width and detection, with and without attackers."""
    yield (
        *("n", "epsilon", "bins", "coverage", "size", "width", "flagged"),
        *("marg. cov.", "size", "2 low: cov.", "2 high: size"),
        *("10 low: cov.", "found", "10 high: size", "found"),
    )
    for n in SIZES:
        for epsilon in EPSILONS:
            privacy = None if epsilon is None else Privacy(epsilon)
            grid = Binning.default() if privacy is None else recommend_binning(privacy, n, CLIENTS)
            rows = [
                price_once(np.random.default_rng(seed), population, grid, n, privacy)
                for seed in range(seeds)
            ]
            means = np.mean(rows, axis=0)
            yield n, epsilon or "inf", grid.n_bins, *(f"{value:.3f}" for value in means)


def price_once(
    rng: np.random.Generator,
    population: Population,
    grid: Binning,
    n: int,
    privacy: Privacy | None,
) -> list[float]:
    """One row of the table."""

    def made(forged: int | None = None, liars: int = 0, guarantee: bool = False) -> Calibration:
        reports = federation(rng, population, grid, n, privacy, forged, liars)
        if guarantee:
            return calibrate(reports, defense="none", guarantee=MarginalGuarantee(liars=STATED))
        return calibrate(reports, defense=Consensus(at_most=None if liars else STATED))

    def coverage(calibration: Calibration) -> float:
        return population.coverage(calibration.levels[0].threshold)

    def size(calibration: Calibration) -> float:
        return population.set_size(calibration.levels[0].threshold)

    def found(calibration: Calibration) -> float:
        return float((~calibration.benign_mask[:LIARS]).mean())

    honest, sure = made(), made(guarantee=True)
    certificate = honest.levels[0].certificate
    low, high = made(0, STATED, guarantee=True), made(-1, STATED, guarantee=True)
    many_low, many_high = made(0, LIARS), made(-1, LIARS)
    return [
        *(coverage(honest), size(honest), certificate.upper - certificate.lower),
        float((~honest.benign_mask).mean()),
        *(coverage(sure), size(sure), coverage(low), size(high)),
        *(coverage(many_low), found(many_low), size(many_high), found(many_high)),
    ]


def grids(population: Population, seeds: int) -> Iterable[Sequence[object]]:
    """Coverage of the guaranteed threshold (the nearer to 0.9 the better) by number of bins."""
    numbers = (8, 12, 16, 24, 32, 48, 64, 96, 128)
    yield "n", "epsilon", *numbers, "recommended", "with a prior"
    rng = np.random.default_rng(0)
    prior = rng.choice(population.scores, 1000)
    for n in SIZES:
        for epsilon in (0.1, 1.0, 4.0):
            privacy = Privacy(epsilon)
            tried = [
                *(logistic_binning(bins) for bins in numbers),
                recommend_binning(privacy, n, CLIENTS),
                recommend_binning(privacy, n, CLIENTS, prior=prior),
            ]
            covered = []
            for grid in tried:
                shares = np.append(np.cumsum(population.shares(grid)), 1.0)
                found = [
                    marginal_threshold_bin(
                        federation(rng, population, grid, n, privacy), LEVEL, STATED
                    )
                    for _ in range(seeds)
                ]
                ends = [grid.n_bins if index is None else index for index in found]
                covered.append(f"{shares[ends].mean():.3f}")
            yield n, epsilon, *covered


def main() -> None:
    """Print one table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=("price", "grids"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--data", default="pathmnist", choices=outputs.names())
    chosen = parser.parse_args()
    table = {"price": price, "grids": grids}[chosen.table]
    for number, row in enumerate(table(Population(chosen.data), chosen.seeds)):
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
        if not number:
            print("|" + "---|" * len(row), flush=True)


if __name__ == "__main__":
    main()
