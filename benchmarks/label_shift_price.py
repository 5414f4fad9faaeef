"""What rules PC and T cost on real outputs: `python benchmarks/label_shift_price.py [--runs 20]`.

Sites draw labels from Dirichlet mixes and, given the label, LAC scores of shipped models' outputs
(CIFAR-10, PathMNIST) with replacement: label shift holds exactly and the coverage of a threshold is
known. PC and the plain PAC rule are read on the honest sites' pool, T on the uniform mix, at 0.9
with 95% confidence, the number of liars stated. Everything is seeded.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robfcp import LAC, Grid
from robfcp.guarantees.label_shift import ClassCounts, fixed_edges, mix_threshold, pruned_pac
from robfcp.guarantees.tails import PacCondition
from robfcp.lab import outputs

LEVEL, DELTA = Fraction(9, 10), 0.05
GRID = Grid.default()
CASES = ((20, 250, 0.3, 8), (20, 250, 0.3, 2), (100, 50, 0.3, 40), (100, 50, 0.3, 20))
Tables = NDArray[np.int64]


class Pool(NamedTuple):
    """(C, H) the share of each class's scores in each bin."""

    shares: NDArray[np.float64]

    @staticmethod
    def of(dataset: str) -> Pool:
        """All shipped outputs of one model."""
        found = outputs.load(dataset, "iid")
        bins = GRID.index(LAC()(found.probabilities, found.labels))
        counts = np.zeros((found.probabilities.shape[1], GRID.n_bins))
        np.add.at(counts, (found.labels, bins), 1)
        return Pool(counts / counts.sum(axis=1, keepdims=True))


def honest(rng: np.random.Generator, tables: Tables, pool: Pool, liars: slice) -> None:
    """Nobody lies."""


def highest(rng: np.random.Generator, tables: Tables, pool: Pool, liars: slice) -> None:
    """Every score in the last bin."""
    sizes = tables[liars].sum(axis=2)
    tables[liars] = 0
    tables[liars, :, -1] = sizes


def truncated(rng: np.random.Generator, tables: Tables, pool: Pool, liars: slice) -> None:
    """Scores from the lowest three quarters of their class only."""
    low = np.cumsum(pool.shares, axis=1) <= 0.75
    low[:, 0] = True
    shares = np.where(low, pool.shares, 0) + 1e-15 * (np.arange(GRID.n_bins) == 0)
    sizes = tables[liars].sum(axis=2)
    tables[liars] = rng.multinomial(sizes, shares / shares.sum(axis=1, keepdims=True))


def mimicked(rng: np.random.Generator, tables: Tables, pool: Pool, liars: slice) -> None:
    """True scores of the easiest class, so that only the label mix is a lie."""
    easy = int(np.argmin(pool.shares @ np.arange(GRID.n_bins)))
    total = tables[liars].sum(axis=(1, 2))
    tables[liars] = 0
    tables[liars, easy] = rng.multinomial(total, pool.shares[easy])


def captured(rng: np.random.Generator, tables: Tables, pool: Pool, liars: slice) -> None:
    """All samples in the rarest class, in the last bin."""
    total = tables[liars].sum(axis=(1, 2))
    tables[liars] = 0
    rare = int(np.argmin(tables.sum(axis=(0, 2))))
    tables[liars, rare, -1] = total


ATTACKS = (honest, highest, truncated, mimicked, captured)
Attack = Callable[[np.random.Generator, Tables, Pool, slice], None]


def one_run(
    rng: np.random.Generator, pool: Pool, case: tuple[int, int, float, int], attack: Attack
) -> list[float]:
    """Coverage of PC's and the plain rule's thresholds on the honest pool, and of T's."""
    sites, n, concentration, m = case
    n_classes = len(pool.shares)
    sizes = rng.multinomial(n, rng.dirichlet(np.full(n_classes, concentration), sites))
    tables = rng.multinomial(sizes, pool.shares)
    attack(rng, tables, pool, slice(sites - m, sites))
    edges = fixed_edges(GRID.n_bins)
    below = np.ascontiguousarray(np.cumsum(tables, axis=2)[:, :, edges].transpose(2, 0, 1))
    told = tables.sum(axis=2)
    names = tuple(map(str, range(n_classes)))
    counts = ClassCounts(below, told, edges, tuple(map(str, range(sites))), names)
    plain = PacCondition(told.sum(axis=1), m, LEVEL, DELTA).holds(below.sum(axis=2))
    cdf = np.cumsum(pool.shares, axis=1)
    weights = sizes[: sites - m].sum(axis=0) / sizes[: sites - m].sum()
    even = np.full((1, n_classes), 1 / n_classes)
    found = pruned_pac(counts, LEVEL, m, DELTA).index
    mixed = mix_threshold(counts, even, float(1 - LEVEL), m, DELTA).index
    last = np.flatnonzero(~plain)
    usual = int(edges[last[-1] + 1]) if len(last) else int(edges[0])
    places = [(found, weights), (usual, weights), (mixed, even[0])]
    return [1.0 if t is None or t >= GRID.n_bins - 1 else float(w @ cdf[:, t]) for t, w in places]


def table(runs: int) -> Iterable[Sequence[str]]:
    """Mean and lowest coverage of each rule; how often every set is full."""
    yield ["K, n, Dirichlet, m", "liars", "PC", "plain PAC", "T"]
    pools = [Pool.of(name) for name in ("cifar10", "pathmnist")]
    for case in CASES:
        for attack in ATTACKS:
            found = np.array(
                [
                    one_run(np.random.default_rng([*case[:2], case[3], run]), pool, case, attack)
                    for pool in pools
                    for run in range(runs)
                ]
            )
            cells = []
            for column in found.T:
                full = (column >= 1).mean()
                words = "full" if full > 0.95 else f"{column.mean():.3f} ({column.min():.3f})"
                cells.append(words + (f", {full:.0%} full" if 0 < full <= 0.95 else ""))
            yield [", ".join(map(str, case)), attack.__name__, *cells]


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    for number, row in enumerate(table(parser.parse_args().runs)):
        print("| " + " | ".join(row) + " |", flush=True)
        if not number:
            print("|" + " --- |" * len(row), flush=True)


if __name__ == "__main__":
    main()
