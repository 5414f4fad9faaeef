"""The tables of docs/guides/privacy.md: `python benchmarks/privacy.py price|binnings`.

Clients draw their samples from a real network's shipped test outputs, on which coverage and set
size are then exact. Samples are seeded; the noise is OpenDP's and is not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

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
SIZES = (50, 500, 5000)  # samples a client
CLIENTS = 50
MAX_MALICIOUS = 2  # what guarantees are given
N_ATTACKERS = 10  # of the attacks that a defense meets
LEVEL = Fraction(9, 10)
BIN_NUMBERS = (8, 12, 16, 24, 32, 48, 64, 96, 128)
LOWEST_BIN = 0
HIGHEST_BIN = -1


class Population:
    """A network's outputs as the distribution that every client samples from."""

    def __init__(self, name: str) -> None:
        shipped = outputs.load(name)
        self.scores = np.sort(LAC()(shipped.probabilities, shipped.labels))
        self.label_scores = np.sort(LAC().score_all_labels(shipped.probabilities).ravel())

    def bin_fractions(self, binning: Binning) -> NDArray[np.float64]:
        """Return the fraction of scores in each bin."""
        cumulative = np.searchsorted(self.scores, binning.upper_edges, side="right")
        return np.asarray(np.diff(cumulative, prepend=0) / self.scores.size)

    def coverage(self, threshold: float) -> float:
        """Return the fraction of true labels in their sets."""
        n_covered = np.searchsorted(self.scores, threshold, side="right")
        return float(n_covered / self.scores.size)

    def set_size(self, threshold: float) -> float:
        """Return the mean number of labels in a set."""
        n_included = np.searchsorted(self.label_scores, threshold, side="right")
        return float(n_included / self.scores.size)


@dataclass(frozen=True)
class Setup:
    """What the clients of a round have in common.

    Attributes
    ----------
    population : Population
        What they sample from.
    binning : Binning
        Of their reports.
    n : int
        Samples a client.
    privacy : Privacy or None
        The noise of the reports.
    """

    population: Population
    binning: Binning
    n: int
    privacy: Privacy | None

    def federation(
        self, rng: np.random.Generator, forged_bin: int = LOWEST_BIN, n_malicious: int = 0
    ) -> Federation:
        """Return reports; the first clients are malicious and put everything into one bin."""
        fractions = self.population.bin_fractions(self.binning)
        counts = rng.multinomial(self.n, fractions, size=CLIENTS)
        counts[:n_malicious] = 0
        counts[:n_malicious, forged_bin] = self.n
        if self.privacy is None:
            return Federation.from_counts(counts, self.binning)
        noisy = add_noise(counts.ravel(), self.privacy).reshape(counts.shape)
        sample_sizes = np.full(CLIENTS, self.n)
        return Federation.from_counts(
            noisy, self.binning, privacy=self.privacy, sample_sizes=sample_sizes
        )


def price(population: Population, n_runs: int) -> Iterator[Sequence[object]]:
    """Yield coverage, set size, certificate width and detection, with and without attackers."""
    yield (
        "n",
        "epsilon",
        "bins",
        "coverage",
        "size",
        "width",
        "flagged",
        "guaranteed cov.",
        "size",
        "2 low: cov.",
        "2 high: size",
        "10 low: cov.",
        "detected",
        "10 high: size",
        "detected",
    )
    for n, epsilon in product(SIZES, EPSILONS):
        privacy = None
        binning = Binning.default()
        if epsilon is not None:
            privacy = Privacy(epsilon)
            binning = recommend_binning(privacy, n, CLIENTS)
        setup = Setup(population, binning, n, privacy)
        rows = [price_once(np.random.default_rng(seed), setup) for seed in range(n_runs)]
        means = np.mean(rows, axis=0)
        yield n, epsilon or "inf", binning.n_bins, *(f"{value:.3f}" for value in means)


