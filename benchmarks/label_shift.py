"""How often rules PC and T fail at the worst edge: `python benchmarks/label_shift.py`.

A threshold covers too little only if the last edge that covers too little was accepted. So the
sharpest test of a rule is a binning that has just one edge below the top, and that one covers
0.0001 too little: the fraction of runs in which it is accepted must be at most delta. Malicious
clients know all benign reports and the edge. Counts by class are exact, since the rules are tested
where they are sharpest; coarsened counts only make them more careful. Everything is seeded.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from measure import markdown
from numpy.typing import NDArray

from robfcp.guarantees._checks import PRUNING_DELTA_FRACTION
from robfcp.guarantees._client_pairs import ClientPairs
from robfcp.guarantees._label_distributions import parse_label_distributions
from robfcp.guarantees._label_shift_thresholds import (
    ClassCounts,
    label_distribution_threshold,
    pac_threshold_after_pruning,
)

ALPHA = 0.1  # miss rate that a threshold may have
DELTA = 0.05  # probability that a rule may fail with
SHORTFALL = 1e-4  # coverage that the critical edge lacks
N_BISECTIONS = 7  # of the fraction of hidden misses that pruning lets pass

Counts = NDArray[np.int64]
Attack = Callable[[np.random.Generator, "Round"], None]


class World(NamedTuple):
    """Clients with Dirichlet(concentration) label distributions; the last ones are malicious."""

    n_clients: int
    n_samples: int  # a client
    n_classes: int
    concentration: float
    n_malicious: int


class Round(NamedTuple):
    """What the clients report at the critical edge; attacks change it in place."""

    cumulative: Counts  # (K, C) scores at or below the edge
    sizes: Counts  # (K, C)
    miss_rates: NDArray[np.float64]  # (C,)
    malicious: slice
    n_malicious: int


WORLDS = (
    World(20, 500, 10, 0.5, 8),
    World(20, 50, 10, 0.1, 4),
    World(9, 20_000, 2, 5.0, 3),
    World(40, 200, 10, 0.3, 8),
    World(100, 50, 10, 0.3, 20),
)


def draw_round(rng: np.random.Generator, world: World, method: str) -> Round:
    """Return benign clients at an edge that covers too little of their pool (PC).

    For T it covers too little of the uniform label distribution.
    """
    n_benign = world.n_clients - world.n_malicious
    distributions = rng.dirichlet(np.full(world.n_classes, world.concentration), world.n_clients)
    sizes = rng.multinomial(world.n_samples, distributions)
    if method == "PC":
        benign_sizes = sizes[:n_benign].sum(axis=0)
        weights = benign_sizes / benign_sizes.sum()
    else:
        weights = np.full(world.n_classes, 1 / world.n_classes)
    difficulty = np.exp(np.linspace(-1, 1, world.n_classes))
    miss_rates = np.minimum(difficulty * (ALPHA + SHORTFALL) / (weights @ difficulty), 1.0)
    cumulative = rng.binomial(sizes, 1 - miss_rates)
    malicious = slice(n_benign, world.n_clients)
    return Round(cumulative, sizes, miss_rates, malicious, world.n_malicious)


def is_accepted(round: Round, method: str, max_malicious: int) -> bool:
    """Return whether the rule accepts the edge, given a number of malicious clients."""
    n_clients, n_classes = round.sizes.shape
    clients = tuple(str(k) for k in range(n_clients))
    classes = tuple(str(c) for c in range(n_classes))
    edges = np.zeros(1, dtype=np.intp)
    counts = ClassCounts(round.cumulative[None], round.sizes, edges, clients, classes)
    if method == "PC":
        level = 1 - Fraction(str(ALPHA))
        result = pac_threshold_after_pruning(counts, level, max_malicious, DELTA)
    else:
        uniform = parse_label_distributions("uniform", classes)
        result = label_distribution_threshold(counts, uniform, ALPHA, max_malicious, DELTA)
    return result.bin_index is not None


# Attacks: what malicious clients report at the critical edge


def truthful(rng: np.random.Generator, round: Round) -> None:
    """Report the true scores; only the pool of the others has to be covered."""


def lowest(rng: np.random.Generator, round: Round) -> None:
    """Report every score below the edge."""
    round.cumulative[round.malicious] = round.sizes[round.malicious]


def highest(rng: np.random.Generator, round: Round) -> None:
    """Report every score above the edge."""
    round.cumulative[round.malicious] = 0


def half_and_half(rng: np.random.Generator, round: Round) -> None:
    """Report lowest and highest scores by turns, so that benign clients seem off to both sides."""
    lowest(rng, round)
    round.cumulative[round.malicious][::2] = 0


def hide_misses(rng: np.random.Generator, round: Round, fraction: float) -> None:
    """Report a fraction of the misses as covered."""
    missed = (round.sizes - round.cumulative)[round.malicious]
    hidden = np.floor(fraction * missed + rng.random(missed.shape))
    round.cumulative[round.malicious] += hidden.astype(np.int64)


def half_hidden(rng: np.random.Generator, round: Round) -> None:
    """Report half of the misses as covered."""
    hide_misses(rng, round, 0.5)


def just_unseen(rng: np.random.Generator, round: Round) -> None:
    """Hide as many misses as pruning, given m, lets pass: tried on the benign reports."""
    pairs = ClientPairs(round.sizes)
    truth = round.cumulative.copy()
    seed = int(rng.integers(2**32))
    delta = PRUNING_DELTA_FRACTION * DELTA

    low = 0.0
    high = 1.0
    best = truth.copy()
    for step in range(N_BISECTIONS):
        fraction = 1.0 if step == 0 else (low + high) / 2
        round.cumulative[:] = truth
        hide_misses(np.random.default_rng(seed), round, fraction)
        contradictions = pairs.contradictions(
            round.cumulative, round.n_malicious, delta, 0.0, len(round.sizes)
        )
        if contradictions is not None:
            high = fraction
            continue
        low = fraction
        best = round.cumulative.copy()
        if step == 0:  # all misses can be hidden
            break
    round.cumulative[:] = best


def capture_class(round: Round, label: int) -> None:
    """Claim that all samples are of one class, and report them below the edge."""
    n_samples = round.sizes[round.malicious].sum(axis=1)
    round.sizes[round.malicious] = 0
    round.sizes[round.malicious, label] = n_samples
    round.cumulative[round.malicious] = round.sizes[round.malicious]


def rarest_low(rng: np.random.Generator, round: Round) -> None:
    """Capture the class with the fewest benign samples."""
    malicious_rows = np.arange(len(round.sizes))[round.malicious]
    benign_sizes = np.delete(round.sizes, malicious_rows, axis=0).sum(axis=0)
    sizes_if_any = np.where(benign_sizes > 0, benign_sizes, benign_sizes.max() + 1)
    capture_class(round, int(np.argmin(sizes_if_any)))


def hardest_low(rng: np.random.Generator, round: Round) -> None:
    """Capture the class with the highest miss rate."""
    capture_class(round, int(np.argmax(round.miss_rates)))


def easiest_mimic(rng: np.random.Generator, round: Round) -> None:
    """Report true scores of the easiest class, so that only the label distribution is false."""
    easiest = int(np.argmin(round.miss_rates))
    capture_class(round, easiest)
    sizes = round.sizes[round.malicious, easiest]
    hits = rng.binomial(sizes, 1 - round.miss_rates[easiest])
    round.cumulative[round.malicious, easiest] = hits


def best_copied(rng: np.random.Generator, round: Round) -> None:
    """Copy the benign client that is covered most: the least covered seem off beside the copies."""
    n_benign = len(round.sizes) - round.n_malicious
    n_covered = round.cumulative[:n_benign].sum(axis=1)
    n_samples = round.sizes[:n_benign].sum(axis=1)
    best = int(np.argmax((n_covered + 1) / (n_samples + 2)))
    round.sizes[round.malicious] = round.sizes[best]
    round.cumulative[round.malicious] = round.cumulative[best]


def six_times(rng: np.random.Generator, round: Round) -> None:
    """Hide half of the misses, in six times as many samples as there are."""
    round.sizes[round.malicious] *= 6
    sizes = round.sizes[round.malicious]
    round.cumulative[round.malicious] = rng.binomial(sizes, 1 - round.miss_rates / 2)


ATTACKS: tuple[Attack, ...] = (
    truthful,
    lowest,
    highest,
    half_and_half,
    half_hidden,
    just_unseen,
    rarest_low,
    hardest_low,
    easiest_mimic,
    best_copied,
    six_times,
)


def failures(
    world: World, attack: Attack, method: str, numbers_given: Sequence[int], n_runs: int
) -> NDArray[np.int64]:
    """Return in how many runs the edge that covers too little is accepted.

    There is an entry for each number of malicious clients that the rule is given.
    """
    n_failed = np.zeros(len(numbers_given), dtype=np.int64)
    for run in range(n_runs):
        rng = np.random.default_rng([world.n_clients, world.n_samples, world.n_malicious, run])
        round = draw_round(rng, world, method)
        attack(rng, round)
        n_failed += [is_accepted(round, method, max_malicious) for max_malicious in numbers_given]
    return n_failed


def table(n_runs: int) -> Iterable[Sequence[str]]:
    """Yield the fraction of runs that fail, of each rule: given m, and given one too few."""
    yield ["K, n, C, Dirichlet, m", "attack", "PC", "PC, given m - 1", "T", "T, given m - 1"]
    for world in WORLDS:
        world_text = ", ".join(f"{value:,}" for value in world)
        numbers_given = (world.n_malicious, world.n_malicious - 1)
        for attack in ATTACKS:
            cells = []
            for method in ("PC", "T"):
                fractions = failures(world, attack, method, numbers_given, n_runs) / n_runs
                cells += [f"{fraction:.4f}" for fraction in fractions]
            yield [world_text, attack.__name__.replace("_", " "), *cells]


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    header, *rows = table(parser.parse_args().runs)
    print(markdown(header, rows))


if __name__ == "__main__":
    main()
