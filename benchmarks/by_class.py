"""What a guarantee by class costs while nobody lies: `python benchmarks/by_class.py [--runs 2000]`.

Twenty alike sites, ten classes, alpha = 0.1: the mean coverage of a class, lowest and highest over
the classes, under thresholds that charge for one thing after another. Scores are uniform, so that a
threshold is its own coverage; infinite ones cover everything. Everything is seeded.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

SITES, CLASSES, ALPHA = 20, 10, 0.1


def threshold(scores: NDArray[np.float64], owner: NDArray[np.intp], m: int, charge: float) -> float:
    """The least score at which, without any m sites, misses are at most alpha N_S - charge."""
    order = np.argsort(-scores, kind="stable")
    above = np.zeros((len(scores), SITES))
    above[np.arange(1, len(scores)), owner[order[:-1]]] = 1
    misses = np.cumsum(above, axis=0)  # of each site, if the threshold is the row's score
    sizes = np.bincount(owner, minlength=SITES)
    room = ALPHA * sizes - misses
    largest = np.sort(np.maximum(room, 0), axis=1)[:, SITES - m :].sum(axis=1)
    enough = np.flatnonzero(room.sum(axis=1) - largest >= charge - 1e-9)
    return float(scores[order[enough[-1]]]) if enough.size else 1.0


def rows(runs: int) -> Iterable[Sequence[str]]:
    """Coverage for each number of samples a site and each kind of label mix."""
    heads = ["one pool, rank of N + 1", "one rank charged", "and one site removed (the rule)"]
    yield ["labels", "n a site", "largest holder's share", *heads]
    kinds = ((0, 1 - ALPHA), (0, 1.0), (1, 1.0))  # misses <= alpha (N + 1) - 1 is the first
    for skew in (None, 0.5):
        for n in (50, 100, 200, 500):
            rng = np.random.default_rng([n, 0 if skew is None else 1])
            found = np.zeros((len(kinds), CLASSES))
            share = 0.0
            for _ in range(runs):
                even = np.full((SITES, CLASSES), 1 / CLASSES)
                mixes = even if skew is None else rng.dirichlet(np.full(CLASSES, skew), SITES)
                counts = rng.multinomial(n, mixes)
                share += float((counts.max(axis=0) / np.maximum(counts.sum(axis=0), 1)).mean())
                for c in range(CLASSES):
                    owner = np.repeat(np.arange(SITES), counts[:, c])
                    scores = rng.random(len(owner))
                    found[:, c] += [threshold(scores, owner, m, charge) for m, charge in kinds]
            found /= runs
            cells = [f"{one.min():.4f} to {one.max():.4f}" for one in found]
            words = "even" if skew is None else f"Dirichlet({skew})"
            yield [words, str(n), f"{share / runs:.2f}", *cells]


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    for number, row in enumerate(rows(parser.parse_args().runs)):
        print("| " + " | ".join(row) + " |", flush=True)
        if not number:
            print("|" + " --- |" * len(row), flush=True)


if __name__ == "__main__":
    main()