def price_once(rng: np.random.Generator, setup: Setup) -> list[float]:
    """Return one run's numbers of the table of prices."""
    population = setup.population
    benign = calibrate_defended(setup.federation(rng), n_attackers=0)
    guaranteed = calibrate_guaranteed(setup.federation(rng))
    certificate = benign.levels[0].certificate
    guaranteed_low = calibrate_guaranteed(setup.federation(rng, LOWEST_BIN, MAX_MALICIOUS))
    guaranteed_high = calibrate_guaranteed(setup.federation(rng, HIGHEST_BIN, MAX_MALICIOUS))
    low = calibrate_defended(setup.federation(rng, LOWEST_BIN, N_ATTACKERS), N_ATTACKERS)
    high = calibrate_defended(setup.federation(rng, HIGHEST_BIN, N_ATTACKERS), N_ATTACKERS)
    return [
        population.coverage(threshold_of(benign)),
        population.set_size(threshold_of(benign)),
        certificate.upper - certificate.lower,
        float((~benign.benign_mask).mean()),
        population.coverage(threshold_of(guaranteed)),
        population.set_size(threshold_of(guaranteed)),
        population.coverage(threshold_of(guaranteed_low)),
        population.set_size(threshold_of(guaranteed_high)),
        population.coverage(threshold_of(low)),
        detected_fraction(low),
        population.set_size(threshold_of(high)),
        detected_fraction(high),
    ]


def calibrate_guaranteed(reports: Federation) -> Calibration:
    """Return the calibration with a marginal guarantee."""
    guarantee = MarginalGuarantee(max_malicious=MAX_MALICIOUS)
    return calibrate(reports, defense="none", guarantee=guarantee)


def calibrate_defended(reports: Federation, n_attackers: int) -> Calibration:
    """Return the default calibration; it is given no number where clients attack."""
    max_malicious = None if n_attackers else MAX_MALICIOUS
    return calibrate(reports, defense=Consensus(max_malicious=max_malicious))


def threshold_of(calibration: Calibration) -> float:
    """Return the threshold of a calibration's only level."""
    return calibration.levels[0].threshold


def detected_fraction(calibration: Calibration) -> float:
    """Return the fraction of the attackers that are excluded."""
    return float((~calibration.benign_mask[:N_ATTACKERS]).mean())


def binning_table(population: Population, n_runs: int) -> Iterator[Sequence[object]]:
    """Yield coverage of the guaranteed threshold (the nearer to 0.9 the better) by bins."""
    yield "n", "epsilon", *BIN_NUMBERS, "recommended", "with a prior"
    rng = np.random.default_rng(0)
    prior = rng.choice(population.scores, 1000)
    for n, epsilon in product(SIZES, (0.1, 1.0, 4.0)):
        privacy = Privacy(epsilon)
        binnings = [logistic_binning(n_bins) for n_bins in BIN_NUMBERS]
        binnings.append(recommend_binning(privacy, n, CLIENTS))
        binnings.append(recommend_binning(privacy, n, CLIENTS, prior=prior))
        cells = []
        for binning in binnings:
            coverage = guaranteed_coverage(rng, Setup(population, binning, n, privacy), n_runs)
            cells.append(f"{coverage:.3f}")
        yield n, epsilon, *cells


def guaranteed_coverage(rng: np.random.Generator, setup: Setup, n_runs: int) -> float:
    """Return the mean coverage of the threshold with a marginal guarantee."""
    bin_coverages = np.cumsum(setup.population.bin_fractions(setup.binning))
    coverages = []
    for _ in range(n_runs):
        bin_index = marginal_threshold_bin(setup.federation(rng), LEVEL, MAX_MALICIOUS)
        coverages.append(1.0 if bin_index is None else bin_coverages[bin_index])
    return float(np.mean(coverages))


TABLES = {"price": price, "binnings": binning_table}


def main() -> None:
    """Print one table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=list(TABLES))
    parser.add_argument("--n-runs", type=int, default=20)
    parser.add_argument("--data", default="pathmnist", choices=outputs.dataset_names())
    arguments = parser.parse_args()
    rows = TABLES[arguments.table](Population(arguments.data), arguments.n_runs)
    for i, row in enumerate(rows):
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
        if i == 0:
            print("|" + "---|" * len(row), flush=True)


if __name__ == "__main__":
    main()
