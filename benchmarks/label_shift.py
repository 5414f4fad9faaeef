"""How often rules PC and T fail at the worst edge: `python benchmarks/label_shift.py`.

A threshold covers too little only if the last edge that covers too little was accepted. So the
sharpest test of a rule is a grid that has just one edge below the top, and that one covers 0.0001
too little: the share of runs in which it is accepted must be at most delta. Liars know all honest
reports and the edge. Everything is seeded.
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
from robfcp.guarantees._label_shift import (
    ClassCounts,
    label_distribution_threshold,
    pac_threshold_after_pruning,
)

ALPHA, DELTA, SHORT = 0.1, 0.05, 1e-4
Counts = NDArray[np.int64]
Shares = NDArray[np.float64]
Attack = Callable[[np.random.Generator, "Round"], None]


class World(NamedTuple):
    """K sites of n samples with Dirichlet(concentration) label mixes; the last m of them lie."""

    sites: int
    n: int
    classes: int
    concentration: float
    m: int


class Round(NamedTuple):
    """(K, C) counts at or below the critical edge and sizes, and each class's chance of a miss."""

    below: Counts
    sizes: Counts
    miss: Shares
    liars: slice
    m: int


WORLDS = (
    World(20, 500, 10, 0.5, 8),
    World(20, 50, 10, 0.1, 4),
    World(9, 20_000, 2, 5.0, 3),
    World(40, 200, 10, 0.3, 8),
    World(100, 50, 10, 0.3, 20),
)


def drawn(rng: np.random.Generator, world: World, rule: str) -> Round:
    """Honest sites at an edge that covers too little of their pool, or of the uniform mix."""
    mixes = rng.dirichlet(np.full(world.classes, world.concentration), world.sites)
    sizes = rng.multinomial(world.n, mixes)
    hard = np.exp(np.linspace(-1, 1, world.classes))
    honest = sizes[: world.sites - world.m].sum(axis=0)
    weights = honest / honest.sum() if rule == "PC" else np.full(world.classes, 1 / world.classes)
    miss = np.minimum(hard * (ALPHA + SHORT) / (weights @ hard), 1.0)
    below = rng.binomial(sizes, 1 - miss)
    return Round(below, sizes, miss, slice(world.sites - world.m, world.sites), world.m)


def accepted(round: Round, rule: str, told: int) -> bool:
    """Whether the edge is accepted, told a number of liars."""
    ids = tuple(map(str, range(len(round.sizes))))
    names = tuple(map(str, range(round.sizes.shape[1])))
    counts = ClassCounts(round.below[None], round.sizes, np.zeros(1, dtype=np.intp), ids, names)
    if rule == "PC":
        return (
            pac_threshold_after_pruning(counts, 1 - Fraction(str(ALPHA)), told, DELTA).bin_index
            is not None
        )
    return (
        label_distribution_threshold(
            counts, parse_label_distributions("uniform", names), ALPHA, told, DELTA
        ).bin_index
        is not None
    )


# Attacks: what the liars report at the critical edge


def truthful(rng: np.random.Generator, round: Round) -> None:
    """Their own scores; only the pool of the others has to be covered."""


def lowest(rng: np.random.Generator, round: Round) -> None:
    """Every score below the edge."""
    round.below[round.liars] = round.sizes[round.liars]


def highest(rng: np.random.Generator, round: Round) -> None:
    """Every score above it."""
    round.below[round.liars] = 0


def half_and_half(rng: np.random.Generator, round: Round) -> None:
    """Half of the liars lowest, half highest, so that honest sites look odd from both sides."""
    lowest(rng, round)
    round.below[round.liars][::2] = 0


def hiding(rng: np.random.Generator, round: Round, share: float) -> None:
    """This share of the misses is reported as covered."""
    missed = (round.sizes - round.below)[round.liars]
    round.below[round.liars] += np.floor(share * missed + rng.random(missed.shape)).astype(np.int64)


def half_hidden(rng: np.random.Generator, round: Round) -> None:
    """Half of the misses are reported as covered."""
    hiding(rng, round, 0.5)


