"""Neighbour means for many clients: distances to reference clients that nobody could foresee."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robfcp.defence.distances import MEMORY, Indices, Space, rank_means

LARGE = 20_000  # beyond so many clients distances to all others give way to references
REFERENCES = 2048
CUT_SHARE = 5  # the K / 5 clients nearest to the cut see five times as many references


@dataclass(frozen=True, eq=False)
class Estimate:
    """Mean distances, their standard errors (0 where exact) and what they were drawn from."""

    means: NDArray[np.float64]
    errors: NDArray[np.float64]
    seed: int | None = None
    n_references: int | None = None

    @property
    def note(self) -> str | None:
        """The approximation in words; None where there is none."""
        if self.n_references is None:
            return None
        error = float(np.median(self.errors / np.maximum(self.means, np.finfo(float).tiny)))
        return (
            f"maliciousness estimated from {self.n_references} reference clients drawn after the "
            f"reports were in (seed {self.seed}); standard error {error:.2%} of a typical one"
        )


def scalable_means(
    space: Space,
    first: int,
    last: int,
    *,
    cut: int | None = None,
    number: int | None = None,
    seed: int | None = None,
    memory: int = MEMORY,
) -> Estimate:
    """Mean distances to the neighbours of rank first..last, exact up to LARGE clients.

    Beyond, everybody is measured against the same `number` clients, drawn from `seed` (a secret
    one if None), so that errors are shared and hardly change an order; they are one of each of as
    many strata along the clients' leading direction, so that every group has its share, and the
    stated errors, those of a plain sample, are on the safe side. `cut` is the number of clients
    the ranking will keep: those next to it are measured again with the same effort, against more
    references, and everybody else moves by their mean correction.
    """
    n_clients = len(space.points)
    if n_clients <= LARGE:
        exact = rank_means(space, first, last, memory=memory)
        return Estimate(exact.means, np.zeros(n_clients))
    number = REFERENCES if number is None else number
    seed = secret_seed() if seed is None else seed
    rng = np.random.default_rng(seed)
    line = np.argsort(_along_leading_direction(space.points), kind="stable")
    few = _one_of_each_stratum(line, number, rng)
    means, errors = rank_means(space, first, last, references=few, memory=memory)
    if cut is not None:
        near = _nearest_to_cut(means, cut)
        codes, place = np.unique(space.codes[near], return_index=True)
        near = near[place]
        more = _one_of_each_stratum(line, CUT_SHARE * number, rng)
        better = rank_means(space, first, last, rows=near, references=more, memory=memory)
        means += (better.means - means[near]).mean()
        twin = np.minimum(np.searchsorted(codes, space.codes), len(codes) - 1)
        again = codes[twin] == space.codes  # equal clients stay equal
        means[again], errors[again] = better.means[twin[again]], better.errors[twin[again]]
    return Estimate(means, errors, seed, len(few))


def _nearest_to_cut(means: NDArray[np.float64], cut: int) -> Indices:
    """The K / CUT_SHARE clients whose places are nearest to the cut, half on each side."""
    reach = max(1, len(means) // (2 * CUT_SHARE))
    order = np.argsort(means, kind="stable")
    return np.sort(order[max(0, cut - reach) : cut + reach])


def _along_leading_direction(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """(K,) places of the points along the direction in which they differ most."""
    mean = points.mean(axis=0)
    covariance = points.T @ points / len(points) - np.outer(mean, mean)
    return np.asarray(points @ np.linalg.eigh(covariance)[1][:, -1])


def _one_of_each_stratum(line: Indices, number: int, rng: np.random.Generator) -> Indices:
    """Sorted clients, one at random from each of `number` equal stretches of the line."""
    ends = np.arange(min(number, len(line)) + 1) * len(line) // min(number, len(line))
    return np.sort(line[rng.integers(ends[:-1], ends[1:])])


def references(n_clients: int, number: int, seed: int | None = None) -> Indices:
    """Sorted clients drawn at random, from a secret seed if None is given."""
    rng = np.random.default_rng(secret_seed() if seed is None else seed)
    return np.sort(rng.choice(n_clients, min(number, n_clients), replace=False))


def secret_seed() -> int:
    """A seed nobody can foresee, drawn only when the reports are in."""
    return secrets.randbits(63)
