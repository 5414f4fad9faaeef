"""Honest clients with known distributions, and attackers who see everything they report.

Coverage is computed exactly from the clients' true distributions, so that only the calibration
data are random. `python tests/omniscient.py` prints the table in docs/certificates.md.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
from scipy.stats import beta as beta_law

from robfcp.federation import Federation
from robfcp.grid import Grid
from robfcp.guarantees import Pac
from robfcp.guarantees.curve import coverage_interval
from robfcp.guarantees.engine import counts_of
from robfcp.guarantees.promises import marginal_threshold
from robfcp.guarantees.tails import pac_threshold

LEVEL = Fraction(9, 10)
BINS = 200
GRID = Grid.uniform(BINS)
EDGES = np.linspace(0, 1, BINS + 1)
CLASSES = np.array([np.diff(beta_law.cdf(EDGES, shape, 4)) for shape in np.linspace(0.4, 3, 10)])

Threshold = Callable[[Federation, int], int | None]


def distributions(rng: np.random.Generator, mix: str, n_clients: int) -> np.ndarray:
    """(K, H) true score distributions: alike, or classes mixed by Dirichlet(0.5) shares."""
    if mix == "iid":
        return np.tile(CLASSES.mean(axis=0), (n_clients, 1))
    return rng.dirichlet(np.full(len(CLASSES), 0.5), n_clients) @ CLASSES


def client_sizes(rng: np.random.Generator, n: int | None, n_clients: int) -> np.ndarray:
    """n samples each, or log-uniform between 20 and 1000."""
    if n is not None:
        return np.full(n_clients, n)
    return np.exp(rng.uniform(np.log(20), np.log(1000), n_clients)).astype(int)


def forge(shares: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Integer counts of the given sizes closest to the shares."""
    steps = np.floor(np.cumsum(shares) * sizes[:, None] + 0.5).astype(int)
    steps[:, -1] = sizes
    return np.diff(steps, axis=1, prepend=0)


def attacks(counts: np.ndarray, liars: int) -> list[np.ndarray]:
    """What the first `liars` clients may report, knowing everybody's counts."""
    sizes = counts.sum(axis=1)
    honest = counts[liars:]
    pooled = honest.sum(axis=0) / honest.sum()
    cumulative = np.cumsum(pooled)
    at_90 = np.cumsum(honest, axis=1)[:, np.searchsorted(cumulative, 0.9)] / sizes[liars:]
    truncated = np.where(cumulative <= 0.75, pooled, 0)
    reports = [
        np.eye(BINS)[0],
        np.eye(BINS)[-1],
        honest[np.argmax(at_90)] / sizes[liars:][np.argmax(at_90)],
        honest[np.argmin(at_90)] / sizes[liars:][np.argmin(at_90)],
        truncated / truncated.sum(),
        *(0.5**step * np.eye(BINS)[0] + (1 - 0.5**step) * pooled for step in range(1, 6)),
    ]
    forged = []
    for shares in reports:
        forged.append(counts.copy())
        forged[-1][:liars] = forge(shares, sizes[:liars])
    return forged


def worst_coverage(
    rng: np.random.Generator,
    threshold: Threshold,
    *,
    mix: str,
    n: int | None,
    n_clients: int,
    liars: int,
    budget: int,
    extra: int,
    trials: int,
) -> np.ndarray:
    """(trials,) exact coverage of the benign mixture (weights n_k + extra) at worst."""
    found = np.empty(trials)
    for trial in range(trials):
        sizes = client_sizes(rng, n, n_clients)
        truth = distributions(rng, mix, n_clients)
        counts = rng.multinomial(sizes, truth)
        weights = (sizes + extra)[liars:]
        coverage = np.append(weights @ np.cumsum(truth[liars:], axis=1) / weights.sum(), 1.0)
        indices = [
            threshold(Federation.from_counts(forged, GRID), budget)
            for forged in attacks(counts, liars)
        ]
        found[trial] = min(coverage[BINS if index is None else index] for index in indices)
    return found


def band_failures(
    rng: np.random.Generator, *, mix: str, n: int | None, budget: int, trials: int
) -> int:
    """How many trials have an edge whose coverage leaves the 80% band; 2 of 10 lie."""
    failed = 0
    for _ in range(trials):
        sizes = client_sizes(rng, n, 10)
        truth = distributions(rng, mix, 10)
        counts = rng.multinomial(sizes, truth)
        coverage = sizes[2:] @ np.cumsum(truth[2:], axis=1) / sizes[2:].sum()
        outside = False
        for forged in attacks(counts, 2):
            counts_here = counts_of(Federation.from_counts(forged, GRID))
            lower, upper = coverage_interval(counts_here, np.arange(BINS), [budget], 0.2)
            outside |= bool(((coverage < lower - 1e-12) | (coverage > upper + 1e-12)).any())
        failed += outside
    return failed


def marginal(federation: Federation, m: int) -> int | None:
    return marginal_threshold(federation, LEVEL, m=m)


def pruned(federation: Federation, m: int) -> int | None:
    return Pac(m, alike=0.0).threshold(federation, LEVEL, 0.8)[0]


def pac(federation: Federation, m: int) -> int | None:
    return pac_threshold(federation, LEVEL, m, 0.2)


def main() -> None:
    """Print mean coverage or failure rate of each guarantee, told m and told m - 1."""
    print("| guarantee | clients | n_k | liars | mean coverage | fails | told one less | fails |")
    print("|" + "---|" * 8)
    rules = (("marginal", marginal, 1), ("pac, δ = 0.2", pac, 0))
    for (name, threshold, extra), mix, n in product(rules, ("iid", "dirichlet"), (50, None)):
        row = [name, mix, f"{n or '20-1000'}", "1 of 6"]
        for budget in (1, 0):
            world = {"mix": mix, "n": n, "n_clients": 6, "liars": 1, "extra": extra}
            rng = np.random.default_rng(0)
            coverage = worst_coverage(rng, threshold, budget=budget, trials=100, **world)
            fails = "-" if extra else f"{(coverage < 0.9).mean():.2f}"
            row += [f"{coverage.mean():.3f}", fails]
        print(f"| {' | '.join(row)} |")
    for mix, n in product(("iid", "dirichlet"), (50, None)):
        row = ["any threshold, δ = 0.2", mix, f"{n or '20-1000'}", "2 of 10"]
        for m in (2, 1):
            failed = band_failures(np.random.default_rng(0), mix=mix, n=n, budget=m, trials=100)
            row += ["-", f"{failed / 100:.2f}"]
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