def just_unseen(rng: np.random.Generator, round: Round) -> None:
    """As many misses hidden as pruning, told m, lets pass: tried on the honest reports."""
    pairs, first, seed = ClientPairs(round.sizes), round.below.copy(), int(rng.integers(2**32))
    low, high = 0.0, 1.0
    best = first.copy()
    for step in range(7):
        share = 1.0 if step == 0 else (low + high) / 2
        round.below[:] = first
        hiding(np.random.default_rng(seed), round, share)
        beta, number = PRUNING_DELTA_FRACTION * DELTA, len(round.sizes)
        if pairs.contradictions(round.below, round.m, beta, 0.0, number) is None:
            low, best = share, round.below.copy()
            if step == 0:
                break
        else:
            high = share
    round.below[:] = best


def captured(round: Round, stratum: int, below: bool) -> None:
    """All of the liars' samples are claimed to be of one class, on one side of the edge."""
    total = round.sizes[round.liars].sum(axis=1)
    round.sizes[round.liars] = 0
    round.sizes[round.liars, stratum] = total
    round.below[round.liars] = round.sizes[round.liars] * below


def rarest_low(rng: np.random.Generator, round: Round) -> None:
    """Class capture: everything in the class with fewest honest samples, lowest."""
    honest = np.delete(round.sizes, np.arange(len(round.sizes))[round.liars], axis=0).sum(axis=0)
    captured(round, int(np.argmin(np.where(honest > 0, honest, honest.max() + 1))), True)


def hardest_low(rng: np.random.Generator, round: Round) -> None:
    """Class capture: everything in the hardest class, lowest."""
    captured(round, int(np.argmax(round.miss)), True)


def easiest_mimic(rng: np.random.Generator, round: Round) -> None:
    """Pair mimic: true scores of the easiest class, so that only the label mix is a lie."""
    easy = int(np.argmin(round.miss))
    captured(round, easy, True)
    sizes = round.sizes[round.liars, easy]
    round.below[round.liars, easy] = rng.binomial(sizes, 1 - round.miss[easy])


def best_copied(rng: np.random.Generator, round: Round) -> None:
    """Copies of the honest site that is covered most: those covered least look odd beside them."""
    honest = len(round.sizes) - round.m
    total = round.sizes[:honest].sum(axis=1)
    best = int(np.argmax((round.below[:honest].sum(axis=1) + 1) / (total + 2)))
    round.sizes[round.liars], round.below[round.liars] = round.sizes[best], round.below[best]


def six_times(rng: np.random.Generator, round: Round) -> None:
    """Half of the misses hidden, in six times as many samples as they have."""
    round.sizes[round.liars] *= 6
    round.below[round.liars] = rng.binomial(round.sizes[round.liars], 1 - round.miss / 2)


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
    world: World, attack: Attack, rule: str, told: Sequence[int], runs: int
) -> NDArray[np.int64]:
    """In how many runs the edge that covers too little is accepted, for each number told."""
    found = np.zeros(len(told), dtype=np.int64)
    for run in range(runs):
        rng = np.random.default_rng([world.sites, world.n, world.m, run])
        round = drawn(rng, world, rule)
        attack(rng, round)
        found += [accepted(round, rule, m) for m in told]
    return found


def table(runs: int) -> Iterable[Sequence[str]]:
    """The share of runs that fail, of each rule: told m, and told one liar too few."""
    yield ["K, n, C, Dirichlet, m", "attack", "PC", "PC, told m - 1", "T", "T, told m - 1"]
    for world in WORLDS:
        name = ", ".join(f"{number:,}" for number in world)
        for attack in ATTACKS:
            told = (world.m, world.m - 1)
            shares = [failures(world, attack, rule, told, runs) / runs for rule in ("PC", "T")]
            cells = [f"{share:.4f}" for share in np.concatenate(shares)]
            yield [name, attack.__name__.replace("_", " "), *cells]


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    header, *rows = table(parser.parse_args().runs)
    print(markdown(header, rows))


if __name__ == "__main__":
    main()
